//! Names that a reader would take for the operator's, or for the daemon's own.

use std::sync::LazyLock;

use unicode_normalization::char::is_combining_mark;

use super::quote;

/// The session of the operator's calls that name none, as long as the operator has started none.
pub const IMPLICIT_SESSION: &str = "default";

/// Words for who speaks for the operator, for the daemon, and for whatever else a name means to a
/// reader. A name of these alone is nobody's to take.
const WORDS: [&str; 20] = [
    "operator",
    "human",
    "person",
    "user",
    "superuser",
    "owner",
    "boss",
    "admin",
    "administrator",
    "sysadmin",
    "root",
    "system",
    "daemon",
    "svc",
    "default",
    "me",
    "you",
    "terminal",
    "machine",
    "latest",
];

/// Words that make no other name of these. The last is what an apostrophe leaves of a genitive.
const FILLERS: [&str; 13] =
    ["the", "a", "an", "at", "of", "this", "that", "my", "your", "our", "real", "is", "s"];

static FOLDED_WORDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| WORDS.map(folded).to_vec());
static FOLDED_FILLERS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| FILLERS.map(folded).to_vec());

/// Whether a name says no more than that it is the operator, the daemon, or whoever reads it: in
/// other letters or digits that look the same, in capitals, spaced, with characters that nobody
/// sees, with a number, as a plural, with articles and the like. Behind the first `@` stands the
/// folder of a client's session, which may be called anything.
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

/// Whether a name has a character that changes the direction of what stands beside it, so that it
/// is read otherwise than it is written.
pub fn changes_direction(name: &str) -> bool {
    let is_direction = |c: char| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    name.chars().any(is_direction)
}

fn consists_of_reserved(words: &[String], symbols: SymbolsAs) -> bool {
    let is_filler = |word: &String| {
        let mut readings = readings(word, symbols).into_iter();
        readings.any(|word| word.is_empty() || FOLDED_FILLERS.contains(&word))
    };
    let is_reserved = |word: &String| {
        let mut readings = readings(word, symbols).into_iter();
        readings.any(|word| {
            let singular = word.strip_suffix(b"s").unwrap_or(&word);
            FOLDED_WORDS.iter().any(|reserved| *reserved == word || reserved == singular)
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

/// How a word may be read: without its digits, and with digits as the letters that they look like.
/// A number at the end is no part of it.
fn readings(word: &str, symbols: SymbolsAs) -> [Vec<u8>; 3] {
    let without_digits: String = word.chars().filter(|c| !c.is_numeric()).collect();
    let without_number = word.trim_end_matches(char::is_numeric);
    [&*without_digits, without_number, word].map(|word| folded_with(word, symbols))
}

/// What `@`, `$`, `!` and `|` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SymbolsAs {
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

/// The words of a name: what stands between all that is neither a letter nor a digit.
pub(crate) fn words(name: &str, symbols: SymbolsAs, capitals_begin_words: bool) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for c in name.chars() {
        let begins = capitals_begin_words && c.is_ascii_uppercase() && last.is_ascii_lowercase();
        match sign(c, symbols) {
            Sign::Nothing => continue,
            Sign::Separator => words.push(String::new()),
            Sign::Letters(_) if begins => words.push(c.to_string()),
            Sign::Letters(_) => words.iter_mut().last().into_iter().for_each(|word| word.push(c)),
        }
        last = c;
    }
    words.retain(|word| !word.is_empty());
    words
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
    fn names_by_what_they_say_and_look_like() {
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
            "users",
            "user-1",
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
            "svc-2",
            "root",
            "the operator",
            "svc operator",
            "Operator (you)",
            "operator!",
            "|operator|",
            "operator@host",
            "operator-2",
            "operator2",
            "operators",
            "the operator's",
            "TheOperator",
            "opErAtOr",
            "the user",
            "svc daemon",
            "svc@host",
            "you",
            "YOU!",
            "the owner",
            "boss",
            "my real boss",
            "op3rator",
            "0p3r4t0r",
            "0perator2",
            "5y5tem",
            "operaтoɾ",
            "person",
            "Person at the terminal",
            "the person",
            "persons",
            "the person at this machine's terminal",
            "this is the user of that machine",
            "latest",
            "default",
            "@operator",
            "-@operator",
        ] {
            assert!(is_reserved_name(name), "{name:?}");
        }
        for name in [
            "",
            "-",
            "42",
            "the",
            "ann",
            "claude-code@svc",
            "claude@operator",
            "codex@svc-2",
            "gemini@user-service",
            "opencode@system",
            "user-service",
            "UserService",
            "design-system",
            "k8s-operator",
            "this-machine-learning",
            "theme",
            "team",
            "mean",
            "cooperator",
            "svc-worker",
            "svc worker for you",
            "system-2-tests",
            "main",
            "reviewer",
            "humane",
            "personal",
            "ecosystem",
            "администратор",
            "用户",
        ] {
            assert!(!is_reserved_name(name), "{name:?}");
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
