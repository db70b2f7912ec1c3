//! What a request takes of its caller's budget: requests at once, bytes stored within the hour, an open stream.

use axum::body::Body;
use http::{HeaderValue, Method, header, request::Parts};
use http_body::SizeHint;

use super::Problem;
use crate::{
    domain::{BudgetKind, Caller, REQUEST_UNIT_BYTES, limits},
    service::{BudgetHold, Services},
};

/// Paths whose answer to `GET` may be a stream, whatever `Accept` says.
const STREAMS: [&str; 3] = ["/mcp", "/sse", "/v1/biam/subscribe"];

/// The parts of the caller's budget that a request has taken.
#[derive(Debug)]
pub(super) struct Admission {
    /// Until its answer begins.
    _request: Option<BudgetHold>,
    /// For the stream that the answer may be, until that ends.
    pub(super) stream: Option<BudgetHold>,
}

/// Lets a request in, or says what its caller has to free. Nothing of the body was read yet.
pub(super) fn admit(
    services: &Services,
    caller: &Caller,
    request: &Parts,
    body: &SizeHint,
) -> Result<Admission, Problem> {
    let is_get = request.method == Method::GET;
    let bytes = if is_get { 0 } else { body_bytes(request, body) };
    let request_hold =
        services.hold(caller, BudgetKind::Requests, 1 + bytes / REQUEST_UNIT_BYTES)?;
    services.take_stored(caller, bytes)?;
    let stream = if is_get && may_be_stream(request) {
        services.hold(caller, BudgetKind::Streams, 1)?
    } else {
        None
    };
    Ok(Admission { _request: request_hold, stream })
}

/// Bytes of a body. Without `Content-Length` it counts as the longest that its route takes.
fn body_bytes(request: &Parts, body: &SizeHint) -> u64 {
    let most = match request.uri.path() {
        path if path.starts_with("/v1/") => limits::V1_BODY_BYTES,
        _ => limits::BODY_BYTES,
    };
    body.upper().unwrap_or(u64::MAX).min(most as u64)
}

fn may_be_stream(request: &Parts) -> bool {
    let accept = request.headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    let events = b"text/event-stream";
    accept.is_some_and(|accept| accept.windows(events.len()).any(|part| part == events))
        || STREAMS.contains(&request.uri.path())
}

/// The body of a stream, which gives its part of the caller's budget back when it ends or its reader is gone.
pub(super) fn held_body(body: Body, hold: Option<BudgetHold>) -> Body {
    use http_body_util::BodyExt as _;
    match hold {
        Some(hold) => Body::new(body.map_frame(move |frame| {
            let _ = &hold;
            frame
        })),
        None => body,
    }
}
