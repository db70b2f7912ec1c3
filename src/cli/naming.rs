//! Errors for a name that matches nothing or several things, with similar names or candidates.

use std::cmp::Reverse;
use std::collections::HashMap;

use anyhow::{Result, bail};
use http::StatusCode;
use serde_json::Value;
use strsim::levenshtein;
use svc_client::{Client, ClientError, ClientProblem, with_query};
use svc_model::LATEST;

use super::output::{self, cell, items, visible};

/// Most similar names and most candidates in an error.
const NEAR: usize = 3;
const CANDIDATES: usize = 8;

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

/// The response for the peer `name`, or an error that lists candidates.
pub(super) async fn peer_found<T>(
    client: &Client,
    name: &str,
    result: Result<T, ClientError>,
) -> Result<T> {
    let error = match result {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let is_ambiguous_error = is_ambiguous_error(&error);
    if error.status() != Some(StatusCode::NOT_FOUND) && !is_ambiguous_error {
        return Err(error.into());
    }
    let is_of_message = |problem: &ClientProblem| problem.detail.starts_with("there is no message");
    if !is_ambiguous_error && error.problem().is_some_and(is_of_message) {
        // The peer exists; the error is about something else.
        return Err(error.into());
    }
    let Ok(page) = client.get::<Value>("/v1/peers?limit=500").await else {
        return Err(error.into());
    };
    let peers = items(&page, "peers");
    if is_ambiguous_error {
        let mut named: Vec<&Value> =
            peers.iter().filter(|peer| is_named(peer, "peer_id", name)).collect();
        named.sort_by_cached_key(|peer| {
            (peer["status"] == "offline", Reverse(cell(peer, "registered_at")))
        });
        let rows = named.iter().map(|peer| {
            let words = ["peer_id", "display_name", "status", "backend", "path"];
            let words = words.map(|key| cell(peer, key)).join("  ");
            format!("{words}  since {}", cell(peer, "registered_at"))
        });
        let mut error = choice(error, name, "peer", &rows.collect::<Vec<_>>());
        error.text.push_str(&successors(peers, &named));
        return Err(error.into());
    }
    let near = near(name, peers);
    let advice = match near.split_last() {
        None => "`svc agent list` shows who is here".to_owned(),
        Some((only, [])) => format!("did you mean {}?", visible(only)),
        Some((last, others)) => {
            format!("did you mean {} or {}?", visible(&others.join(", ")), visible(last))
        }
    };
    Err(AdvisedError::new(error, &advice).into())
}

/// The response for the message `name`, or an error that lists the messages whose ids have this
/// prefix.
pub(super) async fn message_found<T>(
    client: &Client,
    name: &str,
    result: Result<T, ClientError>,
) -> Result<T> {
    let error = match result {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    if !is_ambiguous_error(&error) {
        return Err(error.into());
    }
    let Ok(page) = client.get::<Value>("/v1/messages?limit=500").await else {
        return Err(error.into());
    };
    let messages = items(&page, "messages");
    let rows = messages.iter().filter(|message| is_named(message, "id", name)).map(|message| {
        let end = |name: &str, id: &str| {
            output::plain(message.get(name).or(message.get(id)).unwrap_or(&Value::Null))
        };
        let text: String = cell(message, "text").chars().take(40).collect();
        format!(
            "{}  {} from {} to {}: {text}",
            cell(message, "id"),
            cell(message, "type"),
            end("from_name", "from_peer"),
            end("to_name", "to_peer")
        )
    });
    Err(choice(error, name, "message", &rows.collect::<Vec<_>>()).into())
}

fn is_ambiguous_error(error: &ClientError) -> bool {
    error.problem().is_some_and(|problem| is_ambiguous(&problem.detail))
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
    // The text in parentheses may contain commas too. A comma that ends a candidate is followed by
    // an id.
    let is_id = |text: &str| {
        let word = text.split(' ').next().unwrap_or_default();
        text.contains(" (") && word.len() > 4 && !word.contains([',', '(', ')'])
    };
    let mut entries: Vec<String> = Vec::new();
    for part in list.split("), ") {
        match entries.last_mut() {
            Some(last) if !is_id(part) => last.extend(["), ", part]),
            _ => entries.push(part.to_owned()),
        }
    }
    let last = entries.len().saturating_sub(1);
    for (index, entry) in entries.iter().enumerate() {
        let end = if index < last { ")" } else { "" };
        text.extend(["\n  ", &visible(entry), end]);
    }
    Some(text)
}

pub(super) fn source_missing(source: ClientError, name: &str, known: &[&str]) -> AdvisedError {
    let near: Vec<&str> = known
        .iter()
        .filter(|known| known.contains(name) || name.len() > 3 && levenshtein(known, name) <= 2)
        .take(NEAR)
        .copied()
        .collect();
    let advice = match near[..] {
        [] => "`svc mcp list` lists them".to_owned(),
        _ => format!("did you mean {}?", visible(&near.join(" or "))),
    };
    let text = format!("there is no server {:?}; {advice}", visible(name));
    AdvisedError { text, source }
}

/// Whether a document has this name, or an id with this prefix, with or without the id's own
/// prefix.
fn is_named(thing: &Value, id_field: &str, name: &str) -> bool {
    let id = cell(thing, id_field);
    let digits = id.split_once('_').map_or("", |(_, digits)| digits);
    let own_name = thing.get("display_name").and_then(Value::as_str);
    id.starts_with(name) || digits.starts_with(name) || own_name == Some(name)
}

/// An error with one candidate a line. Without candidates, the daemon's text.
fn choice(source: ClientError, name: &str, kind: &str, rows: &[String]) -> AdvisedError {
    if rows.is_empty() {
        return AdvisedError { text: visible(&source.to_string()), source };
    }
    let name = visible(name);
    let mut text = format!("{name:?} names {} {kind}s; name one by its id:", rows.len());
    for row in rows.iter().take(CANDIDATES) {
        text.extend(["\n  ", &visible(row)]);
    }
    if rows.len() > CANDIDATES {
        text.extend(["\n  and ", &(rows.len() - CANDIDATES).to_string(), " more"]);
    }
    AdvisedError { text, source }
}

/// A line that names who is here of the same client and in the same folder, if all of `named` are
/// gone: that one may be meant.
fn successors(peers: &[Value], named: &[&Value]) -> String {
    fn is_alike(one: &Value, other: &Value) -> bool {
        !one["path"].is_null()
            && ["backend", "path", "role"].iter().all(|key| one[*key] == other[*key])
    }
    if named.iter().any(|peer| peer["status"] != "offline") {
        return String::new();
    }
    let living = peers.iter().filter(|peer| peer["status"] != "offline");
    let names: Vec<String> = living
        .filter(|peer| named.iter().any(|gone| is_alike(gone, peer)))
        .filter_map(|peer| peer["display_name"].as_str())
        .take(NEAR)
        .map(visible)
        .collect();
    match names.len() {
        0 => String::new(),
        1 => format!("\n{} is here in the same folder", names[0]),
        _ => format!("\n{} are here in the same folder", names.join(", ")),
    }
}

/// Similar names, from the closest kind of match only; living participants first.
fn near<'a>(name: &str, peers: &'a [Value]) -> Vec<&'a str> {
    let wanted = name.to_lowercase();
    let kinds: [&dyn Fn(&str) -> bool; 4] = [
        &|known| known == wanted,
        &|known| known.split(['@', ':']).any(|part| part == wanted),
        &|known| {
            wanted.len() > 2
                && (known.contains(&wanted) || known.len() > 2 && wanted.contains(known))
        },
        &|known| wanted.len() > 3 && levenshtein(known, &wanted) <= 2,
    ];
    for is_living in [true, false] {
        for is_near in kinds {
            let mut names: Vec<&str> = peers
                .iter()
                .filter(|peer| (peer["status"] != "offline") == is_living)
                .filter_map(|peer| peer["display_name"].as_str())
                .filter(|known| is_near(&known.to_lowercase()))
                .collect();
            names.dedup();
            names.truncate(NEAR);
            if !names.is_empty() {
                return names;
            }
        }
    }
    Vec::new()
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
            ("b", &["claude:b"]),
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
        let detail = "\"01m8\" names 3 tasks: task_01m8a (a title (b), c), task_01m8b (done), \
                      task_01m8c (failed); name one by its id";
        let text = candidates(&answer(422, detail)).expect("candidates");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "\"01m8\" names 3 tasks; name one by its id:",
                "  task_01m8a (a title (b), c)",
                "  task_01m8b (done)",
                "  task_01m8c (failed)"
            ]
        );
        assert_eq!(candidates(&answer(404, "there is no task \"x\"")), None);
    }

    #[test]
    fn unknown_server_error_lists_similar_names() {
        let error = |name: &str| {
            let known = ["toy", "files", "ok"];
            source_missing(answer(404, "there is no server"), name, &known).to_string()
        };
        assert_eq!(error("to"), "there is no server \"to\"; did you mean toy?");
        assert_eq!(error("filse"), "there is no server \"filse\"; did you mean files?");
        for unlike in ["nope", "ab", "zz"] {
            assert!(error(unlike).ends_with("`svc mcp list` lists them"), "{unlike}");
        }
    }
}
