//! The page for the person who runs a team: its files, and how a browser is signed in.
//!
//! The files are served as they lie in `assets/`, in the form that ECMAScript modules have. They
//! ask for no token, and hold nothing of the daemon's data: the page gets that from `/v1` as
//! everybody does, by a cookie that `edge` looks at.

mod assets;
mod cookie;
mod sign_in;

pub(super) use cookie::{BrowserToken, browser_secrets};

use super::api::Api;

pub(super) fn routes(api: Api) -> Api {
    sign_in::routes(assets::routes(api))
}
