//! The answer that a call's outcome makes.

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use svc_core::tools::{ErrorType, Failure, Output, ToolError};
use svc_model::quote;
use tokio::sync::mpsc;

use super::super::{
    metrics::RequestOutcome,
    rpc::{
        AnswerEra, EraResult, INTERNAL_ERROR, INVALID_PARAMS, RpcError, error_message, raw_in_era,
        result_message_with_room,
    },
};

/// The message that answers a request, and how the request ended.
#[derive(Debug)]
pub(crate) struct CallAnswer {
    pub(crate) message: String,
    /// HTTP status.
    pub(crate) status: u16,
    pub(crate) outcome: RequestOutcome,
}

/// An answer that may take a while, and the messages on the way to it.
pub(crate) struct PendingAnswer {
    pub(crate) answer: BoxFuture<'static, CallAnswer>,
    pub(crate) messages: Option<mpsc::UnboundedReceiver<String>>,
    /// Whether the request may be made again if the daemon goes down before the answer.
    pub(crate) is_repeatable: bool,
}

/// A result of `tools/call`.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum CallToolResult<'a> {
    Own(CallToolMembers<'a>),
    /// That of a server behind the daemon.
    Verbatim(&'a RawValue),
}

/// Members of `CallToolResult`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallToolMembers<'a> {
    content: ContentBlocks<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<StructuredContent<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentBlocks<'a> {
    /// A tool's object once more as text, for clients that read no structured content.
    Text([TextBlock<'a>; 1]),
    Blocks(&'a [Value]),
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct TextBlock<'a> {
    text: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum StructuredContent<'a> {
    Raw(&'a RawValue),
    Value(&'a Value),
}

impl<'a> CallToolResult<'a> {
    pub(super) fn of(output: &'a Output) -> Self {
        Self::Own(match output {
            Output::Object(object) => CallToolMembers {
                content: ContentBlocks::Text([TextBlock { text: object.get() }]),
                structured_content: Some(StructuredContent::Raw(object)),
                is_error: None,
            },
            Output::Content { content, structured, is_error } => CallToolMembers {
                content: ContentBlocks::Blocks(content),
                structured_content: structured.as_ref().map(StructuredContent::Value),
                is_error: is_error.then_some(true),
            },
            Output::Verbatim(result) => return Self::Verbatim(result),
        })
    }
}

/// About how many bytes the result has.
fn room_for(output: &Output) -> usize {
    match output {
        // The object twice, once as a string: of its bytes about every sixth is a quote.
        Output::Object(object) => object.get().len() * 2 + object.get().len() / 4 + 256,
        Output::Verbatim(result) => result.get().len() + 64,
        Output::Content { .. } => 512,
    }
}

/// What a tool gives the client: its output, which may say that it failed, or a JSON-RPC error.
pub(super) fn output_of(
    outcome: Result<Output, Failure>,
    era: AnswerEra,
) -> Result<Output, RpcError> {
    match outcome {
        Ok(output) => Ok(output),
        Err(Failure::Tool(error)) => Ok(Output::error(&error)),
        Err(Failure::MissingCapability(_)) if era == AnswerEra::Legacy => {
            let text = "the client cannot do what this tool needs of it";
            Ok(Output::error(&ToolError::new(ErrorType::Unavailable, text).retryable(false)))
        }
        Err(Failure::NeedsInput) => Ok(Output::error(&ToolError::internal())),
        Err(failure @ (Failure::MissingCapability(_) | Failure::Protocol { .. })) => {
            Err(rpc_error_of(failure))
        }
    }
}

/// A failure as a JSON-RPC error, where a result cannot say that something failed.
pub(crate) fn rpc_error_of(failure: Failure) -> RpcError {
    match failure {
        Failure::Protocol { code, message, data } => {
            RpcError { data, ..RpcError::new(code, message) }
        }
        Failure::MissingCapability(required) => RpcError::missing_capability(&required),
        Failure::Tool(error) => {
            let code = match error.kind {
                ErrorType::ValidationError | ErrorType::NotFound => INVALID_PARAMS,
                _ => INTERNAL_ERROR,
            };
            RpcError::new(code, quote::plain(&error.message).into_owned())
        }
        Failure::NeedsInput => RpcError::internal(),
    }
}

impl CallAnswer {
    /// The answer with a tool's outcome.
    pub(crate) fn of(id: &RawValue, outcome: Result<Output, Failure>, era: AnswerEra) -> Self {
        let output = match output_of(outcome, era) {
            Ok(output) => output,
            Err(error) => return Self::error(id, &error),
        };
        let outcome =
            if output.is_error() { RequestOutcome::ToolError } else { RequestOutcome::Result };
        let room = room_for(&output);
        let message = match CallToolResult::of(&output) {
            CallToolResult::Own(members) => {
                let result = EraResult::complete(era, members, None);
                result_message_with_room(id, &result, room)
            }
            CallToolResult::Verbatim(result) => {
                let result = raw_in_era(result, era, None);
                result_message_with_room(id, &result, room)
            }
        };
        Self { message, status: 200, outcome }
    }

    /// The answer with an error.
    pub(crate) fn error(id: &RawValue, error: &RpcError) -> Self {
        let message = error_message(Some(id), error);
        Self { message, status: error.status, outcome: RequestOutcome::Error }
    }

    /// The answer when the process goes down, or a task of the runtime was lost. A program that asks again, as
    /// `svc stdio` does, knows it by its data. Of a request that may have changed something nobody knows how far it came.
    pub(crate) fn lost(id: &RawValue, is_repeatable: bool) -> Self {
        let error = if is_repeatable {
            RpcError::new(INTERNAL_ERROR, "the daemon is going down")
                .data(json!({ "code": "unavailable", "retryable": true }))
        } else {
            let text = "the daemon went down in the middle of the call, and its outcome is unknown: look before you call it \
                        again";
            RpcError::new(INTERNAL_ERROR, text)
                .data(json!({ "code": "unavailable", "retryable": false, "outcome": "unknown" }))
        };
        Self::error(id, &error.status(500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_object_passes_byte_for_byte_and_once_more_as_text() {
        let object = RawValue::from_string(r#"{"b": 1.0,"a":"x\n"}"#.to_owned()).unwrap();
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let answer = CallAnswer::of(&id, Ok(Output::Object(object)), AnswerEra::Legacy);
        assert_eq!(
            answer.message,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"{\"b\": 1.0,\"a\":\"x\\n\"}"}],"structuredContent":{"b": 1.0,"a":"x\n"}}}"#
        );
        assert_eq!((answer.status, answer.outcome), (200, RequestOutcome::Result));
    }

    #[test]
    fn a_servers_result_passes_byte_for_byte() {
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let result =
            r#"{"content":[ {"type":"text","text":"\u0041","x":1.0} ],"z":1e400,"isError":true}"#;
        let output = || Output::Verbatim(RawValue::from_string(result.to_owned()).unwrap());
        let answer = CallAnswer::of(&id, Ok(output()), AnswerEra::Legacy);
        assert_eq!(answer.message, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#));
        assert_eq!(answer.outcome, RequestOutcome::ToolError);
        let answer = CallAnswer::of(&id, Ok(output()), AnswerEra::Stateless);
        let typed = result.replacen('{', r#"{"resultType":"complete","#, 1);
        assert_eq!(answer.message, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{typed}}}"#));
    }

    #[test]
    fn what_the_client_lacks_is_an_error_of_the_protocol_only_without_sessions() {
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let missing = || Err(Failure::MissingCapability(json!({ "roots": {} })));
        let answer = CallAnswer::of(&id, missing(), AnswerEra::Legacy);
        assert_eq!((answer.status, answer.outcome), (200, RequestOutcome::ToolError));
        let answer = CallAnswer::of(&id, missing(), AnswerEra::Stateless);
        assert_eq!((answer.status, answer.outcome), (400, RequestOutcome::Error));
    }
}
