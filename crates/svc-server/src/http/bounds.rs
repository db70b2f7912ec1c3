//! What each route takes and gives at most, by method and path: whether it asks for a credential,
//! how long a body it reads, whether its answer may be a stream, and whether it waits for a start.
//! Routes that read much are in turns with those of other callers: `Api::list` says so.

use http::Method;
use svc_model::limits;

/// Where a browser is signed in.
pub(super) const SIGN_IN: &str = "/login";
/// Where the daemon proves who it is, before anybody sends it a token.
pub(super) const DAEMON_PROOF: &str = "/v1/daemon_proof";
/// Views of the page have URLs of their own below this path.
pub(super) const VIEWS: &str = "/ui/";
/// Files of the page.
pub(super) const FILES: &str = "/assets/";

/// Whether a route asks for no credential: the health check, the page's files and sign-in, the
/// daemon's proof, and `/.well-known/`, where clients look for OAuth metadata: a 401 would start a
/// login.
pub(super) fn is_open(method: &Method, path: &str) -> bool {
    if method == Method::POST {
        return path == DAEMON_PROOF || path == SIGN_IN;
    }
    let is_page =
        matches!(path, "/" | SIGN_IN) || path.starts_with(VIEWS) || path.starts_with(FILES);
    let is_public = is_page || path == "/health" || path.starts_with("/.well-known/");
    is_public && (method == Method::GET || method == Method::HEAD)
}

/// Whether a POST there is answered with a token, or a code that becomes one.
pub(super) fn makes_credentials(path: &str) -> bool {
    matches!(path, "/v1/tokens" | "/v1/token/rotate" | "/v1/login_codes" | "/v1/login_tickets")
}

/// Largest body that a route reads, in bytes. A sender without a credential has little to say.
pub(super) fn body_bytes(path: &str, is_known: bool) -> usize {
    match path {
        _ if !is_known => limits::OPEN_BODY_BYTES,
        _ if path.starts_with("/v1/") => limits::V1_BODY_BYTES,
        _ => limits::BODY_BYTES,
    }
}

/// Whether the answer to a GET may be a stream, whatever its `Accept` says.
pub(super) fn may_stream(path: &str) -> bool {
    matches!(path, "/mcp" | "/sse" | "/v1/biam/subscribe")
}

/// Whether a request waits while the daemon starts. A client of MCP that comes back to a broken
/// stream tries twice and then waits for ever.
pub(super) fn waits_for_start(path: &str) -> bool {
    matches!(path, "/mcp" | "/sse" | "/messages")
}
