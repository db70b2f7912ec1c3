//! Limits of each route by method and path: whether it needs a credential, how large its body may
//! be, whether its response may be a stream, and whether it waits for the daemon's start. Routes
//! that read much take turns between callers: see `Api::list`.

use http::Method;
use svc_model::limits;

/// The route that signs a browser in.
pub(super) const SIGN_IN: &str = "/login";
/// The route of the daemon's proof, which clients request before they send a token.
pub(super) const DAEMON_PROOF: &str = "/v1/daemon_proof";
/// URLs of the page's views begin with this path.
pub(super) const VIEWS: &str = "/ui/";
/// URLs of the page's files begin with this path.
pub(super) const FILES: &str = "/assets/";

/// Whether a route needs no credential: the health check, the page's files and sign-in, the
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

/// Whether a POST to the path returns a token, or a code that can be traded for one.
pub(super) fn makes_credentials(path: &str) -> bool {
    matches!(path, "/v1/tokens" | "/v1/token/rotate" | "/v1/login_codes" | "/v1/login_tickets")
}

/// The limit of a body in bytes. It is smaller for a sender without a credential.
pub(super) fn body_bytes(path: &str, is_known: bool) -> usize {
    match path {
        _ if !is_known => limits::OPEN_BODY_BYTES,
        _ if path.starts_with("/v1/") => limits::V1_BODY_BYTES,
        _ => limits::BODY_BYTES,
    }
}

/// Whether the response to a GET may be a stream, whatever its `Accept` says.
pub(super) fn may_stream(path: &str) -> bool {
    matches!(path, "/mcp" | "/sse" | "/v1/biam/subscribe")
}

/// Whether a request waits while the daemon starts. An MCP client that resumes a broken stream
/// tries twice and then waits for ever.
pub(super) fn waits_for_start(path: &str) -> bool {
    matches!(path, "/mcp" | "/sse" | "/messages")
}
