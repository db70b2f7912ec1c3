//! A server's requests to the client whose call it works for: roots, sampling, elicitation.

use std::{fmt::Write as _, sync::Arc};

use serde_json::{Map, Value, json, value::RawValue};
use svc_core::tools::{Call, ClientQuestion, ErrorType, Failure, ToolError};
use svc_model::quote;
use svc_wire::json_rpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};

use super::connection::SourceConnection;

impl SourceConnection {
    /// Responds to a request of the server.
    pub(super) fn answer_request(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: &str,
        params: Map<String, Value>,
        request: Option<u64>,
    ) {
        let method: &'static str = match method {
            "ping" => return self.reply(&id, Ok(&json!({}))),
            "roots/list" => match self.root() {
                Some(root) => return self.reply(&id, Ok(&roots_of(root))),
                None => "roots/list",
            },
            "sampling/createMessage" => "sampling/createMessage",
            "elicitation/create" => "elicitation/create",
            _ => return self.reply(&id, Err((METHOD_NOT_FOUND, "the client has no such method"))),
        };
        let Some(call) = self.asking_call(request) else {
            let text = "this request belongs to no single session's call, so nobody can be asked";
            return self.reply(&id, Err((INTERNAL_ERROR, text)));
        };
        let connection = Arc::clone(self);
        // A person may take long, and the server's other messages must not wait.
        tokio::spawn(async move {
            let mut params = Value::Object(params);
            quote::unimitated_value(&mut params);
            let question = ClientQuestion { key: "answer".to_owned(), method, params };
            let answer = tokio::select! {
                () = connection.closed.cancelled() => return,
                answer = call.ask(vec![question]) => answer,
            };
            match answer {
                Ok(mut answers) => {
                    let answer = answers.remove("answer").unwrap_or_default();
                    connection.reply(&id, Ok(&answer));
                }
                Err(failure) => {
                    let text = refusal(method, failure);
                    connection.reply(&id, Err((INTERNAL_ERROR, &text)));
                }
            }
        });
    }

    /// Answers the questions in a result (`input_required`), for the session of the call.
    pub(super) async fn answer_inputs(
        &self,
        call: &Call,
        requests: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        let (mut answers, mut questions) = (Map::new(), Vec::new());
        for (key, request) in requests {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
            let method = match (method, self.root()) {
                ("roots/list", Some(root)) => {
                    answers.insert(key.clone(), roots_of(root));
                    continue;
                }
                ("roots/list", None) => "roots/list",
                ("sampling/createMessage", _) => "sampling/createMessage",
                ("elicitation/create", _) => "elicitation/create",
                _ => {
                    let text =
                        format!("the server asks for {method:?}, which this client does not know");
                    return Err(ToolError::new(ErrorType::Unavailable, text).into());
                }
            };
            let mut params = request.get("params").cloned().unwrap_or_else(|| json!({}));
            quote::unimitated_value(&mut params);
            questions.push(ClientQuestion { key: key.clone(), method, params });
        }
        if !questions.is_empty() {
            let methods: Vec<_> = questions.iter().map(|question| question.method).collect();
            let given = call.ask(questions).await.map_err(|failure| match failure {
                // The call goes on when the client has answered.
                Failure::NeedsInput => Failure::NeedsInput,
                other => ToolError::new(ErrorType::Unavailable, refusal(methods[0], other)).into(),
            })?;
            answers.extend(given);
        }
        Ok(answers)
    }
}

fn refusal(method: &str, failure: Failure) -> String {
    match failure {
        Failure::Tool(error) => error.message,
        Failure::MissingCapability(_) => format!("the session's client cannot answer {method}"),
        Failure::NeedsInput => format!("the session's client cannot answer {method} within a call"),
        Failure::Protocol { message, .. } => message.into_owned(),
    }
}

/// The response to `roots/list` for one folder.
fn roots_of(root: &str) -> Value {
    let name = root.rsplit('/').next().unwrap_or_default();
    json!({ "roots": [{ "uri": file_uri(root), "name": name }] })
}

/// The URI of a folder (RFC 8089).
pub(super) fn file_uri(path: &str) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            write!(uri, "%{byte:02X}").expect("writing to a string does not fail");
        }
    }
    uri
}
