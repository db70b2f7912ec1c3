//! `svc events`: lists and follows the log, with events as sentences for people.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use svc_client::{Client, FollowGap, FollowItem, Follower, with_query};
use svc_model::GapReason;

use super::output::{self, Column, Listing, Screen, Style, clock, short, visible};
use super::people::OperatorPresence;
use super::{Context, ExitResult, UsageError};

const LIST: Listing = Listing {
    items: "events",
    columns: &[
        Column::number("POSITION", "position"),
        Column::text("STREAM", "stream"),
        Column::number("SEQ", "seq").rank(2),
        Column::text("KIND", "kind"),
        Column::time("AT", "at").rank(1),
        Column::text("DATA", "data"),
    ],
    empty: "no events",
    next: Some("--after"),
};

#[derive(Debug, Subcommand)]
pub(super) enum EventsCommand {
    /// List a page of events
    #[command(after_help = "Example:\n  svc events list --stream team --limit 20")]
    List {
        #[command(flatten)]
        select: Select,
        /// How many, 1 to 500
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
    },
    /// Print events as they happen, until you stop it; survives restarts of the daemon
    #[command(
        after_help = "Examples:\n  svc events tail --after latest\n  svc events tail --prefix task/ --json | jq .data\n\n\
        Starts at the beginning unless --after says otherwise."
    )]
    Tail {
        #[command(flatten)]
        select: Select,
    },
}

#[derive(Debug, Clone, Args)]
pub(super) struct Select {
    /// Only this stream, such as team or task/<id>
    #[arg(long, conflicts_with = "prefix")]
    stream: Option<String>,
    /// Only streams whose names begin with this, such as task/
    #[arg(long)]
    prefix: Option<String>,
    /// Only this kind, such as peer.status
    #[arg(long)]
    kind: Option<String>,
    /// Start after this number: the seq with --stream, else the position; for tail also `latest`
    #[arg(long, value_name = "N")]
    after: Option<String>,
}

impl Select {
    fn path(&self, limit: Option<&str>) -> String {
        let query = [
            ("stream", self.stream.as_deref()),
            ("stream_prefix", self.prefix.as_deref()),
            ("kind", self.kind.as_deref()),
            ("after", self.after.as_deref()),
            ("limit", limit),
        ];
        with_query("/v1/events", &query)
    }

    fn check(&self, may_be_latest: bool) -> Result<(), UsageError> {
        match self.after.as_deref() {
            Some("latest") if may_be_latest => Ok(()),
            Some(after) if after.parse::<u64>().is_err() => {
                let or_latest = if may_be_latest { " and not `latest`" } else { "" };
                Err(UsageError(format!("--after {after}: not a number{or_latest}")))
            }
            _ => Ok(()),
        }
    }
}

pub(super) async fn run(context: &Context, command: EventsCommand) -> ExitResult {
    match command {
        EventsCommand::List { select, limit } => {
            select.check(false)?;
            let limit = limit.map(|limit| limit.to_string());
            let page: Value = context.client()?.get(&select.path(limit.as_deref())).await?;
            LIST.print(context, &page)
        }
        EventsCommand::Tail { select } => {
            select.check(true)?;
            tail(context, &select).await
        }
    }
}

async fn tail(context: &Context, select: &Select) -> ExitResult {
    let _presence = OperatorPresence::keep(context);
    let mut feed = TerminalFeed::default();
    if !context.json {
        feed = TerminalFeed::with_names(&context.client()?).await;
    }
    let mut follower = Follower::new(context.discovery()?, select.path(None));
    while let Some(item) = follower.next().await? {
        match item {
            FollowItem::Event { data, .. } => {
                let item: Value = serde_json::from_str(&data)?;
                if context.json {
                    output::ndjson(&item)?;
                } else if item["kind"] != "delta" {
                    // A delta is output of an unfinished entry; the event of the whole entry
                    // follows.
                    output::styled_line(&feed.line(&context.screen.at_present(), &item))?;
                }
            }
            other => note(&other),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The sentence for a gap. Retention keeps the last event of each stream, so the events that are
/// left need not be consecutive.
fn gone(gap: &FollowGap) -> String {
    let reason = gap.reason.map_or("for an unknown reason", GapReason::as_str);
    let (first, last) = (gap.requested.saturating_add(1), gap.oldest.saturating_sub(1));
    match first.cmp(&last) {
        Ordering::Less => format!("events {first} to {last} are gone ({reason})"),
        Ordering::Equal => format!("event {first} is gone ({reason})"),
        Ordering::Greater => {
            format!("some of the events after {} are gone ({reason})", gap.requested)
        }
    }
}

pub(super) fn note(item: &FollowItem) {
    match item {
        FollowItem::Event { .. } => {}
        FollowItem::Gap(gap) if gap.is_set_back() => output::note(&format!(
            "svc: the log was restored and is shorter (cursor {}, end {}); all events follow from its start",
            gap.requested, gap.latest
        )),
        FollowItem::Gap(gap) => output::note(&format!("svc: {}", gone(gap))),
        FollowItem::Disconnected { .. } => {
            output::note("svc: lost the daemon; resuming as soon as it answers");
        }
        FollowItem::Resumed => output::note("svc: resumed"),
    }
}

/// Renders events as sentences. Keeps names of participants, since events of messages have ids
/// only.
#[derive(Debug, Default)]
pub(super) struct TerminalFeed {
    names: HashMap<String, String>,
}

impl TerminalFeed {
    /// Reads the names of the participants; goes on without names if the daemon does not respond.
    pub(super) async fn with_names(client: &Client) -> Self {
        let mut feed = Self::default();
        if let Ok(page) = client.get::<Value>("/v1/peers?limit=500").await {
            for peer in output::items(&page, "peers") {
                feed.learn(peer);
            }
        }
        feed
    }

    fn learn(&mut self, peer: &Value) {
        if let (Some(id), Some(name)) = (text(peer, "peer_id"), text(peer, "display_name")) {
            self.names.insert(id.to_owned(), name.to_owned());
        }
    }

    /// One event on one line. For a program the line has the stream and `seq`, too.
    pub(super) fn line(&mut self, screen: &Screen, item: &Value) -> String {
        let data = &item["data"];
        self.learn(data);
        let at = clock(screen, text(item, "at").unwrap_or_default());
        let stream = text(item, "stream").unwrap_or_default();
        let kind = text(item, "kind").unwrap_or_default();
        let (style, sentence) = self.sentence(screen, stream, kind, data);
        let sentence = visible(&sentence);
        if let Some(width) = screen.width {
            // The width of the time without its colour codes.
            let time =
                clock(&Screen { color: false, ..*screen }, text(item, "at").unwrap_or_default());
            let room = usize::from(width).saturating_sub(time.chars().count() + 2);
            let sentence = output::cut(sentence, room);
            let sentence = if screen.color { style.paint(&sentence) } else { sentence };
            return format!("{at}  {sentence}");
        }
        let seq = output::cell(item, "seq");
        format!("{at} {} #{seq} {} {sentence}", visible(stream), visible(kind))
    }

    fn sentence(&self, screen: &Screen, stream: &str, kind: &str, data: &Value) -> (Style, String) {
        let cell = |key: &str| output::cell(data, key);
        let who = |key: &str| self.who(screen, data, key);
        let state = |key: &str| output::state_style(text(data, key).unwrap_or_default());
        let style = match kind {
            "peer.registered" | "session.started" | "daemon.started" => Style::Good,
            "peer.updated" | "peer.removed" | "session.ended" | "daemon.stopped" => Style::Dim,
            "peer.status" | "task" | "terminal" | "ghap.started" | "ghap.updated"
            | "ghap.resolved" | "ghap.adopted" => state("status"),
            "frame" => Style::Plain,
            "reply" => Style::Busy,
            "outcome.recorded" => {
                if text(data, "verdict") == Some("fail") {
                    Style::Bad
                } else {
                    Style::Good
                }
            }
            _ => state("state"),
        };
        let sentence = match kind {
            "peer.registered" => format!("{} is here ({})", who("peer_id"), cell("backend")),
            "peer.updated" => format!("{} says more about itself", who("peer_id")),
            "peer.removed" => format!("{} was removed", who("peer_id")),
            "peer.status" => {
                let (status, previous) = (cell("status"), cell("previous"));
                let reason = cell("reason");
                let reason = reason_in_words(&reason);
                format!("{} is {status} ({reason}; it was {previous})", who("peer_id"))
            }
            _ if kind.starts_with("message.") && data.get("to_peer").is_some() => {
                self.message(screen, kind, data)
            }
            "task" => format!("task {} is {}", task(screen, data), cell("status")),
            "terminal" => format!("task {} {}", task(screen, data), ending(data)),
            "frame" => format!("{} | {}", short(screen, &cell("task_id")), cell("line")),
            "reply" => {
                let task = short(screen, &after_slash(stream));
                format!("{task}: {} of {}: {}", cell("kind"), who("from"), cell("body"))
            }
            "session.started" => {
                let (session, client) = (cell("session_id"), cell("client"));
                let (project, source) = (cell("project"), cell("source"));
                format!("session {session} of {client} began in {project} ({source})")
            }
            "session.ended" => format!("session {} ended ({})", cell("session_id"), cell("reason")),
            "ghap.started" | "ghap.updated" | "ghap.resolved" | "ghap.adopted" => {
                let verb = kind.trim_start_matches("ghap.");
                let (id, status) = (short(screen, &cell("id")), cell("status"));
                let (domain, strategy) = (cell("domain"), cell("strategy"));
                format!("record {id} {verb}: {status} ({domain}, {strategy})")
            }
            "outcome.recorded" => {
                let (verdict, session) = (cell("verdict"), after_slash(stream));
                format!("an outcome was recorded: {verdict} (session {session})")
            }
            "daemon.started" => {
                format!("svc {} started (process {})", cell("version"), cell("pid"))
            }
            "daemon.stopped" => "svc stopped".to_owned(),
            _ => {
                return match stream.split_once('/').map_or(stream, |(family, _)| family) {
                    "agent" => agent(screen, stream, kind, data),
                    "mcp" => (Style::Dim, call(screen, stream, data)),
                    "source" => (Style::Dim, source(stream, kind, data)),
                    _ => (style, other(stream, kind, data)),
                };
            }
        };
        (style, sentence)
    }

    fn message(&self, screen: &Screen, kind: &str, data: &Value) -> String {
        let (from, to) = (self.who(screen, data, "from_peer"), self.who(screen, data, "to_peer"));
        let id = short(screen, &output::cell(data, "id"));
        let noun = match text(data, "type") {
            Some("query") => "question",
            Some("response") => "answer",
            _ => "message",
        };
        let why = text(data, "reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
        match kind {
            "message.queued" => {
                let verb = match text(data, "type") {
                    Some("query") => "asks",
                    Some("response") => "answers",
                    _ => "tells",
                };
                format!("{from} {verb} {to} ({id})")
            }
            "message.offered" => format!("{to} was given the {noun} {id} of {from}"),
            "message.injected" => format!("{to} has the {noun} {id} of {from}"),
            "message.acked" => format!("{to} acknowledged the {noun} {id} of {from}"),
            "message.unseen" => {
                format!("{to} did not see the {noun} {id} of {from}; it comes again")
            }
            _ => {
                let state = output::cell(data, "state");
                format!("the {noun} {id} of {from} to {to} is {state}{why}")
            }
        }
    }

    /// The name of a participant: from the event, from the list, or else the id.
    fn who(&self, screen: &Screen, data: &Value, key: &str) -> String {
        let own = text(data, "display_name").filter(|_| key == "peer_id");
        let id = text(data, key).unwrap_or("somebody");
        let known = own.or_else(|| self.names.get(id).map(String::as_str));
        known.map_or_else(|| short(screen, id), str::to_owned)
    }
}

fn agent(screen: &Screen, stream: &str, kind: &str, data: &Value) -> (Style, String) {
    let cell = |key: &str| output::cell(data, key);
    let agent = short(screen, &after_slash(stream));
    match kind {
        "output" | "stderr" => (Style::Plain, format!("{agent} | {}", cell("data"))),
        "state" => {
            let state = if data["state"].is_string() { cell("state") } else { cell("to") };
            (output::state_style(&state), format!("agent {agent} is {state}"))
        }
        "input" => (Style::Plain, format!("input to agent {agent}: {}", cell("data"))),
        "chat_entry" => {
            let entry = &data["chat_entry"];
            let role = ["role", "type", "kind"].iter().find_map(|key| text(entry, key));
            let words = ["text", "content", "title"].iter().find_map(|key| text(entry, key));
            let words = words.map_or_else(|| facts(entry), str::to_owned);
            (Style::Plain, format!("agent {agent}, {}: {words}", role.unwrap_or("entry")))
        }
        "request" => (Style::Waiting, format!("agent {agent} needs permission: {}", cell("title"))),
        "answer" => (Style::Plain, format!("agent {agent} got its answer from {}", cell("by"))),
        "exit" => (Style::Dim, format!("agent {agent} has ended ({})", facts(data))),
        _ => (Style::Plain, format!("agent {agent}: {kind} ({})", facts(data))),
    }
}

/// The text for an event without a sentence of its own.
fn other(stream: &str, kind: &str, data: &Value) -> String {
    let cell = |key: &str| output::cell(data, key);
    match kind {
        "session.adopted" => {
            let (session, to, from) = (cell("session_id"), cell("to"), cell("from"));
            format!("session {session} belongs to {to} from now on; the process of {from} is gone")
        }
        "agent.started" => format!("agent {} began ({})", cell("session_key"), cell("backend")),
        "agent.ended" => match data["exit_code"].as_i64() {
            Some(code) => format!("agent {} has ended (exit code {code})", cell("session_key")),
            None => format!("agent {} has ended", cell("session_key")),
        },
        "request.opened" => format!("agent {} asks for permission", cell("session_key")),
        "request.closed" => format!("the request of agent {} was answered", cell("session_key")),
        "request.described" => format!("the text of the prompt of {} is known now", cell("session_key")),
        "limit" => match text(data, "until") {
            Some(until) => {
                format!("{} has reached its usage limit until {until}", cell("display_name"))
            }
            None => format!("{} has reached its usage limit", cell("display_name")),
        },
        "request.offered" => {
            format!("the request of agent {} can be answered here again", cell("session_key"))
        }
        "request.withdrawn" => {
            format!("only the terminal of {} can answer its request", cell("session_key"))
        }
        "run.queued" | "run.began" | "run.ended" => {
            let now = match kind {
                "run.queued" => "waits for its turn".to_owned(),
                "run.began" => "is being worked on".to_owned(),
                _ => format!("is over ({})", cell("state")),
            };
            format!("what {} sent to {} {now}", cell("source_session"), cell("target_session"))
        }
        "memory.stored" => {
            format!("a memory was stored: {} (session {})", cell("category"), after_slash(stream))
        }
        "memory.deleted" => format!("a memory was deleted (session {})", after_slash(stream)),
        "value.stored" => format!("a value was stored (session {})", after_slash(stream)),
        "source.state" => format!("MCP server {} is {}", cell("name"), cell("state")),
        // An event that a later version may add.
        _ => format!("{stream} {}: {}", kind.replace('.', " "), facts(data)),
    }
}

/// The members of an object as text; nested values are only counted.
fn facts(data: &Value) -> String {
    let Some(fields) = data.as_object() else { return output::plain(data) };
    let fact = |(key, value): (&String, &Value)| match value {
        Value::Null => None,
        Value::Object(inner) => Some(format!("{key} of {} fields", inner.len())),
        Value::Array(items) => Some(format!("{} {key}", items.len())),
        value => Some(format!("{} {}", key.replace('_', " "), output::plain(value))),
    };
    fields.iter().filter_map(fact).collect::<Vec<_>>().join(", ")
}

/// The text for a message to the client of an MCP call.
fn call(screen: &Screen, stream: &str, data: &Value) -> String {
    let call = short(screen, &after_slash(stream));
    let said = match text(data, "method") {
        Some("notifications/progress") => {
            let words = text(&data["params"], "message").unwrap_or("it goes on");
            format!("progress: {words}")
        }
        Some("notifications/message") => format!("log: {}", output::plain(&data["params"]["data"])),
        Some(method) => format!("the client is told {method}"),
        None if data["error"].is_object() => {
            format!("it failed: {}", output::cell(&data["error"], "message"))
        }
        None if data["result"]["isError"] == true => "it was answered with an error".to_owned(),
        None if data.get("result").is_some() => "it was answered".to_owned(),
        None => facts(data),
    };
    format!("call {call}: {said}")
}

fn source(stream: &str, kind: &str, data: &Value) -> String {
    let server = after_slash(stream);
    let cell = |key: &str| output::cell(data, key);
    match kind {
        "call" => {
            let (tool, outcome, took) = (cell("tool"), cell("outcome"), cell("duration_ms"));
            format!("{server}: {tool} was called, {outcome} ({took} ms)")
        }
        "stderr" => format!("{server} | {}", cell("data")),
        "resource.updated" => format!("{server}: {} has changed", cell("uri")),
        _ => format!("{server} {kind}: {}", facts(data)),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn after_slash(stream: &str) -> String {
    stream.split_once('/').map_or(stream, |(_, rest)| rest).to_owned()
}

fn task(screen: &Screen, task: &Value) -> String {
    let id = short(screen, &output::cell(task, "task_id"));
    text(task, "title").map_or_else(|| id.clone(), |title| format!("{title:?} ({id})"))
}

pub(super) fn ending(task: &Value) -> String {
    let mut words = vec![output::cell(task, "status")];
    for (key, label) in [("exit_code", "exit code"), ("signal", "signal"), ("error", "error")] {
        // The error has the reason. The signal may be the daemon's own, sent to end a task that
        // cannot continue.
        let is_explained = key == "signal" && task["error"].is_string();
        if !is_explained && task.get(key).is_some_and(|value| !value.is_null()) {
            words.push(format!("{label} {}", output::cell(task, key)));
        }
    }
    words.join(", ")
}

/// The reason of a status in words; an unknown reason stays unchanged.
fn reason_in_words(word: &str) -> &str {
    match word {
        "silent" => "it was silent",
        "hook" => "its client says so",
        "heartbeat" => "it says so",
        "registered" => "it registered",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gap_names_the_missing_events() {
        let gap = |requested, oldest| FollowGap {
            requested,
            oldest,
            latest: 300,
            reason: Some(GapReason::Pruned),
        };
        for (gap, text) in [
            (gap(96, 205), "events 97 to 204 are gone (pruned)"),
            (gap(96, 98), "event 97 is gone (pruned)"),
            (gap(96, 97), "some of the events after 96 are gone (pruned)"),
            (gap(96, 7), "some of the events after 96 are gone (pruned)"),
        ] {
            assert_eq!(gone(&gap), text);
        }
    }

    fn feed(width: Option<u16>) -> Vec<String> {
        let screen = Screen::for_tests(width);
        let (ann, bob) = ("peer_01kbpx6v5z7t2a4b6c8d9e0f1g", "peer_01kbpx6v5z7t3a4b6c8d9e0f1g");
        let message = "msg_01kbpx6v5z7t4a4b6c8d9e0f1g";
        let send = |kind: &str, state: &str| json!({ "id": message, "type": kind, "from_peer": ann, "to_peer": bob, "state": state });
        let task = json!({ "task_id": "task_01kbpx6v5z7t5a4b6c8d9e0f1g", "title": "tests\u{1b}[1m", "status": "failed", "exit_code": 3 });
        let events = [
            ("daemon", "daemon.started", json!({ "version": "0.1.0", "pid": 7 })),
            (
                "team",
                "peer.registered",
                json!({ "peer_id": ann, "display_name": "ann", "backend": "claude" }),
            ),
            (
                "team",
                "peer.status",
                json!({ "peer_id": ann, "status": "offline", "previous": "idle", "reason": "silent" }),
            ),
            ("peer/x", "message.queued", send("query", "queued")),
            ("peer/x", "message.acked", send("query", "acked")),
            ("peer/x", "message.refused", send("broadcast", "refused")),
            ("task/x", "terminal", task),
            (
                "task/x",
                "frame",
                json!({ "task_id": "task_01kbpx6v5z7t5a4b6c8d9e0f1g", "line": "all is\nlost" }),
            ),
            (
                "session/s-1",
                "ghap.started",
                json!({ "id": "ghap_01kbpx6v5z7t5a4b6c8d9e0f1g", "status": "active", "domain": "testing", "strategy": "ask-user" }),
            ),
            ("session/s-1", "outcome.recorded", json!({ "verdict": "fail" })),
            ("agent/x", "state", json!({ "from": "idle", "to": "running" })),
            ("agent/x", "output", json!({ "data": "compiling" })),
            ("agent/x", "request", json!({ "request_id": "r", "title": "rm -r target" })),
            ("agent/x", "usage", json!({ "input_tokens": 7, "cost": { "usd": 1 } })),
            (
                "session/s-1",
                "session.adopted",
                json!({ "session_id": "s-1", "from": "process:1", "to": "process:2" }),
            ),
            (
                "mcp/m-1",
                "message",
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progress": 1, "message": "half" } }),
            ),
            (
                "mcp/m-1",
                "message",
                json!({ "jsonrpc": "2.0", "id": 1, "result": { "content": [] } }),
            ),
            ("source/files", "call", json!({ "tool": "read", "duration_ms": 7, "outcome": "ok" })),
            ("team", "source.state", json!({ "name": "files", "state": "ready" })),
            (
                "peer/x",
                "run.ended",
                json!({ "run_id": "run_1", "state": "replied", "source_session": "operator", "target_session": "agent:claude:s-1" }),
            ),
            ("session/s-1", "memory.stored", json!({ "id": "mem_1", "category": "decision" })),
            ("session/s-1", "thing.of_later", json!({ "id": "x", "list": [1, 2] })),
        ];
        let mut feed = TerminalFeed::default();
        let items = events.into_iter().enumerate().map(|(n, (stream, kind, data))| {
            json!({ "stream": stream, "seq": n, "kind": kind, "data": data, "at": "2026-03-31T11:57:01.123Z" })
        });
        items.map(|item| feed.line(&screen, &item)).collect()
    }

    #[test]
    fn a_person_reads_sentences() {
        insta::assert_snapshot!(feed(Some(100)).join("\n"));
    }

    #[test]
    fn feed_line_fits_the_screen_and_has_no_json() {
        for width in [40, 60, 100] {
            for line in feed(Some(width)) {
                assert!(line.chars().count() <= usize::from(width), "{width}: {line}");
                assert!(!line.contains("{\""), "{line}");
            }
        }
        assert!(feed(Some(60)).iter().any(|line| line.ends_with('…')));
    }

    #[test]
    fn a_program_reads_where_it_stands_too() {
        insta::assert_snapshot!(feed(None).join("\n"));
    }
}
