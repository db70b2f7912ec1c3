//! The shared state of all servers, and the accessors that every part of the manager uses.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
    time::SystemTime,
};

use svc_core::{
    service::{
        Services,
        sources::{CallEvent, SourceKey},
    },
    tools::{Catalogue, Tool},
};
use svc_model::source::Sharing;
use svc_sys::config::{
    Env,
    sources::{SourceFiles, SourcePlan, SourceVault},
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    auth::{LoginRun, SourceAuth},
    call::Served,
    containers::Containers,
    core::CoreServer,
    http_clients::HttpClients,
    instance::{Instance, InstanceParts, ResourceChange, StartLists},
    lists::{OfferedLists, OpenServer},
    metrics::SourceMetrics,
    pins::{PinnedLists, SourceChange, changes, still_approved},
    results::KeptResults,
    spec::SourceSpec,
    stdio::{StderrLines, StderrQuota},
    suspended::SuspendedCalls,
};

/// All servers. Cheap to clone.
#[derive(Clone)]
pub struct SourceManager(pub(super) Arc<ManagerState>);

/// A weak handle of all servers.
#[derive(Debug, Clone)]
pub(crate) struct ManagerHandle(Weak<ManagerState>);

impl ManagerHandle {
    pub(crate) fn upgrade(&self) -> Option<SourceManager> {
        self.0.upgrade().map(SourceManager)
    }
}

pub(super) struct ManagerState {
    pub(super) services: Services,
    pub(super) files: SourceFiles,
    pub(super) env: Arc<Env>,
    pub(super) catalogue: Weak<Catalogue>,
    pub(super) metrics: SourceMetrics,
    pub(super) core: CoreServer,
    pub(super) clients: HttpClients,
    pub(super) results: KeptResults,
    pub(super) suspended: SuspendedCalls,
    pub(super) moved: mpsc::Sender<ResourceChange>,
    pub(super) changes: OfferChanges,
    pub(super) state: Mutex<ManagedSources>,
    /// By the folders of callers; `settle` replaces all of them.
    pub(super) plans: RwLock<HashMap<String, Arc<FolderPlan>>>,
    pub(super) starts: Arc<Semaphore>,
    pub(super) learned: mpsc::UnboundedSender<StartLists>,
    pub(super) said: mpsc::Sender<(Arc<SourceSpec>, String)>,
    pub(super) events: mpsc::Sender<(SourceKey, CallEvent)>,
    pub(super) stop: CancellationToken,
    pub(super) ending: TaskTracker,
}

/// Counts of the changes of what servers offer.
#[derive(Default)]
pub(super) struct OfferChanges {
    resources: watch::Sender<u64>,
    prompts: watch::Sender<u64>,
}

impl OfferChanges {
    /// The set of servers has changed.
    pub(super) fn count_all(&self) {
        self.resources.send_modify(|count| *count += 1);
        self.prompts.send_modify(|count| *count += 1);
    }

    /// The lists of a server have changed, as callers see them.
    pub(super) fn count(&self, before: Option<&OfferedLists>, after: &OfferedLists) {
        if before.is_none_or(|before| {
            before.resources != after.resources || before.templates != after.templates
        }) {
            self.resources.send_modify(|count| *count += 1);
        }
        if before.is_none_or(|before| before.prompts != after.prompts) {
            self.prompts.send_modify(|count| *count += 1);
        }
    }
}

pub(super) type ToolMap = Arc<BTreeMap<String, Arc<Tool>>>;
/// A server, and whom the instance serves.
pub(super) type InstanceKey = (SourceKey, String);

#[derive(Default)]
pub(super) struct ManagedSources {
    /// The servers in the files, for callers without a folder (`""`) and for each folder that has
    /// called.
    pub(super) named: HashMap<String, NamedServers>,
    /// The servers that are to run.
    pub(super) wanted: HashMap<SourceKey, Arc<SourceSpec>>,
    pub(super) lists: HashMap<SourceKey, LearnedLists>,
    /// Definitions that a person has approved.
    pub(super) pins: HashMap<SourceKey, PinnedLists>,
    /// The quota of each server's error output.
    pub(super) stderr: HashMap<SourceKey, Arc<StderrQuota>>,
    pub(super) instances: HashMap<InstanceKey, Arc<Instance>>,
    /// Tools of each server that is to run.
    pub(super) tools: HashMap<SourceKey, SourceTools>,
    /// Logins, one for all instances of a server.
    pub(super) auths: HashMap<SourceKey, Arc<SourceAuth>>,
    /// Logins that wait for a person.
    pub(super) logins: HashMap<SourceKey, Arc<LoginRun>>,
}

pub(super) struct LearnedLists {
    pub(super) fingerprint: String,
    /// The lists that the server gave last.
    pub(super) lists: Arc<OfferedLists>,
    /// The lists that callers see.
    pub(super) shown: Arc<OfferedLists>,
    /// Changes since a person approved the definitions, by kind and name.
    pub(super) changed: Arc<[String]>,
}

impl LearnedLists {
    pub(super) fn new(fingerprint: String, lists: OfferedLists) -> Self {
        let lists = Arc::new(lists);
        Self { fingerprint, shown: Arc::clone(&lists), lists, changed: [].into() }
    }

    /// Shows the approved definitions, if the server's definitions are pinned, and stores how the
    /// server's differ.
    pub(super) fn compare(&mut self, spec: &SourceSpec, pin: Option<&PinnedLists>) {
        let pin = pin.filter(|pin| pin.basis == spec.pin_basis());
        let waiting = pin.map(|pin| changes(&pin.lists, &self.lists)).unwrap_or_default();
        self.shown = match pin {
            Some(pin) if spec.is_pinned() && pin.lists != self.lists => {
                Arc::new(still_approved(&pin.lists, &self.lists))
            }
            _ => Arc::clone(&self.lists),
        };
        self.changed = waiting.iter().map(SourceChange::mark).collect();
    }
}

pub(super) struct SourceTools {
    pub(super) tools: ToolMap,
    pub(super) problems: Vec<String>,
}

/// The servers in the files for callers of one folder.
pub(super) struct NamedServers {
    pub(super) plan: Arc<SourcePlan>,
    /// The stamp of the files when they were read.
    pub(super) stamp: FileStamp,
}

/// The servers of a folder.
#[derive(Default)]
pub(super) struct FolderPlan {
    pub(super) plan: Arc<SourcePlan>,
    /// Those in force, by name, with what each offers.
    pub(super) servers: Vec<OpenServer>,
    pub(super) tools: ToolMap,
}

impl ManagedSources {
    /// What a server offers, as callers see it.
    pub(super) fn shown(&self, spec: &SourceSpec) -> Arc<OfferedLists> {
        let lists = self.lists.get(&spec.key);
        let lists = lists.filter(|kept| kept.fingerprint == spec.fingerprint);
        lists.map(|kept| Arc::clone(&kept.shown)).unwrap_or_default()
    }
}

/// Modification times and lengths of files.
pub(super) type FileStamp = Vec<Option<(SystemTime, u64)>>;

impl fmt::Debug for SourceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceManager").finish_non_exhaustive()
    }
}

impl SourceManager {
    pub(super) fn state(&self) -> MutexGuard<'_, ManagedSources> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_catalogue(&self) {
        if let Some(catalogue) = self.0.catalogue.upgrade() {
            catalogue.foreign_changed();
        }
    }

    pub(super) fn parts(
        &self,
        spec: &Arc<SourceSpec>,
        served: Served,
        state: &mut ManagedSources,
    ) -> InstanceParts {
        let Served { key: serves, project } = served;
        let is_learner = serves.is_empty();
        let by_project = spec.entry.sharing == Sharing::Project;
        let project = if is_learner { spec.root.clone() } else { project };
        let root = project.clone().filter(|_| is_learner || by_project);
        let known = state.lists.get(&spec.key);
        let has_worked = known.is_some_and(|known| known.fingerprint == spec.fingerprint);
        InstanceParts {
            services: self.0.services.clone(),
            spec: Arc::clone(spec),
            serves,
            root,
            project,
            env: Arc::clone(&self.0.env),
            starts: Arc::clone(&self.0.starts),
            learned: is_learner.then(|| self.0.learned.clone()),
            containers: Containers::new(&self.0.files.home),
            moved: self.0.moved.clone(),
            said: StderrLines {
                spec: Arc::clone(spec),
                lines: self.0.said.clone(),
                quota: Arc::clone(state.stderr.entry(spec.key.clone()).or_default()),
            },
            has_worked,
            vault: self.vault(),
            auth: self.auth(&spec.key, state),
            clients: self.0.clients.clone(),
        }
    }

    pub(crate) fn vault(&self) -> SourceVault {
        SourceVault::new(&self.0.files.home)
    }

    pub(crate) fn env(&self) -> &Env {
        &self.0.env
    }

    /// A handle that does not keep the servers alive.
    pub(crate) fn downgrade(&self) -> ManagerHandle {
        ManagerHandle(Arc::downgrade(&self.0))
    }

    /// The entry of a server that is to run.
    pub(crate) fn spec(&self, key: &SourceKey) -> Option<Arc<SourceSpec>> {
        let learner = (key.clone(), String::new());
        self.state().instances.get(&learner).map(|learner| Arc::clone(&learner.spec))
    }

    /// The login of a server.
    pub(crate) fn auth_of(&self, key: &SourceKey) -> Arc<SourceAuth> {
        self.auth(key, &mut self.state())
    }

    /// Restarts all instances of a server; `false` if it is not to run.
    pub(crate) fn reconnect_all(&self, key: &SourceKey) -> bool {
        let instances: Vec<_> = {
            let state = self.state();
            let own = state.instances.iter().filter(|((of, _), _)| of == key);
            own.map(|(_, instance)| Arc::clone(instance)).collect()
        };
        for instance in &instances {
            instance.reconnect();
        }
        !instances.is_empty()
    }

    pub(super) fn auth(&self, key: &SourceKey, state: &mut ManagedSources) -> Arc<SourceAuth> {
        let make = || {
            let id = format!("{}\n{}", key.name, key.project);
            SourceAuth::new(self.0.services.clone(), self.vault(), self.0.clients.clone(), id)
        };
        Arc::clone(state.auths.entry(key.clone()).or_insert_with(make))
    }

    pub(crate) fn home(&self) -> &Path {
        &self.0.files.home
    }

    /// Large results that are kept for callers.
    pub fn results(&self) -> &KeptResults {
        &self.0.results
    }

    /// Calls whose clients are asked between two requests.
    pub(crate) fn suspended(&self) -> &SuspendedCalls {
        &self.0.suspended
    }

    pub(crate) fn services(&self) -> &Services {
        &self.0.services
    }

    /// Counts changes of the resources that servers offer.
    pub fn resource_changes(&self) -> watch::Receiver<u64> {
        self.0.changes.resources.subscribe()
    }

    /// Counts changes of the prompts that servers offer.
    pub fn prompt_changes(&self) -> watch::Receiver<u64> {
        self.0.changes.prompts.subscribe()
    }
}
