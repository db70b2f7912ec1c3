//! What a request takes of its caller's budget: bytes while it is worked on, bytes within the hour, an open stream.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Method, header, request::Parts};
use http_body::{Body as _, Frame, SizeHint};

use super::Problem;
use crate::{
    domain::{BudgetKind, Caller, limits},
    service::{BudgetHold, Services},
};

/// Bodies up to this length are not counted while they are worked on: there is never much of them.
const SMALL_BODY: u64 = 16 * 1024;
/// What a body takes while it is worked on: as it came, as values, and as what is made of it.
const COPIES: u64 = 4;
/// Paths whose answer to `GET` may be a stream, whatever `Accept` says.
const STREAMS: [&str; 3] = ["/mcp", "/sse", "/v1/biam/subscribe"];

/// The parts of the caller's budget that a request has taken.
#[derive(Debug)]
pub(super) struct Admission {
    /// For its body, until its answer begins.
    _request: Option<BudgetHold>,
    /// For the stream that the answer may be, until that ends.
    pub(super) stream: Option<BudgetHold>,
}

/// Lets a request in, or says what its caller has to free.
pub(super) fn admit(
    services: &Services,
    caller: &Caller,
    request: &Parts,
    body: &SizeHint,
) -> Result<Admission, Problem> {
    let admission = |request, stream| Ok(Admission { _request: request, stream });
    if caller.is_operator() {
        return admission(None, None);
    }
    if request.method == Method::GET {
        let accept = request.headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
        let events = b"text/event-stream";
        let wants_events =
            accept.is_some_and(|accept| accept.windows(events.len()).any(|part| part == events));
        if wants_events || STREAMS.contains(&request.uri.path()) {
            return admission(None, services.hold(caller, BudgetKind::Streams, 1)?);
        }
        return admission(None, None);
    }
    if body.exact() == Some(0) {
        return admission(None, None);
    }
    services.check_allowance(caller)?;
    let bytes = body.upper().unwrap_or(u64::MAX).min(limits::BODY_BYTES as u64);
    if bytes <= SMALL_BODY {
        return admission(None, None);
    }
    admission(services.hold(caller, BudgetKind::RequestBytes, bytes * COPIES)?, None)
}

/// How many bytes the body of a request has.
#[derive(Debug)]
pub(super) enum BodyBytes {
    /// By its `Content-Length`.
    Announced(u64),
    /// So many came until now.
    Counted(Arc<AtomicU64>),
}

impl BodyBytes {
    pub(super) fn get(&self) -> u64 {
        match self {
            Self::Announced(bytes) => *bytes,
            Self::Counted(bytes) => bytes.load(Relaxed),
        }
    }
}

/// A body that comes in, counted as it comes.
pub(super) struct CountedBody {
    body: Body,
    caller: Caller,
    services: Services,
    /// Of a body whose size was not announced.
    came: Option<Arc<AtomicU64>>,
}

impl CountedBody {
    /// The body of this caller's request, and its size. That of the operator is as it was.
    pub(super) fn of(body: Body, caller: &Caller, services: &Services) -> (Body, BodyBytes) {
        let announced = body.size_hint().exact();
        if caller.is_operator() {
            return (body, BodyBytes::Announced(announced.unwrap_or_default()));
        }
        let (came, bytes) = if let Some(bytes) = announced {
            (None, BodyBytes::Announced(bytes))
        } else {
            let came = Arc::new(AtomicU64::new(0));
            (Some(Arc::clone(&came)), BodyBytes::Counted(came))
        };
        let counted = Self { body, caller: caller.clone(), services: services.clone(), came };
        (Body::new(counted), bytes)
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            self.services.spend(&self.caller, bytes);
            if let Some(came) = &self.came {
                came.fetch_add(bytes, Relaxed);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
