//! OAuth logins to servers at a URL.
//!
//! Reading order: `discovery` finds the issuer, `registration` the client id for it. `callback`
//! receives the redirect, `run` is a login under way. `tokens` stores the token and renews it.

mod callback;
mod discovery;
mod registration;
mod run;
mod tokens;

pub(super) use discovery::AuthChallenge;
pub(super) use run::{LoginProgress, LoginRequest, LoginRun};
pub(super) use tokens::{RenewalFailure, SourceAuth};
