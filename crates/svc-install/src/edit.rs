//! The entries of svc in a client's file: created, found again, and undone.
//!
//! [`entries`](super::entries) says which entries are svc's. All others belong to the person and
//! stay.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::document::{ConfigDocument, DocumentError, FileFormat, PathStep};
use super::entries::{
    HOOKS, SERVER, at, events_of_ours, handlers, is_our_file, is_our_handler, is_our_server,
    matcher,
};

/// Keys of the transport, which are replaced with the entry. Other keys (`env`, `timeout`, `trust`,
/// approvals) belong to the person and stay.
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

#[derive(Debug, Clone)]
pub struct FileChange {
    pub path: PathBuf,
    pub edits: Vec<Edit>,
}

impl FileChange {
    /// Merges changes so that each file has one change with all edits.
    pub fn joined(changes: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for change in changes {
            match joined.iter_mut().find(|other| other.path == change.path) {
                Some(other) => other.edits.extend(change.edits),
                None => joined.push(change),
            }
        }
        joined
    }
}

/// One entry, or one group of entries, that svc wants in a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// The entry of svc in the table of servers `table`.
    Server { table: &'static str, entry: Value },
    /// The handlers of svc: one group per event, `{matcher?, hooks: [handler, …]}`.
    Hooks {
        /// Event and group, in the order in which they are written.
        groups: Vec<(&'static str, Value)>,
    },
    /// Hashes of the hooks that the person trusts, in the form of Codex.
    Trust {
        /// Key and hash of each hook.
        hashes: Vec<(String, String)>,
    },
    /// Tools that the client may call without asking the person.
    Allow {
        /// Key path of the list or table that holds the tools.
        table: &'static [&'static str],
        /// Tools by the client's names.
        tools: Vec<String>,
        form: GrantForm,
    },
    /// Servers that svc has taken over, to be removed from the client's own file.
    Take {
        /// The table of servers.
        table: &'static str,
        names: Vec<String>,
    },
    /// A file whose whole text svc writes.
    Whole { text: String },
}

#[derive(Debug, Clone, PartialEq)]
pub enum GrantForm {
    ListItem,
    /// The tool's name as a key of a table, with this value.
    Key(Value),
}

/// The information that is needed to undo the edits of a file; part of the file's entry in the
/// record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UndoInfo {
    /// Key paths of the tables and lists that svc created.
    pub made: Vec<Vec<String>>,
    /// The server entry that svc replaced.
    pub replaced: Option<Value>,
    /// Codex's keys of the hooks that svc recorded as trusted.
    pub trusted: Vec<String>,
    /// Tools that svc allowed, by the client's names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// Entries of the servers that svc took over, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub taken: BTreeMap<String, Value>,
}

impl UndoInfo {
    /// Adds the undo information of a further edit. In a second installation, a replaced entry is
    /// svc's own.
    pub(crate) fn add(&mut self, new: Self, is_second: bool) {
        fn add_new<T: PartialEq>(all: &mut Vec<T>, new: Vec<T>) {
            for item in new {
                if !all.contains(&item) {
                    all.push(item);
                }
            }
        }
        add_new(&mut self.made, new.made);
        add_new(&mut self.trusted, new.trusted);
        add_new(&mut self.allowed, new.allowed);
        self.taken.extend(new.taken);
        if !is_second && self.replaced.is_none() {
            self.replaced = new.replaced;
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditState {
    Missing,
    /// The whole edit is there, as svc would write it now.
    Same,
    /// An entry of svc exists but differs.
    Differs,
    /// An entry named svc exists, but belongs to another program.
    Foreign,
}

/// Where Codex stores the trust in hooks.
pub(crate) const STATE: &[&str] = &[HOOKS, "state"];
pub(crate) const HASH: &str = "trusted_hash";

/// The text with the edit; unchanged if it has the edit already. Fails if the text does not parse,
/// has a value of another type where a table is needed, or has another server named `svc`.
pub fn apply(text: &str, format: FileFormat, edit: &Edit) -> Result<(String, UndoInfo), EditError> {
    let mut undo = UndoInfo::default();
    if let Edit::Whole { text: wanted } = edit {
        if !text.is_empty() && text != wanted && !is_our_file(text) {
            return Err(EditError::NoSvcSchema);
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
            let path = [*table, SERVER];
            undo.replaced = at(&before, &path).cloned();
            let merged = merged(undo.replaced.as_ref(), entry);
            document.set(&path, &merged)?;
            note_made(&before, &[*table], &mut undo.made);
        }
        Edit::Hooks { groups } => {
            remove_handlers(&mut document, &before, |event| differs(&before, event, groups));
            let now = document.value();
            for event in events_of_ours(&before) {
                let is_wanted = groups.iter().any(|(name, _)| *name == event);
                // A client may refuse a file with an unknown event, even if the event is empty.
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
            for name in names {
                let path = [*table, name];
                let Some(entry) = at(&before, &path) else { continue };
                undo.taken.insert(name.clone(), entry.clone());
                document.remove(&keys(&path));
            }
        }
        Edit::Whole { .. } => {}
    }
    if matches!(edit, Edit::Server { .. } | Edit::Hooks { .. }) {
        let after = ConfigDocument::parse(format, &document.text())?;
        if found_in(&after.value(), edit) != EditState::Same {
            return Err(EditError::RepeatedName);
        }
    }
    Ok((document.text(), undo))
}

/// What undoing these edits takes in a file that the record does not have. Tables and lists that
/// hold svc's entries count as made by svc, and are removed with them unless they hold others.
pub(crate) fn guess(document: &Value, edits: &[Edit]) -> UndoInfo {
    let mut undo = UndoInfo::default();
    // As if the file had been empty.
    let mut add = |path: &[&str]| note_made(&Value::Null, path, &mut undo.made);
    for edit in edits {
        match edit {
            Edit::Server { table, .. } => add(&[*table]),
            Edit::Hooks { .. } => {
                for event in events_of_ours(document) {
                    add(&[HOOKS, event]);
                }
            }
            Edit::Allow { table, tools, form } => {
                add(table);
                let there = tools.iter().filter(|tool| is_granted(document, table, tool, form));
                undo.allowed.extend(there.cloned());
            }
            Edit::Trust { .. } | Edit::Take { .. } | Edit::Whole { .. } => {}
        }
    }
    undo
}

/// Removes those of the tables and lists at `paths` that are empty.
fn remove_empty(document: &mut ConfigDocument, paths: &[Vec<String>]) {
    // The innermost first, as their parents may then be empty.
    let mut paths: Vec<&Vec<String>> = paths.iter().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in paths {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if at(&document.value(), &path).is_some_and(is_empty) {
            document.remove(&keys(&path));
        }
    }
}

/// The text without the edit, and with what the edit replaced; `None` for a file that svc wrote
/// whole.
pub fn undo(
    text: &str,
    format: FileFormat,
    edit: &Edit,
    undo: &UndoInfo,
) -> Result<Option<String>, EditError> {
    if matches!(edit, Edit::Whole { .. }) {
        return if is_our_file(text) { Ok(None) } else { Err(EditError::NoSvcSchema) };
    }
    let mut document = ConfigDocument::parse(format, text)?;
    let before = document.value();
    let is_there = match edit {
        Edit::Server { table, .. } => {
            let path = [*table, SERVER];
            let is_there = at(&before, &path).is_some_and(is_our_server);
            match &undo.replaced {
                _ if !is_there => {}
                Some(former) => document.set(&path, former)?,
                None => document.remove(&keys(&path)),
            }
            is_there
        }
        Edit::Hooks { .. } => remove_handlers(&mut document, &before, |_| true),
        Edit::Trust { .. } => {
            let mut ours = undo.trusted.clone();
            ours.retain(|key| trusted(&before, key).is_some());
            for key in &ours {
                document.remove(&keys(&[STATE, &[key.as_str()]].concat()));
            }
            !ours.is_empty()
        }
        Edit::Allow { table, form, .. } => {
            let mut ours = undo.allowed.clone();
            ours.retain(|tool| is_granted(&before, table, tool, form));
            for tool in &ours {
                let step = match form {
                    GrantForm::Key(_) => Some(PathStep::Key(tool)),
                    GrantForm::ListItem => {
                        index_of(&document.value(), table, tool).map(PathStep::Index)
                    }
                };
                let Some(step) = step else { continue };
                document.remove(&[&keys(table)[..], &[step]].concat());
            }
            !ours.is_empty()
        }
        Edit::Take { table, .. } => {
            let mut missing = undo.taken.clone();
            // A server that the person has added again belongs to the person.
            missing.retain(|name, _| at(&before, &[*table, name]).is_none());
            for (name, entry) in &missing {
                document.set(&[*table, name], entry)?;
            }
            !missing.is_empty()
        }
        Edit::Whole { .. } => false,
    };
    if !is_there {
        return Ok(Some(text.to_owned()));
    }
    remove_empty(&mut document, &undo.made);
    Ok(Some(document.text()))
}

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

/// The setting in a document that disables all hooks, if there is one.
pub(crate) fn find_switch(document: &Value) -> Option<String> {
    let switches: &[(&[&str], bool)] = &[
        (&["disableAllHooks"], true),
        (&["hooksConfig", "enabled"], false),
        (&["features", "hooks"], false),
    ];
    let on = |(path, off): &&(&[&str], bool)| at(document, path) == Some(&json!(off));
    switches.iter().find(on).map(|(path, _)| path.join("."))
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(
        "has a server named `svc` that is not this program's; rename or remove it, then try again"
    )]
    NameTaken,
    #[error("was not written by svc; move it away, then try again")]
    NoSvcSchema,
    /// Of two members with one name the client reads one, and the change is in the other.
    #[error("has a name twice in one object; remove one of them, then try again")]
    RepeatedName,
}

fn found_in(document: &Value, edit: &Edit) -> EditState {
    let is_there = match edit {
        Edit::Server { table, entry } => {
            return match at(document, &[*table, SERVER]) {
                None => EditState::Missing,
                Some(there) if merged(Some(there), entry) == *there => EditState::Same,
                Some(there) if is_our_server(there) => EditState::Differs,
                Some(_) => EditState::Foreign,
            };
        }
        Edit::Hooks { groups } => {
            let events = events_of_ours(document);
            let mut all = groups.iter().map(|(event, _)| *event).chain(events.iter().copied());
            if !events.is_empty() && all.any(|event| differs(document, event, groups)) {
                return EditState::Differs;
            }
            !events.is_empty()
        }
        Edit::Trust { hashes } => hashes.iter().all(|(key, hash)| {
            trusted(document, key).and_then(|it| it.get(HASH)) == Some(&json!(hash))
        }),
        Edit::Allow { table, tools, form } => {
            tools.iter().all(|tool| is_granted(document, table, tool, form))
        }
        Edit::Take { table, names } => {
            names.iter().all(|name| at(document, &[*table, name]).is_none())
        }
        Edit::Whole { .. } => false,
    };
    if is_there { EditState::Same } else { EditState::Missing }
}

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

fn trusted<'a>(document: &'a Value, key: &str) -> Option<&'a Value> {
    at(document, STATE)?.get(key)
}

/// The wanted entry, with the person's additions to the existing one.
fn merged(there: Option<&Value>, entry: &Value) -> Value {
    let mut merged = Map::new();
    if let Some(there) = there.and_then(Value::as_object) {
        let theirs = there.iter().filter(|(key, _)| !TRANSPORT.contains(&key.as_str()));
        merged.extend(theirs.map(|(key, value)| (key.clone(), value.clone())));
    }
    for (key, value) in entry.as_object().into_iter().flatten() {
        // A server that the person has disabled stays disabled.
        if !(key == "enabled" && merged.contains_key(key)) {
            merged.insert(key.clone(), value.clone());
        }
    }
    Value::Object(merged)
}

fn differs(document: &Value, event: &str, wanted: &[(&'static str, Value)]) -> bool {
    let groups = at(document, &[HOOKS, event]).unwrap_or(&Value::Null);
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

/// Removes svc's handlers for the events that `which` accepts, and groups that become empty.
/// Returns whether any were removed.
fn remove_handlers(
    document: &mut ConfigDocument,
    before: &Value,
    which: impl Fn(&str) -> bool,
) -> bool {
    let mut any = false;
    for event in events_of_ours(before).into_iter().filter(|event| which(event)) {
        let Some(groups) = at(before, &[HOOKS, event]) else { continue };
        let is_ours = |it: &(usize, usize, &Value, &Value)| is_our_handler(it.3);
        let ours: Vec<_> = handlers(groups).filter(is_ours).collect();
        // Backwards, so that indexes stay valid.
        for (index, within, group, _) in ours.into_iter().rev() {
            any = true;
            let way = [PathStep::Key(HOOKS), PathStep::Key(event), PathStep::Index(index)];
            let mut all = group.get(HOOKS).and_then(Value::as_array).into_iter().flatten();
            if !all.all(is_our_handler) {
                let inner = [PathStep::Key(HOOKS), PathStep::Index(within)];
                document.remove(&[&way[..], &inner[..]].concat());
            } else if within == 0 {
                document.remove(&way);
            }
        }
    }
    any
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

/// Adds to `made` the prefixes of `path` that did not exist.
fn note_made(before: &Value, path: &[&str], made: &mut Vec<Vec<String>>) {
    for depth in 1..=path.len() {
        let way = &path[..depth];
        let named: Vec<String> = way.iter().map(|key| (*key).to_owned()).collect();
        if at(before, way).is_none() && !made.contains(&named) {
            made.push(named);
        }
    }
}
