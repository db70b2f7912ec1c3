//! A call as it is put on record.

use std::sync::Arc;

use serde_json::{Map, Value, value::RawValue};
use svc_core::{
    service::{BudgetHold, mcp::NewCall},
    tools::RequestTrace,
};
use svc_model::{McpSessionId, Timestamp};
use svc_store::McpTransport;
use svc_wire::mcp::Revision;

/// A request for a tool or a prompt.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    /// JSON-RPC id of the request.
    pub(crate) rpc_id: Box<RawValue>,
    /// The tool, or the prompt.
    pub(crate) tool: String,
    pub(crate) params: Map<String, Value>,
    /// The same as they came; `None` after a restart.
    pub(crate) raw_params: Option<Arc<RawValue>>,
    /// What the client has named the request by.
    pub(crate) trace: RequestTrace,
    /// The agent's session on whose behalf the tool runs.
    pub(crate) acting_session: Option<Arc<str>>,
    /// Names the credential that the request came with: it has to be good still when the answer is given.
    pub(crate) credential: String,
    pub(crate) started_at: Timestamp,
    /// Its part of the caller's budget, for as long as it is at work.
    pub(crate) hold: Option<Arc<BudgetHold>>,
}

impl CallRecord {
    /// The arguments as they came; `null` if there are none.
    pub(crate) fn arguments(&self) -> &Value {
        self.params.get("arguments").unwrap_or(&Value::Null)
    }

    /// The token of the progress that the client wants to hear of.
    pub(crate) fn progress_token(&self) -> Option<&Value> {
        let token = self.params.get("_meta")?.get("progressToken")?;
        (token.is_string() || token.is_number()).then_some(token)
    }

    /// The row of a call in a session.
    pub(crate) fn in_session(
        &self,
        id: McpSessionId,
        transport: McpTransport,
        revision: Revision,
    ) -> NewCall {
        NewCall { session: Some((id, transport)), ..self.new_call(revision) }
    }

    /// The row of a task.
    pub(crate) fn as_task(&self, revision: Revision, answers: String) -> NewCall {
        NewCall { is_task: true, answers: Some(answers), ..self.new_call(revision) }
    }

    fn new_call(&self, revision: Revision) -> NewCall {
        NewCall {
            session: None,
            credential: self.credential.clone(),
            acts_for: self.acting_session.as_deref().map(str::to_owned),
            revision,
            rpc_id: self.rpc_id.get().to_owned(),
            tool: self.tool.clone(),
            params: serde_json::to_string(&self.params).expect("a map has a JSON form"),
            is_task: false,
            answers: None,
            started_at: self.started_at,
        }
    }
}
