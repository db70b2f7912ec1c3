//! The lead of the best record over records about other subjects.
//!
//! The others are records that do not match the telling words of the prompt. A recurring problem
//! has many records, each with its own hypothesis, and none of them is far ahead of the next: these
//! do not lower the lead.

use std::collections::HashSet;

use super::prompt::{RankingPrompt, TellingWords, TermMatch};

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

/// A record that matches a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankedRecord<'a> {
    /// The terms of its goal and hypothesis.
    pub(super) aim: &'a str,
    pub(super) met: &'a TermMatch,
    /// Its match, weighted by tier, project and age.
    pub(super) fit: f64,
}

/// The match of the first of `ranked`, the best first, divided by the mean of the next two others.
pub(super) fn lead(prompt: &RankingPrompt, ranked: &[RankedRecord<'_>]) -> f64 {
    let Some(best) = ranked.first() else { return 0.0 };
    let is_repeated = best.met.share >= MET
        && ranked.iter().filter(|next| shares_telling_words(prompt, best, next)).count() >= OFTEN;
    let is_other = |next: &&RankedRecord<'_>| {
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
fn has_the_same_aim(one: &RankedRecord<'_>, other: &RankedRecord<'_>) -> bool {
    let [one, other]: [HashSet<&str>; 2] =
        [one, other].map(|record| record.aim.split(' ').collect());
    2 * one.intersection(&other).count() >= one.union(&other).count()
}

/// Whether these are all the telling words of the prompt. A single one may match by chance.
fn meets_all(prompt: &RankingPrompt, words: TellingWords) -> bool {
    words.count() >= SHARED_WORDS && words == prompt.telling()
}

fn shares_telling_words(
    prompt: &RankingPrompt,
    best: &RankedRecord<'_>,
    next: &RankedRecord<'_>,
) -> bool {
    let shared = best.met.telling.shared_with(next.met.telling);
    shared.count() >= SHARED_WORDS
        && prompt.worth_of(shared) >= SHARED * prompt.worth_of(best.met.telling)
}
