//! The page for the person who runs a team: its files, and the sign-in of a browser.
//!
//! The files are served unchanged from `assets/`, as ECMAScript modules. They need no token and
//! hold none of the daemon's data: the page reads that from `/v1` as every client does, with a
//! cookie that `edge` checks.

mod assets;
mod cookie;
mod sign_in;

pub(super) use cookie::{BrowserToken, browser_secrets};

use super::api::Api;

pub(super) fn routes(api: Api) -> Api {
    sign_in::routes(assets::routes(api))
}
