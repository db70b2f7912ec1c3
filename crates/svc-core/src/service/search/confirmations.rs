//! What has helped again: records and memories that another session's confirmed record speaks for.
//!
//! A record that ends as confirmed speaks for those that it names by their ids, in any of its
//! texts, and for those that its session was given before and that are about the same, its goal and
//! hypothesis being the prompt (`RankingPrompt::is_about`). Of records that a search of
//! `fixtures/retrieval` gives together, that takes 5 of 11 pairs that answer the prompt both, and
//! 33 of 995 of which only one does: it was chosen on these, so they are no proof. To be given
//! alone counts for nothing, or what is shown would be shown the more; and nothing counts within
//! one session, which would praise itself.
//!
//! What was given to a session whose prediction turned out wrong is not held against it: most
//! predictions fail for reasons of their own, and hard subjects, where a record is needed most,
//! would sink the deepest.

use std::collections::HashMap;

use svc_model::{Caller, GhapId, Reader, fit, journal::Ghap, limits, text::Prompt};
use svc_store::{SeenItem, ShownBy, StoreError, WriteTx};

use super::{
    prompt::{RankingPrompt, Rarity, members},
    room::Search,
};

/// What each doubling of the confirmations adds to a score, and all of them at most: as much as age
/// can take away, so that it decides between records that fit alike, and no more.
const DOUBLING: f64 = 0.05;
const MOST: f64 = 0.2;

/// What it counts that something was confirmed again so many times.
pub(in crate::service) fn confirmation_factor(confirmed_again: i64) -> f64 {
    let times = u32::try_from(confirmed_again.max(0)).unwrap_or(u32::MAX);
    1.0 + (DOUBLING * f64::from(times).ln_1p() / std::f64::consts::LN_2).min(MOST)
}

impl Search {
    /// Notes what a session has found when it searched. A search that is not noted is an answer all
    /// the same.
    pub async fn note_found(&self, caller: &Caller, session_id: &str, items: Vec<SeenItem>) {
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
            tracing::warn!(error, "cannot note what a search has found");
        }
    }
}

/// Notes what a record speaks for that is about to be stored as confirmed, in the same commit. It
/// is not among what can be found yet, so its words are as rare as they were before it.
pub(in crate::service) async fn note_confirmed(
    tx: &mut WriteTx,
    reader: &Reader,
    ghap: &Ghap,
) -> Result<(), StoreError> {
    let notes = tx.ghaps().notes(&ghap.id).await?;
    let named = named(ghap.texts().chain(notes.iter().map(String::as_str)));
    if !named.is_empty() {
        tx.confirmations().insert(reader, &named, ghap, ShownBy::Name).await?;
    }
    let given = tx.confirmations().given(&ghap.session_id, limits::GIVEN_COMPARED).await?;
    if given.is_empty() {
        return Ok(());
    }
    let subject = subject(ghap);
    let (records, with) = tx.search().frequencies(&members(&subject)).await?;
    // The index is the journal's; memories are taken for records more.
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
        tx.confirmations().insert(reader, &about_it, ghap, ShownBy::Subject).await?;
    }
    Ok(())
}

/// What in some texts may be the id of a record or a memory.
fn named<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ids: Vec<&str> = texts
        .flat_map(|text| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')))
        // All ids have a seam, and few words of a text do.
        .filter(|word| word.contains(['_', '-']) && GhapId::parse(word).is_some())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// What a record is about, as a prompt. Its goal is an order to do some work, like any; that says
/// nothing here.
fn subject(ghap: &Ghap) -> Prompt {
    let text = format!("{}\n{}", ghap.goal, ghap.hypothesis);
    Prompt { is_chore: false, ..Prompt::read(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doubling_counts_less_and_it_ends() {
        let factors: Vec<f64> =
            [0, 1, 3, 7, 15, 16, i64::MAX].into_iter().map(confirmation_factor).collect();
        for (factor, is) in factors.iter().zip([1.0, 1.05, 1.1, 1.15, 1.2, 1.2, 1.2]) {
            assert!((factor - is).abs() < 1e-9, "{factor}, {is}");
        }
    }

    #[test]
    fn an_id_is_found_wherever_it_stands() {
        let texts =
            ["as in ghap_01-a, (ghap_b).", "ghap_01-a again", "no such_word? \u{1f980}ghap_c", ""];
        assert_eq!(named(texts.into_iter()), ["ghap_01-a", "ghap_b", "ghap_c", "such_word"]);
    }
}
