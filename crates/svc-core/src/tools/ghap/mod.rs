//! Tools for GHAP records: goal, hypothesis, action, prediction and outcome of an attempt.

mod lists;
mod orphans;
mod outcomes;
mod records;
mod search;
#[cfg(test)]
mod tests;

use super::Tool;

pub(super) fn tools() -> Vec<Tool> {
    [records::tools(), lists::tools(), orphans::tools(), search::tools(), outcomes::tools()]
        .into_iter()
        .flatten()
        .map(|tool| tool.family("ghap"))
        .collect()
}
