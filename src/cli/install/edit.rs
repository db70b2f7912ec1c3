//! What we put into a client's file, and how it is found again there, changed and taken away.
//!
//! Ours are the server named `svc` that runs `svc stdio` (or points to a daemon on this machine), and the handlers
//! whose command is `svc … hook …`, wherever someone has moved them. All else is somebody else's.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::document::{Document, Format, Refused, Step};

/// Our name among a client's servers.
pub(super) const SERVER: &str = "svc";

/// Keys that say how a server is reached. Those of an entry that we replace go; others (`env`, `timeout`, `trust`,
/// approvals) are the person's.
const TRANSPORT: &[&str] = &[
    "type",
    "source",
    "command",
    "args",
    "url",
    "httpUrl",
    "serverUrl",
    "headers",
    "headersHelper",
    "http_headers",
    "env_http_headers",
    "http_headers_helper",
    "bearer_token_env_var",
    "oauth",
];

/// One thing that we want in a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Edit {
    /// Our entry in the table of servers at `table`.
    Server {
        /// Where the servers are.
        table: &'static [&'static str],
        /// How ours is reached.
        entry: Value,
    },
    /// Our handlers: for each event one group, `{matcher?, hooks: [handler, …]}`.
    Hooks {
        /// Event and group, in the order in which they are written.
        groups: Vec<(&'static str, Value)>,
    },
    /// The hashes of hooks that the person trusts, as Codex keeps them.
    Trust {
        /// The hook's name and its hash.
        hashes: Vec<(String, String)>,
    },
    /// A file that is ours altogether.
    Whole {
        /// What stands in it.
        text: String,
    },
}

/// What an edit did that undoing it must know.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Done {
    /// Tables and lists that were not there before.
    pub(super) made: Vec<Vec<String>>,
    /// The entry that stood in the place of ours.
    pub(super) replaced: Option<Value>,
    /// Hooks whose trust we wrote down.
    pub(super) trusted: Vec<String>,
}

/// What there is of an edit in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing of ours.
    Missing,
    /// It is as we would write it.
    Same,
    /// It is ours and different.
    Differs,
    /// Our name, but not ours.
    Foreign,
}

/// What follows `svc hook` in a handler.
const HOOK_WORDS: &[&str] = &["claude-code", "claude", "codex", "gemini", "opencode", "wait"];

/// Where the handlers of all clients that have any are.
const HOOKS: &str = "hooks";
/// Where Codex keeps what it knows of each hook.
const STATE: &[&str] = &[HOOKS, "state"];
/// The hash in it that is trusted.
const HASH: &str = "trusted_hash";

/// The text with the edit in it: the same text if it is there already.
///
/// Fails if the text does not parse, has something else where a table must be, or another server named `svc`.
pub(super) fn apply(text: &str, format: Format, edit: &Edit) -> Result<(String, Done), Problem> {
    let mut done = Done::default();
    if let Edit::Whole { text: wanted } = edit {
        if !text.is_empty() && text != wanted && !is_our_file(text) {
            return Err(Problem::NotOurs);
        }
        return Ok((wanted.clone(), done));
    }
    let mut document = Document::parse(format, text)?;
    let before = document.value();
    match found_in(&before, edit) {
        Found::Same => return Ok((text.to_owned(), done)),
        Found::Foreign => return Err(Problem::NameTaken),
        Found::Missing | Found::Differs => {}
    }
    match edit {
        Edit::Server { table, entry } => {
            let path: Vec<&str> = table.iter().copied().chain([SERVER]).collect();
            done.replaced = at(&before, &path).cloned();
            let merged = merged(done.replaced.as_ref(), entry);
            document.set(&path, &merged)?;
            note_made(&before, table, &mut done.made);
        }
        Edit::Hooks { groups } => {
            remove_handlers(&mut document, &before, |event| differs(&before, event, groups));
            for (event, group) in groups {
                if differs(&before, event, groups) {
                    note_made(&before, &[HOOKS, event], &mut done.made);
                    document.push(&[HOOKS, event], group)?;
                }
            }
        }
        Edit::Trust { hashes } => {
            note_made(&before, STATE, &mut done.made);
            for (key, hash) in hashes {
                let known = trusted(&before, key).cloned();
                if known.as_ref().and_then(|it| it.get(HASH)).and_then(Value::as_str) == Some(hash)
                {
                    continue;
                }
                let mut state = known.unwrap_or_else(|| json!({}));
                state[HASH] = json!(hash);
                document.set(&[STATE, &[key]].concat(), &state)?;
                done.trusted.push(key.clone());
            }
        }
        Edit::Whole { .. } => {}
    }
    Ok((document.text(), done))
}

/// The text without what is ours, and with what ours replaced. `None` for a file that was ours altogether.
///
/// Fails if the text does not parse.
pub(super) fn undo(
    text: &str,
    format: Format,
    edit: &Edit,
    done: &Done,
) -> Result<Option<String>, Problem> {
    if matches!(edit, Edit::Whole { .. }) {
        return if is_our_file(text) { Ok(None) } else { Err(Problem::NotOurs) };
    }
    let mut document = Document::parse(format, text)?;
    let before = document.value();
    match edit {
        Edit::Server { table, .. } => {
            let path: Vec<&str> = table.iter().copied().chain([SERVER]).collect();
            match at(&before, &path) {
                Some(entry) if is_our_server(entry) => match &done.replaced {
                    Some(former) => document.set(&path, former)?,
                    None => document.remove(&keys(&path)),
                },
                _ => return Ok(Some(text.to_owned())),
            }
        }
        Edit::Hooks { .. } => {
            if !remove_handlers(&mut document, &before, |_| true) {
                return Ok(Some(text.to_owned()));
            }
        }
        Edit::Trust { .. } => {
            let ours: Vec<&String> =
                done.trusted.iter().filter(|key| trusted(&before, key).is_some()).collect();
            if ours.is_empty() {
                return Ok(Some(text.to_owned()));
            }
            for key in ours {
                document.remove(&keys(&[STATE, &[key.as_str()]].concat()));
            }
        }
        Edit::Whole { .. } => {}
    }
    // The innermost first, so that what they leave empty is seen.
    let mut made: Vec<&Vec<String>> = done.made.iter().collect();
    made.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in made {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let now = document.value();
        if at(&now, &path).is_some_and(is_empty) {
            document.remove(&keys(&path));
        }
    }
    Ok(Some(document.text()))
}

/// What there is of the edit in the text. Fails if the text does not parse.
pub(super) fn find(text: &str, format: Format, edit: &Edit) -> Result<Found, Refused> {
    if let Edit::Whole { text: wanted } = edit {
        return Ok(match text {
            "" => Found::Missing,
            text if text == wanted => Found::Same,
            text if is_our_file(text) => Found::Differs,
            _ => Found::Foreign,
        });
    }
    Ok(found_in(&Document::parse(format, text)?.value(), edit))
}

/// The switch in the text that turns all hooks off, if one does.
pub(super) fn find_switch(text: &str, format: Format) -> Option<String> {
    let document = Document::parse(format, text).ok()?.value();
    let switches: &[(&[&str], bool)] = &[
        (&["disableAllHooks"], true),
        (&["hooksConfig", "enabled"], false),
        (&["features", "hooks"], false),
    ];
    let on = |(path, off): &&(&[&str], bool)| at(&document, path) == Some(&json!(off));
    switches.iter().find(on).map(|(path, _)| path.join("."))
}

/// Why an edit was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// The document.
    #[error(transparent)]
    Document(#[from] Refused),
    /// There is a server with our name that is not ours.
    #[error(
        "has a server named `svc` that is not this program's; rename or remove it, then try again"
    )]
    NameTaken,
    /// The file is not ours.
    #[error("was not written by svc; move it away, then try again")]
    NotOurs,
}

/// What stands first in a file that is ours altogether.
pub(super) const OUR_FILE: &str = "// Written by `svc install`";

fn is_our_file(text: &str) -> bool {
    text.starts_with(OUR_FILE)
}

fn found_in(document: &Value, edit: &Edit) -> Found {
    match edit {
        Edit::Server { table, entry } => {
            let path: Vec<&str> = table.iter().copied().chain([SERVER]).collect();
            match at(document, &path) {
                None => Found::Missing,
                Some(there) if merged(Some(there), entry) == *there => Found::Same,
                Some(there) if is_our_server(there) => Found::Differs,
                Some(_) => Found::Foreign,
            }
        }
        Edit::Hooks { groups } => {
            let events = events_of_ours(document);
            if events.is_empty() {
                Found::Missing
            } else if groups.iter().any(|(event, _)| differs(document, event, groups))
                || events.iter().any(|event| differs(document, event, groups))
            {
                Found::Differs
            } else {
                Found::Same
            }
        }
        Edit::Trust { hashes } => {
            let known = |(key, hash): &(String, String)| {
                trusted(document, key).and_then(|it| it.get(HASH)) == Some(&json!(hash))
            };
            if hashes.iter().all(known) { Found::Same } else { Found::Missing }
        }
        Edit::Whole { .. } => Found::Missing,
    }
}

/// What Codex knows of a hook.
fn trusted<'a>(document: &'a Value, key: &str) -> Option<&'a Value> {
    at(document, STATE)?.get(key)
}

/// The entry that we want, with what a person has added to the one that is there.
fn merged(there: Option<&Value>, entry: &Value) -> Value {
    let mut merged = Map::new();
    if let Some(there) = there.and_then(Value::as_object) {
        let theirs = there.iter().filter(|(key, _)| !TRANSPORT.contains(&key.as_str()));
        merged.extend(theirs.map(|(key, value)| (key.clone(), value.clone())));
    }
    for (key, value) in entry.as_object().into_iter().flatten() {
        // A server that was switched off stays so.
        if !(key == "enabled" && merged.contains_key(key)) {
            merged.insert(key.clone(), value.clone());
        }
    }
    Value::Object(merged)
}

/// Whether a server's entry is one that we, or a person who followed our documentation, wrote.
pub(super) fn is_our_server(entry: &Value) -> bool {
    let (program, arguments) = command_of(entry);
    if let Some(program) = program {
        return is_our_program(program) && arguments.contains(&"stdio");
    }
    url_of(entry).is_some_and(|url| {
        let local = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"];
        local.iter().any(|start| url.starts_with(start)) && url.ends_with("/mcp")
    })
}

/// The program of a server that is started as a process, and its arguments.
pub(super) fn command_of(entry: &Value) -> (Option<&str>, Vec<&str>) {
    fn strings(value: &Value) -> Vec<&str> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
    match entry.get("command") {
        Some(Value::String(program)) => {
            (Some(program), entry.get("args").map(strings).unwrap_or_default())
        }
        Some(line @ Value::Array(_)) => {
            let mut words = strings(line).into_iter();
            (words.next(), words.collect())
        }
        _ => (None, Vec::new()),
    }
}

/// The URL of a server that is reached by HTTP.
pub(super) fn url_of(entry: &Value) -> Option<&str> {
    ["url", "httpUrl", "serverUrl"].iter().find_map(|key| entry.get(key)?.as_str())
}

fn is_our_program(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "svc")
}

/// Whether a handler runs `svc … hook …`, as arguments or as a line for the shell.
pub(super) fn is_our_handler(handler: &Value) -> bool {
    let (program, arguments) = command_of(handler);
    let Some(line) = program else { return false };
    if !arguments.is_empty() {
        return is_our_program(line) && arguments.contains(&"hook");
    }
    // As [`super::program`] writes them. A folder may be named as a hook is.
    line.match_indices(" hook ").any(|(at, between)| {
        let (before, after) = (&line[..at], &line[at + between.len()..]);
        let program = before.trim_end_matches('\'').rsplit(['/', ' ', '\'']).next();
        let client = after.split(' ').next().unwrap_or_default();
        program == Some("svc") && HOOK_WORDS.contains(&client)
    })
}

/// The events for which there is a handler of ours.
fn events_of_ours(document: &Value) -> Vec<&str> {
    let events = document.get(HOOKS).and_then(Value::as_object);
    let ours = |groups: &Value| handlers(groups).any(|(_, _, _, handler)| is_our_handler(handler));
    events
        .into_iter()
        .flatten()
        .filter(|(_, groups)| ours(groups))
        .map(|(name, _)| name.as_str())
        .collect()
}

/// All handlers of an event: place of the group, place in it, the group, the handler.
fn handlers(groups: &Value) -> impl Iterator<Item = (usize, usize, &Value, &Value)> {
    groups.as_array().into_iter().flatten().enumerate().flat_map(|(place, group)| {
        let inner = group.get(HOOKS).and_then(Value::as_array).into_iter().flatten();
        inner.enumerate().map(move |(within, handler)| (place, within, group, handler))
    })
}

/// Whether the handlers of ours for an event are others than those wanted.
fn differs(document: &Value, event: &str, wanted: &[(&'static str, Value)]) -> bool {
    let groups = document.get(HOOKS).and_then(|hooks| hooks.get(event)).unwrap_or(&Value::Null);
    let mut there: Vec<(Value, &Value)> = handlers(groups)
        .filter(|(_, _, _, handler)| is_our_handler(handler))
        .map(|(_, _, group, handler)| (matcher(group), handler))
        .collect();
    let mut want: Vec<(Value, &Value)> = wanted
        .iter()
        .filter(|(name, _)| *name == event)
        .flat_map(|(_, group)| {
            let inner = group.get(HOOKS).and_then(Value::as_array).into_iter().flatten();
            inner.map(move |handler| (matcher(group), handler))
        })
        .collect();
    let order = |it: &(Value, &Value)| (it.0.to_string(), it.1.to_string());
    there.sort_by_key(order);
    want.sort_by_key(order);
    there != want
}

/// No matcher, an empty one and `*` mean the same.
fn matcher(group: &Value) -> Value {
    match group.get("matcher") {
        None | Some(Value::Null) => json!("*"),
        Some(Value::String(text)) if text.is_empty() => json!("*"),
        Some(other) => other.clone(),
    }
}

/// Takes our handlers of the events that `which` names out of their groups, and the groups that this empties.
/// Whether there were any.
fn remove_handlers(document: &mut Document, before: &Value, which: impl Fn(&str) -> bool) -> bool {
    let mut any = false;
    for event in events_of_ours(before) {
        if !which(event) {
            continue;
        }
        let groups = before.get(HOOKS).and_then(|hooks| hooks.get(event));
        let groups = groups.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        // From the back, so that places stay what they are.
        for (place, group) in groups.iter().enumerate().rev() {
            let inner = group.get(HOOKS).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let ours: Vec<usize> =
                (0..inner.len()).rev().filter(|at| is_our_handler(&inner[*at])).collect();
            if ours.is_empty() {
                continue;
            }
            any = true;
            let way = [Step::Key(HOOKS), Step::Key(event), Step::Place(place)];
            if ours.len() == inner.len() {
                document.remove(&way);
                continue;
            }
            for within in ours {
                let inner = [Step::Key(HOOKS), Step::Place(within)];
                document.remove(&[&way[..], &inner[..]].concat());
            }
        }
    }
    any
}

/// The value at a path of keys.
pub(super) fn at<'a>(document: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, key| value.get(key))
}

fn keys<'a>(path: &[&'a str]) -> Vec<Step<'a>> {
    path.iter().copied().map(Step::Key).collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Adds those tables on the way to `path` that were not there.
fn note_made(before: &Value, path: &[&str], made: &mut Vec<Vec<String>>) {
    for depth in 1..=path.len() {
        let way = &path[..depth];
        let named: Vec<String> = way.iter().map(|key| (*key).to_owned()).collect();
        if at(before, way).is_none() && !made.contains(&named) {
            made.push(named);
        }
    }
}
