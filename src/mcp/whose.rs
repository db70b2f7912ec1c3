//! In which of a client's sessions a tool is called.
//!
//! An MCP session is a connection; what a person calls a session (a conversation, with its hooks, its peer and its
//! journal) is the client's own, and one connection may see several. Codex says which in `_meta`; Claude Code names the
//! use of the tool, of which its hook has told the moment before; of opencode only the call itself can be told again by
//! its tool and arguments. A client without hooks may say it by `start_session` with an id. Where nothing is told of a call, as by Gemini, hooks and `svc stdio` have the same client's
//! process. Once known, a connection keeps it, also over a restart, until something says otherwise.

use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Map, Value};

use super::{Mcp, calls::Origin, http::ACTS_FOR};
use crate::{
    domain::{Caller, mcp::CLIENT_PROCESS},
    telemetry,
};

impl Mcp {
    /// For whom a tool is called: as the credential or the header says, else as the client's hooks have shown, else
    /// `acts_for`.
    pub(super) async fn whose(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        origin: &Origin,
        acts_for: Option<Arc<str>>,
        params: &Map<String, Value>,
    ) -> Option<Arc<str>> {
        if caller.session().is_some() || headers.contains_key(ACTS_FOR) {
            return acts_for;
        }
        match origin {
            Origin::Bare => acts_for,
            Origin::Modern(_) => self.told_session(params).or(acts_for),
            Origin::Legacy(session) => {
                let Some(told) = self.told_session(params) else {
                    let of_process = self.session_of_process(headers).await;
                    return of_process.or_else(|| session.client_session()).or(acts_for);
                };
                if session.tie(&told) {
                    let (mcp, id, told) = (self.clone(), session.id.clone(), Arc::clone(&told));
                    self.tasks.spawn(async move {
                        if let Err(error) = mcp.services.hooks.tie_mcp_session(&id, &told).await {
                            let error = telemetry::chain(&error);
                            tracing::warn!(error, "cannot note whose a connection is");
                        }
                    });
                }
                Some(told)
            }
        }
    }

    /// The session that the client's process works for, if `svc stdio` says which process that is.
    async fn session_of_process(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        let pid = headers.get(CLIENT_PROCESS)?.to_str().ok()?.parse().ok()?;
        self.services.hooks.session_of_process(pid).await.ok().flatten().map(Arc::from)
    }

    fn told_session(&self, params: &Map<String, Value>) -> Option<Arc<str>> {
        let tool = params.get("name")?.as_str()?;
        let arguments = params.get("arguments").unwrap_or(&Value::Null);
        let id = |value: &Value| value.as_str().filter(|id| !id.trim().is_empty()).map(Arc::from);
        if tool == "hook_event" {
            return id(&arguments["session_id"])
                .or_else(|| id(&arguments["payload"]["session_id"]));
        }
        let meta = params.get("_meta").unwrap_or(&Value::Null);
        if let Some(thread) = id(&meta["threadId"]) {
            return Some(thread);
        }
        let use_id = meta["claudecode/toolUseId"].as_str();
        let known =
            self.services.hooks.ties.session_of(use_id, tool, arguments, self.services.now());
        // A client that begins a session by name goes on in it.
        known.or_else(|| id(&arguments["session_id"]).filter(|_| tool == "start_session"))
    }
}
