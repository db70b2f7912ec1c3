//! Starting an agent: first its row and its token, then its host.

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use svc_client::hosts;
use svc_model::{
    AGENTS_SCOPE, AgentId, AgentInstance, Caller, Ownership, Principal, StreamVisibility, TaskId,
    agent::{
        AgentBackend, AgentInfo, AgentInput, AgentMcpServer, AgentState, AnswerKey, HostSpec,
        HostStarted,
    },
    is_agent_key, limits, new_secret, stamp, token_hash,
};
use svc_store::{AgentRow, TokenRow, WriteTx, job};
use svc_sys::process_list;

use super::{
    Agents,
    allowance::{StartOverrides, check_children, check_depth},
    follow::AgentFollower,
    state::{AgentView, append_team_event, may_run, stream_of, unknown},
};
use crate::boxed;
use crate::service::{Error, Result, access::new_token_row, check, core::Core, team};

/// Request to start an agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct NewAgent {
    /// The configured way to run it.
    pub instance: Option<String>,
    /// Its kind, in place of an instance: the only instance of that backend.
    pub backend: Option<String>,
    /// Its name: with the instance it makes the session key. By default `main`.
    pub name: Option<String>,
    /// Where it works: an absolute folder.
    pub cwd: Option<String>,
    /// Where it works if neither `cwd` nor its instance says so.
    pub default_cwd: Option<String>,
    /// What it is given to do.
    pub task: Option<String>,
    /// What people say of it.
    pub description: Option<String>,
    /// Its first input.
    pub prompt: Option<String>,
    /// Arguments after those of the instance.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables beside those of the instance.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// An ended conversation to go on with: an agent's id or its session key. The new agent has its
    /// instance and its folder, unless others are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// A repeat with the same key is answered with the agent first started.
    pub idempotency_key: Option<String>,
}

#[derive(Debug)]
pub struct StartedAgent {
    pub agent: AgentView,
    /// False if an earlier request with the same key started it.
    pub is_new: bool,
}

impl Agents {
    /// Starts an agent. Returns when its program runs.
    ///
    /// # Errors
    /// [`Error::NotNow`] with the reason if the program does not start.
    #[boxed]
    pub async fn start_agent(&self, caller: &Caller, input: NewAgent) -> Result<StartedAgent> {
        may_run(caller)?;
        check::key("idempotency_key", input.idempotency_key.as_deref())?;
        check::key("resume", input.resume.as_deref())?;
        // Detects a different request under the same key. It is a hash, as the request may hold
        // secrets and is not stored.
        let fingerprint =
            hex::encode(Sha256::digest(serde_json::to_vec(&input).unwrap_or_default()));
        let key = input.idempotency_key.clone();
        let plan = self.planned(caller, input).await?;
        let (core, created_by) = (self.core.clone(), caller.principal().to_string());
        let store = self.core.store.on_behalf_of(caller);
        let caller = caller.clone();
        let made = store.write(job!(|tx| {
            if let Some(key) = &key
                && let Some((row, known)) = tx.agents().by_key(&created_by, key).await?
            {
                // Rows older than migration 36 have no fingerprint.
                if known.is_none_or(|known| known == fingerprint) {
                    return Ok((row, None));
                }
                return Err(Error::Conflict(format!(
                    "idempotency_key {key:?} stands for another agent, {}",
                    row.info.id
                )));
            }
            check_children(tx, &caller).await?;
            if let Some(reason) = full(tx, &plan.instance).await? {
                return Err(Error::LimitReached(reason));
            }
            let key = key.as_deref().map(|key| (key, fingerprint.as_str()));
            let (row, spec) = plan.make_row(tx, &core, key).await?;
            Ok((row, Some(spec)))
        }));
        let made: Result<(AgentRow, Option<HostSpec>)> = made.await;
        let (row, spec) = made?;
        let Some(spec) = spec else {
            return Ok(StartedAgent { agent: self.view(row), is_new: false });
        };
        // The start goes on if the caller goes away.
        let agents = self.clone();
        let launched = tokio::spawn(async move { launch(&agents, &spec).await });
        launched
            .await
            .unwrap_or_else(|_| Err("the start was cut short".to_owned()))
            .map_err(|reason| Error::NotNow(format!("the agent could not be started: {reason}")))?;
        let id = row.info.id;
        let row = self.core.store.agents().get(&id).await?.ok_or_else(|| unknown(id.as_str()))?;
        Ok(StartedAgent { agent: self.view(row), is_new: true })
    }

    /// The agent that a request asks for, if the caller may start it.
    async fn planned(&self, caller: &Caller, input: NewAgent) -> Result<AgentPlan> {
        let settings = &*self.settings;
        let short = [
            ("name", &input.name),
            ("cwd", &input.cwd),
            ("task", &input.task),
            ("description", &input.description),
        ];
        for (field, text) in short {
            check::short(field, text.as_deref())?;
        }
        let ended = match &input.resume {
            Some(named) => Some(self.ended_agent(caller, "resume", named).await?),
            None => None,
        };
        let of_ended = ended.as_ref().map(|ended| ended.info.instance.as_str());
        let named = input.instance.as_deref().or(of_ended.filter(|_| input.backend.is_none()));
        let instance = settings.choose(named, input.backend.as_deref())?;
        check_depth(&self.core, caller).await?;
        let name = agent_name(input.name.as_deref())?;
        if input.args.iter().any(|arg| arg.contains('\0')) {
            return Err(Error::invalid("args", "has a zero byte"));
        }
        if input.env.iter().any(|(name, value)| {
            name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
        }) {
            return Err(Error::invalid("env", "has what is not the name or value of a variable"));
        }
        // A client finds a conversation only from the conversation's own folder.
        let of_ended = ended.as_ref().map(|ended| ended.info.worktree.as_str());
        let request = StartOverrides {
            env: Some(&input.env),
            args: &input.args,
            cwd: input.cwd.as_deref(),
            default_cwd: of_ended.or(input.default_cwd.as_deref()),
            own_cwd: None,
        };
        let (cwd, _) = request.permitted_folder(settings, caller, &instance)?;
        let from = Some(caller.principal().to_string());
        let prompt = match input.prompt {
            Some(prompt) => {
                check::not_blank("prompt", &prompt)?;
                Some(AgentInput { input: prompt, message_id: None, from, idempotency_key: None })
            }
            None => None,
        };
        // A session cannot put an agent into another project.
        let project = self.core.projects.to_start(caller, Some(&cwd)).await?.unwrap_or_default();
        let resume = match &ended {
            Some(ended) => Some(conversation_of(ended, "resume", instance.backend)?),
            None => None,
        };
        let mut plan = AgentPlan::new(self, instance, (&name, cwd, project), caller.principal());
        plan.spec.command.extend(input.args);
        plan.spec.env.extend(input.env);
        Ok(AgentPlan {
            spec: HostSpec {
                task: input.task,
                description: input.description,
                prompt,
                resume,
                ..plan.spec
            },
            ..plan
        })
    }
}

/// An agent whose row is not stored yet.
#[derive(Debug)]
pub(super) struct AgentPlan {
    pub(super) instance: AgentInstance,
    pub(super) owner: Principal,
    /// The dispatched task that the agent is started for.
    pub(super) task_id: Option<TaskId>,
    /// What its host is started with.
    pub(super) spec: HostSpec,
}

impl AgentPlan {
    /// An agent of this name, in this folder and project.
    pub(super) fn new(
        agents: &Agents,
        instance: AgentInstance,
        (name, cwd, project): (&str, String, String),
        owner: Principal,
    ) -> Self {
        let (core, settings) = (&agents.core, &agents.settings);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let agent_id = AgentId::new(&core.ids, core.now());
        let spec = HostSpec {
            mcp: Some(AgentMcpServer::of_agent(&settings.program, &settings.home, &agent_id)),
            agent_id,
            folder: settings.folder.clone(),
            project,
            instance: instance.name.clone(),
            session_key: format!("agent:{}:{name}", instance.name),
            backend: instance.backend,
            command: [&instance.command[..], &instance.args].concat(),
            cwd: cwd.into(),
            env: instance.env.clone(),
            task: None,
            description: None,
            prompt: None,
            one_shot: false,
            permission: instance.permission,
            turn_end: instance.turn_end.clone(),
            model: None,
            resume: None,
            system_prompt: None,
            answer_key: AnswerKey::random(),
            start_timeout_ms: millis(instance.start_timeout),
            request_timeout_ms: millis(instance.request_timeout),
            idle_timeout_ms: instance.idle_timeout.map_or(0, millis),
            linger_ms: 10_000,
        };
        Self { instance, owner, task_id: None, spec }
    }

    /// Makes the agent's row and stream, and the row of its token, which says what all processes of
    /// the agent may do. The token's text is not kept, as the processes identify themselves on the
    /// socket. Returns the row, and what the host is started with.
    pub(super) async fn make_row(
        self,
        tx: &mut WriteTx,
        core: &Core,
        key: Option<(&str, &str)>,
    ) -> Result<(AgentRow, HostSpec)> {
        let Self { instance, owner, task_id, mut spec } = self;
        spec.session_key = free_key(tx, &spec).await?;
        let now = tx.now();
        let project = Some(spec.project.clone()).filter(|project| !project.is_empty());
        let (session_key, cwd) =
            (spec.session_key.clone(), spec.cwd.to_string_lossy().into_owned());
        let scopes = if instance.may_spawn { vec![AGENTS_SCOPE.to_owned()] } else { vec![] };
        let token_row = TokenRow {
            scopes,
            project: project.clone(),
            cwd: Some(cwd.clone()),
            ..new_token_row(&core.ids, session_key.clone(), now, limits::TOKEN_TTL_MAX)
        };
        tx.tokens().insert(&token_row, &token_hash(&new_secret())).await?;
        let row = AgentRow {
            info: AgentInfo {
                id: spec.agent_id.clone(),
                project: spec.project.clone(),
                state: AgentState::Starting,
                pid: 0,
                worktree: cwd,
                started_at: now,
                task: spec.task.clone(),
                description: spec.description.clone(),
                backend: spec.backend,
                instance: instance.name,
                session_key: session_key.clone(),
                session_id: None,
                exit_code: None,
                signal: None,
                error: None,
            },
            owned: Ownership {
                owner: Some(owner.clone()),
                runner: Some(Principal::Session(session_key.into())),
                project,
            },
            machine_id: tx.machine_id().clone(),
            host: None,
            last_pid: 0,
            token_id: Some(token_row.token_id),
            task_id,
            request_timeout: instance.request_timeout,
            ended_at: None,
        };
        let stream = stream_of(&row.info.id);
        let stream = tx.streams().open(&stream, &StreamVisibility::shared(&row.owned)).await?;
        tx.agents().insert(&row, stream.id, key, &spec.answer_key).await?;
        let parent = match &owner {
            Principal::Session(key) => tx.agents().live(key).await?,
            Principal::Operator => None,
        };
        if let Some(parent) = &parent {
            tx.agents().note_parent(&row.info.id, &parent.info.id).await?;
        }
        if let Principal::Session(key) = &owner
            && is_agent_key(key)
        {
            let channel = parent.map(|parent| parent.info.backend.as_str());
            let context = stamp::system_context(key, channel, &row.info.session_key);
            spec.system_prompt = Some(context);
        }
        let title = row.info.task.as_deref().filter(|_| row.task_id.is_some());
        team::hosted_peer(tx, core, &row, title).await?;
        append_team_event(tx, "agent.started", &row, json!({})).await?;
        Ok((row, spec))
    }
}

/// Launches the host of an agent whose row is stored, and has the agent followed. If the host does
/// not start, the agent ends.
///
/// # Errors
/// Why the host did not start.
pub(super) async fn launch(agents: &Agents, spec: &HostSpec) -> Result<(), String> {
    let id = &spec.agent_id;
    let follower = AgentFollower::new(agents, id);
    let program = &agents.settings.program;
    let started = if program.as_os_str().is_empty() {
        Err("this daemon starts no agents".to_owned())
    } else {
        match hosts::launch(program, spec).await {
            Ok(HostStarted::Running { host_pid, host_started, pid, .. }) => {
                Ok((process_list::identity(host_pid, host_started), pid))
            }
            Ok(HostStarted::Failed { error }) => Err(error),
            Err(error) => Err(error.to_string()),
        }
    };
    let recorded = match &started {
        Ok((host, pid)) => follower.note_host(host.clone(), *pid).await,
        // A host that failed before its agent ran has also left its reason in the spool.
        Err(reason) => follower.end_without_host(reason).await,
    };
    if let Err(error) = recorded {
        tracing::error!(agent = %id, %error, "cannot store the result of a start");
    }
    if started.is_ok() {
        // A daemon that is shutting down follows no agent; the next daemon follows this one.
        agents.live.follow.send(id.clone()).ok();
    }
    started.map(|_| ())
}

/// Why no further agent of this instance may start now; `None` if one may.
pub(super) async fn full(tx: &mut WriteTx, instance: &AgentInstance) -> Result<Option<String>> {
    let name = &instance.name;
    if let Some(most) = instance.max_concurrent {
        let live = tx.agents().count_live_in(name).await?;
        if live >= u64::from(most) {
            return Ok(Some(format!("max_concurrent: instance {name} has its {most} live agents")));
        }
    }
    if let Some(rate) = instance.rate {
        let now = tx.now();
        let (starts, _) = tx.agents().starts_in(name, now.minus(rate.window)).await?;
        if starts >= u64::from(rate.starts) {
            let window = rate.window.as_secs();
            return Ok(Some(format!(
                "rate: instance {name} may be started {} times within {window} s",
                rate.starts
            )));
        }
    }
    Ok(None)
}

/// The vendor's id of an ended agent's conversation, which an agent of `backend` is to continue.
pub(super) fn conversation_of(
    ended: &AgentRow,
    field: &'static str,
    backend: AgentBackend,
) -> Result<String> {
    if ended.info.backend != backend {
        return Err(Error::invalid(field, format!("is one of backend {}", ended.info.backend)));
    }
    let vendor = ended.info.session_id.clone();
    vendor.ok_or_else(|| Error::invalid(field, "has no conversation on record"))
}

/// The session key of a new agent. Messages, records and tasks belong to the key, so a later agent
/// with the same key has those of an earlier one. Within a project that is intended. If the key is
/// of another project, the default name gets a number, and any other name is a conflict.
async fn free_key(tx: &mut WriteTx, spec: &HostSpec) -> Result<String> {
    let first = &spec.session_key;
    let mut key = first.clone();
    for number in 2.. {
        let is_others = tx.agents().is_key_of_another_project(&key, &spec.project).await?;
        if (!is_others || key == *first)
            && let Some(live) = tx.agents().live(&key).await?
        {
            return Err(Error::Conflict(format!(
                "{key} is live: agent {}; choose another name, or stop it first",
                live.info.id
            )));
        }
        if !is_others {
            break;
        }
        if *first != format!("agent:{}:{DEFAULT_NAME}", spec.instance) {
            return Err(Error::Conflict(format!(
                "{key} is the key of an agent of another project; choose another name"
            )));
        }
        key = format!("{first}-{number}");
    }
    Ok(key)
}

const DEFAULT_NAME: &str = "main";

fn agent_name(named: Option<&str>) -> Result<String> {
    let name = named.unwrap_or(DEFAULT_NAME).to_ascii_lowercase();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(1..=64).contains(&name.len()) || !name.bytes().all(fits) {
        let rule = "must have from 1 to 64 letters, digits, `-`, `_` and `.`";
        return Err(Error::invalid("name", rule));
    }
    check::name("name", &name)?;
    Ok(name)
}
