//! Child MCP servers: the configuration entry of one (`entry`), the secrets of its entry
//! (`secrets`), and here its state, and names that every client accepts.

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{Timestamp, quote::is_invisible, words::words};

mod entry;
mod secrets;

pub use entry::{
    BUILTIN_CORE, OauthChoice, RemoteKind, Sharing, SourceEntry, SourceProblem, SourceTransport,
    matches_glob,
};
pub use secrets::{MissingVariable, Redactor, SecretDestination, expand};

words! {
    /// What a server is doing.
    pub enum SourceState {
        /// It is about to be started.
        Pending = "pending",
        /// It has been started and has not given its lists yet.
        Connecting = "connecting",
        /// It works.
        Connected = "connected",
        /// Somebody has to log in.
        NeedsAuth = "needs_auth",
        /// It never worked, and nothing more is tried by itself.
        Failed = "failed",
        /// Its entry cannot be used.
        Misconfigured = "misconfigured",
        /// A person has turned it off.
        Disabled = "disabled",
        /// Its file waits for a person's approval.
        PendingApproval = "pending_approval",
        /// It ended, and is started again later.
        BackingOff = "backing_off",
        /// A stronger entry has its name.
        Hidden = "hidden",
    }
}

impl SourceState {
    /// Whether a call may wait for it.
    pub const fn is_starting(self) -> bool {
        matches!(self, Self::Pending | Self::Connecting)
    }
}

/// A server as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceView {
    /// Its name.
    pub name: String,
    /// Root of the project whose file names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// What it is doing.
    pub state: SourceState,
    /// Why, if it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_action: Option<String>,
    /// How many starts have failed in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the next start is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// `stdio`, `http`, `sse` or `builtin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Who shares one instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// How many tools it shows.
    pub tools: usize,
    /// How many resources it has.
    pub resources: usize,
    /// How many prompts it has.
    pub prompts: usize,
    /// How many of its definitions (tools, resources, prompts) are not those that a person has
    /// approved. Of a project's server they wait; a person's own server shows them.
    #[serde(default, skip_serializing_if = "is_none_changed")]
    pub changed: usize,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Further instances: those of projects and sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<SourceInstance>,
    /// What it runs or calls and what it is given, while its file waits for approval (operator).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<String>,
    /// The file that names it.
    pub from: String,
    /// The file whose entry of this name is used instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_by: Option<String>,
    /// What is odd about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Since when it is in this state.
    pub since: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_none_changed(changed: &usize) -> bool {
    *changed == 0
}

/// An instance of a server, of a project or a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceInstance {
    /// The project, or the session.
    pub key: String,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: SourceState,
}

/// Maximum starts of a server that has never worked.
pub const STARTS_BEFORE_FAILED: u32 = 6;

/// Maximum length of a server's name.
const SOURCE_NAME: usize = 32;
/// Maximum length of a tool's name, without the prefix of clients (`mcp__svc__`).
const TOOL_NAME: usize = 64 - 10;
/// Maximum description of a tool, in bytes.
const DESCRIPTION: usize = 2048;

fn normal(text: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    text.chars().map(|c| if keep(c) { c } else { '_' }).collect()
}

/// The name of a server as tools' names contain it.
pub fn source_name(text: &str) -> Result<String, SourceProblem> {
    let name = normal(text);
    let problem = if name.is_empty() {
        "the name is empty"
    } else if name.len() > SOURCE_NAME {
        "the name is longer than 32 characters"
    } else if name.contains("__") {
        "the name has `__`, which parts a server's name from its tool's"
    } else {
        return Ok(name);
    };
    Err(SourceProblem::new("", problem))
}

/// The name of a tool as clients see it, with a hash if the plain name is too long or is taken.
pub fn child_tool_name(source: &str, tool: &str, is_taken: &dyn Fn(&str) -> bool) -> String {
    let whole = format!("{source}__{tool}");
    let plain = normal(&whole.replace(is_invisible, ""));
    if plain.len() <= TOOL_NAME && !is_taken(&plain) {
        return plain;
    }
    let hash = hex::encode(&Sha256::digest(&whole)[..4]);
    let head: String = plain.chars().take(TOOL_NAME - 9).collect();
    format!("{head}_{hash}")
}

/// A description that is too long, cut at a word; `None` if it is not.
pub fn cut_description(text: &str) -> Option<String> {
    if text.len() <= DESCRIPTION {
        return None;
    }
    let mut end = DESCRIPTION - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let head = &text[..end];
    let cut = head.rfind(char::is_whitespace).filter(|at| *at > end / 2).unwrap_or(end);
    Some(format!("{}…", head[..cut].trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_by_table() {
        for (text, expected) in [
            ("github", Some("github")),
            ("a.b c", Some("a_b_c")),
            ("", None),
            ("a__b", None),
            ("é__", None),
            (&"x".repeat(32), Some(&*"x".repeat(32))),
            (&"x".repeat(33), None),
        ] {
            assert_eq!(source_name(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn names_of_tools_fit_and_are_stable() {
        let free = |_: &str| false;
        assert_eq!(child_tool_name("fs", "read_file", &free), "fs__read_file");
        assert_eq!(child_tool_name("fs", "a.b/c", &free), "fs__a_b_c");
        let fits = "x".repeat(50);
        assert_eq!(child_tool_name("fs", &fits, &free).len(), 54);
        let long = "x".repeat(51);
        let name = child_tool_name("fs", &long, &free);
        let hash = hex::encode(&Sha256::digest(format!("fs__{long}"))[..4]);
        assert_eq!(name.len(), 54);
        assert!(name.ends_with(&format!("_{hash}")), "{name}");
        let other = child_tool_name("fs", "a_b", &|name| name == "fs__a_b");
        assert!(other.starts_with("fs__a_b_") && other.len() == 16, "{other}");
    }

    #[test]
    fn descriptions_are_cut_at_a_word() {
        assert_eq!(cut_description("short"), None);
        let cut = cut_description(&"word ".repeat(600)).expect("is long");
        assert!(cut.len() <= 2048 && cut.ends_with("word…"), "{}", cut.len());
        let cut = cut_description(&"é".repeat(2000)).expect("is long");
        assert!(cut.len() <= 2048 && cut.ends_with('…'));
    }
}
