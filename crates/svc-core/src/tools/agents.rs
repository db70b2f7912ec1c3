//! Tools for agents: dispatches, instances, and answers to requests.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    AGENTS_SCOPE, APPROVE_SCOPE, InstanceView, NOT_BLANK, TaskId, TaskStatus, hook::AnswerRequest,
    limits,
};
use svc_store::{RequestRow, WorkMode};
use tokio::time::timeout;

use super::{Call, Failure, Tool};
use crate::service::{Page, agents::NewDispatch};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("SendMessage", SEND, send)
            .title("Give work to an agent")
            .scope(AGENTS_SCOPE)
            .slow(),
        Tool::new("AgentList", LIST, list).title("List agents").read_only().unlisted(),
        Tool::new("RequestAnswer", ANSWER, answer)
            .title("Answer what an agent asks")
            .scope(APPROVE_SCOPE),
    ]
}

const SEND: &str = "\
Gives work to another agent, as a task.

You get the task's id at once, and a message when it is over; with async = false you get the agent's answer. Without agent \
and tag it is for the configured default.";

#[derive(Deserialize, JsonSchema)]
struct SendMessageArguments {
    /// The instructions; the agent knows nothing else.
    #[schemars(regex(pattern = NOT_BLANK))]
    prompt: String,
    /// An instance (`agents_list`), or who is here: a name, key or id.
    #[schemars(regex(pattern = NOT_BLANK))]
    agent: Option<String>,
    /// Any instance with this tag.
    #[schemars(regex(pattern = NOT_BLANK))]
    tag: Option<String>,
    /// Do not wait for the answer.
    #[serde(rename = "async")]
    #[schemars(extend("default" = true))]
    is_async: Option<bool>,
    /// An ended conversation to continue: an agent's id or session key.
    #[schemars(regex(pattern = NOT_BLANK))]
    session: Option<String>,
    /// `spawn-only`: a new agent. `peer-only`: a live one. `peer-prefer`: a live one, else a new
    /// one.
    #[schemars(extend("default" = "spawn-only"))]
    mode: Option<WorkMode>,
    /// The vendor's model.
    #[schemars(regex(pattern = NOT_BLANK))]
    model: Option<String>,
    /// The folder of a new agent; your project by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    cwd: Option<String>,
    /// On whose behalf; only the operator may name another.
    #[schemars(regex(pattern = NOT_BLANK))]
    from_peer_id: Option<String>,
    /// A repeat with the same key returns the first task.
    #[schemars(regex(pattern = NOT_BLANK))]
    idempotency_key: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct SendMessageResult {
    task_id: TaskId,
    /// A message brings the answer, or has brought it.
    #[serde(rename = "async", default, skip_serializing_if = "std::ops::Not::not")]
    is_async: bool,
    /// Who gets it.
    instance: String,
    /// The kind of agent.
    backend: String,
    /// How the task stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<TaskStatus>,
    /// What the agent said.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// It said more than that: the stream `task/<task_id>` has all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Why the task failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

async fn send(call: Call, input: SendMessageArguments) -> Result<SendMessageResult, Failure> {
    let is_async = input.is_async.unwrap_or(true);
    let dispatch = NewDispatch {
        agent: input.agent,
        tag: input.tag,
        prompt: input.prompt,
        mode: input.mode,
        session: input.session,
        model: input.model,
        cwd: input.cwd,
        default_cwd: None,
        from_peer_id: input.from_peer_id,
        idempotency_key: input.idempotency_key,
        asking_session: call.session.as_deref().map(str::to_owned),
        max_wait: if is_async { Duration::ZERO } else { call.time_left(limits::TASK_WAIT) },
        ..NewDispatch::default()
    };
    let dispatched = call.services.agents.dispatch(&call.caller, dispatch).await?;
    let task_id = dispatched.task.task_id;
    let mut result = SendMessageResult {
        task_id: task_id.clone(),
        is_async,
        instance: dispatched.instance,
        backend: dispatched.backend,
        status: None,
        content: None,
        truncated: false,
        failure: None,
    };
    if is_async {
        return Ok(result);
    }
    let wait = dispatched.wait;
    let ids = [task_id.as_str().to_owned()];
    let mut watch = call.services.tasks.watch_tasks(&call.caller, &ids).await?;
    let ended = timeout(call.time_left(limits::TASK_WAIT), watch.next()).await;
    let task = match ended {
        Ok(ended) => ended?,
        Err(_) => None,
    };
    let task = match task {
        Some(task) => task,
        None => call.services.tasks.task(&call.caller, task_id.as_str()).await?.as_ref().clone(),
    };
    let (content, truncated) = call.services.agents.content_of(&task).await?;
    result.status = Some(task.status);
    if task.is_over() {
        if let Some(wait) = &wait {
            wait.note_answer();
        }
        let answer = call.services.agents.return_answer(&call.caller, &task_id).await?;
        if let Some(answer) = answer {
            (result.instance, result.backend) = (answer.instance, answer.backend);
            if answer.was_sent {
                result.is_async = true;
                return Ok(result);
            }
        }
        call.keep_until_handed(wait);
    }
    result.content = Some(content);
    result.truncated = truncated;
    result.failure = task.report.error;
    Ok(result)
}

const LIST: &str = "\
Lists the configured ways to run agents: whom SendMessage can give work to.

One that is not callable says why. Who is here now is told by peer_list.";

#[derive(Deserialize, JsonSchema)]
struct AgentListArguments {
    /// Only those that can be started.
    callable: Option<bool>,
}

async fn list(call: Call, input: AgentListArguments) -> Result<Page<InstanceView>, Failure> {
    Ok(Page::last(call.services.agents.instances(input.callable.unwrap_or(false)).await?))
}

const ANSWER: &str = "\
Answers a request of an agent or a session: for permission, or a question.

The first answer counts; later ones are a conflict. The message that you got says who asks, and lists the options. You answer \
for others of your project: never for yourself, or for what you started.";

#[derive(Deserialize, JsonSchema)]
struct RequestAnswerArguments {
    /// The request.
    #[schemars(regex(pattern = NOT_BLANK))]
    request_id: String,
    #[serde(flatten)]
    answer: AnswerRequest,
}

#[derive(Serialize, JsonSchema)]
struct RequestAnswerResult {
    /// `sent`: the client was given the answer and has not shown yet that it has taken it.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    request: RequestRow,
}

async fn answer(call: Call, input: RequestAnswerArguments) -> Result<RequestAnswerResult, Failure> {
    let agents = &call.services.agents;
    let sender = call.trace.sender;
    let request =
        agents.answer_request(&call.caller, None, &input.request_id, input.answer, sender).await?;
    let state = request.closed_at.is_none().then_some("sent");
    Ok(RequestAnswerResult { state, request })
}
