//! One request to a server for a call: a tool's call, a prompt, a resource. The request goes out as
//! the caller wrote it, and the answer comes back as the server wrote it.
//!
//! ```text
//!  kept: suspended ──► resume ──────────────────────────────────────► outcome
//!  instance ──► connection ──┬─ rounds ◄─┐                              ▲
//!   (waited for 5 s, else    │    ├──────┘ `input_required`: ask, again │
//!    `unavailable`)          │    └──────────────────────────────────────┤
//!                            └─ server with sessions, client without:    │
//!                               rounds in a task of its own, which `suspended` follows;
//!                               a question ends the client's request, its next one resumes
//! ```
//!
//! If the server responds with a task, [`ChildTask`] follows the task and returns its result to the
//! caller. A server of a revision with sessions holds `tasks/result` open until the task ends, and
//! sends its questions on it. A server without sessions is polled for the state, which contains its
//! questions.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use svc_core::{
    service::sources::SourceStatus,
    tools::{Call, ErrorType, Failure, Output, ToolError},
};
use svc_model::{
    quote,
    source::{Redactor, Sharing, SourceState},
};
use svc_wire::json_rpc::INTERNAL_ERROR;
use tokio::time::error::Elapsed;

use super::{
    connection::{OpenRequest, SourceConnection},
    instance::Instance,
    message::{ConnectionEnd, RawMembers, Reply, RequestLoss, ServerError, ToolTraits, unimitated},
    metrics::{CallOutcome, ServerCallEnd},
    spec::SourceSpec,
    suspended::SuspendedCalls,
};

/// How long a call waits for a server that is starting.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of rounds of questions in one call.
const MAX_ROUNDS: usize = 16;

#[derive(Debug)]
pub(super) struct ServerRequest {
    pub(super) method: &'static str,
    pub(super) params: RequestParams,
    /// The traits of the called tool; `None` for other requests.
    pub(super) traits: Option<Arc<ToolTraits>>,
}

#[derive(Debug)]
pub(super) enum RequestParams {
    /// The caller's params, with the server's own name of the subject in `member`. `given` stands
    /// in if the call has no params.
    Callers {
        member: &'static str,
        own: String,
        given: Map<String, Value>,
    },
    Written(String),
}

impl ServerRequest {
    pub(super) fn tool(own: &str, traits: &Arc<ToolTraits>, arguments: Map<String, Value>) -> Self {
        let params =
            RequestParams::Callers { member: "name", own: own.to_owned(), given: arguments };
        Self { method: "tools/call", params, traits: Some(Arc::clone(traits)) }
    }

    pub(super) fn relayed(
        method: &'static str,
        member: &'static str,
        own: String,
        given: &Map<String, Value>,
    ) -> Self {
        let params = RequestParams::Callers { member, own, given: given.clone() };
        Self { method, params, traits: None }
    }

    pub(super) fn written(method: &'static str, params: &Value) -> Self {
        Self { method, params: RequestParams::Written(params.to_string()), traits: None }
    }

    fn params(&self, call: &Call, id: u64) -> String {
        match &self.params {
            RequestParams::Callers { member, own, given } => {
                params_of(member, own, call, given, id)
            }
            RequestParams::Written(params) => params.clone(),
        }
    }

    /// The failure of the request. The outcome of a tool's call is unknown; any other request
    /// changes nothing.
    fn failed(&self, text: String) -> Failure {
        match self.traits {
            Some(_) => ToolError::unknown_outcome(text).into(),
            None => ToolError::new(ErrorType::Unavailable, text).into(),
        }
    }

    /// Sends the request to the instance that serves the caller.
    pub(super) async fn run(
        self,
        instance: &Arc<Instance>,
        suspended: &SuspendedCalls,
        call: &Call,
    ) -> ServerCallEnd {
        if let Some(id) = call.kept().as_ref().and_then(SuspendedCalls::kept_id) {
            return suspended.resume(id, call).await;
        }
        // After a restart the daemon resumes the call while the server starts, too.
        let start = instance.spec.entry.startup_timeout;
        let max_wait = if call.is_resumed() { TIMEOUT.max(start) } else { TIMEOUT };
        let connection = match instance.connection(max_wait).await {
            Ok(connection) => connection,
            Err(status) => {
                let name = &instance.spec.key.name;
                return (CallOutcome::Unavailable, Err(unavailable(name, &status).into()));
            }
        };
        let serving = ServingInstance { instance: Arc::clone(instance), connection };
        // A server without sessions asks by ending its request, as a client without sessions is
        // asked, so no call has to be suspended.
        if serving.connection.is_modern() || !call.asks_between_requests() {
            return serving.run_rounds(&self, call).await;
        }
        suspended.run(call, |call| async move { serving.run_rounds(&self, &call).await }).await
    }

    /// Sends a request that is no tool's call, and returns its result.
    pub(super) async fn result(
        self,
        instance: &Arc<Instance>,
        suspended: &SuspendedCalls,
        call: &Call,
    ) -> Result<Box<RawValue>, Failure> {
        match self.run(instance, suspended, call).await.1? {
            Output::Verbatim(result) => Ok(result),
            other => {
                debug_assert!(false, "{other:?} is of a tool, and no result of a server");
                let text = "the result is of another request";
                Err(ToolError::new(ErrorType::Unavailable, text).into())
            }
        }
    }
}

/// The questions of a server, and the state that it wants back with the answers.
struct WantedInput {
    requests: Map<String, Value>,
    state: Option<Value>,
}

impl WantedInput {
    /// Parses a suspended call's state, or a result that asks for input.
    fn parse(result: &Value) -> Option<Self> {
        let is_wanted = result.get("resultType").and_then(Value::as_str) == Some("input_required");
        let requests = result.get("inputRequests").and_then(Value::as_object);
        is_wanted.then(|| Self {
            requests: requests.cloned().unwrap_or_default(),
            state: result.get("requestState").cloned(),
        })
    }

    /// Nearly all results ask for no input, and are not parsed.
    fn parse_result(result: &RawValue) -> Option<Self> {
        if !result.get().contains("input_required") {
            return None;
        }
        serde_json::from_str(result.get()).ok().as_ref().and_then(Self::parse)
    }

    fn to_kept(&self) -> Value {
        let mut kept = json!({ "resultType": "input_required", "inputRequests": self.requests });
        if let Some(state) = &self.state {
            kept["requestState"] = state.clone();
        }
        kept
    }
}

struct ServingInstance {
    instance: Arc<Instance>,
    connection: Arc<SourceConnection>,
}

impl ServingInstance {
    /// Sends a request, and repeats it with the client's answers for as long as the server asks.
    async fn run_rounds(&self, request: &ServerRequest, call: &Call) -> ServerCallEnd {
        let connection = &self.connection;
        // The client was asked in an earlier run of this call.
        let kept = call.kept();
        if let Some(task) = kept.as_ref().and_then(ChildTask::from_kept) {
            let end = task.follow(connection, call, None);
            let end = tokio::time::timeout(self.instance.spec.entry.timeout, end).await;
            return self.outcome(request, end);
        }
        let mut wanted = kept.as_ref().and_then(WantedInput::parse);
        for _ in 0..MAX_ROUNDS {
            let answers = match &wanted {
                None => None,
                Some(input) => {
                    call.keep(input.to_kept());
                    match connection.answer_inputs(call, &input.requests).await {
                        Ok(answers) => Some((answers, input.state.as_ref())),
                        Err(failure) => return (CallOutcome::Error, Err(failure)),
                    }
                }
            };
            let open = connection.open(Some(call.clone()));
            let mut params = request.params(call, open.id);
            let is_task = request.traits.as_ref().is_some_and(|traits| traits.is_task);
            if is_task && !connection.is_modern() {
                params = with_members(&params, [("task", Some(&json!({})))]);
            }
            if let Some((answers, state)) = answers {
                let answers = Value::Object(answers);
                let members = [("inputResponses", Some(&answers)), ("requestState", state)];
                params = with_members(&params, members);
            }
            let (outcome, answer) = self.run_round(request, open, call, &params).await;
            wanted = match &answer {
                Ok(Output::Verbatim(result)) => WantedInput::parse_result(result),
                _ => None,
            };
            if wanted.is_none() {
                return (outcome, answer);
            }
        }
        let name = &self.instance.spec.key.name;
        let text = format!("{name} asked {MAX_ROUNDS} times and gave no result");
        (CallOutcome::Error, Err(request.failed(text)))
    }

    async fn run_round(
        &self,
        request: &ServerRequest,
        mut open: OpenRequest,
        call: &Call,
        params: &str,
    ) -> ServerCallEnd {
        let (traits, token) = (request.traits.clone(), open.id);
        let answer = async {
            let is_tool = traits.is_some();
            let sent = open.send(request.method, params, traits).await;
            sent.map_err(|_| self.connection.not_sent())?;
            match open.answer_to(Some(call)).await? {
                Ok(result) => match ChildTask::parse(&result).filter(|_| is_tool) {
                    Some(task) => task.follow(&self.connection, call, Some(token)).await,
                    None => Ok(Ok(result)),
                },
                refused => Ok(refused),
            }
        };
        let end = tokio::time::timeout(self.instance.spec.entry.timeout, answer).await;
        self.outcome(request, end)
    }

    fn outcome(
        &self,
        request: &ServerRequest,
        end: Result<Result<Reply, CallStop>, Elapsed>,
    ) -> ServerCallEnd {
        let name = &self.instance.spec.key.name;
        match end {
            Err(_) => {
                let bound = self.instance.spec.entry.timeout.as_millis();
                let text = format!("{name}: no answer within {bound} ms; it was told to stop");
                (CallOutcome::Timeout, Err(request.failed(text)))
            }
            Ok(Err(CallStop::Failed(failure))) => (CallOutcome::Error, Err(failure)),
            Ok(Err(CallStop::Lost(loss))) => {
                (CallOutcome::Unavailable, Err(self.lost(request, loss)))
            }
            Ok(Ok(Ok(result))) if result.get().starts_with('{') => {
                let output = Output::Verbatim(unimitated(result));
                if request.traits.is_some() && output.is_error() {
                    return (CallOutcome::Error, Ok(without_secrets(&self.connection, output)));
                }
                (CallOutcome::Ok, Ok(output))
            }
            Ok(Ok(Ok(_))) => {
                let subject = if request.traits.is_some() { "the tool" } else { request.method };
                let text = format!("{name}: the result of {subject} is no object");
                (CallOutcome::Error, Err(request.failed(text)))
            }
            Ok(Ok(Err(error))) => {
                (CallOutcome::Error, Err(refused(&self.connection.redactor(), error)))
            }
        }
    }

    fn lost(&self, request: &ServerRequest, loss: RequestLoss) -> Failure {
        let name = &self.instance.spec.key.name;
        let text = match loss {
            _ if request.traits.is_none() => {
                return request.failed(format!("{name} ended in the middle of {}", request.method));
            }
            RequestLoss::NotTaken(reason) => {
                let text = format!("{name}: {}", self.connection.hide(&reason));
                // Any other end waits for a person.
                let end = self.connection.end();
                let comes_back = end.is_none_or(|end| matches!(end, ConnectionEnd::Fault(_)));
                return ToolError::new(ErrorType::Unavailable, text).retryable(comes_back).into();
            }
            RequestLoss::Unanswered(reason) => {
                let reason = self.connection.hide(&reason);
                format!("{name}: {reason}; the outcome of the call is unknown")
            }
            RequestLoss::Closed => {
                format!("{name} ended in the middle of the call, and its outcome is unknown")
            }
        };
        request.failed(format!("{text}: look before you call it again"))
    }
}

fn with_members<'a>(
    params: &str,
    more: impl IntoIterator<Item = (&'a str, Option<&'a Value>)>,
) -> String {
    let RawMembers(mut members) = RawMembers::parse(params).unwrap_or_default();
    let more = more.into_iter();
    members.extend(
        more.filter_map(|(name, value)| Some((name.to_owned(), to_raw_value(value?).ok()?))),
    );
    RawMembers(members).into_text()
}

/// Removes secrets from the error of a tool. Without any it passes byte for byte.
fn without_secrets(connection: &SourceConnection, output: Output) -> Output {
    let Output::Verbatim(result) = &output else { return output };
    match connection.hide(result.get()) {
        Cow::Borrowed(_) => output,
        Cow::Owned(text) => RawValue::from_string(text).map_or(output, Output::Verbatim),
    }
}

/// An error of the server, without secrets and without imitations of the daemon's stamps.
fn refused(redactor: &Redactor, error: ServerError) -> Failure {
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
    // The other states wait for a person.
    let comes_back = status.state.is_starting() || status.state == SourceState::BackingOff;
    ToolError::new(ErrorType::Unavailable, text)
        .retryable(comes_back)
        .allowed(json!({ "state": state }))
}

/// The params of the server's request: the caller's, with the server's own name of the subject in
/// `member`, and the daemon's progress token. All else is unchanged. `given` stands in if the call
/// has no params.
fn params_of(member: &str, own: &str, call: &Call, given: &Map<String, Value>, id: u64) -> String {
    let params = call.params.as_deref().and_then(|raw| RawMembers::parse(raw.get()));
    let Some(RawMembers(mut members)) = params else {
        return json!({ member: own, "arguments": given }).to_string();
    };
    let is_passed_on =
        members.iter().any(|(name, value)| name == "name" && value.get() == "\"ToolCall\"");
    if is_passed_on {
        let inner = members.iter().find(|(name, _)| name == "arguments").and_then(|(_, value)| {
            let RawMembers(inner) = RawMembers::parse(value.get())?;
            inner.into_iter().find(|(name, _)| name == "arguments")
        });
        members.retain(|(name, _)| name != "arguments");
        members.extend(inner);
    }
    let passed = members.into_iter().filter_map(|(name, value)| {
        let value = match name.as_str() {
            name if name == member => to_raw_value(own).ok()?,
            "_meta" => meta_of(value, id)?,
            // Members that concern only this daemon and its client.
            "inputResponses" | "requestState" | "task" => return None,
            _ => value,
        };
        Some((name, value))
    });
    RawMembers(passed.collect()).into_text()
}

/// `_meta` for the server. The client's introduction is dropped, since this daemon introduces
/// itself.
fn meta_of(raw: Box<RawValue>, id: u64) -> Option<Box<RawValue>> {
    let RawMembers(mut members) = RawMembers::parse(raw.get())?;
    let is_own = |name: &str| name.starts_with("io.modelcontextprotocol/");
    if !members.iter().any(|(name, _)| name == "progressToken" || is_own(name)) {
        return Some(raw);
    }
    members.retain(|(name, _)| !is_own(name));
    for (_, value) in members.iter_mut().filter(|(name, _)| name == "progressToken") {
        *value = to_raw_value(&id).ok()?;
    }
    let text = RawMembers(members).into_text();
    if text == "{}" { None } else { RawValue::from_string(text).ok() }
}

/// Whom an instance serves.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedWith {
    /// The root of a project, or a session; empty for an instance that serves everybody, or a
    /// caller that has neither.
    pub(super) key: String,
    /// Root of the project that the instance works in.
    pub(super) project: Option<String>,
}

/// The instance of a server that serves a caller: the project's, the session's, or everybody's.
pub(super) fn shared_with(instance_of: &SourceSpec, call: &Call) -> SharedWith {
    let project = call.caller.root();
    let key = match instance_of.entry.sharing {
        Sharing::Shared => None,
        // The learner, which fetches the lists, runs in the project whose file names the server.
        Sharing::Project => project.filter(|project| instance_of.root.as_deref() != Some(*project)),
        Sharing::Session => call.session.as_deref().or(call.caller.session()),
    };
    let project = key.and(project).map(str::to_owned);
    SharedWith { key: key.unwrap_or_default().to_owned(), project }
}

/// Shortest poll interval for a task's state.
const MIN_POLL: Duration = Duration::from_millis(20);
const MAX_POLL: Duration = Duration::from_secs(5);
/// Poll interval if the server names none.
const USUAL_POLL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) enum CallStop {
    Lost(RequestLoss),
    /// The client did not answer the server's question, or has to be asked first.
    Failed(Failure),
}

impl From<RequestLoss> for CallStop {
    fn from(loss: RequestLoss) -> Self {
        Self::Lost(loss)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChildTask {
    id: String,
    poll: Duration,
}

/// The state of a task in revisions without sessions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChildTaskState<'a> {
    status: String,
    #[serde(default)]
    poll_interval_ms: Option<u64>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<ServerError>,
    #[serde(default)]
    input_requests: Map<String, Value>,
}

impl ChildTask {
    pub(super) fn parse(result: &RawValue) -> Option<Self> {
        // Nearly all results contain no task, and are not parsed.
        if !result.get().contains("\"taskId\"") {
            return None;
        }
        let result: Value = serde_json::from_str(result.get()).ok()?;
        match result.get("resultType").and_then(Value::as_str) {
            Some("task") => Self::from_members(&result, "pollIntervalMs"),
            Some(_) => None,
            // A result with content is no task, whatever else it has.
            None if result.get("content").is_some() => None,
            None => Self::from_members(result.get("task")?, "pollInterval"),
        }
    }

    fn from_members(members: &Value, poll: &str) -> Option<Self> {
        let id = members.get("taskId")?.as_str()?.to_owned();
        members.get("status")?.as_str()?;
        let poll = members.get(poll).and_then(Value::as_u64).map(Duration::from_millis);
        Some(Self { id, poll: poll.unwrap_or(USUAL_POLL).clamp(MIN_POLL, MAX_POLL) })
    }

    fn to_kept(&self) -> Value {
        json!({ "task": self.id })
    }

    /// The task that an earlier run of the call kept.
    pub(super) fn from_kept(kept: &Value) -> Option<Self> {
        Some(Self { id: kept.get("task")?.as_str()?.to_owned(), poll: MIN_POLL })
    }

    /// Waits for the task's end. A task is cancelled when nobody waits for it any more. `token` is
    /// the call's progress token, which stays valid until the task ends.
    pub(super) async fn follow(
        self,
        connection: &Arc<SourceConnection>,
        call: &Call,
        token: Option<u64>,
    ) -> Result<Reply, CallStop> {
        let connection = Arc::clone(connection);
        let mut watch = ChildTaskWatch { connection, task: self, token, is_over: false };
        let connection = &watch.connection;
        let end =
            if connection.is_modern() { watch.poll(call).await } else { watch.wait(call).await };
        // The task began, whatever became of a later request about it.
        let end = end.map_err(|stop| match stop {
            CallStop::Lost(RequestLoss::NotTaken(reason)) => {
                CallStop::Lost(RequestLoss::Unanswered(reason))
            }
            stop => stop,
        });
        // A task whose client cannot answer is cancelled; one whose client is asked first goes on.
        watch.is_over = match &end {
            Err(CallStop::Failed(failure)) => matches!(failure, Failure::NeedsInput),
            _ => true,
        };
        end
    }
}

/// A task under way. Dropping it cancels the task, unless it has ended.
struct ChildTaskWatch {
    connection: Arc<SourceConnection>,
    task: ChildTask,
    token: Option<u64>,
    is_over: bool,
}

impl ChildTaskWatch {
    async fn ask(&self, method: &str, params: &Value, call: &Call) -> Result<Reply, RequestLoss> {
        let mut request = self.connection.open(Some(call.clone()));
        request.send(method, &params.to_string(), None).await?;
        request.answer_to(Some(call)).await
    }

    async fn wait(&self, call: &Call) -> Result<Reply, CallStop> {
        let mut request = self.connection.open(Some(call.clone()));
        if let Some(token) = self.token {
            self.connection.pass_progress(token, request.id);
        }
        let params = json!({ "taskId": self.task.id });
        request.send("tasks/result", &params.to_string(), None).await?;
        Ok(request.answer_to(Some(call)).await?)
    }

    async fn poll(&self, call: &Call) -> Result<Reply, CallStop> {
        let id = &self.task.id;
        let (mut poll, mut answered) = (self.task.poll, HashSet::new());
        loop {
            let reply = self.ask("tasks/get", &json!({ "taskId": id }), call).await?;
            let raw = match reply {
                Ok(raw) => raw,
                Err(error) => return Ok(Err(error)),
            };
            let Ok(state) = serde_json::from_str::<ChildTaskState<'_>>(raw.get()) else {
                return Ok(Err(fault("the state of its task cannot be read")));
            };
            if let Some(wanted) = state.poll_interval_ms {
                poll = Duration::from_millis(wanted).clamp(MIN_POLL, MAX_POLL);
            }
            match (state.status.as_str(), state.result, state.error) {
                ("completed", Some(result), _) => return Ok(Ok(result.to_owned())),
                ("failed", _, Some(error)) => return Ok(Err(error)),
                ("cancelled", ..) => return Ok(Err(fault("its task was cancelled"))),
                ("completed" | "failed", ..) => {
                    return Ok(Err(fault("its task ended without a result")));
                }
                ("input_required", ..) => {
                    let mut requests = state.input_requests;
                    // For a while the state may still show questions that were answered.
                    requests.retain(|key, _| !answered.contains(key));
                    if !requests.is_empty() {
                        call.keep(self.task.to_kept());
                        let answers = self.connection.answer_inputs(call, &requests).await;
                        let answers = answers.map_err(CallStop::Failed)?;
                        answered.extend(requests.keys().cloned());
                        let params = json!({ "taskId": id, "inputResponses": answers });
                        if let Err(error) = self.ask("tasks/update", &params, call).await? {
                            return Ok(Err(error));
                        }
                        continue;
                    }
                }
                _ => {}
            }
            tokio::time::sleep(poll).await;
        }
    }
}

impl Drop for ChildTaskWatch {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.connection.forget_progress(token);
        }
        if !self.is_over {
            self.connection.post("tasks/cancel", &json!({ "taskId": self.task.id }));
        }
    }
}

fn fault(message: &str) -> ServerError {
    ServerError { code: INTERNAL_ERROR, message: message.to_owned(), data: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_results_parse_by_table() {
        for (text, expected) in [
            (r#"{"task":{"taskId":"t","status":"working","pollInterval":100}}"#, Some(("t", 100))),
            (r#"{"task":{"taskId":"t","status":"working"}}"#, Some(("t", 500))),
            (
                r#"{"resultType":"task","taskId":"u","status":"working","pollIntervalMs":1}"#,
                Some(("u", 20)),
            ),
            (
                r#"{"resultType":"task","taskId":"u","status":"working","pollIntervalMs":99999}"#,
                Some(("u", 5000)),
            ),
            (r#"{"content":[],"task":{"taskId":"t","status":"working"}}"#, None),
            (r#"{"resultType":"complete","content":[],"taskId":"u","status":"x"}"#, None),
            (r#"{"content":[{"type":"text","text":"\"taskId\""}]}"#, None),
            (r#"{"task":{"taskId":7,"status":"working"}}"#, None),
            (r#"{"task":{"taskId":"t"}}"#, None),
        ] {
            let result = RawValue::from_string(text.to_owned()).expect("JSON");
            let task = ChildTask::parse(&result);
            let expected = expected.map(|(id, poll): (&str, u64)| ChildTask {
                id: id.to_owned(),
                poll: Duration::from_millis(poll),
            });
            assert_eq!(task, expected, "{text}");
        }
        let task = ChildTask { id: "t".to_owned(), poll: USUAL_POLL };
        assert_eq!(ChildTask::from_kept(&task.to_kept()).map(|task| task.id), Some("t".to_owned()));
        assert_eq!(ChildTask::from_kept(&json!({ "resultType": "input_required" })), None);
    }
}
