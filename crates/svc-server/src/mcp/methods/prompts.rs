//! `prompts/list`, `prompts/get` and `completion/complete`.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use svc_core::tools::{Call, Failure};
use svc_model::limits;

use super::super::{
    McpServer,
    call::{CallRun, WorkEnd, rpc_error_of},
    origin::{RequestContext, RequestOrigin},
    rpc::{
        ClientRequest, EraResult, RpcError, object_or_empty, raw_json, refuse_cursor,
        result_message, shortened, text_param,
    },
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

#[derive(Serialize)]
pub(super) struct CompleteResult {
    completion: Completion,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Completion {
    values: Vec<String>,
    has_more: bool,
}

/// The methods of prompts, and completion.
#[derive(Clone, Copy)]
pub(super) struct PromptMethods<'a> {
    pub(super) server: &'a McpServer,
    pub(super) context: &'a RequestContext,
}

impl PromptMethods<'_> {
    pub(super) fn list(self, params: &Map<String, Value>) -> Result<PromptList, RpcError> {
        let Self { server, context } = self;
        refuse_cursor(params)?;
        let mut prompts: Vec<Box<RawValue>> =
            server.prompts.borrow().iter().map(raw_json).collect();
        if let Some(sources) = &server.sources {
            prompts.extend(sources.of_caller(&context.caller).prompts());
        }
        Ok(PromptList { prompts })
    }

    pub(super) async fn get(self, request: &ClientRequest) -> Result<String, RpcError> {
        let Self { server, context } = self;
        let name = text_param(&request.params, "name")?;
        let prompts = Arc::clone(&server.prompts.borrow());
        let prompt = prompts.iter().find(|prompt| prompt.is_called(name)).ok_or_else(|| {
            RpcError::invalid_params(format!("Unknown prompt: {}", shortened(name)))
        })?;
        let arguments = object_or_empty(&request.params, "arguments")?;
        prompt.check(&arguments)?;
        // Nobody reads what a prompt says on the way. In a session it asks nobody: the client waits
        // for this answer.
        let origin = match &context.origin {
            RequestOrigin::Legacy(_) => RequestOrigin::Bare,
            other => other.clone(),
        };
        let record = context.record(server, request, "prompts/get", prompt.name);
        let caller = context.caller.clone();
        let mut run = CallRun::attached(server, caller, origin, record, None)?;
        let call = Call { params: None, ..run.call() };
        let messages = match run.drive(false, prompt.messages(call, arguments)).await {
            WorkEnd::Outcome(Ok(messages)) => messages,
            WorkEnd::Outcome(Err(Failure::NeedsInput)) => return Ok(run.input_required().message),
            WorkEnd::Outcome(Err(failure)) => return Err(rpc_error_of(failure)),
            WorkEnd::Cancelled | WorkEnd::Left => return Err(RpcError::internal()),
        };
        let members = PromptMessages { description: prompt.description, messages };
        let result = EraResult::complete(context.origin.answer_era(), members, None);
        Ok(result_message(&request.id, &result))
    }

    /// Values for an argument of a prompt, or for a variable of a resource template.
    pub(super) async fn complete(
        self,
        params: &Map<String, Value>,
    ) -> Result<CompleteResult, RpcError> {
        let reference = object_param(params, "ref", "params.ref: must be an object")?;
        let argument = object_param(params, "argument", "params.argument: must be an object")?;
        let name = argument
            .get("name")
            .and_then(Value::as_str)
            .ok_or_else(|| RpcError::invalid_params("params.argument.name: must be a string"))?;
        let value = argument.get("value").and_then(Value::as_str).unwrap_or_default();
        let mut values = match reference.get("type").and_then(Value::as_str) {
            Some("ref/prompt") => self.complete_prompt(reference, name, value).await?,
            Some("ref/resource") => self.complete_resource(reference, name, value).await?,
            _ => {
                let text = "params.ref.type: must be ref/prompt or ref/resource";
                return Err(RpcError::invalid_params(text));
            }
        };
        let most = limits::MCP_COMPLETIONS as usize;
        let has_more = values.len() > most;
        values.truncate(most);
        Ok(CompleteResult { completion: Completion { values, has_more } })
    }

    async fn complete_prompt(
        self,
        reference: &Map<String, Value>,
        argument: &str,
        value: &str,
    ) -> Result<Vec<String>, RpcError> {
        let name = text_param(reference, "name")?;
        let Self { server, context } = self;
        let prompts = Arc::clone(&server.prompts.borrow());
        let prompt = prompts
            .iter()
            .find(|prompt| prompt.is_called(name))
            .ok_or_else(|| RpcError::invalid_params("params.ref.name: there is no such prompt"))?;
        prompt.complete(&server.services, &context.caller, argument, value).await
    }

    async fn complete_resource(
        self,
        reference: &Map<String, Value>,
        variable: &str,
        value: &str,
    ) -> Result<Vec<String>, RpcError> {
        let Self { server, context: RequestContext { caller, .. } } = self;
        let template = text_param(reference, "uri")?;
        for provider in &server.resources {
            let values =
                provider.complete(&server.services, caller, template, variable, value).await?;
            if let Some(values) = values {
                return Ok(values);
            }
        }
        Err(RpcError::invalid_params("params.ref.uri: there is no such resource template"))
    }
}

fn object_param<'a>(
    params: &'a Map<String, Value>,
    name: &str,
    wrong: &'static str,
) -> Result<&'a Map<String, Value>, RpcError> {
    params.get(name).and_then(Value::as_object).ok_or_else(|| RpcError::invalid_params(wrong))
}
