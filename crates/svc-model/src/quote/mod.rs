//! One way to a model: everything that others wrote is rendered here before a model reads it.
//!
//! A model cannot tell by itself who wrote a text. So what somebody wrote into a message, a name or
//! a record must not look like a line of the daemon's, end the quotation that it stands in, or hold
//! what a person does not see.
//!
//! - [`plain`] removes characters that nobody sees (`invisible`; a joiner that joins is seen) and
//!   breaks what imitates a stamp of the daemon's or a tag of a client's (`imitation`, which
//!   compares texts by what they look like: `skeleton`). All else stays as it was written: the text
//!   is normalised to find an imitation, and never in what is given, or code and names would
//!   change.
//! - [`QuotedText`] is a text of several lines, each behind `> `. [`QuotedLine`] is one line within
//!   a line of ours.
//! - [`ModelText`] is a text of the daemon's for a model. `model_text!` makes it of constants,
//!   numbers, ids and quotations. A bare `String` does not fit into it.
//! - [`json`] and [`value`] render all strings of a JSON document: the results of the daemon's own
//!   tools, and what a child server declares. [`unimitated_json`] and [`unimitated_value`] change
//!   only strings that hold an imitation: what a child server answers passes otherwise byte for
//!   byte.

mod imitation;
mod invisible;
mod json;
mod model_text;
mod skeleton;
#[cfg(test)]
mod tests;
mod text;

pub use imitation::{plain, plain_data};
pub use invisible::{chars_with_visibility, is_invisible};
pub use json::{json, unimitated_json, unimitated_value, value};
pub use model_text::model_text;
pub use model_text::{ForModels, ModelText};
pub(crate) use skeleton::skeleton as skeleton_of;
pub use text::{QuotedLine, QuotedText, excerpt, line};
