//! Starts a session on behalf of another session.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{Caller, NOT_BLANK, RunId, TaskId, conversation::SourceTool, limits};
use tokio::time::{Instant, sleep};

use super::Conversations;
use crate::boxed;
use crate::service::{Error, Result, agents::NewDispatch, check};

/// How long the call waits for the agent to take its task.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
/// Pause between two looks: storing the process of an agent appends no event.
const POLL: Duration = Duration::from_millis(20);

/// A session for a task.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpawnSession {
    /// The instructions; the agent knows nothing else.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub task: String,
    /// The agent; the configured default if omitted.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub agent_id: Option<String>,
    /// Its name.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub label: Option<String>,
    /// Its working folder; your project by default.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub cwd: Option<String>,
    /// The vendor's model.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub model: Option<String>,
    /// End it after this time; 0 or omitted: no limit.
    #[schemars(range(min = 0, max = 604_800))]
    pub run_timeout_seconds: Option<u32>,
    /// What remains after its end; task and records always do.
    #[schemars(extend("default" = "keep"))]
    pub cleanup: Option<Cleanup>,
    /// A repeat with the same key starts nothing again.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub idempotency_key: Option<String>,
}

/// What remains of a session after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cleanup {
    /// All of it.
    Keep,
    /// Its task and what it wrote.
    Delete,
}

/// A session that was started.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpawnedSession {
    /// Its program runs, is logged in, and has the task.
    #[schemars(extend("const" = "accepted"))]
    pub status: &'static str,
    /// Its key.
    pub child_session_key: String,
    /// Names what it was asked; its end comes as a message.
    pub run_id: RunId,
    /// What it is to do, as a task.
    pub task_id: TaskId,
    /// Its process.
    // 0 in a repeat of the call after the child was removed.
    pub pid: u32,
}

/// A dispatch names its own fields: the caller knows them by other names.
fn of_spawn(error: Error) -> Error {
    let Error::Invalid { field, why } = error else { return error };
    let field = match field.as_str() {
        "agent" => "agentId".to_owned(),
        "prompt" => "task".to_owned(),
        "idempotency_key" => "idempotencyKey".to_owned(),
        _ => field,
    };
    Error::Invalid { field, why }
}

impl Conversations {
    /// Starts a session for a task. Returns when the agent has taken the task.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if agents have started agents too deep, or the caller has as many as
    /// it may have. [`Error::NotNow`] with the reason if the program does not run.
    #[boxed]
    pub async fn spawn(
        &self,
        caller: &Caller,
        session: Option<&str>,
        input: SpawnSession,
    ) -> Result<SpawnedSession> {
        input.label.as_deref().map_or(Ok(()), |label| check::name("label", label))?;
        let requester = self.requester(caller, session).await?;
        let timeout = input.run_timeout_seconds.filter(|seconds| *seconds > 0);
        let timeout = timeout.map(|seconds| Duration::from_secs(u64::from(seconds)));
        let dispatch = NewDispatch {
            agent: input.agent_id,
            prompt: input.task,
            model: input.model,
            cwd: input.cwd,
            own_cwd: requester.cwd.clone(),
            title: input.label,
            idempotency_key: input.idempotency_key,
            tool: Some(SourceTool::SessionsSpawn),
            removes_peer: input.cleanup == Some(Cleanup::Delete),
            deadline: timeout.map(|timeout| self.core.now().plus(timeout)),
            is_at_once: true,
            ..Default::default()
        };
        // A quick child may end before this call has its key and its process.
        let start_call = self.agents.begin_start_call();
        let dispatched = self.agents.dispatch(caller, dispatch).await.map_err(of_spawn)?;
        let id = dispatched.task.task_id;
        start_call.note_task(&id);
        let (child_session_key, pid) = self.running(&id).await?;
        let run_id = RunId::from_task(&id);
        Ok(SpawnedSession { status: "accepted", child_session_key, run_id, task_id: id, pid })
    }

    /// The session key and the pid of the agent that has a task, once the agent has taken it: then
    /// its program runs and is logged in.
    async fn running(&self, id: &TaskId) -> Result<(String, u32)> {
        let end = Instant::now() + TAKEN_WITHIN;
        loop {
            let task = self.core.store.tasks().get(id).await?;
            let (running, is_taken) = self.agent_of(id).await?;
            let is_over = task.as_ref().is_some_and(|row| row.task.is_over());
            if is_over && !is_taken {
                let why = task.and_then(|row| row.task.report.error);
                let why = why.unwrap_or_else(|| "it has ended".to_owned());
                return Err(Error::NotNow(format!("the agent could not be started: {why}")));
            }
            let is_late = Instant::now() >= end;
            // The end of a quick agent may be stored before its process is stored. An agent that is
            // slow to begin is returned in its present state, if its process runs.
            match running {
                Some(running) if is_taken || is_late => return Ok(running),
                None if is_late => {
                    let why = "the agent's program does not run yet";
                    return Err(Error::NotNow(why.to_owned()));
                }
                _ => sleep(POLL).await,
            }
        }
    }

    /// The session key and the pid of the agent that has a task, once its process is on record, and
    /// whether it has taken the task.
    async fn agent_of(&self, id: &TaskId) -> Result<(Option<(String, u32)>, bool)> {
        let store = &self.core.store;
        let Some(work) = store.assignments().of_task(id).await? else { return Ok((None, false)) };
        let is_taken = work.taken_at.is_some();
        let Some(agent) = work.target_agent else { return Ok((None, is_taken)) };
        let running = match store.agents().get(&agent).await? {
            Some(row) => Some((row.info.session_key, row.last_pid)).filter(|(_, pid)| *pid != 0),
            // It has ended and was removed.
            None => Some((work.target_session, 0)),
        };
        Ok((running, is_taken))
    }
}
