//! Confirmations: records and memories that a confirmed record of another session supports.
//!
//! A record that ends as confirmed counts for those that its texts name by id, and for those that
//! its session was given before and that are about the same subject, with its goal and hypothesis
//! as the prompt (`RankingPrompt::is_about`). Of the records that a search of `fixtures/retrieval`
//! returns together, this rule selects 5 of the 11 pairs where both match the prompt, and 33 of the
//! 995 pairs where one does. The rule was chosen on these pairs, so they do not validate it. Being
//! given alone does not count, or results would raise their own rank; records of the same session
//! do not count, because a session would confirm itself.
//!
//! A wrong prediction does not count against what its session was given: most predictions fail for
//! other reasons, and the records of hard subjects, which are needed most, would lose the most.

use std::collections::HashMap;

use svc_model::{Caller, GhapId, Reader, fit, journal::Ghap, limits, text::Prompt};
use svc_store::{HelpEvidence, ItemVersion, StoreError, WriteTx};

use super::{
    Search,
    prompt::{RankingPrompt, Rarity, members},
};

/// Score per doubling of the confirmations, and its bound. The bound equals the most that age can
/// take, so that confirmations decide only between records that match equally.
const DOUBLING: f64 = 0.05;
const MOST: f64 = 0.2;

/// Factor of a score after this number of confirmations.
pub(in crate::service) fn confirmation_factor(confirmed_again: i64) -> f64 {
    let times = u32::try_from(confirmed_again.max(0)).unwrap_or(u32::MAX);
    1.0 + (DOUBLING * f64::from(times).ln_1p() / std::f64::consts::LN_2).min(MOST)
}

impl Search {
    /// Records what a session's search returned. A failure to record does not fail the search.
    pub async fn note_found(&self, caller: &Caller, session_id: &str, items: Vec<ItemVersion>) {
        if items.is_empty() {
            return;
        }
        let session_id = session_id.to_owned();
        let noted: Result<(), StoreError> = self
            .core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
                    for item in items {
                        tx.seen().note_found(&session_id, &item).await?;
                    }
                    Ok(())
                })
            })
            .await;
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
    // The index covers records only; memories are counted here as further records.
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

/// The subject of a record, as a prompt. Goals read like chores, so that flag is cleared.
fn subject(ghap: &Ghap) -> Prompt {
    let text = format!("{}\n{}", ghap.goal, ghap.hypothesis);
    Prompt { is_chore: false, ..Prompt::read(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
