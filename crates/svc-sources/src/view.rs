//! What callers see of a server: the definitions that a person has approved, and the tools that are
//! made from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use svc_core::tools::{ForeignDeclaration, ForeignEntry};
use svc_model::{
    quote,
    source::{RemoteKind, SourceTransport, child_tool_name, cut_description, matches_glob},
};
use svc_wire::{mcp::PARAM_ANNOTATION, mcp_request::header_problem};

use super::{
    lists::{Definition, OfferedLists},
    message::ToolTraits,
    spec::SourceSpec,
};

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

pub(super) fn tools_of(spec: &SourceSpec, lists: &OfferedLists) -> OfferedTools {
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
        let name = child_tool_name(&spec.key.name, own_name, &|name| all.tools.contains_key(name));
        if quote::plain(&name) != name {
            all.problems.push(format!("the tool {own_name:?} is left out: its name imitates svc"));
            continue;
        }
        if all.tools.contains_key(&name) {
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

/// The lists of both, with their kind and the member that names a definition.
fn pairs<'a>(
    one: &'a OfferedLists,
    other: &'a OfferedLists,
) -> [(&'static str, &'static str, &'a [Definition], &'a [Definition]); 4] {
    [
        ("tool", "name", &one.tools, &other.tools),
        ("resource", "uri", &one.resources, &other.resources),
        ("template", "uriTemplate", &one.templates, &other.templates),
        ("prompt", "name", &one.prompts, &other.prompts),
    ]
}

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
    for (kind, member, before, after) in pairs(approved, now) {
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
    let [tools, resources, templates, prompts] =
        pairs(approved, now).map(|(_, member, before, after)| {
            let present = named(after, member);
            let is_present = |definition: &&Definition| {
                let name = definition.get(member).and_then(Value::as_str);
                name.is_some_and(|name| present.contains_key(name))
            };
            before.iter().filter(is_present).cloned().collect()
        });
    OfferedLists { tools, resources, templates, prompts }
}

/// A digest of changes, so that an approval is valid for exactly the changes that the person saw.
pub(super) fn digest(changes: &[SourceChange]) -> String {
    hex::encode(&Sha256::digest(json!(changes).to_string())[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let offered = tools_of(&spec, &lists);
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
}
