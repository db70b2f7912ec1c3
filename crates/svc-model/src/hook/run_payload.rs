//! What the hooks of each client report of a shell command, as one [`ToolRun`].
//!
//! The shapes are those of the payloads in `fixtures/hooks`, captured from the clients of the
//! versions named there. Other shapes that are read (a status in the text, an object for a string)
//! are of other versions.

use serde_json::Value;
use svc_outcome::ToolRun;

use super::HookClient;

/// The shell command that a hook after a tool reports by this event. `None` for another tool, and
/// for a command that continues in the background.
pub(super) fn run_of_tool(client: HookClient, event: &str, payload: &Value) -> Option<ToolRun> {
    match client {
        HookClient::ClaudeCode => of_claude(event, payload),
        HookClient::Codex => of_codex(payload),
        HookClient::Gemini => of_gemini(payload),
        HookClient::Opencode => of_opencode(payload),
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str()
}

/// Whether a member is true. A handler that can only send texts sends `"true"`.
pub(super) fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).is_some_and(|value| *value == true || *value == "true")
}

/// The command, if the payload is of one of `tools` and the command does not run in the background.
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

/// `PostToolUse` comes after a success only, and has no status; `PostToolUseFailure` has an `error`
/// that begins with the status.
fn of_claude(event: &str, payload: &Value) -> Option<ToolRun> {
    let command = command(payload, &["Bash", "PowerShell"])?;
    match event {
        "PostToolUse" => {
            let response = payload.get("tool_response")?;
            // A handler that can only send texts sends the object as a text.
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

/// `PostToolUse` comes after successes and failures alike, and has only the output.
fn of_codex(payload: &Value) -> Option<ToolRun> {
    let command = command(payload, &["Bash"])?;
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

/// The output and the status of a text for the model, which begins with `Exit code: 1`,
/// `Wall time: …`, `Output:`.
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

/// `llmContent` is a text: `Output: …`, then lines `Error: …`, `Exit Code: 1` (none after a
/// success), `Signal: …`.
fn of_gemini(payload: &Value) -> Option<ToolRun> {
    let command = command(payload, &["run_shell_command"])?;
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

    // The fields come last, and the output before them may contain anything.
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

/// `tool.execute.after` as the plugin passes it on:
/// `{hook, input: {tool, args}, output: {output, metadata}}`.
fn of_opencode(payload: &Value) -> Option<ToolRun> {
    if text(payload, "/input/tool")? != "bash" {
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;
    use serde_json::json;
    use svc_outcome::{RunResult, judge};

    use super::*;

    const CLAUDE: &str = "claude/2.1.197/PostToolUse-Bash";
    const CLAUDE_FAILURE: &str = "claude/2.1.197/PostToolUseFailure-Bash";
    const CODEX: &str = "codex/0.169.0/PostToolUse-Bash";
    const GEMINI: &str = "gemini/0.61.0/AfterTool-run_shell_command";
    const GEMINI_FAILURE: &str = "gemini/0.61.0/AfterTool-run_shell_command-2";
    const OPENCODE: &str = "opencode/1.18.33/tool.execute.after-bash";
    const OPENCODE_FAILURE: &str = "opencode/1.18.33/tool.execute.after-bash-2";

    fn fixture(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The input of a captured hook.
    fn payload(path: &str) -> Value {
        let hook: Value = serde_json::from_str(&fixture(&format!("hooks/{path}.json"))).unwrap();
        hook["input"].clone()
    }

    /// What a hook with this payload reports, of the client that `path` names.
    fn run_of(path: &str, payload: &Value) -> Option<ToolRun> {
        let (client, _) = path.split_once('/').unwrap();
        let (_, hook) = path.rsplit_once('/').unwrap();
        let (event, _) = hook.split_once('-').unwrap();
        run_of_tool(HookClient::parse(client).unwrap(), event, payload)
    }

    #[test]
    fn captured_payloads_are_read() {
        let run = |command: &str, output: &str, exit_code, failed| {
            let (command, output) = (command.to_owned(), output.to_owned());
            Some(ToolRun { command, output, exit_code, failed, ..ToolRun::default() })
        };
        let mkdir = "mkdir -p sub && cd sub && echo two >> ../watched.txt";
        for (path, expected) in [
            (CLAUDE, run("echo one", "one", None, Some(false))),
            ("claude/2.1.197/PostToolUse-Bash-2", run(mkdir, "", None, Some(false))),
            (CLAUDE_FAILURE, run("false", "", Some(1), Some(true))),
            ("claude/2.1.197/PostToolUse-Edit", None),
            (CODEX, run("echo one", "one\n", None, None)),
            ("codex/0.169.0/PostToolUse-Bash-2", run("false", "", None, None)),
            ("codex/0.169.0/PostToolUse-apply_patch", None),
            (GEMINI, run("echo one", "one", Some(0), None)),
            (GEMINI_FAILURE, run("false", "", Some(1), None)),
            ("gemini/0.61.0/AfterTool-write_file", None),
            (OPENCODE, run("echo one", "one\n", Some(0), None)),
            (OPENCODE_FAILURE, run("false", "", Some(1), None)),
            ("opencode/1.18.33/tool.execute.after-write", None),
        ] {
            assert_eq!(run_of(path, &payload(path)), expected, "{path}");
        }
    }

    /// A captured payload with this command and another value at `pointer`.
    fn changed(path: &str, command: &str, pointer: &str, value: Value) -> Value {
        let mut payload = payload(path);
        for pointer in ["/tool_input/command", "/input/args/command"] {
            if let Some(value) = payload.pointer_mut(pointer) {
                *value = json!(command);
            }
        }
        let (object, member) = pointer.rsplit_once('/').unwrap();
        payload.pointer_mut(object).unwrap()[member] = value;
        payload
    }

    #[test]
    fn a_failing_test_is_seen_through_each_client() {
        let output = fixture("outcomes/pytest/fail.txt");
        let of_gemini = payload(GEMINI_FAILURE);
        let of_gemini = of_gemini["tool_response"]["llmContent"].as_str().expect("a text");
        for (path, command, pointer, value) in [
            (CLAUDE_FAILURE, "pytest", "/error", json!(format!("Exit code 1\n{output}"))),
            (CLAUDE, "pytest | tee log", "/tool_response/stdout", json!(output)),
            (CODEX, "pytest", "/tool_response", json!(output)),
            (
                GEMINI_FAILURE,
                "pytest",
                "/tool_response/llmContent",
                json!(of_gemini.replace("(empty)", &output)),
            ),
            (OPENCODE_FAILURE, "pytest", "/output/output", json!(output)),
        ] {
            let run = run_of(path, &changed(path, command, pointer, value));
            let verdict = judge(&run.expect("a shell command")).expect("a run");
            assert_eq!(
                (verdict.verdict, verdict.passed, verdict.failed),
                (RunResult::Fail, Some(1), Some(3)),
                "{path}: {}",
                verdict.summary
            );
        }
    }

    #[test]
    fn what_was_stopped_is_told_by_each_client() {
        let timed_out = "..\n\n<bash_metadata>\nbash tool terminated command after exceeding timeout 120000 ms\n</bash_metadata>";
        let cancelled = "Command was cancelled by user before it could complete. Output before cancellation: ..";
        let claude = "Exit code 143\nCommand timed out after 2m 0.0s\n..";
        for (path, pointer, value, expected) in [
            (CLAUDE, "/tool_response/interrupted", json!(true), (true, false)),
            (CLAUDE_FAILURE, "/is_interrupt", json!(true), (true, false)),
            (CLAUDE_FAILURE, "/error", json!(claude), (false, true)),
            (OPENCODE, "/output", json!({ "metadata": {}, "output": timed_out }), (false, true)),
            (GEMINI, "/tool_response/llmContent", json!(cancelled), (true, false)),
        ] {
            let run = run_of(path, &changed(path, "pytest", pointer, value));
            let run = run.expect("a shell command");
            assert_eq!((run.interrupted, run.timed_out), expected, "{path} {pointer}");
        }
        // A command that continues has no outcome yet.
        let background =
            changed(CLAUDE, "npm test", "/tool_response/backgroundTaskId", json!("b1"));
        assert_eq!(run_of(CLAUDE, &background), None);
    }

    proptest! {
        #[test]
        fn no_payload_makes_it_panic(told in any::<String>(), words in "[a-z:() %0-9\n]{0,200}") {
            for (path, pointer) in [
                (CLAUDE, "/tool_response/stdout"),
                (CLAUDE_FAILURE, "/error"),
                (CODEX, "/tool_response"),
                (GEMINI, "/tool_response/llmContent"),
                (OPENCODE, "/output/output"),
            ] {
                for told in [json!(told), json!(words), json!({}), json!([{"text": told}]), json!(3)] {
                    let mut payload = payload(path);
                    *payload.pointer_mut(pointer).expect("it is there") = told;
                    run_of(path, &payload);
                }
            }
        }
    }
}
