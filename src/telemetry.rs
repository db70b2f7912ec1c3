//! Logs: what is written where, and how an error is told.
//!
//! A line reads alone and its fields can be searched: dotted names by entity, units as a suffix. No token, prompt,
//! message or payload is ever logged.

use std::fmt::Write as _;

/// An error and all that caused it, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").expect("writing to a string does not fail");
        cause = error.source();
    }
    text
}
