//! `svc top`, and `svc` alone on a terminal: a live view of the team.
//!
//! - [`team`]: the fetched documents, with every text sanitised.
//! - [`model`]: the state of the page: the team, the selection, the draft; styles and times.
//! - [`update`]: applies a key, an answer of the daemon or a tick to the model, and returns the
//!   effect to carry out. No I/O.
//! - [`view`]: draws a model; [`detail`] draws the overlays.
//! - [`live`]: reads keys, follows the daemon's feeds, fetches the lists after events, sends
//!   messages and answers.

mod detail;
mod live;
mod model;
mod team;
mod update;
mod view;

pub(super) use live::{is_wanted, run};

#[cfg(test)]
mod tests;
