//! Which principal a client's session belongs to, and which names and ids nobody may take.
//!
//! A session belongs to the principal that made it known. An id is a caller's own only together
//! with its principal: a name alone gives nobody a session. A session goes over to another process
//! of its client only when the earlier process is gone, and by the client's own hook.

use std::sync::LazyLock;

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

use crate::{Principal, ProcessIdentity, TokenHash, quote, token_hash};

/// How a caller refers to a session.
#[derive(Debug, Clone, Copy, Default)]
pub enum SessionReference {
    /// By a call, which takes over no session of another principal.
    #[default]
    Call,
    /// By an event of a hook, with the hash of the session's secret if the hook presents one.
    Hook(Option<TokenHash>),
}

/// What a session is to a caller that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStanding {
    Own,
    /// It has no owner: the caller's first event makes it the caller's.
    Unclaimed,
    /// Its owner is gone, and the caller's hook proves to be its client's: the event makes it the
    /// caller's.
    Adoptable,
    /// Its owner is gone, and the caller works in the same project: a hook of its client takes it
    /// over, a call does not.
    Absent,
    /// The caller's hook proves to be its client's, but the earlier process lives.
    Occupied,
    Foreign,
    /// A process of another project has a session with this client id, or nobody has it any more. A
    /// session is identified by its process and its client id, so a hook of the caller's client
    /// means another session: its own.
    Elsewhere,
    /// Nobody may begin it: only the daemon makes such ids, or the name is reserved.
    Reserved,
}

/// The owner of a session that has a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own that the rule asks for"
)]
pub struct KnownOwner {
    /// `None` if the session was removed and its row stays for its records, or if the stored value
    /// does not parse: then nobody owns it, and nobody takes it over.
    pub owner: Option<Principal>,
    /// Whether nobody can act as the owner any more: its process is gone, or its tokens are.
    pub is_gone: bool,
    /// Whether the caller works in the session's project.
    pub same_project: bool,
    /// Whether the session's peer runs in the caller's process.
    pub same_process: bool,
    /// Whether the caller is a hook that presents the session's secret, or needs none because the
    /// session ended so long ago that its id is free.
    pub is_proven: bool,
}

impl SessionStanding {
    /// The standing of the session `id` for `caller`. `row` is its owner, if it has a row;
    /// `is_subject`: a token has the session as its subject.
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
                // The operator's credential gives access to the whole database anyway.
                Principal::Operator => Self::Own,
                // The id is the subject of another principal's token, or a reserved name.
                Principal::Session(_) if is_subject || is_reserved_name(id) => Self::Reserved,
                Principal::Session(_) => Self::Unclaimed,
            };
        };
        match &row.owner {
            // A row from before sessions had owners, or one that a late event created.
            Some(Principal::Operator) if row.same_process && row.is_proven => Self::Adoptable,
            Some(Principal::Session(_)) if row.same_project && !is_reserved_name(id) => {
                match (row.is_gone, row.is_proven) {
                    (true, true) => Self::Adoptable,
                    (true, false) => Self::Absent,
                    (false, true) => Self::Occupied,
                    (false, false) => Self::Foreign,
                }
            }
            Some(Principal::Session(key))
                if !row.same_project
                    && !is_reserved_name(id)
                    && !is_daemons_session_id(id)
                    && !own_session_ids(key).iter().any(|own| own == id) =>
            {
                Self::Elsewhere
            }
            None if !is_reserved_name(id) && !is_daemons_session_id(id) => Self::Elsewhere,
            _ => Self::Foreign,
        }
    }
}

/// Whether the session `id` belongs to this principal. `row` is the owner in its row, if it has a
/// row. A session that the operator made known under the key of a token belongs to the token's
/// holder.
pub fn is_own_session(caller: &Principal, id: &str, row: Option<Option<&Principal>>) -> bool {
    let Principal::Session(key) = caller else { return row.is_some() };
    let is_called_so = own_session_ids(key).iter().any(|own| own == id);
    match row {
        Some(owner) if owner == Some(caller) => true,
        Some(Some(Principal::Operator)) | None => is_called_so,
        Some(_) => false,
    }
}

/// The ids of the session that a principal has without beginning one: its own key, and a second id
/// in case another principal used the key as an id before this principal existed.
pub fn own_session_ids(key: &str) -> [String; 2] {
    [key.to_owned(), format!("{OWN}:{key}")]
}

/// Prefix of the second id.
const OWN: &str = "own";

/// The id of a session whose client id is taken by a session of another process: the client's id
/// and the process. A session is identified by both; only the first one has the client's id alone
/// as its id.
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
/// Bytes of the hash of a process's start time, which distinguishes processes that had the same
/// pid.
const START_BYTES: usize = 4;

/// Whether an id has a form that the daemon gives: the key of a hosted agent, the id of an MCP
/// session, or the second id of a principal's own session; in any case, and in letters that look
/// the same.
pub fn is_daemons_session_id(id: &str) -> bool {
    let plain: String = id.nfkc().filter(|c| !quote::is_invisible(*c)).collect();
    [("agent", ':'), (OWN, ':'), ("mcp", '_')].into_iter().any(|(form, mark)| {
        let begin = plain.split_once(mark).map(|(begin, _)| begin);
        begin.is_some_and(|begin| quote::skeleton_of(begin) == quote::skeleton_of(form))
    })
}

/// The session of the operator's calls that name none, until the operator starts one.
pub const IMPLICIT_SESSION: &str = "default";

/// Words by which a reader would take a name for the operator's, the daemon's or the reader's own.
/// No name may consist of these alone.
static RESERVED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    folded_words(
        "operator human person user superuser owner boss admin administrator sysadmin root system \
         daemon svc default me you terminal machine latest",
    )
});

/// Words that do not distinguish a name. The last is the rest of a genitive.
static FILLERS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| folded_words("the a an at of this that my your our real is s"));

fn folded_words(words: &str) -> Vec<Vec<u8>> {
    words.split(' ').map(|word| folded(word, SymbolsAs::Separators)).collect()
}

/// Whether a name only says that it is the operator, the daemon, or its reader: also in letters or
/// digits that look the same, in capitals, spaced, with invisible characters, with a number, as a
/// plural, with articles and the like. The part after the first `@` is the folder of a client's
/// session, which may have any name.
pub fn is_reserved_name(name: &str) -> bool {
    let head = match name.split_once('@') {
        Some((head, _)) if head.chars().any(char::is_alphanumeric) => head,
        _ => name,
    };
    [SymbolsAs::Letters, SymbolsAs::Separators].into_iter().any(|symbols| {
        [false, true].into_iter().any(|capitals_begin_words| {
            consists_of_reserved(&words(head, symbols, capitals_begin_words), symbols)
        })
    })
}

/// Whether a name has a character that changes the direction of its neighbours, so that the name is
/// not read as it is written.
pub fn changes_direction(name: &str) -> bool {
    let is_direction = |c: char| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    name.chars().any(is_direction)
}

fn consists_of_reserved(words: &[String], symbols: SymbolsAs) -> bool {
    let is_filler = |word: &String| {
        readings(word, symbols).iter().any(|word| word.is_empty() || FILLERS.contains(word))
    };
    let is_reserved = |word: &String| {
        readings(word, symbols).iter().any(|word| {
            let singular = word.strip_suffix(b"s").unwrap_or(word);
            RESERVED.iter().any(|reserved| reserved == word || reserved == singular)
        })
    };
    let mut rest = words.iter().filter(|word| !is_filler(word)).peekable();
    if rest.peek().is_some() && rest.all(is_reserved) {
        return true;
    }
    // One word may be written in several.
    let first = words.iter().position(|word| !is_filler(word)).unwrap_or_default();
    is_reserved(&words.concat()) || is_reserved(&words[first..].concat())
}

/// A word without its digits, without the number at its end, and with digits as the letters that
/// they look like.
fn readings(word: &str, symbols: SymbolsAs) -> [Vec<u8>; 3] {
    let without_digits: String = word.chars().filter(|c| !c.is_numeric()).collect();
    let without_number = word.trim_end_matches(char::is_numeric);
    [&*without_digits, without_number, word].map(|word| folded(word, symbols))
}

/// How `@`, `$`, `!` and `|` are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SymbolsAs {
    /// As `a`, `s` and `i`.
    Letters,
    Separators,
}

/// A character of a name.
enum NameCharacter {
    /// The small ASCII letters that it looks like.
    Letters(Vec<u8>),
    Separator,
    /// An invisible or combining character.
    Nothing,
}

/// The words of a name: its runs of letters and digits.
fn words(name: &str, symbols: SymbolsAs, capitals_begin_words: bool) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for c in name.chars() {
        let begins = capitals_begin_words && c.is_ascii_uppercase() && last.is_ascii_lowercase();
        match sign(c, symbols) {
            NameCharacter::Nothing => continue,
            NameCharacter::Separator => words.push(String::new()),
            NameCharacter::Letters(_) if begins => words.push(c.to_string()),
            NameCharacter::Letters(_) => {
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
        last = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn folded(text: &str, symbols: SymbolsAs) -> Vec<u8> {
    text.chars()
        .filter_map(|c| match sign(c, symbols) {
            NameCharacter::Letters(letters) => Some(letters),
            NameCharacter::Separator | NameCharacter::Nothing => None,
        })
        .flatten()
        .collect()
}

fn sign(c: char, symbols: SymbolsAs) -> NameCharacter {
    match c {
        _ if symbols == SymbolsAs::Separators => {}
        '@' => return NameCharacter::Letters(vec![b'a']),
        '$' => return NameCharacter::Letters(vec![b's']),
        '!' | '|' => return NameCharacter::Letters(vec![b'i']),
        _ => {}
    }
    let mut letters = quote::skeleton_of(c.encode_utf8(&mut [0; 4]));
    if letters.is_empty() {
        return match c {
            c if is_combining_mark(c) || quote::is_invisible(c) => NameCharacter::Nothing,
            // The skeleton leaves out `i`, `l` and `1`, which look alike.
            c if c.is_alphanumeric() => NameCharacter::Letters(vec![b'i']),
            _ => NameCharacter::Separator,
        };
    }
    for letter in &mut letters {
        *letter = match *letter {
            b'2' => b'z',
            b'3' => b'e',
            b'4' => b'a',
            b'5' => b's',
            b'6' | b'9' => b'g',
            b'7' => b't',
            b'8' => b'b',
            letter => letter,
        };
    }
    NameCharacter::Letters(letters)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decide(
        caller: &Principal,
        id: &str,
        row: Option<&KnownOwner>,
        is_subject: bool,
    ) -> SessionStanding {
        SessionStanding::decide(caller, id, row, is_subject)
    }

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
        use SessionStanding::{
            Absent, Adoptable, Elsewhere, Foreign, Occupied, Own, Reserved, Unclaimed,
        };
        let a = session("a");
        let of_b = || known(Some(session("b")));
        let of_operator = || known(Some(Principal::Operator));
        let gone = KnownOwner { is_gone: true, ..of_b() };
        let proven = KnownOwner { is_proven: true, ..of_b() };
        let gone_and_proven = KnownOwner { is_gone: true, ..proven.clone() };
        let elsewhere = |row: &KnownOwner| KnownOwner { same_project: false, ..row.clone() };
        let here = |row| KnownOwner { same_process: true, ..row };
        let operator_gone = KnownOwner { is_gone: true, is_proven: true, ..of_operator() };
        let operator_proven = KnownOwner { is_proven: true, ..of_operator() };
        let nobodys = KnownOwner { owner: None, ..here(gone_and_proven.clone()) };
        for (case, row, is_subject, standing) in [
            ("nobody has it", None, false, Unclaimed),
            ("it is the name of a principal", None, true, Reserved),
            ("one's own", Some(known(Some(a.clone()))), false, Own),
            ("another's, who lives", Some(of_b()), false, Foreign),
            ("another's, who is gone", Some(gone.clone()), false, Absent),
            ("proven, and who has it lives", Some(proven.clone()), false, Occupied),
            ("proven, and who had it is gone", Some(gone_and_proven.clone()), false, Adoptable),
            ("of another project", Some(elsewhere(&gone)), false, Elsewhere),
            ("of another project, living", Some(elsewhere(&proven)), false, Elsewhere),
            ("of another project, and proven", Some(elsewhere(&gone_and_proven)), false, Elsewhere),
            ("a living owner's in one's own process", Some(here(of_b())), false, Foreign),
            ("the operator's", Some(of_operator()), false, Foreign),
            ("the operator is never gone", Some(operator_gone), false, Foreign),
            (
                "the operator's, in one's process, by a hook",
                Some(here(operator_proven)),
                false,
                Adoptable,
            ),
            (
                "the operator's, in one's process, by a call",
                Some(here(of_operator())),
                false,
                Foreign,
            ),
            ("nobody's, whatever else is so", Some(nobodys), false, Elsewhere),
        ] {
            assert_eq!(decide(&a, "s", row.as_ref(), is_subject), standing, "{case}");
        }
        for id in ["default", "operator", "Default", "оperator", "the person"] {
            assert_eq!(decide(&a, id, None, false), Reserved, "{id}");
            assert_eq!(decide(&Principal::Operator, id, None, false), Own, "{id}");
            let own = known(Some(a.clone()));
            assert_eq!(decide(&a, id, Some(&own), false), Own, "it has it already");
            let row = Some(&gone_and_proven);
            assert_eq!(decide(&a, id, row, false), Foreign, "{id}");
        }
        assert_eq!(decide(&Principal::Operator, "s", Some(&of_b()), true), Own);
    }

    #[test]
    fn naming_a_session_of_another_principal_does_not_grant_it() {
        use SessionStanding::{Absent, Foreign, Own};
        let a = session("a");
        let of_b = known(Some(session("b")));
        assert_eq!(decide(&a, "a", None, true), Own, "it has its own without a row");
        let of_operator = known(Some(Principal::Operator));
        assert_eq!(decide(&a, "a", Some(&of_operator), true), Own, "given to it");
        assert_eq!(decide(&a, "a", Some(&of_b), true), Foreign, "b had it first");
        let gone = KnownOwner { is_gone: true, ..of_b.clone() };
        assert_eq!(decide(&a, "a", Some(&gone), true), Absent);
        assert_eq!(decide(&a, "own:a", None, true), Own, "and has another");
        assert_eq!(decide(&session("b"), "a", Some(&of_b), true), Own);
        let of_a = decide(&session("b"), "own:a", None, true);
        assert_eq!(of_a, SessionStanding::Reserved);
    }

    #[test]
    fn session_ids_in_the_forms_of_the_daemon_are_reserved() {
        const FORMS: &str = "agent:claude:main/AGENT:claude:main/Agent:x/ agent:x/\u{200b}agent:x/\
            аgent:x/ａｇｅｎｔ：claude：main/mcp_1/MCP_1/mcp＿1/own:x";
        for id in FORMS.split('/') {
            assert!(is_daemons_session_id(id), "{id:?}");
            for caller in [session("a"), Principal::Operator] {
                assert_eq!(decide(&caller, id, None, false), SessionStanding::Reserved, "{id:?}");
            }
        }
        for id in ["", "agent", "agents:x", "mcp-1", "s-1", "my-agent:x", "ses_1", "owner:x"] {
            assert!(!is_daemons_session_id(id), "{id:?}");
        }
        let key = "agent:claude:main";
        assert_eq!(decide(&session(key), key, None, true), SessionStanding::Own);
    }

    fn principals() -> impl Strategy<Value = Option<Principal>> {
        prop_oneof![
            Just(None),
            Just(Some(Principal::Operator)),
            "[ab]".prop_map(|key| Some(Principal::Session(key.into()))),
        ]
    }

    proptest! {
        /// A session token gets no session whose owner still exists, whatever else is known.
        #[test]
        fn session_of_a_living_owner_is_never_granted_to_another(
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
            let standing = decide(&caller, &id, Some(&row), is_subject);
            let is_own = owner.as_ref() == Some(&caller)
                || (id == "a" && owner == Some(Principal::Operator));
            prop_assert_eq!(standing == SessionStanding::Own, is_own);
            let is_refused =
                matches!(standing, SessionStanding::Foreign | SessionStanding::Occupied | SessionStanding::Elsewhere);
            prop_assert_eq!(is_refused, !is_own);
        }
    }

    #[test]
    fn names_that_read_or_look_like_the_operator_are_reserved() {
        const RESERVED: &str = "operator/Operator/ OPERATOR /o p e r a t o r/oper-ator/[operator]/ореrator/\
            οperatοr/ｏｐｅｒａｔｏｒ/ｏperator\u{200b}/o\u{ad}perator/\u{202e}operator/òperátor/\
            𝐨𝐩𝐞𝐫𝐚𝐭𝐨𝐫/human/hυman/hurnan/User/users/user-1/admin/adm1n/adm!n/@dmin/u$er/\
            admіn/system/svc/SVC/s.v.c/svc-2/root/the operator/svc operator/\
            Operator (you)/operator!/|operator|/operator@host/operator-2/operator2/\
            operators/the operator's/TheOperator/opErAtOr/the user/svc daemon/svc@host/\
            you/YOU!/the owner/boss/my real boss/op3rator/0p3r4t0r/0perator2/5y5tem/\
            operaтoɾ/person/Person at the terminal/the person/persons/\
            the person at this machine's terminal/this is the user of that machine/latest/\
            default/@operator/-@operator";
        const FREE: &str = "/-/42/the/ann/claude-code@svc/claude@operator/codex@svc-2/gemini@user-service/\
            opencode@system/user-service/UserService/design-system/k8s-operator/\
            this-machine-learning/theme/team/mean/cooperator/svc-worker/\
            svc worker for you/system-2-tests/main/reviewer/humane/personal/ecosystem/\
            администратор/用户";
        for name in RESERVED.split('/') {
            assert!(is_reserved_name(name), "{name:?}");
        }
        for name in FREE.split('/') {
            assert!(!is_reserved_name(name), "{name:?}");
        }
    }

    #[test]
    fn bidirectional_controls_in_a_name_are_detected() {
        for name in ["\u{202e}rotarepo", "op\u{2067}tare\u{2069}or", "a\u{200f}"] {
            assert!(changes_direction(name), "{name:?}");
        }
        for name in ["", "ann", "דנה", "👩\u{200d}💻"] {
            assert!(!changes_direction(name), "{name:?}");
        }
    }
}
