//! One call of a server's tool: the request as the caller gave it, the answer as the server gave it.

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde_json::{Map, Value, json, value::RawValue};
use svc_core::{
    service::sources::SourceStatus,
    tools::{Call, ErrorType, Failure, Output, ToolError},
};
use svc_model::{
    quote,
    source::{Sharing, SourceState},
};
use tokio::time::error::Elapsed;

use super::{
    call_outcome::{CallOutcome, ServerCallEnd},
    child_task::{CallStop, ChildTask},
    connection::{OpenRequest, RequestLoss, SourceConnection, ToolTraits},
    instance::Instance,
    message::{RawMembers, Reply, ServerError, unimitated},
    spec::SourceSpec,
    suspended::SuspendedCalls,
};

/// How long a call waits for a server that is starting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most rounds of questions of one call.
pub(super) const MAX_ROUNDS: usize = 16;

/// The tool that is called.
#[derive(Debug, Clone, Copy)]
pub(super) struct CalledTool<'a> {
    /// Its name, as the server says it.
    pub(super) name: &'a str,
    pub(super) traits: &'a Arc<ToolTraits>,
}

/// What a server wants to know before it goes on, and what it wants to be given back with the answers.
pub(super) struct WantedInput {
    pub(super) requests: Map<String, Value>,
    pub(super) state: Option<Value>,
}

impl WantedInput {
    /// Of a result that is no result yet.
    pub(super) fn of(result: &Value) -> Option<Self> {
        let is_wanted = result.get("resultType").and_then(Value::as_str) == Some("input_required");
        is_wanted.then(|| Self {
            requests: result
                .get("inputRequests")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
            state: result.get("requestState").cloned(),
        })
    }

    /// The same of a result as it is written. Nearly all are one, and are not read.
    pub(super) fn of_result(result: &RawValue) -> Option<Self> {
        if !result.get().contains("input_required") {
            return None;
        }
        serde_json::from_str(result.get()).ok().as_ref().and_then(Self::of)
    }

    /// What is kept while the client is asked.
    pub(super) fn to_kept(&self) -> Value {
        let mut kept = json!({ "resultType": "input_required", "inputRequests": self.requests });
        if let Some(state) = &self.state {
            kept["requestState"] = state.clone();
        }
        kept
    }
}

/// Calls a tool of a server by the instance that serves the caller.
pub(super) async fn call_tool(
    instance: &Arc<Instance>,
    suspended: &SuspendedCalls,
    tool: CalledTool<'_>,
    call: &Call,
    arguments: &Map<String, Value>,
) -> ServerCallEnd {
    if let Some(id) = call.far_end.kept().as_ref().and_then(SuspendedCalls::id_of_kept) {
        return suspended.resume(id, call).await;
    }
    // The server starts with the daemon that takes the call up.
    let patience = if call.is_resumed() {
        PATIENCE.max(instance.spec.entry.startup_timeout)
    } else {
        PATIENCE
    };
    let connection = match instance.connection(patience).await {
        Ok(connection) => connection,
        Err(status) => {
            let name = &instance.spec.key.name;
            return (CallOutcome::Unavailable, Err(unavailable(name, &status).into()));
        }
    };
    // A server of a revision without sessions asks as such a client is asked.
    if connection.is_modern() || !call.far_end.asks_between_requests() {
        return call_to_end(instance, &connection, tool, call, arguments).await;
    }
    let (instance, arguments) = (Arc::clone(instance), arguments.clone());
    let (name, traits) = (tool.name.to_owned(), Arc::clone(tool.traits));
    let work = |call: Call| async move {
        let tool = CalledTool { name: &name, traits: &traits };
        call_to_end(&instance, &connection, tool, &call, &arguments).await
    };
    suspended.run(call, work).await
}

async fn call_to_end(
    instance: &Instance,
    connection: &Arc<SourceConnection>,
    tool: CalledTool<'_>,
    call: &Call,
    arguments: &Map<String, Value>,
) -> ServerCallEnd {
    let name = &instance.spec.key.name;
    // The client has been asked in an earlier run of this call.
    let kept = call.far_end.kept();
    if let Some(task) = kept.as_ref().and_then(ChildTask::of_kept) {
        let end =
            tokio::time::timeout(instance.spec.entry.timeout, task.follow(connection, call, None));
        return outcome_of(instance, connection, end.await);
    }
    let mut wanted = kept.as_ref().and_then(WantedInput::of);
    for _ in 0..MAX_ROUNDS {
        let answers = match &wanted {
            None => None,
            Some(input) => {
                call.far_end.keep(input.to_kept());
                match connection.answer_inputs(call, &input.requests).await {
                    Ok(answers) => Some(answers),
                    Err(failure) => return (CallOutcome::Error, Err(failure)),
                }
            }
        };
        let request = connection.open(Some(call.clone()));
        let mut params = params_of("name", tool.name, call, arguments, request.id);
        if tool.traits.is_task && !connection.is_modern() {
            params = as_task(&params);
        }
        if let (Some(input), Some(answers)) = (&wanted, answers) {
            params = with_answers(&params, &answers, input.state.as_ref());
        }
        let (outcome, answer) = call_once(instance, request, tool, call, &params).await;
        wanted = match &answer {
            Ok(Output::Verbatim(result)) => WantedInput::of_result(result),
            _ => None,
        };
        if wanted.is_none() {
            return (outcome, answer);
        }
    }
    let text = format!("{name} asked {MAX_ROUNDS} times and gave no result");
    (CallOutcome::Error, Err(ToolError::unknown_outcome(text).into()))
}

/// The params with the client's answers.
pub(super) fn with_answers(
    params: &str,
    answers: &Map<String, Value>,
    state: Option<&Value>,
) -> String {
    let raw = |value: &Value| RawValue::from_string(value.to_string()).ok();
    let mut members = RawMembers::parse(params).map(|members| members.0).unwrap_or_default();
    let answers = raw(&Value::Object(answers.clone()));
    members.extend(answers.map(|answers| ("inputResponses".to_owned(), answers)));
    members.extend(state.and_then(raw).map(|state| ("requestState".to_owned(), state)));
    RawMembers(members).into_text()
}

async fn call_once(
    instance: &Instance,
    mut request: OpenRequest,
    tool: CalledTool<'_>,
    call: &Call,
    params: &str,
) -> ServerCallEnd {
    let (connection, token) = (request.connection(), request.id);
    let answer = async {
        request.send("tools/call", params, Some(Arc::clone(tool.traits))).await?;
        match request.answer_to(call).await? {
            Ok(result) => match ChildTask::of(&result) {
                Some(task) => task.follow(&connection, call, Some(token)).await,
                None => Ok(Ok(result)),
            },
            refused => Ok(refused),
        }
    };
    let end = tokio::time::timeout(instance.spec.entry.timeout, answer).await;
    outcome_of(instance, &connection, end)
}

/// What a server's answer, or the lack of one, means for the caller.
fn outcome_of(
    instance: &Instance,
    connection: &SourceConnection,
    end: Result<Result<Reply, CallStop>, Elapsed>,
) -> ServerCallEnd {
    let name = &instance.spec.key.name;
    match end {
        Err(_) => {
            let bound = instance.spec.entry.timeout.as_millis();
            let text = format!("{name}: no answer within {bound} ms; it was told to stop");
            (CallOutcome::Timeout, Err(ToolError::unknown_outcome(text).into()))
        }
        Ok(Err(CallStop::Failed(failure))) => (CallOutcome::Error, Err(failure)),
        Ok(Err(CallStop::Lost(RequestLoss::NotTaken(reason)))) => {
            let text = format!("{name}: {}", connection.hide(&reason));
            (CallOutcome::Unavailable, Err(ToolError::new(ErrorType::Unavailable, text).into()))
        }
        Ok(Err(CallStop::Lost(loss))) => {
            let text = match loss {
                RequestLoss::Unanswered(reason) => {
                    format!(
                        "{name}: {}; the outcome of the call is unknown",
                        connection.hide(&reason)
                    )
                }
                _ => format!("{name} ended in the middle of the call, and its outcome is unknown"),
            };
            let text = format!("{text}: look before you call it again");
            (CallOutcome::Unavailable, Err(ToolError::unknown_outcome(text).into()))
        }
        Ok(Ok(Ok(result))) if result.get().starts_with('{') => {
            let output = Output::Verbatim(unimitated(result));
            if output.is_error() {
                return (CallOutcome::Error, Ok(without_secrets(connection, output)));
            }
            (CallOutcome::Ok, Ok(output))
        }
        Ok(Ok(Ok(_))) => {
            let text = format!("{name}: the result of the tool is no object");
            (CallOutcome::Error, Err(ToolError::unknown_outcome(text).into()))
        }
        Ok(Ok(Err(error))) => (CallOutcome::Error, Err(refused(&connection.redactor(), error))),
    }
}

/// The params of a call of a tool that its server runs as a task and not otherwise.
fn as_task(params: &str) -> String {
    let mut members = RawMembers::parse(params).map(|members| members.0).unwrap_or_default();
    let task = RawValue::from_string("{}".to_owned()).ok();
    members.extend(task.map(|task| ("task".to_owned(), task)));
    RawMembers(members).into_text()
}

/// An error that a tool gives as its result, without secrets. Without any it passes byte for byte.
fn without_secrets(connection: &SourceConnection, output: Output) -> Output {
    let Output::Verbatim(result) = &output else { return output };
    match connection.hide(result.get()) {
        Cow::Borrowed(_) => output,
        Cow::Owned(text) => RawValue::from_string(text).map_or(output, Output::Verbatim),
    }
}

/// An error of the server, without secrets and without imitations of the daemon's stamps.
pub(super) fn refused(redactor: &svc_model::source::Redactor, error: ServerError) -> Failure {
    let ServerError { code, message, data } = error;
    let message = redactor.hide(&message).into_owned();
    let data = data.map(|data| match redactor.hide(&data.to_string()) {
        Cow::Borrowed(_) => data,
        Cow::Owned(text) => serde_json::from_str(&text).unwrap_or(Value::Null),
    });
    let mut said = json!({ "message": message, "data": data });
    quote::unimitated_value(&mut said);
    let message = said["message"].as_str().unwrap_or_default().to_owned();
    let data = data.map(|_| said["data"].take());
    Failure::Protocol { code, message: message.into(), data }
}

pub(super) fn unavailable(name: &str, status: &SourceStatus) -> ToolError {
    let state = status.state.as_str();
    let mut text = format!("{name} is {state}");
    if status.state.is_starting() {
        text.push_str(": it has not started yet, try again");
    }
    for more in [&status.reason, &status.next_action].into_iter().flatten() {
        text.push_str(": ");
        text.push_str(more);
    }
    debug_assert!(status.state != SourceState::Hidden, "a hidden entry has no tools");
    // Whatever else it is waits for a person.
    let comes_back = status.state.is_starting() || status.state == SourceState::BackingOff;
    ToolError::new(ErrorType::Unavailable, text)
        .retryable(comes_back)
        .allowed(json!({ "state": state }))
}

/// The params of the server's request: those of the caller's, with the server's own name of what it is about, in `member`, and
/// our token of the progress. All else stays as it was written. `given` stands in for params that the call does not have.
pub(super) fn params_of(
    member: &str,
    own: &str,
    call: &Call,
    given: &Map<String, Value>,
    id: u64,
) -> String {
    let named = own;
    let own =
        call.params.as_deref().and_then(|raw| serde_json::from_str::<RawMembers>(raw.get()).ok());
    let Some(RawMembers(mut members)) = own else {
        return json!({ member: named, "arguments": given }).to_string();
    };
    let is_passed_on =
        members.iter().any(|(name, value)| name == "name" && value.get() == "\"ToolCall\"");
    if is_passed_on {
        let inner = members.iter().find(|(name, _)| name == "arguments").and_then(|(_, value)| {
            let RawMembers(inner) = serde_json::from_str(value.get()).ok()?;
            inner.into_iter().find(|(name, _)| name == "arguments")
        });
        members.retain(|(name, _)| name != "arguments");
        members.extend(inner);
    }
    let mut out = String::from("{");
    for (name, value) in members {
        let value = match name.as_str() {
            name if name == member => json!(named).to_string(),
            "_meta" => match meta_of(&value, id) {
                Some(meta) => meta,
                None => continue,
            },
            // Between this daemon and its client.
            "inputResponses" | "requestState" | "task" => continue,
            _ => value.get().to_owned(),
        };
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&json!(name).to_string());
        out.push(':');
        out.push_str(&value);
    }
    out.push('}');
    out
}

/// What is said beside the call. A client's introduction of itself is not passed on: this client has its own.
fn meta_of(raw: &RawValue, id: u64) -> Option<String> {
    let members: RawMembers = serde_json::from_str(raw.get()).ok()?;
    let is_own = |name: &str| name.starts_with("io.modelcontextprotocol/");
    if !members.0.iter().any(|(name, _)| name == "progressToken" || is_own(name)) {
        return Some(raw.get().to_owned());
    }
    let kept = members.0.iter().filter(|(name, _)| !is_own(name)).map(|(name, value)| {
        let value = if name == "progressToken" { id.to_string() } else { value.get().to_owned() };
        format!("{}:{value}", json!(name))
    });
    let kept: Vec<String> = kept.collect();
    (!kept.is_empty()).then(|| format!("{{{}}}", kept.join(",")))
}

/// Whom an instance of a server is for.
#[derive(Debug, Clone, Default)]
pub(super) struct Served {
    /// A project or a session; empty for everybody, and for who has neither.
    pub(super) key: String,
    /// The project that it works in.
    pub(super) project: Option<String>,
}

/// Which instance of a server serves a caller: by its project, its session, or for everybody.
pub(super) fn serves(instance_of: &SourceSpec, call: &Call) -> Served {
    let project = call.caller.project();
    let key = match instance_of.entry.sharing {
        Sharing::Shared => None,
        // The instance that learns the lists runs in the project whose file names it.
        Sharing::Project => project.filter(|project| instance_of.root.as_deref() != Some(*project)),
        Sharing::Session => call.session.as_deref().or(call.caller.session()),
    };
    let project = key.and(project).map(str::to_owned);
    Served { key: key.unwrap_or_default().to_owned(), project }
}
