//! Whose a client's session is. A session belongs to the principal that made it known, and an id is
//! a caller's own only beside its principal: nobody has a session because of what it is called. It
//! goes over to another process of its client only when the earlier one is gone, and by the
//! client's own hook.

use unicode_normalization::UnicodeNormalization as _;

use super::{Principal, ProcessIdentity, TokenHash, is_reserved_name, quote, token_hash};

/// By what a caller speaks of a session.
#[derive(Debug, Clone, Copy, Default)]
pub enum SessionContact {
    /// By a call. It takes up no session of another's, whatever it says.
    #[default]
    Call,
    /// By an event of a hook, with the SHA-256 of the session's secret if the hook presents one.
    Hook(Option<TokenHash>),
}

/// What a session is to a caller that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStanding {
    /// It is the caller's.
    Own,
    /// Nobody's yet: it is the caller's with the first event that the caller tells of it.
    Unclaimed,
    /// Its owner is gone, and the caller's hook proves to be its client's: the event makes it the
    /// caller's.
    Adoptable,
    /// Its owner is gone, and the caller works in the same project: its client's hook takes it up
    /// again, and no call does.
    Absent,
    /// The caller's hook proves to be its client's, and the earlier process lives.
    Occupied,
    /// It is another's.
    Foreign,
    /// It is nobody's to begin: the daemon gives such ids, or it is the operator's.
    Reserved,
}

/// What is known of the owner of a session that has a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own that the rule asks for"
)]
pub struct KnownOwner {
    /// The owner; `None` if the row does not say so in a form that we know: then it is nobody, and
    /// nobody has it from them.
    pub owner: Option<Principal>,
    /// Whether nobody can speak as the owner any more: its process is gone, or its tokens are.
    pub is_gone: bool,
    /// Whether the caller works in the session's project.
    pub same_project: bool,
    /// Whether the session's peer runs in the caller's process.
    pub same_process: bool,
    /// Whether the caller is a hook that presents the session's secret, or needs none: the session
    /// has been over for so long that its id is free.
    pub is_proven: bool,
}

impl SessionStanding {
    /// The standing of the session `id` for `caller`. `row` is its owner, if it has a row;
    /// `is_subject` says whether there is a token that speaks as the session itself.
    pub fn decide(
        caller: &Principal,
        id: &str,
        row: Option<&KnownOwner>,
        is_subject: bool,
    ) -> Self {
        if is_own_session(caller, id, row.map(|row| row.owner.as_ref())) {
            return Self::Own;
        }
        let Some(row) = row else {
            return match caller {
                _ if is_daemons_session_id(id) => Self::Reserved,
                // Whoever has this credential has the database, too.
                Principal::Operator => Self::Own,
                // The name of another principal is not free for the taking.
                Principal::Session(_) if is_subject => Self::Reserved,
                Principal::Session(_) if is_reserved_name(id) => Self::Reserved,
                Principal::Session(_) => Self::Unclaimed,
            };
        };
        match &row.owner {
            // A row from before sessions had owners, or one of an event that was told late.
            Some(Principal::Operator) if row.same_process && row.is_proven => Self::Adoptable,
            Some(Principal::Session(_)) if row.same_project && !is_reserved_name(id) => {
                match (row.is_gone, row.is_proven) {
                    (true, true) => Self::Adoptable,
                    (true, false) => Self::Absent,
                    (false, true) => Self::Occupied,
                    (false, false) => Self::Foreign,
                }
            }
            _ => Self::Foreign,
        }
    }
}

/// Whether the session `id` is this principal's: `row` is the owner that its row names, if it has
/// one. A session that the operator made known under the key of a token is that of whoever holds
/// the token.
pub fn is_own_session(caller: &Principal, id: &str, row: Option<Option<&Principal>>) -> bool {
    let Principal::Session(key) = caller else { return row.is_some() };
    let is_called_so = own_session_ids(key).iter().any(|own| own == id);
    match row {
        Some(owner) if owner == Some(caller) => true,
        Some(Some(Principal::Operator)) | None => is_called_so,
        Some(_) => false,
    }
}

/// The ids of the session that a principal has without having begun one: it is called as the
/// principal is. If another principal took that id before there was this one, the second is there
/// for it.
pub fn own_session_ids(key: &str) -> [String; 2] {
    [key.to_owned(), format!("{OWN}:{key}")]
}

/// Begins the id of a principal's own session whose first id is another's.
const OWN: &str = "own";

/// The id of a client's session whose own id a session of another process has: the client's id,
/// and the process that runs the session. A session is a process and the client's id, and the
/// client's id alone is the key of the first one only.
pub fn session_id_in_process(client_id: &str, process: &ProcessIdentity) -> String {
    let start = token_hash(&process.started);
    format!("{client_id}{IN_PROCESS}{}-{}", process.pid, hex::encode(&start[..START_BYTES]))
}

/// The client's own id of a session, which its process and its files know it by.
pub fn client_session_id(session_id: &str) -> &str {
    let is_process = |text: &str| {
        text.split_once('-').is_some_and(|(pid, start)| {
            pid.parse::<u32>().is_ok()
                && start.len() == 2 * START_BYTES
                && start.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    match session_id.rsplit_once(IN_PROCESS) {
        Some((client_id, process)) if is_process(process) => client_id,
        _ => session_id,
    }
}

/// Stands between the client's id of a session and its process.
const IN_PROCESS: char = '@';
/// Bytes of the hash of a process's start, which tells it from others that had its number.
const START_BYTES: usize = 4;

/// Whether an id has a form of those that the daemon gives: the key of a hosted agent, the id of an
/// MCP session, and that of a principal's own session. In any case, and in letters that look the
/// same.
pub fn is_daemons_session_id(id: &str) -> bool {
    let plain: String = id.nfkc().filter(|c| !quote::is_invisible(*c)).collect();
    [("agent", ':'), (OWN, ':'), ("mcp", '_')].into_iter().any(|(form, mark)| {
        let begin = plain.split_once(mark).map(|(begin, _)| begin);
        begin.is_some_and(|begin| quote::skeleton_of(begin) == quote::skeleton_of(form))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn session(key: &str) -> Principal {
        Principal::Session(key.into())
    }

    fn known(owner: Option<Principal>) -> KnownOwner {
        KnownOwner {
            owner,
            is_gone: false,
            same_project: true,
            same_process: false,
            is_proven: false,
        }
    }

    #[test]
    fn id_in_a_process_keeps_the_clients_id() {
        let process = |pid, started: &str| ProcessIdentity { pid, started: started.to_owned() };
        let (one, later) = (process(7, "100@boot"), process(7, "200@boot"));
        for client_id in ["s", "a@b", "ses_1@7-x", ""] {
            let id = session_id_in_process(client_id, &one);
            assert_eq!(client_session_id(&id), client_id);
            assert_eq!(client_session_id(client_id), client_id);
            assert_ne!(id, session_id_in_process(client_id, &later), "another with its number");
        }
    }

    #[test]
    fn a_session_is_its_owners() {
        use SessionStanding::{Absent, Adoptable, Foreign, Occupied, Own, Reserved, Unclaimed};
        let a = session("a");
        let of_b = || known(Some(session("b")));
        let of_operator = || known(Some(Principal::Operator));
        let gone = KnownOwner { is_gone: true, ..of_b() };
        let proven = KnownOwner { is_proven: true, ..of_b() };
        let gone_and_proven = KnownOwner { is_gone: true, ..proven.clone() };
        let elsewhere = |row: &KnownOwner| KnownOwner { same_project: false, ..row.clone() };
        for (case, row, is_subject, standing) in [
            ("nobody has it", None, false, Unclaimed),
            ("it is the name of a principal", None, true, Reserved),
            ("one's own", Some(known(Some(a.clone()))), false, Own),
            ("another's, who lives", Some(of_b()), false, Foreign),
            ("another's, who is gone", Some(gone.clone()), false, Absent),
            ("proven, and who has it lives", Some(proven.clone()), false, Occupied),
            ("proven, and who had it is gone", Some(gone_and_proven.clone()), false, Adoptable),
            ("of another project", Some(elsewhere(&gone)), false, Foreign),
            ("of another project, living", Some(elsewhere(&proven)), false, Foreign),
            ("of another project, and proven", Some(elsewhere(&gone_and_proven)), false, Foreign),
            (
                "a living owner's in one's own process",
                Some(KnownOwner { same_process: true, ..of_b() }),
                false,
                Foreign,
            ),
            ("the operator's", Some(of_operator()), false, Foreign),
            (
                "the operator is never gone",
                Some(KnownOwner { is_gone: true, is_proven: true, ..of_operator() }),
                false,
                Foreign,
            ),
            (
                "the operator's, of one's own process, by a hook",
                Some(KnownOwner { same_process: true, is_proven: true, ..of_operator() }),
                false,
                Adoptable,
            ),
            (
                "the operator's, of one's own process, by a call",
                Some(KnownOwner { same_process: true, ..of_operator() }),
                false,
                Foreign,
            ),
            (
                "nobody's, whatever else is so",
                Some(KnownOwner { same_process: true, ..gone_and_proven.clone() })
                    .map(|row| KnownOwner { owner: None, ..row }),
                false,
                Foreign,
            ),
        ] {
            assert_eq!(
                SessionStanding::decide(&a, "s", row.as_ref(), is_subject),
                standing,
                "{case}"
            );
        }
        for id in ["default", "operator", "Default", "оperator", "the person"] {
            assert_eq!(SessionStanding::decide(&a, id, None, false), Reserved, "{id}");
            assert_eq!(SessionStanding::decide(&Principal::Operator, id, None, false), Own, "{id}");
            let own = known(Some(a.clone()));
            assert_eq!(
                SessionStanding::decide(&a, id, Some(&own), false),
                Own,
                "it has it already"
            );
            let row = Some(&gone_and_proven);
            assert_eq!(SessionStanding::decide(&a, id, row, false), Foreign, "{id}");
        }
        assert_eq!(SessionStanding::decide(&Principal::Operator, "s", Some(&of_b()), true), Own);
    }

    #[test]
    fn a_name_gives_nobody_a_session() {
        use SessionStanding::{Absent, Foreign, Own};
        let a = session("a");
        let of_b = known(Some(session("b")));
        assert_eq!(
            SessionStanding::decide(&a, "a", None, true),
            Own,
            "it has its own without a row"
        );
        let of_operator = known(Some(Principal::Operator));
        assert_eq!(SessionStanding::decide(&a, "a", Some(&of_operator), true), Own, "given to it");
        assert_eq!(SessionStanding::decide(&a, "a", Some(&of_b), true), Foreign, "b had it first");
        let gone = KnownOwner { is_gone: true, ..of_b.clone() };
        assert_eq!(SessionStanding::decide(&a, "a", Some(&gone), true), Absent);
        assert_eq!(SessionStanding::decide(&a, "own:a", None, true), Own, "and has another");
        assert_eq!(SessionStanding::decide(&session("b"), "a", Some(&of_b), true), Own);
        let of_a = SessionStanding::decide(&session("b"), "own:a", None, true);
        assert_eq!(of_a, SessionStanding::Reserved);
    }

    #[test]
    fn forms_of_the_daemons() {
        for id in [
            "agent:claude:main",
            "AGENT:claude:main",
            "Agent:x",
            " agent:x",
            "\u{200b}agent:x",
            "аgent:x",
            "ａｇｅｎｔ：claude：main",
            "mcp_1",
            "MCP_1",
            "mcp＿1",
            "own:x",
        ] {
            assert!(is_daemons_session_id(id), "{id:?}");
            let standing = SessionStanding::decide(&session("a"), id, None, false);
            assert_eq!(standing, SessionStanding::Reserved, "{id:?}");
            let standing = SessionStanding::decide(&Principal::Operator, id, None, false);
            assert_eq!(standing, SessionStanding::Reserved, "{id:?}");
        }
        for id in ["", "agent", "agents:x", "mcp-1", "s-1", "my-agent:x", "ses_1", "owner:x"] {
            assert!(!is_daemons_session_id(id), "{id:?}");
        }
        let key = "agent:claude:main";
        assert_eq!(SessionStanding::decide(&session(key), key, None, true), SessionStanding::Own);
    }

    fn principals() -> impl Strategy<Value = Option<Principal>> {
        prop_oneof![
            Just(None),
            Just(Some(Principal::Operator)),
            "[ab]".prop_map(|key| Some(Principal::Session(key.into()))),
        ]
    }

    proptest! {
        /// Whatever is known, a session token has nothing of an owner that is there.
        #[test]
        fn nothing_of_a_living_owner_goes_over(
            owner in principals(),
            same_project: bool,
            is_subject: bool,
            is_proven: bool,
            id in "[abs]",
        ) {
            let caller = session("a");
            let row = KnownOwner {
                owner: owner.clone(), is_gone: false, same_project, same_process: false, is_proven,
            };
            let standing = SessionStanding::decide(&caller, &id, Some(&row), is_subject);
            let is_own = owner.as_ref() == Some(&caller)
                || (id == "a" && owner == Some(Principal::Operator));
            prop_assert_eq!(standing == SessionStanding::Own, is_own);
            let is_refused =
                matches!(standing, SessionStanding::Foreign | SessionStanding::Occupied);
            prop_assert_eq!(is_refused, !is_own);
        }
    }
}
