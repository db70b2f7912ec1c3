//! Candidates for a prompt: the records that the index finds by its rarest terms.

use std::collections::{HashMap, HashSet};

use svc_model::{Reader, limits, text::Prompt};
use svc_store::{SearchCandidate, SearchFilter, SearchIndex, StoreError};

use super::prompt::{RankingPrompt, Rarity, members};

/// Weighs the words of a prompt by their frequency in the index and in open records, which are not
/// indexed and whose terms are in `open`.
pub(super) async fn weigh(
    index: &mut SearchIndex,
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

/// The readable records with the most of the rarest terms.
pub(super) async fn gather(
    index: &mut SearchIndex,
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
    // The ids of each term are sorted, so the sort is cheap.
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
    // Of a term that is in too many records, only the latest are read.
    if let Some(term) = terms.too_frequent.filter(|_| ids.len() < limit) {
        let latest = index.latest(reader, term, filter, most).await?;
        ids.extend(latest);
        ids.sort_unstable();
        ids.dedup();
    }
    if ids.is_empty() { Ok(Vec::new()) } else { index.candidates(&ids).await }
}
