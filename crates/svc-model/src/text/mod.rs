//! Maps a text to its search terms, and a prompt to a query.
//!
//! There is no model. Knowledge about words is in lists: `thesaurus.txt` has synonyms of
//! developers' terms; `common.txt` has words of everyday English, which identify a subject poorly
//! even if few records have them; `stop.txt` has words without information. `orders.txt` has words
//! with which an order begins, optionally after a word of `openings.txt`; it distinguishes orders
//! from reports of problems.

mod stem;

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use strsim::osa_distance;

use crate::limits;
use stem::stem;

/// Weight of a synonym, relative to the word itself.
const SYNONYM: f64 = 0.65;
/// Factor for synonyms of an everyday word, which has many senses.
const COMMON_WORD_FACTOR: f64 = 0.5;
/// Weight of a synonym of a phrase, whose sense is less ambiguous.
const PHRASE_SYNONYM: f64 = 0.85;
/// Weight of a term that may be the correct spelling of a word.
const TYPO: f64 = 0.7;
/// Weight of a longer or shorter form.
const FORM: f64 = 0.5;
/// Number of synonyms from which on the weight of each decreases: a word with many synonyms is
/// ambiguous.
const MANY_SYNONYMS: f64 = 10.0;
/// Minimum digits of a number that is not a quantity but may be a code, a port or a version.
const CODE_DIGITS: usize = 3;
/// Maximum parts of an identifier that are related to it.
const MAX_IDENTIFIER_PARTS: usize = 8;

/// Orders that are recognised by two words.
const TWO_WORD_ORDERS: &[[&str; 2]] =
    &[["go", "on"], ["how", "many"], ["set", "up"], ["what", "does"], ["what", "is"]];

type Words = LazyLock<HashSet<&'static str>>;

static STOP: Words = LazyLock::new(|| include_str!("stop.txt").split_whitespace().collect());
static OPENINGS: Words =
    LazyLock::new(|| include_str!("openings.txt").split_whitespace().collect());
static ORDERS: Words = LazyLock::new(|| include_str!("orders.txt").split_whitespace().collect());
static COMMON: LazyLock<HashSet<String>> =
    LazyLock::new(|| include_str!("common.txt").split_whitespace().map(stem).collect());
static THESAURUS: LazyLock<Thesaurus> =
    LazyLock::new(|| Thesaurus::read(include_str!("thesaurus.txt")));

#[derive(Default)]
struct Thesaurus {
    words: HashMap<String, Vec<String>>,
    /// Keyed by the first word.
    phrases: HashMap<String, Vec<Phrase>>,
}

/// A phrase of several words, and its synonyms.
struct Phrase {
    words: Vec<String>,
    meaning: Vec<String>,
}

impl Thesaurus {
    fn read(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let items = line.split(',').map(|item| {
                item.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .filter(|word| !word.is_empty())
                    .map(|word| stem(&fold(word)))
                    .collect::<Vec<_>>()
            });
            let (words, phrases): (Vec<_>, Vec<_>) = items.partition(|words| words.len() == 1);
            let mut group: Vec<String> = Vec::new();
            for word in words.into_iter().flatten() {
                if !group.contains(&word) {
                    group.push(word);
                }
            }
            for phrase in phrases.into_iter().filter(|phrase| !phrase.is_empty()) {
                all.phrases
                    .entry(phrase[0].clone())
                    .or_default()
                    .push(Phrase { words: phrase, meaning: group.clone() });
            }
            for word in &group {
                let known = all.words.entry(word.clone()).or_default();
                for other in &group {
                    if other != word && !known.contains(other) {
                        known.push(other.clone());
                    }
                }
            }
        }
        all
    }
}

/// Whether a term is an everyday word or a small number.
pub fn is_common(term: &str) -> bool {
    let is_quantity = term.len() < CODE_DIGITS && term.bytes().all(|byte| byte.is_ascii_digit());
    is_quantity || COMMON.contains(term)
}

/// The weight of each synonym of a word that has `synonyms` of them.
fn synonym(is_common: bool, synonyms: usize) -> f64 {
    let count = f64::from(u16::try_from(synonyms).unwrap_or(u16::MAX));
    let of_many = (MANY_SYNONYMS / count.max(MANY_SYNONYMS)).sqrt();
    SYNONYM * of_many * if is_common { COMMON_WORD_FACTOR } else { 1.0 }
}

/// The terms of a text, separated by spaces. Terms consist of letters and digits.
pub fn terms(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for word in words(text) {
        if has_information(&word) {
            if !all.is_empty() {
                all.push(' ');
            }
            all.push_str(&stem(&word));
        }
    }
    all
}

/// The stem of a single word, equal to that of FTS5's `porter`.
pub fn plain_stem(word: &str) -> String {
    stem(&fold(word))
}

/// The query of a prompt.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// One group for each word or phrase.
    pub groups: Vec<WordGroup>,
    /// The prompt orders work and reports no problem, so few remembered items help.
    pub is_chore: bool,
}

/// A word or a phrase, and the terms that match it.
#[derive(Debug, Clone)]
pub struct WordGroup {
    pub term: String,
    /// Whether it is a phrase, which is searched only by its synonyms.
    pub is_phrase: bool,
    pub is_common: bool,
    /// Whether the thesaurus has the word.
    pub is_known: bool,
    /// The term of the identifier that the word is a part of.
    pub whole: Option<String>,
    /// Terms to search, with their weights.
    pub members: Vec<(String, f64)>,
}

impl WordGroup {
    fn add(&mut self, term: &str, weight: f64) {
        if !self.members.iter().any(|(known, _)| known == term) {
            self.members.push((term.to_owned(), weight));
        }
    }

    pub fn identifies_subject(&self) -> bool {
        !self.is_common && !self.is_phrase
    }

    /// Whether to search for terms with a similar spelling if no record has this one. Everyday
    /// words are taken as spelt: "mouth" is not a typo of "month".
    pub fn may_be_misspelt(&self) -> bool {
        !self.is_phrase
            && !self.is_known
            && !self.is_common
            && self.term.len() >= 5
            && self.term.bytes().all(|byte| byte.is_ascii_lowercase())
    }

    /// Adds `term`, which records have, if its spelling is similar.
    pub fn resembles(&mut self, term: &str) {
        let most = mistakes(&self.term);
        let is_form = self.term.len() >= 8
            && term.len() >= 6
            && (self.term.starts_with(term) || term.starts_with(&self.term));
        if self.term.as_bytes().first() == term.as_bytes().first()
            && self.term.len().abs_diff(term.len()) <= most
            && osa_distance(&self.term, term) <= most
        {
            self.add(term, TYPO);
            for other in THESAURUS.words.get(term).into_iter().flatten() {
                self.add(other, SYNONYM * TYPO);
            }
        } else if is_form {
            self.add(term, FORM);
        }
    }

    /// An FTS5 query for candidates of [`resembles`](Self::resembles): any of the word's parts. The
    /// word has one part more than the allowed number of mistakes, so a candidate has at least one
    /// part intact.
    pub fn parts(&self) -> String {
        let term = self.term.as_str();
        let (count, length) = (mistakes(term) + 1, (term.len() / (mistakes(term) + 1)).max(3));
        let last = term.len().saturating_sub(length);
        any_of((0..count).map(|part| {
            let start = last * part / (count - 1);
            term.get(start..start + length).unwrap_or(term)
        }))
    }
}

impl Prompt {
    pub fn read(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(limits::PROMPT_BYTES)];
        let words: Vec<String> = words(text).collect();
        let stems: Vec<String> = words.iter().map(|word| stem(word)).collect();
        let mut groups = Vec::new();
        let mut seen = HashSet::new();
        for (at, (word, term)) in words.iter().zip(&stems).enumerate() {
            if has_information(word) && seen.insert(term) {
                let is_common = is_common(term);
                let others = THESAURUS.words.get(term);
                let mut group = WordGroup {
                    term: term.clone(),
                    is_phrase: false,
                    is_common,
                    is_known: others.is_some(),
                    whole: identifier_of_part(&words, at).map(|whole| stems[whole].clone()),
                    members: vec![(term.clone(), 1.0)],
                };
                let weight = synonym(is_common, others.map_or(0, Vec::len));
                for other in others.into_iter().flatten() {
                    group.add(other, weight);
                }
                groups.push(group);
            }
        }
        for at in 0..stems.len() {
            for Phrase { words: phrase, meaning } in
                THESAURUS.phrases.get(&stems[at]).into_iter().flatten()
            {
                let term = phrase.join(" ");
                if stems[at..].starts_with(phrase)
                    && !groups.iter().any(|group: &WordGroup| group.term == term)
                {
                    let members =
                        meaning.iter().map(|term| (term.clone(), PHRASE_SYNONYM)).collect();
                    let (is_phrase, is_common, is_known, whole) = (true, false, true, None);
                    groups.push(WordGroup { term, is_phrase, is_common, is_known, whole, members });
                }
            }
        }
        Self { groups, is_chore: is_chore(&words) }
    }
}

/// The index of the identifier that a word is a part of: [`words`] returns an identifier without
/// its separators, followed by its parts.
fn identifier_of_part(words: &[String], part: usize) -> Option<usize> {
    (part.saturating_sub(MAX_IDENTIFIER_PARTS)..part).rev().find(|&whole| {
        let mut rest = words[whole].as_str();
        let parts = words[whole + 1..].iter().take_while(|part| {
            let after = rest.strip_prefix(part.as_str()).filter(|_| !rest.is_empty());
            rest = after.unwrap_or(rest);
            after.is_some()
        });
        let count = parts.count();
        rest.is_empty() && count > 1 && part <= whole + count
    })
}

fn is_chore(words: &[String]) -> bool {
    let thanks = words.first().is_some_and(|word| word == "thanks");
    let start = words.iter().take_while(|word| OPENINGS.contains(word.as_str())).count();
    let rest = &words[start..];
    thanks
        || rest.first().is_some_and(|word| ORDERS.contains(word.as_str()))
        || TWO_WORD_ORDERS.iter().any(|order| rest.starts_with(&order.map(str::to_owned)))
}

/// An FTS5 query for any of the terms. Terms are quoted, so that none is an operator.
pub fn any_of<'a>(terms: impl IntoIterator<Item = &'a str>) -> String {
    terms.into_iter().map(quote).collect::<Vec<_>>().join(" OR ")
}

fn quote(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

fn has_information(word: &str) -> bool {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    !STOP.contains(word) && (word.len() > 1) && !(is_number && word.len() > 4)
}

/// The words of a text, folded. An identifier gives the whole without separators, and its parts.
/// Text in a script without spaces gives each pair of adjacent characters.
pub fn words(text: &str) -> impl Iterator<Item = String> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let has_spaces = |c: char| is_word(c) && !is_dense(c);
        let (run, after) = if is_dense(first) {
            let run = cut(rest, is_dense);
            let chars: Vec<char> = run.0.chars().collect();
            match chars.as_slice() {
                [one] => all.push(one.to_string()),
                many => all.extend(many.windows(2).map(|pair| pair.iter().collect::<String>())),
            }
            run
        } else if has_spaces(first) {
            let run = cut(rest, has_spaces);
            split(run.0, &mut all);
            run
        } else {
            rest.split_at(first.len_utf8())
        };
        debug_assert!(!run.is_empty(), "a step forward");
        rest = after;
    }
    all.into_iter()
}

fn cut(text: &str, is_in: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_in(c)).unwrap_or(text.len()))
}

fn is_word(c: char) -> bool {
    // The last range is combining marks.
    c.is_alphanumeric() || c == '_' || matches!(c, '\u{300}'..='\u{36f}')
}

/// Whether a character is of a script without spaces between words. The blocks also contain
/// symbols, which are excluded.
fn is_dense(c: char) -> bool {
    c.is_alphanumeric()
        && matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}')
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    Upper,
    Lower,
    Digit,
    Seam,
}

fn split(run: &str, all: &mut Vec<String>) {
    let kind = |c: char| match c {
        '_' => CharKind::Seam,
        c if c.is_numeric() => CharKind::Digit,
        c if c.is_uppercase() => CharKind::Upper,
        _ => CharKind::Lower,
    };
    let chars: Vec<char> = run.chars().collect();
    let mut parts: Vec<String> = Vec::new();
    let mut begins = true;
    for (at, c) in chars.iter().copied().enumerate() {
        let before = at.checked_sub(1).map(|at| kind(chars[at]));
        let here = kind(c);
        let next = chars.get(at + 1).map(|c| kind(*c));
        begins |= match (before, here) {
            (Some(CharKind::Upper), CharKind::Upper) => {
                let is_plural = chars[at + 1..] == ['s'];
                next == Some(CharKind::Lower) && !is_plural
            }
            (Some(CharKind::Upper), CharKind::Lower) => false,
            (before, here) => before != Some(here),
        };
        if here == CharKind::Seam {
            begins = true;
            continue;
        }
        if begins || parts.is_empty() {
            parts.push(String::new());
            begins = false;
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let parts: Vec<String> =
        parts.iter().map(|part| fold(part)).filter(|part| !part.is_empty()).collect();
    if parts.len() > 1 {
        all.push(parts.concat());
    }
    all.extend(parts);
}

/// Lower case, without diacritics of European letters.
fn fold(word: &str) -> String {
    let mut folded = String::with_capacity(word.len());
    for c in word.chars().flat_map(char::to_lowercase) {
        match c {
            'à'..='å' | 'ā' | 'ă' | 'ą' => folded.push('a'),
            'ç' | 'ć' | 'č' => folded.push('c'),
            'ď' | 'đ' => folded.push('d'),
            'è'..='ë' | 'ē' | 'ė' | 'ę' | 'ě' => folded.push('e'),
            'ì'..='ï' | 'ī' | 'į' | 'ı' => folded.push('i'),
            'ł' | 'ľ' => folded.push('l'),
            'ñ' | 'ń' | 'ň' => folded.push('n'),
            'ò'..='ö' | 'ø' | 'ō' | 'ő' => folded.push('o'),
            'ř' => folded.push('r'),
            'ś' | 'š' | 'ş' => folded.push('s'),
            'ť' | 'ţ' => folded.push('t'),
            'ù'..='ü' | 'ū' | 'ů' | 'ű' => folded.push('u'),
            'ý' | 'ÿ' => folded.push('y'),
            'ź' | 'ż' | 'ž' => folded.push('z'),
            'ß' => folded.push_str("ss"),
            'æ' => folded.push_str("ae"),
            'œ' => folded.push_str("oe"),
            // Combining marks that remain after lower-casing.
            '\u{300}'..='\u{36f}' => {}
            c => folded.push(c),
        }
    }
    folded
}

/// Maximum edits between a misspelt word and a term.
fn mistakes(term: &str) -> usize {
    if term.len() < 8 { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_split_into_words_and_identifier_parts() {
        for (text, are) in [
            ("computeCartTotal()", "computecarttot comput cart total"),
            ("LineItem::total", "lineitem line item total"),
            ("src/store/write_tx.rs", "src store writetx write tx rs"),
            ("HTTPServer2", "httpserver2 http server"),
            ("C++ foo-bar col:val", "foo bar col val"),
            ("URLs of TVs, DNSSec", "url tv dnssec dn sec"),
            ("Zertifikatsprüfung GRÖẞE", "zertifikatsprufung gross"),
            ("Excelで開く", "excel で開 開く"),
            ("䷀ サーバー・エラー", "サー ーバ バー エラ ラー"),
            ("the 123456 of 502", "502"),
            ("データ・ベース䷀", "デー ータ ベー ース"),
        ] {
            assert_eq!(terms(text), are, "{text}");
        }
    }

    #[test]
    fn a_typo_resembles_its_word_and_another_word_does_not() {
        let group = |word: &str| Prompt::read(word).groups.remove(0);
        let mut typo = group("stragler");
        assert!(typo.may_be_misspelt());
        typo.resembles("straggler");
        typo.resembles("string");
        let terms: Vec<&str> = typo.members.iter().map(|it| it.0.as_str()).collect();
        assert!(terms.contains(&"straggler") && terms.contains(&"skew"), "{terms:?}");
        assert!(!terms.contains(&"string"));
    }

    #[test]
    fn everyday_words_are_never_misspelt() {
        for (word, may) in
            [("mouth", false), ("centre", false), ("timeout", false), ("stragler", true)]
        {
            assert_eq!(Prompt::read(word).groups[0].may_be_misspelt(), may, "{word}");
        }
    }

    #[test]
    fn parts_of_an_identifier_refer_to_the_whole() {
        let prompt = Prompt::read("RabbitMQ computeCartTotal(), rabbit");
        let wholes: Vec<(&str, Option<&str>)> =
            prompt.groups.iter().map(|it| (it.term.as_str(), it.whole.as_deref())).collect();
        let (mq, cart) = (Some("rabbitmq"), Some("computecarttot"));
        assert_eq!(
            wholes,
            [
                ("rabbitmq", None),
                ("rabbit", mq),
                ("mq", mq),
                ("computecarttot", None),
                ("comput", cart),
                ("cart", cart),
                ("total", cart),
            ]
        );
    }

    #[test]
    fn the_weight_of_a_synonym_decreases_with_their_number() {
        let of = |synonyms| synonym(false, synonyms);
        assert!(
            (of(1) - of(10)).abs() < 1e-9 && of(10) > of(11) && of(11) > of(40) && of(40) > 0.0
        );
        assert!(synonym(true, 1) < of(1));
    }

    #[test]
    fn orders_are_distinguished_from_reports_of_problems() {
        assert!(Prompt::read("Please add a spinner to the button").is_chore);
        assert!(Prompt::read("thanks, that looks good").is_chore);
        assert!(!Prompt::read("the button does nothing").is_chore);
    }

    #[test]
    fn a_phrase_has_its_own_synonyms() {
        let prompt = Prompt::read("the pod ran out of memory");
        let means = |group: &WordGroup| group.members.iter().any(|(term, _)| term == "oom");
        let phrases: Vec<&WordGroup> = prompt.groups.iter().filter(|it| it.is_phrase).collect();
        assert!(phrases.iter().any(|group| means(group)), "{phrases:?}");
    }

    proptest! {
        #[test]
        fn terms_of_any_text_are_letters_and_digits(text in ".{0,200}") {
            let terms = terms(&text);
            prop_assert!(terms.chars().all(|c| c.is_alphanumeric() || c == ' '), "{terms:?}");
            prop_assert!(!terms.starts_with(' ') && !terms.contains("  "));
        }

        #[test]
        fn two_words_have_at_most_two_terms(text in "[a-z]{1,4}( [0-9]{1,3})?") {
            let once = terms(&text);
            prop_assert!(once.split(' ').count() <= 2);
        }

        #[test]
        fn any_prompt_parses(text in "\\PC{0,300}") {
            let prompt = Prompt::read(&text);
            for group in &prompt.groups {
                prop_assert!(!group.term.contains('"'));
                prop_assert_eq!(group.parts().matches('"').count() % 2, 0);
            }
        }
    }
}
