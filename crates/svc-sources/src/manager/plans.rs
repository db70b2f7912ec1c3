//! Which servers there are for whom: read from the files, started and ended as they say.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use svc_core::{
    service::sources::{SourceKey, SourceStatus},
    tools::{Call, ForeignTools, Tool, ToolError},
};
use svc_model::{Caller, source::SourceState};
use svc_sys::config::sources::{
    KeptSecrets, SourceChoices, SourceStanding, naming_folder, project_files,
};

use super::{
    overview::standing_status,
    state::{FileStamp, ManagedSources, ProjectPlan, SourceManager, ToolMap},
};
use crate::{
    beside::beside_others,
    call::{Served, serves, unavailable},
    instance::Instance,
    lists::{OfferedLists, OpenServer},
    spec::SourceSpec,
    view::tools_of,
};

impl SourceManager {
    /// Reads all files again: what is new starts, what is gone or has changed ends.
    pub fn reload(&self) {
        let projects: Vec<String> = self.state().plans.keys().cloned().collect();
        for project in projects.into_iter().chain([String::new()]).collect::<HashSet<_>>() {
            self.load(&project);
        }
    }

    /// Reads the files for callers of one project (`""`: of none).
    fn load(&self, project: &str) {
        // Reads go on beside those who are answered meanwhile, and nobody's lock is held.
        let before = {
            let plans = &self.state().plans;
            let before = plans.get(project).or_else(|| plans.get(""));
            before.map(|before| before.plan.clone()).unwrap_or_default()
        };
        let (stamp, plan) = beside_others(|| {
            let stamp = self.stamp(project);
            let folder = (!project.is_empty()).then(|| Path::new(project));
            (stamp, self.0.files.plan_after(folder, &before))
        });
        for problem in &plan.problems {
            tracing::warn!(problem, "a file that names servers cannot be read");
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
        let files = &self.0.files;
        let mut stamp =
            vec![stamp_of(&SourceChoices::file(&files.home)), stamp_of(&files.config_file)];
        if !project.is_empty() {
            stamp.extend(project_files(Path::new(project)).iter().map(|file| stamp_of(file)));
        }
        stamp.extend(files.imports.iter().map(|file| stamp_of(file.path())));
        stamp.extend(self.plugin_stamp());
        stamp
    }

    /// Of the plugins: which there are, and what each of them names.
    pub(super) fn plugin_stamp(&self) -> FileStamp {
        let (folder, files) = self.0.files.plugin_files();
        std::iter::once(&folder).chain(&files).map(|path| stamp_of(path)).collect()
    }

    /// The plan of a caller: by the folder whose file is the nearest to it.
    fn plan_of(&self, caller: &Caller) -> String {
        self.plan_in(caller.folder())
    }

    /// The plan of a folder, read again if its files have changed.
    pub(super) fn plan_in(&self, folder: Option<&str>) -> String {
        let folder = folder.map(|folder| naming_folder(Path::new(folder)));
        let folder = folder.map(|folder| folder.display().to_string()).unwrap_or_default();
        self.refresh(&folder);
        folder
    }

    /// Looks whether the files of a project have changed since they were read.
    fn refresh(&self, project: &str) {
        let stamp = self.stamp(project);
        let is_fresh = self.state().plans.get(project).is_some_and(|plan| plan.stamp == stamp);
        if !is_fresh {
            self.load(project);
        }
    }

    /// Looks at the files of all plans.
    pub(super) fn refresh_all(&self) {
        let folders: Vec<String> = self.state().plans.keys().cloned().collect();
        for folder in folders {
            self.refresh(&folder);
        }
    }

    /// Starts and ends instances as the plans say, and makes the views anew.
    pub(super) fn settle(&self, state: &mut ManagedSources) {
        let mut wanted: HashMap<SourceKey, Arc<SourceSpec>> = HashMap::new();
        let secrets = self.vault().kept().unwrap_or_else(|error| {
            tracing::warn!(error = %error, "secrets of servers cannot be read");
            KeptSecrets::default()
        });
        for ProjectPlan { plan, .. } in state.plans.values() {
            let in_force = plan.sources.iter().filter(|it| it.standing == SourceStanding::InForce);
            for mut spec in in_force.filter_map(SourceSpec::of) {
                spec.secrets = secrets.fingerprint(&spec.bearer);
                wanted.insert(spec.key.clone(), Arc::new(spec));
            }
        }
        self.bind_secrets(&secrets, wanted.values());
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
                let instance = Instance::keep(self.parts(spec, Served::default(), state));
                state.instances.insert(learner, instance);
            }
        }
        let ManagedSources { lists, pins, .. } = state;
        for (key, spec) in &wanted {
            let known = lists.get_mut(key).filter(|kept| kept.fingerprint == spec.fingerprint);
            if let Some(known) = known {
                known.compare(spec, pins.get(key));
            }
        }
        state.stderr.retain(|key, _| wanted.contains_key(key));
        let none = OfferedLists::default();
        state.tools = wanted
            .iter()
            .map(|(key, spec)| {
                if spec.is_builtin() {
                    return (key.clone(), self.core_tools(spec));
                }
                let lists =
                    state.lists.get(key).filter(|kept| kept.fingerprint == spec.fingerprint);
                let offered = tools_of(spec, lists.map_or(&none, |kept| &kept.shown));
                (key.clone(), self.tools(spec, offered))
            })
            .collect();
        let ManagedSources { plans, tools, .. } = state;
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

    /// Binds secrets that were set before there was an entry, and those of before, to the person's own entry as it stands.
    fn bind_secrets<'a>(
        &self,
        secrets: &KeptSecrets,
        specs: impl Iterator<Item = &'a Arc<SourceSpec>>,
    ) {
        let own = specs
            .map(|spec| &spec.bearer)
            .filter(|bearer| bearer.is_own && secrets.has_unbound(&bearer.server));
        let own: Vec<_> = own.cloned().collect();
        if own.is_empty() {
            return;
        }
        if let Err(error) = self.vault().bind(&own) {
            tracing::warn!(error = %error, "secrets of servers cannot be bound to their entries");
        }
    }

    /// The servers in force that a caller may use.
    fn open_to(&self, caller: &Caller) -> Vec<SourceSpec> {
        let folder = self.plan_of(caller);
        let state = self.state();
        let planned = state.plans.get(&folder).into_iter().flat_map(|plan| &plan.plan.sources);
        let in_force = planned.filter(|it| it.standing == SourceStanding::InForce);
        let is_open = |spec: &SourceSpec| {
            spec.entry.scope.as_deref().is_none_or(|scope| caller.has_scope(scope))
        };
        in_force.filter_map(SourceSpec::of).filter(is_open).collect()
    }

    /// The servers that a caller may use, by name, with what each offers.
    pub(crate) fn open_servers(&self, caller: &Caller) -> Vec<OpenServer> {
        let specs = self.open_to(caller);
        let state = self.state();
        let servers = specs.into_iter().filter(|spec| !spec.is_builtin()).map(|spec| {
            let lists = state.lists.get(&spec.key);
            let lists = lists.filter(|kept| kept.fingerprint == spec.fingerprint);
            let lists = lists.map(|kept| Arc::clone(&kept.shown)).unwrap_or_default();
            (Arc::new(spec), lists)
        });
        servers.collect()
    }

    /// The resources of each server that a caller may use.
    pub(crate) fn resources(&self, caller: &Caller) -> Vec<(String, Vec<serde_json::Value>)> {
        let servers = self.open_servers(caller).into_iter();
        let read = |lists: &OfferedLists| {
            lists.resources.iter().map(|resource| serde_json::Value::clone(resource)).collect()
        };
        servers.map(|(spec, lists)| (spec.key.name.clone(), read(&lists))).collect()
    }

    /// The instance of a server that serves a call; `None` if the caller has no server of that name.
    pub(crate) fn instance_of(&self, call: &Call, name: &str) -> Option<Arc<Instance>> {
        let spec = self.open_to(&call.caller).into_iter().find(|spec| spec.key.name == name)?;
        let spec = Arc::new(spec);
        self.instance(&spec, serves(&spec, call))
    }

    /// The caller's server that a tool's name begins with, and what it is doing, if it has never said which tools it has.
    fn status_of_unknown(&self, caller: &Caller, tool: &str) -> Option<(String, SourceStatus)> {
        let spec =
            self.open_to(caller).into_iter().find(|spec| is_tool_of(tool, &spec.key.name))?;
        let state = self.state();
        let known = state.lists.get(&spec.key);
        if known.is_some_and(|kept| kept.fingerprint == spec.fingerprint) {
            return None;
        }
        let name = spec.key.name.clone();
        let learner = state.instances.get(&(spec.key, String::new()))?;
        Some((name, learner.status().status))
    }

    /// The caller's server that a tool's name begins with, and why it does not run, if no server of that name is to run.
    fn status_of_resting(&self, caller: &Caller, tool: &str) -> Option<(String, SourceStatus)> {
        let folder = self.plan_of(caller);
        let state = self.state();
        let own = state.plans.get(&folder)?.plan.sources.iter();
        let named: Vec<_> = own.filter(|planned| is_tool_of(tool, &planned.name)).collect();
        if named.iter().any(|planned| planned.standing == SourceStanding::InForce) {
            return None;
        }
        let planned = named
            .into_iter()
            .find(|planned| !matches!(planned.standing, SourceStanding::Hidden(_)))?;
        Some((planned.name.clone(), standing_status(planned)))
    }

    /// Turns a server on or off, for good.
    pub fn switch(&self, name: &str, enabled: bool) -> std::io::Result<()> {
        SourceChoices::change(&self.0.files.home, |choices| choices.set_switch(name, enabled))?;
        self.reload();
        Ok(())
    }
}

fn stamp_of(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Whether the name of a tool is one of this server's.
fn is_tool_of(tool: &str, server: &str) -> bool {
    tool.strip_prefix(server).is_some_and(|rest| rest.starts_with("__"))
}

impl ForeignTools for SourceManager {
    fn of(&self, caller: &Caller) -> Arc<BTreeMap<String, Arc<Tool>>> {
        let folder = self.plan_of(caller);
        let state = self.state();
        state.plans.get(&folder).map(|plan| Arc::clone(&plan.view)).unwrap_or_default()
    }

    fn may_come(&self, caller: &Caller, name: &str) -> bool {
        use SourceState::{Connected, Connecting, Pending};
        let status = self.status_of_unknown(caller, name);
        status.is_some_and(|(_, status)| matches!(status.state, Pending | Connecting | Connected))
    }

    fn absence(&self, caller: &Caller, name: &str) -> Option<ToolError> {
        if let Some((server, status)) = self.status_of_unknown(caller, name) {
            return (status.state != SourceState::Connected).then(|| unavailable(&server, &status));
        }
        let (server, status) = self.status_of_resting(caller, name)?;
        Some(unavailable(&server, &status))
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
