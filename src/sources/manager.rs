//! All servers: which there are for whom, their instances, and their tools.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    auth::{LoginRun, SourceAuth},
    call::{CallMeter, CallOutcome, CalledTool, call_tool, serves},
    containers::Containers,
    core::CoreServer,
    http_clients::HttpClients,
    instance::{Instance, InstanceParts, Lesson, ResourceMove, stderr_event},
    lists::{OfferedLists, OpenServer},
    metrics::SourceMetrics,
    results::{KeptResults, remove_old},
    spec::SourceSpec,
    view::{OfferedTools, tools_of},
};
use crate::{
    config::{
        Env,
        sources::{SourceChoices, SourceFiles, SourcePlan, SourceStanding, SourceVault},
    },
    domain::{
        Caller, Timestamp,
        source::{SourceInstance, SourceState, SourceView},
    },
    runner::end_leftovers,
    service::{
        Services,
        sources::{CallEvent, SourceKey, SourceLists, SourceStatus},
    },
    telemetry,
    tools::{Call, Catalogue, ErrorType, Failure, ForeignTools, Output, Tool, ToolError},
};

/// How many servers start at once.
const PARALLEL_STARTS: usize = 8;
/// After so long a silence the instance of a session ends.
const SESSION_SILENCE: Duration = Duration::from_mins(10);
/// Events of calls that wait to be written.
const EVENTS: usize = 4096;
/// Most events of one write.
const EVENTS_AT_ONCE: usize = 256;

/// What the servers are made of.
#[derive(Debug)]
pub struct SourceManagerParts {
    /// Where lists, states and processes are kept.
    pub services: Services,
    /// Where the servers are named.
    pub files: SourceFiles,
    /// The daemon's environment.
    pub env: Env,
    /// Where their tools are to be found.
    pub catalogue: Weak<Catalogue>,
    /// The counters.
    pub metrics: SourceMetrics,
    /// Bytes above which a result is kept as a resource.
    pub max_result_bytes: usize,
    /// Files and folders of the daemon itself, closed to the file tools of `core`.
    pub private: Vec<PathBuf>,
}

/// All servers. Cheap to clone.
#[derive(Clone)]
pub struct SourceManager(Arc<ManagerState>);

/// All servers, as long as somebody keeps them.
#[derive(Clone)]
pub(super) struct ManagerHandle(Weak<ManagerState>);

impl ManagerHandle {
    pub(super) fn upgrade(&self) -> Option<SourceManager> {
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
    moved: mpsc::Sender<ResourceMove>,
    resources_changed: watch::Sender<u64>,
    prompts_changed: watch::Sender<u64>,
    state: Mutex<Sources>,
    starts: Arc<Semaphore>,
    learned: mpsc::UnboundedSender<Lesson>,
    said: mpsc::Sender<(Arc<SourceSpec>, String)>,
    events: mpsc::Sender<(SourceKey, CallEvent)>,
    stop: CancellationToken,
    ending: TaskTracker,
}

type ToolMap = Arc<BTreeMap<String, Arc<Tool>>>;
/// A server, and whom the instance serves.
type InstanceKey = (SourceKey, String);

#[derive(Default)]
struct Sources {
    /// Plans of callers without a project (`""`) and of each project that has called.
    plans: HashMap<String, ProjectPlan>,
    lists: HashMap<SourceKey, LearnedLists>,
    instances: HashMap<InstanceKey, Arc<Instance>>,
    /// Tools of each server that is to run.
    tools: HashMap<SourceKey, SourceTools>,
    /// Logins, one for all instances of a server.
    auths: HashMap<SourceKey, Arc<SourceAuth>>,
    /// Logins that wait for a person.
    logins: HashMap<SourceKey, Arc<LoginRun>>,
}

#[derive(PartialEq, Eq)]
struct LearnedLists {
    fingerprint: String,
    lists: Arc<OfferedLists>,
}

struct SourceTools {
    tools: ToolMap,
    problems: Vec<String>,
}

struct ProjectPlan {
    plan: SourcePlan,
    /// Of the project's own file and of the person's decisions: when they were written.
    stamp: FileStamp,
    view: ToolMap,
}

/// When files were last written, and how long they are.
type FileStamp = Vec<Option<(SystemTime, u64)>>;

impl fmt::Debug for SourceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceManager").finish_non_exhaustive()
    }
}

impl SourceManager {
    /// Reads what there is, and starts it. Nothing is waited for.
    pub async fn start(parts: SourceManagerParts) -> anyhow::Result<Self> {
        let SourceManagerParts {
            services,
            files,
            env,
            catalogue,
            metrics,
            max_result_bytes,
            private,
        } = parts;
        let lists = services.sources.lists().await?;
        let leftovers = services.sources.processes().await?;
        let clients = HttpClients::new()?;
        let (learned, lessons) = mpsc::unbounded_channel();
        let (said, lines) = mpsc::channel(EVENTS);
        let (events, calls) = mpsc::channel(EVENTS);
        let (moved, moves) = mpsc::channel(EVENTS);
        let manager = Self(Arc::new(ManagerState {
            core: CoreServer::new(services.clone(), private),
            results: KeptResults::new(&files.home, max_result_bytes),
            moved,
            resources_changed: watch::Sender::new(0),
            prompts_changed: watch::Sender::new(0),
            services,
            files,
            env: Arc::new(env),
            catalogue,
            metrics,
            clients,
            state: Mutex::default(),
            starts: Arc::new(Semaphore::new(PARALLEL_STARTS)),
            learned,
            said,
            events,
            stop: CancellationToken::new(),
            ending: TaskTracker::new(),
        }));
        for (key, kept) in lists {
            let lists =
                LearnedLists { lists: Arc::new(lists_of(&kept)), fingerprint: kept.fingerprint };
            manager.state().lists.insert(key, lists);
        }
        for process in leftovers {
            let this = manager.clone();
            manager.0.ending.spawn(async move {
                end_leftovers(&process.mark).await;
                Containers::new(this.home()).end(&process.mark).await;
                if let Err(error) = this.0.services.sources.forget_process(process.mark).await {
                    tracing::warn!(error = telemetry::chain(&error), "a process stays on record");
                }
            });
        }
        let background = [
            tokio::spawn(manager.clone().learn(lessons)),
            tokio::spawn(manager.clone().write_lines(lines)),
            tokio::spawn(manager.clone().write_calls(calls)),
            tokio::spawn(manager.clone().write_moves(moves)),
            tokio::spawn(manager.clone().sweep_files()),
            tokio::spawn(manager.clone().end_silent()),
        ];
        let stop = manager.0.stop.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            background.iter().for_each(tokio::task::JoinHandle::abort);
        });
        manager.reload();
        Ok(manager)
    }

    /// Ends all servers, and waits until nothing of them is left.
    pub async fn finish(&self) {
        let instances: Vec<_> =
            self.state().instances.drain().map(|(_, instance)| instance).collect();
        futures_util::future::join_all(instances.iter().map(|instance| instance.end())).await;
        self.0.core.finish().await;
        self.0.ending.close();
        self.0.ending.wait().await;
        self.0.stop.cancel();
    }

    fn state(&self) -> MutexGuard<'_, Sources> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all files again: what is new starts, what is gone or has changed ends.
    pub fn reload(&self) {
        let projects: Vec<String> = self.state().plans.keys().cloned().collect();
        for project in projects.into_iter().chain([String::new()]).collect::<HashSet<_>>() {
            self.load(&project);
        }
    }

    /// Reads the files for callers of one project (`""`: of none).
    fn load(&self, project: &str) {
        let stamp = self.stamp(project);
        let plan = self.0.files.plan((!project.is_empty()).then(|| Path::new(project)));
        for problem in &plan.problems {
            tracing::warn!(problem, "servers of a file are missing");
        }
        let mut state = self.state();
        let view = ToolMap::default();
        state.plans.insert(project.to_owned(), ProjectPlan { plan, stamp, view });
        self.settle(&mut state);
        drop(state);
        self.tell_catalogue();
        self.0.resources_changed.send_modify(|count| *count += 1);
        self.0.prompts_changed.send_modify(|count| *count += 1);
    }

    fn stamp(&self, project: &str) -> FileStamp {
        let of = |path: &Path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        };
        let files = &self.0.files;
        let own =
            (!project.is_empty()).then(|| of(&Path::new(project).join(".mcp.json"))).flatten();
        let mut stamp = vec![own, of(&SourceChoices::file(&files.home)), of(&files.config_file)];
        stamp.extend(files.imports.iter().map(|file| of(file.path())));
        stamp
    }

    fn tell_catalogue(&self) {
        if let Some(catalogue) = self.0.catalogue.upgrade() {
            catalogue.foreign_changed();
        }
    }

    /// Starts and ends instances as the plans say, and makes the views anew.
    fn settle(&self, state: &mut Sources) {
        let mut wanted: HashMap<SourceKey, Arc<SourceSpec>> = HashMap::new();
        let secrets = self.vault().stamps().unwrap_or_else(|error| {
            tracing::warn!(error = %error, "secrets of servers cannot be read");
            BTreeMap::new()
        });
        for ProjectPlan { plan, .. } in state.plans.values() {
            let in_force = plan.sources.iter().filter(|it| it.standing == SourceStanding::InForce);
            for mut spec in in_force.filter_map(SourceSpec::of) {
                spec.secrets = secrets.get(&spec.key.name).cloned().unwrap_or_default();
                wanted.insert(spec.key.clone(), Arc::new(spec));
            }
        }
        let (kept, gone): (HashMap<_, _>, HashMap<_, _>) =
            std::mem::take(&mut state.instances).into_iter().partition(|((key, _), instance)| {
                wanted.get(key).is_some_and(|spec| **spec == *instance.spec)
            });
        state.instances = kept;
        for instance in gone.into_values() {
            self.0.ending.spawn(async move { instance.end().await });
        }
        for (key, spec) in wanted.iter().filter(|(_, spec)| !spec.is_builtin()) {
            let learner = (key.clone(), String::new());
            if !state.instances.contains_key(&learner) {
                let instance = Instance::keep(self.parts(spec, String::new(), state));
                state.instances.insert(learner, instance);
            }
        }
        let none = OfferedLists::default();
        state.tools = wanted
            .iter()
            .map(|(key, spec)| {
                if spec.is_builtin() {
                    return (key.clone(), self.core_tools(spec));
                }
                let lists =
                    state.lists.get(key).filter(|kept| kept.fingerprint == spec.fingerprint);
                let offered = tools_of(spec, lists.map_or(&none, |kept| &kept.lists));
                (key.clone(), self.tools(spec, offered))
            })
            .collect();
        let Sources { plans, tools, .. } = state;
        for ProjectPlan { plan, view, .. } in plans.values_mut() {
            let mut all = BTreeMap::new();
            let in_force = plan.sources.iter().filter(|it| it.standing == SourceStanding::InForce);
            for spec in in_force.filter_map(SourceSpec::of) {
                let own =
                    tools.get(&spec.key).map(|own| Arc::clone(&own.tools)).unwrap_or_default();
                all.extend(own.iter().map(|(name, tool)| (name.clone(), Arc::clone(tool))));
            }
            *view = Arc::new(all);
        }
    }

    fn parts(&self, spec: &Arc<SourceSpec>, serves: String, state: &mut Sources) -> InstanceParts {
        let is_learner = serves.is_empty();
        let by_project = spec.entry.sharing == crate::domain::source::Sharing::Project;
        let root = if is_learner {
            spec.key.project().map(str::to_owned)
        } else {
            by_project.then(|| serves.clone())
        };
        let known = state.lists.get(&spec.key);
        InstanceParts {
            services: self.0.services.clone(),
            spec: Arc::clone(spec),
            serves,
            root,
            env: Arc::clone(&self.0.env),
            starts: Arc::clone(&self.0.starts),
            learned: is_learner.then(|| self.0.learned.clone()),
            containers: Containers::new(&self.0.files.home),
            moved: self.0.moved.clone(),
            said: self.0.said.clone(),
            has_worked: known.is_some_and(|known| known.fingerprint == spec.fingerprint),
            vault: self.vault(),
            auth: self.auth(&spec.key, state),
            clients: self.0.clients.clone(),
        }
    }

    /// Secrets and logins.
    pub(super) fn vault(&self) -> SourceVault {
        SourceVault::of(&self.0.files.home)
    }

    /// The daemon's environment.
    pub(super) fn env(&self) -> &Env {
        &self.0.env
    }

    /// One that does not keep the servers.
    pub(super) fn downgrade(&self) -> ManagerHandle {
        ManagerHandle(Arc::downgrade(&self.0))
    }

    /// The entry of a server that is to run.
    pub(super) fn spec(&self, key: &SourceKey) -> Option<Arc<SourceSpec>> {
        let learner = (key.clone(), String::new());
        self.state().instances.get(&learner).map(|learner| Arc::clone(&learner.spec))
    }

    /// The login of a server.
    pub(super) fn auth_of(&self, key: &SourceKey) -> Arc<SourceAuth> {
        self.auth(key, &mut self.state())
    }

    /// The login to a server that waits for a person.
    pub(super) fn login_of(&self, key: &SourceKey) -> Option<Arc<LoginRun>> {
        self.state().logins.get(key).cloned()
    }

    /// Ends a login that waits for a person.
    pub(super) fn end_login(&self, key: &SourceKey) {
        self.state().logins.remove(key);
    }

    /// Keeps a login that waits for a person.
    pub(super) fn keep_login(&self, key: SourceKey, login: Arc<LoginRun>) {
        self.state().logins.insert(key, login);
    }

    /// Starts all instances of a server anew; `false` if it is not to run.
    pub(super) fn reconnect_all(&self, key: &SourceKey) -> bool {
        let instances: Vec<_> = {
            let state = self.state();
            let own = state.instances.iter().filter(|((of, _), _)| of == key);
            own.map(|(_, instance)| Arc::clone(instance)).collect()
        };
        instances.iter().for_each(|instance| instance.reconnect());
        !instances.is_empty()
    }

    fn auth(&self, key: &SourceKey, state: &mut Sources) -> Arc<SourceAuth> {
        let make = || {
            let id = format!("{}\n{}", key.name, key.project);
            SourceAuth::new(self.0.services.clone(), self.vault(), self.0.clients.clone(), id)
        };
        Arc::clone(state.auths.entry(key.clone()).or_insert_with(make))
    }

    fn tools(&self, spec: &Arc<SourceSpec>, offered: OfferedTools) -> SourceTools {
        let tools = offered.tools.into_iter().map(|(name, tool)| {
            let bound = self.0.results.bound_of(&tool.declaration.entry);
            let (manager, spec) = (Arc::downgrade(&self.0), Arc::clone(spec));
            let (own_name, traits) = (tool.own_name, tool.traits);
            let run = move |call: Call, arguments| {
                let (manager, spec) = (manager.clone(), Arc::clone(&spec));
                let (own_name, traits) = (Arc::clone(&own_name), Arc::clone(&traits));
                async move {
                    let Some(manager) = manager.upgrade() else {
                        let text = "the daemon is about to end";
                        return Err(ToolError::new(ErrorType::Unavailable, text).into());
                    };
                    let manager = Self(manager);
                    let shown = format!("{}__{own_name}", spec.key.name);
                    let tool = CalledTool { name: &own_name, traits: &traits };
                    let output = manager.call(&spec, tool, &call, &arguments).await?;
                    Ok(manager.0.results.shorten(&call.caller, &shown, bound, output).await)
                }
            };
            (name, Arc::new(Tool::foreign(tool.declaration, run)))
        });
        SourceTools { tools: Arc::new(tools.collect()), problems: offered.problems }
    }

    async fn call(
        &self,
        spec: &Arc<SourceSpec>,
        tool: CalledTool<'_>,
        call: &Call,
        arguments: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Output, Failure> {
        let meter = self.meter(spec, tool.name, call);
        let Some(instance) = self.instance(spec, serves(spec, call)) else {
            meter.end(CallOutcome::Unavailable);
            let text = format!("{} is turned off or gone", spec.key.name);
            return Err(ToolError::new(ErrorType::Unavailable, text).into());
        };
        let (outcome, answer) = call_tool(&instance, tool, call, arguments).await;
        meter.end(outcome);
        answer
    }

    /// Counts a call, and tells of it.
    fn meter(
        &self,
        spec: &Arc<SourceSpec>,
        tool: &str,
        call: &Call,
    ) -> CallMeter<impl FnMut(CallOutcome, Duration) + use<>> {
        let (manager, spec, tool) = (self.clone(), Arc::clone(spec), tool.to_owned());
        let session = call.session.as_deref().or(call.caller.session()).map(str::to_owned);
        CallMeter::new(move |outcome: CallOutcome, took: Duration| {
            manager.0.metrics.count(&spec.key.name, &tool, outcome.as_str(), took);
            let event = CallEvent {
                tool: tool.clone(),
                duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                outcome: outcome.as_str(),
                session: session.clone(),
            };
            // A flood of calls is counted, and need not be told one by one.
            manager.0.events.try_send((spec.key.clone(), event)).ok();
        })
    }

    /// The tools of the built-in server, counted as those of others.
    fn core_tools(&self, spec: &Arc<SourceSpec>) -> SourceTools {
        let tools = self.0.core.tools(&spec.entry, &self.0.env).into_iter().filter_map(|tool| {
            let declaration = tool.foreign_declaration()?.clone();
            let (manager, spec, tool) = (Arc::downgrade(&self.0), Arc::clone(spec), Arc::new(tool));
            let name = tool.name().to_owned();
            let run = move |call: Call, arguments| {
                let (manager, spec, tool) = (manager.clone(), Arc::clone(&spec), Arc::clone(&tool));
                async move {
                    let meter =
                        manager.upgrade().map(|it| Self(it).meter(&spec, tool.name(), &call));
                    let caller = call.caller.clone();
                    let answer = tool.call(call, arguments).await;
                    if let Some(meter) = meter {
                        meter.end(CallOutcome::of(&answer));
                    }
                    let Some(manager) = manager.upgrade() else { return answer };
                    let results = &manager.results;
                    let bound = results.bound_of(&serde_json::Value::Null);
                    Ok(results.shorten(&caller, tool.name(), bound, answer?).await)
                }
            };
            Some((name, Arc::new(Tool::foreign(declaration, run))))
        });
        SourceTools { tools: Arc::new(tools.collect()), problems: Vec::new() }
    }

    /// The data folder.
    pub(super) fn home(&self) -> &Path {
        &self.0.files.home
    }

    /// The servers in force that a caller may use.
    fn open_to(&self, caller: &Caller) -> Vec<SourceSpec> {
        let project = caller.project().unwrap_or_default();
        self.refresh(project);
        let state = self.state();
        let planned = state.plans.get(project).into_iter().flat_map(|plan| &plan.plan.sources);
        let in_force = planned.filter(|it| it.standing == SourceStanding::InForce);
        let is_open = |spec: &SourceSpec| {
            spec.entry.scope.as_deref().is_none_or(|scope| caller.has_scope(scope))
        };
        in_force.filter_map(SourceSpec::of).filter(is_open).collect()
    }

    /// The servers that a caller may use, by name, with what each offers.
    pub(super) fn open_servers(&self, caller: &Caller) -> Vec<OpenServer> {
        let specs = self.open_to(caller);
        let state = self.state();
        let servers = specs.into_iter().filter(|spec| !spec.is_builtin()).map(|spec| {
            let lists = state.lists.get(&spec.key);
            let lists = lists.filter(|kept| kept.fingerprint == spec.fingerprint);
            let lists = lists.map(|kept| Arc::clone(&kept.lists)).unwrap_or_default();
            (Arc::new(spec), lists)
        });
        servers.collect()
    }

    /// The resources of each server that a caller may use.
    pub(super) fn resources(&self, caller: &Caller) -> Vec<(String, Vec<serde_json::Value>)> {
        let servers = self.open_servers(caller).into_iter();
        servers.map(|(spec, lists)| (spec.key.name.clone(), lists.resources.clone())).collect()
    }

    /// Where large results are.
    pub(super) fn results(&self) -> &KeptResults {
        &self.0.results
    }

    /// What is on record of servers.
    pub(super) fn services(&self) -> &Services {
        &self.0.services
    }

    /// Counts changes of the resources that servers offer.
    pub fn resource_changes(&self) -> watch::Receiver<u64> {
        self.0.resources_changed.subscribe()
    }

    /// Counts changes of the prompts that servers offer.
    pub fn prompt_changes(&self) -> watch::Receiver<u64> {
        self.0.prompts_changed.subscribe()
    }

    /// The instance of a server that serves a call; `None` if the caller has no server of that name.
    pub(super) fn instance_of(&self, call: &Call, name: &str) -> Option<Arc<Instance>> {
        let spec = self.open_to(&call.caller).into_iter().find(|spec| spec.key.name == name)?;
        let spec = Arc::new(spec);
        self.instance(&spec, serves(&spec, call))
    }

    /// The instance that serves a project, a session, or everybody. It is started if need be.
    pub(super) fn instance(&self, spec: &Arc<SourceSpec>, serves: String) -> Option<Arc<Instance>> {
        let mut state = self.state();
        let learner = state.instances.get(&(spec.key.clone(), String::new()))?;
        if *learner.spec != **spec {
            return None;
        }
        let key = (spec.key.clone(), serves);
        if let Some(instance) = state.instances.get(&key) {
            return Some(Arc::clone(instance));
        }
        let instance = Instance::keep(self.parts(spec, key.1.clone(), &mut state));
        state.instances.insert(key, Arc::clone(&instance));
        Some(instance)
    }

    async fn learn(self, mut lessons: mpsc::UnboundedReceiver<Lesson>) {
        while let Some(Lesson { spec, lists, done }) = lessons.recv().await {
            let kept = rows_of(&spec.fingerprint, &lists);
            let is_new = {
                let mut state = self.state();
                let learned =
                    LearnedLists { fingerprint: spec.fingerprint.clone(), lists: Arc::new(lists) };
                let before = state.lists.get(&spec.key);
                let is_new = before != Some(&learned);
                let (before, after) = (before.map(|known| &known.lists), &learned.lists);
                let has_new_resources = before.is_none_or(|before| {
                    before.resources != after.resources || before.templates != after.templates
                });
                if has_new_resources {
                    self.0.resources_changed.send_modify(|count| *count += 1);
                }
                if before.is_none_or(|before| before.prompts != after.prompts) {
                    self.0.prompts_changed.send_modify(|count| *count += 1);
                }
                if is_new {
                    state.lists.insert(spec.key.clone(), learned);
                    self.settle(&mut state);
                }
                is_new
            };
            if is_new {
                self.tell_catalogue();
            }
            done.send(()).ok();
            if !is_new {
                continue;
            }
            if let Err(error) = self.0.services.sources.keep_lists(spec.key.clone(), kept).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "a server's lists are not on record");
            }
        }
    }

    async fn write_lines(self, mut lines: mpsc::Receiver<(Arc<SourceSpec>, String)>) {
        let mut some = Vec::new();
        while lines.recv_many(&mut some, EVENTS_AT_ONCE).await > 0 {
            let mut by_key: HashMap<SourceKey, Vec<_>> = HashMap::new();
            for (spec, line) in some.drain(..) {
                by_key.entry(spec.key.clone()).or_default().push(stderr_event(&line));
            }
            for (key, events) in by_key {
                if let Err(error) = self.0.services.sources.tell(key, "stderr", events).await {
                    tracing::warn!(
                        error = telemetry::chain(&error),
                        "what a server said is not told"
                    );
                }
            }
        }
    }

    async fn write_calls(self, mut calls: mpsc::Receiver<(SourceKey, CallEvent)>) {
        let mut some = Vec::new();
        while calls.recv_many(&mut some, EVENTS_AT_ONCE).await > 0 {
            let mut by_key: HashMap<SourceKey, Vec<_>> = HashMap::new();
            for (key, event) in some.drain(..) {
                by_key.entry(key).or_default().push(event);
            }
            for (key, events) in by_key {
                if let Err(error) = self.0.services.sources.tell(key, "call", events).await {
                    tracing::warn!(error = telemetry::chain(&error), "calls are not told");
                }
            }
        }
    }

    async fn write_moves(self, mut moves: mpsc::Receiver<ResourceMove>) {
        while let Some(ResourceMove { stream, uri }) = moves.recv().await {
            if let Err(error) = self.0.services.sources.tell_update(stream, uri).await {
                tracing::warn!(error = telemetry::chain(&error), "a change is not told");
            }
        }
    }

    /// Removes large results and files of resources that are older than a week.
    async fn sweep_files(self) {
        loop {
            let (results, files) = (self.0.results.clone(), self.home().join("files"));
            let now = self.0.services.now().as_millis();
            let now =
                SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now).unwrap_or(0));
            let sweep = tokio::task::spawn_blocking(move || {
                results.sweep(now);
                remove_old(&files, now);
            });
            sweep.await.ok();
            tokio::time::sleep(Duration::from_hours(1)).await;
        }
    }

    /// Ends instances of sessions that nobody has called for long.
    async fn end_silent(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(30)).await;
            let mut state = self.state();
            let by_session = crate::domain::source::Sharing::Session;
            let silent: Vec<InstanceKey> = state
                .instances
                .iter()
                .filter(|((_, serves), instance)| {
                    !serves.is_empty()
                        && instance.spec.entry.sharing == by_session
                        && instance.silent_for() >= SESSION_SILENCE
                })
                .map(|(key, _)| key.clone())
                .collect();
            for key in silent {
                if let Some(instance) = state.instances.remove(&key) {
                    self.0.ending.spawn(async move { instance.end().await });
                }
            }
        }
    }

    /// Looks whether the files of a project have changed since they were read.
    fn refresh(&self, project: &str) {
        let stamp = self.stamp(project);
        let is_fresh = self.state().plans.get(project).is_some_and(|plan| plan.stamp == stamp);
        if !is_fresh {
            self.load(project);
        }
    }

    /// All servers that files name for callers of a project, also those that do not count.
    pub fn views(&self, project: Option<&str>) -> Vec<SourceView> {
        let project = project.unwrap_or_default();
        self.refresh(project);
        let state = self.state();
        let Some(ProjectPlan { plan, .. }) = state.plans.get(project) else { return Vec::new() };
        plan.sources.iter().map(|planned| self.view(&state, planned)).collect()
    }

    fn view(&self, state: &Sources, planned: &crate::config::sources::PlannedSource) -> SourceView {
        let key = SourceKey {
            name: planned.name.clone(),
            project: planned.project.clone().unwrap_or_default(),
        };
        let is_in_force = planned.standing == SourceStanding::InForce;
        let learner = state.instances.get(&(key.clone(), String::new())).filter(|_| is_in_force);
        let now = learner.map(|learner| learner.status());
        let since = now.as_ref().map_or_else(|| self.0.services.now(), |now| now.since);
        let status =
            now.as_ref().map_or_else(|| standing_status(planned), |now| now.status.clone());
        let is_builtin = SourceSpec::of(planned).is_some_and(|spec| spec.is_builtin());
        let status = if is_in_force && is_builtin {
            SourceStatus::of(SourceState::Connected)
        } else {
            status
        };
        let lists = state.lists.get(&key).filter(|kept| kept.fingerprint == planned.fingerprint);
        let lists = lists.filter(|_| is_in_force);
        let own = state.tools.get(&key).filter(|_| is_in_force);
        let mut warnings = planned.warnings.clone();
        warnings.extend(own.into_iter().flat_map(|own| own.problems.iter().cloned()));
        let mut instances: Vec<SourceInstance> = state
            .instances
            .iter()
            .filter(|((of, serves), _)| is_in_force && *of == key && !serves.is_empty())
            .map(|((_, serves), instance)| {
                let status = instance.status();
                SourceInstance { key: serves.clone(), pid: status.pid, state: status.status.state }
            })
            .collect();
        instances.sort_by(|a, b| a.key.cmp(&b.key));
        let entry = planned.entry.as_ref().ok();
        SourceView {
            name: planned.name.clone(),
            project: planned.project.clone(),
            state: status.state,
            reason: status.reason,
            next_action: status.next_action,
            attempt: status.attempt,
            next_at: status.next_at,
            transport: entry.map(|entry| entry.transport_name().to_owned()),
            sharing: entry.map(|entry| entry.sharing),
            tools: own.map_or(0, |own| own.tools.len()),
            resources: lists.map_or(0, |kept| kept.lists.resources.len()),
            prompts: lists.map_or(0, |kept| kept.lists.prompts.len()),
            pid: now.as_ref().and_then(|now| now.pid),
            instances,
            from: planned.from.clone(),
            hidden_by: match &planned.standing {
                SourceStanding::Hidden(by) => Some(by.clone()),
                _ => None,
            },
            warnings,
            since: Timestamp::clone(&since),
        }
    }

    /// The server in force of a name.
    pub fn find(&self, project: Option<&str>, name: &str) -> Option<SourceView> {
        let mut views =
            self.views(project).into_iter().filter(|view| view.name == name).collect::<Vec<_>>();
        let best = views.iter().position(|view| {
            !matches!(view.state, SourceState::Hidden | SourceState::PendingApproval)
        });
        (!views.is_empty()).then(|| views.swap_remove(best.unwrap_or(0)))
    }

    /// Starts all instances of a server anew; `false` if none of that name is to run.
    pub fn reconnect(&self, project: Option<&str>, name: &str) -> bool {
        let Some(view) = self.find(project, name) else { return false };
        let key = SourceKey { name: view.name, project: view.project.unwrap_or_default() };
        self.reconnect_all(&key)
    }

    /// The end of what a server wrote to its error output, of all its instances.
    pub fn log(&self, project: Option<&str>, name: &str) -> Option<String> {
        let view = self.find(project, name)?;
        let key = SourceKey { name: view.name, project: view.project.unwrap_or_default() };
        let state = self.state();
        let mut own: Vec<_> = state.instances.iter().filter(|((of, _), _)| *of == key).collect();
        own.sort_by(|((_, a), _), ((_, b), _)| a.cmp(b));
        let logs = own.into_iter().map(|((_, serves), instance)| {
            let text = instance.log.text();
            if serves.is_empty() || text.is_empty() { text } else { format!("[{serves}]\n{text}") }
        });
        Some(logs.collect())
    }

    /// Turns a server on or off, for good.
    pub fn switch(&self, name: &str, enabled: bool) -> std::io::Result<()> {
        let mut choices = SourceChoices::load(&self.0.files.home)?;
        choices.set_switch(name, enabled);
        choices.save(&self.0.files.home)?;
        self.reload();
        Ok(())
    }
}

fn standing_status(planned: &crate::config::sources::PlannedSource) -> SourceStatus {
    let (state, reason, next_action) = match &planned.standing {
        SourceStanding::InForce => (SourceState::Pending, None, None),
        SourceStanding::Disabled => (
            SourceState::Disabled,
            Some("it is turned off".to_owned()),
            Some(format!("svc mcp enable {}", planned.name)),
        ),
        SourceStanding::PendingApproval => (
            SourceState::PendingApproval,
            Some(format!("{} is new or has changed", planned.from)),
            Some(format!("look at it, then svc mcp approve {}", planned.from)),
        ),
        SourceStanding::Bad => {
            let reason = planned.entry.as_ref().err().map(ToString::to_string);
            (SourceState::Misconfigured, reason, Some(format!("correct it in {}", planned.from)))
        }
        SourceStanding::Hidden(by) => (
            SourceState::Hidden,
            Some(format!("the entry of {by} is used in its place")),
            Some("remove or rename one of the two".to_owned()),
        ),
    };
    SourceStatus { reason, next_action, ..SourceStatus::of(state) }
}

fn lists_of(kept: &SourceLists) -> OfferedLists {
    let list = |text: &str| serde_json::from_str(text).unwrap_or_default();
    OfferedLists {
        tools: list(&kept.tools),
        resources: list(&kept.resources),
        templates: list(&kept.templates),
        prompts: list(&kept.prompts),
    }
}

fn rows_of(fingerprint: &str, lists: &OfferedLists) -> SourceLists {
    let text = |list: &Vec<serde_json::Value>| serde_json::Value::from(list.clone()).to_string();
    SourceLists {
        fingerprint: fingerprint.to_owned(),
        tools: text(&lists.tools),
        resources: text(&lists.resources),
        templates: text(&lists.templates),
        prompts: text(&lists.prompts),
    }
}

impl ForeignTools for SourceManager {
    fn of(&self, caller: &Caller) -> Arc<BTreeMap<String, Arc<Tool>>> {
        let project = caller.project().unwrap_or_default();
        self.refresh(project);
        let state = self.state();
        state.plans.get(project).map(|plan| Arc::clone(&plan.view)).unwrap_or_default()
    }

    fn all(&self) -> Vec<Arc<Tool>> {
        let state = self.state();
        let mut all = BTreeMap::new();
        for plan in state.plans.values() {
            for (name, tool) in plan.view.iter() {
                all.entry(name.clone()).or_insert_with(|| Arc::clone(tool));
            }
        }
        all.into_values().collect()
    }
}
