//! The exact texts that models get: each is recorded in `fixtures/words`, with ids in capitals in
//! place of those of a run. `SVC_BLESS=1` records the present texts; then read the difference.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, PATIENT, Running, hook_payload};
use crate::expect::text;
use crate::wire::tool_call;

const SOON: Duration = Duration::from_secs(20);
/// Most characters around a text, besides the key of its sender's session.
const AROUND: usize = 350;

/// The context of a Claude Code hook.
#[track_caller]
fn hooked(d: &Daemon, session: &str, event: &str, more: &Value) -> String {
    let payload = hook_payload(session, event, "/nowhere/web", more);
    d.home.hook("claude", &payload).context()
}

/// Texts by the name of their file.
struct Words {
    said: Vec<(&'static str, String)>,
}

impl Words {
    fn say(&mut self, name: &'static str, text: &str) {
        let mut masked = String::new();
        for word in text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            let id = word.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let kind =
                id.split_once('_').filter(|(_, rest)| rest.len() == 26).map(|(kind, _)| kind);
            match kind {
                Some(kind) => {
                    masked.push_str(&word.replacen(id, &format!("{}_ID", kind.to_uppercase()), 1));
                }
                None => masked.push_str(word),
            }
        }
        self.said.push((name, masked));
    }

    /// A message: the text around it is short.
    fn say_message(&mut self, name: &'static str, text: &str, key: &str) {
        let around: usize = text
            .lines()
            .filter(|line| !line.starts_with("> "))
            .map(|line| line.chars().count() + 1)
            .sum();
        let keys = if key.is_empty() { 0 } else { text.matches(key).count() * key.len() };
        assert!(around - keys <= AROUND, "{name}: {} around {text}", around - keys);
        self.say(name, text);
    }

    /// Asserts that each text equals its file, and each file belongs to a text.
    #[track_caller]
    fn check(self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/words");
        let bless = std::env::var_os("SVC_BLESS").is_some();
        let mut wrong = Vec::new();
        for (name, said) in &self.said {
            let file = folder.join(name).with_extension("txt");
            let said = format!("{said}\n");
            if bless {
                std::fs::write(&file, &said).expect("it is written");
            }
            let known = std::fs::read_to_string(&file).unwrap_or_default();
            if known != said {
                wrong.push(format!("--- {name}\n{known}+++\n{said}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let files: BTreeSet<String> = std::fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| {
                entry
                    .expect("a file")
                    .path()
                    .file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        let names: BTreeSet<String> =
            self.said.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(files, names);
    }
}

#[test]
fn texts_for_models_match_their_fixtures() {
    let d = Daemon::start();
    let mut words = Words { said: Vec::new() };
    assert_eq!(hooked(&d, "s-1", "SessionStart", &json!({ "source": "startup" })), "");
    let peers = d.get("/v1/peers").ok(200);
    let peers = peers["peers"].as_array().expect("peers");
    let to =
        text(peers.iter().find(|peer| peer["session_id"] == "s-1").expect("a peer"), "peer_id");
    let sender = json!({ "display_name": "codex@api", "backend": "codex", "session_id": "s-2" });
    let from = text(&d.post("/v1/peers/register", &sender).ok(200), "peer_id");
    let key = "agent:codex:s-2";
    let inbox = format!("/v1/peers/{to}/messages");
    // A question of its own, which answers name.
    let asked = json!({ "to": from, "text": "is main green?", "type": "query", "from_peer": to });
    let question = text(&d.done("peer_send", &asked), "id");
    let told = || hooked(&d, "s-1", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    for (name, kind, correlation, sender) in [
        ("question", "query", None, Some(&from)),
        ("answer", "response", Some(&question), Some(&from)),
        ("notification", "notification", None, Some(&from)),
        ("question_of_the_person", "query", None, None),
        ("answer_of_the_person", "response", Some(&question), None),
        ("notification_of_the_person", "notification", None, None),
    ] {
        let mut message = json!({ "text": "The price on the cart page\nis wrong.", "type": kind });
        if let Some(id) = correlation {
            message["correlation_id"] = json!(id);
        }
        if let Some(sender) = sender {
            message["from_peer"] = json!(sender);
        }
        d.post(&inbox, &message).ok(200);
        words.say_message(name, &told(), if sender.is_some() { key } else { "" });
    }
    let all = json!({ "text": "main is frozen", "from_peer": from });
    d.post("/v1/peers/broadcast", &all).ok(200);
    words.say_message("broadcast", &told(), key);
    let long = json!({ "text": "long ".repeat(700), "type": "query", "from_peer": from });
    d.post(&inbox, &long).ok(200);
    let text_of_long = told();
    let (before, after) = text_of_long.split_once("\n> ").expect("a quotation");
    let after: Vec<&str> = after.lines().skip(1).collect();
    words.say("cut_question", &format!("{before}\n> long …\n{}", after.join("\n")));
    for text in ["one", "two"] {
        d.post(&inbox, &json!({ "text": text, "from_peer": from })).ok(200);
    }
    words.say("two_messages", &told());
    // The text that wakes an idle session names the sender, and nothing twice.
    let end_turn = || assert_eq!(hooked(&d, "s-1", "Stop", &json!({})), "");
    end_turn();
    let woken = || {
        let stop = json!({ "session_id": "s-1", "hook_event_name": "Stop", "cwd": "/nowhere/web" });
        let mut command = d.home.command(&["hook", "wait"]);
        command.envs([PATIENT, ("AI_AGENT", "claude-code_2-1-330_harness")]);
        let ran = Running::fed(command, stop.to_string().as_bytes()).wait(SOON);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        told();
        end_turn();
        ran.stderr.trim_end().to_owned()
    };
    let question = "The price on the cart page is wrong. ".repeat(11);
    for (name, kind, sender) in [
        ("wake_by_a_question", "query", Some(&from)),
        ("wake_by_a_notification", "notification", Some(&from)),
        ("wake_by_a_question_of_the_person", "query", None),
    ] {
        let mut message = json!({ "text": question, "type": kind });
        if let Some(sender) = sender {
            message["from_peer"] = json!(sender);
        }
        d.post(&inbox, &message).ok(200);
        let text = woken();
        assert_eq!(text.matches("The price on").count(), 11, "nothing twice: {text}");
        words.say_message(name, &text, if sender.is_some() { key } else { "" });
    }
    for text in ["one", "two"] {
        d.post(&inbox, &json!({ "text": text })).ok(200);
    }
    words.say("wake_by_two_messages", &woken());
    let fyi =
        json!({ "to": from, "text": "main is frozen", "type": "notification", "from_peer": to });
    let fyi = text(&d.done("peer_send", &fyi), "id");
    let thanks =
        json!({ "text": "Thanks.", "type": "response", "correlation_id": fyi, "from_peer": from });
    d.post(&inbox, &thanks).ok(200);
    words.say_message("answer_to_a_notification", &told(), key);
    // The session of the hooks belongs to the project in which its client runs.
    let project = d.get(&format!("/v1/peers/{to}")).ok(200)["path"].clone();
    let input = json!({ "session": "s-7", "project": project });
    let asker = d.minted(&input);
    let arguments = json!({ "sessionKey": "agent:claude:s-1", "message": "Is main green?", "timeoutSeconds": 0 });
    let ask = tool_call("sessions_send", &arguments);
    let asked = asker.post("/mcp", &ask).ok(200)["result"]["structuredContent"].clone();
    assert_eq!(asked["status"], "accepted", "{asked}");
    words.say_message("question_of_a_session", &told(), "agent:mcp:s-7");
    d.post(&inbox, &json!({ "text": "bye", "type": "query", "from_peer": from })).ok(200);
    d.delete(&format!("/v1/peers/{from}"));
    words.say_message("question_of_one_that_is_gone", &told(), "");
    // The session has it now.
    assert_eq!(told(), "");

    let record = json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": "the price is right", "hypothesis": "the cache is stale",
        "action": "log its age", "prediction": "it is older than a minute", "session_id": "s-1",
    });
    d.done("start_ghap", &record);
    words.say("own_record", &hooked(&d, "s-1", "SessionStart", &json!({ "source": "resume" })));
    hooked(&d, "s-1", "SessionEnd", &json!({ "reason": "other" }));
    let orphan = hooked(&d, "s-3", "SessionStart", &json!({ "source": "startup" }));
    let undated: Vec<&str> = orphan.split(", last changed ").collect();
    let rest = undated[1].split_once("Z. ").expect("a time").1;
    words.say("record_left_open", &format!("{}, last changed TIME. {rest}", undated[0]));
    assert_eq!(
        hooked(&d, "s-4", "SessionStart", &json!({ "source": "startup" })),
        "",
        "told of once"
    );

    let begin = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
    });
    let instructions = |caller: &crate::wire::Caller| {
        let result = caller.post("/mcp", &begin).ok(200)["result"].clone();
        text(&result, "instructions")
    };
    let ada = d.session("s-8");
    let own = json!({ "display_name": "ada", "backend": "codex", "session_id": "s-8" });
    ada.post("/v1/peers/register", &own).ok(200);
    words.say("instructions", &instructions(&ada));
    words.say("instructions_without_a_peer", &instructions(&d.session("s-9")));
    words.say("instructions_of_the_operator", &instructions(&d));
    words.check();
}
