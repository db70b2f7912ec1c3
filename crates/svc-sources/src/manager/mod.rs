//! All servers: the shared state, and the accessors that every part of the manager uses.
//!
//! `plans` reads the files, starts and ends servers accordingly, and makes tools that call them;
//! `overview` shows all to people and logs in; `run` is the start, the background work, and the
//! end.

mod overview;
mod plans;
mod run;

pub use overview::FolderSources;
pub use run::SourceManagerParts;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, RwLock, Weak},
    time::SystemTime,
};

use svc_core::{
    service::{
        Services,
        sources::{CallEvent, SourceKey, SourceStatus},
    },
    tools::{Catalogue, Tool},
};
use svc_model::{Timestamp, source::Sharing};
use svc_sys::config::{
    Env,
    sources::{PlannedSource, SourceFiles, SourcePlan, SourceStanding, SourceVault},
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    auth::{LoginRun, SourceAuth},
    call::SharedWith,
    core::CoreServer,
    http_clients::HttpClients,
    instance::{Instance, InstanceParts, ResourceChange, StartLists, StateChange},
    lists::{OfferedLists, OpenServer, PinnedLists, SourceChange, changes, still_approved},
    lock,
    metrics::SourceMetrics,
    results::KeptResults,
    spec::SourceSpec,
    stdio::{Containers, StderrLines, StderrQuota},
    suspended::SuspendedCalls,
};

/// All servers. Cheap to clone.
#[derive(Clone)]
pub struct SourceManager(Arc<ManagerState>);

#[derive(Debug, Clone)]
pub(crate) struct ManagerHandle(Weak<ManagerState>);

impl ManagerHandle {
    pub(crate) fn upgrade(&self) -> Option<SourceManager> {
        self.0.upgrade().map(SourceManager)
    }
}

struct ManagerState {
    services: Services,
    files: SourceFiles,
    env: Arc<Env>,
    catalogue: Weak<Catalogue>,
    metrics: SourceMetrics,
    core: CoreServer,
    clients: HttpClients,
    results: KeptResults,
    suspended: SuspendedCalls,
    moved: mpsc::Sender<ResourceChange>,
    changes: OfferChanges,
    state: Mutex<ManagedSources>,
    /// By the folder of the caller. `settle` replaces all of them.
    plans: RwLock<HashMap<String, Arc<FolderPlan>>>,
    starts: Arc<Semaphore>,
    learned: mpsc::UnboundedSender<StartLists>,
    states: mpsc::UnboundedSender<StateChange>,
    said: mpsc::Sender<(Arc<SourceSpec>, String)>,
    events: mpsc::Sender<(SourceKey, CallEvent)>,
    stop: CancellationToken,
    ending: TaskTracker,
}

#[derive(Default)]
struct OfferChanges {
    resources: watch::Sender<u64>,
    prompts: watch::Sender<u64>,
}

type ToolMap = Arc<BTreeMap<String, Arc<Tool>>>;
/// A server, and whom the instance serves.
type InstanceKey = (SourceKey, String);
/// An entry by its file and name, and whether it counts.
type EntryStanding = (String, String, SourceStanding);

fn standing_of(planned: &PlannedSource) -> EntryStanding {
    (planned.from.clone(), planned.name.clone(), planned.standing.clone())
}

#[derive(Default)]
struct ManagedSources {
    /// The servers in the files, for callers without a folder (`""`) and for each folder that has
    /// called.
    named: HashMap<String, NamedServers>,
    /// Since when each entry in the files has its standing.
    standings: HashMap<EntryStanding, Timestamp>,
    /// The states of entries that do not run, as they were announced, by server and file.
    announced: BTreeMap<(SourceKey, String), SourceStatus>,
    /// The servers that are to run.
    wanted: HashMap<SourceKey, Arc<SourceSpec>>,
    lists: HashMap<SourceKey, LearnedLists>,
    /// Definitions that a person has approved.
    pins: HashMap<SourceKey, PinnedLists>,
    stderr: HashMap<SourceKey, Arc<StderrQuota>>,
    instances: HashMap<InstanceKey, Arc<Instance>>,
    /// The daemon ends, so nothing is started any more, whatever changes in the files.
    is_ending: bool,
    tools: HashMap<SourceKey, SourceTools>,
    /// Logins, one for all instances of a server.
    auths: HashMap<SourceKey, Arc<SourceAuth>>,
    /// Logins that wait for a person.
    logins: HashMap<SourceKey, Arc<LoginRun>>,
}

struct LearnedLists {
    fingerprint: String,
    /// The lists that an instance of the server gave last.
    lists: Arc<OfferedLists>,
    /// The lists that callers see.
    shown: Arc<OfferedLists>,
    /// Changes since a person approved the definitions, by kind and name.
    changed: Arc<[String]>,
    /// The lists that were cut when they were fetched last, as warnings.
    cut: Vec<String>,
}

impl LearnedLists {
    fn new(fingerprint: String, lists: OfferedLists) -> Self {
        let lists = Arc::new(lists);
        let shown = Arc::clone(&lists);
        Self { fingerprint, shown, lists, changed: [].into(), cut: Vec::new() }
    }

    /// Shows the approved definitions, if the server's definitions are pinned, and stores how the
    /// server's differ.
    fn compare(&mut self, spec: &SourceSpec, pin: Option<&PinnedLists>) {
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

struct SourceTools {
    tools: ToolMap,
    problems: Vec<String>,
}

struct NamedServers {
    plan: Arc<SourcePlan>,
    /// The stamp of the files when they were read.
    stamp: FileStamp,
}

#[derive(Default)]
struct FolderPlan {
    plan: Arc<SourcePlan>,
    /// The servers in force, by name, with what each offers.
    servers: Vec<OpenServer>,
    tools: ToolMap,
}

impl ManagedSources {
    /// Stores since when the entries in the files have their standing.
    fn note_standings(&mut self, now: Timestamp) {
        let before = std::mem::take(&mut self.standings);
        let planned = self.named.values().flat_map(|named| &named.plan.sources);
        let noted = planned.map(|planned| {
            let standing = standing_of(planned);
            let since = before.get(&standing).copied().unwrap_or(now);
            (standing, since)
        });
        self.standings = noted.collect();
    }

    /// What a server offers, as callers see it.
    fn shown(&self, spec: &SourceSpec) -> Arc<OfferedLists> {
        let lists = self.learned(&spec.key, &spec.fingerprint);
        lists.map(|kept| Arc::clone(&kept.shown)).unwrap_or_default()
    }

    /// The lists of a server that were fetched with this fingerprint of its entry.
    fn learned(&self, key: &SourceKey, fingerprint: &str) -> Option<&LearnedLists> {
        self.lists.get(key).filter(|kept| kept.fingerprint == fingerprint)
    }

    /// The instance that fetches a server's lists and serves everybody.
    fn learner(&self, key: &SourceKey) -> Option<&Arc<Instance>> {
        self.instances.get(&(key.clone(), String::new()))
    }
}

/// Modification times and lengths of files.
type FileStamp = Vec<Option<(SystemTime, u64)>>;

impl fmt::Debug for SourceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceManager").finish_non_exhaustive()
    }
}

impl SourceManager {
    fn state(&self) -> MutexGuard<'_, ManagedSources> {
        lock(&self.0.state)
    }

    fn parts(
        &self,
        spec: &Arc<SourceSpec>,
        shared_with: SharedWith,
        state: &mut ManagedSources,
    ) -> InstanceParts {
        let SharedWith { key: serves, project } = shared_with;
        let is_learner = serves.is_empty();
        let by_project = spec.entry.sharing == Sharing::Project;
        let project = if is_learner { spec.root.clone() } else { project };
        let root = project.clone().filter(|_| is_learner || by_project);
        let has_worked = state.learned(&spec.key, &spec.fingerprint).is_some();
        InstanceParts {
            services: self.0.services.clone(),
            spec: Arc::clone(spec),
            serves,
            root,
            project,
            env: Arc::clone(&self.0.env),
            starts: Arc::clone(&self.0.starts),
            learned: self.0.learned.clone(),
            states: self.0.states.clone(),
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

    pub(crate) fn downgrade(&self) -> ManagerHandle {
        ManagerHandle(Arc::downgrade(&self.0))
    }

    /// The entry of a server that is to run.
    pub(crate) fn spec(&self, key: &SourceKey) -> Option<Arc<SourceSpec>> {
        self.state().learner(key).map(|learner| Arc::clone(&learner.spec))
    }

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

    fn auth(&self, key: &SourceKey, state: &mut ManagedSources) -> Arc<SourceAuth> {
        let make = || {
            let id = format!("{}\n{}", key.name, key.project);
            SourceAuth::new(self.0.services.clone(), self.vault(), self.0.clients.clone(), id)
        };
        Arc::clone(state.auths.entry(key.clone()).or_insert_with(make))
    }

    pub(crate) fn home(&self) -> &Path {
        &self.0.files.home
    }

    pub fn results(&self) -> &KeptResults {
        &self.0.results
    }

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
