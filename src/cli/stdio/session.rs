//! The session of a revision with sessions: granted by `initialize`, and kept so that it can be
//! renewed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use serde::Deserialize;
use serde_json::value::RawValue;
use svc_wire::json_rpc::JsonRpcEnvelope;
use svc_wire::mcp::Revision;
use svc_wire::mcp_request::RequestSetting;

use super::super::process;

/// A session, as its requests need it.
#[derive(Debug)]
pub(super) struct LegacySession {
    /// The session's id; a server may grant none.
    pub(super) id: Option<HeaderValue>,
    revision: Option<Revision>,
    /// The client's parameters of `initialize`, with which a renewal begins.
    pub(super) params: Option<Box<RawValue>>,
    /// The client's process, which links this session with the session of its hooks.
    process: Option<u32>,
}

/// The session of current requests.
#[derive(Debug, Default)]
pub(super) struct CurrentSession {
    session: Mutex<Option<Arc<LegacySession>>>,
    /// Held while the session is renewed, so that one of many concurrent requests renews it.
    pub(super) renewing: tokio::sync::Mutex<()>,
}

impl LegacySession {
    /// The session that a response to `initialize` grants; `None` if it is an error.
    pub(super) fn granted(request: &[u8], answer: &str, id: Option<HeaderValue>) -> Option<Self> {
        let result = JsonRpcEnvelope::parse(answer.as_bytes()).ok()?.result?;
        let params = JsonRpcEnvelope::parse(request).ok()?.params;
        Some(Self::new(id, result, params))
    }

    pub(super) fn new(
        id: Option<HeaderValue>,
        result: &RawValue,
        params: Option<&RawValue>,
    ) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Negotiated {
            protocol_version: String,
        }
        let negotiated: Option<Negotiated> = serde_json::from_str(result.get()).ok();
        let revision =
            negotiated.and_then(|negotiated| Revision::parse(&negotiated.protocol_version));
        let process = process::client();
        Self { id, revision, params: params.map(ToOwned::to_owned), process }
    }

    /// The headers of its requests.
    pub(super) fn setting(&self) -> RequestSetting<'_> {
        let session = self.id.as_ref();
        RequestSetting {
            revision: self.revision,
            session,
            input_schema: None,
            process: self.process,
            expose: None,
        }
    }
}

impl CurrentSession {
    /// The session; `None` before `initialize`.
    pub(super) fn get(&self) -> Option<Arc<LegacySession>> {
        self.lock().clone()
    }

    /// Replaces the session.
    pub(super) fn begin(&self, session: LegacySession) -> Arc<LegacySession> {
        let session = Arc::new(session);
        *self.lock() = Some(Arc::clone(&session));
        session
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<LegacySession>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
