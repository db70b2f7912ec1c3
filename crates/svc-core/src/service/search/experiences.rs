//! Past records that match a prompt.
//!
//! The index gives candidates by the rarest terms. This module ranks them by the words of the
//! prompt that each candidate has or means, and by the weights of those words. A prompt without a
//! relevant record gets no record.
//!
//! # Lead
//!
//! The best record must lead over records about other subjects, which are the records that do not
//! match the telling words of the prompt. A recurring problem has many records, each with its own
//! hypothesis, and none of them is far ahead of the next, so they do not lower the lead.
//!
//! # Confirmations
//!
//! A record that ends as confirmed counts for the records that its texts name by id, and for the
//! records that its session was given before and that are about the same subject, with its goal and
//! hypothesis as the prompt (`RankingPrompt::is_about`). Of the records that a search of
//! `fixtures/retrieval` returns together, this rule selects 5 of the 11 pairs where both match the
//! prompt, and 33 of the 995 pairs where one does. The rule was chosen on these pairs, so they do
//! not validate it. Being given to a session is not enough, or results would raise their own rank.
//! Records of the same session do not count, because a session would confirm itself.
//!
//! A wrong prediction does not count against the records that its session was given: most
//! predictions fail for other reasons, and the records of hard subjects, which are needed most,
//! would lose most rank.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{
    Caller, GhapFilter, GhapId, Reader, Timestamp, fit,
    journal::{Ghap, GhapStatus, Tier},
    limits,
    text::Prompt,
};
use svc_store::{
    HelpEvidence, ItemVersion, PageSize, SearchCandidate, SearchFilter, Store, StoreError, WriteTx,
    job,
};

use super::{
    Search,
    prompt::{RankingPrompt, Rarity, TellingWords, TermMatch, float, gather, members, weigh},
};
use crate::boxed;
use crate::service::Result;

// Tuned on the development parts of fixtures/retrieval; its README says how.

/// Factor for a record of another project.
const ELSEWHERE: f64 = 0.5;
/// Half of the loss by age occurs in this time.
const HALF_LIFE_DAYS: f64 = 90.0;
/// The factor of a very old record.
const OLD: f64 = 0.5;
/// Exponent of the age factor: age decides only between records that match equally.
const AGE: f64 = 0.25;

/// Least match of a further record, as a share of the best one's.
const BESIDE: f64 = 0.7;

#[derive(Debug, Clone, Default)]
pub struct ExperienceQuery<'a> {
    /// The prompt, unchanged.
    pub prompt: &'a str,
    pub project: Option<&'a str>,
    pub filter: SearchFilter,
    pub limit: usize,
    /// Leaves out hardly relevant records: for a prompt that did not ask, not for a search.
    pub only_relevant: bool,
    /// Includes open records. They have taught nothing yet, so only a caller that looks for them
    /// gets them.
    pub with_open: bool,
}

/// A record that was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ExperienceHit {
    /// The record.
    #[serde(flatten)]
    pub ghap: Ghap,
    /// How well it fits. Comparable within one answer only.
    pub score: f64,
}

struct RankedCandidate {
    candidate: SearchCandidate,
    met: TermMatch,
    fit: f64,
    /// `fit` times the confirmation factor.
    score: f64,
}

impl Search {
    /// The records that match a prompt and that the caller may read, the best first. Some slots are
    /// reserved for failed attempts.
    pub async fn search_ghaps(
        &self,
        caller: &Caller,
        search: &ExperienceQuery<'_>,
    ) -> Result<Vec<ExperienceHit>> {
        let reader = Reader::from_caller(caller);
        Ok(find(&self.core.store, &reader, self.core.clock.now(), search).await?)
    }
}

/// [`Search::search_ghaps`] on a store alone.
pub async fn find(
    store: &Store,
    reader: &Reader,
    now: Timestamp,
    search: &ExperienceQuery<'_>,
) -> Result<Vec<ExperienceHit>, StoreError> {
    let prompt = Prompt::read(search.prompt);
    if prompt.groups.is_empty() {
        return Ok(Vec::new());
    }
    let open = open_records(store, reader, search).await?;
    let terms: Vec<[String; 3]> = open.iter().map(Ghap::terms).collect();
    let index = store.search();
    let prompt = weigh(index, prompt, &terms).await?;
    let candidates = gather(index, reader, &prompt, &search.filter, search.limit).await?;
    let ranked = rank(&prompt, candidates, now, search);
    let mut open: Vec<ExperienceHit> = open
        .into_iter()
        .zip(terms)
        .map(|(ghap, terms)| rank_open(&prompt, ghap, &terms, now, search))
        .filter(|hit| hit.score > 0.0)
        .collect();
    if ranked.is_empty() && open.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = ranked.iter().map(|ranked| ranked.candidate.id).collect();
    let ghaps = index.ghaps(&ids).await?.into_iter();
    let mut ghaps: HashMap<String, Ghap> =
        ghaps.map(|ghap| (ghap.id.as_str().to_owned(), ghap)).collect();
    let hits = ranked.into_iter().filter_map(|ranked| {
        let ghap = ghaps.remove(&ranked.candidate.ghap_id)?;
        Some(ExperienceHit { ghap, score: ranked.score })
    });
    if open.is_empty() {
        return Ok(hits.collect());
    }
    open.extend(hits);
    open.sort_by(|a, b| b.score.total_cmp(&a.score));
    open.truncate(search.limit);
    Ok(open)
}

/// Open records, which are not indexed, the latest made first.
async fn open_records(
    store: &Store,
    reader: &Reader,
    search: &ExperienceQuery<'_>,
) -> Result<Vec<Ghap>, StoreError> {
    let SearchFilter { domain, status, part } = search.filter;
    if !search.with_open || part.is_some() || status.is_some_and(|it| it != GhapStatus::Active) {
        return Ok(Vec::new());
    }
    let filter = GhapFilter { domain, status: Some(GhapStatus::Active), ..GhapFilter::default() };
    let page = store.ghaps().list(reader, &filter, None, PageSize::rows(limits::PAGE_MAX)).await?;
    Ok(page.rows)
}

/// Ranks an open record like one that was resolved now and has no confirmations.
fn rank_open(
    prompt: &RankingPrompt,
    ghap: Ghap,
    [aim, lesson, rest]: &[String; 3],
    now: Timestamp,
    search: &ExperienceQuery<'_>,
) -> ExperienceHit {
    let met = prompt.meet([aim, lesson, rest]);
    let project = ghap.project.as_deref().unwrap_or_default();
    let score = fit(&met, None, project, ghap.updated_at.as_millis(), search.project, now);
    ExperienceHit { ghap, score }
}

/// The best of the candidates; none if they are irrelevant.
fn rank(
    prompt: &RankingPrompt,
    candidates: Vec<SearchCandidate>,
    now: Timestamp,
    search: &ExperienceQuery<'_>,
) -> Vec<RankedCandidate> {
    let mut ranked: Vec<RankedCandidate> = candidates
        .into_iter()
        .map(|candidate| rank_one(prompt, candidate, search.project, now))
        .collect();
    if search.only_relevant {
        keep_relevant(prompt, &mut ranked);
    }
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.candidate.id.cmp(&a.candidate.id)));
    keep_slots(ranked, search.limit.min(limits::SEARCH_HITS))
}

/// Keeps the record that matches best, if it is relevant to the prompt, and those that match nearly
/// as well. Confirmations are ignored: they do not make a record relevant to this prompt.
fn keep_relevant(prompt: &RankingPrompt, ranked: &mut Vec<RankedCandidate>) {
    ranked.sort_by(|a, b| b.fit.total_cmp(&a.fit).then(b.candidate.id.cmp(&a.candidate.id)));
    let Some(best) = ranked.first() else { return };
    if prompt.relevance(&best.met, best.fit, lead(prompt, ranked)) < 0.0 {
        ranked.clear();
        return;
    }
    let least = BESIDE * best.fit;
    ranked.retain(|ranked| ranked.fit >= least);
}

fn rank_one(
    prompt: &RankingPrompt,
    candidate: SearchCandidate,
    project: Option<&str>,
    now: Timestamp,
) -> RankedCandidate {
    let met = prompt.meet([&candidate.aim, &candidate.lesson, &candidate.rest]);
    let fit = fit(&met, candidate.tier, &candidate.project, candidate.at_ms, project, now);
    let score = fit * confirmation_factor(candidate.confirmed_again);
    RankedCandidate { candidate, met, fit, score }
}

/// The match of a record, weighted by its tier, project and age.
fn fit(
    met: &TermMatch,
    tier: Option<Tier>,
    own: &str,
    at_ms: i64,
    project: Option<&str>,
    now: Timestamp,
) -> f64 {
    let days = float((now.as_millis() - at_ms).max(0)) / 86_400_000.0;
    let age = OLD + (1.0 - OLD) * (-days / HALF_LIFE_DAYS).exp2();
    let is_elsewhere = project.is_some_and(|project| project != own);
    let nearness = if is_elsewhere { ELSEWHERE } else { 1.0 };
    met.score * trust(tier) * age.powf(AGE) * nearness
}

/// The best, one in five of which is a failed attempt if there is any: a search does not look for
/// those.
fn keep_slots(mut ranked: Vec<RankedCandidate>, limit: usize) -> Vec<RankedCandidate> {
    let is_falsified = |ranked: &RankedCandidate| ranked.candidate.status == GhapStatus::Falsified;
    let kept = limit / 5;
    let among = ranked.iter().take(limit).filter(|ranked| is_falsified(ranked)).count();
    let rest = ranked.split_off(limit.min(ranked.len()));
    let missing = kept.saturating_sub(among);
    for late in rest.into_iter().filter(is_falsified).take(missing) {
        if let Some(index) = ranked.iter().rposition(|ranked| !is_falsified(ranked)) {
            ranked.remove(index);
            ranked.push(late);
        }
    }
    ranked
}

/// Weight of a tier. An abandoned record may still help.
fn trust(tier: Option<Tier>) -> f64 {
    match tier {
        Some(Tier::Gold) => 1.0,
        Some(Tier::Silver) | None => 0.95,
        Some(Tier::Bronze) => 0.85,
        Some(Tier::Abandoned) => 0.6,
    }
}

// Tuned on the development parts of fixtures/retrieval and on fixtures/retrieval/repeated; the
// README says how.

/// If at least this many records, itself included, share telling words with the best one, it is a
/// record of a recurring problem.
const OFTEN: usize = 3;
/// How many telling words such a record must share with the best one, and their least weight as a
/// share of the best one's.
const SHARED_WORDS: u32 = 2;
const SHARED: f64 = 0.5;
/// Least share of the prompt that the best one must match: many records share two words of a long
/// prompt by chance.
const MET: f64 = 0.4;

/// The match of the first of `ranked`, the best first, divided by the mean of the next two others.
fn lead(prompt: &RankingPrompt, ranked: &[RankedCandidate]) -> f64 {
    let Some(best) = ranked.first() else { return 0.0 };
    let is_repeated = best.met.share >= MET
        && ranked.iter().filter(|next| shares_telling_words(prompt, best, next)).count() >= OFTEN;
    let is_other = |next: &&RankedCandidate| {
        !(has_the_same_aim(best, next)
            || meets_all(prompt, next.met.telling)
            || (is_repeated && shares_telling_words(prompt, best, next)))
    };
    let mut others = ranked[1..].iter().filter(is_other).map(|next| next.fit);
    let mut next_fit = || others.next().unwrap_or(0.0);
    let next = f64::midpoint(next_fit(), next_fit());
    best.fit / next.max(f64::MIN_POSITIVE)
}

/// Whether two records have most words of their goals and hypotheses in common.
fn has_the_same_aim(one: &RankedCandidate, other: &RankedCandidate) -> bool {
    let [one, other]: [HashSet<&str>; 2] =
        [one, other].map(|ranked| ranked.candidate.aim.split(' ').collect());
    2 * one.intersection(&other).count() >= one.union(&other).count()
}

/// Whether these are all the telling words of the prompt. A single one may match by chance.
fn meets_all(prompt: &RankingPrompt, words: TellingWords) -> bool {
    words.count() >= SHARED_WORDS && words == prompt.telling()
}

fn shares_telling_words(
    prompt: &RankingPrompt,
    best: &RankedCandidate,
    next: &RankedCandidate,
) -> bool {
    let shared = best.met.telling.shared_with(next.met.telling);
    shared.count() >= SHARED_WORDS
        && prompt.worth_of(shared) >= SHARED * prompt.worth_of(best.met.telling)
}

/// Score per doubling of the confirmations, and its bound. The bound equals the most that age can
/// take, so that confirmations decide only between records that match equally.
const DOUBLING: f64 = 0.05;
const MOST: f64 = 0.2;

pub(in crate::service) fn confirmation_factor(confirmed_again: i64) -> f64 {
    let times = u32::try_from(confirmed_again.max(0)).unwrap_or(u32::MAX);
    1.0 + (DOUBLING * f64::from(times).ln_1p() / std::f64::consts::LN_2).min(MOST)
}

impl Search {
    /// Records what a session's search returned. A failure to record does not fail the search.
    #[boxed]
    pub async fn note_found(&self, caller: &Caller, session_id: &str, items: Vec<ItemVersion>) {
        if items.is_empty() {
            return;
        }
        let session_id = session_id.to_owned();
        let write = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            for item in items {
                tx.seen().note_found(&session_id, &item).await?;
            }
            Ok(())
        }));
        let noted: Result<(), StoreError> = write.await;
        if let Err(error) = noted {
            let error = svc_sys::telemetry::chain(&error);
            tracing::warn!(error, "cannot record the results of a search");
        }
    }
}

/// Records the confirmations by a record that is about to be stored as confirmed, in the same
/// commit. It is not indexed yet, so it does not change the frequency of its own words.
pub(in crate::service) async fn note_confirmed(
    tx: &mut WriteTx,
    reader: &Reader,
    ghap: &Ghap,
) -> Result<(), StoreError> {
    let notes = tx.ghaps().notes(&ghap.id).await?;
    let named = named(ghap.texts().chain(notes.iter().map(String::as_str)));
    if !named.is_empty() {
        tx.confirmations().insert(reader, &named, ghap, HelpEvidence::Name).await?;
    }
    let given = tx.confirmations().given(&ghap.session_id, limits::GIVEN_COMPARED).await?;
    if given.is_empty() {
        return Ok(());
    }
    let subject = subject(ghap);
    let (records, with) = tx.search().frequencies(&members(&subject)).await?;
    // The index covers records only, so memories are counted here as further records.
    let memories: Vec<&str> =
        given.iter().filter(|item| item.is_memory).map(|item| item.aim.as_str()).collect();
    let mut with: HashMap<String, i64> = with.into_iter().collect();
    for (term, memories) in fit::frequencies(memories.iter().copied()) {
        *with.entry(term).or_default() += memories;
    }
    let records = records + i64::try_from(memories.len()).unwrap_or(i64::MAX);
    let prompt = RankingPrompt::new(subject, Rarity::new(records, with));
    let about_it: Vec<&str> = given
        .iter()
        .filter(|item| prompt.is_about([&item.aim, &item.lesson, &item.rest]))
        .map(|item| item.id.as_str())
        .collect();
    if !about_it.is_empty() {
        tx.confirmations().insert(reader, &about_it, ghap, HelpEvidence::Subject).await?;
    }
    Ok(())
}

/// Words in some texts that may be the id of a record or a memory.
fn named<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ids: Vec<&str> = texts
        .flat_map(|text| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')))
        // All ids contain a separator, and few words of a text do.
        .filter(|word| word.contains(['_', '-']) && GhapId::parse(word).is_some())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn subject(ghap: &Ghap) -> Prompt {
    let text = format!("{}\n{}", ghap.goal, ghap.hypothesis);
    // Goals are phrased like chores, so the flag is cleared.
    Prompt { is_chore: false, ..Prompt::read(&text) }
}

#[cfg(test)]
mod tests {
    use svc_model::journal::{Domain, Verdict};
    use svc_store::{
        HelpEvidence,
        testing::{
            TestStore,
            journal::{ended, record},
        },
    };

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn asks(prompt: &str) -> ExperienceQuery<'_> {
        ExperienceQuery { prompt, limit: 5, ..ExperienceQuery::default() }
    }

    async fn found(store: &Store, search: &ExperienceQuery<'_>) -> Vec<String> {
        let hits = find(store, &Reader::All, NOW, search).await.unwrap();
        hits.into_iter().map(|hit| hit.ghap.id.as_str().to_owned()).collect()
    }

    async fn put(at: &TestStore, ghaps: Vec<Ghap>) {
        let write = at.store.write(job!(|tx| {
            for ghap in ghaps {
                tx.ghaps().insert(&ghap).await?;
            }
            Ok(())
        }));
        let done: Result<(), StoreError> = write.await;
        done.unwrap();
    }

    /// Many equal records, the first of which differs in domain and status.
    async fn one_among(at: &TestStore, many: usize) {
        let same = record(at, 0, "The tokenizer hangs").await;
        let ghaps = (0..many).map(|number| {
            let mut ghap = same.clone();
            ghap.id = format!("ghap_{number}").into();
            if number == 0 {
                ghap.domain = Domain::Testing;
                (ghap.status, ghap.end) = ended(Verdict::Falsified, ghap.created_at);
            }
            ghap
        });
        put(at, ghaps.collect()).await;
    }

    #[tokio::test]
    async fn filters_apply_before_the_limit() {
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
    async fn an_open_record_is_found_only_on_request() {
        let at = TestStore::open().await;
        let resolved = record(&at, 1, "The tokenizer hangs on a lone surrogate").await;
        let mut open = record(&at, 2, "The tokenizer of the zeppelin hangs").await;
        (open.status, open.end) = (GhapStatus::Active, None);
        put(&at, vec![resolved, open]).await;
        let ask = async |prompt: &'static str, status| {
            let filter = SearchFilter { status, ..SearchFilter::default() };
            let search = ExperienceQuery { filter, with_open: true, ..asks(prompt) };
            let mut ids = found(&at.store, &search).await;
            ids.sort();
            ids
        };
        assert_eq!(ask("zeppelin", None).await, ["ghap_2"]);
        assert_eq!(ask("tokenizer hangs", None).await, ["ghap_1", "ghap_2"]);
        assert_eq!(ask("tokenizer hangs", Some(GhapStatus::Active)).await, ["ghap_2"]);
        assert_eq!(ask("tokenizer hangs", Some(GhapStatus::Confirmed)).await, ["ghap_1"]);
        assert_eq!(ask("submarine", None).await, [""; 0]);
        assert!(found(&at.store, &asks("zeppelin")).await.is_empty(), "it has taught nothing yet");
    }

    #[tokio::test]
    async fn a_term_in_too_many_records_finds_the_latest() {
        let at = TestStore::open().await;
        let many = usize::try_from(limits::SEARCH_POSTINGS).unwrap() + 1;
        one_among(&at, many).await;
        let hits = found(&at.store, &asks("tokenizer")).await;
        assert_eq!(hits.len(), 5);
        assert_eq!(hits[0], format!("ghap_{}", many - 1));
    }

    #[tokio::test]
    async fn one_slot_in_five_is_reserved_for_falsified_records() {
        let at = TestStore::open().await;
        // Each record matches one word more than the record before it, so the first is the worst.
        let words = ["tokenizer", "hangs", "parser", "locale", "emoji", "newline", "regex"];
        let mut ghaps = Vec::new();
        for number in 1..=words.len() {
            let mut ghap = record(&at, number, &words[..number].join(" ")).await;
            if number <= 2 {
                (ghap.status, ghap.end) = ended(Verdict::Falsified, ghap.created_at);
            }
            ghaps.push(ghap);
        }
        put(&at, ghaps).await;
        let prompt = words.join(" ");
        let hits = found(&at.store, &asks(&prompt)).await;
        assert_eq!(hits, ["ghap_7", "ghap_6", "ghap_5", "ghap_4", "ghap_2"]);
        // With four slots, no slot is reserved for failed attempts.
        let search = ExperienceQuery { limit: 4, ..asks(&prompt) };
        let hits = found(&at.store, &search).await;
        assert_eq!(hits, ["ghap_7", "ghap_6", "ghap_5", "ghap_4"]);
    }

    #[tokio::test]
    async fn among_equal_matches_confirmed_records_come_first() {
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
            let write = at.store.write(job!(|tx| tx
                .confirmations()
                .insert(&Reader::All, &[id], &by, HelpEvidence::Subject)
                .await));
            let done: Result<(), StoreError> = write.await;
            done.unwrap();
        };
        confirm("ghap_1", "other").await;
        confirm("ghap_3", "other").await;
        // Confirmations do not outrank more matching words.
        let hits = found(&at.store, &search).await;
        assert_eq!((hits.len(), hits[0].as_str()), (3, "ghap_1"));
        let unasked = |prompt| ExperienceQuery { only_relevant: true, ..asks(prompt) };
        assert!(found(&at.store, &unasked("push it, tokenizer")).await.is_empty(), "the floor");
    }

    #[tokio::test]
    async fn repeated_records_are_still_relevant() {
        let at = TestStore::open().await;
        let mut ghaps = Vec::new();
        for number in 1..=6 {
            ghaps.push(record(&at, number, "The tokenizer hangs on a lone surrogate").await);
        }
        put(&at, ghaps).await;
        let search = ExperienceQuery { only_relevant: true, ..asks("tokenizer hangs") };
        assert_eq!(found(&at.store, &search).await.len(), 5);
    }

    #[tokio::test]
    async fn a_much_weaker_match_is_left_out() {
        let at = TestStore::open().await;
        let goals = [
            "The tokenizer hangs on a lone surrogate of an emoji",
            "The tokenizer of the billing page has a typo in its label",
            "The parser hangs on a missing newline at the end",
        ];
        let mut ghaps = Vec::new();
        for (number, goal) in (1..).zip(goals) {
            ghaps.push(record(&at, number, goal).await);
        }
        put(&at, ghaps).await;
        let search = asks("why does the tokenizer hang on this surrogate?");
        let hits = found(&at.store, &search).await;
        assert_eq!((hits.len(), hits[0].as_str()), (3, "ghap_1"));
        let unasked = ExperienceQuery { only_relevant: true, ..search };
        assert_eq!(found(&at.store, &unasked).await, ["ghap_1"]);
    }

    #[test]
    fn the_confirmation_factor_grows_with_each_doubling_up_to_a_bound() {
        let factors: Vec<f64> =
            [0, 1, 3, 7, 15, 16, i64::MAX].into_iter().map(confirmation_factor).collect();
        for (factor, is) in factors.iter().zip([1.0, 1.05, 1.1, 1.15, 1.2, 1.2, 1.2]) {
            assert!((factor - is).abs() < 1e-9, "{factor}, {is}");
        }
    }

    #[test]
    fn ids_are_found_between_punctuation() {
        let texts =
            ["as in ghap_01-a, (ghap_b).", "ghap_01-a again", "no such_word? \u{1f980}ghap_c", ""];
        assert_eq!(named(texts.into_iter()), ["ghap_01-a", "ghap_b", "ghap_c", "such_word"]);
    }
}
