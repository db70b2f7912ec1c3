//! What the status of a participant rests on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a status rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StatusEvidence {
    /// The last hook that its client called.
    Hook,
    /// Its client's own record of the session, which the daemon reads.
    Registry,
    /// The app-server that runs the session.
    AppServer,
    /// The last event that the plugin in its client told of.
    Plugin,
    /// The host of an agent that the daemon runs.
    Host,
    /// Its process, and the calls that it makes.
    Process,
}

impl StatusEvidence {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hook => "hook",
            Self::Registry => "registry",
            Self::AppServer => "app-server",
            Self::Plugin => "plugin",
            Self::Host => "host",
            Self::Process => "process",
        }
    }
}
