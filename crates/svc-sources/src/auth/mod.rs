//! Logging in to servers at a URL, by OAuth.
//!
//! Reading order: `discovery` finds out who lets people in, `registration` who this client is to
//! them. `callback` is where the browser comes back to, `run` a login that is under way. `tokens`
//! keeps the token, and gets a new one when it is over.

mod callback;
mod discovery;
mod registration;
mod run;
mod tokens;

pub(super) use discovery::AuthChallenge;
pub(super) use run::{LoginProgress, LoginRun, LoginWish};
pub(super) use tokens::{RenewalFailure, SourceAuth};
