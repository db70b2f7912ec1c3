//! What the hooks of each client tell of a shell command, as one [`ToolRun`].
//!
//! The shapes are those of the payloads in `fixtures/hooks`, captured from the clients of the versions named there; what
//! is read beyond them (a status in the text, an object for a string) is what other versions write.

use serde_json::Value;

use super::verdict::ToolRun;
use crate::domain::hook::HookClient;

/// What `payload`, of a hook of `client` after a tool, tells of a shell command. Nothing, if it is of another tool or event,
/// or of a command that runs on in the background.
pub fn run_of_tool(client: HookClient, payload: &Value) -> Option<ToolRun> {
    match client {
        HookClient::ClaudeCode => of_claude(payload),
        HookClient::Codex => of_codex(payload),
        HookClient::Gemini => of_gemini(payload),
        HookClient::Opencode => of_opencode(payload),
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str()
}

/// A handler that can only send texts writes the word.
fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).is_some_and(|value| *value == true || *value == "true")
}

/// The command, if `payload` is of `event` and one of `tools`.
fn command(payload: &Value, tools: &[&str]) -> Option<String> {
    let tool = text(payload, "/tool_name")?;
    let background = flag(payload, "/tool_input/run_in_background")
        || flag(payload, "/tool_input/is_background");
    if !tools.contains(&tool) || background {
        return None;
    }
    text(payload, "/tool_input/command").map(str::to_owned)
}

fn joined(parts: [&str; 2]) -> String {
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

/// `PostToolUse` comes after a success only, and has no status; `PostToolUseFailure` has an `error` that begins with it.
fn of_claude(payload: &Value) -> Option<ToolRun> {
    let command = command(payload, &["Bash", "PowerShell"])?;
    match text(payload, "/hook_event_name")? {
        "PostToolUse" => {
            let response = payload.get("tool_response")?;
            // A handler that can only send texts sends the object as one.
            let parsed = response.as_str().filter(|text| text.starts_with('{'));
            let parsed = parsed.and_then(|text| serde_json::from_str::<Value>(text).ok());
            let response = parsed.as_ref().filter(|parsed| parsed.is_object()).unwrap_or(response);
            if response.get("backgroundTaskId").is_some_and(Value::is_string) {
                return None;
            }
            let output = match response {
                Value::String(output) => output.clone(),
                _ => joined([
                    text(response, "/stdout").unwrap_or_default(),
                    text(response, "/stderr").unwrap_or_default(),
                ]),
            };
            let interrupted = flag(response, "/interrupted");
            Some(ToolRun {
                command,
                output,
                failed: Some(false),
                interrupted,
                ..ToolRun::default()
            })
        }
        "PostToolUseFailure" => {
            let error = text(payload, "/error").unwrap_or_default();
            let (exit_code, output) = match error.strip_prefix("Exit code ") {
                Some(rest) => {
                    let (code, output) = rest.split_once('\n').unwrap_or((rest, ""));
                    (code.trim().parse().ok(), output)
                }
                None => (None, error),
            };
            let timed_out = output.lines().any(|line| line.starts_with("Command timed out after "));
            Some(ToolRun {
                command,
                output: output.to_owned(),
                exit_code,
                failed: Some(true),
                interrupted: flag(payload, "/is_interrupt"),
                timed_out,
                truncated: false,
            })
        }
        _ => None,
    }
}

/// `PostToolUse` comes after successes and failures alike, with the output alone.
fn of_codex(payload: &Value) -> Option<ToolRun> {
    let command = command(payload, &["Bash"])?;
    if text(payload, "/hook_event_name")? != "PostToolUse" {
        return None;
    }
    let response = payload.get("tool_response")?;
    let (output, exit_code) = match response {
        Value::String(output) => status_in_text(output),
        _ => (
            text(response, "/output")?.to_owned(),
            response.pointer("/metadata/exit_code").and_then(exit_code_of),
        ),
    };
    let timed_out = output.lines().take(3).any(|line| line.starts_with("command timed out after "));
    Some(ToolRun { command, output, exit_code, timed_out, ..ToolRun::default() })
}

/// The output and the status of a text that says at its head `Exit code: 1`, `Wall time: …`, `Output:`, as the model is
/// told it.
fn status_in_text(told: &str) -> (String, Option<i32>) {
    let found = told.strip_prefix("Exit code: ").and_then(|rest| {
        let (code, rest) = rest.split_once('\n')?;
        let (_, output) = rest.split_once("Output:\n")?;
        Some((output.to_owned(), Some(code.trim().parse().ok()?)))
    });
    found.unwrap_or_else(|| (told.to_owned(), None))
}

fn exit_code_of(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|code| i32::try_from(code).ok())
}

/// `llmContent` is a text: `Output: …`, then lines `Error: …`, `Exit Code: 1` (none after a success), `Signal: …`.
fn of_gemini(payload: &Value) -> Option<ToolRun> {
    let command = command(payload, &["run_shell_command"])?;
    if text(payload, "/hook_event_name")? != "AfterTool" {
        return None;
    }
    let response = payload.get("tool_response")?;
    let content = match response.get("llmContent") {
        Some(Value::String(content)) => content.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| text(part, "/text")).collect::<Vec<_>>().join("\n")
        }
        _ => text(response, "/returnDisplay")?.to_owned(),
    };
    let content = content.trim();
    let content = content.strip_prefix("<untrusted_context>").unwrap_or(content);
    let content = content.strip_suffix("</untrusted_context>").unwrap_or(content).trim();
    let ended = |why: &str| content.starts_with(why) || content.contains(&format!("\n{why}"));
    let interrupted = ended("Command was cancelled by user");
    let timed_out = ended("Command was automatically cancelled because it exceeded the timeout");

    // The fields stand last, and the output before them may hold anything.
    let (mut output, mut exit_code, mut signal) = (content, None, false);
    while let Some((rest, line)) = output.rsplit_once('\n') {
        match line.split_once(": ") {
            Some(("Exit Code", code)) => exit_code = code.trim().parse().ok(),
            Some(("Signal", name)) => signal = name.trim() != "(none)",
            Some(("Error" | "Background PIDs" | "Process Group PGID", _)) => {}
            _ => break,
        }
        output = rest;
    }
    let output = output.strip_prefix("Output: ").unwrap_or(output);
    let output = if output == "(empty)" { "" } else { output };
    let told = !interrupted && !timed_out && !signal && content.contains("Output: ");
    Some(ToolRun {
        command,
        output: output.to_owned(),
        exit_code: exit_code.or_else(|| told.then_some(0)),
        failed: signal.then_some(true),
        interrupted,
        timed_out,
        truncated: false,
    })
}

/// `tool.execute.after` as the plugin gives it on: `{hook, input: {tool, args}, output: {output, metadata}}`.
fn of_opencode(payload: &Value) -> Option<ToolRun> {
    if text(payload, "/hook")? != "tool.execute.after" || text(payload, "/input/tool")? != "bash" {
        return None;
    }
    let output = text(payload, "/output/output").unwrap_or_default();
    let notes = output.rsplit_once("<bash_metadata>").map_or("", |(_, notes)| notes);
    let output = if output == "(no output)" { "" } else { output };
    Some(ToolRun {
        command: text(payload, "/input/args/command")?.to_owned(),
        output: output.to_owned(),
        exit_code: payload.pointer("/output/metadata/exit").and_then(exit_code_of),
        failed: None,
        interrupted: notes.contains("aborted the command"),
        timed_out: notes.contains("exceeding timeout"),
        truncated: flag(payload, "/output/metadata/truncated"),
    })
}
