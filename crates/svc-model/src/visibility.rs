//! Who may read a stream. The rule stands here and nowhere else: whoever reads asks [`StreamReader::may_read`], or
//! gives the reader to a query, whose `where` says the same (`svc-store/sqlite/replay.rs`; a test there holds the two
//! together).

use std::sync::Arc;

use super::{Caller, Ownership, Principal, READ_ALL, StreamName};

/// Who may read a stream. It is decided when the stream is opened, and stored with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamVisibility {
    /// Every caller. Its events hold presence and no more.
    Team,
    /// The operator, the owner, the runner, the sessions of the project, and who reads all.
    Shared {
        /// Text form of the principal, or of none that we know.
        owner: Option<Arc<str>>,
        /// Text form of the principal that runs it, of a task. It may be of another project.
        runner: Option<Arc<str>>,
        /// Root of the project.
        project: Option<Arc<str>>,
    },
    /// The operator and the owner: it is about messages.
    Private {
        /// Text form of the principal.
        owner: Arc<str>,
    },
    /// The operator. It holds answers to a client, which may hold what others may not read. The client itself reads it
    /// by another way, which knows whose call it was.
    Answers,
}

impl StreamVisibility {
    /// That of a stream of a thing.
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

    /// That of a stream that nobody but its owner reads.
    pub fn private(owner: &Principal) -> Self {
        Self::Private { owner: owner.to_string().into() }
    }

    /// That of the daemon's own stream.
    pub fn of_daemon() -> Self {
        Self::shared(&Ownership::of_row("operator", String::new()))
    }
}

/// For whom streams are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamReader {
    /// The operator.
    Operator,
    /// A tool that the operator calls. Its answer becomes an event of a stream of answers, so it reads none of those: each
    /// answer would hold all before it.
    OperatorTool,
    /// A session.
    Session {
        /// Text form of its principal.
        owner: Arc<str>,
        /// Root of its project.
        project: Option<Arc<str>>,
        /// Whether it reads the things of every project.
        reads_all: bool,
    },
}

impl StreamReader {
    /// The reader that a caller is.
    pub fn of(caller: &Caller) -> Self {
        match caller {
            Caller::Operator => Self::Operator,
            Caller::Session { project, .. } => Self::Session {
                owner: caller.principal().to_string().into(),
                project: project.clone(),
                reads_all: caller.has_scope(READ_ALL),
            },
        }
    }

    /// The reader that a tool is which this caller calls.
    pub fn of_tool(caller: &Caller) -> Self {
        match Self::of(caller) {
            Self::Operator => Self::OperatorTool,
            reader => reader,
        }
    }

    /// Whether it may read streams of this visibility.
    pub fn may_read(&self, visibility: &StreamVisibility) -> bool {
        use StreamVisibility::{Answers, Private, Shared, Team};
        match (self, visibility) {
            (Self::Operator, _)
            | (_, Team)
            | (
                Self::OperatorTool | Self::Session { reads_all: true, .. },
                Shared { .. } | Private { .. },
            ) => true,
            (Self::OperatorTool | Self::Session { .. }, Answers) => false,
            (Self::Session { owner, .. }, Private { owner: other }) => owner == other,
            (
                Self::Session { owner, project, .. },
                Shared { owner: other, runner, project: of_stream },
            ) => {
                other.as_ref() == Some(owner)
                    || runner.as_ref() == Some(owner)
                    || project.is_some() && project == of_stream
            }
        }
    }

    /// Which streams it reads that are not its own, as a query counts it: 0 those of everybody and of its project, 1 all but
    /// answers, 2 all.
    pub fn level(&self) -> i64 {
        match self {
            Self::Session { reads_all, .. } => i64::from(*reads_all),
            Self::OperatorTool => 1,
            Self::Operator => 2,
        }
    }

    /// Text form of the principal whose streams are its own, for a query.
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::Session { owner, .. } => Some(owner),
            Self::Operator | Self::OperatorTool => None,
        }
    }

    /// The project, for a query.
    pub fn project(&self) -> Option<&str> {
        match self {
            Self::Session { project, .. } => project.as_deref(),
            Self::Operator | Self::OperatorTool => None,
        }
    }
}

/// Whether a stream of this name holds answers to clients, which no list names.
pub fn holds_answers(name: &StreamName) -> bool {
    name.kind() == "mcp"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(key: &str, project: Option<&str>, reads_all: bool) -> StreamReader {
        StreamReader::Session {
            owner: format!("session:{key}").into(),
            project: project.map(Arc::from),
            reads_all,
        }
    }

    #[test]
    fn who_reads_which_streams() {
        let readers = [
            StreamReader::Operator,
            StreamReader::OperatorTool,
            session("a", Some("/p"), false),
            session("b", Some("/p"), false),
            session("c", None, false),
            session("d", None, true),
        ];
        let shared = |owner: &str, project: &str| {
            StreamVisibility::shared(&Ownership::of_row(owner, project.to_owned()))
        };
        let private = StreamVisibility::private(&Principal::Session("a".into()));
        let given = StreamVisibility::shared(&Ownership {
            runner: Some(Principal::Session("c".into())),
            ..Ownership::of_row("session:a", "/p".to_owned())
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
    fn a_tool_of_the_operator_reads_no_answers() {
        assert_eq!(StreamReader::of_tool(&Caller::Operator), StreamReader::OperatorTool);
        assert!(holds_answers(&StreamName::parse("mcp/call_1").unwrap()));
        for name in ["mcp", "mcpx/1", "task/mcp/1", "team"] {
            assert!(!holds_answers(&StreamName::parse(name).unwrap()), "{name}");
        }
    }
}
