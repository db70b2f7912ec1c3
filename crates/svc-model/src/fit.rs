//! How well a short text, such as a memory or a value, fits a prompt.
//!
//! The terms are those of the journal's search ([`text`]). The score is simpler, as such texts say
//! one thing each.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{limits, text, text::Prompt};

/// Weight of an everyday word.
const COMMON: f64 = 0.35;
/// Weight of a word that no text has, within the total weight of the prompt.
const UNKNOWN: f64 = 0.5;
/// Minimum share of a prompt that a text has to match for somebody who asked.
const NEAR: f64 = 0.15;
/// Usual length of a text in terms, and how much a greater length lowers the score.
const USUAL_LENGTH: f64 = 20.0;
const LENGTH: f64 = 0.2;

#[derive(Debug)]
pub struct WeighedPrompt {
    words: Vec<PromptWord>,
    whole: f64,
    is_chore: bool,
}

#[derive(Debug)]
struct PromptWord {
    /// Terms that match the word, with their weights.
    members: Vec<(String, f64)>,
    worth: f64,
    identifies_subject: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// For ranking.
    pub score: f64,
    /// Whether the text is about the subject, and does not only share everyday words with the
    /// prompt, or one word of many.
    pub is_near: bool,
    /// Whether to give the text to a session that did not ask for it.
    pub is_relevant: bool,
}

impl WeighedPrompt {
    /// `frequencies`: how many of the `count` texts have each of the prompt's [`members`].
    pub fn new(prompt: Prompt, count: usize, frequencies: &HashMap<String, i64>) -> Self {
        let count = float(count);
        let rarity = |term: &str| {
            let with = frequencies.get(term).map_or(0.0, |with| float(*with)).min(count);
            (1.0 + (count - with + 0.5) / (with + 0.5)).ln()
                * if text::is_common(term) { COMMON } else { 1.0 }
        };
        let mut words: Vec<PromptWord> = prompt
            .groups
            .into_iter()
            .map(|group| {
                let identifies_subject = group.identifies_subject();
                let members: Vec<(String, f64)> = group
                    .members
                    .into_iter()
                    .filter(|(term, _)| frequencies.contains_key(term))
                    .map(|(term, weight)| {
                        let value = weight * rarity(&term);
                        (term, value)
                    })
                    .collect();
                let best = members.iter().map(|(_, value)| *value).fold(0.0, f64::max);
                let worth = match (members.is_empty(), group.is_phrase) {
                    (false, _) => best,
                    (true, true) => 0.0,
                    (true, false) => rarity(&group.term) * UNKNOWN,
                };
                PromptWord { members, worth, identifies_subject }
            })
            .collect();
        words.sort_by(|a, b| b.worth.total_cmp(&a.worth));
        words.truncate(limits::PROMPT_TERMS);
        let whole = words.iter().map(|word| word.worth).sum::<f64>().max(f64::MIN_POSITIVE);
        Self { words, whole, is_chore: prompt.is_chore }
    }

    /// The terms to look for, with their weights.
    pub fn terms(&self) -> BTreeMap<&str, f64> {
        let mut terms = BTreeMap::new();
        for (term, value) in self.words.iter().flat_map(|word| &word.members) {
            let known = terms.entry(term.as_str()).or_insert(0.0_f64);
            *known = known.max(*value);
        }
        terms
    }

    /// How well the text with these [`terms`](text::terms) fits; `None` if it has none of the
    /// words.
    pub fn fit(&self, terms: &str) -> Option<Fit> {
        let terms: Vec<&str> = terms.split(' ').filter(|term| !term.is_empty()).collect();
        let length = float(terms.len());
        let terms: HashSet<&str> = terms.into_iter().collect();
        let (mut met, mut telling) = (0.0, 0);
        for word in &self.words {
            let best = word
                .members
                .iter()
                .filter(|(term, _)| terms.contains(term.as_str()))
                .map(|(_, value)| *value)
                .fold(0.0, f64::max);
            met += best;
            telling += u32::from(best > 0.0 && word.identifies_subject);
        }
        if met <= 0.0 {
            return None;
        }
        let share = met / self.whole;
        // Two words that identify the subject are a hint; one is chance, unless it is most of the
        // prompt. For an order, only a text about exactly that work is relevant.
        let is_relevant = match telling {
            0 => false,
            1 => share >= 0.6 && !self.is_chore,
            2 => share >= 0.35 && !self.is_chore,
            _ => share >= if self.is_chore { 0.5 } else { 0.3 },
        };
        let norm = 1.0 - LENGTH + LENGTH * length / USUAL_LENGTH;
        Some(Fit { score: met / norm.max(1.0), is_near: telling > 0 && share >= NEAR, is_relevant })
    }
}

/// All terms that match a word of the prompt.
pub fn members(prompt: &Prompt) -> Vec<&str> {
    let members = prompt.groups.iter().flat_map(|group| &group.members);
    let terms: HashSet<&str> = members.map(|(term, _)| term.as_str()).collect();
    terms.into_iter().collect()
}

/// The number of texts with each term.
pub fn frequencies<'a>(texts: impl IntoIterator<Item = &'a str>) -> HashMap<String, i64> {
    let mut with: HashMap<String, i64> = HashMap::new();
    for text in texts {
        let terms: HashSet<&str> = text.split(' ').filter(|term| !term.is_empty()).collect();
        for term in terms {
            *with.entry(term.to_owned()).or_default() += 1;
        }
    }
    with
}

/// The factor of a score by age: it only decides between texts that fit alike.
pub fn age(days: f64) -> f64 {
    (0.5 + 0.5 * (-days / 90.0).exp2()).powf(0.25)
}

#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
fn float(number: impl TryInto<i64>) -> f64 {
    number.try_into().unwrap_or(i64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(prompt: &str, texts: &[&str]) -> Vec<Option<Fit>> {
        let terms: Vec<String> = texts.iter().map(|text| text::terms(text)).collect();
        let with = frequencies(terms.iter().map(String::as_str));
        let prompt = WeighedPrompt::new(Prompt::read(prompt), texts.len(), &with);
        terms.iter().map(|terms| prompt.fit(terms)).collect()
    }

    const TEXTS: [&str; 4] = [
        "Run the migration tests against a copy of the database, never against the shared one",
        "The login page caches the tenant; clear the cache when the tenant changes",
        "We deploy on Tuesdays",
        "Retry webhooks with an idempotency key",
    ];

    #[test]
    fn text_about_the_prompt_scores_highest_and_alone_is_relevant() {
        let fits = ask("why does the tenant cache of the login page stay?", &TEXTS);
        let best = fits[1].unwrap();
        assert!(best.is_relevant);
        for other in [fits[0], fits[2], fits[3]].into_iter().flatten() {
            assert!(other.score < best.score && !other.is_relevant);
        }
    }

    #[test]
    fn no_text_is_relevant_to_a_prompt_about_something_else() {
        for prompt in ["please add a spinner to the settings page", "thanks!", "", "write a poem"] {
            assert!(ask(prompt, &TEXTS).iter().flatten().all(|fit| !fit.is_relevant), "{prompt}");
        }
    }

    #[test]
    fn relevance_of_a_single_text_needs_no_other_texts() {
        assert!(ask("webhooks retry twice", &TEXTS[3..])[0].unwrap().is_relevant);
        assert_eq!(ask("a poem about spring", &TEXTS[3..]), [None]);
    }
}
