//! The entries of svc in a client's file: made, found again, and undone.
//!
//! These are the server named `svc` that runs `svc stdio` (or has the URL of a daemon on this machine), and the handlers
//! whose command is `svc … hook …`, wherever they stand and in whatever form an earlier version wrote them. All else is the
//! person's and stays.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::document::{ConfigDocument, DocumentError, FileFormat, PathStep};

/// The name of svc among a client's servers.
pub const SERVER: &str = "svc";

/// Keys that say how a server is reached: replaced with the entry. Others (`env`, `timeout`, `trust`, approvals) are the
/// person's and stay.
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

/// One entry, or one group of entries, that svc wants in a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// The entry of svc in the table of servers at `table`.
    Server {
        /// The table's key path.
        table: &'static [&'static str],
        /// The entry.
        entry: Value,
    },
    /// The handlers of svc: for each event one group, `{matcher?, hooks: [handler, …]}`.
    Hooks {
        /// Event and group, in the order in which they are written.
        groups: Vec<(&'static str, Value)>,
    },
    /// The hashes of hooks that the person trusts, as Codex keeps them.
    Trust {
        /// The hook's key and its hash.
        hashes: Vec<(String, String)>,
    },
    /// The tools that the client may call without asking its person.
    Allow {
        /// Key path of the list or table that has them.
        table: &'static [&'static str],
        /// The tools, as the client names them.
        tools: Vec<String>,
        /// How one of them stands there.
        form: GrantForm,
    },
    /// Servers that svc has taken over, and that are taken out of the client's own file.
    Take {
        /// Key path of the table of servers.
        table: Vec<String>,
        /// Their names there.
        names: Vec<String>,
    },
    /// A file that svc writes whole.
    Whole {
        /// Its text.
        text: String,
    },
}

/// How a file says that a tool is allowed.
#[derive(Debug, Clone, PartialEq)]
pub enum GrantForm {
    /// Its name in a list.
    ListItem,
    /// Its name as a key of a table, with this value.
    Key(Value),
}

/// What undoing an edit needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UndoInfo {
    /// Key paths of the tables and lists that the edit made.
    pub made: Vec<Vec<String>>,
    /// The server entry that it replaced.
    pub replaced: Option<Value>,
    /// Keys of the hooks that it marked as trusted.
    pub trusted: Vec<String>,
    /// Tools that it allowed.
    pub allowed: Vec<String>,
    /// Servers that it took out, by name, with their entries.
    pub taken: BTreeMap<String, Value>,
}

/// How much of an edit is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditState {
    /// Nothing.
    Missing,
    /// All of it, as svc would write it now.
    Same,
    /// An entry of svc that differs.
    Differs,
    /// An entry with the name of svc that is another program's.
    Foreign,
}

/// The words that follow `svc hook` in a handler.
const HOOK_WORDS: &[&str] = &["claude-code", "claude", "codex", "gemini", "opencode", "wait"];

/// The key of the handlers, in all clients that have hooks.
const HOOKS: &str = "hooks";
/// The key path of what Codex records of each hook.
const STATE: &[&str] = &[HOOKS, "state"];
/// The key of the trusted hash in it.
const HASH: &str = "trusted_hash";

/// The text with the edit made: the same text if it was made already.
///
/// Fails if the text does not parse, has something else where a table must be, or another server named `svc`.
pub fn apply(text: &str, format: FileFormat, edit: &Edit) -> Result<(String, UndoInfo), EditError> {
    let mut undo = UndoInfo::default();
    if let Edit::Whole { text: wanted } = edit {
        if !text.is_empty() && text != wanted && !is_our_file(text) {
            return Err(EditError::NotOurs);
        }
        return Ok((wanted.clone(), undo));
    }
    let mut document = ConfigDocument::parse(format, text)?;
    let before = document.value();
    match found_in(&before, edit) {
        EditState::Same => return Ok((text.to_owned(), undo)),
        EditState::Foreign => return Err(EditError::NameTaken),
        EditState::Missing | EditState::Differs => {}
    }
    match edit {
        Edit::Server { table, entry } => {
            let path: Vec<&str> = table.iter().copied().chain([SERVER]).collect();
            undo.replaced = at(&before, &path).cloned();
            let merged = merged(undo.replaced.as_ref(), entry);
            document.set(&path, &merged)?;
            note_made(&before, table, &mut undo.made);
        }
        Edit::Hooks { groups } => {
            remove_handlers(&mut document, &before, |event| differs(&before, event, groups));
            let now = document.value();
            for event in events_of_ours(&before) {
                let is_wanted = groups.iter().any(|(name, _)| *name == event);
                // A client may refuse a file because of an event that it does not know, even with nothing in it.
                if !is_wanted && at(&now, &[HOOKS, event]).is_some_and(is_empty) {
                    document.remove(&keys(&[HOOKS, event]));
                }
            }
            for (event, group) in groups {
                if differs(&before, event, groups) {
                    note_made(&before, &[HOOKS, event], &mut undo.made);
                    document.push(&[HOOKS, event], group)?;
                }
            }
        }
        Edit::Trust { hashes } => {
            note_made(&before, STATE, &mut undo.made);
            for (key, hash) in hashes {
                let known = trusted(&before, key).cloned();
                if known.as_ref().and_then(|it| it.get(HASH)).and_then(Value::as_str) == Some(hash)
                {
                    continue;
                }
                let mut state = known.unwrap_or_else(|| json!({}));
                state[HASH] = json!(hash);
                document.set(&[STATE, &[key]].concat(), &state)?;
                undo.trusted.push(key.clone());
            }
        }
        Edit::Allow { table, tools, form } => {
            note_made(&before, table, &mut undo.made);
            for tool in tools.iter().filter(|tool| !is_granted(&before, table, tool, form)) {
                match form {
                    GrantForm::ListItem => document.push(table, &json!(tool))?,
                    GrantForm::Key(value) => document.set(&[*table, &[tool]].concat(), value)?,
                }
                undo.allowed.push(tool.clone());
            }
        }
        Edit::Take { table, names } => {
            let table: Vec<&str> = table.iter().map(String::as_str).collect();
            for name in names {
                let path = [&table[..], &[name.as_str()]].concat();
                let Some(entry) = at(&before, &path) else { continue };
                undo.taken.insert(name.clone(), entry.clone());
                document.remove(&keys(&path));
            }
        }
        Edit::Whole { .. } => {}
    }
    Ok((document.text(), undo))
}

/// The text without the edit, and with what it replaced. `None` for a file that svc wrote whole.
///
/// Fails if the text does not parse.
pub fn undo(
    text: &str,
    format: FileFormat,
    edit: &Edit,
    undo: &UndoInfo,
) -> Result<Option<String>, EditError> {
    if matches!(edit, Edit::Whole { .. }) {
        return if is_our_file(text) { Ok(None) } else { Err(EditError::NotOurs) };
    }
    let mut document = ConfigDocument::parse(format, text)?;
    let before = document.value();
    match edit {
        Edit::Server { table, .. } => {
            let path: Vec<&str> = table.iter().copied().chain([SERVER]).collect();
            match at(&before, &path) {
                Some(entry) if is_our_server(entry) => match &undo.replaced {
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
                undo.trusted.iter().filter(|key| trusted(&before, key).is_some()).collect();
            if ours.is_empty() {
                return Ok(Some(text.to_owned()));
            }
            for key in ours {
                document.remove(&keys(&[STATE, &[key.as_str()]].concat()));
            }
        }
        Edit::Allow { table, form, .. } => {
            let granted = |tool: &&String| is_granted(&before, table, tool, form);
            let ours: Vec<&String> = undo.allowed.iter().filter(granted).collect();
            if ours.is_empty() {
                return Ok(Some(text.to_owned()));
            }
            for tool in ours {
                let step = match form {
                    GrantForm::Key(_) => Some(PathStep::Key(tool)),
                    GrantForm::ListItem => {
                        index_of(&document.value(), table, tool).map(PathStep::Index)
                    }
                };
                let Some(step) = step else { continue };
                document.remove(&[&keys(table)[..], &[step]].concat());
            }
        }
        Edit::Take { table, .. } => {
            let table: Vec<&str> = table.iter().map(String::as_str).collect();
            // An entry that the person has added again since then belongs to the person.
            let is_missing = |name: &str| at(&before, &[&table[..], &[name]].concat()).is_none();
            let missing: Vec<_> = undo.taken.iter().filter(|(name, _)| is_missing(name)).collect();
            if missing.is_empty() {
                return Ok(Some(text.to_owned()));
            }
            for (name, entry) in missing {
                document.set(&[&table[..], &[name.as_str()]].concat(), entry)?;
            }
        }
        Edit::Whole { .. } => {}
    }
    // The innermost first, so that what they leave empty is seen.
    let mut made: Vec<&Vec<String>> = undo.made.iter().collect();
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

/// How much of the edit is in the text. Fails if the text does not parse.
pub fn find(text: &str, format: FileFormat, edit: &Edit) -> Result<EditState, DocumentError> {
    if let Edit::Whole { text: wanted } = edit {
        return Ok(match text {
            "" => EditState::Missing,
            text if text == wanted => EditState::Same,
            text if is_our_file(text) => EditState::Differs,
            _ => EditState::Foreign,
        });
    }
    Ok(found_in(&ConfigDocument::parse(format, text)?.value(), edit))
}

/// The setting in the text that turns all hooks off, if there is one.
pub fn find_switch(text: &str, format: FileFormat) -> Option<String> {
    let document = ConfigDocument::parse(format, text).ok()?.value();
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
pub enum EditError {
    /// The document cannot be changed.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The server named `svc` is another program.
    #[error(
        "has a server named `svc` that is not this program's; rename or remove it, then try again"
    )]
    NameTaken,
    /// The file was not written by svc.
    #[error("was not written by svc; move it away, then try again")]
    NotOurs,
}

/// The first line of a file that svc writes whole.
pub const OUR_FILE: &str = "// Written by `svc install`";
/// The first line of a file of rules that svc writes whole.
pub(crate) const OUR_RULES: &str = "# Written by `svc install`";

fn is_our_file(text: &str) -> bool {
    text.starts_with(OUR_FILE) || text.starts_with(OUR_RULES)
}

fn found_in(document: &Value, edit: &Edit) -> EditState {
    match edit {
        Edit::Server { table, entry } => {
            let path: Vec<&str> = table.iter().copied().chain([SERVER]).collect();
            match at(document, &path) {
                None => EditState::Missing,
                Some(there) if merged(Some(there), entry) == *there => EditState::Same,
                Some(there) if is_our_server(there) => EditState::Differs,
                Some(_) => EditState::Foreign,
            }
        }
        Edit::Hooks { groups } => {
            let events = events_of_ours(document);
            if events.is_empty() {
                EditState::Missing
            } else if groups.iter().any(|(event, _)| differs(document, event, groups))
                || events.iter().any(|event| differs(document, event, groups))
            {
                EditState::Differs
            } else {
                EditState::Same
            }
        }
        Edit::Trust { hashes } => {
            let known = |(key, hash): &(String, String)| {
                trusted(document, key).and_then(|it| it.get(HASH)) == Some(&json!(hash))
            };
            if hashes.iter().all(known) { EditState::Same } else { EditState::Missing }
        }
        Edit::Allow { table, tools, form } => {
            if tools.iter().all(|tool| is_granted(document, table, tool, form)) {
                EditState::Same
            } else {
                EditState::Missing
            }
        }
        Edit::Take { table, names } => {
            let table: Vec<&str> = table.iter().map(String::as_str).collect();
            let is_there =
                |name: &String| at(document, &[&table[..], &[name.as_str()]].concat()).is_some();
            if names.iter().any(is_there) { EditState::Missing } else { EditState::Same }
        }
        Edit::Whole { .. } => EditState::Missing,
    }
}

/// Whether a tool stands among those that are allowed.
fn is_granted(document: &Value, table: &[&str], tool: &str, form: &GrantForm) -> bool {
    match form {
        GrantForm::ListItem => index_of(document, table, tool).is_some(),
        GrantForm::Key(value) => {
            at(document, table).and_then(|table| table.get(tool)) == Some(value)
        }
    }
}

fn index_of(document: &Value, list: &[&str], item: &str) -> Option<usize> {
    at(document, list)?.as_array()?.iter().position(|there| there == item)
}

/// What Codex has recorded of a hook.
fn trusted<'a>(document: &'a Value, key: &str) -> Option<&'a Value> {
    at(document, STATE)?.get(key)
}

/// The wanted entry, with what the person has added to the existing one.
fn merged(there: Option<&Value>, entry: &Value) -> Value {
    let mut merged = Map::new();
    if let Some(there) = there.and_then(Value::as_object) {
        let theirs = there.iter().filter(|(key, _)| !TRANSPORT.contains(&key.as_str()));
        merged.extend(theirs.map(|(key, value)| (key.clone(), value.clone())));
    }
    for (key, value) in entry.as_object().into_iter().flatten() {
        // A server that the person has switched off stays off.
        if !(key == "enabled" && merged.contains_key(key)) {
            merged.insert(key.clone(), value.clone());
        }
    }
    Value::Object(merged)
}

/// Whether a server's entry runs svc: written by `svc install`, or by a person as the documentation says.
pub fn is_our_server(entry: &Value) -> bool {
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
pub fn command_of(entry: &Value) -> (Option<&str>, Vec<&str>) {
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

/// The URL of a server that speaks HTTP.
pub fn url_of(entry: &Value) -> Option<&str> {
    ["url", "httpUrl", "serverUrl"].iter().find_map(|key| entry.get(key)?.as_str())
}

fn is_our_program(program: &str) -> bool {
    Path::new(program).file_name().and_then(|name| name.to_str()).is_some_and(is_our_name)
}

/// `svc`, or `svc-0.1`: earlier versions wrote the file that a link led to.
fn is_our_name(name: &str) -> bool {
    match name.strip_prefix("svc") {
        Some("") => true,
        Some(rest) => rest
            .strip_prefix(['-', '_'])
            .is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())),
        None => false,
    }
}

/// Whether a handler runs `svc … hook …`, as arguments or as a line for the shell.
pub fn is_our_handler(handler: &Value) -> bool {
    let (program, arguments) = command_of(handler);
    let Some(line) = program else { return false };
    if !arguments.is_empty() {
        let is_hook = |words: &[&str]| words[0] == "hook" && HOOK_WORDS.contains(&words[1]);
        return is_our_program(line) && arguments.windows(2).any(is_hook);
    }
    // As [`super::command`] writes them. A folder's name may contain ` hook `.
    line.match_indices(" hook ").any(|(at, between)| {
        let (before, after) = (&line[..at], &line[at + between.len()..]);
        let program = before.trim_end_matches('\'').rsplit(['/', ' ', '\'']).next();
        let client = after.split(' ').next().unwrap_or_default();
        program.is_some_and(is_our_name) && HOOK_WORDS.contains(&client)
    })
}

/// The handlers of svc in a document, with the event of each.
pub(crate) fn our_handlers(document: &Value) -> Vec<(&str, &Value)> {
    let events = document.get(HOOKS).and_then(Value::as_object).into_iter().flatten();
    let of_event = |(event, groups)| {
        let ours =
            handlers(groups).map(|(_, _, _, handler)| handler).filter(|it| is_our_handler(it));
        ours.map(move |handler| (event, handler)).collect::<Vec<_>>()
    };
    events
        .map(|(event, groups): (&String, &Value)| (event.as_str(), groups))
        .flat_map(of_event)
        .collect()
}

/// The events that have a handler of svc.
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

/// All handlers of an event: index of the group, index in it, the group, the handler.
fn handlers(groups: &Value) -> impl Iterator<Item = (usize, usize, &Value, &Value)> {
    groups.as_array().into_iter().flatten().enumerate().flat_map(|(index, group)| {
        let inner = group.get(HOOKS).and_then(Value::as_array).into_iter().flatten();
        inner.enumerate().map(move |(within, handler)| (index, within, group, handler))
    })
}

/// Whether an event's handlers of svc differ from those wanted.
fn differs(document: &Value, event: &str, wanted: &[(&'static str, Value)]) -> bool {
    let groups = document.get(HOOKS).and_then(|hooks| hooks.get(event)).unwrap_or(&Value::Null);
    let mut existing: Vec<(Value, &Value)> = handlers(groups)
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
    let order = |handler: &(Value, &Value)| (handler.0.to_string(), handler.1.to_string());
    existing.sort_by_key(order);
    want.sort_by_key(order);
    existing != want
}

/// No matcher, an empty one and `*` mean the same.
pub(crate) fn matcher(group: &Value) -> Value {
    match group.get("matcher") {
        None | Some(Value::Null) => json!("*"),
        Some(Value::String(text)) if text.is_empty() => json!("*"),
        Some(other) => other.clone(),
    }
}

/// Removes the handlers of svc for the events that `which` accepts, and the groups that this empties. Tells whether there
/// were any.
fn remove_handlers(
    document: &mut ConfigDocument,
    before: &Value,
    which: impl Fn(&str) -> bool,
) -> bool {
    let mut any = false;
    for event in events_of_ours(before) {
        if !which(event) {
            continue;
        }
        let groups = before.get(HOOKS).and_then(|hooks| hooks.get(event));
        let groups = groups.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        // From the back, so that indexes stay valid.
        for (index, group) in groups.iter().enumerate().rev() {
            let inner = group.get(HOOKS).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let ours: Vec<usize> =
                (0..inner.len()).rev().filter(|at| is_our_handler(&inner[*at])).collect();
            if ours.is_empty() {
                continue;
            }
            any = true;
            let way = [PathStep::Key(HOOKS), PathStep::Key(event), PathStep::Index(index)];
            if ours.len() == inner.len() {
                document.remove(&way);
                continue;
            }
            for within in ours {
                let inner = [PathStep::Key(HOOKS), PathStep::Index(within)];
                document.remove(&[&way[..], &inner[..]].concat());
            }
        }
    }
    any
}

/// The value at a path of keys.
pub fn at<'a>(document: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, key| value.get(key))
}

fn keys<'a>(path: &[&'a str]) -> Vec<PathStep<'a>> {
    path.iter().copied().map(PathStep::Key).collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Adds to `made` the tables above `path`, and `path` itself, that did not exist.
fn note_made(before: &Value, path: &[&str], made: &mut Vec<Vec<String>>) {
    for depth in 1..=path.len() {
        let way = &path[..depth];
        let named: Vec<String> = way.iter().map(|key| (*key).to_owned()).collect();
        if at(before, way).is_none() && !made.contains(&named) {
            made.push(named);
        }
    }
}
