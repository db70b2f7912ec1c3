//! Tools that answer at once.

use std::{future, sync::Arc};

use futures_util::FutureExt as _;
use serde_json::{Map, Value, value::RawValue};
use tokio::sync::mpsc;

use super::{
    super::{rpc::AnswerEra, running::RequestKey},
    answer::{CallAnswer, PendingAnswer},
    channel::{CallClient, ClientChannel, still_permitted, unauthorized},
};
use crate::{
    service::BudgetHold,
    tools::{Call, Failure, Output, Tool, ToolError},
};

/// Runs a tool whose client hears nothing but the answer.
pub(crate) fn run_bare(
    call: Call,
    hold: Option<Arc<BudgetHold>>,
    id: Box<RawValue>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
) -> PendingAnswer {
    let run = async move {
        let _hold = hold;
        let (access, caller) = (call.services.access.clone(), call.caller.clone());
        let credential = access.credential_name(&caller);
        let outcome = tool.call(call, arguments).await;
        let outcome = still_permitted(&access, &caller, &credential, &tool, outcome).await;
        CallAnswer::of(&id, outcome, AnswerEra::Legacy)
    };
    PendingAnswer { answer: run.boxed(), messages: None }
}

/// Runs a tool that may send messages on the way.
pub(crate) fn run_immediate(
    channel: Arc<ClientChannel>,
    messages: mpsc::UnboundedReceiver<String>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
) -> PendingAnswer {
    if let Err(error) = channel.restore_round("tools/call") {
        let answer = CallAnswer::error(&channel.conversation.record.rpc_id, &error);
        return PendingAnswer { answer: future::ready(answer).boxed(), messages: None };
    }
    // A legacy client that goes away does not cancel, so a tool that changes something runs to its end.
    let outlives_client =
        matches!(channel.client, CallClient::Legacy(_)) && !tool.annotations().read_only_hint;
    let id = outlives_client.then(|| channel.conversation.record.rpc_id.clone());
    let run = async move {
        let outcome = if tool.foreign_declaration().is_some() {
            run_cancellable(&channel, &tool, arguments).await
        } else {
            tool.call(channel.call(), arguments).await
        };
        channel.answer(outcome)
    };
    let answer = match id {
        None => run.boxed(),
        Some(id) => {
            let run = tokio::spawn(run);
            async move { run.await.unwrap_or_else(|_| CallAnswer::lost(&id)) }.boxed()
        }
    };
    PendingAnswer { answer, messages: Some(messages) }
}

/// Runs a tool of a server behind the daemon. It may take long, so a client of a session can cancel it, and the caller's
/// token is looked at again when it is done.
async fn run_cancellable(
    channel: &Arc<ClientChannel>,
    tool: &Tool,
    arguments: Map<String, Value>,
) -> Result<Output, Failure> {
    let record = &channel.conversation.record;
    let run = async {
        let outcome = tool.call(channel.call(), arguments).await;
        let access = &channel.server.services.access;
        match access.check_credential(&channel.caller, &record.credential).await {
            Ok(()) => outcome,
            Err(_) => Err(unauthorized()),
        }
    };
    let CallClient::Legacy(session) = &channel.client else { return run.await };
    let id: Value = serde_json::from_str(record.rpc_id.get()).unwrap_or_default();
    let reason = channel.conversation.cancel_reason.clone();
    let call = channel.server.running.cancellable(RequestKey::new(&session.id, &id), reason);
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => {
            Err(ToolError::unknown_outcome("the call was cancelled").into())
        }
        outcome = run => outcome,
    }
}
