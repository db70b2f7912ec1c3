//! Names that a reader would take for the operator's, or for the daemon's own.

use unicode_normalization::char::is_combining_mark;

use super::quote;

/// The session of the operator's calls that name none, as long as the operator has started none.
pub const IMPLICIT_SESSION: &str = "default";

/// Sessions that the operator alone begins.
const SESSIONS: [&str; 4] = [IMPLICIT_SESSION, "operator", "svc", "daemon"];

/// Words for who speaks for the operator. A name with one of them looks like the operator's.
const WORDS: [&str; 10] = [
    "operator",
    "human",
    "user",
    "superuser",
    "admin",
    "administrator",
    "sysadmin",
    "root",
    "system",
    "daemon",
];

/// The longest of them, folded.
const WORD_BYTES: usize = 20;

/// Words that are the operator's or the daemon's where they are the whole name. Projects and tools are called like these.
const NAMES: [&str; 5] = ["svc", "owner", "you", "me", "default"];

/// Words that make no other name of these.
const FILLERS: [&str; 8] = ["the", "a", "an", "your", "my", "our", "this", "real"];

/// How the daemon speaks of the operator.
const PHRASES: [&str; 3] = ["person at this", "this machine", "terminal who"];

/// Whether a name looks like one of the operator's: in other letters or digits that look the same, in capitals, spaced, with
/// characters that nobody sees, among other words. Behind the first `@` stands the folder of a client's session, which
/// may be called anything.
pub fn looks_like_operator(name: &str) -> bool {
    let head = match name.split_once('@') {
        Some((head, _)) if head.chars().any(char::is_alphanumeric) => head,
        _ => name,
    };
    [SymbolsAs::Letters, SymbolsAs::Separators].iter().any(|symbols| {
        let all = words(name, *symbols).concat();
        let has_phrase = PHRASES.iter().any(|phrase| contains(&all, &folded(phrase)));
        has_phrase || has_reserved_word(&words(head, *symbols))
    })
}

/// Whether a session of this name is the operator's to begin: the operator's own calls land there, or its name says so.
pub fn is_reserved_session(id: &str) -> bool {
    [SymbolsAs::Letters, SymbolsAs::Separators].iter().any(|symbols| {
        let all = words(id, *symbols).concat();
        SESSIONS.iter().any(|reserved| all == folded(reserved))
    })
}

/// Whether a name has a character that changes the direction of what stands beside it, so that it is read otherwise than it
/// is written.
pub fn changes_direction(name: &str) -> bool {
    let is_direction = |c: char| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    name.chars().any(is_direction)
}

fn has_reserved_word(words: &[Vec<u8>]) -> bool {
    let all_folded = |words: &[&str]| words.iter().map(|word| folded(word)).collect::<Vec<_>>();
    let (reserved, names, fillers) = (all_folded(&WORDS), all_folded(&NAMES), all_folded(&FILLERS));
    let has_word = (0..words.len()).any(|start| {
        // A word may be written in several.
        let runs = words[start..].iter().scan(Vec::new(), |run, word| {
            run.extend(word);
            (run.len() <= WORD_BYTES).then(|| run.clone())
        });
        runs.into_iter().any(|run| reserved.contains(&run))
    });
    let mut rest = words.iter().filter(|word| !fillers.contains(word)).peekable();
    let is_name = rest.peek().is_some() && rest.all(|word| names.contains(word));
    has_word || is_name || names.contains(&words.concat())
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// What `@`, `$`, `!` and `|` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymbolsAs {
    /// A way to write `a`, `s` and `i`.
    Letters,
    Separators,
}

/// What a character is to a name.
enum Sign {
    /// What it looks like, in small ASCII letters.
    Letters(Vec<u8>),
    Separator,
    /// Nobody sees it, or it stands on its neighbour.
    Nothing,
}

/// The words of a name, by what they look like. The number at the end of a word is no part of it; a capital after a small
/// letter begins one.
fn words(name: &str, symbols: SymbolsAs) -> Vec<Vec<u8>> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for c in name.chars() {
        let begins = c.is_ascii_uppercase() && last.is_ascii_lowercase();
        match sign(c, symbols) {
            Sign::Nothing => continue,
            Sign::Separator => words.push(String::new()),
            Sign::Letters(_) if begins => words.push(c.to_string()),
            Sign::Letters(_) => words.iter_mut().last().into_iter().for_each(|word| word.push(c)),
        }
        last = c;
    }
    let folded_word = |word: String| {
        let without_number = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let word = if without_number.is_empty() { &*word } else { without_number };
        folded_with(word, symbols)
    };
    words.into_iter().map(folded_word).filter(|word| !word.is_empty()).collect()
}

fn folded(text: &str) -> Vec<u8> {
    folded_with(text, SymbolsAs::Separators)
}

fn folded_with(text: &str, symbols: SymbolsAs) -> Vec<u8> {
    text.chars()
        .filter_map(|c| match sign(c, symbols) {
            Sign::Letters(letters) => Some(letters),
            Sign::Separator | Sign::Nothing => None,
        })
        .flatten()
        .collect()
}

fn sign(c: char, symbols: SymbolsAs) -> Sign {
    match c {
        _ if symbols == SymbolsAs::Separators => {}
        '@' => return Sign::Letters(vec![b'a']),
        '$' => return Sign::Letters(vec![b's']),
        '!' | '|' => return Sign::Letters(vec![b'i']),
        _ => {}
    }
    let mut letters = quote::skeleton_of(c.encode_utf8(&mut [0; 4]));
    if letters.is_empty() {
        return match c {
            c if is_combining_mark(c) || quote::is_invisible(c) => Sign::Nothing,
            // Of `i`, `l` and `1` the skeleton keeps nothing, and they look alike.
            c if c.is_alphanumeric() => Sign::Letters(vec![b'i']),
            _ => Sign::Separator,
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
    Sign::Letters(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_what_they_look_like() {
        for name in [
            "operator",
            "Operator",
            " OPERATOR ",
            "o p e r a t o r",
            "oper-ator",
            "[operator]",
            "ореrator",
            "οperatοr",
            "ｏｐｅｒａｔｏｒ",
            "ｏperator\u{200b}",
            "o\u{ad}perator",
            "\u{202e}operator",
            "òperátor",
            "𝐨𝐩𝐞𝐫𝐚𝐭𝐨𝐫",
            "human",
            "hυman",
            "hurnan",
            "User",
            "admin",
            "adm1n",
            "adm!n",
            "@dmin",
            "u$er",
            "admіn",
            "system",
            "svc",
            "SVC",
            "s.v.c",
            "root",
            "the operator",
            "svc operator",
            "Operator (you)",
            "operator!",
            "|operator|",
            "operator@host",
            "operator-2",
            "operator2",
            "TheOperator",
            "opErAtOr",
            "the user",
            "user-1",
            "svc daemon",
            "svc@host",
            "you",
            "YOU!",
            "the owner",
            "op3rator",
            "0p3r4t0r",
            "5y5tem",
            "operaтoɾ",
            "the person at this machine's terminal, who tells",
            "x@the person at this machine",
            "@operator",
            "-@operator",
        ] {
            assert!(looks_like_operator(name), "{name:?}");
        }
        for name in [
            "",
            "-",
            "ann",
            "claude-code@svc",
            "claude@operator",
            "codex@svc-2",
            "gemini@user-service",
            "opencode@system",
            "operators",
            "cooperator",
            "svc-2",
            "svc-worker",
            "svc worker for you",
            "reviewer",
            "humane",
            "ecosystem",
            "администратор",
            "用户",
        ] {
            assert!(!looks_like_operator(name), "{name:?}");
        }
    }

    #[test]
    fn sessions_of_the_operators() {
        for id in
            ["default", "operator", "Operator", "def\u{200b}ault", "dеfault", "0perator", "svc"]
        {
            assert!(is_reserved_session(id), "{id:?}");
        }
        for id in ["", "s-1", "default-2-x", "the default", "operators", "owner", "main", "svc-7-a"]
        {
            assert!(!is_reserved_session(id), "{id:?}");
        }
    }

    #[test]
    fn what_turns_a_name_round() {
        for name in ["\u{202e}rotarepo", "op\u{2067}tare\u{2069}or", "a\u{200f}"] {
            assert!(changes_direction(name), "{name:?}");
        }
        for name in ["", "ann", "דנה", "👩\u{200d}💻"] {
            assert!(!changes_direction(name), "{name:?}");
        }
    }
}
