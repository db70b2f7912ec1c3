//! The protocol of an agent's host, read by a client that knows only the types of version 1.0. The
//! exchange of this client and a host is recorded in `fixtures/agenthost/` and must stay the same.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::agents::{ended, with_config};
use crate::daemon::{eventually, until};
use crate::expect::{events, text};
use crate::host::{Client, Host};
use crate::shapes::instant;

/// A stand-in for Claude Code that calls one tool, and ends with its input.
const SCRIPT: &str = r#"trap '' TERM
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
read prompt
echo '{"type":"system","subtype":"init","session_id":"s-1"}'
echo '{"type":"assistant","message":{"role":"assistant","content":[{"type":"tool_use","id":"t-1","name":"Bash","input":{"command":"ls -l","timeout":5}}]}}'
echo '{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t-1","content":"total 0"}]}}'
echo '{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"The folder is empty."}]}}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"The folder is empty.","usage":{"input_tokens":3,"output_tokens":4}}'
while read more; do :; done"#;

/// The types of protocol 1.0, member by member. A missing member has its type's zero value, an
/// unknown member is ignored, and a member of another type does not decode.
mod seed {
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct Response {
        #[serde(rename = "type")]
        pub(super) kind: String,
        pub(super) id: String,
        pub(super) success: bool,
        pub(super) error: String,
        pub(super) payload: serde_json::Value,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct PingResponse {
        pub(super) version: String,
        pub(super) protocol_version: String,
        pub(super) uptime: String,
        pub(super) started_at: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct HostInfo {
        pub(super) pid: i64,
        pub(super) version: String,
        pub(super) protocol_version: String,
        pub(super) started_at: String,
        pub(super) socket_path: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct AgentInfo {
        pub(super) id: String,
        pub(super) project: String,
        pub(super) state: String,
        pub(super) pid: i64,
        pub(super) worktree: String,
        pub(super) started_at: String,
        pub(super) task: String,
        pub(super) description: String,
        pub(super) backend: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct StatusResponse {
        pub(super) host: HostInfo,
        pub(super) agent: AgentInfo,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct ListResponse {
        pub(super) agents: Vec<AgentInfo>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct AttachResponse {
        pub(super) agent_id: String,
        pub(super) stream_offset: i64,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct HistoryEntry {
        pub(super) role: String,
        pub(super) content: String,
        pub(super) tool_name: String,
        pub(super) tool_input: String,
        pub(super) tool_result: String,
        pub(super) timestamp: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct HistoryResponse {
        pub(super) agent_id: String,
        pub(super) entries: Vec<HistoryEntry>,
        pub(super) offset: i64,
        pub(super) total: i64,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct StopResponse {
        pub(super) stopped: bool,
        pub(super) exit_code: i64,
        pub(super) graceful: bool,
        pub(super) duration: String,
        pub(super) final_state: String,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    pub(super) struct StreamEvent {
        #[serde(rename = "type")]
        pub(super) kind: String,
        pub(super) agent_id: String,
        pub(super) offset: i64,
        pub(super) timestamp: String,
        pub(super) data: String,
        pub(super) state: String,
        pub(super) chat_entry: Option<HistoryEntry>,
        pub(super) error: String,
    }
}

/// The messages that the client has decoded.
#[derive(Debug, Default)]
struct Understood {
    pings: Vec<seed::PingResponse>,
    statuses: Vec<seed::StatusResponse>,
    agents: Vec<seed::AgentInfo>,
    attached: Vec<seed::AttachResponse>,
    histories: Vec<seed::HistoryResponse>,
    stops: Vec<seed::StopResponse>,
    refused: Vec<seed::Response>,
    events: Vec<seed::StreamEvent>,
}

#[track_caller]
fn decoded<T: DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_else(|error| panic!("{error}: {value}"))
}

impl Understood {
    /// Decodes a message of the host by the types of 1.0.
    #[track_caller]
    fn take(&mut self, message: &Value) {
        if message.get("success").is_none() {
            self.events.push(decoded(message));
            return;
        }
        let response: seed::Response = decoded(message);
        assert!(response.id.starts_with("req-"), "{message}");
        let payload = &response.payload;
        match response.kind.as_str() {
            _ if !response.success => self.refused.push(response),
            "host.ping" => self.pings.push(decoded(payload)),
            "host.status" => self.statuses.push(decoded(payload)),
            "host.list" => self.agents.extend(decoded::<seed::ListResponse>(payload).agents),
            "host.attach" => self.attached.push(decoded(payload)),
            "host.history" => self.histories.push(decoded(payload)),
            "host.stop" => self.stops.push(decoded(payload)),
            "host.send" | "host.detach" => {}
            other => panic!("{other} was not asked"),
        }
    }
}

/// Requests and responses, in order.
struct Exchange {
    client: Client,
    asked: usize,
    lines: Vec<(bool, Value)>,
}

impl Exchange {
    fn with(host: &Host) -> Self {
        Self { client: host.client(), asked: 0, lines: Vec::new() }
    }

    fn ask(&mut self, kind: &str, payload: Option<&Value>) -> Value {
        self.asked += 1;
        let mut request = json!({ "type": kind, "id": format!("req-{}", self.asked) });
        if let Some(payload) = payload {
            request["payload"] = payload.clone();
        }
        self.client.write(format!("{request}\n").as_bytes());
        self.lines.push((true, request));
        let reply = self.client.line().expect("an answer");
        assert!(reply.get("success").is_some(), "{reply}");
        self.lines.push((false, reply.clone()));
        reply
    }

    /// Attaches, and reads the events up to one that exists already.
    fn attach(&mut self, after: u64, last: &Value) {
        self.ask("host.attach", Some(&json!({ "offset": after })));
        loop {
            let event = self.client.line().expect("the stream goes on");
            let is_last = event["offset"] == last["offset"];
            self.lines.push((false, event));
            if is_last {
                return;
            }
        }
    }
}

/// Replaces what differs from run to run by the value in the file.
fn settled(name: &str, value: &mut Value) {
    let fixed = match (name, &*value) {
        (_, Value::Object(_) | Value::Array(_)) => {
            if let Value::Object(members) = value {
                for (name, value) in members.iter_mut() {
                    settled(name, value);
                }
            } else if let Value::Array(items) = value {
                for item in items.iter_mut() {
                    settled("", item);
                }
            }
            return;
        }
        ("timestamp" | "started_at", _) => {
            instant(value);
            json!("2026-11-26T12:00:00.000Z")
        }
        ("pid", pid) if pid != 0 => json!(4711),
        ("version", _) => json!("0.1.0"),
        // Another client may still be attached.
        ("attached", _) => json!(1),
        ("uptime", _) => json!("0s"),
        ("duration", _) => json!("16ms"),
        ("epoch", _) => json!("f19176a84a005fc3"),
        ("message_id", _) => json!("msg_01m8cegxbme6kavddaw0gy31zs"),
        ("socket_path", _) => json!("/home/me/.local/share/svc/agents/ag_one.sock"),
        ("worktree", _) => json!("/home/me/app"),
        _ => return,
    };
    *value = fixed;
}

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/agenthost/exchange.ndjson")
}

/// The lines of the file: whether the client sends it, and its content.
fn recorded() -> Vec<(bool, Value)> {
    let file = std::fs::read_to_string(fixture()).expect("is there");
    let line = |line: &str| {
        let (side, message) = line.split_once(' ').expect("a side and a message");
        (side == ">", serde_json::from_str(message).expect("JSON"))
    };
    file.lines().map(line).collect()
}

/// A whole life of an agent, as a client of version 1.0 sees it.
fn exchange() -> Vec<(bool, Value)> {
    let more =
        json!({ "backend": "claude", "task": "t", "description": "d", "project": "/home/me/app" });
    let host = Host::with(&["sh", "-c", SCRIPT], &more);
    host.client().events_until(0, |event| event["state"] == "idle");
    let mut exchange = Exchange::with(&host);
    exchange.ask("host.ping", None);
    exchange.ask("host.status", None);
    exchange.ask("host.list", None);
    exchange.ask("host.history", Some(&json!({ "limit": 0 })));
    exchange.ask("host.send", Some(&json!({ "input": "what is here?" })));
    let turn = host.client().events_until(0, |event| event.get("turn").is_some());
    exchange.attach(0, turn.last().expect("some"));
    exchange.ask("host.status", None);
    exchange.ask("host.detach", None);
    exchange.ask("host.history", Some(&json!({ "limit": 3 })));
    exchange.ask("host.attach", Some(&json!({ "offset": 4711 })));
    exchange.ask("host.nope", None);
    let stop = json!({ "force": false, "timeout": 20, "reason": "enough" });
    exchange.ask("host.stop", Some(&stop));
    exchange.ask("host.send", Some(&json!({ "input": "late" })));
    let whole = host.client().events_until(0, |event| event["type"] == "exit");
    exchange.attach(turn.len() as u64, whole.last().expect("some"));
    exchange.lines
}

#[test]
fn client_of_protocol_1_0_decodes_every_message() {
    let live = exchange();
    let recorded = recorded();
    for lines in [&live, &recorded] {
        let mut understood = Understood::default();
        lines.iter().filter(|(is_asked, _)| !is_asked).for_each(|(_, it)| understood.take(it));
        let Understood { pings, statuses, agents, attached, histories, stops, refused, events } =
            understood;
        assert!(pings[0].protocol_version.starts_with("1.") && !pings[0].uptime.is_empty());
        assert!(!pings[0].version.is_empty() && !statuses[0].host.version.is_empty());
        for at in [&pings[0].started_at, &statuses[0].host.started_at, &agents[0].started_at] {
            instant(&json!(at));
        }
        assert_eq!(statuses[0].host.protocol_version, pings[0].protocol_version);
        assert!(statuses[0].host.pid > 0 && statuses[0].host.socket_path.ends_with("ag_one.sock"));
        let agent = &statuses[1].agent;
        assert!(agent.pid > 0 && agent.pid == agents[0].pid, "{agent:?}");
        let told = [&agent.id, &agent.project, &agent.state, &agent.task, &agent.description];
        assert_eq!(told, ["ag_one", "/home/me/app", "idle", "t", "d"]);
        assert!(agent.backend == "claude" && !agent.worktree.is_empty(), "{agent:?}");
        assert!(attached.iter().all(|it| it.agent_id == "ag_one"));
        assert_eq!(attached[0].stream_offset, histories[1].offset);
        assert_eq!((histories[0].total, histories[1].total), (0, 4));
        assert_eq!(histories[1].agent_id, "ag_one");
        let [call, result, words] = &*histories[1].entries else { panic!("{histories:?}") };
        assert_eq!((&*call.role, &*call.tool_name), ("tool", "Bash"));
        assert_eq!(call.tool_input, r#"{"command":"ls -l","timeout":5}"#);
        assert_eq!((&*result.tool_result, &*words.content), ("total 0", "The folder is empty."));
        assert_eq!(words.role, "assistant");
        for entry in &histories[1].entries {
            instant(&json!(entry.timestamp));
        }
        let stop = &stops[0];
        assert!(stop.stopped && stop.graceful && !stop.duration.is_empty(), "{stop:?}");
        assert_eq!((stop.exit_code, &*stop.final_state), (0, "done"));
        assert_eq!(refused.len(), 3, "{refused:?}");
        assert!(refused.iter().all(|it| !it.error.is_empty()), "{refused:?}");
        let numbered = events.iter().filter(|event| event.offset > 0);
        assert!(numbered.map(|event| event.offset).eq(1..=20), "{events:?}");
        for event in &events {
            instant(&json!(event.timestamp));
            assert!(event.agent_id == "ag_one" && event.error.is_empty(), "{event:?}");
            assert_eq!(event.kind == "state", !event.state.is_empty(), "{event:?}");
            assert_eq!(event.kind == "chat_entry", event.chat_entry.is_some(), "{event:?}");
            assert!(event.kind != "output" || event.data.starts_with('{'), "{event:?}");
        }
    }
    let mut settled_lines = live;
    for (_, line) in &mut settled_lines {
        settled("", line);
    }
    // The number and sizes of deltas differ from run to run.
    settled_lines.retain(|(_, line)| line["type"] != "delta");
    for (number, (said, written)) in settled_lines.iter().zip(&recorded).enumerate() {
        assert_eq!(said, written, "line {} of {}", number + 1, fixture().display());
    }
    assert_eq!(settled_lines.len(), recorded.len());
}

#[test]
fn events_and_history_have_the_same_types_over_http() {
    let config = format!(
        "[agents.worker]\nbackend = \"claude\"\ncommand = [\"sh\", \"-c\", '''{SCRIPT}''']\n"
    );
    let d = with_config(&config);
    let body = json!({ "instance": "worker", "cwd": d.home.user(), "prompt": "what is here?" });
    let id = text(&d.post("/v1/hosts", &body).ok(201), "id");
    let history = |query: &str| d.get(&format!("/v1/hosts/{id}/history{query}")).ok(200);
    eventually(std::time::Duration::from_mins(1), || history("")["total"] == 4);
    let check = |page: &Value| {
        let read: seed::HistoryResponse = decoded(page);
        let call = read.entries.iter().find(|entry| !entry.tool_input.is_empty()).expect("a call");
        assert_eq!(call.tool_input, r#"{"command":"ls -l","timeout":5}"#);
        for entry in &read.entries {
            instant(&json!(entry.timestamp));
        }
        let offsets: Vec<u64> = page["entries"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| entry["offset"].as_u64().expect("an offset"))
            .collect();
        assert_eq!(history(&format!("?before={}", offsets[2]))["total"], 2, "{offsets:?}");
    };
    // From its host, and from the log.
    check(&history(""));
    d.post(&format!("/v1/hosts/{id}/stop"), &json!({})).ok(200);
    ended(&d, &id);
    check(&history(""));
    let log = until(std::time::Duration::from_mins(1), || {
        let log = events(&d, &format!("agent/{id}"));
        log.iter().any(|event| event["kind"] == "exit").then_some(log)
    });
    for event in &log {
        let read: seed::StreamEvent = decoded(&event["data"]);
        instant(&json!(read.timestamp));
        assert_eq!(json!(read.kind), event["kind"], "{event}");
        assert_eq!(json!(read.offset), event["seq"], "{event}");
    }
}
