//! Who a caller is, what it may read and write, and how much it may use. This module is the only
//! place with the rule.
//!
//! [`Caller::access_to`] checks a single row, [`Reader::may_read`] a stream. A query of many rows
//! gets the [`Reader`] and applies the same rule in SQL, so that a page keeps its size and a search
//! its candidates. Tests of `svc-store` compare the SQL with this module.
//!
//! One principal has five bounds, which a person may configure: [`BudgetKind`]. Bounds for all
//! callers together are in [`limits`](crate::limits).

use std::{fmt, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{ProcessIdentity, StreamName, TokenId, is_agent_key};

/// The identity that a credential proves, without its rights.
///
/// Rows store the text form. [`Principal::parse`] is the only parser, and it fails closed: a text
/// that does not parse is no principal, and owns nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    Operator,
    /// Holder of a token of the session with this key.
    Session(Arc<str>),
}

const OPERATOR: &str = "operator";
const SESSION: &str = "session:";

impl Principal {
    /// Parses the text form: `operator`, or `session:` and a non-empty key.
    pub fn parse(text: &str) -> Option<Self> {
        if text == OPERATOR {
            return Some(Self::Operator);
        }
        let key = text.strip_prefix(SESSION)?;
        (!key.is_empty()).then(|| Self::Session(key.into()))
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str(OPERATOR),
            Self::Session(key) => write!(f, "{SESSION}{key}"),
        }
    }
}

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
    /// A session that speaks with this token, of which neither process nor folder is known.
    pub fn of_session(token: &str, key: &str, project: Option<&str>, scopes: &[&str]) -> Self {
        Self::Session {
            key: key.into(),
            token: TokenId::from(token.to_owned()),
            scopes: scopes.iter().map(|scope| Scope((*scope).to_owned())).collect(),
            project: project.map(Arc::from),
            root: None,
            process: None,
            folder: None,
        }
    }

    /// The session that the caller speaks for; `None` for the operator.
    pub fn session(&self) -> Option<&str> {
        let Self::Session { key, .. } = self else { return None };
        Some(key)
    }

    /// The caller's identity without its rights, as rows store it.
    pub fn principal(&self) -> Principal {
        match self {
            Self::Operator => Principal::Operator,
            Self::Session { key, .. } => Principal::Session(Arc::clone(key)),
        }
    }

    pub const fn token(&self) -> Option<&TokenId> {
        let Self::Session { token, .. } = self else { return None };
        Some(token)
    }

    /// The process that the caller's token was issued to.
    pub fn process(&self) -> Option<&ProcessIdentity> {
        let Self::Session { process, .. } = self else { return None };
        process.as_deref()
    }

    /// The project whose rows the caller may read besides its own; `None` for the operator, who
    /// reads all.
    pub fn project(&self) -> Option<&str> {
        let Self::Session { project, .. } = self else { return None };
        project.as_deref()
    }

    /// Root of the caller's project on this machine.
    pub fn root(&self) -> Option<&str> {
        let Self::Session { project, root, .. } = self else { return None };
        // The project of a folder without a name is the folder.
        root.as_deref().or_else(|| project.as_deref().filter(|project| project.starts_with('/')))
    }

    /// The folder of the caller's project that it works in; the project's root if no such folder is
    /// known.
    pub fn folder(&self) -> Option<&str> {
        let root = self.root()?;
        let Self::Session { folder, .. } = self else { return Some(root) };
        Some(folder.as_deref().filter(|folder| Path::new(folder).starts_with(root)).unwrap_or(root))
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
        match self {
            // Only the processes of an agent have its own scopes: a minted token for its key has
            // those that it was minted with.
            Self::Session { process: Some(_), key, .. } if is_agent_key(key) => {
                let instance = key.split(':').nth(1).unwrap_or_default();
                if scope != AGENTS_SCOPE {
                    return "agents that svc runs do not get it".to_owned();
                }
                format!(
                    "a person grants it with may_spawn = true under [agents.{instance}] in config.toml, and starts this agent again"
                )
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
            Self::Operator | Self::Session { .. } => {
                format!("`svc mcp-config --session NAME --scope {scope}` makes a token that has it")
            }
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The principal that created it; `None` if the stored value does not parse: then nobody owns
    /// it.
    pub owner: Option<Principal>,
    /// The principal that runs it, for a task.
    pub runner: Option<Principal>,
    pub project: Option<String>,
}

impl Ownership {
    /// From the stored form: the owner's text form, and an empty text for no project.
    pub fn from_row(owner: &str, project: String) -> Self {
        Self {
            owner: Principal::parse(owner),
            runner: None,
            project: (!project.is_empty()).then_some(project),
        }
    }
}

/// What a caller may do with a row, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessLevel {
    /// The row does not exist for the caller.
    Hidden,
    Read,
    /// Change, end or remove it.
    Write,
}

/// Who may read a stream. Set when the stream is opened, and stored with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamVisibility {
    /// Every caller. The events contain only presence.
    Team,
    /// The operator, the owner, the runner, the sessions of the project, and callers with
    /// [`READ_ALL`].
    Shared {
        /// Text form of the principal, or a text that does not parse.
        owner: Option<Arc<str>>,
        /// Text form of the principal that runs it, for a task. The runner may belong to another
        /// project.
        runner: Option<Arc<str>>,
        project: Option<Arc<str>>,
    },
    /// The operator and the owner: the stream is about messages.
    Private {
        /// Text form of the principal.
        owner: Arc<str>,
    },
    /// The operator only. The stream holds results for a client, which may contain what others may
    /// not read. The client itself reads the results through its call.
    Answers,
}

impl StreamVisibility {
    pub fn shared(thing: &Ownership) -> Self {
        let text = |principal: &Option<Principal>| {
            principal.as_ref().map(|principal| principal.to_string().into())
        };
        Self::Shared {
            owner: text(&thing.owner),
            runner: text(&thing.runner),
            project: thing.project.as_deref().map(Arc::from),
        }
    }

    /// Visibility of a stream that only its owner and the operator read.
    pub fn private(owner: &Principal) -> Self {
        Self::Private { owner: owner.to_string().into() }
    }

    pub fn for_daemon() -> Self {
        Self::shared(&Ownership::from_row("operator", String::new()))
    }
}

/// The principal that rows and streams are read for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Reader {
    All,
    /// A tool that the operator calls, and a session with [`READ_ALL`]. The result of such a tool
    /// becomes an event of a stream of answers. If the tool read those streams, each result would
    /// contain all earlier ones.
    AllButCallResults,
    /// A session reads rows that it owns or runs, and rows of its project.
    Session {
        /// Subject of its token.
        key: Arc<str>,
        /// Text form of its principal.
        owner: Arc<str>,
        project: Option<Arc<str>>,
    },
}

impl Reader {
    pub fn from_caller(caller: &Caller) -> Self {
        match caller {
            Caller::Operator => Self::All,
            Caller::Session { .. } if caller.has_scope(READ_ALL) => Self::AllButCallResults,
            Caller::Session { key, project, .. } => Self::Session {
                key: Arc::clone(key),
                owner: caller.principal().to_string().into(),
                project: project.clone(),
            },
        }
    }

    /// The reader for a tool that this caller calls.
    pub fn for_tool(caller: &Caller) -> Self {
        match Self::from_caller(caller) {
            Self::All => Self::AllButCallResults,
            reader => reader,
        }
    }

    /// Whether the reader may read a stream, or a row, of this visibility.
    pub fn may_read(&self, visibility: &StreamVisibility) -> bool {
        use StreamVisibility::{Answers, Private, Shared, Team};
        let Self::Session { owner, project, .. } = self else {
            return *self == Self::All || *visibility != Answers;
        };
        match visibility {
            Team => true,
            Answers => false,
            Private { owner: other } => other == owner,
            Shared { owner: other, runner, project: of_stream } => {
                other.as_ref() == Some(owner)
                    || runner.as_ref() == Some(owner)
                    || project.is_some() && project == of_stream
            }
        }
    }

    /// Whether the reader reads rows of all owners.
    pub fn reads_all_rows(&self) -> bool {
        !matches!(self, Self::Session { .. })
    }

    /// For a query of streams, the readable streams besides the reader's own: 0 the team's and its
    /// project's, 1 all but answers, 2 all.
    pub fn level(&self) -> i64 {
        match self {
            Self::Session { .. } => 0,
            Self::AllButCallResults => 1,
            Self::All => 2,
        }
    }

    /// The session, for a query; `None` if the reader reads rows of all owners.
    pub fn key(&self) -> Option<&str> {
        let Self::Session { key, .. } = self else { return None };
        Some(key)
    }

    /// Text form of the session's principal, for a query.
    pub fn owner(&self) -> Option<&str> {
        let Self::Session { owner, .. } = self else { return None };
        Some(owner)
    }

    /// The project, for a query; `None` also for a session without one.
    pub fn project(&self) -> Option<&str> {
        let Self::Session { project, .. } = self else { return None };
        project.as_deref()
    }
}

impl Caller {
    /// Whether a row belongs to the caller's project. Always true for the operator.
    pub fn is_of_project(&self, thing: &Ownership) -> bool {
        let Self::Session { project, .. } = self else { return true };
        project.is_some() && project.as_deref() == thing.project.as_deref()
    }

    /// What the caller may do with a row. Owner, runner and operator may write; everyone who may
    /// read its stream may read.
    pub fn access_to(&self, thing: &Ownership) -> AccessLevel {
        let own = Some(self.principal());
        if *self == Self::Operator || thing.owner == own || thing.runner == own {
            AccessLevel::Write
        } else if Reader::from_caller(self).may_read(&StreamVisibility::shared(thing)) {
            AccessLevel::Read
        } else {
            AccessLevel::Hidden
        }
    }
}

/// Whether a stream of this name holds results for clients. Such streams are in no list.
pub fn holds_call_results(name: &StreamName) -> bool {
    name.kind() == "mcp"
}

/// A bound on one principal's use of the daemon. The operator, who owns the machine, has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetKind {
    /// Concurrent requests, including running calls of tools. A body counts as one more for each
    /// [`REQUEST_UNIT_BYTES`] of it.
    Requests,
    /// Open streams of events.
    Streams,
    /// Bytes of responses that the daemon holds until the reader takes them.
    UnreadBytes,
    /// Bytes that are stored within an hour: bodies as they were sent, and the text for each
    /// further copy of a broadcast.
    StoredBytesPerHour,
    /// Rows of the kinds that are bounded, over all tables.
    Rows,
}

/// Bytes of a body that count as one more request.
pub const REQUEST_UNIT_BYTES: u64 = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetBounds([u64; BudgetKind::ALL.len()]);

const MIB: u64 = 1024 * 1024;

impl BudgetKind {
    /// In the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::Requests, Self::Streams, Self::UnreadBytes, Self::StoredBytesPerHour, Self::Rows];

    /// The key in the configuration, the default, the unit, and what a caller can do to get below
    /// the bound again.
    const fn facts(self) -> (&'static str, u64, &'static str, &'static str) {
        match self {
            Self::Requests => (
                "budget.requests",
                256,
                "requests at once (each 64 KiB of a body and each call at work count as one more)",
                "wait for the answers to earlier requests, or cancel a call",
            ),
            Self::Streams => ("budget.streams", 64, "open streams", "close one"),
            Self::UnreadBytes => (
                "budget.unread_bytes",
                64 * MIB,
                "bytes of answers that were not read",
                "read the answers that wait on your connections, or close those",
            ),
            Self::StoredBytesPerHour => (
                "budget.stored_bytes_per_hour",
                1024 * MIB,
                "bytes stored within an hour",
                "wait, or send less: each copy of a broadcast counts",
            ),
            Self::Rows => (
                "budget.rows",
                20_000,
                "rows kept",
                "end tasks (TaskCancel, `svc task cancel`), sessions (end_session) and MCP sessions (DELETE /mcp), remove \
                 peers (DELETE /v1/peers/{id}), subscriptions (resources/unsubscribe) and memories (delete_memory); \
                 messages count until their receivers acknowledge them",
            ),
        }
    }

    /// The key of the bound in the configuration.
    pub const fn key(self) -> &'static str {
        self.facts().0
    }

    /// The default: enough for a busy agent, and fifty of them fit one machine.
    pub const fn default_bound(self) -> u64 {
        self.facts().1
    }

    /// The text of a refusal: the request would go beyond `bound`, while `used` is taken.
    pub fn refusal(self, used: u64, bound: u64) -> String {
        let (key, _, unit, advice) = self.facts();
        format!("{key}: {used} of {bound} {unit} are taken; {advice}")
    }

    const fn index(self) -> usize {
        self as usize
    }
}

impl Default for BudgetBounds {
    fn default() -> Self {
        Self(BudgetKind::ALL.map(BudgetKind::default_bound))
    }
}

impl BudgetBounds {
    pub const fn bound(&self, kind: BudgetKind) -> u64 {
        self.0[kind.index()]
    }

    pub const fn set(&mut self, kind: BudgetKind, bound: u64) {
        self.0[kind.index()] = bound;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_unknown_text_is_no_principal() {
        for text in ["", "Operator", " operator", "operator ", "session", "session:", "admin", "*"]
        {
            assert_eq!(Principal::parse(text), None, "{text:?}");
        }
        assert_eq!(
            Principal::parse("session:operator"),
            Some(Principal::Session("operator".into()))
        );
    }

    proptest! {
        #[test]
        fn the_text_form_parses_back_to_the_same_principal(key in ".+", text in any::<String>()) {
            let session = Principal::Session(key.as_str().into());
            prop_assert_eq!(Principal::parse(&session.to_string()), Some(session));
            if let Some(principal) = Principal::parse(&text) {
                prop_assert_eq!(principal.to_string(), text);
            }
        }
    }

    fn session(key: &str, project: Option<&str>, scopes: &[&str]) -> Caller {
        Caller::of_session("tok_1", key, project, scopes)
    }

    #[test]
    fn only_an_agents_own_process_gets_a_scope_by_its_instance() {
        let minted = session("agent:cat:main", None, &[]);
        assert!(minted.scope_advice(AGENTS_SCOPE).contains("svc mcp-config"));
        let mut own = minted;
        if let Caller::Session { process, .. } = &mut own {
            *process = Some(Arc::new(ProcessIdentity { pid: 1, started: "1".to_owned() }));
        }
        assert!(own.scope_advice(AGENTS_SCOPE).contains("may_spawn = true under [agents.cat]"));
    }

    #[test]
    fn owners_may_write_projects_may_read_others_see_nothing() {
        use AccessLevel::{Hidden, Read, Write};
        let callers = [
            Caller::Operator,
            session("a", Some("/p"), &[]),
            session("b", Some("/p"), &[]),
            session("c", Some("/q"), &["exec", "read"]),
            session("d", None, &[]),
            session("e", None, &[READ_ALL]),
        ];
        for (owner, project, levels) in [
            ("session:a", "/p", [Write, Write, Read, Hidden, Hidden, Read]),
            ("session:a", "", [Write, Write, Hidden, Hidden, Hidden, Read]),
            ("session:a", "/q", [Write, Write, Hidden, Read, Hidden, Read]),
            ("session:d", "", [Write, Hidden, Hidden, Hidden, Write, Read]),
            ("operator", "", [Write, Hidden, Hidden, Hidden, Hidden, Read]),
            ("operator", "/p", [Write, Read, Read, Hidden, Hidden, Read]),
            ("operator", "/p/", [Write, Hidden, Hidden, Hidden, Hidden, Read]),
            ("a", "", [Write, Hidden, Hidden, Hidden, Hidden, Read]),
            ("session:", "", [Write, Hidden, Hidden, Hidden, Hidden, Read]),
        ] {
            let thing = Ownership::from_row(owner, project.to_owned());
            let given: Vec<_> = callers.iter().map(|caller| caller.access_to(&thing)).collect();
            assert_eq!(given, levels, "{owner} {project}");
        }
        let runner = Some(Principal::Session("d".into()));
        let task = Ownership { runner, ..Ownership::from_row("session:a", "/p".to_owned()) };
        let given: Vec<_> = callers.iter().map(|caller| caller.access_to(&task)).collect();
        assert_eq!(given, [Write, Write, Read, Hidden, Write, Read], "a task that d runs");
    }

    #[test]
    fn a_reader_may_read_the_streams_of_its_caller() {
        let caller =
            |key, project, scopes: &[&str]| Reader::from_caller(&session(key, project, scopes));
        let readers = [
            Reader::from_caller(&Caller::Operator),
            Reader::for_tool(&Caller::Operator),
            caller("a", Some("/p"), &["exec"]),
            caller("b", Some("/p"), &[]),
            caller("c", None, &[]),
            caller("d", None, &[READ_ALL]),
        ];
        let keys: Vec<_> = readers.iter().map(|reader| (reader.key(), reader.project())).collect();
        let all = (None, None);
        let (a, b) = ((Some("a"), Some("/p")), (Some("b"), Some("/p")));
        assert_eq!(keys, [all, all, a, b, (Some("c"), None), all]);
        let shared = |owner: &str, project: &str| {
            StreamVisibility::shared(&Ownership::from_row(owner, project.to_owned()))
        };
        let private = StreamVisibility::private(&Principal::Session("a".into()));
        let given = StreamVisibility::shared(&Ownership {
            runner: Some(Principal::Session("c".into())),
            ..Ownership::from_row("session:a", "/p".to_owned())
        });
        for (visibility, expected) in [
            (given, [true, true, true, true, true, true]),
            (StreamVisibility::Team, [true, true, true, true, true, true]),
            (shared("session:a", "/p"), [true, true, true, true, false, true]),
            (shared("session:a", ""), [true, true, true, false, false, true]),
            (shared("session:c", ""), [true, true, false, false, true, true]),
            (shared("operator", ""), [true, true, false, false, false, true]),
            (shared("who knows", ""), [true, true, false, false, false, true]),
            (private, [true, true, true, false, false, true]),
            (StreamVisibility::Answers, [true, false, false, false, false, false]),
        ] {
            let given: Vec<_> = readers.iter().map(|reader| reader.may_read(&visibility)).collect();
            assert_eq!(given, expected, "{visibility:?}");
        }
    }

    #[test]
    fn only_streams_of_calls_hold_answers() {
        assert!(holds_call_results(&StreamName::parse("mcp/call_1").unwrap()));
        for name in ["mcp", "mcpx/1", "task/mcp/1", "team"] {
            assert!(!holds_call_results(&StreamName::parse(name).unwrap()), "{name}");
        }
    }

    #[test]
    fn each_kind_has_its_place_a_key_and_words() {
        let mut bounds = BudgetBounds::default();
        for (index, kind) in BudgetKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{kind:?}");
            assert_eq!(bounds.bound(kind), kind.default_bound());
            bounds.set(kind, index as u64);
            let refusal = kind.refusal(3, 4);
            assert!(refusal.starts_with("budget."), "{refusal}");
            assert!(refusal.contains("3 of 4 ") && refusal.contains("; "), "{refusal}");
        }
        for (index, kind) in BudgetKind::ALL.into_iter().enumerate() {
            assert_eq!(bounds.bound(kind), index as u64);
        }
    }
}
