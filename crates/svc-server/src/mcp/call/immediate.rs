//! Tools that answer at once.

use std::{future, sync::Arc};

use futures_util::FutureExt as _;
use serde_json::{Map, Value, value::RawValue};
use svc_core::{
    service::BudgetHold,
    tools::{Call, Tool},
};
use tokio::sync::mpsc;

use super::{
    super::rpc::AnswerEra,
    answer::{CallAnswer, PendingAnswer},
    channel::{CallClient, ClientChannel, still_permitted},
};

/// Runs a tool whose client hears nothing but the answer.
pub(crate) fn run_bare(
    call: Call,
    hold: Option<Arc<BudgetHold>>,
    id: Box<RawValue>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
) -> PendingAnswer {
    let is_repeatable = tool.is_repeatable();
    let run = async move {
        let _hold = hold;
        let (access, caller) = (call.services.access.clone(), call.caller.clone());
        let credential = access.credential_name(&caller);
        let outcome = tool.call(call, arguments).await;
        let outcome = still_permitted(&access, &caller, &credential, &tool, outcome).await;
        CallAnswer::of(&id, outcome, AnswerEra::Legacy)
    };
    PendingAnswer { answer: run.boxed(), messages: None, is_repeatable }
}

/// Runs a tool that may send messages on the way.
pub(crate) fn run_immediate(
    channel: Arc<ClientChannel>,
    messages: mpsc::UnboundedReceiver<String>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
) -> PendingAnswer {
    let is_repeatable = tool.is_repeatable();
    if let Err(error) = channel.restore_round("tools/call") {
        let answer = CallAnswer::error(&channel.conversation.record.rpc_id, &error);
        let answer = future::ready(answer).boxed();
        return PendingAnswer { answer, messages: None, is_repeatable };
    }
    // A legacy client that goes away does not cancel, so a tool that changes something runs to its end.
    let outlives_client =
        matches!(channel.client, CallClient::Legacy(_)) && !tool.annotations().read_only_hint;
    let id = outlives_client.then(|| channel.conversation.record.rpc_id.clone());
    let run = async move {
        let outcome = tool.call(channel.call(), arguments).await;
        channel.answer(outcome)
    };
    let answer = match id {
        None => run.boxed(),
        Some(id) => {
            let run = tokio::spawn(run);
            async move { run.await.unwrap_or_else(|_| CallAnswer::lost(&id, is_repeatable)) }
                .boxed()
        }
    };
    PendingAnswer { answer, messages: Some(messages), is_repeatable }
}
