//! The servers of each caller, and the tools that call them.
//!
//! A plan is read from files and is immutable: one watcher polls the files and replaces the plan. A
//! call looks its plan up and reads no file. The call is counted, reported as an event, and sent by
//! the instance that serves the caller.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Component, Path},
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;
use svc_core::{
    service::sources::{CallEvent, SourceKey, SourceStatus},
    tools::{Call, ChildTools, ErrorType, Failure, Output, Tool, ToolError},
};
use svc_model::{Caller, source::SourceState};
use svc_sys::config::sources::{
    KeptSecrets, SourceChoices, SourcePlan, SourceStanding, project_files,
};
use tokio::time::Instant;

use super::{
    FileStamp, FolderPlan, ManagedSources, NamedServers, OfferChanges, SourceManager, SourceTools,
    overview::{FolderSources, standing_states, standing_status},
};
use crate::{
    call::{ServerRequest, SharedWith, shared_with, unavailable},
    instance::{Instance, StateChange},
    lists::{OfferedTools, OpenServer, tools_of},
    metrics::{CallOutcome, ServerCallEnd},
    relay::CallerSources,
    run_blocking,
    spec::SourceSpec,
};

/// Interval at which the files are polled.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

type WantedSources = HashMap<SourceKey, Arc<SourceSpec>>;

impl SourceManager {
    /// Reads all files again: new servers start, removed and changed ones end.
    pub fn reload(&self) {
        let mut folders: Vec<String> = self.state().named.keys().cloned().collect();
        if !folders.iter().any(String::is_empty) {
            folders.push(String::new());
        }
        for folder in &folders {
            self.load(folder);
        }
    }

    /// Reads the files for callers of one folder; `""` for callers without a folder.
    fn load(&self, folder: &str) {
        // The files are read without the lock, so that callers are served meanwhile.
        let before = {
            let named = &self.state().named;
            let before = named.get(folder).or_else(|| named.get(""));
            before.map(|before| Arc::clone(&before.plan)).unwrap_or_default()
        };
        let (stamp, plan) = run_blocking(|| {
            let path = (!folder.is_empty()).then(|| Path::new(folder));
            (self.stamp(folder), self.0.files.plan_after(path, &before))
        });
        for problem in &plan.problems {
            tracing::warn!(problem, "a file that names servers cannot be read");
        }
        let mut state = self.state();
        state.named.insert(folder.to_owned(), NamedServers { plan: Arc::new(plan), stamp });
        self.settle(&mut state);
    }

    fn stamp(&self, folder: &str) -> FileStamp {
        let files = &self.0.files;
        let mut paths = vec![SourceChoices::file(&files.home), files.config_file.clone()];
        if !folder.is_empty() {
            paths.extend(project_files(Path::new(folder)));
        }
        paths.extend(files.imports.iter().map(|file| file.path().to_owned()));
        let (plugins, named) = files.plugin_files();
        paths.push(plugins);
        paths.extend(named);
        paths.iter().map(|path| stamp_of(path)).collect()
    }

    /// The plan of a folder, which is read on its first use.
    pub(super) fn plan(&self, folder: Option<&str>) -> Arc<FolderPlan> {
        let folder = folder.unwrap_or_default();
        let known = |folder: &str| {
            let plans = self.0.plans.read().unwrap_or_else(PoisonError::into_inner);
            plans.get(folder).cloned()
        };
        known(folder).unwrap_or_else(|| {
            let folder = &plain_folder(folder);
            known(folder).unwrap_or_else(|| {
                self.load(folder);
                known(folder).unwrap_or_default()
            })
        })
    }

    /// The plan from the present content of a folder's files: for people who have just changed
    /// them, and for a call of a tool that the plan does not have.
    fn plan_now(&self, folder: Option<&str>) -> Arc<FolderPlan> {
        let folder = &plain_folder(folder.unwrap_or_default());
        self.refresh(folder);
        self.plan(Some(folder))
    }

    fn refresh(&self, folder: &str) {
        let stamp = run_blocking(|| self.stamp(folder));
        let is_fresh = self.state().named.get(folder).is_some_and(|named| named.stamp == stamp);
        if !is_fresh {
            self.load(folder);
        }
    }

    /// Polls the files of all plans for as long as the daemon runs.
    pub(super) async fn watch_files(self) {
        loop {
            tokio::time::sleep(WATCH_PAUSE).await;
            let this = self.clone();
            let look = tokio::task::spawn_blocking(move || {
                let folders: Vec<String> = this.state().named.keys().cloned().collect();
                for folder in &folders {
                    this.refresh(folder);
                }
            });
            look.await.ok();
        }
    }

    /// Starts and ends instances according to the files, replaces the plans, and tells those who
    /// watch what has changed.
    pub(super) fn settle(&self, state: &mut ManagedSources) {
        state.note_standings(self.0.services.now());
        state.wanted = self.wanted(state);
        let ManagedSources { wanted, instances, .. } = state;
        let gone = instances.extract_if(|(key, _), instance| {
            wanted.get(key).is_none_or(|spec| **spec != *instance.spec)
        });
        for (_, instance) in gone {
            self.0.ending.spawn(async move { instance.end().await }.boxed());
        }
        for (key, spec) in state.wanted.clone().iter().filter(|(_, spec)| !spec.is_builtin()) {
            let learner = (key.clone(), String::new());
            if !state.is_ending && !state.instances.contains_key(&learner) {
                let instance = Instance::keep(self.parts(spec, SharedWith::default(), state));
                state.instances.insert(learner, instance);
            }
        }
        let ManagedSources { wanted, lists, pins, stderr, .. } = state;
        for (key, spec) in &*wanted {
            let known = lists.get_mut(key).filter(|kept| kept.fingerprint == spec.fingerprint);
            if let Some(known) = known {
                known.compare(spec, pins.get(key));
            }
        }
        stderr.retain(|key, _| wanted.contains_key(key));
        let tools = state.wanted.iter().map(|(key, spec)| {
            let tools = if spec.is_builtin() {
                core_tools(self, spec)
            } else {
                server_tools(self, spec, tools_of(spec, &state.shown(spec), &|_| false))
            };
            (key.clone(), tools)
        });
        state.tools = tools.collect();
        let plans = state.named.iter().map(|(folder, named)| {
            (folder.clone(), Arc::new(folder_plan(self, state, Arc::clone(&named.plan))))
        });
        let plans: HashMap<String, Arc<FolderPlan>> = plans.collect();
        let before = {
            let mut known = self.0.plans.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, plans.clone())
        };
        self.announce(state);
        if let Some(catalogue) = self.0.catalogue.upgrade() {
            catalogue.note_change();
        }
        let is_other = |is_same: fn(&FolderPlan, &FolderPlan) -> bool| {
            before.iter().any(|(folder, before)| !is_same(before, &plans[folder]))
        };
        let OfferChanges { resources, prompts } = &self.0.changes;
        if is_other(|before, after| before.resources().eq(after.resources())) {
            resources.send_modify(|count| *count += 1);
        }
        if is_other(|before, after| before.prompts().eq(after.prompts())) {
            prompts.send_modify(|count| *count += 1);
        }
    }

    /// Announces the new states of entries that do not run.
    fn announce(&self, state: &mut ManagedSources) {
        let by_folder: BTreeMap<_, _> = state.named.iter().collect();
        let states = standing_states(by_folder.values().map(|named| &*named.plan));
        let before = std::mem::replace(&mut state.announced, states);
        for (id, status) in &state.announced {
            if before.get(id) != Some(status) {
                let (key, status) = (id.0.clone(), status.clone());
                self.0.states.send(StateChange { key, status, of_instance: None }).ok();
            }
        }
    }

    /// The servers that are to run.
    fn wanted(&self, state: &ManagedSources) -> WantedSources {
        let secrets = self.vault().kept().unwrap_or_else(|error| {
            tracing::warn!(error = %error, "secrets of servers cannot be read");
            KeptSecrets::default()
        });
        let mut wanted = WantedSources::new();
        for mut spec in state.named.values().flat_map(|named| specs_in_force(&named.plan)) {
            spec.secrets = secrets.fingerprint(&spec.bearer);
            wanted.insert(spec.key.clone(), Arc::new(spec));
        }
        // Secrets that were set before there was an entry are bound to the person's present entry.
        let own = wanted.values().map(|spec| &spec.bearer);
        let own = own.filter(|bearer| bearer.is_own && secrets.has_unbound(&bearer.server));
        let own: Vec<_> = own.cloned().collect();
        if !own.is_empty()
            && let Err(error) = self.vault().bind(&own)
        {
            tracing::warn!(error = %error, "secrets of servers cannot be bound to their entries");
        }
        wanted
    }

    /// The instance that serves a project, a session, or everybody. Starts it if needed.
    pub(crate) fn instance(
        &self,
        spec: &Arc<SourceSpec>,
        shared_with: SharedWith,
    ) -> Option<Arc<Instance>> {
        let mut state = self.state();
        let learner = state.learner(&spec.key)?;
        // The entry in a caller's plan lacks the fingerprint of its secrets.
        if learner.spec.fingerprint != spec.fingerprint {
            return None;
        }
        let spec = &Arc::clone(&learner.spec);
        let key = (spec.key.clone(), shared_with.key.clone());
        if let Some(instance) = state.instances.get(&key) {
            return Some(Arc::clone(instance));
        }
        let instance = Instance::keep(self.parts(spec, shared_with, &mut state));
        state.instances.insert(key, Arc::clone(&instance));
        Some(instance)
    }

    /// The caller's server whose prefix a tool's name has, and its status, if its tools were never
    /// listed.
    fn status_of_unlisted(&self, caller: &Caller, tool: &str) -> Option<(String, SourceStatus)> {
        let plan = self.plan_now(caller.folder());
        let is_named = |spec: &SourceSpec| is_tool_of(tool, &spec.key.name);
        let named = |(spec, _): &&OpenServer| is_named(spec) && is_open(spec, caller);
        let (spec, _) = plan.servers.iter().find(named)?;
        let state = self.state();
        if state.learned(&spec.key, &spec.fingerprint).is_some() {
            return None;
        }
        Some((spec.key.name.clone(), state.learner(&spec.key)?.status().status))
    }

    pub fn of_caller(&self, caller: &Caller) -> CallerSources {
        let mut servers = self.plan(caller.folder()).servers.clone();
        servers.retain(|(spec, _)| !spec.is_builtin() && is_open(spec, caller));
        CallerSources { manager: self.clone(), servers }
    }

    /// Why the caller's server of this name does not run; `None` if there is none, or if it is to
    /// run.
    pub(crate) fn server_absence(&self, caller: &Caller, name: &str) -> Option<ToolError> {
        let plan = &self.plan(caller.folder()).plan;
        let (server, status) = status_of_disabled(plan, |server| server == name)?;
        Some(unavailable(&server, &status))
    }

    /// The servers in the files for callers of a folder, from the files' present content.
    pub fn in_folder(&self, folder: Option<&str>) -> FolderSources {
        let plan = Arc::clone(&self.plan_now(folder).plan);
        FolderSources { manager: self.clone(), plan }
    }

    /// Turns a server on or off permanently.
    pub fn switch(&self, key: &SourceKey, enabled: bool) -> std::io::Result<()> {
        let SourceKey { name, project } = key;
        SourceChoices::change(&self.0.files.home, |choices| {
            choices.set_switch(name, Some(project), enabled);
        })?;
        self.reload();
        Ok(())
    }
}

/// One spelling of a folder's path for all: two plans that differ in the spelling alone would each
/// end the servers of the other. Links stay, as approvals and the projects of sessions are by the
/// path that a person or a client uses; with `..`, only the system knows which folder is meant.
fn plain_folder(folder: &str) -> String {
    let path = Path::new(folder);
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    let real = goes_up.then(|| run_blocking(|| path.canonicalize()).ok()).flatten();
    let plain = real.unwrap_or_else(|| path.components().collect());
    plain.into_os_string().into_string().unwrap_or_else(|_| folder.to_owned())
}

/// The caller's server whose name is wanted, and why it does not run, if no server of that name is
/// to run.
fn status_of_disabled(
    plan: &SourcePlan,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<(String, SourceStatus)> {
    let mut named = plan.sources.iter().filter(|planned| is_wanted(&planned.name));
    if named.clone().any(|planned| planned.standing == SourceStanding::InForce) {
        return None;
    }
    // If none is meant, all are bad.
    let meant = named.clone().find_map(|planned| plan.meant(&planned.name));
    let planned = meant.or_else(|| named.next())?;
    Some((planned.name.clone(), standing_status(planned)))
}

fn specs_in_force(plan: &SourcePlan) -> impl Iterator<Item = SourceSpec> {
    let in_force = plan.sources.iter().filter(|it| it.standing == SourceStanding::InForce);
    in_force.filter_map(SourceSpec::parse)
}

fn folder_plan(
    manager: &SourceManager,
    state: &ManagedSources,
    plan: Arc<SourcePlan>,
) -> FolderPlan {
    let (mut servers, mut tools) = (Vec::new(), BTreeMap::new());
    for spec in specs_in_force(&plan) {
        let Some(spec) = state.wanted.get(&spec.key) else { continue };
        let shown = state.shown(spec);
        let own = state.tools.get(&spec.key).map(|own| Arc::clone(&own.tools)).unwrap_or_default();
        let is_taken = |name: &str| tools.contains_key(name);
        // `_x` of a server `a` and `x` of a server `a_` are both `a___x`.
        let own = if own.keys().any(|name| is_taken(name)) {
            server_tools(manager, spec, tools_of(spec, &shown, &is_taken)).tools
        } else {
            own
        };
        tools.extend(own.iter().map(|(name, tool)| (name.clone(), Arc::clone(tool))));
        servers.push((Arc::clone(spec), shown));
    }
    FolderPlan { plan, servers, tools: Arc::new(tools) }
}

impl FolderPlan {
    /// The servers that offer resources: their names, whom they are open to, and what they offer.
    fn resources(&self) -> impl Iterator<Item = impl PartialEq> {
        let offering = self
            .servers
            .iter()
            .filter(|(_, lists)| !lists.resources.is_empty() || !lists.templates.is_empty());
        offering
            .map(|(spec, lists)| (&spec.key, &spec.entry.scope, &lists.resources, &lists.templates))
    }

    /// As [`Self::resources`], of prompts.
    fn prompts(&self) -> impl Iterator<Item = impl PartialEq> {
        let offering = self.servers.iter().filter(|(_, lists)| !lists.prompts.is_empty());
        offering.map(|(spec, lists)| (&spec.key, &spec.entry.scope, &lists.prompts))
    }
}

fn is_open(spec: &SourceSpec, caller: &Caller) -> bool {
    spec.entry.scope.as_deref().is_none_or(|scope| caller.has_scope(scope))
}

fn stamp_of(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

fn is_tool_of(tool: &str, server: &str) -> bool {
    tool.strip_prefix(server).is_some_and(|rest| rest.starts_with("__"))
}

impl ChildTools for SourceManager {
    fn offered_to(&self, caller: &Caller) -> Arc<BTreeMap<String, Arc<Tool>>> {
        Arc::clone(&self.plan(caller.folder()).tools)
    }

    fn may_appear(&self, caller: &Caller, name: &str) -> bool {
        use SourceState::{Connected, Connecting, Pending};
        let status = self.status_of_unlisted(caller, name);
        status.is_some_and(|(_, status)| matches!(status.state, Pending | Connecting | Connected))
    }

    fn absence(&self, caller: &Caller, name: &str) -> Option<ToolError> {
        if let Some((server, status)) = self.status_of_unlisted(caller, name) {
            return (status.state != SourceState::Connected).then(|| unavailable(&server, &status));
        }
        let plan = &self.plan(caller.folder()).plan;
        let (server, status) = status_of_disabled(plan, |server| is_tool_of(name, server))?;
        Some(unavailable(&server, &status))
    }

    fn all(&self) -> Vec<Arc<Tool>> {
        let plans = self.0.plans.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = BTreeMap::new();
        for (name, tool) in plans.values().flat_map(|plan| plan.tools.iter()) {
            all.entry(name.clone()).or_insert_with(|| Arc::clone(tool));
        }
        all.into_values().collect()
    }
}

fn server_tools(
    manager: &SourceManager,
    spec: &Arc<SourceSpec>,
    offered: OfferedTools,
) -> SourceTools {
    let tools = offered.tools.into_iter().map(|(name, tool)| {
        let bound = manager.results().bound_of(&tool.declaration.entry.read);
        let (manager, spec) = (manager.downgrade(), Arc::clone(spec));
        let (own_name, traits) = (tool.own_name, tool.traits);
        let run = move |call: Call, arguments| {
            let (manager, spec) = (manager.clone(), Arc::clone(&spec));
            let (own_name, traits) = (Arc::clone(&own_name), Arc::clone(&traits));
            async move {
                let manager = manager.upgrade().ok_or_else(ending)?;
                let shown = format!("{}__{own_name}", spec.key.name);
                let meter = CallMeter::new(manager.clone(), &spec, &own_name, &call);
                let request = ServerRequest::tool(&own_name, &traits, arguments);
                let instance = manager.instance(&spec, shared_with(&spec, &call));
                let end = if let Some(instance) = instance {
                    request.run(&instance, manager.suspended(), &call).await
                } else {
                    let text = format!("{} is turned off or gone", spec.key.name);
                    let error = ToolError::new(ErrorType::Unavailable, text);
                    (CallOutcome::Unavailable, Err(error.retryable(false).into()))
                };
                let answer = meter.end(end)?;
                Ok(manager.results().shorten(&call.caller, &shown, bound, answer).await)
            }
        };
        (name, Arc::new(Tool::foreign(tool.declaration, run)))
    });
    SourceTools { tools: Arc::new(tools.collect()), problems: offered.problems }
}

fn ending() -> Failure {
    ToolError::new(ErrorType::Unavailable, "the daemon is about to end").into()
}

/// The tools of the built-in server, metered like those of others.
fn core_tools(manager: &SourceManager, spec: &Arc<SourceSpec>) -> SourceTools {
    let tools = manager.0.core.tools(&spec.entry, manager.env()).into_iter().filter_map(|tool| {
        let declaration = tool.foreign_declaration()?.clone();
        let (manager, spec, tool) = (manager.downgrade(), Arc::clone(spec), Arc::new(tool));
        let name = tool.name().to_owned();
        let run = move |call: Call, arguments| {
            let (manager, spec, tool) = (manager.clone(), Arc::clone(&spec), Arc::clone(&tool));
            async move {
                let manager = manager.upgrade().ok_or_else(ending)?;
                let meter = CallMeter::new(manager.clone(), &spec, tool.name(), &call);
                let caller = call.caller.clone();
                let answer = tool.call(call, arguments).await;
                let answer = meter.end((CallOutcome::from_answer(&answer), answer))?;
                let bound = manager.results().bounds().result_bytes;
                Ok(manager.results().shorten(&caller, tool.name(), bound, answer).await)
            }
        };
        Some((name, Arc::new(Tool::foreign(declaration, run))))
    });
    SourceTools { tools: Arc::new(tools.collect()), problems: Vec::new() }
}

/// Counts a call and reports it as an event when it ends, also one that nobody waits for any more.
struct CallMeter {
    manager: SourceManager,
    spec: Arc<SourceSpec>,
    /// The server's own name of the tool.
    tool: String,
    session: Option<String>,
    began: Instant,
    outcome: Option<CallOutcome>,
}

impl CallMeter {
    fn new(manager: SourceManager, spec: &Arc<SourceSpec>, tool: &str, call: &Call) -> Self {
        let session = call.session.as_deref().or(call.caller.session()).map(str::to_owned);
        let (spec, tool, outcome) = (Arc::clone(spec), tool.to_owned(), CallOutcome::Cancelled);
        Self { manager, spec, tool, session, began: Instant::now(), outcome: Some(outcome) }
    }

    /// A call whose client is asked is counted at its end.
    fn end(mut self, (outcome, answer): ServerCallEnd) -> Result<Output, Failure> {
        self.outcome = (!matches!(answer, Err(Failure::NeedsInput))).then_some(outcome);
        answer
    }
}

impl Drop for CallMeter {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome else { return };
        let (state, took) = (&self.manager.0, self.began.elapsed());
        state.metrics.count(&self.spec.key.name, &self.tool, outcome.as_str(), took);
        let event = CallEvent {
            tool: std::mem::take(&mut self.tool),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            outcome: outcome.as_str(),
            session: self.session.take(),
        };
        // In a flood calls are counted, but their events may be dropped.
        state.events.try_send((self.spec.key.clone(), event)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::plain_folder;

    #[test]
    fn folder_has_one_spelling() {
        let base = tempfile::tempdir().expect("a folder");
        let base = base.path().canonicalize().expect("is there");
        std::fs::create_dir_all(base.join("p/sub")).expect("can be made");
        std::os::unix::fs::symlink(base.join("p/sub"), base.join("link")).expect("can be made");
        let base = base.to_str().expect("text");
        for (spelled, plain) in [
            ("p", "p"),
            ("p/", "p"),
            ("p/.", "p"),
            (".//p/./sub//", "p/sub"),
            ("p/sub/..", "p"),
            ("link", "link"),
            ("link/", "link"),
            // Not the folder of the link.
            ("link/..", "p"),
            ("gone/", "gone"),
            ("gone/..", "gone/.."),
        ] {
            let (spelled, plain) = (format!("{base}/{spelled}"), format!("{base}/{plain}"));
            assert_eq!(plain_folder(&spelled), plain, "{spelled}");
        }
        assert_eq!(["", "/", "//"].map(plain_folder), ["", "/", "/"]);
    }
}
