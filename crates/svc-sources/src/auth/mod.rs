//! Logging in to servers at a URL, by OAuth.
//!
//! Reading order: `challenge` is what a server answers to who may not, `oauth_http` makes requests to issuers, `discovery` finds out
//! who lets people in, `registration` who this client is to them. `flow` is one login from the URL that a person opens to the
//! token, `callback` is where the browser comes back to,
//! `run` a login that is under way. `tokens` keeps the token, and gets a new one when it is over.

mod callback;
mod challenge;
mod discovery;
mod flow;
mod oauth_http;
mod registration;
mod run;
mod tokens;

pub(super) use challenge::AuthChallenge;
pub(super) use flow::LoginWish;
pub(super) use run::{LoginProgress, LoginRun};
pub(super) use tokens::{RenewalFailure, SourceAuth};
