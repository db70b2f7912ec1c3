//! The budget that a request holds, from its beginning until its response is written.
//!
//! Four of the five budgets are charged here: concurrent requests, until the response is complete,
//! where a long body counts as several; open streams, until they end; stored bytes per hour, by the
//! length of request bodies; and unread bytes of responses, each chunk until the system has taken
//! it. A response beyond the budget becomes a refusal that says what to free; a stream waits for
//! capacity. The fifth, stored rows, is checked in the transactions that store them.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Method, request::Parts};
use http_body::{Body as _, Frame, SizeHint};
use svc_core::service::{BudgetHold, Credential, Services};
use svc_model::{BudgetKind, Caller, REQUEST_UNIT_BYTES, limits};
use svc_wire::sse;

use super::{
    Problem,
    entry::{self, Identified},
};
use crate::web::{EndsWithToken, RouteName};

pub(super) struct Admission {
    services: Services,
    /// Whose budget is held; `None` for the operator.
    reader: Option<AnswerReader>,
    credential: Option<Credential>,
    is_get: bool,
    request: Option<BudgetHold>,
    stream: Option<BudgetHold>,
}

impl Admission {
    /// Admits a request, or returns which budget its caller has used up.
    pub(super) fn take(
        services: &Services,
        identified: &Identified,
        request: &Parts,
        body: &SizeHint,
    ) -> Result<Self, Problem> {
        let caller = identified.caller.as_ref().filter(|caller| !caller.is_operator());
        let is_get = request.method == Method::GET;
        let (mut one, mut stream) = (None, None);
        if let Some(caller) = caller {
            if is_get && entry::may_stream(request.uri.path(), &request.headers) {
                stream = services.hold(caller, BudgetKind::Streams, 1)?;
            } else {
                // Without `Content-Length` the body counts as long as the route allows.
                let most = entry::body_bytes(request.uri.path(), true) as u64;
                let bytes = if is_get { 0 } else { body.upper().map_or(most, |it| it.min(most)) };
                let requests = 1 + bytes / REQUEST_UNIT_BYTES;
                one = services.hold(caller, BudgetKind::Requests, requests)?;
                services.take_stored(caller, bytes)?;
            }
            // Without capacity for a response the request is refused before its body is read.
            drop(services.hold(caller, BudgetKind::UnreadBytes, 1)?);
        }
        let reader = caller
            .map(|caller| AnswerReader { caller: caller.clone(), services: services.clone() });
        let (services, credential) = (services.clone(), identified.credential.clone());
        Ok(Self { services, reader, credential, is_get, request: one, stream })
    }

    /// Wraps the response: its body holds the budget, and a stream ends with its credential.
    pub(super) async fn answer(mut self, mut response: Response) -> Response {
        let is_stream = sse::is_event_stream(response.headers());
        // The response to another call is completed even if the call ended its session.
        let (is_endless, is_answer, final_part) = match response.extensions_mut().remove() {
            None => (false, false, None),
            Some(EndsWithToken::Endless) => (true, false, None),
            Some(EndsWithToken::Answer(final_part)) => (false, true, final_part),
        };
        let ends_with_credential = is_answer || is_endless || (is_stream && self.is_get);
        let over = match &self.credential {
            Some(credential) if ends_with_credential => {
                let access = &self.services.access;
                match Box::pin(access.until_over(credential)).await {
                    Some(over) => Some(over.boxed()),
                    // The database may be away, and the client could not resume this response. The
                    // token is checked again before the call is answered.
                    None if !self.is_get && is_answer && !access.is_over(credential) => None,
                    None => return response.map(|_| final_part.unwrap_or_default().into()),
                }
            }
            _ => None,
        };
        if over.is_none() && self.reader.is_none() {
            return response;
        }
        match self.take_answer(&response, is_endless) {
            Ok(reserved) => response.map(|body| {
                Body::new(AnswerBody {
                    body,
                    over,
                    final_part,
                    reserved,
                    reader: self.reader,
                    waiting: None,
                    is_over: false,
                    // A call whose response is a stream is counted by its service while it runs.
                    _request: if is_stream { None } else { self.request },
                    _stream: self.stream,
                })
            }),
            Err(problem) => {
                let mut refusal = problem.into_response();
                // The extension of the route stays, so that the refusal is counted for the route.
                if let Some(route) = response.extensions().get::<RouteName>() {
                    refusal.extensions_mut().insert(*route);
                }
                refusal
            }
        }
    }

    /// Holds budget for a response of known size, and for an endless stream, which the request did
    /// not announce.
    fn take_answer(
        &mut self,
        response: &Response,
        is_endless: bool,
    ) -> Result<Option<BudgetHold>, Problem> {
        let Some(AnswerReader { caller, .. }) = &self.reader else { return Ok(None) };
        if is_endless && self.stream.is_none() {
            self.stream = self.services.hold(caller, BudgetKind::Streams, 1)?;
        }
        match response.body().size_hint().exact() {
            Some(bytes) if bytes > limits::UNCOUNTED_BYTES as u64 => {
                Ok(reserve_unread(&self.services, caller, bytes)?)
            }
            _ => Ok(None),
        }
    }
}

/// Holds budget of unread responses. A response larger than the whole budget passes if nothing else
/// is unread.
fn reserve_unread(
    services: &Services,
    caller: &Caller,
    bytes: u64,
) -> Result<Option<BudgetHold>, svc_core::service::Error> {
    services.hold(caller, BudgetKind::UnreadBytes, countable(services, bytes))
}

fn countable(services: &Services, bytes: u64) -> u64 {
    bytes.min(services.tuning().budget.bound(BudgetKind::UnreadBytes))
}

#[derive(Debug, Clone)]
struct AnswerReader {
    caller: Caller,
    services: Services,
}

impl AnswerReader {
    /// A chunk of the response that frees its part of the budget when its last byte has been
    /// written.
    fn counted(bytes: Bytes, hold: Option<BudgetHold>) -> Bytes {
        if hold.is_none() {
            return bytes;
        }
        Bytes::from_owner(UnreadChunk { bytes, _hold: hold })
    }

    fn hold(&self, bytes: &Bytes) -> Result<Option<BudgetHold>, svc_core::service::Error> {
        reserve_unread(&self.services, &self.caller, bytes.len() as u64)
    }

    async fn wait_for_capacity(self, bytes: Bytes) -> Bytes {
        let amount = countable(&self.services, bytes.len() as u64);
        let hold = self.services.hold_when_free(&self.caller, BudgetKind::UnreadBytes, amount);
        let hold = hold.await;
        Self::counted(bytes, hold)
    }
}

struct UnreadChunk {
    bytes: Bytes,
    _hold: Option<BudgetHold>,
}

impl AsRef<[u8]> for UnreadChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct AnswerBody {
    body: Body,
    /// Completes when the credential of a stream ends.
    over: Option<BoxFuture<'static, ()>>,
    /// Sent when the credential ends before the stream.
    final_part: Option<Bytes>,
    reserved: Option<BudgetHold>,
    /// The reader whose budget the bytes count for; `None` for the operator.
    reader: Option<AnswerReader>,
    waiting: Option<BoxFuture<'static, Bytes>>,
    is_over: bool,
    _request: Option<BudgetHold>,
    _stream: Option<BudgetHold>,
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.over.as_mut().is_some_and(|over| over.as_mut().poll(cx).is_ready()) {
            (this.over, this.waiting, this.is_over) = (None, None, true);
            // A complete stream has its answer. Any other part is not for this reader any more.
            if let Poll::Ready(None) = Pin::new(&mut this.body).poll_frame(cx) {
                this.final_part = None;
            }
        }
        if this.is_over {
            return Poll::Ready(this.final_part.take().map(|part| Ok(Frame::data(part))));
        }
        if let Some(waiting) = &mut this.waiting {
            let bytes = ready!(waiting.as_mut().poll(cx));
            this.waiting = None;
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let (frame, reader) = match (ready!(Pin::new(&mut this.body).poll_frame(cx)), &this.reader)
        {
            (Some(Ok(frame)), Some(reader)) => (frame, reader),
            (other, _) => return Poll::Ready(other),
        };
        let bytes = match frame.into_data() {
            Ok(bytes) => bytes,
            Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
        };
        if bytes.len() <= limits::UNCOUNTED_BYTES {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        // A response of known size holds its whole budget already.
        let hold = match this.reserved.take() {
            Some(hold) => Ok(Some(hold)),
            None => reader.hold(&bytes),
        };
        let bytes = if let Ok(hold) = hold {
            AnswerReader::counted(bytes, hold)
        } else {
            let mut waiting = reader.clone().wait_for_capacity(bytes).boxed();
            let polled = waiting.as_mut().poll(cx);
            this.waiting = polled.is_pending().then_some(waiting);
            ready!(polled)
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        if self.is_over {
            return self.final_part.is_none();
        }
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // A stream ends with its credential, perhaps before its body.
        if self.over.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use http_body_util::BodyExt as _;
    use svc_core::service::{Services, Tuning, testing};
    use svc_model::{Timestamp, TokenId};
    use svc_store::testing::TestStore;

    use super::*;

    const PIECE: usize = 10_000;
    /// Why a stream ends before its answer.
    const WHY: &str = "data: why\n\n";

    fn reader(test: &TestStore, bound: u64) -> AnswerReader {
        let mut tuning = Tuning::default();
        tuning.budget.set(BudgetKind::UnreadBytes, bound);
        let services: Services = testing::services_with(test, tuning);
        let caller = Caller::Session {
            key: Arc::from("greedy"),
            token: TokenId::from("token".to_owned()),
            scopes: Arc::from([]),
            project: None,
            process: None,
            root: None,
            folder: None,
        };
        AnswerReader { caller, services }
    }

    fn body(reader: &AnswerReader, pieces: usize) -> AnswerBody {
        let pieces = (0..pieces).map(|_| Ok::<_, axum::Error>(Bytes::from(vec![0; PIECE])));
        AnswerBody {
            body: Body::from_stream(futures_util::stream::iter(pieces.collect::<Vec<_>>())),
            over: None,
            final_part: None,
            reserved: None,
            reader: Some(reader.clone()),
            waiting: None,
            is_over: false,
            _request: None,
            _stream: None,
        }
    }

    /// The response of a call whose token has no row, as if the row could not be read.
    async fn answer_of_call(services: &Services, expires_at: i64, is_get: bool) -> Bytes {
        let credential = Credential::Session {
            id: TokenId::from("token".to_owned()),
            expires_at: Timestamp::from_millis(expires_at),
        };
        let admission = Admission {
            services: services.clone(),
            reader: None,
            credential: Some(credential),
            is_get,
            request: None,
            stream: None,
        };
        let mut response = Response::new(Body::from("data: 1\n\n"));
        sse::announce(response.headers_mut());
        response.extensions_mut().insert(EndsWithToken::Answer(Some(WHY.into())));
        admission.answer(response).await.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn call_is_answered_although_its_token_cannot_be_checked_when_the_stream_begins() {
        let test = TestStore::open().await;
        let services = testing::services_with(&test, Tuning::default());
        let later = 1 << 50;
        assert_eq!(answer_of_call(&services, later, false).await, "data: 1\n\n");
        assert_eq!(answer_of_call(&services, later, true).await, WHY, "a GET can be repeated");
        assert_eq!(answer_of_call(&services, 0, false).await, WHY, "its token has expired");
    }

    #[tokio::test]
    async fn stream_that_ends_with_its_token_says_why_unless_it_is_complete() {
        let test = TestStore::open().await;
        let reader = reader(&test, 25_000);
        for (pieces, final_part, expected) in
            [(2, Some(WHY), WHY), (0, Some(WHY), ""), (2, None, "")]
        {
            let cut = AnswerBody {
                over: Some(std::future::ready(()).boxed()),
                final_part: final_part.map(Bytes::from),
                ..body(&reader, pieces)
            };
            assert!(!cut.is_end_stream(), "{pieces}");
            assert_eq!(cut.collect().await.unwrap().to_bytes(), expected, "{pieces}");
        }
    }

    #[tokio::test]
    async fn unread_bytes_hold_budget_until_written_and_streams_wait() {
        let test = TestStore::open().await;
        let reader = reader(&test, 25_000);
        let (mut one, mut other) = (body(&reader, 3), body(&reader, 1));
        let first = one.frame().await.unwrap().unwrap().into_data().unwrap();
        let second = one.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(other.frame().now_or_never().is_none(), "there is no room");
        let caller = &reader.caller;
        let refusal = reserve_unread(&reader.services, caller, 10_000).unwrap_err().to_string();
        assert!(refusal.starts_with("budget.unread_bytes: "), "{refusal}");
        let waits = tokio::spawn(async move { (other.frame().await.unwrap().unwrap(), other) });
        // Writing the first half of a chunk frees nothing.
        let rest = first.slice(PIECE / 2..);
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(rest);
        let (frame, _other) = tokio::time::timeout(Duration::from_mins(1), waits)
            .await
            .expect("there is room")
            .unwrap();
        assert_eq!(frame.data_ref().unwrap().len(), PIECE);
        drop((second, frame));
        let whole = one.collect().await.unwrap().to_bytes();
        assert_eq!(whole.len(), PIECE);
        drop(whole);
        assert!(reserve_unread(&reader.services, caller, 25_000).unwrap().is_some(), "all is back");
        // A response larger than the bound passes if nothing else is unread.
        assert!(reserve_unread(&reader.services, caller, 1 << 40).unwrap().is_some());
    }
}
