//! A weighted prompt: which of its words a record has or means, their weight, and whether the
//! record is relevant to the prompt. Also gathers candidates, by the rarest terms of the prompt.

use std::collections::{BTreeMap, HashMap, HashSet};

use svc_model::{
    Reader, limits,
    text::{self, Prompt, WordGroup},
};
use svc_store::{SearchCandidate, SearchFilter, StoreError, families::SearchReads};

// Tuned on the development parts of fixtures/retrieval; its README says how.

/// BM25's k1 and b: saturation of a repeated term, and normalisation by length.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.4;
/// Length of a typical record, in terms. Constant, so that a score does not depend on other
/// records.
const USUAL_LENGTH: f64 = 26.5;
/// Weight of a term in action, prediction and result, which say what was done rather than the
/// subject.
const REST: f64 = 0.5;
/// Weight of an everyday word.
const COMMON: f64 = 0.7;
/// Exponent of rarity: among few records, rarity is half chance.
const RARITY: f64 = 0.7;
/// Weight of each further term with the same meaning, and of each part of an identifier that
/// matched as a whole.
const MORE: f64 = 0.2;
/// Weight of a word that is in no record, for the share of the prompt that is matched.
const UNKNOWN: f64 = 0.5;
/// Upper bound of the lead in the relevance formula.
const MOST_LEAD: f64 = 4.0;
/// Minimum share of the prompt for a match by a single word.
const ONE_WORD: f64 = 0.6;
/// Minimum relevance, with a lead of 1, of a record about the same subject.
const ABOUT: f64 = 0.5;
/// Minimum share of the prompt, and minimum number of subject words, that a record about the
/// subject matches.
const SHARE: f64 = 0.3;
const WORDS: usize = 3;

pub(super) fn members(prompt: &Prompt) -> Vec<&str> {
    let members = prompt.groups.iter().flat_map(|group| &group.members);
    members.map(|(term, _)| term.as_str()).collect()
}

pub(super) struct Rarity {
    records: f64,
    records_with: HashMap<String, i64>,
}

/// Number of records from which on frequencies are reliable.
const SMALL: i64 = 200;

impl Rarity {
    /// Built from the number of records, and the number of records with each term. A small journal
    /// counts as one of [`SMALL`] records: if most of its records are about one subject, the words
    /// of that subject would otherwise weigh nothing, and no record about it would be found.
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

pub(super) struct RankingPrompt {
    groups: Vec<WordGroup>,
    is_chore: bool,
    /// For each group that is a part of an identifier: the group of the whole identifier.
    wholes: Vec<Option<usize>>,
    /// Weight of each group in a full match; `whole` is the sum for all groups.
    worth: Vec<f64>,
    whole: f64,
    /// Each matching term, in term order, with its groups and its weight in each.
    terms: Vec<(String, Vec<(usize, f64)>)>,
    /// The index of each term in `terms`.
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

    /// Terms to find candidates by: the terms of greatest weight whose postings together are at
    /// most `postings`.
    fn candidate_terms(&self, mut postings: i64) -> CandidateTerms<'_> {
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

    /// Matches the terms of a record with the prompt. The fields are: goal and hypothesis, lesson,
    /// and the rest.
    pub(super) fn meet(&self, [aim, lesson, rest]: [&str; 3]) -> TermMatch {
        // The number of occurrences of each term, weighted by field.
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
            if self.groups[group].identifies_subject() {
                telling.add(group);
            }
        }
        // Each term counts for one word of the prompt, and each word counts once with its full
        // weight.
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
            // If the whole identifier matched, its parts add little.
            if self.wholes[term_use.group].is_some_and(|whole| met_groups[whole]) {
                score += MORE * term_use.score;
                continue;
            }
            score += term_use.score;
            words += 1;
        }
        TermMatch { score, share: mass / self.whole, words, telling }
    }

    /// The telling words of the prompt, including words that no record has.
    pub(super) fn telling(&self) -> TellingWords {
        let mut telling = TellingWords::default();
        for (index, group) in self.groups.iter().enumerate() {
            if group.identifies_subject() {
                telling.add(index);
            }
        }
        telling
    }

    pub(super) fn worth_of(&self, words: TellingWords) -> f64 {
        let worth = self.worth.iter().enumerate();
        worth.filter(|(index, _)| words.has(*index)).map(|(_, worth)| worth).sum()
    }

    /// Whether a record is about the same subject. Either the record would be relevant to an
    /// unasked prompt even without a lead; or it has three words of the subject and a good share of
    /// the prompt, which decides in a journal so small that no word is rare.
    pub(super) fn is_about(&self, terms: [&str; 3]) -> bool {
        let met = self.meet(terms);
        let has = |term: &str| terms.iter().any(|field| field.split(' ').any(|word| word == term));
        let is_met = |group: &&WordGroup| {
            group.identifies_subject() && group.members.iter().any(|(term, _)| has(term))
        };
        self.relevance(&met, met.score, 1.0) >= ABOUT
            || (met.share >= SHARE && self.groups.iter().filter(is_met).count() >= WORDS)
    }

    /// Relevance of a record to the prompt; the record is relevant if it is above 0. It grows with
    /// the score, the number of matched words, their share of the prompt, and the lead over other
    /// records, and is lower for a chore. `score` is the score of the match after the caller's
    /// further weights. The coefficients are from a logistic regression over the best records of
    /// the judged prompts, rounded, and shifted because a wrong record costs more than a missing
    /// one.
    pub(super) fn relevance(&self, met: &TermMatch, score: f64, lead: f64) -> f64 {
        // A single word may match by chance, unless it is most of the prompt.
        if met.words < 2 && met.share < ONE_WORD {
            return f64::NEG_INFINITY;
        }
        // In units of the rarest possible term, so that it does not depend on the number of
        // records.
        let score = score / self.rarity.of_count(0);
        -4.0 + 1.5 * (score + 0.03).ln()
            + 0.5 * met.share.max(0.01).ln()
            + 2.0 * (lead.min(MOST_LEAD) + 0.05).ln()
            + 2.0 * f64::from(met.words + 1).ln()
            - if self.is_chore { 2.0 } else { 0.0 }
    }
}

struct CandidateTerms<'a> {
    /// The chosen terms with their weights.
    chosen: BTreeMap<&'a str, f64>,
    /// The term of the greatest weight among those that are in too many records.
    too_frequent: Option<&'a str>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TermMatch {
    /// Sum of the weights of the matched words, scaled by their frequency in the record.
    pub(super) score: f64,
    /// Share of the prompt that is matched, by weight.
    pub(super) share: f64,
    pub(super) words: u32,
    /// The telling words of the prompt that the record has or means.
    pub(super) telling: TellingWords,
}

/// A set of telling words of a prompt: one bit for the index of each word.
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

/// Weighs the words of a prompt by their frequency in the index and in the open records. Open
/// records are not indexed; `open` has their terms.
pub(super) async fn weigh(
    index: SearchReads<'_>,
    mut prompt: Prompt,
    open: &[[String; 3]],
) -> Result<RankingPrompt, StoreError> {
    let parts: Vec<(&str, String)> = prompt
        .groups
        .iter()
        .filter(|group| group.may_be_misspelt())
        .map(|group| (group.term.as_str(), group.parts()))
        .collect();
    let (mut frequencies, similar) = index.known(&members(&prompt), &parts).await?;
    let mut has_typos = false;
    for (word, term) in similar {
        if let Some(group) = prompt.groups.iter_mut().find(|group| group.term == word) {
            group.resembles(&term);
            has_typos |= group.members.len() > 1;
        }
    }
    if has_typos {
        frequencies = index.frequencies(&members(&prompt)).await?;
    }
    let (records, records_with) = frequencies;
    let mut records_with: HashMap<String, i64> = records_with.into_iter().collect();
    let wanted: HashSet<&str> = members(&prompt).into_iter().collect();
    for terms in open {
        let own: HashSet<&str> = terms.iter().flat_map(|field| field.split(' ')).collect();
        for term in own.intersection(&wanted) {
            *records_with.entry((*term).to_owned()).or_default() += 1;
        }
    }
    Ok(RankingPrompt::new(prompt, Rarity::new(records, records_with)))
}

/// The readable records that have the most of the rarest terms.
pub(super) async fn gather(
    index: SearchReads<'_>,
    reader: &Reader,
    prompt: &RankingPrompt,
    filter: &SearchFilter,
    limit: usize,
) -> Result<Vec<SearchCandidate>, StoreError> {
    let most = limit.clamp(limits::SEARCH_CANDIDATES, limits::SEARCH_HITS);
    let terms = prompt.candidate_terms(filter.postings(reader));
    let mut worth: Vec<(i64, f64)> = Vec::new();
    let chosen: Vec<&str> = terms.chosen.keys().copied().collect();
    if !chosen.is_empty() {
        for (term, ids) in index.postings(reader, &chosen, filter).await? {
            let value = terms.chosen.get(term.as_str()).copied().unwrap_or(0.0);
            worth.extend(ids.into_iter().map(|id| (id, value)));
        }
    }
    // The ids of each term are sorted already, so this sort is cheap.
    worth.sort_by_key(|(id, _)| *id);
    let mut ranked: Vec<(f64, i64)> = worth
        .chunk_by(|a, b| a.0 == b.0)
        .map(|of_record| (of_record.iter().map(|(_, value)| value).sum(), of_record[0].0))
        .collect();
    let is_better = |a: &(f64, i64), b: &(f64, i64)| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
    if ranked.len() > most {
        ranked.select_nth_unstable_by(most, is_better);
        ranked.truncate(most);
    }
    let mut ids: Vec<i64> = ranked.into_iter().map(|(_, id)| id).collect();
    // For a term that is in too many records, only the latest records are read.
    if let Some(term) = terms.too_frequent.filter(|_| ids.len() < limit) {
        let latest = index.latest(reader, term, filter, most).await?;
        ids.extend(latest);
        ids.sort_unstable();
        ids.dedup();
    }
    if ids.is_empty() { Ok(Vec::new()) } else { index.candidates(&ids).await }
}
