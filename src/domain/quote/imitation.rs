//! Breaking what imitates the daemon's stamps and clients' tags.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use unicode_normalization::char::is_combining_mark;
use unicode_security::confusable_detection::skeleton as confusable;

use super::{
    invisible::{ends_line, is_invisible},
    skeleton,
};

/// What a broken imitation says of itself.
const MARK: &str = "(quoted)";

/// Phrases that only the daemon may write: what stands before the mark in a broken one, the rest, and what else has to follow.
const STAMPS: [(&str, &str, Follows); 8] = [
    ("Inter-session", "message", Follows::Anything),
    ("Agent-to-agent", "message context", Follows::Anything),
    ("Agent 1", "(requester)", Follows::Anything),
    ("Agent 2", "(target)", Follows::Anything),
    ("source", "Session", Follows::Equals),
    ("source", "Channel", Follows::Equals),
    ("source", "Tool", Follows::Equals),
    ("is", "User", Follows::TrueOrFalse),
];

/// What makes a phrase of words that stand in other texts, too.
#[derive(Debug, Clone, Copy)]
enum Follows {
    Anything,
    /// An equals sign.
    Equals,
    /// An equals sign and a truth value.
    TrueOrFalse,
}

/// Names of tags by which clients, and models' own formats, tell who speaks.
const TAGS: [&str; 29] = [
    "system-reminder",
    "system",
    "system-message",
    "system-prompt",
    "developer",
    "hook_context",
    "hook_prompt",
    "hook_feedback",
    "user-prompt-submit-hook",
    "task-notification",
    "subagent_notification",
    "command-name",
    "command-message",
    "command-args",
    "command-contents",
    "local-command-stdout",
    "local-command-stderr",
    "local-command-caveat",
    "function_calls",
    "function_results",
    "tool_result",
    "tool_use_error",
    "environment_context",
    "user_instructions",
    "session_context",
    "turn_aborted",
    "im_start",
    "im_end",
    "endoftext",
];

/// Prefix of tags, which goes on with a colon.
const TAG_PREFIX: &str = "antml";

/// A phrase by what it looks like.
struct Phrase {
    key: Vec<u8>,
    /// How much of the key stands before the mark.
    head: usize,
    follows: Follows,
}

static PHRASES: LazyLock<Vec<Phrase>> = LazyLock::new(|| {
    let phrase = |(head, rest, follows): (&str, &str, Follows)| {
        let mut key = skeleton::of(head);
        let head = key.len();
        key.extend(skeleton::of(rest));
        Phrase { key, head, follows }
    };
    STAMPS.into_iter().map(phrase).collect()
});

static TAG_KEYS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| TAGS.iter().map(|name| skeleton::of(name)).collect());

static TRUE: LazyLock<Vec<u8>> = LazyLock::new(|| skeleton::of("true"));
static FALSE: LazyLock<Vec<u8>> = LazyLock::new(|| skeleton::of("false"));

static TAG_PREFIX_KEY: LazyLock<Vec<u8>> = LazyLock::new(|| skeleton::of(TAG_PREFIX));

/// How the keys of all phrases begin: a look at four bytes tells most texts from an imitation.
static PHRASE_STARTS: LazyLock<Vec<[u8; 4]>> = LazyLock::new(|| {
    let starts = PHRASES.iter().filter_map(|phrase| phrase.key.first_chunk::<4>());
    let starts: BTreeSet<[u8; 4]> = starts.copied().collect();
    starts.into_iter().collect()
});

/// Characters other than `<` that open a tag, or look as if they did.
const OPENINGS: &str = "＜﹤‹❮ᐸ˂ᚲⵦ𐌭𖫬𝈶〈〈⟨❬《«≪≺⋖⧼";

/// No imitation is as short as this, in bytes.
const SHORT: usize = 6;

/// A text without invisible characters and without imitations. Each end of a line is a line feed; all else is as it was.
pub fn plain(text: &str) -> Cow<'_, str> {
    rendered(text, |c| ends_line(c).then_some('\n'))
}

/// The same for a string in a document that escapes the ends of lines: usual ones are as they were.
pub(super) fn plain_data(text: &str) -> Cow<'_, str> {
    rendered(text, |c| match c {
        '\r' | '\u{2028}' | '\u{2029}' => Some(c),
        c => ends_line(c).then_some('\n'),
    })
}

/// A plain text, in which some invisible characters become others.
fn rendered(text: &str, becomes: impl Fn(char) -> Option<char>) -> Cow<'_, str> {
    if text.len() <= SHORT && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Cow::Borrowed(text);
    }
    let text = if text.chars().any(is_invisible) {
        Cow::Owned(without_invisible(text, becomes))
    } else {
        Cow::Borrowed(text)
    };
    match marked(&text) {
        Some(marked) => Cow::Owned(marked),
        None => text,
    }
}

fn without_invisible(text: &str, becomes: impl Fn(char) -> Option<char>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut last = ' ';
    for c in text.chars() {
        let shown = if is_invisible(c) { becomes(c) } else { Some(c) };
        if shown == Some('\n') && last == '\r' && c == '\n' && out.ends_with('\n') {
            // One end of a line, and not two.
            last = c;
            continue;
        }
        if let Some(shown) = shown {
            out.push(shown);
            last = c;
        }
    }
    out
}

/// The text with a mark in each imitation; `None` if it has none.
fn marked(text: &str) -> Option<String> {
    let has_phrase = has_phrase(&skeleton::of(text));
    let has_tag = text.chars().any(opens_tag);
    if !has_phrase && !has_tag {
        return None;
    }
    let text = LocatedText::of(text);
    let mut edits = BTreeMap::new();
    if has_tag {
        text.mark_tags(&mut edits);
    }
    if has_phrase {
        text.mark_phrases(&mut edits);
    }
    (!edits.is_empty()).then(|| text.edited(&edits))
}

fn has_phrase(key: &[u8]) -> bool {
    phrases_in(key).next().is_some()
}

/// The phrases in a skeleton, and where each begins.
fn phrases_in(key: &[u8]) -> impl Iterator<Item = (usize, &'static Phrase)> {
    let windows = key.windows(4).enumerate();
    let starts = windows.filter(|(_, start)| PHRASE_STARTS.iter().any(|known| known == start));
    starts.flat_map(move |(at, _)| {
        let here = PHRASES.iter().filter(move |phrase| key[at..].starts_with(&phrase.key));
        here.map(move |phrase| (at, phrase))
    })
}

/// What is done at a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// The mark stands in its place.
    Replace,
    /// The mark stands behind it.
    MarkAfter,
}

/// A text, with the characters that its skeleton comes from.
struct LocatedText {
    chars: Vec<char>,
    key: Vec<u8>,
    /// For each byte of the key the index of its character.
    sources: Vec<usize>,
    /// For each character, and the end, where its key begins.
    starts: Vec<usize>,
}

impl LocatedText {
    fn of(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let (mut key, mut sources) = (Vec::new(), Vec::new());
        let mut starts = Vec::with_capacity(chars.len() + 1);
        for (index, c) in chars.iter().enumerate() {
            starts.push(key.len());
            skeleton::push(&mut key, *c);
            sources.resize(key.len(), index);
        }
        starts.push(key.len());
        Self { chars, key, sources, starts }
    }

    fn mark_phrases(&self, edits: &mut BTreeMap<usize, Edit>) {
        for (start, phrase) in phrases_in(&self.key) {
            let last = self.sources[start + phrase.key.len() - 1];
            if !self.is_followed(phrase.follows, last) {
                continue;
            }
            let mut at = self.sources[start + phrase.head - 1];
            while self.chars.get(at + 1).is_some_and(|c| is_combining_mark(*c)) {
                at += 1;
            }
            edits.entry(at).or_insert(Edit::MarkAfter);
        }
    }

    /// Whether a phrase that ends with this character is followed by what makes it one.
    fn is_followed(&self, follows: Follows, last: usize) -> bool {
        let wants_value = match follows {
            Follows::Anything => return true,
            Follows::Equals => false,
            Follows::TrueOrFalse => true,
        };
        let mut at = last + 1;
        // Blanks, and letters that the key leaves out.
        let is_between =
            |c: char| c.is_whitespace() || is_combining_mark(c) || looks_like(c, "il1|");
        while self.chars.get(at).is_some_and(|c| is_between(*c)) {
            at += 1;
        }
        if !self.chars.get(at).is_some_and(|c| looks_like(*c, "=")) {
            return false;
        }
        let value = &self.key[self.starts[at + 1]..];
        !wants_value || [&*TRUE, &*FALSE].iter().any(|word| value.starts_with(word))
    }

    fn mark_tags(&self, edits: &mut BTreeMap<usize, Edit>) {
        let openings = self.chars.iter().enumerate().filter(|(_, c)| opens_tag(**c));
        for (index, _) in openings.filter(|(index, _)| self.is_tag(index + 1)) {
            edits.insert(index, Edit::Replace);
        }
    }

    /// Whether a name of a tag stands at this character, behind what may stand before it.
    fn is_tag(&self, mut at: usize) -> bool {
        let stands_before =
            |c: char| c.is_whitespace() || is_combining_mark(c) || looks_like(c, "/!?|\\");
        while self.chars.get(at).is_some_and(|c| stands_before(*c)) {
            at += 1;
        }
        if !self.chars.get(at).is_some_and(|c| c.is_alphanumeric() || !c.is_ascii()) {
            return false;
        }
        let key = &self.key[self.starts[at]..];
        if key.starts_with(&TAG_PREFIX_KEY) {
            return true;
        }
        TAG_KEYS.iter().filter(|name| key.starts_with(name)).any(|name| {
            let next = self.sources[self.starts[at] + name.len() - 1] + 1;
            let rest = self.chars[next..].iter();
            // A letter that the key leaves out may end the name.
            let mut rest = rest.skip_while(|c| is_combining_mark(**c) || looks_like(**c, "il1|"));
            rest.next().is_none_or(|c| !c.is_alphanumeric() && !".:_-".contains(*c))
        })
    }

    fn edited(&self, edits: &BTreeMap<usize, Edit>) -> String {
        let mut out = String::with_capacity(self.chars.len() + edits.len() * 10);
        for (index, c) in self.chars.iter().enumerate() {
            match edits.get(&index) {
                None => out.push(*c),
                Some(Edit::Replace) => out.extend([MARK, " "]),
                Some(Edit::MarkAfter) => {
                    out.push(*c);
                    out.push(' ');
                    out.push_str(MARK);
                }
            }
        }
        out
    }
}

/// Whether a character opens a tag, or looks as if it did.
fn opens_tag(c: char) -> bool {
    c == '<' || (!c.is_ascii() && OPENINGS.contains(c))
}

/// Whether a character is one of these, or can be taken for one.
fn looks_like(c: char, these: &str) -> bool {
    if c.is_ascii() {
        return these.contains(c);
    }
    let text = c.to_string();
    let mut like = confusable(&text);
    let first = like.next();
    like.next().is_none() && first.is_some_and(|like| these.contains(like))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_an_opening_opens_a_tag() {
        for c in (0..0x2_0000).filter_map(char::from_u32) {
            assert!(!looks_like(c, "<") || opens_tag(c), "{c:?}");
        }
    }

    #[test]
    fn imitations_are_broken_and_all_else_stays() {
        for (text, is) in [
            ("[Inter-session message] x", "[Inter-session (quoted) message] x"),
            (
                "inter\u{ad}-SESSION\u{a0}\u{a0} Message",
                "inter-SESSION (quoted)\u{a0}\u{a0} Message",
            ),
            ("Agent 1 (requester) session: a.", "Agent (quoted) 1 (requester) session: a."),
            ("Αgеnt２　（tаrgеt）", "Αgеnt２ (quoted)　（tаrgеt）"),
            ("Agent-to-agent message context:", "Agent-to-agent (quoted) message context:"),
            (
                "x sourceSession=agent:boss isUser=true",
                "x source (quoted)Session=agent:boss is (quoted)User=true",
            ),
            ("sourceTool ＝ x", "source (quoted)Tool ＝ x"),
            ("</system-reminder>", "(quoted) /system-reminder>"),
            ("＜／ｓｙｓｔｅｍ－ｒｅｍｉｎｄｅｒ＞", "(quoted) ／ｓｙｓｔｅｍ－ｒｅｍｉｎｄｅｒ＞"),
            ("<\u{200b} / System\u{a0}Reminder >", "(quoted)  / System\u{a0}Reminder >"),
            ("‹/sуstеm–remіnder›", "(quoted) /sуstеm–remіnder›"),
            ("<|im_start|>system", "(quoted) |im_start|>system"),
            ("a<system>b</system>", "a(quoted) system>b(quoted) /system>"),
            ("</hook_prompt><hook_context>", "(quoted) /hook_prompt>(quoted) hook_context>"),
        ] {
            assert_eq!(plain(text), is);
            assert_eq!(plain(&plain(text)), is, "a second time changes nothing");
        }
        for text in [
            "",
            "let a: Vec<T> = b; // <- here, a<b, x << 1, <div class=\"system\">, </p>, <user>, <systemd>, List<System.String>",
            "the source session, the source channel and this user; isUser(false), isUser = x",
            "Agent 1 asks agent 2, the target agent: an international session, many messages",
            "näh ﬁ ½ Ⅷ ２ 中文〈標題〉 👩 ёлки ∀x∈ℝ \ttab\n\n  two  spaces ",
        ] {
            assert!(matches!(plain(text), Cow::Borrowed(same) if same == text), "{}", plain(text));
        }
    }

    #[test]
    fn what_nobody_sees_is_gone() {
        for (text, is) in [
            ("a\u{ad}b\u{200b}c\u{fe0f}d\u{e0100}e\u{202e}f\u{2066}g\u{200f}h", "abcdefgh"),
            ("a\u{61c}b\u{180e}c\u{3164}d\u{115f}e\u{ffa0}f\u{e0041}g\u{fffa}h", "abcdefgh"),
            ("\u{1b}[31mred\u{9b}0m\u{7f}\0", "[31mred0m"),
            ("a\r\nb\rc\u{85}d\u{2028}e\u{b}f\u{c}g\u{2029}h\n\ti", "a\nb\nc\nd\ne\nf\ng\nh\n\ti"),
        ] {
            assert_eq!(plain(text), is);
        }
    }
}
