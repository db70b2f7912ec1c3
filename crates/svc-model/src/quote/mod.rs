//! Renders everything that others wrote before a model reads it.
//!
//! A model cannot tell by itself who wrote a text. So the text of a message, a name or a record
//! must not look like a line of the daemon, end its own quotation, or contain anything that a
//! person does not see.
//!
//! - [`plain`] removes invisible characters (a joiner with a visible effect stays) and breaks
//!   imitations of the daemon's stamps and of clients' tags (`imitation`, which compares texts by
//!   their `look`). The rest is unchanged: normalisation serves only to find imitations and is never
//!   applied to the result, since it would change code and names.
//! - [`QuotedText`] is a text of several lines, each after `> `. [`QuotedLine`] is one line within
//!   a line of the daemon.
//! - [`ModelText`] is a text of the daemon for a model. `model_text!` builds it from constants,
//!   numbers, ids and quotations. It accepts no bare `String`.
//! - [`json`] and [`value`] render all strings of a JSON document: results of the daemon's own
//!   tools, and declarations of a child server. [`unimitated_json`] and [`unimitated_value`] change
//!   only strings with an imitation: all other bytes of a child server's results are unchanged.

mod imitation;
mod json;
mod look;
#[cfg(test)]
mod tests;
mod text;

pub use imitation::{plain, plain_data};
pub use json::{json, unimitated_json, unimitated_value, value};
pub(crate) use look::skeleton as skeleton_of;
pub use look::{chars_with_visibility, is_invisible};
pub use text::{ModelText, QuotedLine, QuotedText, SafeForModels, excerpt, line, model_text};
