//! Delivery states of messages, for people.

use serde_json::Value;

use super::output::{cell, visible};

/// When a message that was just sent reaches its receiver, as a clause. Empty if the daemon is an
/// earlier version that does not say.
pub(super) fn when<'a>(sent: &'a Value, receiver: &Value) -> &'a str {
    let status = cell(receiver, "status");
    match sent["delivery"].as_str().unwrap_or_default() {
        "wakes" => "the message wakes it now",
        "now" => "it gets the message in its present turn",
        "next_turn" if status == "idle" => {
            "it reads the message when somebody types there: the message does not wake it"
        }
        "next_turn" if receiver["waiting_for"]["kind"] == "limit" => {
            "it reads the message when its usage limit is over"
        }
        // In a terminal OpenCode has no hook at the end of a turn that delivers messages.
        "next_turn" if receiver["backend"] == "opencode" && receiver["agent"].is_null() => {
            "it reads the message with its next tool call, or when somebody types there"
        }
        "next_turn" => "it reads the message in its next turn",
        "when_back" => "it gets the message when it is back",
        "never" => "its agent has ended, and the message cannot be delivered",
        // A state of a later daemon.
        other => other,
    }
}

/// Like `when`, after the state of the receiver, and with what a person has to do before the
/// receiver goes on.
pub(super) fn expected(sent: &Value, receiver: &Value) -> String {
    let status = cell(receiver, "status");
    let mut words = match when(sent, receiver) {
        "" => format!("which is {status}"),
        when => format!("which is {status}: {when}"),
    };
    if let Some(needs) = needs(receiver) {
        words.push_str("; ");
        words.push_str(&needs);
    }
    words
}

/// What a person has to do before a receiver goes on; `None` if nothing.
pub(super) fn needs(receiver: &Value) -> Option<String> {
    let is_asked =
        matches!(receiver["waiting_for"]["kind"].as_str(), Some("permission" | "question"));
    if receiver["status"] != "waiting" || !is_asked {
        return None;
    }
    Some(match receiver["agent"].as_str() {
        Some(key) => {
            format!("it needs your answer first: svc agent answer {} latest OPTION", visible(key))
        }
        None => "somebody has to answer at its terminal first".to_owned(),
    })
}

pub(super) fn state(state: &str) -> &str {
    match state {
        "accepted" => "taken by the daemon",
        "queued" => "waits in the inbox",
        "offered" => "was given to the receiver's client",
        "injected" => "the receiver has it",
        "acked" => "acknowledged",
        "expired" => "waited too long and is gone",
        "refused" => "not taken",
        "undeliverable" => "cannot be delivered",
        other => other,
    }
}

/// The call that sent a message.
pub(super) fn source(provenance: &Value) -> Option<String> {
    let call = match provenance.get("sourceTool").and_then(Value::as_str)? {
        "peer_send" => "a message to one peer",
        "peer_broadcast" => "a message to all",
        "sessions_send" => "a message from session to session",
        "sessions_spawn" => "the end of an agent that was started for it",
        "SendMessage" => "the end of work that was asked for",
        "agent_request" => "a request of an agent for permission",
        other => other,
    };
    Some(match provenance.get("sourceSessionKey").and_then(Value::as_str) {
        Some(session) => format!("{call}, from {session}"),
        None => call.to_owned(),
    })
}

/// Whether a message in a list is an unanswered question.
pub(super) fn is_open(message: &Value) -> bool {
    message["type"] == "query"
        && message["answered"] == false
        && !matches!(&*cell(message, "state"), "expired" | "refused" | "undeliverable")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_delivery_kind_has_a_text() {
        for (delivery, words) in [
            ("wakes", "wakes it now"),
            ("now", "in its present turn"),
            ("next_turn", "does not wake it"),
            ("when_back", "when it is back"),
            ("never", "its agent has ended, and the message cannot be delivered"),
        ] {
            let said = expected(&json!({ "delivery": delivery }), &json!({ "status": "idle" }));
            assert!(said.starts_with("which is idle: ") && said.ends_with(words), "{said}");
        }
        let next = json!({ "delivery": "next_turn" });
        let busy = expected(&next, &json!({ "status": "busy" }));
        assert_eq!(busy, "which is busy: it reads the message in its next turn");
        let idle = json!({ "status": "idle" });
        assert_eq!(expected(&json!({}), &idle), "which is idle", "of an earlier daemon");
    }

    #[test]
    fn blocked_receiver_says_what_it_needs() {
        let waiting = |kind: &str, agent: Option<&str>| {
            let receiver =
                json!({ "status": "waiting", "waiting_for": { "kind": kind }, "agent": agent });
            expected(&json!({ "delivery": "next_turn" }), &receiver)
        };
        let hosted = waiting("permission", Some("agent:claude:main"));
        assert!(
            hosted.ends_with(
                "; it needs your answer first: svc agent answer agent:claude:main latest OPTION"
            ),
            "{hosted}"
        );
        let attended = waiting("question", None);
        assert!(attended.ends_with("; somebody has to answer at its terminal first"), "{attended}");
        let limited = waiting("limit", Some("agent:claude:main"));
        assert!(limited.ends_with("when its usage limit is over"), "{limited}");
    }

    #[test]
    fn question_is_open_until_answered_or_undeliverable() {
        let message = |kind: &str, answered: bool, state: &str| json!({ "type": kind, "answered": answered, "state": state });
        assert!(is_open(&message("query", false, "acked")));
        assert!(!is_open(&message("query", true, "acked")));
        assert!(!is_open(&message("query", false, "undeliverable")));
        assert!(!is_open(&message("notification", false, "queued")));
    }
}
