//! What a tool asks its client.
//!
//! The client of a session is sent a request, and answers with a message of its own. A client
//! without sessions gets the questions as the end of its request, and sends the request again with
//! the answers and with a signed state.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use svc_core::tools::{
    ClientAnswers, ClientQuestion, ErrorType, Failure, QuestionReply, ToolError,
};
use svc_model::Caller;

use super::{
    super::{
        McpServer,
        request_state::{RequestState, RequestStateBinding},
        rpc::{EraResult, ResultType, RpcError, object_or_empty, request_message},
        server::McpSession,
    },
    active::CallRecord,
    answer::{CallMode, say, still_permitted},
};

/// Members of `InputRequiredResult`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InputRequired {
    input_requests: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_state: Option<String>,
}

/// The capability that the client has not declared and that one of the questions needs.
pub(super) fn missing_capability(
    capabilities: &Map<String, Value>,
    questions: &[ClientQuestion],
) -> Option<Failure> {
    let mut needed = questions.iter().map(|question| match question.method {
        "elicitation/create" => "elicitation",
        "sampling/createMessage" => "sampling",
        _ => "roots",
    });
    let missing = needed.find(|name| !capabilities.contains_key(*name))?;
    Some(Failure::MissingCapability(json!({ missing: {} })))
}

/// What it takes to ask the client of a session.
pub(super) struct SessionQuestions {
    pub(super) server: McpServer,
    pub(super) caller: Caller,
    pub(super) credential: String,
    pub(super) session: Arc<McpSession>,
    pub(super) mode: CallMode,
}

impl SessionQuestions {
    /// Asks one question after the other. Fails if the caller's token is taken back meanwhile.
    pub(super) async fn ask(
        self,
        questions: Vec<ClientQuestion>,
    ) -> Result<ClientAnswers, Failure> {
        let Self { server, caller, credential, session, mode } = self;
        let unavailable = |text: String| ToolError::new(ErrorType::Unavailable, text);
        let mut answers = ClientAnswers::new();
        for ClientQuestion { key, method, params } in questions {
            let mut question = server.questions.open(&session.id);
            say(&server, &caller, &mode, request_message(&question.id, method, &params)).await;
            let reply = (&mut question.reply).await;
            match reply.map_err(|_| unavailable("the client did not answer".to_owned()))? {
                Ok(answer) => {
                    still_permitted(&server, &caller, &credential).await?;
                    answers.insert(key, answer);
                }
                Err(error) => {
                    let reason = error.get("message").and_then(Value::as_str);
                    let reason = reason.unwrap_or("no reason given");
                    let text = format!("the client refused {method}: {reason}");
                    return Err(unavailable(text).retryable(false).into());
                }
            }
        }
        Ok(answers)
    }
}

/// What a client without sessions is asked, and what it has answered in this round and earlier
/// ones.
#[derive(Debug)]
pub(super) struct Round {
    answers: ClientAnswers,
    /// A task waits for their answers, any other call ends with them.
    open: Vec<ClientQuestion>,
    /// Keys of questions of a task, and where their answers go.
    waiting: Vec<(Vec<String>, QuestionReply)>,
}

impl Round {
    pub(super) fn new(answers: ClientAnswers) -> Self {
        Self { answers, open: Vec::new(), waiting: Vec::new() }
    }

    /// The answers to these questions, if all are there. Else those that are not answered are open.
    pub(super) fn ask(
        &mut self,
        keys: &[String],
        questions: Vec<ClientQuestion>,
    ) -> Option<ClientAnswers> {
        let answers = self.answers_to(keys);
        if answers.is_none() {
            self.open = questions;
            self.drop_answered();
        }
        answers
    }

    fn answers_to(&self, keys: &[String]) -> Option<ClientAnswers> {
        keys.iter().map(|key| Some((key.clone(), self.answers.get(key)?.clone()))).collect()
    }

    pub(super) fn wait(&mut self, keys: Vec<String>, reply: QuestionReply) {
        self.waiting.push((keys, reply));
    }

    /// Takes answers to open questions.
    pub(super) fn take(&mut self, given: ClientAnswers) {
        let Self { answers, open, .. } = self;
        let is_open = |key: &String| open.iter().any(|question| question.key == *key);
        answers.extend(given.into_iter().filter(|(key, _)| is_open(key)));
        self.drop_answered();
    }

    fn drop_answered(&mut self) {
        let Self { answers, open, .. } = self;
        open.retain(|question| !answers.contains_key(&question.key));
    }

    /// Gives the answers to those who wait for them.
    pub(super) fn wake(&mut self) {
        for (keys, reply) in std::mem::take(&mut self.waiting) {
            match self.answers_to(&keys) {
                Some(answers) => drop(reply.send(Ok(answers))),
                None => self.waiting.push((keys, reply)),
            }
        }
    }

    /// The open questions as `inputRequests`, if there are any.
    pub(super) fn questions_json(&self) -> Option<String> {
        (!self.open.is_empty()).then(|| self.input_requests().to_string())
    }

    pub(super) fn answers_json(&self) -> String {
        json!(self.answers).to_string()
    }

    fn input_requests(&self) -> Value {
        let requests = self.open.iter().map(|ClientQuestion { key, method, params }| {
            (key.clone(), json!({ "method": method, "params": params }))
        });
        Value::Object(requests.collect())
    }

    /// The result that asks the client for more, and has it carry what was answered and kept
    /// before.
    pub(super) fn input_required(
        &self,
        server: &McpServer,
        caller: &Caller,
        record: &CallRecord,
        kept: Option<Value>,
    ) -> EraResult<InputRequired> {
        let has_state = kept.is_some() || !self.answers.is_empty();
        let request_state = has_state.then(|| {
            let principal = caller.principal().to_string();
            let state = RequestState { answers: self.answers.clone(), kept };
            server.seal.close(state, &binding(&principal, record), server.services.now())
        });
        let members = InputRequired { input_requests: self.input_requests(), request_state };
        EraResult::stateless(ResultType::InputRequired, members, None)
    }
}

/// What a client without sessions brings along from earlier rounds of the same request.
pub(super) fn open_round(
    server: &McpServer,
    caller: &Caller,
    record: &CallRecord,
) -> Result<RequestState, RpcError> {
    let mut answers = object_or_empty(&record.params, "inputResponses")?;
    // A question whose answer is no object is put again.
    answers.retain(|_, answer| answer.is_object());
    let mut kept = None;
    match record.params.get("requestState") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => {
            let principal = caller.principal().to_string();
            let binding = binding(&principal, record);
            let state = server.seal.open(text, &binding, server.services.now())?;
            kept = state.kept;
            for (key, answer) in state.answers {
                answers.entry(key).or_insert(answer);
            }
        }
        Some(_) => return Err(RpcError::invalid_params("params.requestState: must be a string")),
    }
    Ok(RequestState { answers, kept })
}

fn binding<'a>(principal: &'a str, record: &'a CallRecord) -> RequestStateBinding<'a> {
    RequestStateBinding {
        principal,
        session: record.acting_session.as_deref().unwrap_or_default(),
        method: record.method,
        name: &record.name,
        arguments: record.arguments(),
    }
}
