//! Definitions that a person has approved. A server in a project's file shows these, whatever it
//! lists later; for a person's own server a change is only reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::lists::{Definition, OfferedLists};

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
    /// The name of the change among the changes of its server.
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
