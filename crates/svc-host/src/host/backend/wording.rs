//! Names and lines that are made of what vendors send.

use serde_json::Value;
use svc_model::agent::{RequestOption, RequestOptionKind};

/// Longest summary of a call, in characters.
const WIDTH: usize = 160;
/// Members of a call's input that say most of it, the best first.
const TELLING: [&str; 10] = [
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "url",
    "query",
    "prompt",
    "description",
    "question",
];

/// A call's input in one line.
pub(super) fn summary(input: &Value) -> String {
    let telling = TELLING.iter().find_map(|name| input.get(name));
    let text = match telling.unwrap_or(input) {
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(Value::is_string) => {
            parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    };
    one_line(&text)
}

/// The beginning of a text, in one line.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= WIDTH {
        return words;
    }
    words.chars().take(WIDTH - 1).chain(['…']).collect()
}

/// A call by its name and its input, in one line.
pub(super) fn call_title(name: &str, input: &Value) -> String {
    let summary = summary(input);
    if summary.is_empty() { name.to_owned() } else { format!("{name}: {summary}") }
}

/// The texts of a content: a string, a part, or a list of parts. What is no text is left out.
pub(super) fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<_> = parts.iter().filter_map(text_of).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        Value::Object(part) => match (part.get("text"), part.get("content")) {
            (Some(Value::String(text)), _) => Some(text.clone()),
            (_, Some(inner)) => text_of(inner),
            _ => None,
        },
        _ => None,
    }
}

/// An option of a request.
pub(super) fn option(id: &str, name: &str, kind: RequestOptionKind) -> RequestOption {
    RequestOption { option_id: id.to_owned(), name: name.to_owned(), kind }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_is_told_in_one_line() {
        for (input, expected) in [
            (json!({"command": "ls\n -l", "description": "x"}), "ls -l"),
            (json!({"command": ["bash", "-c", "ls"]}), "bash -c ls"),
            (json!({"file_path": "/a"}), "/a"),
            (json!({"n": 1}), "{\"n\":1}"),
            (json!(null), ""),
        ] {
            assert_eq!(summary(&input), expected);
        }
        assert_eq!(one_line(&"é".repeat(500)).chars().count(), WIDTH);
    }

    #[test]
    fn texts_are_found_in_every_shape() {
        for (content, expected) in [
            (json!("a"), Some("a")),
            (
                json!([{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]),
                Some("a\nb"),
            ),
            (json!({"type": "content", "content": {"type": "text", "text": "a"}}), Some("a")),
            (json!([{"type": "image"}]), None),
            (json!(null), None),
        ] {
            assert_eq!(text_of(&content).as_deref(), expected);
        }
    }
}
