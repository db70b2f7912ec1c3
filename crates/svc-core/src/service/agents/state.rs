//! The state of the service, and who may use it.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use svc_client::hosts::{HostClient, HostError, socket_path};
use svc_model::{
    AGENTS_SCOPE, AccessLevel, AgentId, AgentInstance, Caller, InstanceView, agent::AgentBackend,
};
use svc_store::AgentRow;
use svc_sys::config::{AgentsConfig, Env, ResolvedInstance};
use tokio::sync::mpsc;

use super::presence::HostReach;
use crate::service::{Error, access::Access, core::Core, prompts::Prompts};

#[derive(Debug, Clone)]
pub struct Agents {
    pub(super) core: Core,
    pub(super) access: Access,
    pub(super) prompts: Prompts,
    pub(super) settings: Arc<AgentSettings>,
    pub(super) live: Arc<LiveAgents>,
    pub(super) reach: HostReach,
}

#[derive(Debug, Clone, Default)]
pub struct AgentSettings {
    pub config: AgentsConfig,
    /// The daemon's own environment.
    pub env: Env,
    /// Folder of the hosts' sockets and spools.
    pub folder: PathBuf,
    /// The program whose `agent host` command is a host. If empty, no agent can be started.
    pub program: PathBuf,
    /// The data folder, through which the agents' processes find the daemon.
    pub home: PathBuf,
}

/// What this process knows of agents beyond their rows.
#[derive(Debug)]
pub(super) struct LiveAgents {
    /// Sends agents to `run`, to be followed.
    pub(super) follow: mpsc::UnboundedSender<AgentId>,
    /// The receiver, until `run` takes it.
    pub(super) to_follow: Mutex<Option<mpsc::UnboundedReceiver<AgentId>>>,
    /// Agents that have work, as far as this process knows.
    dispatching: Mutex<HashSet<AgentId>>,
    /// Held from the choice of the least busy instance until its work is stored.
    pub(super) choosing: tokio::sync::Mutex<()>,
}

impl Agents {
    pub(in crate::service) fn new(core: Core, access: Access, prompts: Prompts) -> Self {
        let (follow, to_follow) = mpsc::unbounded_channel();
        let live = LiveAgents {
            follow,
            to_follow: Mutex::new(Some(to_follow)),
            dispatching: Mutex::default(),
            choosing: tokio::sync::Mutex::default(),
        };
        let reach = HostReach::new(core.clone());
        Self { core, access, prompts, settings: Arc::default(), live: Arc::new(live), reach }
    }

    pub(in crate::service) fn configure(&mut self, settings: AgentSettings) {
        self.settings = Arc::new(settings);
    }

    /// All instances as they are now, by name.
    pub async fn instances(&self, callable_only: bool) -> Result<Vec<InstanceView>, Error> {
        let counts = self.core.store.agents().live_counts().await?;
        let views = self.settings.resolved().into_iter().map(|resolved| {
            let mut view = resolved.view;
            let live = counts.iter().find(|(name, _)| *name == view.instance);
            view.live = live.map_or(0, |(_, count)| *count);
            view
        });
        Ok(views.filter(|view| view.callable || !callable_only).collect())
    }

    pub(super) fn host(&self, id: &AgentId) -> HostClient {
        HostClient::new(id.clone(), socket_path(&self.settings.folder, id))
    }

    /// Passes on the result of a request to a host. A failure shows in the agent's status at once.
    pub(super) async fn noting_failure<T>(
        &self,
        id: &AgentId,
        answer: Result<T, HostError>,
    ) -> Result<T, HostError> {
        if let Err(HostError::Wedged | HostError::Absent | HostError::Broken(_)) = &answer {
            self.reach.note_failure(id).await;
        }
        answer
    }
}

impl AgentSettings {
    pub(super) fn resolved(&self) -> Vec<ResolvedInstance> {
        self.config.instances(&self.env)
    }

    /// The instance of this name, or why it cannot be started.
    pub(super) fn callable(&self, name: &str) -> Result<AgentInstance, String> {
        let resolved = self.resolved().into_iter().find(|it| it.view.instance == name);
        match resolved {
            Some(ResolvedInstance { instance: Some(instance), .. }) => Ok(instance),
            Some(ResolvedInstance { view, .. }) => {
                let reason = view.reason.unwrap_or_default();
                Err(format!("instance {name} cannot be started: {reason}"))
            }
            None => Err(format!("there is no instance {name}")),
        }
    }

    /// The named instance, the only one of a backend, or the default.
    pub(super) fn choose(
        &self,
        instance: Option<&str>,
        backend: Option<&str>,
    ) -> Result<AgentInstance, String> {
        let all = self.resolved();
        let names =
            || all.iter().map(|it| it.view.instance.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(name) = instance {
            if !all.iter().any(|it| it.view.instance == name) {
                return Err(format!("there is no instance {name:?}; there are: {}", names()));
            }
            let chosen = self.callable(name)?;
            return match backend {
                Some(backend) if backend != chosen.backend.as_str() => {
                    Err(format!("instance {name} has backend {}", chosen.backend))
                }
                _ => Ok(chosen),
            };
        }
        let name = if let Some(backend) = backend {
            if AgentBackend::parse(backend).is_none() {
                return Err(format!(
                    "{backend:?} is not claude, codex, gemini, opencode, acp or exec"
                ));
            }
            let of_backend: Vec<_> = all.iter().filter(|it| it.view.backend == backend).collect();
            match of_backend[..] {
                [one] => one.view.instance.clone(),
                [] => return Err(format!("no instance has backend {backend}")),
                _ => {
                    return Err(format!(
                        "several instances have backend {backend}: name one of {}",
                        of_backend
                            .iter()
                            .map(|it| it.view.instance.as_str())
                            .collect::<Vec<_>>()
                            .join(", ")
                    ));
                }
            }
        } else {
            let callable: Vec<_> = all.iter().filter(|it| it.view.callable).collect();
            match (&self.config.default_agent, &callable[..]) {
                (Some(name), _) => name.clone(),
                (None, [one]) => one.view.instance.clone(),
                (None, _) => return Err(format!("name one of: {}", names())),
            }
        };
        self.callable(&name)
    }
}

impl LiveAgents {
    pub(super) fn dispatching(&self) -> MutexGuard<'_, HashSet<AgentId>> {
        self.dispatching.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starting, steering and stopping agents need the scope [`AGENTS_SCOPE`].
pub(super) fn may_run(caller: &Caller) -> Result<(), Error> {
    has_scope(caller, AGENTS_SCOPE)
}

/// Sending to, interrupting and stopping an agent need that scope and the agent's project. Read
/// access to another project's agent is not enough.
pub(super) fn may_steer(caller: &Caller, row: &AgentRow) -> Result<(), Error> {
    may_run(caller)?;
    if caller.is_of_project(&row.owned) || caller.access_to(&row.owned) == AccessLevel::Write {
        return Ok(());
    }
    Err(Error::Forbidden(format!("agent {} is of another project", row.info.id)))
}

pub(super) fn has_scope(caller: &Caller, scope: &str) -> Result<(), Error> {
    if caller.has_scope(scope) {
        return Ok(());
    }
    Err(Error::Forbidden(format!("this needs the scope `{scope}`: {}", caller.scope_advice(scope))))
}
