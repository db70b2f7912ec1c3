//! Tools that may wait, for clients without sessions: the call ends with its connection, unless it has become a task.

use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::{Map, Value};
use svc_core::{
    service,
    tools::{Failure, FarEnd as _, Output, Tool},
};
use svc_model::{CallId, StreamName};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        metrics::RequestOutcome,
        rpc::{EraResult, ResultType, RpcError, result_message},
    },
    answer::{CallAnswer, PendingAnswer},
    channel::{CallClient, ClientChannel},
    end::end_call,
    task::{TaskView, task_end},
};

/// The tool's outcome, on its way to the request that waits.
type OutcomeSender = oneshot::Sender<Result<Output, Failure>>;

/// Runs a tool whose call becomes a task if it takes long and the client can look after one.
pub(crate) fn run_detachable(
    channel: Arc<ClientChannel>,
    messages: mpsc::UnboundedReceiver<String>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
) -> Result<PendingAnswer, RpcError> {
    channel.restore_round("tools/call")?;
    let (sender, outcome) = oneshot::channel();
    let (gone, is_repeatable) = (CancellationToken::new(), tool.is_repeatable());
    let runner = run_to_end(Arc::clone(&channel), tool, arguments, gone.clone(), sender);
    channel.server.background.spawn(runner);
    let guard = gone.drop_guard();
    let answer = async move {
        let answer = match outcome_or_task(&channel, outcome).await {
            Some(Ok(outcome)) => channel.answer(outcome),
            Some(Err(_)) => CallAnswer::lost(&channel.conversation.record.rpc_id, is_repeatable),
            None => {
                guard.disarm();
                return task_answer(&channel).await;
            }
        };
        drop(guard);
        answer
    };
    Ok(PendingAnswer { answer: answer.boxed(), messages: Some(messages), is_repeatable })
}

/// Waits for the outcome, or until the call has become a task (`None`), which it does when patience runs out.
async fn outcome_or_task(
    channel: &ClientChannel,
    mut outcome: oneshot::Receiver<Result<Output, Failure>>,
) -> Option<Result<Result<Output, Failure>, oneshot::error::RecvError>> {
    let detached = &channel.conversation.detached;
    let has_tasks = matches!(&channel.client, CallClient::Modern(client) if client.has_tasks());
    let patience = tokio::time::sleep(channel.server.services.tuning().mcp_task_after);
    let mut patience = std::pin::pin!(patience);
    loop {
        tokio::select! {
            biased;
            outcome = &mut outcome => {
                // The tool may have ended just when the call became a task: then the task has the outcome.
                let task_has_it = outcome.is_err() && detached.is_cancelled();
                return if task_has_it { None } else { Some(outcome) };
            }
            () = detached.cancelled() => return None,
            () = &mut patience, if has_tasks && !patience.is_elapsed() => {
                if let Err(error) = channel.detach().await {
                    tracing::warn!(?error, "a call cannot become a task");
                }
            }
        }
    }
}

/// The answer of a call that has become a task (`CreateTaskResult`).
async fn task_answer(channel: &ClientChannel) -> CallAnswer {
    let id = &channel.conversation.record.rpc_id;
    match task_status(channel).await {
        Ok(view) => CallAnswer {
            message: result_message(id, &EraResult::stateless(ResultType::Task, view, None)),
            status: 200,
            outcome: RequestOutcome::Task,
        },
        Err(error) => CallAnswer::error(id, &error.into()),
    }
}

async fn task_status(channel: &ClientChannel) -> Result<TaskView, service::Error> {
    let (_, task) = channel.conversation.settled().await;
    let id = task.as_ref().map(CallId::as_str).unwrap_or_default();
    let row = channel.server.services.mcp.call(&channel.caller, id).await?;
    let row = row.ok_or_else(|| service::Error::not_found(service::ResourceKind::Task, id))?;
    Ok(TaskView::status_of(&row))
}

/// Takes up a task that the last process left: nobody waits for the answer.
pub(crate) fn resume_task(
    channel: Arc<ClientChannel>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
) {
    let (sender, _) = oneshot::channel();
    let server = channel.server.clone();
    let runner = run_to_end(channel, tool, arguments, CancellationToken::new(), sender);
    server.background.spawn(runner);
}

async fn run_to_end(
    channel: Arc<ClientChannel>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    gone: CancellationToken,
    sender: OutcomeSender,
) {
    let conversation = &channel.conversation;
    let run = channel.with_heartbeat(channel.run(&tool, arguments));
    let mut run = std::pin::pin!(run);
    let outcome = tokio::select! {
        biased;
        // Also at the end of the process: then the client's connection is gone, too.
        () = gone.cancelled() => {
            let (_settled, task) = conversation.settled().await;
            if task.is_none() {
                return;
            }
            None
        }
        outcome = &mut run => Some(outcome),
        () = conversation.detached.cancelled() => None,
    };
    let outcome = if let Some(outcome) = outcome {
        let (_settled, task) = conversation.settled().await;
        if task.is_none() {
            conversation.set_over();
            // Whoever waited may have gone just now.
            sender.send(outcome).ok();
            return;
        }
        outcome
    } else {
        let (settled, task) = conversation.settled().await;
        drop(settled);
        let running = task.and_then(|id| channel.server.running.get(&id));
        let Some(cancel) = running.map(|running| running.cancel) else { return };
        tokio::select! {
            biased;
            // The next start takes the task up.
            () = channel.server.stop.cancelled() => return,
            () = cancel.cancelled() => return,
            outcome = &mut run => outcome,
        }
    };
    let (_settled, task) = conversation.settled().await;
    if let Some(id) = task {
        let stream = StreamName::of("mcp", &id);
        end_call(&channel.server, &id, &stream, task_end(outcome)).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::RawValue};
    use svc_core::{
        service::testing::services,
        tools::{Catalogue, RequestTrace},
    };
    use svc_model::{Caller, Timestamp, limits};
    use svc_store::testing::TestStore;
    use svc_wire::mcp::{Revision, TASKS_EXTENSION};

    use super::*;
    use crate::{
        mcp::{
            McpMetrics, McpServer, McpServerParts,
            era::ModernClient,
            running::{CallRecord, MessageSink},
        },
        web::Beat,
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
            beat: Beat::new(limits::SSE_KEEP_ALIVE),
            stop: CancellationToken::new(),
            exposure: None,
        });
        (test, server.await.unwrap())
    }

    fn channel(server: &McpServer) -> (Arc<ClientChannel>, mpsc::UnboundedReceiver<String>) {
        let Value::Object(capabilities) = json!({ "extensions": { TASKS_EXTENSION: {} } }) else {
            unreachable!("it is one")
        };
        let revision = Revision::V2026_07_28;
        let client = CallClient::Modern(ModernClient { revision, capabilities, log_level: None });
        let record = CallRecord {
            rpc_id: RawValue::from_string("1".to_owned()).unwrap(),
            tool: "slow".to_owned(),
            params: Map::new(),
            raw_params: None,
            trace: RequestTrace::default(),
            acting_session: None,
            credential: server.services.access.credential_name(&Caller::Operator),
            started_at: Timestamp::from_millis(0),
            hold: None,
        };
        let (sender, messages) = mpsc::unbounded_channel();
        let sink = MessageSink::Response(sender);
        (ClientChannel::new(server, &Caller::Operator, client, record, sink), messages)
    }

    #[tokio::test]
    async fn what_is_done_as_it_becomes_a_task_is_a_task() {
        let (_test, server) = server().await;
        let tool = Tool::raw("slow", "", json!({ "type": "object" }), |call, _| async move {
            call.detach().await?;
            Ok(Output::text("done"))
        });
        let (channel, messages) = channel(&server);
        let pending = run_detachable(channel, messages, Arc::new(tool.slow()), Map::new()).unwrap();
        // All of it is over before the client's request gets its turn.
        let mut ends = server.tasks_changed.subscribe();
        ends.wait_for(|count| *count > 0).await.unwrap();
        let answer = pending.answer.await;
        let CallAnswer { message, status, outcome } = answer;
        assert_eq!((status, outcome), (200, RequestOutcome::Task), "{message}");
        assert!(message.contains("\"completed\""), "{message}");
    }

    #[tokio::test]
    async fn what_is_done_becomes_no_task() {
        let (_test, server) = server().await;
        let (channel, _messages) = channel(&server);
        channel.conversation.set_over();
        channel.detach().await.unwrap();
        assert!(channel.conversation.settled().await.1.is_none());
        assert!(server.services.mcp.open_calls().await.unwrap().is_empty());
    }
}
