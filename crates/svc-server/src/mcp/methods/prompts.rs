//! `prompts/list` and `prompts/get`.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use svc_core::tools::{Call, Failure, NoFarEnd};
use svc_model::Caller;
use tokio::sync::mpsc;

use super::{
    super::{
        McpServer,
        call::{CallClient, ClientChannel, rpc_error_of},
        origin::RequestContext,
        prompts::PromptTemplate,
        rpc::{
            ClientRequest, EraResult, RpcError, object_or_empty, result_message, shortened,
            text_param,
        },
        running::{CallRecord, MessageSink},
    },
    params::{raw, refuse_cursor},
};

/// Members of `ListPromptsResult`.
#[derive(Serialize)]
pub(super) struct PromptList {
    prompts: Vec<Box<RawValue>>,
}

/// Members of `GetPromptResult`.
#[derive(Serialize)]
struct PromptMessages<'a> {
    description: &'a str,
    messages: Vec<Value>,
}

impl McpServer {
    pub(super) fn list_prompts(
        &self,
        caller: &Caller,
        params: &Map<String, Value>,
    ) -> Result<PromptList, RpcError> {
        refuse_cursor(params)?;
        let mut prompts: Vec<Box<RawValue>> = self.prompts.borrow().iter().map(raw).collect();
        prompts.extend(self.prompts_of_servers(caller));
        Ok(PromptList { prompts })
    }

    pub(super) async fn get_prompt(
        &self,
        context: &RequestContext,
        request: &ClientRequest,
    ) -> Result<String, RpcError> {
        let name = text_param(&request.params, "name")?;
        let prompts = Arc::clone(&self.prompts.borrow());
        let prompt = prompts.iter().find(|prompt| prompt.is_called(name)).ok_or_else(|| {
            RpcError::invalid_params(format!("Unknown prompt: {}", shortened(name)))
        })?;
        let arguments = object_or_empty(&request.params, "arguments")?;
        prompt.check(&arguments)?;
        let channel = self.prompt_channel(context, request, prompt);
        let call = match &channel {
            Some(channel) => {
                channel.restore_round("prompts/get")?;
                channel.call()
            }
            None => Call {
                services: self.services.clone(),
                caller: context.caller.clone(),
                session: context.acting_session.clone(),
                started_at: self.services.now(),
                far_end: Arc::new(NoFarEnd),
                trace: context.trace.clone(),
                params: None,
            },
        };
        let messages = match (prompt.messages(call, arguments).await, channel) {
            (Ok(messages), _) => messages,
            (Err(Failure::NeedsInput), Some(channel)) => {
                return Ok(result_message(&request.id, &channel.input_required("prompts/get")));
            }
            (Err(failure), _) => return Err(rpc_error_of(failure)),
        };
        let members = PromptMessages { description: prompt.description, messages };
        let result = EraResult::complete(context.origin.answer_era(), members, None);
        Ok(result_message(&request.id, &result))
    }

    /// The channel over which a prompt can ask a stateless client. Nobody reads what it says on the way.
    fn prompt_channel(
        &self,
        context: &RequestContext,
        request: &ClientRequest,
        prompt: &PromptTemplate,
    ) -> Option<Arc<ClientChannel>> {
        let client = CallClient::Modern(context.origin.modern()?.clone());
        let record = CallRecord {
            rpc_id: request.id.clone(),
            tool: prompt.name.to_owned(),
            params: request.params.clone(),
            raw_params: None,
            trace: context.trace.clone(),
            acting_session: context.acting_session.clone(),
            credential: self.services.access.credential_name(&context.caller),
            started_at: self.services.now(),
            hold: None,
        };
        let (sender, _) = mpsc::unbounded_channel();
        let sink = MessageSink::Response(sender);
        Some(ClientChannel::new(self, &context.caller, client, record, sink))
    }
}
