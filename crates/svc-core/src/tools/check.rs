//! Checks arguments against the schema of one of our tools. The error names the argument and its
//! allowed values.
//!
//! A general validator would bring two dozen crates. Our schemas come from our own types and use
//! only the rules below: a test checks that for every tool, and compares the results with those of
//! a complete validator.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value, json};

use svc_model::{NOT_BLANK, TAG};

use super::ToolError;

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
pub(super) fn members(
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
            Some(schema) => value(schema, member, &inside(name))?,
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

/// Checks a value of any type.
fn value(schema: &Value, value: &Value, at: &str) -> Result<(), ToolError> {
    let kinds = schema.get("type");
    if let Some(words) = schema.get("enum").filter(|words| !has(words, |word| word == value)) {
        return Err(broken(schema, at, &format!("must be one of {words}")));
    }
    if let Some(kinds) = kinds.filter(|kinds| !has(kinds, |kind| has_type(value, kind))) {
        return Err(broken(schema, at, &format!("must be {}", kinds_in_words(kinds))));
    }
    match value {
        Value::String(text) => string(schema, text, at),
        Value::Number(number) => range(schema, number, at),
        Value::Array(items) => list(schema, items, at),
        Value::Object(object) => members(schema, object, at),
        Value::Null | Value::Bool(_) => Ok(()),
    }
}

fn string(schema: &Value, text: &str, at: &str) -> Result<(), ToolError> {
    let (least, most) = (bound(schema, "minLength"), bound(schema, "maxLength"));
    // Counted only if there is a bound, as the text may be long.
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

fn range(schema: &Value, number: &Number, at: &str) -> Result<(), ToolError> {
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

fn list(schema: &Value, items: &[Value], at: &str) -> Result<(), ToolError> {
    if let Some(schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            value(schema, item, &format!("{at}[{index}]"))?;
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
        // An integer may be written as 42.0.
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
