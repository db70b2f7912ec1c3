//! Calls, from the request to the answer.
//!
//! One [`CallRun`] runs every call: it polls the tool's future, and does meanwhile what the tool
//! asks of its client. It is in one of three modes, and knows nothing of the protocol's transports.
//!
//! ```text
//!  bare, fast, or           ┌──────────┐ the tool ends: answer in the response
//!  without sessions ──────► │ Attached │ question to a client without sessions: `input_required`
//!                           └────┬─────┘ the response is dropped: so is the tool
//!       the tool or a timer asks │ for it, and the client looks after tasks: row first
//!                                ▼
//!                           ┌──────────┐ the tool ends: outcome in the row's stream
//!  recovery of a task ────► │   Task   │ `tasks/cancel`: end in the row
//!                           └──────────┘ the daemon ends: the row stays open for the next start
//!
//!  slow, in a session:      ┌──────────┐ the tool ends: answer in its stream of the log
//!  row first; recovery ───► │  Logged  │ cancelled, session closed: end in the row
//!                           └──────────┘ the daemon ends: the row stays open for the next start
//! ```
//!
//! Reading order: `active` is a call as others see it, `answer` what its client gets, `questions`
//! what its client is asked, `run` the machine, `recorded` what is stored first and taken up after
//! a restart. This file chooses the mode.

mod active;
mod answer;
mod questions;
mod recorded;
mod run;

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::{Map, Value};
use svc_core::{
    service,
    tools::{DelegatedCall, Failure, Pace, Tool, ToolError},
};
use svc_model::{BudgetKind, CallId, Caller};
use svc_store::CallRow;
use tokio::sync::{mpsc, oneshot};

pub(super) use self::{
    active::{CallRecord, OpenQuestions, RequestKey, RunningCalls},
    answer::{CallAnswer, PendingAnswer, TaskView, cancel_call, rpc_error_of},
    recorded::{RecordedCall, log_stream_of, recover_calls},
    run::{CallRun, WorkEnd},
};
use self::{answer::task_answer, recorded::record_and_run, run::RunReply};
use super::{
    McpServer, era,
    metrics::RequestMeter,
    origin::{RequestContext, RequestOrigin, SessionSearch},
    rpc::{ClientRequest, RpcError, shortened},
};

/// How long a call waits for a server that was never connected to say which tools it has.
const FIRST_LISTS: Duration = Duration::from_secs(5);

pub(crate) enum CallReply {
    /// The answer, as soon as it is there.
    Pending(PendingAnswer),
    /// A call on record: its stream ends with the answer.
    Recorded(RecordedCall),
}

impl McpServer {
    pub(crate) async fn call_tool(
        &self,
        context: RequestContext,
        headers: &HeaderMap,
        mut request: ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<CallReply, RpcError> {
        let RequestContext { caller, origin, acting_session, trace, .. } = context;
        let name = request.params.get("name").and_then(Value::as_str);
        if name.is_none() {
            return Err(RpcError::invalid_params("params.name: must name a tool"));
        }
        let hold = self.services.hold(&caller, BudgetKind::Requests, 1)?.map(Arc::new);
        let search = SessionSearch { server: self, caller: &caller, headers, origin: &origin };
        let acting_session = search.of_call(acting_session, &request.params).await?;
        // What it sees and which tools it has is a matter of the session's project.
        let caller = self.services.team.in_project_of(&caller, acting_session.as_deref()).await?;
        let tool = match self.tool_of(&caller, &origin, headers, &mut request, meter).await? {
            Ok(tool) => tool,
            Err(error) => {
                let (id, era) = (&request.id, origin.answer_era());
                let answer = CallAnswer::from_outcome(id, Err(error.into()), era);
                let answer = std::future::ready(answer).boxed();
                let answer = PendingAnswer { answer, messages: None, is_repeatable: true };
                return Ok(CallReply::Pending(answer));
            }
        };
        if let RequestOrigin::Modern(client) = &origin
            && tool.is_task_only()
            && !client.has_tasks()
        {
            return Err(rpc_error_of(Failure::needs_tasks()));
        }
        let arguments = match &origin {
            // They may be large, and nothing asks the params of a bare call for them.
            RequestOrigin::Bare => arguments_of(request.params.remove("arguments"))?,
            _ => arguments_of(request.params.get("arguments").cloned())?,
        };
        let record = CallRecord {
            rpc_id: request.id,
            method: "tools/call",
            name: tool.name().to_owned(),
            params: request.params,
            raw_params: request.raw_params,
            trace,
            acting_session,
            credential: self.services.access.credential_name(&caller),
            started_at: self.services.now(),
            hold,
        };
        if let (Pace::Slow, RequestOrigin::Legacy(session)) = (tool.pace(), &origin) {
            let session = Arc::clone(session);
            let call = record_and_run(self, caller, session, tool, arguments, record);
            return Ok(CallReply::Recorded(Box::pin(call).await?));
        }
        self.run_attached(caller, &origin, record, tool, arguments).map(CallReply::Pending)
    }

    /// The tool that a request calls, or why the caller has none of that name. A call of `ToolCall`
    /// becomes one of the tool that it names: on record, and after a restart.
    async fn tool_of(
        &self,
        caller: &Caller,
        origin: &RequestOrigin,
        headers: &HeaderMap,
        request: &mut ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<Result<Arc<Tool>, ToolError>, RpcError> {
        let name = request.params.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(tool) = self.catalogue.find_soon(caller, name, FIRST_LISTS).await else {
            let unknown = || RpcError::invalid_params(format!("Unknown tool: {}", shortened(name)));
            return self.catalogue.absence(caller, name).map(Err).ok_or_else(unknown);
        };
        meter.name(tool.name());
        if let RequestOrigin::Modern(_) = origin {
            era::check_argument_headers(headers, &tool, &request.params)?;
        }
        let delegated = self.catalogue.called_by(caller, &tool, &request.params);
        let Some(DelegatedCall { tool, arguments }) = delegated else { return Ok(Ok(tool)) };
        request.params.insert("name".to_owned(), tool.name().into());
        request.params.insert("arguments".to_owned(), arguments.into());
        Ok(Ok(tool))
    }

    /// Runs a tool whose answer goes into the open response.
    fn run_attached(
        &self,
        caller: Caller,
        origin: &RequestOrigin,
        record: CallRecord,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
    ) -> Result<PendingAnswer, RpcError> {
        let is_repeatable = tool.is_repeatable();
        let (sender, messages) = mpsc::unbounded_channel();
        let (sender, messages) = match origin {
            RequestOrigin::Bare => (None, None),
            _ => (Some(sender), Some(messages)),
        };
        let id = record.rpc_id.clone();
        let lost = move || CallAnswer::lost(&id, is_repeatable);
        let mut run = CallRun::attached(self, caller.clone(), origin.clone(), record, sender)?;
        let answer = match (origin, tool.pace()) {
            (RequestOrigin::Modern(_), Pace::Slow) => {
                let (reply, answer) = oneshot::channel();
                run.reply = Some(reply);
                let (server, id) = (self.clone(), run.record.rpc_id.clone());
                self.background.spawn(run.run_tool(tool, arguments));
                async move {
                    match answer.await {
                        Ok(RunReply::Answer(answer)) => answer,
                        Ok(RunReply::Task(task)) => {
                            let row = server.task_row(&caller, &task).await;
                            task_answer(&id, row)
                        }
                        Err(_) => lost(),
                    }
                }
                .boxed()
            }
            // A legacy client that goes away does not cancel, so a tool that changes something runs
            // to its end.
            (RequestOrigin::Legacy(_), _) if !tool.annotations().read_only_hint => {
                let run = tokio::spawn(run.run_tool(tool, arguments));
                async move { run.await.ok().flatten().unwrap_or_else(lost) }.boxed()
            }
            _ => async move { run.run_tool(tool, arguments).await.unwrap_or_else(lost) }.boxed(),
        };
        Ok(PendingAnswer { answer, messages, is_repeatable })
    }

    async fn task_row(&self, caller: &Caller, id: &CallId) -> Result<CallRow, service::Error> {
        let row = self.services.mcp.call(caller, id.as_str()).await?;
        row.ok_or_else(|| service::Error::not_found(service::ResourceKind::Task, id.as_str()))
    }
}

fn arguments_of(given: Option<Value>) -> Result<Map<String, Value>, RpcError> {
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(arguments)) => Ok(arguments),
        Some(_) => Err(RpcError::invalid_params("params.arguments: must be an object")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::RawValue};
    use svc_core::{
        service::testing::services,
        tools::{Call, Catalogue, Output, RequestTrace},
    };
    use svc_model::{Timestamp, limits};
    use svc_store::testing::TestStore;
    use svc_wire::mcp::{Revision, TASKS_EXTENSION};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        mcp::{McpMetrics, McpServerParts, era::ModernClient, metrics::RequestOutcome},
        web::KeepAlive,
    };

    async fn server() -> (TestStore, McpServer) {
        let test = TestStore::open().await;
        let server = McpServer::assemble(McpServerParts {
            services: services(&test),
            catalogue: Arc::new(Catalogue::new([])),
            resources: Vec::new(),
            prompts: Vec::new(),
            sources: None,
            metrics: McpMetrics::default(),
            beat: KeepAlive::new(limits::SSE_KEEP_ALIVE),
            stop: CancellationToken::new(),
            exposure: None,
        });
        (test, server.await.unwrap())
    }

    fn pending<F>(
        server: &McpServer,
        work: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> PendingAnswer
    where
        F: Future<Output = Result<Output, Failure>> + Send + 'static,
    {
        let Value::Object(capabilities) = json!({ "extensions": { TASKS_EXTENSION: {} } }) else {
            unreachable!("it is one")
        };
        let (revision, capabilities) = (Revision::V2026_07_28, Arc::new(capabilities));
        let client = ModernClient { revision, capabilities, log_level: None };
        let record = CallRecord {
            rpc_id: RawValue::from_string("1".to_owned()).unwrap(),
            method: "tools/call",
            name: "slow".to_owned(),
            params: Map::new(),
            raw_params: None,
            trace: RequestTrace::default(),
            acting_session: None,
            credential: server.services.access.credential_name(&Caller::Operator),
            started_at: Timestamp::from_millis(0),
            hold: None,
        };
        let tool = Tool::raw("slow", "", json!({ "type": "object" }), move |call, _| work(call));
        let (tool, origin) = (Arc::new(tool.slow()), RequestOrigin::Modern(client));
        server.run_attached(Caller::Operator, &origin, record, tool, Map::new()).unwrap()
    }

    #[tokio::test]
    async fn what_is_done_as_it_becomes_a_task_is_a_task() {
        let (_test, server) = server().await;
        let pending = pending(&server, |call| async move {
            call.detach().await?;
            Ok(Output::text("done"))
        });
        // All of it is over before the client's request gets its turn.
        let mut ends = server.tasks_changed.subscribe();
        ends.wait_for(|count| *count > 0).await.unwrap();
        let CallAnswer { message, status, outcome } = pending.answer.await;
        assert_eq!((status, outcome), (200, RequestOutcome::Task), "{message}");
        assert!(message.contains("\"completed\""), "{message}");
    }

    #[tokio::test]
    async fn what_is_done_becomes_no_task() {
        let (_test, server) = server().await;
        let (sender, mut calls) = mpsc::unbounded_channel();
        let pending = pending(&server, move |call| {
            sender.send(call).unwrap();
            std::future::ready(Ok(Output::text("done")))
        });
        assert_eq!(pending.answer.await.outcome, RequestOutcome::Result);
        calls.recv().await.unwrap().detach().await.unwrap();
        assert!(server.services.mcp.open_calls().await.unwrap().is_empty());
    }
}
