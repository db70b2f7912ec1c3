//! The caller of a request. Derived from the credential alone, and an argument of every service
//! call.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Principal, ProcessIdentity, TokenId, is_agent_key};

/// Scope to start, steer and stop agents of the own project.
pub const AGENTS_SCOPE: &str = "agents";
/// Scope of a session's token to answer requests of agents of its project.
pub const APPROVE_SCOPE: &str = "approve";
/// Scope of tools that run commands, change files and fetch pages.
pub const EXEC_SCOPE: &str = "exec";
/// Scope of tools that read files.
pub const READ_SCOPE: &str = "read";
/// Scope to read rows of every project.
pub const READ_ALL: &str = "read_all";
/// Scopes that the daemon's own tools and routes require. Entries of servers may define others.
pub const OWN_SCOPES: [&str; 5] = [AGENTS_SCOPE, APPROVE_SCOPE, EXEC_SCOPE, READ_SCOPE, READ_ALL];

/// The identity of a caller. It comes from the token and never from a body or a header that the
/// caller chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Holder of the operator token or of a browser's cookie, or a program of the daemon's user
    /// under `--no-auth`.
    Operator,
    /// Holder of a session token.
    Session {
        /// The subject: the session that the token was issued for.
        key: Arc<str>,
        token: TokenId,
        /// Scopes beyond the default.
        scopes: Arc<[Scope]>,
        /// The project whose rows the caller may read, besides its own.
        project: Option<Arc<str>>,
        /// Root of the project on this machine; `None` where that is the project itself.
        root: Option<Arc<str>>,
        /// The process that the token was issued to; `None` if a person minted it.
        process: Option<Arc<ProcessIdentity>>,
        /// The folder that the token was issued for or first used in.
        folder: Option<Arc<str>>,
    },
}

impl Caller {
    /// The session that the caller speaks for; `None` for the operator.
    pub fn session(&self) -> Option<&str> {
        match self {
            Self::Operator => None,
            Self::Session { key, .. } => Some(key),
        }
    }

    /// The caller's identity without its rights, as rows store it.
    pub fn principal(&self) -> Principal {
        match self {
            Self::Operator => Principal::Operator,
            Self::Session { key, .. } => Principal::Session(Arc::clone(key)),
        }
    }

    pub const fn token(&self) -> Option<&TokenId> {
        match self {
            Self::Operator => None,
            Self::Session { token, .. } => Some(token),
        }
    }

    /// The process that the caller's token was issued to.
    pub fn process(&self) -> Option<&ProcessIdentity> {
        match self {
            Self::Operator => None,
            Self::Session { process, .. } => process.as_deref(),
        }
    }

    /// The project whose rows the caller may read besides its own; `None` for the operator, who
    /// reads all.
    pub fn project(&self) -> Option<&str> {
        match self {
            Self::Operator => None,
            Self::Session { project, .. } => project.as_deref(),
        }
    }

    /// Root of the caller's project on this machine.
    pub fn root(&self) -> Option<&str> {
        let Self::Session { project, root, .. } = self else { return None };
        // Of a folder without a name the project is the folder.
        root.as_deref().or_else(|| project.as_deref().filter(|project| project.starts_with('/')))
    }

    /// The folder of the caller's project that it works in; the project's root if no such folder is
    /// known.
    pub fn folder(&self) -> Option<&str> {
        let root = self.root()?;
        match self {
            Self::Session { folder: Some(folder), .. }
                if Path::new(&**folder).starts_with(root) =>
            {
                Some(folder)
            }
            Self::Operator | Self::Session { .. } => Some(root),
        }
    }

    /// Whether the caller is a client's process, which may have several sessions, each in a project
    /// of its own. A hosted agent belongs to the project that it was started in.
    pub fn is_client_process(&self) -> bool {
        self.process().is_some() && self.session().is_some_and(|key| !is_agent_key(key))
    }

    /// The same caller in another project: that of the session that its client's process acts for.
    #[must_use]
    pub fn in_project(&self, other: &str, root_here: Option<&str>) -> Self {
        let mut caller = self.clone();
        if let Self::Session { project, root, .. } = &mut caller
            && (project.as_deref(), root.as_deref()) != (Some(other), root_here)
        {
            *project = Some(other.into());
            *root = root_here.map(Arc::from);
        }
        caller
    }

    /// Whether the caller has this scope. The operator has every scope.
    pub fn has_scope(&self, scope: &str) -> bool {
        match self {
            Self::Operator => true,
            Self::Session { scopes, .. } => scopes.iter().any(|held| held.0 == scope),
        }
    }

    /// How a person can give this caller a missing scope.
    pub fn scope_advice(&self, scope: &str) -> String {
        let minted =
            format!("`svc mcp-config --session NAME --scope {scope}` makes a token that has it");
        match self {
            Self::Session { key, .. } if is_agent_key(key) => {
                let instance = key.split(':').nth(1).unwrap_or_default();
                if scope == AGENTS_SCOPE {
                    format!(
                        "a person grants it with may_spawn = true under [agents.{instance}] in config.toml, and starts this agent again"
                    )
                } else {
                    "agents that svc runs do not get it".to_owned()
                }
            }
            Self::Session { process: Some(_), key, .. } => {
                // All terminals of Codex are sessions of one process that outlives them.
                let restart = if key.starts_with("codex-") {
                    "and then restarts Codex' background process: `codex app-server daemon stop`"
                } else {
                    "and restarts this session"
                };
                format!(
                    "a person at this machine grants it with `svc install --scope {scope}`, {restart}"
                )
            }
            Self::Operator | Self::Session { .. } => minted,
        }
    }

    pub const fn is_operator(&self) -> bool {
        matches!(self, Self::Operator)
    }
}

/// A permission that a session token may carry, as free text (`exec`, …): the tools that ask for
/// one name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Scope(pub String);
