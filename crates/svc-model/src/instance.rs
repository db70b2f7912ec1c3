//! Instances: configured ways to run an agent, and what a request may set of an agent that it
//! starts.
//!
//! `POST /v1/hosts`, `SendMessage`, `sessions_spawn` and `POST /v1/send_message` all ask
//! [`StartAllowance`].

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use globset::GlobBuilder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    agent::{AgentBackend, PermissionMode},
    source::loads_code,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartRate {
    pub starts: u32,
    pub window: Duration,
}

impl FromStr for StartRate {
    type Err = String;

    /// `30/m`, `5/s`, `100/h`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a rate such as 30/m, 5/s or 100/h");
        let (starts, unit) = text.split_once('/').ok_or_else(wrong)?;
        let starts: u32 = starts.trim().parse().map_err(|_| wrong())?;
        let window = match unit.trim() {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        if starts == 0 {
            return Err(format!("`{text}` would allow no start: use `enabled = false`"));
        }
        Ok(Self { starts, window: Duration::from_secs(window) })
    }
}

/// A configured way to run an agent.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentInstance {
    /// See [`is_instance_name`].
    pub name: String,
    pub backend: AgentBackend,
    /// The program and its fixed arguments.
    pub command: Vec<String>,
    /// Arguments after those of the backend.
    pub args: Vec<String>,
    /// By default the folder of whoever starts it.
    pub cwd: Option<PathBuf>,
    /// Variables, with `${VAR}` as written.
    pub env: BTreeMap<String, String>,
    /// Words that a dispatch may choose it by.
    pub tags: Vec<String>,
    /// Instances that get a dispatch which failed before the first word, in this order.
    pub failover_to: Vec<String>,
    /// `None`: no bound.
    pub rate: Option<StartRate>,
    /// Maximum live agents; `None`: no bound.
    pub max_concurrent: Option<u32>,
    pub permission: PermissionMode,
    /// An idle agent that a dispatch started is ended after this time; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// An agent that has not answered the handshake within this time ends as an error.
    pub start_timeout: Duration,
    /// A request that nobody answers within this time is denied.
    pub request_timeout: Duration,
    pub may_spawn: bool,
    pub allow: StartAllowance,
    /// Of `exec`: the line that ends a turn.
    pub turn_end: Option<String>,
    pub enabled: bool,
}

/// Shows no values of variables, which may be keys.
impl fmt::Debug for AgentInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentInstance")
            .field("name", &self.name)
            .field("backend", &self.backend)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl AgentInstance {
    pub const START_TIMEOUT: Duration = Duration::from_mins(1);
    pub const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);
    pub const IDLE_TIMEOUT: Duration = Duration::from_mins(30);

    /// The instance of a backend that has no entry; `None` if the backend has no default program.
    pub fn of_backend(backend: AgentBackend) -> Option<Self> {
        Some(Self {
            name: backend.as_str().to_owned(),
            backend,
            command: vec![backend.program()?.to_owned()],
            args: Vec::new(),
            cwd: None,
            env: BTreeMap::new(),
            tags: Vec::new(),
            failover_to: Vec::new(),
            rate: None,
            max_concurrent: None,
            permission: PermissionMode::default(),
            idle_timeout: Some(Self::IDLE_TIMEOUT),
            start_timeout: Self::START_TIMEOUT,
            request_timeout: Self::REQUEST_TIMEOUT,
            may_spawn: false,
            allow: StartAllowance::default(),
            turn_end: None,
            enabled: true,
        })
    }
}

/// Whether a name is 1 to 64 lower-case letters, digits and `-`, not beginning with `-`.
pub fn is_instance_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-')
}

/// Whether an instance can be started now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceStatus {
    /// It can.
    Callable,
    /// Its program is not on the path.
    BinaryMissing,
    /// Its entry is wrong, or names a variable that is not set.
    Misconfigured,
    /// Its entry says that it is not to be started.
    Disabled,
}

/// An instance, as everybody sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InstanceView {
    /// Its name.
    pub instance: String,
    /// The kind of agent, as its entry has it.
    pub backend: String,
    /// Whether it can be started.
    pub status: InstanceStatus,
    /// The same as one word.
    pub callable: bool,
    /// Why it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Words that a dispatch may choose it by.
    pub tags: Vec<String>,
    /// Instances that get a dispatch which failed before the first word.
    pub failover_to: Vec<String>,
    /// Its live agents.
    pub live: u64,
}

/// Whether no request may set this variable, not even the operator's: it makes any program run code
/// of whoever sets it, or send its keys there. A person writes it into `env` of the configuration.
fn is_never_set_by_request(variable: &str) -> bool {
    const NEVER: &str = "BASH_ENV ENV PYTHONSTARTUP PERL5OPT RUBYOPT JAVA_TOOL_OPTIONS \
        GIT_SSH_COMMAND PATH HOME";
    loads_code(variable)
        || NEVER.split(' ').any(|never| never == variable)
        || variable.ends_with("_BASE_URL")
}

/// What an instance lets requests of session tokens set of an agent; by default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartAllowance {
    /// Names of variables.
    pub env: Vec<String>,
    /// Globs, each of which matches one whole argument.
    pub args: Vec<String>,
    /// Folders, including those below them.
    pub folders: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
pub enum AgentStarter<'a> {
    /// The operator, whom an instance's allowance does not bind.
    Operator,
    /// A session, with the real path of its project, if it has one.
    Session(Option<&'a Path>),
}

/// What a request sets of an agent.
#[derive(Debug, Clone, Copy)]
pub struct StartSettings<'a> {
    pub env: &'a BTreeMap<String, String>,
    pub args: &'a [String],
    /// Real path of the folder, without links; `None` if the request does not choose it.
    pub folder: Option<&'a Path>,
}

/// Why a request does not start the agent that it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    #[error(
        "no request sets the variable {0}, as it runs code in other programs or leads them elsewhere; a person may write it \
         into `env` of the instance"
    )]
    NeverSet(String),
    #[error("env.{0}: the instance's `allow_env` does not name this variable")]
    Variable(String),
    #[error("args: no glob of the instance's `allow_args` matches {0:?}")]
    Argument(String),
    #[error(
        "cwd: {0} is not in the caller's project, and the instance's `allow_cwd` does not name it"
    )]
    Folder(String),
}

impl StartAllowance {
    /// Fails with the key of the first fault, and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for variable in &self.env {
            if variable.is_empty() || variable.contains(['=', '\0']) {
                return Err(("allow_env", format!("{variable:?} is not the name of a variable")));
            }
            if is_never_set_by_request(variable) {
                let why = format!(
                    "no request may set {variable}: write it into `env`, if it is to be set"
                );
                return Err(("allow_env", why));
            }
        }
        for glob in &self.args {
            whole_argument(glob).map_err(|error| ("allow_args", format!("{glob:?}: {error}")))?;
        }
        Ok(())
    }

    /// Whether a request may set this. Fails with the first setting that it may not set.
    pub fn permits(
        &self,
        requester: AgentStarter<'_>,
        settings: &StartSettings<'_>,
    ) -> Result<(), StartRefusal> {
        if let Some(name) = settings.env.keys().find(|name| is_never_set_by_request(name)) {
            return Err(StartRefusal::NeverSet(name.clone()));
        }
        let AgentStarter::Session(project) = requester else { return Ok(()) };
        if let Some(name) = settings.env.keys().find(|name| !self.env.contains(name)) {
            return Err(StartRefusal::Variable(name.clone()));
        }
        // A glob that does not compile matches nothing; `check` refuses it with the configuration.
        let globs: Vec<_> = self.args.iter().filter_map(|glob| whole_argument(glob).ok()).collect();
        let is_allowed = |arg: &&String| globs.iter().any(|glob| glob.is_match(arg.as_str()));
        if let Some(arg) = settings.args.iter().find(|arg| !is_allowed(arg)) {
            return Err(StartRefusal::Argument(arg.clone()));
        }
        let Some(folder) = settings.folder else { return Ok(()) };
        let mut allowed = project.into_iter().chain(self.folders.iter().map(PathBuf::as_path));
        if allowed.any(|allowed| folder.starts_with(allowed)) {
            return Ok(());
        }
        Err(StartRefusal::Folder(folder.display().to_string()))
    }
}

fn whole_argument(glob: &str) -> Result<globset::GlobMatcher, globset::Error> {
    Ok(GlobBuilder::new(glob).literal_separator(false).build()?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "0", "reviewer", "my-agent-2", &"x".repeat(64)] {
            assert!(is_instance_name(name), "{name}");
        }
        for name in ["", "A", "-a", "a_b", "a__b", "a b", "ä", "a:b", "a/b", &"x".repeat(65)] {
            assert!(!is_instance_name(name), "{name}");
        }
    }

    #[test]
    fn a_rate_is_a_number_and_a_unit() {
        let rate = |text: &str| text.parse::<StartRate>();
        let minute = StartRate { starts: 30, window: Duration::from_mins(1) };
        assert_eq!(rate("30/m"), Ok(minute));
        assert_eq!(rate("5/s").unwrap().window, Duration::from_secs(1));
        assert_eq!(rate("5/h").unwrap().window, Duration::from_hours(1));
        for text in ["", "30", "m", "0/m", "-1/s", "30/d", "30/m/s", "many/m"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    fn variables(names: &[&str]) -> BTreeMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    const OWN: AgentStarter<'_> = AgentStarter::Session(None);

    #[test]
    fn variables_by_table() {
        let allowance =
            StartAllowance { env: words(&["REVIEW", "review"]), ..StartAllowance::default() };
        for (name, for_session, for_operator) in [
            ("REVIEW", true, true),
            ("review", true, true),
            ("Review", false, true),
            ("REVIEW2", false, true),
            ("SVC_HOME", false, true),
            ("LD_PRELOAD", false, false),
            ("LD_LIBRARY_PATH", false, false),
            ("LDFLAGS", false, true),
            ("DYLD_INSERT_LIBRARIES", false, false),
            ("BASH_ENV", false, false),
            ("ENV", false, false),
            ("ENVIRONMENT", false, true),
            ("BASH_FUNC_read%%", false, false),
            ("BASH_FUNC_read()", false, false),
            ("NODE_OPTIONS", false, false),
            ("PYTHONPATH", false, false),
            ("PYTHONSTARTUP", false, false),
            ("PERL5OPT", false, false),
            ("RUBYOPT", false, false),
            ("JAVA_TOOL_OPTIONS", false, false),
            ("GIT_SSH_COMMAND", false, false),
            ("PATH", false, false),
            ("HOME", false, false),
            ("ANTHROPIC_BASE_URL", false, false),
            ("_BASE_URL", false, false),
            ("BASE_URL_OF", false, true),
        ] {
            let env = variables(&[name]);
            let settings = StartSettings { env: &env, args: &[], folder: None };
            assert_eq!(allowance.permits(OWN, &settings).is_ok(), for_session, "{name}");
            let operator = allowance.permits(AgentStarter::Operator, &settings);
            assert_eq!(operator.is_ok(), for_operator, "{name}");
            let named = StartAllowance { env: words(&[name]), ..StartAllowance::default() };
            assert_eq!(named.check().is_ok(), for_operator, "allow_env = [{name:?}]");
        }
        for name in ["", "A=B", "A\0"] {
            let wrong = StartAllowance { env: words(&[name]), ..StartAllowance::default() };
            assert_eq!(wrong.check().unwrap_err().0, "allow_env");
        }
    }

    #[test]
    fn a_glob_matches_one_whole_argument() {
        let allow = |globs: &[&str]| StartAllowance { args: words(globs), ..Default::default() };
        let empty = BTreeMap::new();
        for (globs, args, is_allowed) in [
            (&[][..], &[][..], true),
            (&[], &["--model=opus"], false),
            (&["--model=*"], &["--model=opus"], true),
            (&["--model=*"], &["--model=a/b"], true),
            (&["--model=*"], &["--model=opus", "--verbose"], false),
            (&["--model=*"], &["--model", "opus"], false),
            (&["--model=*"], &["x--model=opus"], false),
            (&["--model=opus"], &["--model=opus2"], false),
            (&["--model=[a-z]*", "-v"], &["-v", "--model=x"], true),
            (&["--model=?"], &["--model=xy"], false),
            (&["*.md"], &["docs/\nx.md"], true),
        ] {
            let args = words(args);
            let settings = StartSettings { env: &empty, args: &args, folder: None };
            assert_eq!(
                allow(globs).permits(OWN, &settings).is_ok(),
                is_allowed,
                "{globs:?} {args:?}"
            );
            assert_eq!(allow(globs).permits(AgentStarter::Operator, &settings), Ok(()));
        }
        assert_eq!(allow(&["a[b"]).check().unwrap_err().0, "allow_args");
        allow(&["*", "--x=*"]).check().unwrap();
    }

    #[test]
    fn folders_are_those_of_the_project_and_those_that_are_named() {
        let allowance =
            StartAllowance { folders: vec![PathBuf::from("/lib/one")], ..Default::default() };
        let empty = BTreeMap::new();
        for (project, folder, is_allowed) in [
            (Some("/p"), Some("/p"), true),
            (Some("/p"), Some("/p/src"), true),
            (Some("/p"), Some("/p2"), false),
            (Some("/p"), Some("/"), false),
            (Some("/p"), Some("/lib/one/two"), true),
            (Some("/p"), Some("/lib"), false),
            (Some("/p"), None, true),
            (None, Some("/p"), false),
            (None, Some("/lib/one"), true),
            (None, None, true),
        ] {
            let settings = StartSettings { env: &empty, args: &[], folder: folder.map(Path::new) };
            let requester = AgentStarter::Session(project.map(Path::new));
            let permitted = allowance.permits(requester, &settings);
            assert_eq!(permitted.is_ok(), is_allowed, "{project:?} {folder:?}");
            assert_eq!(allowance.permits(AgentStarter::Operator, &settings), Ok(()));
        }
    }
}
