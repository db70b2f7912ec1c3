//! Makes schemas from Rust types, in a form that clients accept, and checks arguments against them.
//! The errors name the argument and its allowed values.
//!
//! A general validator would bring two dozen crates. Our schemas come from our own types and use
//! few rules: a test checks that for every tool, and compares our results with those of a complete
//! validator.

use std::cmp::Ordering;

use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform as _},
};
use serde_json::{Map, Number, Value, json};
use svc_model::{NOT_BLANK, TAG};
use svc_wire::mcp::PARAM_ANNOTATION;

use super::ToolError;

#[derive(Debug)]
pub(super) struct Input {
    pub(super) json: Value,
    /// Arguments that a header repeats (SEP-2243).
    pub(super) headers: Vec<HeaderParam>,
}

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
    let mut schema = schema(&mut settings.into_generator());
    // Removes the description of the Rust type, because the tool has its own.
    schema.remove("description");
    RecursiveTransform(tidy).transform(&mut schema);
    schema.to_value()
}

/// The schema of a tool's result: a `T`, or an error. A failed call has structured content, too,
/// and clients check that against the same schema.
pub(super) fn of_result<T: JsonSchema>() -> Value {
    or_error(of_type::<T>())
}

fn or_error(mut schema: Value) -> Value {
    let root = schema.as_object_mut().expect("a result is an object");
    let properties = root.entry("properties").or_insert_with(|| json!({}));
    // A result may have its own `error`, which is a text.
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

fn tidy(schema: &mut Schema) {
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
const KNOWN: &str = "\
session_id peer_id from_peer from_peer_id idempotency_key cursor circle path mode model session \
axis outcome_id source frames label agentId sessionId idempotencyKey cleanup";

/// A short schema of arguments for a model. The arguments that it leaves out are accepted all the
/// same.
pub(super) fn brief(schema: &Value) -> Value {
    let mut brief = schema.clone();
    let needs = |name: &str| {
        let required = schema["required"].as_array();
        required.is_some_and(|required| required.iter().any(|needed| needed == name))
    };
    if let Some(properties) = brief.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !KNOWN.split(' ').any(|known| known == name) || needs(name));
        properties.values_mut().for_each(leave_out);
    }
    if let Some(schema) = brief.as_object_mut() {
        // A client that checks arguments itself would refuse the arguments that are left out of the
        // schema.
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

    pub(super) fn from_json(json: Value) -> Self {
        let mut headers = Vec::new();
        find_headers(&json, &mut Vec::new(), &mut headers);
        Self { json, headers }
    }

    /// Checks the arguments. A `null` counts as absent, and an integer may be written as 42.0, also
    /// in a list or an object. Types of Rust do not read that: it becomes 42.
    pub(super) fn check(&self, arguments: &mut Map<String, Value>) -> Result<(), ToolError> {
        arguments.retain(|_, value| !value.is_null());
        check_members(&self.json, arguments, "")?;
        remove_zero_fractions_of_members(&self.json, arguments);
        Ok(())
    }
}

fn remove_zero_fractions_of_members(schema: &Value, object: &mut Map<String, Value>) {
    let known = schema.get("properties").and_then(Value::as_object);
    let other = schema.get("additionalProperties");
    for (name, member) in object.iter_mut() {
        if let Some(schema) = known.and_then(|known| known.get(name)).or(other) {
            remove_zero_fractions(schema, member);
        }
    }
}

/// Rewrites numbers of a checked value as integers where the schema has integers and no other
/// numbers.
fn remove_zero_fractions(schema: &Value, value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let kinds = schema.get("type").unwrap_or(&Value::Null);
            let is_integer =
                has(kinds, |kind| kind == "integer") && !has(kinds, |kind| kind == "number");
            if let Some(whole) = whole(number).filter(|_| is_integer) {
                *value = whole;
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    remove_zero_fractions(schema, item);
                }
            }
        }
        Value::Object(object) => remove_zero_fractions_of_members(schema, object),
        _ => {}
    }
}

fn whole(number: &Number) -> Option<Value> {
    let digits = format!("{:.0}", number.as_f64()?);
    let small = digits.parse::<i64>().map(Value::from);
    small.or_else(|_| digits.parse::<u64>().map(Value::from)).ok()
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

type TextCheck = fn(&str) -> bool;

/// The patterns in schemas, and their checks. They have ECMA-262 semantics: `\w` is ASCII.
const PATTERNS: [(&str, TextCheck); 2] = [
    (NOT_BLANK, |text| text.chars().any(|c| !c.is_whitespace() && c != '\u{feff}')),
    (TAG, |text| {
        let is_of_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        !text.is_empty() && text.bytes().all(is_of_tag)
    }),
];

/// Checks the members of an object: each one's value, that none is unknown, and that none is
/// missing. `at` is the path to the object, such as `a[0].b`.
pub(super) fn check_members(
    schema: &Value,
    object: &Map<String, Value>,
    at: &str,
) -> Result<(), ToolError> {
    let inside = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    let known = schema.get("properties").and_then(Value::as_object);
    let other = schema.get("additionalProperties");
    for (name, member) in object {
        match known.and_then(|known| known.get(name)).or(other) {
            Some(Value::Bool(false)) => {
                let field = inside(name);
                let error = format!("{field}: there is no such argument");
                let error = ToolError::invalid(field, error);
                let known: Vec<&String> = known.into_iter().flat_map(Map::keys).collect();
                return Err(if known.is_empty() { error } else { error.allowed(json!(known)) });
            }
            Some(schema) => check_value(schema, member, &inside(name))?,
            None => {}
        }
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    match required.filter_map(Value::as_str).find(|name| !object.contains_key(*name)) {
        Some(name) => {
            let schema = known.and_then(|known| known.get(name)).unwrap_or(&Value::Null);
            Err(broken(schema, &inside(name), "is missing"))
        }
        None => Ok(()),
    }
}

fn check_value(schema: &Value, value: &Value, at: &str) -> Result<(), ToolError> {
    let kinds = schema.get("type");
    if let Some(words) = schema.get("enum").filter(|words| !has(words, |word| word == value)) {
        return Err(broken(schema, at, &format!("must be one of {words}")));
    }
    if let Some(kinds) = kinds.filter(|kinds| !has(kinds, |kind| has_type(value, kind))) {
        return Err(broken(schema, at, &format!("must be {}", kinds_in_words(kinds))));
    }
    match value {
        Value::String(text) => check_text(schema, text, at),
        Value::Number(number) => check_range(schema, number, at),
        Value::Array(items) => check_list(schema, items, at),
        Value::Object(object) => check_members(schema, object, at),
        Value::Null | Value::Bool(_) => Ok(()),
    }
}

fn check_text(schema: &Value, text: &str, at: &str) -> Result<(), ToolError> {
    let (least, most) = (bound(schema, "minLength"), bound(schema, "maxLength"));
    // Counted only if there is a bound, because the text may be long.
    let length = if least.or(most).is_some() { text.chars().count() } else { 0 };
    if let Some(least) = least.filter(|least| length < *least) {
        let why = match least {
            1 => "must not be empty".to_owned(),
            least => format!("must have at least {least} characters"),
        };
        return Err(broken(schema, at, &why));
    }
    if let Some(most) = most.filter(|most| length > *most) {
        return Err(broken(schema, at, &format!("must have at most {most} characters")));
    }
    match schema.get("pattern").and_then(Value::as_str) {
        Some(pattern) if !matches(pattern, text) => {
            let why = match pattern {
                NOT_BLANK => "must not be blank".to_owned(),
                pattern => format!("must match {pattern}"),
            };
            Err(broken(schema, at, &why))
        }
        _ => Ok(()),
    }
}

fn check_range(schema: &Value, number: &Number, at: &str) -> Result<(), ToolError> {
    let is_beyond = |rule: &str, side: Ordering| {
        let bound = schema.get(rule).and_then(Value::as_number);
        bound.is_some_and(|bound| order(number, bound) == Some(side))
    };
    if !is_beyond("minimum", Ordering::Less) && !is_beyond("maximum", Ordering::Greater) {
        return Ok(());
    }
    let range = allowed(schema).and_then(|range| range.as_str().map(str::to_owned));
    Err(broken(schema, at, &format!("must be {}", range.unwrap_or_default())))
}

fn check_list(schema: &Value, items: &[Value], at: &str) -> Result<(), ToolError> {
    if let Some(schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            check_value(schema, item, &format!("{at}[{index}]"))?;
        }
    }
    if let Some(least) = bound(schema, "minItems").filter(|least| items.len() < *least) {
        return Err(broken(schema, at, &format!("must have at least {least} items")));
    }
    if let Some(most) = bound(schema, "maxItems").filter(|most| items.len() > *most) {
        return Err(broken(schema, at, &format!("must have at most {most} items")));
    }
    Ok(())
}

/// The error for a value that breaks a rule. It never contains the value, which may be a secret, or
/// megabytes.
fn broken(schema: &Value, at: &str, why: &str) -> ToolError {
    let error = ToolError::invalid(at, format!("{at}: {why}"));
    ToolError { allowed: allowed(schema).map(Box::new), ..error }
}

fn bound(schema: &Value, rule: &str) -> Option<usize> {
    schema.get(rule)?.as_u64().map(|bound| usize::try_from(bound).unwrap_or(usize::MAX))
}

/// # Panics
/// If no schema of ours has this pattern.
fn matches(pattern: &str, text: &str) -> bool {
    let known = PATTERNS.iter().find(|(known, _)| *known == pattern);
    let (_, is_match) = known.expect("a pattern of ours is known");
    is_match(text)
}

/// Whether a value matches, or any value of a list.
fn has(list: &Value, is: impl Fn(&Value) -> bool) -> bool {
    match list {
        Value::Array(list) => list.iter().any(is),
        one => is(one),
    }
}

fn has_type(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("string") => value.is_string(),
        // JSON may write an integer as 42.0.
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => value.is_null(),
    }
}

fn order(one: &Number, other: &Number) -> Option<Ordering> {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

/// The allowed values, if they can be listed: those of an enum, or a range.
fn allowed(schema: &Value) -> Option<Value> {
    if let Some(words) = schema.get("enum") {
        return Some(words.clone());
    }
    if schema.get("type") == Some(&json!("boolean")) {
        return Some(json!([true, false]));
    }
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(least), Some(most)) => Some(format!("from {least} to {most}").into()),
        (Some(least), None) => Some(format!("at least {least}").into()),
        (None, Some(most)) => Some(format!("at most {most}").into()),
        (None, None) => None,
    }
}

fn kinds_in_words(kinds: &Value) -> String {
    match kinds {
        Value::String(name) => match name.as_str() {
            "array" => "an array".to_owned(),
            "object" => "an object".to_owned(),
            "integer" => "an integer".to_owned(),
            name => format!("a {name}"),
        },
        Value::Array(kinds) => kinds.iter().map(kinds_in_words).collect::<Vec<_>>().join(" or "),
        _ => String::new(),
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
    fn integer_may_be_written_with_a_fraction_of_zero() {
        let mut arguments = Map::new();
        arguments.insert("name".to_owned(), json!("a"));
        arguments.insert("limit".to_owned(), json!(3.0));
        Input::from_type::<Args>().check(&mut arguments).unwrap();
        assert_eq!(arguments["limit"], json!(3));
        let error = check(json!({"name": "a", "limit": 3.5})).unwrap_err();
        assert_eq!(error.message, "limit: must be an integer");
    }

    #[test]
    fn integer_in_a_list_or_an_object_may_be_written_with_a_fraction_of_zero() {
        let integers = json!({"type": "integer"});
        let input = Input::from_json(json!({
            "type": "object",
            "properties": {
                "sizes": {"type": "array", "items": integers},
                "part": {
                    "type": "object",
                    "properties": {
                        "at": {"type": ["integer", "null"]},
                        "share": {"type": "number"},
                    },
                },
                "counts": {"type": "object", "additionalProperties": integers},
                "any": {},
            },
        }));
        let checked = |arguments: Value| {
            let Value::Object(mut arguments) = arguments else { panic!("an object") };
            input.check(&mut arguments).map(|()| Value::Object(arguments))
        };
        let given = json!({
            "sizes": [1.0, 2],
            "part": {"at": 3.0, "share": 4.0},
            "counts": {"a": -5.0, "b": 1e19},
            "any": [6.0],
        });
        let expected = json!({
            "sizes": [1, 2],
            "part": {"at": 3, "share": 4.0},
            "counts": {"a": -5, "b": 10_000_000_000_000_000_000_u64},
            "any": [6.0],
        });
        assert_eq!(checked(given).unwrap(), expected);
        let error = checked(json!({"sizes": [1.0, 1.5]})).unwrap_err();
        assert_eq!(error.message, "sizes[1]: must be an integer");
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
