//! Starting an agent: first its row and its token, then its host.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use svc_client::hosts;
use svc_model::{
    AGENTS_SCOPE, AgentId, AgentInstance, Caller, Ownership, Principal, StreamVisibility, TaskId,
    TokenId,
    agent::{
        AgentBackend, AgentInfo, AgentInput, AgentMcpServer, AgentState, AnswerKey, HostSpec,
        HostStarted,
    },
    is_agent_key, limits, new_secret, stamp, token_hash,
};
use svc_store::{AgentRow, TokenRow, WriteTx};
use svc_sys::process_list;

use super::{
    AgentSettings, Agents,
    allowance::StartOverrides,
    follow::AgentFollower,
    state::{append_team_event, stream_of},
};
use crate::service::{Error, Result, check, core::Core, team};

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

#[derive(Debug, Clone)]
pub(super) struct AgentPlan {
    pub(super) instance: AgentInstance,
    /// The part of the session key after the instance.
    pub(super) name: String,
    pub(super) cwd: String,
    pub(super) project: String,
    pub(super) owner: Principal,
    pub(super) task: Option<String>,
    pub(super) description: Option<String>,
    pub(super) prompt: Option<AgentInput>,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) model: Option<String>,
    pub(super) resume: Option<String>,
    /// The dispatched task that the agent is started for.
    pub(super) task_id: Option<TaskId>,
}

/// An agent whose row is stored, with what only its host gets.
#[derive(Debug)]
pub(super) struct PlannedAgent {
    pub(super) row: AgentRow,
    plan: AgentPlan,
    answer_key: AnswerKey,
    /// The backend of the agent that asked for this one.
    asked_by: Option<AgentBackend>,
}

/// Detects a different request under the same idempotency key. It is a hash, as the request may
/// hold secrets and is not stored.
fn fingerprint_of(input: &NewAgent) -> String {
    hex::encode(Sha256::digest(serde_json::to_vec(input).unwrap_or_default()))
}

pub(super) enum MadeAgent {
    New(Box<PlannedAgent>),
    /// An earlier request with the same key started it.
    Known(Box<AgentRow>),
}

pub(super) struct AgentStart {
    plan: AgentPlan,
    key: Option<String>,
    fingerprint: String,
}

impl AgentStart {
    pub(super) async fn new(
        core: &Core,
        settings: &AgentSettings,
        caller: &Caller,
        mut input: NewAgent,
        resumed: Option<&AgentRow>,
    ) -> Result<Self> {
        let fingerprint = fingerprint_of(&input);
        if let Some(ended) = resumed {
            if input.instance.is_none() && input.backend.is_none() {
                input.instance = Some(ended.info.instance.clone());
            }
            // A client finds a conversation only from the conversation's own folder.
            input.default_cwd = Some(ended.info.worktree.clone());
        }
        let key = input.idempotency_key.clone();
        let mut plan = AgentPlan::new(settings, caller, input)?;
        // A session cannot put an agent into another project.
        let project = core.projects.to_start(caller, Some(&plan.cwd)).await?;
        plan.project = project.unwrap_or_default();
        if let Some(ended) = resumed {
            plan.resume = Some(conversation_of(ended, "resume", plan.instance.backend)?);
        }
        Ok(Self { plan, key, fingerprint })
    }

    /// Makes the agent's rows, unless there is an agent with the same key.
    pub(super) async fn make(
        self,
        tx: &mut WriteTx,
        core: &Core,
        created_by: &str,
    ) -> Result<MadeAgent> {
        let Self { plan, key, fingerprint } = self;
        if let Some(key) = &key
            && let Some((row, known)) = tx.agents().by_key(created_by, key).await?
        {
            // Rows older than migration 36 have no fingerprint.
            if known.is_none_or(|known| known == fingerprint) {
                return Ok(MadeAgent::Known(Box::new(row)));
            }
            return Err(Error::Conflict(format!(
                "idempotency_key {key:?} stands for another agent, {}",
                row.info.id
            )));
        }
        if let Some(reason) = full(tx, &plan.instance).await? {
            return Err(Error::LimitReached(reason));
        }
        let key = key.as_deref().map(|key| (key, fingerprint.as_str()));
        Ok(MadeAgent::New(Box::new(plan.make_row(tx, core, key).await?)))
    }
}

impl AgentPlan {
    fn new(settings: &AgentSettings, caller: &Caller, input: NewAgent) -> Result<Self> {
        let short = [
            ("name", &input.name),
            ("cwd", &input.cwd),
            ("task", &input.task),
            ("description", &input.description),
        ];
        for (field, text) in short {
            check::short(field, text.as_deref())?;
        }
        let is_by_backend = input.instance.is_none() && input.backend.is_some();
        let field = if is_by_backend { "backend" } else { "instance" };
        let instance = settings
            .choose(input.instance.as_deref(), input.backend.as_deref())
            .map_err(|why| Error::invalid(field, why))?;
        let name = agent_name(input.name.as_deref())?;
        if input.args.iter().any(|arg| arg.contains('\0')) {
            return Err(Error::invalid("args", "has a zero byte"));
        }
        if input.env.iter().any(|(name, value)| {
            name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
        }) {
            return Err(Error::invalid("env", "has what is not the name or value of a variable"));
        }
        let request = StartOverrides {
            env: Some(&input.env),
            args: &input.args,
            cwd: input.cwd.as_deref(),
            default_cwd: input.default_cwd.as_deref(),
            own_cwd: None,
        };
        let cwd = request.permitted_folder(settings, caller, &instance)?.path;
        let prompt = match input.prompt {
            Some(prompt) => {
                check::not_blank("prompt", &prompt)?;
                let from = Some(caller.principal().to_string());
                Some(AgentInput { input: prompt, message_id: None, from, idempotency_key: None })
            }
            None => None,
        };
        Ok(Self {
            project: String::new(),
            owner: caller.principal(),
            instance,
            name,
            cwd,
            task: input.task,
            description: input.description,
            prompt,
            args: input.args,
            env: input.env,
            model: None,
            resume: None,
            task_id: None,
        })
    }

    /// Makes the agent's row and stream, and the row of its token, which says what all processes of
    /// the agent may do. The token's text is not kept, as the processes identify themselves on the
    /// socket.
    pub(super) async fn make_row(
        self,
        tx: &mut WriteTx,
        core: &Core,
        key: Option<(&str, &str)>,
    ) -> Result<PlannedAgent> {
        let session_key = free_key(tx, &self).await?;
        let now = tx.now();
        let id = AgentId::new(&core.ids, now);
        let scopes = if self.instance.may_spawn { vec![AGENTS_SCOPE.to_owned()] } else { vec![] };
        let token_row = TokenRow {
            token_id: TokenId::new(&core.ids, now),
            session: session_key.clone(),
            scopes,
            project: (!self.project.is_empty()).then(|| self.project.clone()),
            created_at: now,
            expires_at: now.plus(limits::TOKEN_TTL_MAX),
            last_used_at: None,
            revoked_at: None,
            process: None,
            operator_credential: None,
            cwd: Some(self.cwd.clone()),
        };
        tx.tokens().insert(&token_row, &token_hash(&new_secret())).await?;
        let row = AgentRow {
            info: AgentInfo {
                id,
                project: self.project.clone(),
                state: AgentState::Starting,
                pid: 0,
                worktree: self.cwd.clone(),
                started_at: now,
                task: self.task.clone(),
                description: self.description.clone(),
                backend: self.instance.backend,
                instance: self.instance.name.clone(),
                session_key: session_key.clone(),
                session_id: None,
                exit_code: None,
                signal: None,
                error: None,
            },
            owned: Ownership {
                owner: Some(self.owner.clone()),
                runner: Some(Principal::Session(session_key.into())),
                project: (!self.project.is_empty()).then(|| self.project.clone()),
            },
            machine_id: tx.machine_id().clone(),
            host: None,
            last_pid: 0,
            token_id: Some(token_row.token_id),
            task_id: self.task_id.clone(),
            request_timeout: self.instance.request_timeout,
            ended_at: None,
        };
        let stream = stream_of(&row.info.id);
        let stream = tx.streams().open(&stream, &StreamVisibility::shared(&row.owned)).await?;
        let answer_key = AnswerKey::random();
        tx.agents().insert(&row, stream.id, key, &answer_key).await?;
        let parent = match &self.owner {
            Principal::Session(key) => tx.agents().live(key).await?,
            Principal::Operator => None,
        };
        if let Some(parent) = &parent {
            tx.agents().note_parent(&row.info.id, &parent.info.id).await?;
        }
        team::hosted_peer(tx, core, &row, self.task.as_deref().filter(|_| self.task_id.is_some()))
            .await?;
        append_team_event(tx, "agent.started", &row, json!({})).await?;
        let asked_by = parent.map(|parent| parent.info.backend);
        Ok(PlannedAgent { row, plan: self, answer_key, asked_by })
    }
}

impl PlannedAgent {
    /// Launches the host of an agent whose row is stored, and has the agent followed. If the host
    /// does not start, the agent ends.
    ///
    /// # Errors
    /// Why the host did not start.
    pub(super) async fn launch(self, agents: &Agents) -> Result<(), String> {
        let spec = self.spec(&agents.settings);
        let id = self.row.info.id;
        let follower = AgentFollower::new(agents, &id);
        let program = &agents.settings.program;
        let started = if program.as_os_str().is_empty() {
            Err("this daemon starts no agents".to_owned())
        } else {
            match hosts::launch(program, &spec).await {
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
            agents.live.follow.send(id).ok();
        }
        started.map(|_| ())
    }

    fn spec(&self, settings: &AgentSettings) -> HostSpec {
        let Self { row, plan, answer_key, asked_by } = self;
        let instance = &plan.instance;
        let mut env = instance.env.clone();
        env.extend(plan.env.clone());
        let millis =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        HostSpec {
            agent_id: row.info.id.clone(),
            folder: settings.folder.clone(),
            project: row.info.project.clone(),
            instance: instance.name.clone(),
            session_key: row.info.session_key.clone(),
            backend: instance.backend,
            command: [&instance.command[..], &instance.args, &plan.args].concat(),
            cwd: plan.cwd.clone().into(),
            env,
            task: plan.task.clone(),
            description: plan.description.clone(),
            prompt: plan.prompt.clone(),
            one_shot: plan.task_id.is_some(),
            permission: instance.permission,
            turn_end: instance.turn_end.clone(),
            model: plan.model.clone(),
            resume: plan.resume.clone(),
            system_prompt: match &plan.owner {
                Principal::Session(key) if is_agent_key(key) => {
                    let channel = asked_by.map(AgentBackend::as_str);
                    Some(stamp::system_context(key, channel, &row.info.session_key))
                }
                _ => None,
            },
            mcp: Some(AgentMcpServer::of_agent(&settings.program, &settings.home, &row.info.id)),
            answer_key: answer_key.clone(),
            start_timeout_ms: millis(instance.start_timeout),
            request_timeout_ms: millis(instance.request_timeout),
            idle_timeout_ms: instance.idle_timeout.map_or(0, millis),
            linger_ms: 10_000,
        }
    }
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

/// Why an agent that must start at once should not: the vendor currently refuses another agent of
/// its instance because of a usage limit.
pub(super) async fn limited(tx: &mut WriteTx, instance: &AgentInstance) -> Result<Option<String>> {
    let name = &instance.name;
    Ok(tx.agents().limited_in(name).await?.map(|key| {
        format!("instance {name}: the vendor refuses {key} for usage, so it would refuse another")
    }))
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
async fn free_key(tx: &mut WriteTx, plan: &AgentPlan) -> Result<String> {
    let first = format!("agent:{}:{}", plan.instance.name, plan.name);
    let mut key = first.clone();
    for number in 2.. {
        let is_others = tx.agents().is_key_of_another_project(&key, &plan.project).await?;
        if (!is_others || key == first)
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
        if plan.name != DEFAULT_NAME {
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
