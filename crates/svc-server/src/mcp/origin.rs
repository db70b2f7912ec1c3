//! Where a request comes from: the caller, the era, the session it acts in.

use std::sync::Arc;

use http::HeaderMap;
use svc_core::tools::RequestTrace;
use svc_model::{Caller, ToolExposure};

use super::{era::ModernClient, metrics::RequestEra, rpc::AnswerEra, session::McpSession};

/// The era of a request, and what is known of the client in it.
#[derive(Debug, Clone)]
pub(crate) enum RequestOrigin {
    /// Neither a session nor a revision: a hook, `curl`.
    Bare,
    Legacy(Arc<McpSession>),
    Modern(ModernClient),
}

/// A request's circumstances, as every method gets them.
#[derive(Debug, Clone)]
pub(crate) struct RequestContext {
    pub(crate) caller: Caller,
    pub(crate) origin: RequestOrigin,
    /// The agent's session on whose behalf the request is made.
    pub(crate) acting_session: Option<Arc<str>>,
    /// Which tools the caller is shown.
    pub(crate) exposure: ToolExposure,
    /// What the client has named the request by.
    pub(crate) trace: RequestTrace,
}

impl RequestContext {
    /// The circumstances of a request over HTTP; its names are in the headers.
    pub(crate) fn from_http(
        (caller, headers): (&Caller, &HeaderMap),
        origin: RequestOrigin,
        acting_session: Option<Arc<str>>,
        exposure: ToolExposure,
    ) -> Self {
        let (caller, trace) = (caller.clone(), trace_of(headers));
        Self { caller, origin, acting_session, exposure, trace }
    }
}

/// The names that a client gave a request. An id that the daemon made is for the daemon's log alone.
fn trace_of(headers: &HeaderMap) -> RequestTrace {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(Arc::from);
    RequestTrace { request_id: text("x-request-id"), parent: text("traceparent") }
}

impl RequestOrigin {
    /// The client of a modern request.
    pub(crate) fn modern(&self) -> Option<&ModernClient> {
        match self {
            Self::Modern(client) => Some(client),
            Self::Bare | Self::Legacy(_) => None,
        }
    }

    pub(crate) fn answer_era(&self) -> AnswerEra {
        match self {
            Self::Bare | Self::Legacy(_) => AnswerEra::Legacy,
            Self::Modern(_) => AnswerEra::Stateless,
        }
    }

    pub(crate) fn era(&self) -> RequestEra {
        match self {
            Self::Bare => RequestEra::Bare,
            Self::Legacy(_) => RequestEra::Legacy,
            Self::Modern(_) => RequestEra::Modern,
        }
    }
}
