//! Whose a thing is, and what a caller may do with it. The rule stands here and nowhere else: whoever has the thing
//! asks [`Caller::access_to`], and a query is given the [`RowReader`]. Streams of the log have more kinds of readers:
//! [`StreamReader`](super::StreamReader).

use std::sync::Arc;

use serde::Serialize;

use super::{Caller, Principal, READ_ALL};

/// Whose a thing is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// Who made it; `None` if the row does not say so in a form that we know: then it is nobody's.
    pub owner: Option<Principal>,
    /// Who runs it, of a task.
    pub runner: Option<Principal>,
    /// Root of the project that it belongs to.
    pub project: Option<String>,
}

impl Ownership {
    /// As rows keep it: the owner's text form, and an empty text for no project.
    pub fn of_row(owner: &str, project: String) -> Self {
        Self {
            owner: Principal::parse(owner),
            runner: None,
            project: (!project.is_empty()).then_some(project),
        }
    }
}

/// What a caller may do with a thing, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessLevel {
    /// Nothing: for this caller it is not there.
    Hidden,
    /// Look at it.
    Read,
    /// Change it, end it, remove it.
    Write,
}

impl Caller {
    /// Whether a thing belongs to the caller's project. All do for the operator.
    pub fn is_of_project(&self, thing: &Ownership) -> bool {
        match self {
            Self::Operator => true,
            Self::Session { project, .. } => {
                project.as_deref().is_some_and(|own| thing.project.as_deref() == Some(own))
            }
        }
    }

    /// What the caller may do with a thing. Its owner, its runner and the operator write it; its project reads it.
    pub fn access_to(&self, thing: &Ownership) -> AccessLevel {
        let is = |principal: &Option<Principal>| principal.as_ref() == Some(&self.principal());
        match self {
            Self::Operator => AccessLevel::Write,
            Self::Session { .. } if is(&thing.owner) || is(&thing.runner) => AccessLevel::Write,
            Self::Session { .. } if self.is_of_project(thing) || self.has_scope(READ_ALL) => {
                AccessLevel::Read
            }
            Self::Session { .. } => AccessLevel::Hidden,
        }
    }
}

/// For whom rows are read: everybody's, or those of a session and its project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum RowReader {
    /// All rows.
    Everything,
    /// Rows of this session and of this project.
    Session {
        /// The session: the subject of the token.
        key: Arc<str>,
        /// Root of the project.
        project: Option<Arc<str>>,
    },
}

impl RowReader {
    /// The reader that a caller is.
    pub fn of(caller: &Caller) -> Self {
        match caller {
            Caller::Session { key, project, .. } if !caller.has_scope(READ_ALL) => {
                Self::Session { key: Arc::clone(key), project: project.clone() }
            }
            Caller::Operator | Caller::Session { .. } => Self::Everything,
        }
    }

    /// The session; `None` for the reader of everything.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Everything => None,
            Self::Session { key, .. } => Some(key),
        }
    }

    /// The project; `None` for a session without one, and for the reader of everything.
    pub fn project(&self) -> Option<&str> {
        match self {
            Self::Everything => None,
            Self::Session { project, .. } => project.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scope, TokenId};

    fn session(key: &str, project: Option<&str>, scopes: &[&str]) -> Caller {
        Caller::Session {
            key: key.into(),
            token: TokenId::from("tok_1".to_owned()),
            scopes: scopes.iter().map(|scope| Scope((*scope).to_owned())).collect(),
            project: project.map(Arc::from),
            process: None,
            folder: None,
        }
    }

    #[test]
    fn the_owner_writes_the_project_reads_and_others_see_nothing() {
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
            let thing = Ownership::of_row(owner, project.to_owned());
            let given: Vec<_> = callers.iter().map(|caller| caller.access_to(&thing)).collect();
            assert_eq!(given, levels, "{owner} {project}");
        }
        let runner = Some(Principal::Session("d".into()));
        let task = Ownership { runner, ..Ownership::of_row("session:a", "/p".to_owned()) };
        let given: Vec<_> = callers.iter().map(|caller| caller.access_to(&task)).collect();
        assert_eq!(given, [Write, Write, Read, Hidden, Write, Read], "a task that d runs");
    }

    #[test]
    fn who_reads_all_is_asked_nothing_more() {
        for (caller, key, project) in [
            (Caller::Operator, None, None),
            (session("a", Some("/p"), &[READ_ALL]), None, None),
            (session("a", Some("/p"), &["exec"]), Some("a"), Some("/p")),
            (session("a", None, &[]), Some("a"), None),
        ] {
            let reader = RowReader::of(&caller);
            assert_eq!((reader.key(), reader.project()), (key, project), "{caller:?}");
        }
    }
}
