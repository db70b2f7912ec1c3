//! Errors for a name that matches nothing or several things, with similar names or candidates.

use std::collections::HashMap;

use anyhow::{Result, bail};
use http::StatusCode;
use serde_json::Value;
use strsim::levenshtein;
use svc_client::{Client, ClientError, ClientProblem, with_query};
use svc_model::LATEST;

use super::output::{cell, items, visible};

/// Most similar names in an error.
const NEAR: usize = 3;

/// An error of the daemon with advice. Its text may have several lines and is sanitised.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct AdvisedError {
    text: String,
    source: ClientError,
}

impl AdvisedError {
    pub(super) fn new(source: ClientError, advice: &str) -> Self {
        Self { text: format!("{}; {advice}", visible(&source.to_string())), source }
    }
}

/// The items on all pages of a list for which `wanted` is true, at most `most` of them.
pub(super) async fn all_items(
    client: &Client,
    path: &str,
    key: &str,
    most: usize,
    wanted: impl Fn(&Value) -> bool,
) -> Result<Vec<Value>, ClientError> {
    let (mut all, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let query = [("limit", Some("500")), ("cursor", cursor.as_deref())];
        let page: Value = client.get(&with_query(path, &query)).await?;
        let found = items(&page, key).iter().filter(|item| wanted(item));
        all.extend(found.take(most - all.len()).cloned());
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || all.len() == most {
            return Ok(all);
        }
    }
}

/// What `latest` names: the first item of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatestItem {
    pub(super) path: &'static str,
    /// The members that have the list, and the id of an item.
    pub(super) items: &'static str,
    pub(super) id: &'static str,
    /// The error's text if the list is empty.
    pub(super) empty: &'static str,
}

/// The id that an argument names.
pub(super) async fn identified(client: &Client, named: String, list: LatestItem) -> Result<String> {
    if named != LATEST {
        return Ok(named);
    }
    let page: Value = client.get(&with_query(list.path, &[("limit", Some("1"))])).await?;
    match items(&page, list.items) {
        [latest, ..] => Ok(cell(latest, list.id)),
        [] => bail!("{}", list.empty),
    }
}

/// Names of participants by a member of their documents, for lists. Empty if the daemon does not
/// respond; the list then shows ids.
pub(super) async fn peer_names(client: &Client, key: &str) -> HashMap<String, String> {
    let page: Value = client.get("/v1/peers?limit=500").await.unwrap_or_default();
    let named = items(&page, "peers").iter().filter(|peer| peer[key].is_string());
    named.map(|peer| (cell(peer, key), cell(peer, "display_name"))).collect()
}

/// The response for the peer `name`, or an error that lists similar names.
pub(super) async fn peer_found<T>(
    client: &Client,
    name: &str,
    result: Result<T, ClientError>,
) -> Result<T> {
    let error = match result {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    // Where a peer exists, the error may be about its message.
    let is_missing = error.problem().is_some_and(|problem| {
        problem.status == StatusCode::NOT_FOUND
            && !problem.detail.starts_with("there is no message")
    });
    if !is_missing {
        return Err(error.into());
    }
    let page: Value = client.get("/v1/peers?limit=500").await.unwrap_or_default();
    let near = near(name, items(&page, "peers"));
    let advice = match near.split_last() {
        None => "`svc agent list` shows who is here".to_owned(),
        Some((only, [])) => format!("did you mean {}?", visible(only)),
        Some((last, others)) => {
            format!("did you mean {} or {}?", visible(&others.join(", ")), visible(last))
        }
    };
    Err(AdvisedError::new(error, &advice).into())
}

fn is_ambiguous(detail: &str) -> bool {
    detail.contains(" names ") && detail.contains("by its id")
}

/// Whether the error says that a name matches nothing or several things.
pub(super) fn is_about_a_name(problem: &ClientProblem) -> bool {
    let field = problem.detail.split_once(": ").map_or("", |(_, rest)| rest);
    let is_missing = [&*problem.detail, field].iter().any(|text| text.starts_with("there is no "));
    is_missing || is_ambiguous(&problem.detail)
}

/// The candidates that the daemon's error lists, one a line.
pub(super) fn candidates(error: &ClientError) -> Option<String> {
    let detail = &error.problem().filter(|problem| is_ambiguous(&problem.detail))?.detail;
    let (head, rest) = detail.split_once(": ")?;
    let (list, advice) = rest.rsplit_once("; ")?;
    let mut text = format!("{}; {}:", visible(head), visible(advice));
    for entry in list.split_inclusive("), ") {
        text.extend(["\n  ", &visible(entry.trim_end_matches(", "))]);
    }
    Some(text)
}

/// The response for the server `name`, or an error for a person if there is none.
pub(super) fn source_found<T>(name: &str, result: Result<T, ClientError>) -> Result<T> {
    match result {
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
            Err(source_missing(error, name).into())
        }
        found => Ok(found?),
    }
}

pub(super) fn source_missing(source: ClientError, name: &str) -> AdvisedError {
    let text = format!("there is no server {:?}; `svc mcp list` lists them", visible(name));
    AdvisedError { text, source }
}

/// Similar names: those of living participants if there are any.
fn near<'a>(name: &str, peers: &'a [Value]) -> Vec<&'a str> {
    let wanted = name.to_lowercase();
    let is_near = |known: &&str| {
        let known = known.to_lowercase();
        wanted.len() > 2 && (known.contains(&wanted) || known.len() > 2 && wanted.contains(&known))
            || wanted.len() > 3 && levenshtein(&known, &wanted) <= 2
    };
    let among = |is_living: bool| {
        let peers = peers.iter().filter(|peer| (peer["status"] != "offline") == is_living);
        let names = peers.filter_map(|peer| peer["display_name"].as_str());
        names.filter(is_near).take(NEAR).collect::<Vec<_>>()
    };
    let living = among(true);
    if living.is_empty() { among(false) } else { living }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn similar_names_are_found() {
        let peer = |name: &str, status: &str| json!({ "display_name": name, "status": status });
        let peers = [
            peer("codex@mono", "idle"),
            peer("codex@web", "busy"),
            peer("reviewer", "idle"),
            peer("gemini@mono", "offline"),
            peer("claude:b", "idle"),
        ];
        for (name, is) in [
            ("codex", &["codex@mono", "codex@web"][..]),
            ("CODEX@mono", &["codex@mono"]),
            ("reviwer", &["reviewer"]),
            ("mono", &["codex@mono"]),
            ("gemini", &["gemini@mono"]),
            ("nobody", &[]),
            ("x", &[]),
        ] {
            assert_eq!(near(name, &peers), is, "{name}");
        }
    }

    fn answer(status: u16, detail: &str) -> ClientError {
        let status = StatusCode::from_u16(status).expect("a status");
        ClientError::Problem(Box::new(ClientProblem::stated(status, "", detail)))
    }

    #[test]
    fn each_candidate_is_on_its_own_line() {
        let detail = "\"01m8\" names 3 tasks: task_01m8a (a title (b, c)), task_01m8b (done), \
                      task_01m8c (failed); name one by its id";
        let text = candidates(&answer(422, detail)).expect("candidates");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "\"01m8\" names 3 tasks; name one by its id:",
                "  task_01m8a (a title (b, c))",
                "  task_01m8b (done)",
                "  task_01m8c (failed)"
            ]
        );
        assert_eq!(candidates(&answer(404, "there is no task \"x\"")), None);
    }
}
