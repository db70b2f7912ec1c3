//! What a server offers, and what callers see of it. The lists are fetched page by page: tools,
//! resources, templates and prompts. Each definition is kept byte for byte. Callers see the
//! definitions that a person has approved, and the tools that are made from them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use sha2::{Digest as _, Sha256};
use svc_core::tools::{ForeignDeclaration, ForeignEntry};
use svc_model::{
    quote,
    source::{RemoteKind, SourceTransport, child_tool_name, cut_description, matches_glob},
};
use svc_wire::{
    mcp::{PARAM_ANNOTATION, Revision},
    mcp_request::header_problem,
};

use super::{
    connection::SourceConnection,
    message::{RawMembers, RequestLoss, ToolTraits, own_capabilities, own_info},
    spec::SourceSpec,
};

const MAX_ITEMS: usize = 1000;
/// Pages of one list. Each has at least one item, unless the server is at fault.
const MAX_PAGES: usize = MAX_ITEMS;
/// Bytes of one list after which no further page is fetched.
const MAX_LIST: usize = 16 * 1024 * 1024;
/// Deadline for `server/discover`, after which the server is taken for an older one.
const DISCOVERY: Duration = Duration::from_secs(5);

/// Characters of an unknown revision in an error.
const SHOWN_REVISION: usize = 64;

/// The error that names the revisions a server supports.
const UNSUPPORTED_VERSION: i64 = -32022;

/// A server that a caller may use, and what it offers.
pub(super) type OpenServer = (Arc<SourceSpec>, Arc<OfferedLists>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OfferedLists {
    pub(super) tools: Vec<Definition>,
    pub(super) resources: Vec<Definition>,
    pub(super) templates: Vec<Definition>,
    pub(super) prompts: Vec<Definition>,
}

impl OfferedLists {
    /// Tools, resources, templates, prompts.
    pub(super) fn each(&self) -> [&[Definition]; 4] {
        [&self.tools, &self.resources, &self.templates, &self.prompts]
    }

    /// The inverse of [`Self::each`].
    pub(super) fn from_each(lists: [Vec<Definition>; 4]) -> Self {
        let [tools, resources, templates, prompts] = lists;
        Self { tools, resources, templates, prompts }
    }
}

/// Introduces this client, and returns the server's capabilities.
pub(super) async fn introduce(
    connection: &Arc<SourceConnection>,
) -> Result<Map<String, Value>, String> {
    let params = json!({
        "protocolVersion": Revision::V2025_11_25.as_str(),
        "capabilities": own_capabilities(),
        "clientInfo": own_info(),
    });
    let result = ask(connection, "initialize", &params).await?;
    let version = result.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    if !Revision::LEGACY.iter().any(|known| known.as_str() == version) {
        let version: String = version.chars().take(SHOWN_REVISION).collect();
        return Err(format!(
            "it speaks revision {version:?} of the protocol, which this client does not"
        ));
    }
    let closed = |_| "it ended while it was introduced".to_owned();
    connection.notify("notifications/initialized", &json!({})).await.map_err(closed)?;
    Ok(capabilities_of(&result))
}

enum Discovered {
    /// The server supports the revision without sessions; its capabilities.
    Modern(Map<String, Value>),
    /// The server supports another revision.
    Older,
    /// The server did not respond by the deadline.
    Silent,
}

/// Sends `server/discover`. The connection uses the revision without sessions afterwards only if
/// the server does.
async fn discover(
    connection: &Arc<SourceConnection>,
    deadline: Duration,
) -> Result<Discovered, String> {
    connection.set_modern(true);
    let (revision, params) = (Revision::V2026_07_28, json!({}));
    let is_ours = |versions: Option<&Value>| {
        let mut versions = versions.and_then(Value::as_array).into_iter().flatten();
        versions.any(|known| known.as_str() == Some(revision.as_str()))
    };
    let mut discovered = Discovered::Older;
    for _ in 0..2 {
        let request = connection.request("server/discover", &params);
        match tokio::time::timeout(deadline, request).await {
            Ok(Ok(Ok(result))) => {
                let result: Value = serde_json::from_str(result.get()).unwrap_or_default();
                if is_ours(result.get("supportedVersions")) {
                    return Ok(Discovered::Modern(capabilities_of(&result)));
                }
                break;
            }
            // The error names the supported revisions; a second request may name one of them.
            Ok(Ok(Err(error)))
                if error.code == UNSUPPORTED_VERSION
                    && is_ours(error.data.as_ref().and_then(|data| data.get("supported"))) => {}
            // Another request would fail, too.
            Ok(Err(loss)) if connection.end().is_some() || loss == RequestLoss::Closed => {
                return Err(connection.hide(loss.reason()).into_owned());
            }
            Ok(_) => break,
            Err(_) => {
                discovered = Discovered::Silent;
                break;
            }
        }
    }
    connection.set_modern(false);
    Ok(discovered)
}

/// Introduces this client to a server at a URL, which may be of either era; returns the server's
/// capabilities.
pub(super) async fn introduce_remote(
    connection: &Arc<SourceConnection>,
) -> Result<Map<String, Value>, String> {
    match discover(connection, DISCOVERY).await? {
        Discovered::Modern(capabilities) => return Ok(capabilities),
        Discovered::Older => return introduce(connection).await,
        Discovered::Silent => {}
    }
    // An older server that ignores unknown methods accepts `initialize`. A slow newer server
    // refuses it, and then gets the rest of the start's deadline to respond to `server/discover`.
    let refused = match introduce(connection).await {
        Ok(capabilities) => return Ok(capabilities),
        Err(refused) => refused,
    };
    match discover(connection, Duration::MAX).await? {
        Discovered::Modern(capabilities) => Ok(capabilities),
        Discovered::Older | Discovered::Silent => Err(refused),
    }
}

fn capabilities_of(result: &Value) -> Map<String, Value> {
    result.get("capabilities").and_then(Value::as_object).cloned().unwrap_or_default()
}

#[derive(Debug, Default)]
pub(super) struct FetchedLists {
    /// In the order of [`OfferedLists::each`]. A list that failed is `None`.
    lists: [Option<Vec<Definition>>; 4],
    /// Why a list failed; the reasons of several are joined.
    pub(super) problem: Option<String>,
    /// The lists that were cut, as warnings.
    pub(super) cut: Vec<String>,
}

impl FetchedLists {
    /// These lists, with the last known ones in place of those that failed.
    pub(super) fn or_last_known(self, known: &OfferedLists) -> OfferedLists {
        let mut known = known.each().into_iter();
        OfferedLists::from_each(self.lists.map(|list| {
            let known = known.next().unwrap_or_default();
            list.unwrap_or_else(|| known.to_vec())
        }))
    }
}

/// Fetches all lists in the server's capabilities concurrently, each within `bound`. A list that
/// fails leaves the others unaffected.
///
/// # Errors
/// Why the connection has ended.
pub(super) async fn fetch(
    connection: &Arc<SourceConnection>,
    capabilities: &Map<String, Value>,
    bound: Duration,
) -> Result<FetchedLists, String> {
    let list = async |capability: &str, method: &str, member: &str| {
        if !capabilities.contains_key(capability) {
            return Ok(FetchedList::default());
        }
        let asked = tokio::time::timeout(bound, pages(connection, method, member)).await;
        asked
            .unwrap_or_else(|_| Err(format!("{method}: no answer within {} ms", bound.as_millis())))
    };
    let (tools, resources, templates, prompts) = tokio::join!(
        list("tools", "tools/list", "tools"),
        list("resources", "resources/list", "resources"),
        list("resources", "resources/templates/list", "resourceTemplates"),
        list("prompts", "prompts/list", "prompts"),
    );
    let (mut problems, mut cut) = (Vec::new(), Vec::new());
    let mut given = |list: Result<FetchedList, String>, what: &str| {
        let list = list.map_err(|problem| problems.push(problem)).ok()?;
        if let Some(bound) = list.cut_at {
            cut.push(format!("it has more than {bound} {what}: the others are left out"));
        }
        Some(list.items)
    };
    let (tools, resources) = (given(tools, "tools"), given(resources, "resources"));
    let prompts = given(prompts, "prompts");
    // Many servers with resources have no templates and respond with an error.
    let templates = given(Ok(templates.unwrap_or_default()), "resource templates");
    if connection.end().is_some() || connection.closed.is_cancelled() {
        return Err(problems.into_iter().next().unwrap_or_else(|| "it ended".to_owned()));
    }
    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    Ok(FetchedLists { lists: [tools, resources, templates, prompts], problem, cut })
}

#[derive(Debug, Default)]
struct FetchedList {
    items: Vec<Definition>,
    /// The bound, if the server has more items than are kept.
    cut_at: Option<String>,
}

async fn pages(
    connection: &Arc<SourceConnection>,
    method: &str,
    member: &str,
) -> Result<FetchedList, String> {
    let (mut items, mut seen) = (Vec::new(), HashSet::new());
    let (mut params, mut bytes) = (json!({}), 0);
    loop {
        let page = ask_raw(connection, method, &params).await?;
        bytes += page.get().len();
        let RawMembers(members) = RawMembers::parse(page.get()).unwrap_or_default();
        let written = |name: &str| {
            let found = members.iter().rev().find(|(known, _)| known == name);
            found.map(|(_, value)| value.get())
        };
        let more = written(member).and_then(|list| serde_json::from_str(list).ok());
        let more: Vec<Definition> =
            more.ok_or_else(|| format!("{method}: the result has no list {member:?}"))?;
        items.extend(more);
        let next = written("nextCursor").and_then(|text| serde_json::from_str(text).ok());
        // A cursor that comes again ends the list.
        let next: Option<String> = next.flatten().filter(|cursor| !seen.contains(cursor));
        let goes_on = next.is_some();
        let cut_at = if items.len() > MAX_ITEMS || (goes_on && items.len() == MAX_ITEMS) {
            Some(MAX_ITEMS.to_string())
        } else if goes_on && bytes >= MAX_LIST {
            Some("16 MiB of".to_owned())
        } else if goes_on && seen.len() + 1 >= MAX_PAGES {
            Some(format!("{MAX_PAGES} pages of"))
        } else {
            None
        };
        match next {
            Some(cursor) if cut_at.is_none() => {
                params = json!({ "cursor": cursor });
                seen.insert(cursor);
            }
            _ => {
                items.truncate(MAX_ITEMS);
                return Ok(FetchedList { items, cut_at });
            }
        }
    }
}

async fn ask(
    connection: &Arc<SourceConnection>,
    method: &str,
    params: &Value,
) -> Result<Value, String> {
    let result = ask_raw(connection, method, params).await?;
    serde_json::from_str(result.get())
        .map_err(|error| format!("{method}: the result cannot be read: {error}"))
}

async fn ask_raw(
    connection: &Arc<SourceConnection>,
    method: &str,
    params: &Value,
) -> Result<Box<RawValue>, String> {
    match connection.request(method, params).await {
        Err(RequestLoss::Closed) => Err(format!("it ended in {method}")),
        Err(loss) => Err(format!("{method}: {}", connection.hide(loss.reason()))),
        Ok(Err(error)) => {
            let text = connection.hide(&error.message);
            // The reason of a state is stored, and told to everybody.
            let text = cut_description(&text).map_or(text, Cow::Owned);
            Err(format!("{method}: {text} ({})", error.code))
        }
        Ok(Ok(result)) => Ok(result),
    }
}

/// A parsed definition, and its text from the server. Definitions are equal if their values are,
/// whatever their texts.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    read: Arc<Value>,
    written: Arc<RawValue>,
}

impl Definition {
    /// The server's text with other values for some members, without invisible characters and
    /// imitations of the system's text. All else stays byte for byte.
    pub(super) fn shown_with(&self, values: &[(&str, Value)]) -> Box<RawValue> {
        let text = quote::json(self.written.get());
        let RawMembers(mut members) = RawMembers::parse(&text).unwrap_or_default();
        for (name, value) in values {
            let value = raw(value);
            match members.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = value,
                None => members.push(((*name).to_owned(), value)),
            }
        }
        RawValue::from_string(RawMembers(members).into_text()).unwrap_or_default()
    }
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

impl Deref for Definition {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.read
    }
}

impl PartialEq for Definition {
    fn eq(&self, other: &Self) -> bool {
        self.read == other.read
    }
}

impl Eq for Definition {}

impl From<Value> for Definition {
    fn from(value: Value) -> Self {
        Self { written: raw(&value).into(), read: Arc::new(value) }
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let written = Box::<RawValue>::deserialize(source)?;
        let read = serde_json::from_str(written.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { read: Arc::new(read), written: written.into() })
    }
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, target: S) -> Result<S::Ok, S::Error> {
        self.written.as_ref().serialize(target)
    }
}

#[derive(Debug, Clone)]
pub(super) struct OfferedTool {
    /// The server's own name for it.
    pub(super) own_name: Arc<str>,
    pub(super) declaration: ForeignDeclaration,
    pub(super) traits: Arc<ToolTraits>,
}

/// Tools of one server, and why others are left out.
#[derive(Debug, Clone, Default)]
pub(super) struct OfferedTools {
    /// By the name that clients see.
    pub(super) tools: BTreeMap<String, OfferedTool>,
    pub(super) problems: Vec<String>,
}

/// The tools of a server by their shown names. `is_taken` returns whether another server has a
/// name.
pub(super) fn tools_of(
    spec: &SourceSpec,
    lists: &OfferedLists,
    is_taken: &dyn Fn(&str) -> bool,
) -> OfferedTools {
    let mut all = OfferedTools::default();
    for offered in &lists.tools {
        let Some(own_name) = name_of(offered) else {
            all.problems.push("a tool without a name is left out".to_owned());
            continue;
        };
        if !spec.entry.shows(own_name) {
            continue;
        }
        let problem = schema_problem(offered).map(str::to_owned);
        if let Some(problem) = problem.or_else(|| header_problem_of(spec, offered)) {
            all.problems.push(format!("the tool {own_name:?} is left out: {problem}"));
            continue;
        }
        let is_known = |name: &str| is_taken(name) || all.tools.contains_key(name);
        let name = child_tool_name(&spec.key.name, own_name, &is_known);
        if quote::plain(&name) != name {
            all.problems.push(format!("the tool {own_name:?} is left out: its name imitates svc"));
            continue;
        }
        if is_known(&name) {
            all.problems.push(format!("the tool {own_name:?} is left out: it is there twice"));
            continue;
        }
        let declaration = ForeignDeclaration {
            source: spec.key.name.as_str().into(),
            entry: entry_of(offered, &name),
            scope: spec.entry.scope.as_deref().map(Arc::from),
            is_listed: spec.entry.listed.iter().any(|glob| matches_glob(glob, own_name)),
        };
        let traits = Arc::new(traits_of(offered));
        all.tools.insert(name, OfferedTool { own_name: own_name.into(), declaration, traits });
    }
    all
}

fn entry_of(offered: &Definition, name: &str) -> ForeignEntry {
    let mut values = vec![("name", json!(name))];
    let description = offered.get("description").and_then(Value::as_str);
    if let Some(cut) = description.and_then(|text| cut_description(&quote::plain_data(text))) {
        values.push(("description", json!(cut)));
    }
    if is_task_only(offered) {
        // The daemon waits for the task, so clients call the tool like any other.
        let mut execution = offered["execution"].clone();
        quote::value(&mut execution);
        execution["taskSupport"] = json!("forbidden");
        values.push(("execution", execution));
    }
    ForeignEntry::new(offered.shown_with(&values))
}

/// The server's own name of a tool or prompt; `None` if it has no visible character.
pub(super) fn name_of(offered: &Value) -> Option<&str> {
    let name = offered.get("name")?.as_str()?;
    let is_seen = |c: char| !c.is_whitespace() && !quote::is_invisible(c);
    name.contains(is_seen).then_some(name)
}

/// Whether servers of the revision with tasks run a tool only as a task.
fn is_task_only(tool: &Value) -> bool {
    tool.pointer("/execution/taskSupport").and_then(Value::as_str) == Some("required")
}

fn traits_of(tool: &Value) -> ToolTraits {
    let hints = tool.get("annotations");
    let hint = |name| hints.and_then(|hints| hints.get(name)).and_then(Value::as_bool);
    let is_repeatable =
        ["readOnlyHint", "idempotentHint"].into_iter().any(|name| hint(name) == Some(true));
    let schema = tool.get("inputSchema");
    let header_schema = schema.filter(|schema| schema.to_string().contains(PARAM_ANNOTATION));
    ToolTraits { is_repeatable, header_schema: header_schema.cloned(), is_task: is_task_only(tool) }
}

/// Headers exist only for servers at a URL.
fn header_problem_of(spec: &SourceSpec, tool: &Value) -> Option<String> {
    let is_http =
        matches!(spec.entry.transport, SourceTransport::Remote { kind: RemoteKind::Http, .. });
    tool.get("inputSchema").filter(|_| is_http).and_then(header_problem)
}

fn schema_problem(tool: &Value) -> Option<&'static str> {
    match tool.get("inputSchema") {
        None => Some("it has no inputSchema"),
        Some(Value::Object(schema)) => match schema.get("type") {
            None => None,
            Some(Value::String(kind)) if kind == "object" => None,
            Some(_) => Some("its inputSchema is of another type than object"),
        },
        Some(_) => Some("its inputSchema is no object"),
    }
}

/// The definitions of a server at its first connection after an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PinnedLists {
    /// Identifies the approval and the entry that they belong to.
    pub(super) basis: String,
    pub(super) lists: Arc<OfferedLists>,
    /// Changes that an event has reported, by kind and name.
    pub(super) told: BTreeSet<String>,
}

/// A definition that is not the one that was approved.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SourceChange {
    /// `tool`, `resource`, `template` or `prompt`; `server` for an entry of a file.
    pub kind: &'static str,
    /// Its name, or its URI.
    pub name: String,
    /// The definition that was approved; none of an added one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The definition as the server gives it now.
    pub after: Value,
}

impl SourceChange {
    pub(super) fn mark(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

/// Definitions of one list by their name. A server may list several of one name.
type NamedDefinitions<'a> = BTreeMap<&'a str, Vec<&'a Definition>>;

fn named<'a>(list: &'a [Definition], member: &str) -> NamedDefinitions<'a> {
    let mut all = NamedDefinitions::new();
    for definition in list {
        if let Some(name) = definition.get(member).and_then(Value::as_str) {
            all.entry(name).or_default().push(definition);
        }
    }
    all
}

/// The kinds of the lists in the order of [`OfferedLists::each`], and the members that name a
/// definition.
const KINDS: [(&str, &str); 4] =
    [("tool", "name"), ("resource", "uri"), ("template", "uriTemplate"), ("prompt", "name")];

fn whole(definitions: &[&Definition]) -> Value {
    match definitions {
        [one] => Value::clone(one),
        some => some.iter().map(|one| Value::clone(one)).collect(),
    }
}

/// Definitions that were added or changed since the approval. A removed definition needs no
/// approval.
pub(super) fn changes(approved: &OfferedLists, now: &OfferedLists) -> Vec<SourceChange> {
    if approved == now {
        return Vec::new();
    }
    let mut all = Vec::new();
    let pairs = approved.each().into_iter().zip(now.each());
    for ((kind, member), (before, after)) in KINDS.into_iter().zip(pairs) {
        let known = named(before, member);
        for (name, definitions) in named(after, member) {
            let before = known.get(name);
            if before != Some(&definitions) {
                all.push(SourceChange {
                    kind,
                    name: name.to_owned(),
                    before: before.map(|before| whole(before)),
                    after: whole(&definitions),
                });
            }
        }
    }
    all
}

/// The approved definitions that the server still lists.
pub(super) fn still_approved(approved: &OfferedLists, now: &OfferedLists) -> OfferedLists {
    let mut kinds = KINDS.into_iter().zip(now.each());
    OfferedLists::from_each(approved.each().map(|before| {
        let ((_, member), after) = kinds.next().unwrap_or_default();
        let present = named(after, member);
        let is_present = |definition: &&Definition| {
            let name = definition.get(member).and_then(Value::as_str);
            name.is_some_and(|name| present.contains_key(name))
        };
        before.iter().filter(is_present).cloned().collect()
    }))
}

/// A digest of changes, so that an approval is valid for exactly the changes that the person saw.
pub(super) fn digest(changes: &[SourceChange]) -> String {
    hex::encode(&Sha256::digest(json!(changes).to_string())[..16])
}

#[cfg(test)]
mod tests {
    use svc_model::source::Redactor;

    use super::*;
    use crate::message::ChildMessage;

    #[test]
    fn shown_definition_keeps_unchanged_bytes() {
        let schema = r#"{ "z": 1e5, "a": [12345678901234567890123, 1.50, "\u0041"] }"#;
        let written = format!(
            "{{\"name\":\"a.b\",\"description\":\"un\u{200b}seen\",\"inputSchema\":{schema},\"annotations\":{{\"x\": 1.0,\"title\":\"a\u{202e}b\"}}}}"
        );
        let definition: Definition = serde_json::from_str(&written).unwrap();
        assert_eq!(definition["name"], "a.b");
        assert_eq!(serde_json::to_string(&[&definition]).unwrap(), format!("[{written}]"));
        let shown = definition.shown_with(&[("name", json!("s__a_b")), ("more", json!(1))]);
        let expected = format!(
            r#"{{"name":"s__a_b","description":"unseen","inputSchema":{schema},"annotations":{{"x": 1.0,"title":"ab"}},"more":1}}"#
        );
        assert_eq!(shown.get(), expected);
    }

    #[test]
    fn definitions_with_equal_values_are_equal() {
        let [one, two] = [r#"{"a": 1.0,"b":2}"#, r#"{"b":2,"a":1.00}"#]
            .map(|text| serde_json::from_str::<Definition>(text).unwrap());
        assert_eq!(one, two);
        assert_ne!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
        assert_ne!(one, Definition::from(json!({ "a": 1.0 })));
    }

    #[test]
    fn tool_views_by_table() {
        let written = json!({ "command": "x", "exclude_tools": ["drop_*"], "listed": ["keep"], "scope": "exec" });
        let spec = SourceSpec::for_test("s", &written);
        let schema = json!({ "type": "object", "anyOf": [{}] });
        let lists = OfferedLists {
            tools: [
                json!({ "name": "keep", "inputSchema": schema, "x": 1, "annotations": { "readOnlyHint": true } }),
                json!({ "name": "drop_it", "inputSchema": schema }),
                json!({ "name": "a.b", "inputSchema": {}, "execution": { "taskSupport": "required", "x": 1 } }),
                json!({ "name": "a_b", "inputSchema": {} }),
                json!({ "name": "a_b", "inputSchema": {} }),
                json!({ "name": "none" }),
                json!({ "name": "array", "inputSchema": { "type": "array" } }),
                json!({ "name": "text", "inputSchema": "x" }),
                json!({ "inputSchema": {} }),
                json!({ "name": "", "inputSchema": {} }),
                json!({ "name": " \u{200b}", "inputSchema": {} }),
                json!({ "name": 7, "inputSchema": {} }),
                json!({ "name": "inter-session_message", "inputSchema": {} }),
            ]
            .map(Definition::from)
            .into(),
            ..OfferedLists::default()
        };
        let offered = tools_of(&spec, &lists, &|_| false);
        let names: Vec<_> = offered.tools.keys().map(String::as_str).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(names[..2], ["s__a_b", names[1]]);
        assert!(names[1].starts_with("s__a_b_") && names[2] == "s__keep", "{names:?}");
        assert_eq!(offered.problems.len(), 9, "{:?}", offered.problems);
        let keep = &offered.tools["s__keep"];
        assert_eq!(keep.declaration.entry.read["x"], 1);
        assert_eq!(keep.declaration.entry.read["inputSchema"], schema);
        assert!(keep.declaration.is_listed);
        let task = &offered.tools["s__a_b"];
        assert_eq!(&*task.own_name, "a.b");
        assert!(task.traits.is_task && !keep.traits.is_task);
        assert_eq!(
            task.declaration.entry.read["execution"],
            json!({ "taskSupport": "forbidden", "x": 1 })
        );
    }

    fn lists(tools: &[(&str, &str)], prompts: &[&str]) -> OfferedLists {
        OfferedLists {
            tools: tools
                .iter()
                .map(|(name, says)| json!({ "name": name, "description": says }).into())
                .collect(),
            prompts: prompts.iter().map(|name| json!({ "name": name }).into()).collect(),
            ..OfferedLists::default()
        }
    }

    #[test]
    fn approved_definitions_are_shown_until_changes_are_approved() {
        let approved = lists(&[("a", "one"), ("b", "two"), ("c", "three")], &["p"]);
        let now = lists(&[("c", "three"), ("b", "obey"), ("d", "new"), ("b", "twice")], &["q"]);
        assert_eq!(still_approved(&approved, &now), lists(&[("b", "two"), ("c", "three")], &[]));
        let waiting = changes(&approved, &now);
        let marks: Vec<_> = waiting.iter().map(SourceChange::mark).collect();
        assert_eq!(marks, ["tool b", "tool d", "prompt q"]);
        assert_eq!(waiting[0].before.as_ref().map(|it| &it["description"]), Some(&json!("two")));
        assert_eq!(waiting[0].after[0]["description"], "obey");
        assert_eq!(waiting[1].before, None);
        assert_eq!(changes(&approved, &lists(&[("a", "one")], &[])), [], "what is gone is gone");
        assert_ne!(digest(&waiting), digest(&waiting[..1]));
        // Another order is no change.
        let turned = lists(&[("c", "three"), ("a", "one"), ("b", "two")], &["p"]);
        assert_eq!(changes(&approved, &turned), []);
    }

    /// Fetches a list whose pages have these items and a new cursor each; `None` if it goes on.
    async fn endless_list(items: &str) -> Option<Result<FetchedList, String>> {
        let (connection, mut messages) = SourceConnection::new(Redactor::default(), None);
        let server = async {
            for page in 0..=MAX_PAGES {
                let Some(ChildMessage::Request(request)) = messages.recv().await else { break };
                let id = request.id;
                let result = format!(r#"{{"tools":{items},"nextCursor":"{page}"}}"#);
                connection.take(&format!(r#"{{"id":{id},"result":{result}}}"#)).await;
            }
        };
        tokio::select! {
            biased;
            list = pages(&connection, "tools/list", "tools") => Some(list),
            () = server => None,
        }
    }

    #[tokio::test]
    async fn list_without_end_is_cut() {
        let large = format!(r#"[{{"name":"{}"}}]"#, "x".repeat(1024 * 1024));
        for (items, expected, bound) in [
            ("[]", 0, "1000 pages of"),
            (r#"[{"name":"a"}]"#, 1000, "1000"),
            (&large, 16, "16 MiB of"),
        ] {
            let list = endless_list(items).await.expect("it ends").expect("a list");
            assert_eq!((list.items.len(), list.cut_at.as_deref()), (expected, Some(bound)));
        }
    }
}
