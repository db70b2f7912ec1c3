//! What past records have to say to a prompt.
//!
//! The index gives candidates by the rarest terms; they are ranked here, by which of the prompt's words each one has or
//! means, and how telling those are. A prompt that nothing fits gets nothing.

use std::collections::{BTreeMap, HashMap};

use super::{Error, Services};
use crate::{
    domain::{
        Timestamp,
        journal::{Ghap, GhapStatus, Tier},
        limits, text,
        text::{Group, Prompt},
    },
    store::{Candidate, SearchFilter, Store, StoreError},
};

// Tuned on the development part of fixtures/retrieval; its README says how.

/// How soon a repeated term counts no more, and how much a long record is held against it (BM25's k1 and b).
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.4;
/// Length of a usual record, in terms. Fixed, so that a score does not change with the other records.
const USUAL_LENGTH: f64 = 26.5;
/// What a term counts in action, prediction and result, which say what was done and not what it is about.
const REST: f64 = 0.6;
/// What an everyday word counts.
const COMMON: f64 = 0.35;
/// Rarity counts for less than in full: among few records it is half chance.
const RARITY: f64 = 0.7;
/// What each further term of one meaning counts.
const MORE: f64 = 0.2;
/// What a word that is in no record counts when it is asked how much of the prompt is met.
const UNKNOWN: f64 = 0.5;
/// Of another project than the one that asks.
const ELSEWHERE: f64 = 0.7;
/// After which time half of what age can take away is gone.
const HALF_LIFE_DAYS: f64 = 90.0;
/// What is left of a very old record.
const OLD: f64 = 0.5;
/// Age decides between records that fit alike, and no more.
const AGE: f64 = 0.25;

/// How many of the best have a say in whether there is anything at all.
const JURY: usize = 8;
/// How relevant one has to be that anything is given, and how much less the others may be.
const FLOOR: f64 = 0.25;
const SLACK: f64 = 1.0;

/// What to look for.
#[derive(Debug, Clone, Default)]
pub struct Search<'a> {
    /// The prompt, as it was typed.
    pub prompt: &'a str,
    /// The project that asks.
    pub project: Option<&'a str>,
    /// Which records may be found.
    pub filter: SearchFilter,
    /// How many at most.
    pub limit: usize,
    /// Whether what is hardly relevant is left out: so for a prompt that did not ask, not for somebody who searches.
    pub only_relevant: bool,
}

/// A record that was found.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The record.
    pub ghap: Ghap,
    /// How well it fits. Comparable within one answer only.
    pub score: f64,
}

/// A candidate with what it is worth.
struct Ranked {
    candidate: Candidate,
    score: f64,
    relevance: f64,
}

impl Services {
    /// The records that fit a prompt, the best first. Some places are kept for what did not work.
    pub async fn search_ghaps(&self, search: &Search<'_>) -> Result<Vec<Hit>, Error> {
        Ok(find(&self.store, self.clock.now(), search).await?)
    }
}

/// [`Services::search_ghaps`], of a store alone.
pub async fn find(
    store: &Store,
    now: Timestamp,
    search: &Search<'_>,
) -> Result<Vec<Hit>, StoreError> {
    let ranked = rank(store, now, search).await?;
    let ids: Vec<i64> = ranked.iter().map(|it| it.candidate.id).collect();
    let mut ghaps: HashMap<i64, Ghap> = store.ghaps_at(&ids).await?.into_iter().collect();
    let hits = ranked.into_iter().filter_map(|it| {
        let ghap = ghaps.remove(&it.candidate.id)?;
        Some(Hit { ghap, score: it.score })
    });
    Ok(hits.collect())
}

async fn rank(
    store: &Store,
    now: Timestamp,
    search: &Search<'_>,
) -> Result<Vec<Ranked>, StoreError> {
    let mut prompt = Prompt::read(search.prompt);
    let records = store.searchable().await?;
    if prompt.groups.is_empty() || records == 0 {
        return Ok(Vec::new());
    }
    let mut rarity = Rarity::new(records);
    learn(store, &mut rarity, &prompt).await?;
    let misspelt = prompt
        .groups
        .iter_mut()
        .filter(|group| group.may_be_misspelt() && !rarity.knows(&group.term))
        .take(limits::PROMPT_TYPOS);
    let mut has_typos = false;
    for group in misspelt {
        for term in store.terms_like(&group.trigrams(), 8).await? {
            group.resembles(&term);
        }
        has_typos |= group.members.len() > 1;
    }
    if has_typos {
        learn(store, &mut rarity, &prompt).await?;
    }
    let asked = Asked::new(prompt, &rarity);
    let limit = limits::SEARCH_CANDIDATES;
    let candidates = match asked.look(&rarity) {
        Look::Best(terms) => {
            let terms = serde_json::to_string(&terms).unwrap_or_default();
            store.candidates(&terms, &search.filter, limit).await?
        }
        Look::Latest(term) => {
            let query = text::any_of([term]);
            store.latest_candidates(&query, &search.filter, limit).await?
        }
        Look::Nowhere => Vec::new(),
    };
    let mut ranked: Vec<Ranked> = candidates
        .into_iter()
        .map(|candidate| asked.rank(candidate, search.project, now))
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.candidate.id.cmp(&a.candidate.id)));
    if search.only_relevant {
        let best = ranked.iter().take(JURY).map(|it| it.relevance).fold(f64::MIN, f64::max);
        if best < FLOOR {
            return Ok(Vec::new());
        }
        ranked.truncate(JURY.max(search.limit));
        ranked.retain(|it| it.relevance >= FLOOR - SLACK);
    }
    Ok(keep_places(ranked, search.limit.min(limits::SEARCH_HITS)))
}

async fn learn(store: &Store, rarity: &mut Rarity, prompt: &Prompt) -> Result<(), StoreError> {
    let terms: Vec<&str> = prompt
        .groups
        .iter()
        .flat_map(|group| &group.members)
        .map(|(term, _)| term.as_str())
        .collect();
    let terms = serde_json::to_string(&terms).unwrap_or_default();
    rarity.records_with = store.frequencies(&terms).await?.into_iter().collect();
    Ok(())
}

/// The best, of which one in five is what did not work, if there is any: that is what nobody would look for.
fn keep_places(mut ranked: Vec<Ranked>, limit: usize) -> Vec<Ranked> {
    let is_falsified = |it: &Ranked| it.candidate.status == GhapStatus::Falsified;
    let kept = limit / 5;
    let among = ranked.iter().take(limit).filter(|it| is_falsified(it)).count();
    let rest = ranked.split_off(limit.min(ranked.len()));
    let missing = kept.saturating_sub(among);
    for late in rest.into_iter().filter(is_falsified).take(missing) {
        if let Some(at) = ranked.iter().rposition(|it| !is_falsified(it)) {
            ranked.remove(at);
            ranked.push(late);
        }
    }
    ranked
}

/// How telling each term is.
struct Rarity {
    records: f64,
    records_with: HashMap<String, i64>,
}

impl Rarity {
    fn new(records: i64) -> Self {
        Self { records: float(records), records_with: HashMap::new() }
    }

    fn knows(&self, term: &str) -> bool {
        self.records_with.contains_key(term)
    }

    fn of(&self, term: &str) -> f64 {
        let with = float(self.records_with.get(term).copied().unwrap_or(0)).min(self.records);
        let rarity = (1.0 + (self.records - with + 0.5) / (with + 0.5)).ln();
        rarity.powf(RARITY) * if text::is_common(term) { COMMON } else { 1.0 }
    }
}

/// A prompt, weighed.
struct Asked {
    groups: Vec<Group>,
    is_chore: bool,
    /// What each group is worth when it is met in full, and all of them.
    worth: Vec<f64>,
    whole: f64,
    /// Each term that counts: for which group, and how much.
    terms: HashMap<String, Vec<(usize, f64)>>,
}

impl Asked {
    fn new(prompt: Prompt, rarity: &Rarity) -> Self {
        let worth = |group: &Group| {
            let best = group
                .members
                .iter()
                .filter(|(term, _)| rarity.knows(term))
                .map(|(term, weight)| rarity.of(term) * weight)
                .fold(None, |best: Option<f64>, it| Some(best.map_or(it, |best| best.max(it))));
            if group.is_phrase {
                best.unwrap_or(0.0).min(3.0) * 0.6
            } else if rarity.knows(&group.term) {
                rarity.of(&group.term)
            } else {
                best.unwrap_or_else(|| rarity.of(&group.term) * UNKNOWN)
            }
        };
        let mut groups: Vec<(f64, Group)> =
            prompt.groups.into_iter().map(|group| (worth(&group), group)).collect();
        if groups.len() > limits::PROMPT_TERMS {
            groups.sort_by(|a, b| b.0.total_cmp(&a.0));
            groups.truncate(limits::PROMPT_TERMS);
        }
        let mut terms: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        for (at, (_, group)) in groups.iter().enumerate() {
            for (term, weight) in &group.members {
                if rarity.knows(term) {
                    let value = weight * rarity.of(term);
                    terms.entry(term.clone()).or_default().push((at, value));
                }
            }
        }
        let worth: Vec<f64> = groups.iter().map(|it| it.0).collect();
        let whole = worth.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let groups = groups.into_iter().map(|it| it.1).collect();
        Self { groups, is_chore: prompt.is_chore, worth, whole, terms }
    }

    /// Where to look for records worth a look.
    fn look(&self, rarity: &Rarity) -> Look<'_> {
        let mut terms: Vec<(f64, i64, &str)> = self
            .terms
            .iter()
            .map(|(term, uses)| {
                let best = uses.iter().map(|it| it.1).fold(0.0, f64::max);
                (best, rarity.records_with.get(term).copied().unwrap_or(0), term.as_str())
            })
            .collect();
        terms.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(b.2)));
        let mut budget = limits::SEARCH_POSTINGS;
        let mut chosen = BTreeMap::new();
        for (value, records, term) in &terms {
            if *records <= budget {
                budget -= records;
                chosen.insert(*term, *value);
            }
        }
        match terms.first() {
            Some((_, _, best)) if chosen.is_empty() => Look::Latest(best),
            Some(_) => Look::Best(chosen),
            None => Look::Nowhere,
        }
    }

    fn rank(&self, candidate: Candidate, project: Option<&str>, now: Timestamp) -> Ranked {
        // Of each term that counts: how often it stands, weighed by where, and whether in the aim.
        let mut found: HashMap<&str, (f64, bool)> = HashMap::new();
        let mut length = 0.0;
        let fields = [
            (&candidate.aim, 1.0, true),
            (&candidate.lesson, 1.0, false),
            (&candidate.rest, REST, false),
        ];
        for (field, weight, is_aim) in fields {
            for term in field.split(' ').filter(|term| !term.is_empty()) {
                length += weight;
                if let Some((term, _)) = self.terms.get_key_value(term) {
                    let known = found.entry(term.as_str()).or_default();
                    known.0 += weight;
                    known.1 |= is_aim;
                }
            }
        }
        let norm = SATURATION * (1.0 - LENGTH + LENGTH * length / USUAL_LENGTH);
        let mut uses: Vec<Use<'_>> = found
            .iter()
            .flat_map(|(term, (count, is_aim))| {
                let value = count * (SATURATION + 1.0) / (count + norm);
                self.terms[*term].iter().map(move |(group, worth)| Use {
                    score: worth * value,
                    worth: *worth,
                    group: *group,
                    term,
                    is_aim: *is_aim,
                })
            })
            .collect();
        uses.sort_by(|a, b| {
            b.score.total_cmp(&a.score).then(a.group.cmp(&b.group)).then(a.term.cmp(b.term))
        });
        // Each term counts for one word of the prompt, and each word once in full.
        let mut met = vec![false; self.groups.len()];
        let mut taken: Vec<&str> = Vec::new();
        let (mut score, mut mass, mut aim, mut telling) = (0.0, 0.0, 0.0, 0_u32);
        for one in uses {
            if taken.contains(&one.term) {
                continue;
            }
            taken.push(one.term);
            if std::mem::replace(&mut met[one.group], true) {
                score += MORE * one.score;
                continue;
            }
            score += one.score;
            mass += one.worth.min(self.worth[one.group]);
            aim += if one.is_aim { one.worth } else { 0.0 };
            telling += u32::from(!text::is_common(one.term) && !self.groups[one.group].is_common);
        }
        let is_own = project.is_some_and(|project| project == candidate.project);
        let relevance =
            Relevance { mass, share: mass / self.whole, aim, telling, is_own }.weigh(self.is_chore);
        let days = float((now.as_millis() - candidate.at.as_millis()).max(0)) / 86_400_000.0;
        let age = OLD + (1.0 - OLD) * (-days / HALF_LIFE_DAYS).exp2();
        let place = if project.is_some() && !is_own { ELSEWHERE } else { 1.0 };
        score *= trust(candidate.tier) * age.powf(AGE) * place;
        Ranked { candidate, score, relevance }
    }
}

/// How candidates are found.
enum Look<'a> {
    /// Those that have the most of these.
    Best(BTreeMap<&'a str, f64>),
    /// Too many have even the most telling term: the latest of them.
    Latest(&'a str),
    /// No record has any of it.
    Nowhere,
}

/// A term of a record that stands for a word of the prompt.
struct Use<'a> {
    score: f64,
    worth: f64,
    group: usize,
    term: &'a str,
    is_aim: bool,
}

/// What speaks for a record's having to do with the prompt.
struct Relevance {
    /// What the words are worth that it meets.
    mass: f64,
    /// Which share of the prompt that is.
    share: f64,
    /// How much of it stands in its aim.
    aim: f64,
    /// How many words it meets that are no everyday ones.
    telling: u32,
    is_own: bool,
}

impl Relevance {
    /// A logistic regression over judged pairs, rounded.
    fn weigh(&self, is_chore: bool) -> f64 {
        let telling = f64::from(self.telling.min(5));
        -1.25
            + 0.45 * (self.mass + 0.1).ln()
            + 2.0 * self.share.max(1e-3).ln()
            + 0.7 * (self.aim + 0.3).ln()
            + 0.8 * telling
            + if self.is_own { 1.4 } else { 0.0 }
            - if is_chore { 2.25 } else { 0.0 }
    }
}

/// What a tier counts. What was given up may still be worth a glance.
fn trust(tier: Option<Tier>) -> f64 {
    match tier {
        Some(Tier::Gold) => 1.0,
        Some(Tier::Silver) | None => 0.95,
        Some(Tier::Bronze) => 0.85,
        Some(Tier::Abandoned) => 0.6,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and times here are far below 2^53")]
fn float(number: i64) -> f64 {
    number as f64
}
