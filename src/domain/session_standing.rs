//! Whose a client's session is. A session belongs to the principal that made it known, and goes over to another only when
//! that one is gone.

use super::{Principal, is_reserved_session};

/// What a session is to a caller that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStanding {
    /// It is the caller's.
    Own,
    /// Nobody's yet: it is the caller's with the first event that the caller tells of it.
    Unclaimed,
    /// Its owner is gone, and the caller works in the same project: the next event makes it the caller's.
    Adoptable,
    /// It is another's.
    Foreign,
}

/// What is known of the owner of a session that has a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownOwner {
    /// The owner; `None` if the row does not say so in a form that we know: then it is nobody, and nobody has it from them.
    pub owner: Option<Principal>,
    /// Whether nobody can speak as the owner any more: its process is gone, or its tokens are.
    pub is_gone: bool,
    /// Whether the caller works in the session's project.
    pub same_project: bool,
    /// Whether the session's peer runs in the caller's process.
    pub same_process: bool,
}

impl SessionStanding {
    /// The standing of the session `id` for `caller`. `row` is its owner, if it has a row; `is_subject` says whether there is
    /// a token that speaks as the session itself.
    pub fn of(caller: &Principal, id: &str, row: Option<&KnownOwner>, is_subject: bool) -> Self {
        let key = match caller {
            // Whoever has this credential has the database, too.
            Principal::Operator => return Self::Own,
            Principal::Session(key) => &**key,
        };
        if key == id {
            return Self::Own;
        }
        let Some(row) = row else {
            // The name of another principal is not free for the taking.
            let is_taken = is_subject || is_reserved_session(id);
            return if is_taken { Self::Foreign } else { Self::Unclaimed };
        };
        match &row.owner {
            Some(owner) if owner == caller => Self::Own,
            // A row from before sessions had owners, or one of an event that was told late.
            Some(Principal::Operator) if row.same_process => Self::Adoptable,
            Some(Principal::Session(_))
                if row.is_gone && row.same_project && !is_reserved_session(id) =>
            {
                Self::Adoptable
            }
            _ => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn session(key: &str) -> Principal {
        Principal::Session(key.into())
    }

    fn known(owner: Option<Principal>) -> KnownOwner {
        KnownOwner { owner, is_gone: false, same_project: true, same_process: false }
    }

    #[test]
    fn a_session_is_its_owners() {
        use SessionStanding::{Adoptable, Foreign, Own, Unclaimed};
        let a = session("a");
        let of_b = || known(Some(session("b")));
        let of_operator = || known(Some(Principal::Operator));
        for (case, row, is_subject, standing) in [
            ("nobody has it", None, false, Unclaimed),
            ("it is the name of a principal", None, true, Foreign),
            ("one's own", Some(known(Some(a.clone()))), false, Own),
            ("another's, who lives", Some(of_b()), false, Foreign),
            (
                "another's, who is gone",
                Some(KnownOwner { is_gone: true, ..of_b() }),
                false,
                Adoptable,
            ),
            (
                "of another project",
                Some(KnownOwner { is_gone: true, same_project: false, ..of_b() }),
                false,
                Foreign,
            ),
            (
                "a living owner's in one's own process",
                Some(KnownOwner { same_process: true, ..of_b() }),
                false,
                Foreign,
            ),
            ("the operator's", Some(of_operator()), false, Foreign),
            (
                "the operator is never gone",
                Some(KnownOwner { is_gone: true, ..of_operator() }),
                false,
                Foreign,
            ),
            (
                "the operator's, of one's own process",
                Some(KnownOwner { same_process: true, ..of_operator() }),
                false,
                Adoptable,
            ),
            (
                "nobody's, whatever else is so",
                Some(KnownOwner { is_gone: true, same_process: true, ..known(None) }),
                false,
                Foreign,
            ),
        ] {
            assert_eq!(SessionStanding::of(&a, "s", row.as_ref(), is_subject), standing, "{case}");
        }
        let gone = KnownOwner { is_gone: true, ..of_b() };
        assert_eq!(SessionStanding::of(&a, "a", Some(&gone), true), Own, "one's own name");
        for id in ["default", "operator", "Default", "оperator"] {
            assert_eq!(SessionStanding::of(&a, id, None, false), Foreign, "{id}");
            assert_eq!(SessionStanding::of(&Principal::Operator, id, None, false), Own, "{id}");
            let own = known(Some(a.clone()));
            assert_eq!(SessionStanding::of(&a, id, Some(&own), false), Own, "it has it already");
            assert_eq!(SessionStanding::of(&a, id, Some(&gone), false), Foreign, "{id}");
        }
        assert_eq!(SessionStanding::of(&Principal::Operator, "s", Some(&of_b()), true), Own);
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
            id in "[abs]",
        ) {
            let caller = session("a");
            let row = KnownOwner {
                owner: owner.clone(), is_gone: false, same_project, same_process: false,
            };
            let standing = SessionStanding::of(&caller, &id, Some(&row), is_subject);
            let is_own = owner.as_ref() == Some(&caller) || id == "a";
            prop_assert_eq!(standing == SessionStanding::Own, is_own);
            prop_assert_eq!(standing == SessionStanding::Foreign, !is_own);
        }
    }
}
