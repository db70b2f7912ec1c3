//! A prompt, weighed: which of its words a record has or means, how telling those are, and whether
//! the record has to do with it.

use std::collections::{BTreeMap, HashMap};

use svc_model::{
    limits,
    text::{self, Prompt, WordGroup},
};

// Tuned on the development parts of fixtures/retrieval; its README says how.

/// How soon a repeated term counts no more, and how much a long record is held against it (BM25's
/// k1 and b).
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.4;
/// Length of a usual record, in terms. Fixed, so that a score does not change with the other
/// records.
const USUAL_LENGTH: f64 = 26.5;
/// What a term counts in action, prediction and result, which say what was done and not what it is
/// about.
const REST: f64 = 0.5;
/// What an everyday word counts.
const COMMON: f64 = 0.7;
/// Rarity counts for less than in full: among few records it is half chance.
const RARITY: f64 = 0.7;
/// What each further term of one meaning counts, and each part of an identifier that is met as a
/// whole.
const MORE: f64 = 0.2;
/// What a word that is in no record counts when it is asked how much of the prompt is met.
const UNKNOWN: f64 = 0.5;
/// How much nearer than the next record the best one is taken to be at most: far enough that it is
/// the one.
const MOST_LEAD: f64 = 4.0;
/// Which share of a prompt a single word of it has to be.
const ONE_WORD: f64 = 0.6;
/// How relevant a record about the same is, without a lead.
const ABOUT: f64 = 0.5;
/// Which share of a subject, and how many words of it, a record about the same has.
const SHARE: f64 = 0.3;
const WORDS: usize = 3;

/// All terms that a prompt may be met by.
pub(super) fn members(prompt: &Prompt) -> Vec<&str> {
    let members = prompt.groups.iter().flat_map(|group| &group.members);
    members.map(|(term, _)| term.as_str()).collect()
}

/// How telling each term is.
pub(super) struct Rarity {
    records: f64,
    /// How many records have each term.
    records_with: HashMap<String, i64>,
}

/// Records from which on it shows what a word is worth.
const SMALL: i64 = 200;

impl Rarity {
    /// Of that many records, and how many have each term. A small journal counts as one of
    /// [`SMALL`] records: where most of what there is is about one thing, its words would be worth
    /// nothing, and it would never come to mind.
    pub(super) fn new(records: i64, records_with: HashMap<String, i64>) -> Self {
        Self { records: float(records.max(SMALL)), records_with }
    }

    fn knows(&self, term: &str) -> bool {
        self.records_with.contains_key(term)
    }

    fn with(&self, term: &str) -> i64 {
        self.records_with.get(term).copied().unwrap_or(0)
    }

    fn weight(&self, term: &str) -> f64 {
        self.of_count(self.with(term)) * if text::is_common(term) { COMMON } else { 1.0 }
    }

    fn of_count(&self, with: i64) -> f64 {
        let with = float(with).min(self.records);
        (1.0 + (self.records - with + 0.5) / (with + 0.5)).ln().powf(RARITY)
    }
}

/// A prompt, weighed.
pub(super) struct RankingPrompt {
    groups: Vec<WordGroup>,
    is_chore: bool,
    /// Of each group that is a part of an identifier: the group of that.
    wholes: Vec<Option<usize>>,
    /// What each group is worth when it is met in full, and all of them.
    worth: Vec<f64>,
    whole: f64,
    /// Each term that counts, in their order: for which group, and how much.
    terms: Vec<(String, Vec<(usize, f64)>)>,
    /// The index of each of them there.
    term_index: HashMap<String, usize>,
    rarity: Rarity,
}

impl RankingPrompt {
    pub(super) fn new(prompt: Prompt, rarity: Rarity) -> Self {
        let worth = |group: &WordGroup| {
            let best = group
                .members
                .iter()
                .filter(|(term, _)| rarity.knows(term))
                .map(|(term, weight)| rarity.weight(term) * weight)
                .fold(None, |best: Option<f64>, worth| {
                    Some(best.map_or(worth, |best| best.max(worth)))
                });
            if group.is_phrase {
                best.unwrap_or(0.0).min(3.0) * 0.6
            } else if rarity.knows(&group.term) {
                rarity.weight(&group.term)
            } else {
                best.unwrap_or_else(|| rarity.weight(&group.term) * UNKNOWN)
            }
        };
        let mut groups: Vec<(f64, WordGroup)> =
            prompt.groups.into_iter().map(|group| (worth(&group), group)).collect();
        if groups.len() > limits::PROMPT_TERMS {
            groups.sort_by(|a, b| b.0.total_cmp(&a.0));
            groups.truncate(limits::PROMPT_TERMS);
        }
        let mut terms: BTreeMap<String, Vec<(usize, f64)>> = BTreeMap::new();
        for (index, (_, group)) in groups.iter().enumerate() {
            for (term, weight) in &group.members {
                if rarity.knows(term) {
                    let value = weight * rarity.weight(term);
                    terms.entry(term.clone()).or_default().push((index, value));
                }
            }
        }
        let worth: Vec<f64> = groups.iter().map(|(worth, _)| *worth).collect();
        let whole = worth.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let groups: Vec<WordGroup> = groups.into_iter().map(|(_, group)| group).collect();
        let index_of = |term: &String| groups.iter().position(|group| group.term == *term);
        let wholes = groups.iter().map(|group| group.whole.as_ref().and_then(index_of)).collect();
        let is_chore = prompt.is_chore;
        let term_index = terms.keys().cloned().zip(0..).collect();
        let terms = terms.into_iter().collect();
        Self { groups, is_chore, wholes, worth, whole, terms, term_index, rarity }
    }

    /// The terms to find candidates by: the most telling ones that stand in at most `postings`
    /// records together.
    pub(super) fn candidate_terms(&self, mut postings: i64) -> CandidateTerms<'_> {
        let mut terms: Vec<(f64, &str)> = self
            .terms
            .iter()
            .map(|(term, uses)| {
                (uses.iter().map(|(_, value)| *value).fold(0.0, f64::max), term.as_str())
            })
            .collect();
        terms.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let mut choice = CandidateTerms { chosen: BTreeMap::new(), too_frequent: None };
        for (value, term) in terms {
            let records = self.rarity.with(term);
            if records <= postings {
                postings -= records;
                choice.chosen.insert(term, value);
            } else {
                choice.too_frequent.get_or_insert(term);
            }
        }
        choice
    }

    /// How well a record meets the prompt, by its terms: of what it is about, of what it taught,
    /// and the rest.
    pub(super) fn meet(&self, [aim, lesson, rest]: [&str; 3]) -> TermMatch {
        // Of each term that counts: how often it stands, weighed by where.
        let mut counts = vec![0.0; self.terms.len()];
        let mut length = 0.0;
        for (field, weight) in [(aim, 1.0), (lesson, 1.0), (rest, REST)] {
            for term in field.split(' ').filter(|term| !term.is_empty()) {
                length += weight;
                if let Some(index) = self.term_index.get(term) {
                    counts[*index] += weight;
                }
            }
        }
        let norm = SATURATION * (1.0 - LENGTH + LENGTH * length / USUAL_LENGTH);
        let mut telling = TellingWords::default();
        let present = counts.iter().enumerate().filter(|(_, count)| **count > 0.0);
        let mut uses: Vec<TermUse> = present
            .flat_map(|(term, count)| {
                let value = count * (SATURATION + 1.0) / (count + norm);
                self.terms[term].1.iter().map(move |(group, worth)| TermUse {
                    score: worth * value,
                    worth: *worth,
                    group: *group,
                    term,
                })
            })
            .collect();
        uses.sort_by(|a, b| {
            b.score.total_cmp(&a.score).then(a.group.cmp(&b.group)).then(a.term.cmp(&b.term))
        });
        for group in uses.iter().map(|term_use| term_use.group) {
            if self.groups[group].is_telling() {
                telling.add(group);
            }
        }
        // Each term counts for one word of the prompt, and each word once in full.
        let mut met_groups = vec![false; self.groups.len()];
        let mut taken_terms = vec![false; self.terms.len()];
        let (mut score, mut mass, mut words) = (0.0, 0.0, 0_u32);
        for term_use in uses {
            if std::mem::replace(&mut taken_terms[term_use.term], true) {
                continue;
            }
            if std::mem::replace(&mut met_groups[term_use.group], true) {
                score += MORE * term_use.score;
                continue;
            }
            mass += term_use.worth.min(self.worth[term_use.group]);
            // A part of an identifier that is met tells nothing new.
            if self.wholes[term_use.group].is_some_and(|whole| met_groups[whole]) {
                score += MORE * term_use.score;
                continue;
            }
            score += term_use.score;
            words += 1;
        }
        TermMatch { score, share: mass / self.whole, words, telling }
    }

    /// All its telling words, those that no record has, too.
    pub(super) fn telling(&self) -> TellingWords {
        let mut telling = TellingWords::default();
        for (index, group) in self.groups.iter().enumerate() {
            if group.is_telling() {
                telling.add(index);
            }
        }
        telling
    }

    /// What some of its words are worth.
    pub(super) fn worth_of(&self, words: TellingWords) -> f64 {
        let worth = self.worth.iter().enumerate();
        worth.filter(|(index, _)| words.has(*index)).map(|(_, worth)| worth).sum()
    }

    /// Whether a record, by its terms, is about the same: it would be given to somebody who did not
    /// ask, if it were no nearer than others; or it has three words of the subject and a good share
    /// of it, which tells in a journal that is so small that no word is rare.
    pub(super) fn is_about(&self, terms: [&str; 3]) -> bool {
        let met = self.meet(terms);
        let has = |term: &str| terms.iter().any(|field| field.split(' ').any(|word| word == term));
        let is_met = |group: &&WordGroup| {
            group.is_telling() && group.members.iter().any(|(term, _)| has(term))
        };
        self.relevance(&met, met.score, 1.0) >= ABOUT
            || (met.share >= SHARE && self.groups.iter().filter(is_met).count() >= WORDS)
    }

    /// What speaks for a record's having to do with the prompt: that it meets it well and with
    /// several words, that those are a great share of it, that it does so better than any other
    /// record (`lead` times as well), and that the prompt is no order. More than 0: it does.
    /// `score` is that of the match with what else weighs in. A logistic regression over the judged
    /// prompts' best records, rounded, and moved by what a wrong one costs more than a missing one.
    pub(super) fn relevance(&self, met: &TermMatch, score: f64, lead: f64) -> f64 {
        // One word is chance, unless the prompt says little else.
        if met.words < 2 && met.share < ONE_WORD {
            return f64::NEG_INFINITY;
        }
        // In units of the rarest term there can be, so that it does not change with the number of
        // records.
        let score = score / self.rarity.of_count(0);
        -4.0 + 1.5 * (score + 0.03).ln()
            + 0.5 * met.share.max(0.01).ln()
            + 2.0 * (lead.min(MOST_LEAD) + 0.05).ln()
            + 2.0 * f64::from(met.words + 1).ln()
            - if self.is_chore { 2.0 } else { 0.0 }
    }
}

/// The terms that candidates are found by.
pub(super) struct CandidateTerms<'a> {
    /// These, with what each counts.
    pub(super) chosen: BTreeMap<&'a str, f64>,
    /// The most telling of the terms that stand in too many records.
    pub(super) too_frequent: Option<&'a str>,
}

/// How well a record meets a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct TermMatch {
    /// What the words are worth that it has.
    pub(super) score: f64,
    /// Which share of the prompt those are.
    pub(super) share: f64,
    /// How many words of the prompt those are.
    pub(super) words: u32,
    /// Which of the prompt's telling words it has or means.
    pub(super) telling: TellingWords,
}

/// Some of the words of a prompt that tell of a subject, by their index: a bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TellingWords(u32);

const _: () = assert!(limits::PROMPT_TERMS <= 32, "a bit for each word");

impl TellingWords {
    fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    pub(super) fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub(super) fn shared_with(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// A term of a record that stands for a word of the prompt.
struct TermUse {
    score: f64,
    worth: f64,
    group: usize,
    term: usize,
}

#[expect(clippy::cast_precision_loss, reason = "counts and times here are far below 2^53")]
pub(super) fn float(number: i64) -> f64 {
    number as f64
}
