//! By how much the best record is nearer to a prompt than what is about something else.
//!
//! The others are records that do not meet the prompt's telling words. A trouble that a team met
//! often has many records, each with a hypothesis of its own, and none of them is far ahead of the
//! next: they are no reason to be silent.

use std::collections::HashSet;

use super::prompt::{RankingPrompt, TellingWords, TermMatch};

// Tuned on the development parts of fixtures/retrieval and on fixtures/retrieval/repeated; the
// README says how.

/// From how many records on that share telling words with the best one those words are a trouble
/// that is met again and again, the best one with them.
const OFTEN: usize = 3;
/// How many of the prompt's telling words those share, and which part of what the best one's are
/// worth.
const SHARED_WORDS: u32 = 2;
const SHARED: f64 = 0.5;
/// Which share of the prompt the best one meets then: many records share two words of a long prompt
/// by chance.
const MET: f64 = 0.4;

/// A record that meets a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contender<'a> {
    /// The terms of what it is about.
    pub(super) aim: &'a str,
    /// How it meets the prompt.
    pub(super) met: &'a TermMatch,
    /// How well it fits, with what else weighs in.
    pub(super) fit: f64,
}

/// How many times as well as the next two others the first of `ranked` fits, of which the best come
/// first.
pub(super) fn lead(prompt: &RankingPrompt, ranked: &[Contender<'_>]) -> f64 {
    let Some(best) = ranked.first() else { return 0.0 };
    let is_repeated = best.met.share >= MET
        && ranked.iter().filter(|next| shares_telling_words(prompt, best, next)).count() >= OFTEN;
    let is_other = |next: &&Contender<'_>| {
        !(has_the_same_aim(best, next)
            || meets_all(prompt, next.met.telling)
            || (is_repeated && shares_telling_words(prompt, best, next)))
    };
    let mut others = ranked[1..].iter().filter(is_other).map(|next| next.fit);
    let mut next_fit = || others.next().unwrap_or(0.0);
    let next = f64::midpoint(next_fit(), next_fit());
    best.fit / next.max(f64::MIN_POSITIVE)
}

/// Whether two records have most of the words of their goals and hypotheses in common.
fn has_the_same_aim(one: &Contender<'_>, other: &Contender<'_>) -> bool {
    let [one, other]: [HashSet<&str>; 2] =
        [one, other].map(|record| record.aim.split(' ').collect());
    2 * one.intersection(&other).count() >= one.union(&other).count()
}

/// Whether these are all the telling words of the prompt. A single one is chance.
fn meets_all(prompt: &RankingPrompt, words: TellingWords) -> bool {
    words.count() >= SHARED_WORDS && words == prompt.telling()
}

fn shares_telling_words(
    prompt: &RankingPrompt,
    best: &Contender<'_>,
    next: &Contender<'_>,
) -> bool {
    let shared = best.met.telling.shared_with(next.met.telling);
    shared.count() >= SHARED_WORDS
        && prompt.worth_of(shared) >= SHARED * prompt.worth_of(best.met.telling)
}
