//! Prints an agent, its end, its history and what became of an input.

use std::process::ExitCode;

use serde_json::{Map, Value};

use super::agent_attach::{entry_text, paragraph};
use super::{Context, output};

const AGENT_FIELDS: [&str; 8] =
    ["agent", "state", "session key", "instance", "backend", "folder", "started", "pid"];

pub(super) fn print_agent(context: &Context, agent: Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&agent)?;
    } else {
        output::object(&context.screen, &labelled(agent), &AGENT_FIELDS)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces the names of fields by labels, and omits a process that has ended.
fn labelled(agent: Value) -> Value {
    let Value::Object(fields) = agent else { return agent };
    let is_stopped = fields.get("state").is_some_and(|state| state == "done");
    let fields = fields.into_iter().filter(|(key, value)| key != "pid" || *value != 0);
    let fields = fields.map(|(key, value)| {
        if key == "signal" {
            return ("ended by".to_owned(), ended_by(&value, is_stopped).into());
        }
        let label = match key.as_str() {
            "id" => "agent".to_owned(),
            "worktree" => "folder".to_owned(),
            "host_pid" => "host's pid".to_owned(),
            "socket_path" => "socket".to_owned(),
            "started_at" => "started".to_owned(),
            "ended_at" => "ended".to_owned(),
            other => other.replace('_', " "),
        };
        (label, value)
    });
    fields.collect::<Map<String, Value>>().into()
}

/// What a signal that ended an agent's program means. It is no crash if somebody stopped the agent.
fn ended_by(signal: &Value, is_stopped: bool) -> String {
    let name = match signal.as_i64() {
        Some(2) => "SIGINT",
        Some(9) => "SIGKILL",
        Some(15) => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    let by_svc = if is_stopped { "svc" } else { "another program, or the system" };
    format!("{by_svc} ({name})")
}

/// Prints how a stopped agent ended.
pub(super) fn print_stopped(
    context: &Context,
    agent: &str,
    stopped: &Value,
) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(stopped)?;
    } else {
        output::line(&stopped_in_words(agent, stopped))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The sentence for the end of a stopped agent.
fn stopped_in_words(agent: &str, stopped: &Value) -> String {
    let agent = output::visible(agent);
    if stopped["stopped"] != true {
        return format!("{agent} has not ended yet: `svc agent status {agent}` says how it is");
    }
    let how = match (stopped["exit_code"].as_i64(), &stopped["signal"]) {
        (Some(code), _) => format!("; its program ended with exit code {code}"),
        (None, Value::Null) => String::new(),
        (None, signal) => format!("; it was stopped by {}", ended_by(signal, true)),
    };
    let state = match stopped["final_state"].as_str() {
        None | Some("done") => String::new(),
        Some(state) => format!("; its state is {}", output::visible(state)),
    };
    format!("{agent} has ended{how}{state}")
}

pub(super) fn print_history(context: &Context, page: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(page)?;
    } else {
        for entry in output::items(page, "entries") {
            paragraph(&entry_text(entry))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Confirms that an agent's host has an input, and whether the present turn takes it.
pub(super) fn print_sent(
    context: &Context,
    sent: &Value,
    is_steering: bool,
) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(sent)?;
    } else {
        output::object(&context.screen, sent, &["message_id", "queued"])?;
        if let Some(note) = not_steered(sent, is_steering) {
            output::note(note);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The note for an input that was meant for the present turn and waits for the next one.
fn not_steered(sent: &Value, is_steering: bool) -> Option<&'static str> {
    let is_queued = is_steering && sent["queued"] == true;
    is_queued.then_some("svc: this agent takes nothing in a turn: the input begins its next one")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn late_steering_input_is_reported() {
        let sent = |queued: bool| json!({ "message_id": "m", "queued": queued });
        assert!(not_steered(&sent(true), true).is_some_and(|note| note.contains("next one")));
        assert_eq!(not_steered(&sent(false), true), None);
        assert_eq!(not_steered(&sent(true), false), None);
    }

    #[test]
    fn ended_agent_is_shown_without_its_process() {
        let shown = labelled(json!({
            "id": "ag_1", "worktree": "/srv", "pid": 0, "host_pid": 7, "started_at": "x", "exit_code": 1,
        }));
        let wanted = json!({
            "agent": "ag_1", "folder": "/srv", "host's pid": 7, "started": "x", "exit code": 1,
        });
        assert_eq!(shown, wanted);
        assert_eq!(labelled(json!({ "pid": 5 })), json!({ "pid": 5 }));
        let ended =
            |state: &str| labelled(json!({ "state": state, "signal": 9 }))["ended by"].clone();
        assert_eq!(ended("done"), "svc (SIGKILL)");
        assert_eq!(ended("error"), "another program, or the system (SIGKILL)");
    }

    #[test]
    fn stop_is_reported_in_a_sentence() {
        let told = |stopped: &Value| stopped_in_words("agent:claude:main", stopped);
        for (stopped, sentence) in [
            (
                json!({ "stopped": true, "exit_code": 0, "graceful": true, "final_state": "done" }),
                "agent:claude:main has ended; its program ended with exit code 0",
            ),
            (
                json!({ "stopped": true, "signal": 9, "final_state": "done" }),
                "agent:claude:main has ended; it was stopped by svc (SIGKILL)",
            ),
            (
                json!({ "stopped": true, "exit_code": 3, "final_state": "error" }),
                "agent:claude:main has ended; its program ended with exit code 3; its state is error",
            ),
            (
                json!({ "stopped": false }),
                "agent:claude:main has not ended yet: `svc agent status agent:claude:main` says how it is",
            ),
        ] {
            assert_eq!(told(&stopped), sentence);
        }
    }
}
