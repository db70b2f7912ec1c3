//! Instances: configured ways to run an agent.

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    StartAllowance,
    agent::{AgentBackend, PermissionMode},
};

/// How often an instance may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartRate {
    /// Starts within the window.
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
    /// Its name: lower-case letters, digits and `-`, at most 64, without `__`.
    pub name: String,
    /// The kind of agent.
    pub backend: AgentBackend,
    /// The program and what always follows it.
    pub command: Vec<String>,
    /// Arguments after those of the backend.
    pub args: Vec<String>,
    /// Its folder; that of whoever starts it if `None`.
    pub cwd: Option<PathBuf>,
    /// Variables, with `${VAR}` as written.
    pub env: BTreeMap<String, String>,
    /// Words that a dispatch may choose it by.
    pub tags: Vec<String>,
    /// Instances that get a dispatch which failed before the first word, in this order.
    pub failover_to: Vec<String>,
    /// How often it may be started; without a bound if `None`.
    pub rate: Option<StartRate>,
    /// Live agents of it; without a bound if `None`.
    pub max_concurrent: Option<u32>,
    /// What happens when it asks for permission.
    pub permission: PermissionMode,
    /// An idle agent that a dispatch started is ended after this time; never if `None`.
    pub idle_timeout: Option<Duration>,
    /// An agent that has not answered the handshake within this time ends as an error.
    pub start_timeout: Duration,
    /// A request that nobody answers within this time is denied.
    pub request_timeout: Duration,
    /// Whether its agents may start others.
    pub may_spawn: bool,
    /// What the requests of session tokens may set of an agent.
    pub allow: StartAllowance,
    /// Of `exec`: the line that ends a turn.
    pub turn_end: Option<String>,
    /// Whether it may be started at all.
    pub enabled: bool,
}

/// Shows no values of variables: they may be keys.
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
    /// Time until an agent has to answer the handshake.
    pub const START_TIMEOUT: Duration = Duration::from_mins(1);
    /// Time until a request is denied.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_mins(10);
    /// Time until an idle agent of a dispatch is ended.
    pub const IDLE_TIMEOUT: Duration = Duration::from_mins(30);

    /// The instance that a backend is without an entry; `None` if the backend has no program of its
    /// own.
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

/// Whether a name may be an instance's.
pub fn is_instance_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=64).contains(&name.len())
        && name.bytes().all(fits)
        && !name.starts_with('-')
        && !name.contains("__")
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
}
