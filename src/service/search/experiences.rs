//! What past records have to say to a prompt.
//!
//! The index gives candidates by the rarest terms; they are ranked here, by which of the prompt's words each one has or
//! means, and how telling those are. A prompt that nothing fits gets nothing.

use std::collections::{BTreeMap, HashMap};

use super::{Search, usefulness};
use crate::{
    domain::{
        Timestamp,
        journal::{Ghap, GhapStatus, Tier},
        limits, text,
        text::{Group, Prompt},
    },
    service::Error,
    store::{SearchCandidate, SearchFilter, SearchIndex, Store, StoreError},
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
const JURY: usize = 5;
/// How relevant one has to be that anything is given, and how much less the others may be. Above what order alone would
/// want: what nobody asked for and nobody needs costs more trust than a lesson that is not told.
const FLOOR: f64 = 1.25;
const SLACK: f64 = 4.0;
/// Which share of a subject, and how many words of it, a record about the same has.
const SHARE: f64 = 0.3;
const WORDS: usize = 3;

/// What to look for.
#[derive(Debug, Clone, Default)]
pub struct ExperienceQuery<'a> {
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
    candidate: SearchCandidate,
    score: f64,
    relevance: f64,
}

impl Search {
    /// The records that fit a prompt, the best first. Some places are kept for what did not work.
    pub async fn search_ghaps(&self, search: &ExperienceQuery<'_>) -> Result<Vec<Hit>, Error> {
        Ok(find(&self.core.store, self.core.clock.now(), search).await?)
    }
}

/// [`Services::search_ghaps`], of a store alone.
pub async fn find(
    store: &Store,
    now: Timestamp,
    search: &ExperienceQuery<'_>,
) -> Result<Vec<Hit>, StoreError> {
    let prompt = Prompt::read(search.prompt);
    if prompt.groups.is_empty() {
        return Ok(Vec::new());
    }
    let mut index = store.index().await?;
    let asked = learn(&mut index, prompt).await?;
    let candidates = gather(&mut index, &asked, search).await?;
    let ranked = rank(&asked, candidates, now, search);
    if ranked.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = ranked.iter().map(|it| it.candidate.id).collect();
    let mut ghaps: HashMap<String, Ghap> = index
        .ghaps(&ids)
        .await?
        .into_iter()
        .map(|ghap| (ghap.id.as_str().to_owned(), ghap))
        .collect();
    let hits = ranked.into_iter().filter_map(|it| {
        let ghap = ghaps.remove(&it.candidate.ghap_id)?;
        Some(Hit { ghap, score: it.score })
    });
    Ok(hits.collect())
}

/// Weighs a prompt by what is known of its words.
async fn learn(index: &mut SearchIndex, mut prompt: Prompt) -> Result<Asked, StoreError> {
    let parts: Vec<(&str, String)> = prompt
        .groups
        .iter()
        .filter(|group| group.may_be_misspelt())
        .map(|group| (group.term.as_str(), group.parts()))
        .collect();
    let (mut known, like) = index.known(&members(&prompt), &parts).await?;
    let mut has_typos = false;
    for (word, term) in like {
        if let Some(group) = prompt.groups.iter_mut().find(|group| group.term == word) {
            group.resembles(&term);
            has_typos |= group.members.len() > 1;
        }
    }
    if has_typos {
        known = index.frequencies(&members(&prompt)).await?;
    }
    let (records, with) = known;
    Ok(Asked::new(prompt, Rarity::new(records, with.into_iter().collect())))
}

/// The records that have the most of the rarest terms.
async fn gather(
    index: &mut SearchIndex,
    asked: &Asked,
    search: &ExperienceQuery<'_>,
) -> Result<Vec<SearchCandidate>, StoreError> {
    let limit = search.limit.clamp(limits::SEARCH_CANDIDATES, limits::SEARCH_HITS);
    let filter = &search.filter;
    let look = asked.look(filter.postings());
    let mut worth: Vec<(i64, f64)> = Vec::new();
    let terms: Vec<&str> = look.chosen.keys().copied().collect();
    if !terms.is_empty() {
        for (term, ids) in index.postings(&terms, filter).await? {
            let value = look.chosen.get(term.as_str()).copied().unwrap_or(0.0);
            worth.extend(ids.into_iter().map(|id| (id, value)));
        }
    }
    // The places of each term come in order, so there is little to sort.
    worth.sort_by_key(|it| it.0);
    let mut found: Vec<(f64, i64)> = worth
        .chunk_by(|a, b| a.0 == b.0)
        .map(|of_one| (of_one.iter().map(|it| it.1).sum(), of_one[0].0))
        .collect();
    let is_better = |a: &(f64, i64), b: &(f64, i64)| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
    if found.len() > limit {
        found.select_nth_unstable_by(limit, is_better);
        found.truncate(limit);
    }
    let mut ids: Vec<i64> = found.into_iter().map(|it| it.1).collect();
    // What is in too many records to go through them all: the latest of them.
    if let Some(term) = look.too_many.filter(|_| ids.len() < search.limit) {
        let latest = index.latest(term, filter, limit).await?;
        ids.extend(latest);
        ids.sort_unstable();
        ids.dedup();
    }
    if ids.is_empty() { Ok(Vec::new()) } else { index.candidates(&ids).await }
}

/// The best of the candidates, or nothing if that is what they have to say.
fn rank(
    asked: &Asked,
    candidates: Vec<SearchCandidate>,
    now: Timestamp,
    search: &ExperienceQuery<'_>,
) -> Vec<Ranked> {
    let mut ranked: Vec<Ranked> = candidates
        .into_iter()
        .map(|candidate| asked.rank(candidate, search.project, now))
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.candidate.id.cmp(&a.candidate.id)));
    if search.only_relevant {
        let best = ranked.iter().take(JURY).map(|it| it.relevance).fold(f64::MIN, f64::max);
        if best < FLOOR {
            return Vec::new();
        }
        ranked.retain(|it| it.relevance >= FLOOR - SLACK);
    }
    keep_places(ranked, search.limit.min(limits::SEARCH_HITS))
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

/// All terms that a prompt may be met by.
pub(in crate::service) fn members(prompt: &Prompt) -> Vec<&str> {
    let members = prompt.groups.iter().flat_map(|group| &group.members);
    members.map(|(term, _)| term.as_str()).collect()
}

/// How telling each term is.
pub(in crate::service) struct Rarity {
    records: f64,
    records_with: HashMap<String, i64>,
}

/// Records from which on it shows what a word is worth.
const SMALL: i64 = 200;

impl Rarity {
    /// Of that many records, and how many have each term. A small journal counts as one of [`SMALL`] records: where most
    /// of what there is is about one thing, its words would be worth nothing, and it would never come to mind.
    pub(in crate::service) fn new(records: i64, records_with: HashMap<String, i64>) -> Self {
        Self { records: float(records.max(SMALL)), records_with }
    }

    fn knows(&self, term: &str) -> bool {
        self.records_with.contains_key(term)
    }

    fn with(&self, term: &str) -> i64 {
        self.records_with.get(term).copied().unwrap_or(0)
    }

    fn of(&self, term: &str) -> f64 {
        self.of_count(self.with(term)) * if text::is_common(term) { COMMON } else { 1.0 }
    }

    fn of_count(&self, with: i64) -> f64 {
        let with = float(with).min(self.records);
        (1.0 + (self.records - with + 0.5) / (with + 0.5)).ln().powf(RARITY)
    }
}

/// A prompt, weighed.
pub(in crate::service) struct Asked {
    groups: Vec<Group>,
    is_chore: bool,
    troubles: usize,
    /// What each group is worth when it is met in full, and all of them.
    worth: Vec<f64>,
    whole: f64,
    /// Each term that counts, in their order: for which group, and how much.
    terms: Vec<(String, Vec<(usize, f64)>)>,
    /// Where each of them stands there.
    place: HashMap<String, usize>,
    rarity: Rarity,
}

impl Asked {
    pub(in crate::service) fn new(prompt: Prompt, rarity: Rarity) -> Self {
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
        let mut terms: BTreeMap<String, Vec<(usize, f64)>> = BTreeMap::new();
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
        let Prompt { is_chore, troubles, .. } = prompt;
        let place = terms.keys().cloned().zip(0..).collect();
        let terms = terms.into_iter().collect();
        Self { groups, is_chore, troubles, worth, whole, terms, place, rarity }
    }

    /// Where to look for candidates: the most telling terms that stand in few enough records together.
    fn look(&self, mut budget: i64) -> Look<'_> {
        let mut terms: Vec<(f64, &str)> = self
            .terms
            .iter()
            .map(|(term, uses)| (uses.iter().map(|it| it.1).fold(0.0, f64::max), term.as_str()))
            .collect();
        terms.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let mut look = Look { chosen: BTreeMap::new(), too_many: None };
        for (value, term) in terms {
            let records = self.rarity.with(term);
            if records <= budget {
                budget -= records;
                look.chosen.insert(term, value);
            } else {
                look.too_many.get_or_insert(term);
            }
        }
        look
    }

    fn rank(&self, candidate: SearchCandidate, project: Option<&str>, now: Timestamp) -> Ranked {
        let Met { score, share } = self.meet([&candidate.aim, &candidate.lesson, &candidate.rest]);
        let is_own = project.is_some_and(|project| project == candidate.project);
        let days = float((now.as_millis() - candidate.at_ms).max(0)) / 86_400_000.0;
        let age = OLD + (1.0 - OLD) * (-days / HALF_LIFE_DAYS).exp2();
        let place = if project.is_some() && !is_own { ELSEWHERE } else { 1.0 };
        let score = score * trust(candidate.tier) * age.powf(AGE) * place;
        let relevance = self.relevance(share, score, is_own);
        // After the floor: what has helped to other things does not make it fit this one.
        let score = score * usefulness::factor(candidate.confirmed_again);
        Ranked { candidate, score, relevance }
    }

    /// How well a record meets the prompt, by its terms: of what it is about, of what it taught, and the rest.
    pub(in crate::service) fn meet(&self, [aim, lesson, rest]: [&str; 3]) -> Met {
        // Of each term that counts: how often it stands, weighed by where.
        let mut counts = vec![0.0; self.terms.len()];
        let mut length = 0.0;
        for (field, weight) in [(aim, 1.0), (lesson, 1.0), (rest, REST)] {
            for term in field.split(' ').filter(|term| !term.is_empty()) {
                length += weight;
                if let Some(place) = self.place.get(term) {
                    counts[*place] += weight;
                }
            }
        }
        let norm = SATURATION * (1.0 - LENGTH + LENGTH * length / USUAL_LENGTH);
        let found = counts.iter().enumerate().filter(|(_, count)| **count > 0.0);
        let mut uses: Vec<Use> = found
            .flat_map(|(term, count)| {
                let value = count * (SATURATION + 1.0) / (count + norm);
                self.terms[term].1.iter().map(move |(group, worth)| Use {
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
        // Each term counts for one word of the prompt, and each word once in full.
        let mut met = vec![false; self.groups.len()];
        let mut taken = vec![false; self.terms.len()];
        let (mut score, mut mass) = (0.0, 0.0);
        for one in uses {
            if std::mem::replace(&mut taken[one.term], true) {
                continue;
            }
            if std::mem::replace(&mut met[one.group], true) {
                score += MORE * one.score;
                continue;
            }
            score += one.score;
            mass += one.worth.min(self.worth[one.group]);
        }
        Met { score, share: mass / self.whole }
    }

    /// Whether a record, by its terms, is about the same: it would be given to somebody who did not ask, neither its age nor
    /// its tier nor whose it is having a say; or it has three words of the subject and a good share of it, which tells
    /// in a journal that is so small that no word is rare.
    pub(in crate::service) fn is_about(&self, terms: [&str; 3]) -> bool {
        let Met { score, share } = self.meet(terms);
        let has = |term: &str| terms.iter().any(|field| field.split(' ').any(|it| it == term));
        let is_met = |group: &&Group| {
            let is_telling = !group.is_common && !group.is_phrase;
            is_telling && group.members.iter().any(|(term, _)| has(term))
        };
        self.relevance(share, score, false) >= FLOOR
            || (share >= SHARE && self.groups.iter().filter(is_met).count() >= WORDS)
    }

    /// What speaks for a record's having to do with the prompt: that it meets a great share of it, that it does so well,
    /// and what kind of prompt it is. A logistic regression over the judged prompts' best records, rounded.
    fn relevance(&self, share: f64, score: f64, is_own: bool) -> f64 {
        // In units of the rarest term there can be, lest it change with the number of records.
        let score = score / self.rarity.of_count(0);
        let troubles = [0.0, 0.5, 1.0, 1.5][self.troubles.min(3)];
        -0.65 + share.max(0.01).ln() + 4.0 * (score + 0.03).ln() + if is_own { 1.5 } else { 0.0 }
            - if self.is_chore { 2.5 } else { 0.0 }
            + troubles
    }
}

/// How candidates are found.
struct Look<'a> {
    /// By these terms, with what each counts.
    chosen: BTreeMap<&'a str, f64>,
    /// The most telling of the terms that stand in too many records.
    too_many: Option<&'a str>,
}

/// How well a record meets a prompt.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Met {
    /// What the words are worth that it has.
    score: f64,
    /// Which share of the prompt those are.
    share: f64,
}

/// A term of a record that stands for a word of the prompt.
struct Use {
    score: f64,
    worth: f64,
    group: usize,
    term: usize,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::journal::Domain,
        service::search::retrieval::{Fixture, NOW},
        store::{
            ShownBy,
            testing::{TestStore, journal::record},
        },
    };

    fn asks(prompt: &str) -> ExperienceQuery<'_> {
        ExperienceQuery { prompt, limit: 5, ..ExperienceQuery::default() }
    }

    async fn found(store: &Store, search: &ExperienceQuery<'_>) -> Vec<String> {
        let hits = find(store, NOW, search).await.unwrap();
        hits.into_iter().map(|hit| hit.ghap.id.as_str().to_owned()).collect()
    }

    async fn put(at: &TestStore, ghaps: Vec<Ghap>) {
        let done: Result<(), StoreError> = at
            .store
            .write(move |tx| {
                Box::pin(async move {
                    for ghap in ghaps {
                        tx.insert_ghap(&ghap, None).await?;
                    }
                    Ok(())
                })
            })
            .await;
        done.unwrap();
    }

    /// Many records that say the same, the first of which is another's.
    async fn one_among(at: &TestStore, many: usize) {
        let same = record(at, 0, "The tokenizer hangs").await;
        let ghaps = (0..many).map(|number| {
            let mut ghap = same.clone();
            ghap.id = format!("ghap_{number}").into();
            if number == 0 {
                (ghap.domain, ghap.status) = (Domain::Testing, GhapStatus::Falsified);
            }
            ghap
        });
        put(at, ghaps.collect()).await;
    }

    #[tokio::test]
    async fn a_filter_comes_before_the_limit() {
        for many in [100, usize::try_from(limits::SEARCH_POSTINGS).unwrap() + 100] {
            let at = TestStore::open().await;
            one_among(&at, many).await;
            let filters = [
                SearchFilter { domain: Some(Domain::Testing), status: None, part: None },
                SearchFilter { domain: None, status: Some(GhapStatus::Falsified), part: None },
                SearchFilter {
                    domain: Some(Domain::Testing),
                    status: Some(GhapStatus::Falsified),
                    part: None,
                },
            ];
            for filter in filters {
                let search = ExperienceQuery { filter, ..asks("tokenizer hangs") };
                assert_eq!(found(&at.store, &search).await, ["ghap_0"], "{many}: {search:?}");
            }
            let filter = SearchFilter {
                domain: Some(Domain::Testing),
                status: Some(GhapStatus::Confirmed),
                part: None,
            };
            let search = ExperienceQuery { filter, ..asks("tokenizer hangs") };
            assert!(found(&at.store, &search).await.is_empty());
        }
    }

    #[tokio::test]
    async fn of_what_is_in_very_many_records_the_latest_are_found() {
        let at = TestStore::open().await;
        let many = usize::try_from(limits::SEARCH_POSTINGS).unwrap() + 1;
        one_among(&at, many).await;
        let hits = found(&at.store, &asks("tokenizer")).await;
        assert_eq!(hits.len(), 5);
        assert_eq!(hits[0], format!("ghap_{}", many - 1));
    }

    #[tokio::test]
    async fn one_place_in_five_is_kept_for_what_did_not_work() {
        let at = TestStore::open().await;
        // The more of the words, the better: the first is the worst.
        let words = ["tokenizer", "hangs", "parser", "locale", "emoji", "newline", "regex"];
        let mut ghaps = Vec::new();
        for number in 1..=words.len() {
            let mut ghap = record(&at, number, &words[..number].join(" ")).await;
            if number <= 2 {
                ghap.status = GhapStatus::Falsified;
            }
            ghaps.push(ghap);
        }
        put(&at, ghaps).await;
        let prompt = words.join(" ");
        let hits = found(&at.store, &asks(&prompt)).await;
        assert_eq!(hits, ["ghap_7", "ghap_6", "ghap_5", "ghap_4", "ghap_2"]);
        // Four places have no fifth to give.
        let search = ExperienceQuery { limit: 4, ..asks(&prompt) };
        let hits = found(&at.store, &search).await;
        assert_eq!(hits, ["ghap_7", "ghap_6", "ghap_5", "ghap_4"]);
    }

    #[tokio::test]
    async fn of_what_fits_alike_that_which_has_helped_comes_first() {
        let at = TestStore::open().await;
        let mut ghaps = Vec::new();
        for (number, goal) in
            [(1, "The tokenizer hangs"), (2, "The tokenizer hangs"), (3, "The tokenizer")]
        {
            ghaps.push(record(&at, number, goal).await);
        }
        put(&at, ghaps).await;
        let search = asks("tokenizer hangs");
        assert_eq!(found(&at.store, &search).await, ["ghap_2", "ghap_1", "ghap_3"], "the latest");
        let confirm = async |id: &'static str, session: &str| {
            let mut by = record(&at, 2, "").await;
            session.clone_into(&mut by.session_id);
            let done: Result<(), StoreError> = at
                .store
                .write(move |tx| {
                    Box::pin(async move { tx.confirm(&[id], &by, ShownBy::Subject).await })
                })
                .await;
            done.unwrap();
        };
        confirm("ghap_1", "other").await;
        confirm("ghap_3", "other").await;
        // What has helped does not fit better for it than what has more of the words.
        assert_eq!(found(&at.store, &search).await, ["ghap_1", "ghap_2", "ghap_3"]);
        let unasked = |prompt| ExperienceQuery { only_relevant: true, ..asks(prompt) };
        assert!(found(&at.store, &unasked("push it, tokenizer")).await.is_empty(), "the floor");
    }

    #[tokio::test]
    async fn typos_identifiers_and_text_without_spaces_are_found() {
        let at = TestStore::open().await;
        Fixture::read().unwrap().fill(&at.store).await.unwrap();
        for (prompt, best) in [
            ("502 durring a rolout", "tide-readiness"),
            ("spark join stragler", "weir-spark-skew"),
            ("transfres hang, deadlok detected", "ledger-deadlock"),
            ("computeCartTotal()", "cart-rounding"),
            ("compute_cart_total", "cart-rounding"),
            ("LineItem::total", "cart-rounding"),
            ("src/iso20022/parse_camt053.rs:88", "ledger-panic-unwrap"),
            ("import.meta.env.API_URL", "lantern-vite-env"),
            ("文字化け", "okiba-mojibake"),
            ("デプロイ ロック", "okiba-deploy"),
            ("Zertifikatspruefung ZERTIFIKATSPRÜFUNG", "werkbank-zertifikat"),
        ] {
            let hits = found(&at.store, &asks(prompt)).await;
            assert_eq!(hits.first().map(String::as_str), Some(best), "{prompt}: {hits:?}");
        }
    }

    #[tokio::test]
    async fn a_follow_up_is_told_nothing_unasked() {
        let at = TestStore::open().await;
        Fixture::read().unwrap().fill(&at.store).await.unwrap();
        for prompt in ["", "?!", "ok", "do it", "now the tests", "push it", "thanks, bye", "🦀"] {
            let search = ExperienceQuery { only_relevant: true, ..asks(prompt) };
            assert!(found(&at.store, &search).await.is_empty(), "{prompt}");
        }
    }
}
