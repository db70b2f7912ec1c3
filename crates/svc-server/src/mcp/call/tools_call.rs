//! `tools/call`: finds the tool, and runs it as its pace and the client's era demand.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::{Map, Value};
use svc_core::tools::{Call, DelegatedCall, Failure, NoFarEnd, Pace};
use svc_model::BudgetKind;
use tokio::sync::mpsc;

use super::{
    super::{
        McpServer, era,
        origin::{RequestContext, RequestOrigin},
        rpc::{ClientRequest, RpcError, shortened},
        running::{CallRecord, MessageSink},
    },
    answer::{CallAnswer, PendingAnswer, rpc_error_of},
    channel::{CallClient, ClientChannel},
    detachable::run_detachable,
    immediate::{run_bare, run_immediate},
    on_record::{RecordedCall, record_and_run},
};

/// How long a call waits for a server that was never connected to say which tools it has.
const FIRST_LISTS: Duration = Duration::from_secs(5);

/// The reply to `tools/call`.
pub(crate) enum CallReply {
    /// The answer, as soon as it is there.
    Pending(PendingAnswer),
    /// A call on record: its stream ends with the answer.
    Recorded(RecordedCall),
}

impl McpServer {
    /// Answers `tools/call`.
    pub(crate) async fn call_tool(
        &self,
        context: RequestContext,
        headers: &HeaderMap,
        mut request: ClientRequest,
    ) -> Result<CallReply, RpcError> {
        let RequestContext { caller, origin, acting_session, trace, .. } = context;
        let name = request.params.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| RpcError::invalid_params("params.name: must name a tool"))?;
        let hold = self.services.hold(&caller, BudgetKind::Requests, 1)?.map(Arc::new);
        let acting_session =
            self.acting_session(&caller, headers, &origin, acting_session, &request.params).await?;
        // What it sees and which tools it has is a matter of the session's project.
        let caller = self.services.team.in_project_of(&caller, acting_session.as_deref()).await?;
        let Some(tool) = self.catalogue.find_soon(&caller, name, FIRST_LISTS).await else {
            if let Some(error) = self.catalogue.absence(&caller, name) {
                let answer = CallAnswer::of(&request.id, Err(error.into()), origin.answer_era());
                let answer = std::future::ready(answer).boxed();
                let answer = PendingAnswer { answer, messages: None, is_repeatable: true };
                return Ok(CallReply::Pending(answer));
            }
            let name = shortened(name);
            return Err(RpcError::invalid_params(format!("Unknown tool: {name}")));
        };
        if let RequestOrigin::Modern(_) = &origin {
            era::check_argument_headers(headers, &tool, &request.params)?;
        }
        let tool = match self.catalogue.called_by(&caller, &tool, &request.params) {
            None => tool,
            // From here on it is a call of the other tool: on record, and after a restart.
            Some(DelegatedCall { tool, arguments }) => {
                request.params.insert("name".to_owned(), tool.name().into());
                request.params.insert("arguments".to_owned(), arguments.into());
                tool
            }
        };
        let started_at = self.services.now();
        let client = match origin {
            RequestOrigin::Bare => {
                let arguments = arguments_of(request.params.remove("arguments"))?;
                let call = Call {
                    services: self.services.clone(),
                    caller,
                    session: acting_session,
                    started_at,
                    far_end: Arc::new(NoFarEnd),
                    trace,
                    params: request.raw_params,
                };
                return Ok(CallReply::Pending(run_bare(call, hold, request.id, tool, arguments)));
            }
            RequestOrigin::Legacy(session) => CallClient::Legacy(session),
            RequestOrigin::Modern(client) => CallClient::Modern(client),
        };
        let arguments = arguments_of(request.params.get("arguments").cloned())?;
        let record = CallRecord {
            rpc_id: request.id,
            tool: tool.name().to_owned(),
            params: request.params,
            raw_params: request.raw_params,
            trace,
            acting_session,
            credential: self.services.access.credential_name(&caller),
            started_at,
            hold,
        };
        if let CallClient::Modern(client) = &client
            && tool.is_task_only()
            && !client.has_tasks()
        {
            return Err(rpc_error_of(Failure::needs_tasks()));
        }
        let (pace, client) = match (tool.pace(), client) {
            (Pace::Slow, CallClient::Legacy(session)) => {
                let call = record_and_run(self, &caller, session, tool, arguments, record);
                return Ok(CallReply::Recorded(Box::pin(call).await?));
            }
            other => other,
        };
        let (sender, messages) = mpsc::unbounded_channel();
        let sink = MessageSink::Response(sender);
        let channel = ClientChannel::new(self, &caller, client, record, sink);
        Ok(CallReply::Pending(match pace {
            Pace::Fast => run_immediate(channel, messages, tool, arguments),
            Pace::Slow => run_detachable(channel, messages, tool, arguments)?,
        }))
    }
}

fn arguments_of(given: Option<Value>) -> Result<Map<String, Value>, RpcError> {
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(arguments)) => Ok(arguments),
        Some(_) => Err(RpcError::invalid_params("params.arguments: must be an object")),
    }
}
