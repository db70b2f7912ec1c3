//! `[agents.<instance>]`: each entry is read alone, so that an invalid one leaves the others valid.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use svc_model::{
    AgentInstance, InstanceStatus, InstanceView, StartAllowance, StartRate,
    agent::{AgentBackend, PermissionMode},
    is_instance_name,
    source::{MissingVariable, expand},
};

use super::Env;
use super::setting::{duration, word};
use crate::server_process::find_program;

#[derive(Debug, Clone, Default)]
pub struct AgentsConfig {
    pub entries: BTreeMap<String, AgentEntry>,
    /// The instance of an assignment that names none.
    pub default_agent: Option<String>,
}

#[derive(Debug, Clone)]
pub struct AgentEntry {
    /// As written in the file; empty if missing.
    backend: String,
    instance: Result<AgentInstance, InstanceProblem>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key `{key}`: {problem}")]
pub struct InstanceProblem {
    /// Dotted key, such as `agents.worker.rate`.
    pub key: String,
    pub problem: String,
}

#[derive(Debug, Clone)]
pub struct ResolvedInstance {
    /// The view without the live agents of the instance.
    pub view: InstanceView,
    /// The instance with its variables resolved; `None` if it is not callable.
    pub instance: Option<AgentInstance>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    backend: String,
    command: Option<Vec<String>>,
    #[serde(default)]
    args: Vec<String>,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    failover_to: Vec<String>,
    rate: Option<String>,
    max_concurrent: Option<u32>,
    permission: Option<String>,
    idle_timeout: Option<String>,
    start_timeout: Option<String>,
    request_timeout: Option<String>,
    #[serde(default)]
    may_spawn: bool,
    #[serde(default)]
    allow_env: Vec<String>,
    #[serde(default)]
    allow_args: Vec<String>,
    #[serde(default)]
    allow_cwd: Vec<String>,
    turn_end: Option<String>,
    enabled: Option<bool>,
}

impl AgentsConfig {
    pub(super) fn read(
        table: &BTreeMap<String, toml::Value>,
        default_agent: Option<String>,
        env: &Env,
    ) -> Self {
        let entry = |name: &str, value: &toml::Value| {
            let backend = value.get("backend").and_then(toml::Value::as_str).unwrap_or_default();
            AgentEntry { backend: backend.to_owned(), instance: read_instance(name, value, env) }
        };
        let mut entries: BTreeMap<String, AgentEntry> =
            table.iter().map(|(name, value)| (name.clone(), entry(name, value))).collect();
        // Checked after all entries are read, as an entry may name a later one.
        let known: Vec<String> = entries.keys().cloned().collect();
        for (name, entry) in &mut entries {
            let Ok(instance) = &entry.instance else { continue };
            let stray = instance.failover_to.iter().find(|to| {
                *to == name || !known.contains(to) && backend_instance(to, &known).is_none()
            });
            if let Some(stray) = stray {
                let problem = if stray == name {
                    "names the instance itself".to_owned()
                } else {
                    format!("there is no instance `{stray}`")
                };
                entry.instance = Err(InstanceProblem::at(name, "failover_to", problem));
            }
        }
        Self { entries, default_agent }
    }

    /// Problems of all entries, sorted by name.
    pub fn problems(&self) -> Vec<InstanceProblem> {
        let mut problems: Vec<InstanceProblem> =
            self.entries.values().filter_map(|it| it.instance.clone().err()).collect();
        let known: Vec<String> = self.entries.keys().cloned().collect();
        if let Some(name) = &self.default_agent
            && !known.contains(name)
            && backend_instance(name, &known).is_none()
        {
            let problem = format!("there is no instance `{name}`");
            problems.push(InstanceProblem { key: "default_agent".to_owned(), problem });
        }
        problems
    }

    /// Names of valid instances that never ask for permission.
    pub fn bypassing(&self) -> Vec<&str> {
        let valid = self.entries.values().filter_map(|entry| entry.instance.as_ref().ok());
        let bypassing = valid.filter(|it| it.permission == PermissionMode::Bypass);
        bypassing.map(|instance| instance.name.as_str()).collect()
    }

    /// All instances now, by name: the configured ones, and the default instance of each backend
    /// whose program is on the PATH, unless an entry has that name.
    pub fn instances(&self, env: &Env) -> Vec<ResolvedInstance> {
        let known: Vec<String> = self.entries.keys().cloned().collect();
        let mut all: Vec<ResolvedInstance> =
            self.entries.iter().map(|(name, entry)| entry.resolve(name, env)).collect();
        for backend in AgentBackend::ALL {
            let Some(instance) = backend_instance(backend.as_str(), &known) else { continue };
            if has_program(&instance.command[0], None, env) {
                all.push(resolve(instance, env));
            }
        }
        all.sort_by(|a, b| a.view.instance.cmp(&b.view.instance));
        all
    }
}

impl AgentEntry {
    fn resolve(&self, name: &str, env: &Env) -> ResolvedInstance {
        match &self.instance {
            Ok(instance) => resolve(instance.clone(), env),
            Err(problem) => {
                let refusal = (InstanceStatus::Misconfigured, problem.to_string());
                let view = view_of(name.to_owned(), self.backend.clone(), Some(refusal));
                ResolvedInstance { view, instance: None }
            }
        }
    }
}

impl InstanceProblem {
    fn at(name: &str, field: &str, problem: impl Into<String>) -> Self {
        let dot = if field.is_empty() { "" } else { "." };
        Self { key: format!("agents.{name}{dot}{field}"), problem: problem.into() }
    }
}

/// The default instance of a backend, unless an entry has that name.
fn backend_instance(name: &str, known: &[String]) -> Option<AgentInstance> {
    let backend = AgentBackend::parse(name)?;
    AgentInstance::of_backend(backend).filter(|_| !known.iter().any(|it| it == name))
}

fn read_instance(
    name: &str,
    value: &toml::Value,
    env: &Env,
) -> Result<AgentInstance, InstanceProblem> {
    let wrong = |field: &str, problem: String| InstanceProblem::at(name, field, problem);
    if !is_instance_name(name) {
        let rule = "a name has lower-case letters, digits and `-`, at most 64, and no `__`";
        return Err(wrong("", rule.to_owned()));
    }
    let raw: RawEntry = serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let field = error.path().to_string();
        let message = error.inner().message().trim().to_owned();
        wrong(if field == "." { "" } else { &field }, message)
    })?;
    let backend = AgentBackend::parse(&raw.backend).ok_or_else(|| {
        let rule = "is not claude, codex, gemini, opencode, acp or exec";
        wrong("backend", format!("`{}` {rule}", raw.backend))
    })?;
    let command = match (raw.command, backend.program()) {
        (Some(command), _) => command,
        (None, Some(program)) => vec![program.to_owned()],
        (None, None) => {
            let problem = format!("backend {backend} has no program of its own: name one");
            return Err(wrong("command", problem));
        }
    };
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(wrong("command", "names no program".to_owned()));
    }
    for (field, texts) in [("command", &command), ("args", &raw.args)] {
        if texts.iter().any(|text| text.contains('\0')) {
            return Err(wrong(field, "has a zero byte".to_owned()));
        }
    }
    let is_wrong = |variable: &&String| variable.is_empty() || variable.contains(['=', '\0']);
    if let Some(variable) = raw.env.keys().find(is_wrong) {
        let field = format!("env.{variable}");
        return Err(wrong(&field, "is not the name of a variable".to_owned()));
    }
    let permission =
        raw.permission.as_deref().map(word("ask, accept_edits, bypass or deny")).transpose();
    let permission: PermissionMode =
        permission.map_err(|problem| wrong("permission", problem))?.unwrap_or_default();
    if permission == PermissionMode::Bypass && !backend.has_bypass() {
        let problem = format!("backend {backend} has no switch for bypass");
        return Err(wrong("permission", problem));
    }
    let rate = raw.rate.map(|text| text.parse::<StartRate>()).transpose();
    let rate = rate.map_err(|problem| wrong("rate", problem))?;
    if raw.max_concurrent == Some(0) {
        return Err(wrong("max_concurrent", "must be at least 1".to_owned()));
    }
    if raw.turn_end.is_some() && backend != AgentBackend::Exec {
        return Err(wrong("turn_end", "is for backend exec alone".to_owned()));
    }
    let time = |field: &str, text: Option<String>, default: Duration| {
        text.map_or(Ok(default), |text| duration(&text).map_err(|problem| wrong(field, problem)))
    };
    let least = |field: &str, time: Duration| {
        if time.is_zero() { Err(wrong(field, "must be more than 0".to_owned())) } else { Ok(time) }
    };
    let idle_timeout = time("idle_timeout", raw.idle_timeout, AgentInstance::IDLE_TIMEOUT)?;
    let start_timeout = time("start_timeout", raw.start_timeout, AgentInstance::START_TIMEOUT)?;
    let request_timeout =
        time("request_timeout", raw.request_timeout, AgentInstance::REQUEST_TIMEOUT)?;
    let cwd = raw.cwd.map(|cwd| folder(&cwd, env)).transpose();
    let folders: Result<_, _> = raw.allow_cwd.iter().map(|text| folder(text, env)).collect();
    let folders = folders.map_err(|problem| wrong("allow_cwd", problem))?;
    let allow = StartAllowance { env: raw.allow_env, args: raw.allow_args, folders };
    allow.check().map_err(|(field, problem)| wrong(field, problem))?;
    Ok(AgentInstance {
        name: name.to_owned(),
        backend,
        command,
        args: raw.args,
        cwd: cwd.map_err(|problem| wrong("cwd", problem))?,
        env: raw.env,
        tags: raw.tags,
        failover_to: raw.failover_to,
        rate,
        max_concurrent: raw.max_concurrent,
        permission,
        idle_timeout: (!idle_timeout.is_zero()).then_some(idle_timeout),
        start_timeout: least("start_timeout", start_timeout)?,
        request_timeout: least("request_timeout", request_timeout)?,
        may_spawn: raw.may_spawn,
        allow,
        turn_end: raw.turn_end,
        enabled: raw.enabled.unwrap_or(true),
    })
}

/// Why an instance is not callable.
type InstanceRefusal = (InstanceStatus, String);

fn view_of(instance: String, backend: String, refusal: Option<InstanceRefusal>) -> InstanceView {
    let callable = refusal.is_none();
    let (status, reason) = refusal.unzip();
    let status = status.unwrap_or(InstanceStatus::Callable);
    let (tags, failover_to) = (Vec::new(), Vec::new());
    InstanceView { instance, backend, status, callable, reason, tags, failover_to, live: 0 }
}

fn resolve(mut instance: AgentInstance, env: &Env) -> ResolvedInstance {
    let refusal = refusal(&mut instance, env);
    let view = InstanceView {
        tags: instance.tags.clone(),
        failover_to: instance.failover_to.clone(),
        ..view_of(instance.name.clone(), instance.backend.to_string(), refusal)
    };
    ResolvedInstance { instance: view.callable.then_some(instance), view }
}

/// Resolves the variables of an instance. Returns the reason if it is not callable.
fn refusal(instance: &mut AgentInstance, env: &Env) -> Option<InstanceRefusal> {
    if !instance.enabled {
        return Some((InstanceStatus::Disabled, "its entry says `enabled = false`".to_owned()));
    }
    let value_of = |name: &str| env.os(name).and_then(OsStr::to_str).map(str::to_owned);
    for (name, text) in &mut instance.env {
        match expand(text, &value_of, &mut Vec::new()) {
            Ok(expanded) => *text = expanded,
            Err(MissingVariable(missing)) => {
                let problem = format!("the variable {missing} is not set for the daemon");
                return Some((InstanceStatus::Misconfigured, format!("env.{name}: {problem}")));
            }
        }
    }
    let program = &instance.command[0];
    let reason = || format!("there is no program `{program}` on the daemon's PATH");
    let found = has_program(program, instance.cwd.as_deref(), env);
    (!found).then(|| (InstanceStatus::BinaryMissing, reason()))
}

/// Accepts a relative path without `cwd`, as it is relative to the agent's folder, which is not
/// known yet.
fn has_program(program: &str, cwd: Option<&Path>, env: &Env) -> bool {
    let path = match (program.contains('/'), cwd) {
        (true, None) if Path::new(program).is_relative() => return true,
        (true, Some(cwd)) => cwd.join(program),
        (false, _) if env.os("PATH").is_none() => return false,
        _ => PathBuf::from(program),
    };
    find_program(path.as_os_str(), env.os("PATH").unwrap_or_default()).is_ok()
}

/// Expands a leading `~` to the home folder; fails if the result is not absolute.
fn folder(text: &str, env: &Env) -> Result<PathBuf, String> {
    let home = || env.os("HOME").map(PathBuf::from).ok_or_else(|| "HOME is not set".to_owned());
    let path = match text.strip_prefix('~') {
        Some("") => home()?,
        Some(rest) if rest.starts_with('/') => home()?.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(text),
    };
    if path.is_absolute() { Ok(path) } else { Err(format!("`{text}` is not an absolute folder")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn read(text: &str, env: &[(&str, &str)]) -> (AgentsConfig, Env) {
        let env: Env = env.iter().copied().collect();
        let table: BTreeMap<String, toml::Value> = toml::from_str(text).unwrap();
        (AgentsConfig::read(&table, None, &env), env)
    }

    fn view(text: &str, env: &[(&str, &str)], name: &str) -> InstanceView {
        let (config, env) = read(text, env);
        let all = config.instances(&env);
        all.into_iter().find(|it| it.view.instance == name).unwrap().view
    }

    #[test]
    fn wrong_entry_names_its_field_and_leaves_the_others_valid() {
        for (entry, field) in [
            ("backend = 'claud'", "x.backend"),
            ("", "agents.x"),
            ("backend = 'exec'", "x.command"),
            ("backend = 'acp'\ncommand = []", "x.command"),
            ("backend = 'exec'\ncommand = 'cat'", "x.command"),
            ("backend = 'exec'\ncommand = ['cat']\nrate = '3/x'", "x.rate"),
            ("backend = 'exec'\ncommand = ['cat']\nmax_concurrent = 0", "x.max_concurrent"),
            ("backend = 'exec'\ncommand = ['cat']\npermission = 'bypass'", "x.permission"),
            ("backend = 'claude'\npermission = 'never'", "x.permission"),
            ("backend = 'claude'\nidle_timeout = '30'", "x.idle_timeout"),
            ("backend = 'claude'\nstart_timeout = '0'", "x.start_timeout"),
            ("backend = 'claude'\ncwd = 'src/app'", "x.cwd"),
            ("backend = 'claude'\nallow_cwd = ['src/app']", "x.allow_cwd"),
            ("backend = 'claude'\nallow_args = ['a[b']", "x.allow_args"),
            ("backend = 'claude'\nallow_env = ['REVIEW', 'LD_PRELOAD']", "x.allow_env"),
            ("backend = 'claude'\nallow_env = ['A=B']", "x.allow_env"),
            ("backend = 'claude'\nturn_end = 'x'", "x.turn_end"),
            ("backend = 'claude'\nenv = { 'A=B' = 'x' }", "x.env.A=B"),
            ("backend = 'claude'\nfailover_to = ['x']", "x.failover_to"),
            ("backend = 'claude'\nfailover_to = ['nobody']", "x.failover_to"),
            ("backend = 'claude'\ntimeout = 3", "timeout"),
        ] {
            let text = format!("[x]\n{entry}\n[sh]\nbackend = 'exec'\ncommand = ['/bin/sh']\n");
            let (config, env) = read(&text, &[]);
            let problems = config.problems();
            assert_eq!(problems.len(), 1, "{entry}: {problems:?}");
            assert!(problems[0].to_string().contains(field), "{entry}: {}", problems[0]);
            let all = config.instances(&env);
            let wrong = &all.iter().find(|it| it.view.instance == "x").unwrap().view;
            assert_eq!(wrong.status, InstanceStatus::Misconfigured, "{entry}");
            assert_eq!(wrong.reason, Some(problems[0].to_string()), "{entry}");
            let other = &all.iter().find(|it| it.view.instance == "sh").unwrap().view;
            assert!(other.callable, "{entry}: {other:?}");
        }
        let (config, _) = read("[Bad_Name]\nbackend = 'claude'\n", &[]);
        assert_eq!(config.problems()[0].key, "agents.Bad_Name");
    }

    #[test]
    fn refused_instance_says_its_reason() {
        let sh = "backend = 'exec'\ncommand = ['/bin/sh']\n";
        let missing = view("[m]\nbackend = 'exec'\ncommand = ['no-such']\n", &[], "m");
        assert_eq!(missing.status, InstanceStatus::BinaryMissing);
        assert!(missing.reason.unwrap().contains("no-such"));
        let disabled = view(&format!("[d]\n{sh}enabled = false\n"), &[], "d");
        assert_eq!(disabled.status, InstanceStatus::Disabled);
        let keyed = format!("[k]\n{sh}env = {{ KEY = 'a${{REVIEW_KEY}}b' }}\n");
        let unset = view(&keyed, &[], "k");
        assert!(!unset.callable && unset.reason.unwrap().contains("REVIEW_KEY"));
        let (config, env) = read(&keyed, &[("REVIEW_KEY", "7")]);
        let all = config.instances(&env);
        let instance = all[0].instance.as_ref().unwrap();
        assert_eq!(instance.env["KEY"], "a7b");
        assert!(!format!("{instance:?}").contains("a7b"), "no value is shown");
    }

    #[test]
    fn backend_is_an_instance_of_its_own_name_if_its_program_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("claude");
        std::fs::write(&program, "").unwrap();
        let path = folder.path().to_str().unwrap();
        let names = |text: &str| {
            let (config, env) = read(text, &[("PATH", path)]);
            let all = config.instances(&env);
            all.into_iter().map(|it| it.view.instance).collect::<Vec<_>>()
        };
        assert!(names("").is_empty(), "it cannot be run");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(names(""), ["claude"]);
        assert_eq!(names("[reviewer]\nbackend = 'claude'\n"), ["claude", "reviewer"]);
        let other = "[claude]\nbackend = 'exec'\ncommand = ['cat']\n";
        assert_eq!(names(other), ["claude"], "an entry has the name");
    }

    #[test]
    fn time_needs_a_unit_and_folder_is_absolute() {
        assert_eq!(duration("30m"), Ok(Duration::from_mins(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for text in ["", "m", "30", "1.5s", "-1s", "99999999999999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        let env: Env = [("HOME", "/u")].into_iter().collect();
        assert_eq!(folder("~/src", &env), Ok(PathBuf::from("/u/src")));
        assert_eq!(folder("~", &env), Ok(PathBuf::from("/u")));
        assert!(folder("~other/src", &env).is_err());
    }
}
