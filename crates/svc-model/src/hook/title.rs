//! What a prompt is called, on one line.

use serde_json::Value;

use crate::limits;

/// The tools by which a model asks its person something.
pub(super) const QUESTIONS: [&str; 2] = ["AskUserQuestion", "request_user_input"];
/// The arguments that say most about a call, the first of which is shown.
const TELLING: [&str; 9] =
    ["command", "file_path", "path", "url", "query", "pattern", "plan", "description", "prompt"];

/// What a call of a tool is about, on one line.
pub(super) fn title_of_tool(tool: &str, arguments: &Value) -> String {
    let question = arguments["questions"][0]["question"].as_str();
    let told = TELLING.iter().find_map(|name| text(&arguments[*name]));
    one_line(question.or(told).unwrap_or(tool))
}

pub(super) fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.trim().is_empty())
}

/// A text within its bound, on one line.
pub fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(limits::WAITING_TITLE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
