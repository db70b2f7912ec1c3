//! `svc top`, and `svc` alone on a terminal: the team at a glance, for as long as one looks.
//!
//! - [`team`]: what was fetched, with every text made harmless.
//! - [`model`]: what is shown: the team, what is chosen, what is being written.
//! - [`update`]: what a key, an answer of the daemon or the clock changes, and what is to be done
//!   about it. No I/O.
//! - [`view`]: draws a model. [`list`] has the page of lists, [`detail`] what lies on top of it.
//! - [`look`]: styles and times.
//! - [`live`]: reads keys, follows the daemon's feeds, fetches when they move, sends what was
//!   written.

mod detail;
mod list;
mod live;
mod look;
mod model;
mod team;
mod update;
mod view;

pub(super) use live::{is_wanted, run};

#[cfg(test)]
mod tests;
