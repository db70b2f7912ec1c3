//! The session of an older client: begun by its `initialize`, renewed without it, listened to on its behalf.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::super::{output, process};
use super::call::own_request;
use super::exchange::Bridge;
use super::link::{Effort, Trouble};
use crate::client::mcp::{self, Message, Setting};
use crate::client::{Answer, backoff};
use crate::domain::mcp::Revision;

const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// A session as its requests need it.
#[derive(Debug)]
pub(super) struct Session {
    /// Its id; a server may do without.
    pub(super) id: Option<HeaderValue>,
    revision: Option<Revision>,
    /// The client's own words, to begin another session with.
    params: Option<Box<RawValue>>,
    process: Option<u32>,
}

/// The present session.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    current: Mutex<Option<Arc<Session>>>,
    renewing: tokio::sync::Mutex<()>,
}

impl Session {
    /// The session that an answer to `initialize` grants; `None` if it refuses.
    pub(super) fn granted(request: &[u8], answer: &str, id: Option<HeaderValue>) -> Option<Self> {
        let result = Message::parse(answer.as_bytes()).ok()?.result?;
        let params = Message::parse(request).ok()?.params;
        Some(Self::new(id, result, params))
    }

    fn new(id: Option<HeaderValue>, result: &RawValue, params: Option<&RawValue>) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Negotiated {
            protocol_version: String,
        }
        let negotiated: Option<Negotiated> = serde_json::from_str(result.get()).ok();
        let revision = negotiated.and_then(|it| Revision::parse(&it.protocol_version));
        let process = process::client();
        Self { id, revision, params: params.map(ToOwned::to_owned), process }
    }

    /// What its requests have in their headers.
    pub(super) fn setting(&self) -> Setting<'_> {
        let session = self.id.as_ref();
        Setting { revision: self.revision, session, input_schema: None, process: self.process }
    }
}

impl Sessions {
    /// The session that requests belong to now.
    pub(super) fn current(&self) -> Option<Arc<Session>> {
        self.lock().clone()
    }

    /// Takes this one from now on.
    pub(super) fn begin(&self, session: Session) -> Arc<Session> {
        let session = Arc::new(session);
        *self.lock() = Some(Arc::clone(&session));
        session
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bridge {
    /// Begins another session in the place of one that the daemon does not know, in the client's words. Of many who ask
    /// for it one does it.
    pub(super) async fn renew(&self, stale: &Arc<Session>) -> Result<Arc<Session>, String> {
        let _turn = self.sessions.renewing.lock().await;
        match self.sessions.current() {
            Some(current) if !Arc::ptr_eq(&current, stale) => return Ok(current),
            _ => {}
        }
        let request = own_request("svc-stdio-initialize", "initialize", &stale.params);
        let (id, result) = self
            .ask(&request)
            .await
            .map_err(|problem| format!("the session cannot be renewed: {problem}"))?;
        let session = Session::new(id, &result, stale.params.as_deref());
        let initialized = mcp::post(Bytes::from_static(INITIALIZED), session.setting());
        match self.link.open(&initialized, Effort::Demand).await {
            Ok(answer) if answer.status.is_success() => {}
            Ok(answer) => return Err(format!("the session cannot be renewed: {}", answer.status)),
            Err(trouble) => return Err(format!("the session cannot be renewed: {trouble}")),
        }
        Ok(self.sessions.begin(session))
    }

    /// Passes on what the daemon says of itself in the session, for ever, or until the daemon says that it has no such
    /// stream.
    pub(super) async fn listen(&self) {
        let mut last: Option<String> = None;
        let mut heard_in: Option<Arc<Session>> = None;
        let (mut failures, mut renewed) = (0, false);
        loop {
            let Some(session) = self.sessions.current().filter(|it| it.id.is_some()) else {
                return;
            };
            if !heard_in.as_ref().is_some_and(|it| Arc::ptr_eq(it, &session)) {
                (last, heard_in) = (None, Some(Arc::clone(&session)));
            }
            let request = mcp::get(session.setting(), last.as_deref());
            let mut asked = None;
            match self.link.open(&request, Effort::Background).await {
                Ok(stream) if stream.status == StatusCode::OK && stream.is_event_stream() => {
                    renewed = false;
                    let mut answer = Answer::new(stream);
                    while let Ok(Some(message)) = answer.next().await {
                        failures = 0;
                        self.pass(message).await;
                    }
                    last = answer.last_event_id().map(str::to_owned).or(last);
                    asked = answer.retry();
                }
                Ok(refusal) => match refusal.status {
                    StatusCode::METHOD_NOT_ALLOWED => return,
                    StatusCode::NO_CONTENT => last = None,
                    // Perhaps it is only the stream that is unknown.
                    StatusCode::NOT_FOUND if last.is_some() => {
                        last = None;
                        continue;
                    }
                    StatusCode::NOT_FOUND if !std::mem::replace(&mut renewed, true) => {
                        if let Err(problem) = self.renew(&session).await {
                            output::note(&format!("svc: {problem}"));
                        }
                    }
                    StatusCode::UNAUTHORIZED => self.note_refusal(refusal).await,
                    status if status.is_server_error() => {}
                    // Asking again will not help, and requests do without.
                    _ => return self.note_refusal(refusal).await,
                },
                Err(Trouble::Lost(_) | Trouble::Away(_)) => {}
            }
            sleep(backoff(failures, asked)).await;
            failures += 1;
        }
    }

    /// Tells the daemon that the session is over. If it cannot be told, the session ends by itself one day.
    pub(super) async fn end_session(&self) {
        if let Some(session) = self.sessions.current().filter(|it| it.id.is_some()) {
            self.link.open(&mcp::delete(session.setting()), Effort::Once).await.ok();
        }
    }
}
