//! Which sessions a session may see and send to.

use crate::words::words;

/// What the section `[sessions]` of the configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionsPolicy {
    pub visibility: SessionsVisibility,
    /// Which of the sessions that see each other may send; empty for all.
    pub allow: Vec<AllowRule>,
    /// Maximum number of turns in which replies answer replies.
    pub max_ping_pong: u32,
}

impl Default for SessionsPolicy {
    fn default() -> Self {
        Self { visibility: SessionsVisibility::Project, allow: Vec::new(), max_ping_pong: 5 }
    }
}

words! {
    /// Which sessions a session sees beside itself.
    pub enum SessionsVisibility {
        /// None.
        Own = "self",
        /// Its children.
        Tree = "tree",
        /// Those of its project, and its children anywhere.
        Project = "project",
        /// All.
        All = "all",
    }
}

impl std::str::FromStr for SessionsVisibility {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == text);
        known.ok_or_else(|| format!("`{text}` is not self, tree, project or all"))
    }
}

/// Relation of a session to the session that looks at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionRelation {
    pub is_self: bool,
    /// The session that looks at this one has started it.
    pub is_child: bool,
    /// Both work in the same project.
    pub is_of_project: bool,
}

words! {
    /// Why a session is not seen, or not sent to.
    pub enum SessionDenial {
        /// `visibility = "self"`.
        SelfVisibilityRestricted = "self_visibility_restricted",
        /// `visibility = "tree"`.
        TreeVisibilityRestricted = "tree_visibility_restricted",
        /// `visibility = "project"`.
        ProjectVisibilityRestricted = "project_visibility_restricted",
        /// No entry of `allow` fits.
        AgentToAgentNotAllowed = "agent_to_agent_not_allowed",
    }
}

impl SessionDenial {
    /// The reason, with the name of the setting.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::SelfVisibilityRestricted => {
                "there is no such session, or it is not yours: sessions.visibility is `self`"
            }
            Self::TreeVisibilityRestricted => {
                "there is no such session, or you did not start it: sessions.visibility is `tree`"
            }
            Self::ProjectVisibilityRestricted => {
                "there is no such session, or it is of another project: sessions.visibility is `project` \
                 (visibility = \"all\" under [sessions] in config.toml opens all; peer_send reaches every project)"
            }
            Self::AgentToAgentNotAllowed => {
                "no entry of sessions.allow lets you send to this session"
            }
        }
    }
}

/// Sender or receiver of a send, as `allow` matches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionParty<'a> {
    pub key: &'a str,
    /// The instance of a hosted agent, or the backend of an attended session.
    pub agent_id: &'a str,
}

/// A rule `from->to`. Each side is an instance, a backend or a key, with `*` for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    from: String,
    to: String,
}

impl AllowRule {
    pub fn as_text(&self) -> String {
        format!("{}->{}", self.from, self.to)
    }

    fn fits(&self, from: SessionParty<'_>, to: SessionParty<'_>) -> bool {
        let names = |pattern: &str, party: SessionParty<'_>| {
            matches_pattern(pattern, party.agent_id) || matches_pattern(pattern, party.key)
        };
        names(&self.from, from) && names(&self.to, to)
    }
}

impl std::str::FromStr for AllowRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once("->").map(|(from, to)| (from.trim(), to.trim()));
        match sides {
            Some((from, to)) if !from.is_empty() && !to.is_empty() && !to.contains("->") => {
                Ok(Self { from: from.to_ascii_lowercase(), to: to.to_ascii_lowercase() })
            }
            _ => Err(format!("`{text}` is not of the form `from->to`")),
        }
    }
}

impl SessionsPolicy {
    /// Whether a session is visible. Fails with the reason.
    pub const fn may_see(&self, sight: SessionRelation) -> Result<(), SessionDenial> {
        let SessionRelation { is_self, is_child, is_of_project } = sight;
        let is_seen = match self.visibility {
            SessionsVisibility::Own => is_self,
            SessionsVisibility::Tree => is_self || is_child,
            SessionsVisibility::Project => is_self || is_child || is_of_project,
            SessionsVisibility::All => true,
        };
        match (is_seen, self.unseen()) {
            (false, Some(denial)) => Err(denial),
            _ => Ok(()),
        }
    }

    /// Why other sessions may be hidden; `None` if all are visible.
    pub const fn unseen(&self) -> Option<SessionDenial> {
        match self.visibility {
            SessionsVisibility::Own => Some(SessionDenial::SelfVisibilityRestricted),
            SessionsVisibility::Tree => Some(SessionDenial::TreeVisibilityRestricted),
            SessionsVisibility::Project => Some(SessionDenial::ProjectVisibilityRestricted),
            SessionsVisibility::All => None,
        }
    }

    /// Whether one session may send to another that it sees. Fails if there are rules and none
    /// allows it.
    pub fn may_send(
        &self,
        from: SessionParty<'_>,
        to: SessionParty<'_>,
    ) -> Result<(), SessionDenial> {
        if self.allow.is_empty() || self.allow.iter().any(|rule| rule.fits(from, to)) {
            return Ok(());
        }
        Err(SessionDenial::AgentToAgentNotAllowed)
    }
}

/// Whether a text matches a pattern in lower case, in which `*` stands for any text, ignoring case.
/// The worst case takes time proportional to the product of both lengths.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(mut part) = parts.next() else { return rest.is_empty() };
    for next in parts {
        // The leftmost match leaves the longest rest.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        part = next;
    }
    rest.ends_with(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(visibility: SessionsVisibility, allow: &[&str]) -> SessionsPolicy {
        let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
        SessionsPolicy { visibility, allow, ..SessionsPolicy::default() }
    }

    #[test]
    fn visibility_decides_which_sessions_are_seen() {
        use SessionDenial::{
            ProjectVisibilityRestricted, SelfVisibilityRestricted, TreeVisibilityRestricted,
        };
        use SessionsVisibility::{All, Own, Project, Tree};
        let own = SessionRelation { is_self: true, ..SessionRelation::default() };
        let child = SessionRelation { is_child: true, ..SessionRelation::default() };
        let near = SessionRelation { is_of_project: true, ..SessionRelation::default() };
        let far = SessionRelation::default();
        for (visibility, seen, denial) in [
            (Own, [true, false, false, false], Some(SelfVisibilityRestricted)),
            (Tree, [true, true, false, false], Some(TreeVisibilityRestricted)),
            (Project, [true, true, true, false], Some(ProjectVisibilityRestricted)),
            (All, [true, true, true, true], None),
        ] {
            let policy = policy(visibility, &[]);
            assert_eq!(policy.unseen(), denial);
            for (sight, is_seen) in [own, child, near, far].into_iter().zip(seen) {
                let expected = if is_seen { Ok(()) } else { Err(denial.unwrap()) };
                assert_eq!(policy.may_see(sight), expected, "{visibility:?} {sight:?}");
            }
            assert_eq!(visibility.as_str().parse(), Ok(visibility));
        }
        assert_eq!(SessionsPolicy::default().visibility, Project);
        assert!("agent".parse::<SessionsVisibility>().is_err());
        for denial in
            [SelfVisibilityRestricted, TreeVisibilityRestricted, ProjectVisibilityRestricted]
        {
            assert!(denial.explanation().contains("sessions.visibility"), "{denial:?}");
            let says_what_to_set =
                denial.explanation().contains("visibility = \"all\" under [sessions]");
            assert_eq!(says_what_to_set, denial == ProjectVisibilityRestricted);
        }
        let allow = SessionDenial::AgentToAgentNotAllowed;
        assert!(allow.explanation().contains("sessions.allow"));
    }

    #[test]
    fn allow_rules_decide_who_may_send() {
        let party = |agent_id: &'static str, key: &'static str| SessionParty { key, agent_id };
        let lead = party("lead", "agent:lead:main");
        let worker = party("worker-1", "agent:worker-1:main");
        let claude = party("claude", "agent:claude:S-1");
        for (allow, lead_to_worker, worker_to_lead, lead_to_claude) in [
            (&[][..], true, true, true),
            (&["*->*"], true, true, true),
            (&["lead->worker-1"], true, false, false),
            (&["lead->worker-*"], true, false, false),
            (&["LEAD -> WORKER-*"], true, false, false),
            (&["*->lead"], false, true, false),
            (&["agent:lead:*->agent:claude:s-1"], false, false, true),
            (&["lead->worker"], false, false, false),
            (&["l*d->w*r*1"], true, false, false),
            (&["nobody->*", "lead->claude"], false, false, true),
        ] {
            let policy = policy(SessionsVisibility::All, allow);
            for (from, to, is_allowed) in [
                (lead, worker, lead_to_worker),
                (worker, lead, worker_to_lead),
                (lead, claude, lead_to_claude),
            ] {
                let expected =
                    if is_allowed { Ok(()) } else { Err(SessionDenial::AgentToAgentNotAllowed) };
                assert_eq!(policy.may_send(from, to), expected, "{allow:?} {from:?} {to:?}");
            }
        }
    }

    #[test]
    fn a_rule_without_two_sides_does_not_parse() {
        for text in ["", "a", "a->", "->b", "a->b->c", "a-b", " -> "] {
            assert!(text.parse::<AllowRule>().is_err(), "{text:?}");
        }
        assert_eq!("A -> b*".parse::<AllowRule>().unwrap().as_text(), "a->b*");
    }

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, text, is) in [
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("*", "", true),
            ("**", "x", true),
            ("ab*ba", "aba", false),
            ("*a", "ba", true),
            ("a", "aa", false),
            ("*ab*ab", "ab", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), is, "{pattern} {text}");
        }
        let (pattern, text) = ("*a".repeat(2_000), "a".repeat(1_999));
        assert!(!matches_pattern(&pattern, &text));
    }
}
