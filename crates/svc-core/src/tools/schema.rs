//! Schemas from Rust types, in a form that clients accept.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use svc_wire::mcp::PARAM_ANNOTATION;

use super::{ToolError, check};

/// The schema of a tool's arguments.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) json: Value,
    /// Arguments that a header repeats (SEP-2243).
    pub(super) headers: Vec<HeaderParam>,
}

/// An argument that a header repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderParam {
    /// Name of the header after `Mcp-Param-`.
    pub header: String,
    /// Names of the members on the path to the argument.
    pub path: Vec<String>,
    pub kind: ParamKind,
}

/// Type of an argument that a header repeats, which decides how the two are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// Compared byte for byte.
    String,
    /// Compared as a number.
    Integer,
    Boolean,
}

/// The schema of a type in the form of tools: without references, names of Rust types, and number
/// formats that JSON Schema does not define; with `enum` for a list of words.
pub(super) fn of_type<T: JsonSchema>() -> Value {
    // Nothing else depends on `T`, so the rest is compiled once instead of for each of two hundred
    // types. (`SchemaGenerator::root_schema_for` would only add names.)
    shown(T::json_schema)
}

fn shown(schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = schema(&mut settings.into_generator()).to_value();
    if let Some(root) = schema.as_object_mut() {
        // The description of the Rust type; the tool has its own.
        root.remove("description");
    }
    tidy(&mut schema);
    schema
}

/// The schema of a tool's result: a `T`, or an error. A failed call has structured content, too,
/// and clients check that against the same schema.
pub(super) fn of_result<T: JsonSchema>() -> Value {
    or_error(of_type::<T>())
}

fn or_error(mut schema: Value) -> Value {
    let root = schema.as_object_mut().expect("a result is an object");
    let properties = root.entry("properties").or_insert_with(|| json!({}));
    // A result may have an `error` of its own, which is a text.
    let kinds = match properties.get("error") {
        Some(_) => json!(["object", "string", "null"]),
        None => json!("object"),
    };
    properties["error"] = json!({
        "description": "Why it failed, if it did.",
        "type": kinds,
        "properties": { "type": { "type": "string" }, "message": { "type": "string" } },
        "required": ["type", "message"],
    });
    if let Some(required) = root.remove("required") {
        root.insert(
            "anyOf".to_owned(),
            json!([{ "required": required }, { "required": ["error"] }]),
        );
    }
    schema
}

fn tidy(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    object.remove("title");
    if object.get("format").and_then(Value::as_str).is_some_and(|format| {
        format.starts_with("uint")
            || format.starts_with("int")
            || matches!(format, "double" | "float")
    }) {
        object.remove("format");
    }
    words(object);
    for (key, value) in object.iter_mut() {
        match key.as_str() {
            "properties" | "$defs" => {
                value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(tidy);
            }
            "items" | "additionalProperties" | "not" => tidy(value),
            "anyOf" | "oneOf" | "allOf" => {
                value.as_array_mut().into_iter().flatten().for_each(tidy);
            }
            _ => {}
        }
    }
}

/// Rewrites a `oneOf` of constants, which schemars makes of an enum with documented variants, as a
/// plain `enum`.
fn words(object: &mut Map<String, Value>) {
    let words: Option<Vec<Value>> = object.get("oneOf").and_then(Value::as_array).and_then(|of| {
        of.iter()
            .map(|one| {
                let listed = one.get("enum").and_then(Value::as_array).cloned();
                one.get("const").map(|word| vec![word.clone()]).or(listed)
            })
            .collect::<Option<Vec<_>>>()
            .map(|lists| lists.into_iter().flatten().collect())
    });
    if let Some(words) = words.filter(|words| words.iter().all(Value::is_string)) {
        object.remove("oneOf");
        object.insert("type".to_owned(), "string".into());
        object.insert("enum".to_owned(), words.into());
    }
}

/// Rules that a short schema leaves out: an error names the one that was broken.
const RULES_LEFT_OUT: [&str; 6] =
    ["pattern", "minLength", "maxLength", "minItems", "maxItems", "additionalProperties"];

/// Optional arguments that a short schema leaves out: those that the caller's credential implies,
/// those for programs, and rare ones. `ToolSearch` shows them.
const KNOWN: [&str; 20] = [
    "session_id",
    "peer_id",
    "from_peer",
    "from_peer_id",
    "idempotency_key",
    "cursor",
    "circle",
    "path",
    "mode",
    "model",
    "session",
    "axis",
    "outcome_id",
    "source",
    "frames",
    "label",
    "agentId",
    "sessionId",
    "idempotencyKey",
    "cleanup",
];

/// A short schema of arguments for a model. The arguments that it leaves out are accepted all the
/// same.
pub(super) fn brief(schema: &Value) -> Value {
    let mut brief = schema.clone();
    let needs = |name: &str| {
        let required = schema["required"].as_array();
        required.is_some_and(|required| required.iter().any(|needed| needed == name))
    };
    if let Some(properties) = brief.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !KNOWN.contains(&name.as_str()) || needs(name));
        properties.values_mut().for_each(leave_out);
    }
    if let Some(schema) = brief.as_object_mut() {
        // A client that checks arguments itself would refuse those that are left out.
        schema.remove("additionalProperties");
    }
    brief
}

fn leave_out(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    object.retain(|rule, _| !RULES_LEFT_OUT.contains(&rule.as_str()));
    for (rule, value) in object.iter_mut() {
        match rule.as_str() {
            "properties" => {
                value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(leave_out);
            }
            "items" => leave_out(value),
            _ => {}
        }
    }
}

/// Removes `null` from the types of optional arguments: `null` is accepted anyway, and some clients
/// cannot read such a type.
fn without_null(schema: &mut Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for property in properties.values_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Array(types)) = property.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                property.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(words)) = property.get_mut("enum") {
            words.retain(|word| !word.is_null());
        }
        let branches = property.get("anyOf").and_then(Value::as_array).map(|any| {
            any.iter().filter(|one| one.get("type") != Some(&json!("null"))).cloned().collect()
        });
        let branches: Vec<Value> = branches.unwrap_or_default();
        if let [Value::Object(only)] = branches.as_slice() {
            property.remove("anyOf");
            for (key, value) in only {
                property.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        if property.get("default").is_some_and(Value::is_null) {
            property.remove("default");
        }
    }
}

impl Input {
    pub(super) fn from_type<T: JsonSchema>() -> Self {
        Self::of_arguments(of_type::<T>())
    }

    fn of_arguments(mut schema: Value) -> Self {
        without_null(&mut schema);
        let object = schema.as_object_mut().expect("arguments are an object");
        object.entry("properties").or_insert_with(|| json!({}));
        object.insert("additionalProperties".to_owned(), false.into());
        Self::from_json(schema)
    }

    /// A schema that is used unchanged.
    pub(super) fn from_json(json: Value) -> Self {
        let mut headers = Vec::new();
        find_headers(&json, &mut Vec::new(), &mut headers);
        Self { json, headers }
    }

    /// Checks the arguments. A `null` counts as absent.
    pub(super) fn check(&self, arguments: &mut Map<String, Value>) -> Result<(), ToolError> {
        arguments.retain(|_, value| !value.is_null());
        check::members(&self.json, arguments, "")
    }
}

/// Collects annotated arguments. Those that break the rules of SEP-2243 are left out: a client
/// drops such a tool.
fn find_headers(schema: &Value, path: &mut Vec<String>, found: &mut Vec<HeaderParam>) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(header) = property.get(PARAM_ANNOTATION).and_then(Value::as_str) {
            let kind = match property.get("type").and_then(Value::as_str) {
                Some("string") => Some(ParamKind::String),
                Some("integer") => Some(ParamKind::Integer),
                Some("boolean") => Some(ParamKind::Boolean),
                _ => None,
            };
            if let Some(kind) = kind {
                found.push(HeaderParam { header: header.to_owned(), path: path.clone(), kind });
            }
        }
        find_headers(property, path, found);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use svc_model::NOT_BLANK;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Colour {
        /// Like blood.
        Red,
        /// Like the sky.
        Blue,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is wanted")]
    struct Args {
        /// A name.
        #[schemars(regex(pattern = NOT_BLANK), extend("x-mcp-header" = "Name"))]
        name: String,
        #[schemars(range(min = 1, max = 50))]
        limit: Option<u32>,
        colour: Option<Colour>,
        #[schemars(length(min = 1, max = 2))]
        tags: Option<Vec<String>>,
        loud: Option<bool>,
    }

    fn check(arguments: Value) -> Result<(), ToolError> {
        let Value::Object(mut arguments) = arguments else { panic!("an object") };
        Input::from_type::<Args>().check(&mut arguments)
    }

    #[test]
    fn schemas_have_no_references_names_or_nulls() {
        let input = Input::from_type::<Args>();
        assert_eq!(
            input.json,
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": "\\S", "description": "A name.", "x-mcp-header": "Name"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                    "colour": {"type": "string", "enum": ["red", "blue"]},
                    "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
                    "loud": {"type": "boolean"},
                },
                "required": ["name"],
                "additionalProperties": false,
            })
        );
        let header = HeaderParam {
            header: "Name".into(),
            path: vec!["name".into()],
            kind: ParamKind::String,
        };
        assert_eq!(input.headers, [header]);
    }

    #[test]
    fn arguments_by_table() {
        check(json!({"name": "a", "limit": 50, "colour": "red", "tags": ["x"], "loud": null}))
            .unwrap();
        for (arguments, field, message, allowed) in [
            (json!({}), "name", "name: is missing", None),
            (json!({"name": " "}), "name", "name: must not be blank", None),
            (json!({"name": 1}), "name", "name: must be a string", None),
            (json!({"name": null}), "name", "name: is missing", None),
            (
                json!({"name": "a", "limit": 0}),
                "limit",
                "limit: must be from 1 to 50",
                Some(json!("from 1 to 50")),
            ),
            (
                json!({"name": "a", "limit": "3"}),
                "limit",
                "limit: must be an integer",
                Some(json!("from 1 to 50")),
            ),
            (
                json!({"name": "a", "colour": "green"}),
                "colour",
                "colour: must be one of [\"red\",\"blue\"]",
                Some(json!(["red", "blue"])),
            ),
            (json!({"name": "a", "tags": []}), "tags", "tags: must have at least 1 items", None),
            (json!({"name": "a", "tags": ["x", 2]}), "tags[1]", "tags[1]: must be a string", None),
            (
                json!({"name": "a", "nome": 1}),
                "nome",
                "nome: there is no such argument",
                Some(json!(["name", "limit", "colour", "tags", "loud"])),
            ),
        ] {
            let error = check(arguments.clone()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{arguments}");
            assert_eq!(error.message, message, "{arguments}");
            let sorted = |value: Option<Value>| {
                value.map(|value| match value {
                    Value::Array(mut words) => {
                        words.sort_by_key(ToString::to_string);
                        Value::Array(words)
                    }
                    other => other,
                })
            };
            assert_eq!(
                sorted(error.allowed.map(|allowed| *allowed)),
                sorted(allowed),
                "{arguments}"
            );
        }
    }
}
