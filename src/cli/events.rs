//! `svc events`: lists and follows the log, with events as sentences for people.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use svc_client::{Client, FollowGap, FollowItem, Follower, with_object};
use svc_model::GapReason;

use super::naming::peer_names;
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
        Column::time("TIME", "at").rank(1),
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
    fn path(&self, limit: Option<u32>) -> String {
        let Self { stream, prefix, kind, after } = self;
        let query = json!({
            "stream": stream, "stream_prefix": prefix, "kind": kind, "after": after, "limit": limit,
        });
        with_object("/v1/events", &query)
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
            let page: Value = context.client()?.get(&select.path(limit)).await?;
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
            "svc: there is no event {}: the log ends with {} (a restored log is shorter, or the number was too high); all events \
             follow from its start",
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
        Self { names: peer_names(client, "peer_id").await }
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
        let (style, sentence) = self.sentence(&FeedEvent { screen, stream, kind, data });
        let sentence = visible(&sentence);
        if screen.is_for_people() {
            // The width of the time without its colour codes.
            let time =
                clock(&Screen { color: false, ..*screen }, text(item, "at").unwrap_or_default());
            let sentence = match screen.fit_width() {
                Some(width) => {
                    let room = usize::from(width).saturating_sub(time.chars().count() + 2);
                    output::cut(sentence, room)
                }
                None => sentence,
            };
            let sentence = if screen.color { style.paint(&sentence) } else { sentence };
            return format!("{at}  {sentence}");
        }
        let seq = output::cell(item, "seq");
        format!("{at} {} #{seq} {} {sentence}", visible(stream), visible(kind))
    }

    fn sentence(&self, event: &FeedEvent<'_>) -> (Style, String) {
        let (kind, data) = (event.kind, event.data);
        let family = event.stream.split_once('/').map_or(event.stream, |(family, _)| family);
        let is_message = kind.starts_with("message.") && data.get("to_peer").is_some();
        let state = |key: &str| output::state_style(text(data, key).unwrap_or_default());
        let style = match (kind, family) {
            ("outcome.recorded", _) if text(data, "verdict") == Some("fail") => Style::Bad,
            ("daemon.lost", _) => Style::Bad,
            ("peer.registered" | "session.started" | "daemon.started" | "outcome.recorded", _) => {
                Style::Good
            }
            ("peer.updated" | "peer.removed" | "session.ended" | "daemon.stopped", _) => Style::Dim,
            (
                "peer.status" | "task" | "terminal" | "ghap.started" | "ghap.updated"
                | "ghap.resolved" | "ghap.adopted",
                _,
            ) => state("status"),
            ("frame", _) => Style::Plain,
            ("reply", _) => Style::Busy,
            _ if is_message => state("state"),
            ("state", "agent") => output::state_style(&event.words("state")),
            ("request", "agent") => Style::Waiting,
            ("exit", "agent") | (_, "mcp" | "source") => Style::Dim,
            (_, "agent") => Style::Plain,
            _ => state("state"),
        };
        let of = |list: &[(&str, &'static str)]| {
            list.iter().find(|(known, _)| *known == kind).map(|(_, sentence)| *sentence)
        };
        let sentence = of(SENTENCES).unwrap_or_else(|| match family {
            _ if is_message => of(OF_MESSAGES).unwrap_or(MESSAGE),
            "agent" => of(OF_AGENTS).unwrap_or("agent {#/}: {=kind} ({=facts})"),
            "mcp" => "call {#/}: {=call}",
            "source" => of(OF_SOURCES).unwrap_or("{/} {=kind}: {=facts}"),
            // An event that a later version may add has no sentence of its own.
            _ => of(OTHERS).unwrap_or("{=stream} {=spaced}: {=facts}"),
        });
        (style, self.filled(sentence, event))
    }

    /// A sentence with its parts, see [`SENTENCES`].
    fn filled(&self, sentence: &str, event: &FeedEvent<'_>) -> String {
        let FeedEvent { screen, stream, data, .. } = event;
        let mut parts = sentence.split(['{', '}']);
        let mut text = parts.next().unwrap_or_default().to_owned();
        while let (Some(slot), Some(after)) = (parts.next(), parts.next()) {
            let part = match slot.split_at(1) {
                ("@", key) => self.who(screen, data, key),
                ("#", "/") => short(screen, after_slash(stream)),
                ("#", key) => short(screen, &output::cell(data, key)),
                ("=", name) => event.words(name),
                ("/", _) => after_slash(stream).to_owned(),
                _ => output::cell(data, slot),
            };
            text.extend([&*part, after]);
        }
        text
    }

    /// The name of a participant: from the event, from the list, or else the id.
    fn who(&self, screen: &Screen, data: &Value, key: &str) -> String {
        let own = text(data, "display_name").filter(|_| key == "peer_id");
        let id = text(data, key).unwrap_or("somebody");
        let known = own.or_else(|| self.names.get(id).map(String::as_str));
        known.map_or_else(|| short(screen, id), str::to_owned)
    }
}

/// Sentences by kind of event. `{key}` is a member, `{@key}` the name of a participant, `{#key}` an
/// id, `{/}` the stream's name after its slash, and `{=name}` see [`FeedEvent::words`].
const SENTENCES: &[(&str, &str)] = &[
    ("peer.registered", "{@peer_id} is here ({backend})"),
    ("peer.updated", "{@peer_id} says more about itself"),
    ("peer.removed", "{@peer_id} was removed"),
    ("peer.status", "{@peer_id} is {status} ({=reason}; it was {previous})"),
    ("task", "task {=task} is {status}"),
    ("terminal", "task {=task} {=ending}"),
    ("frame", "{#task_id} | {line}"),
    ("reply", "{#/}: {kind} of {@from}: {body}"),
    ("session.started", "session {session_id} of {client} began in {project} ({source})"),
    ("session.ended", "session {session_id} ended ({reason})"),
    ("ghap.started", "record {#id} started: {status} ({domain}, {strategy})"),
    ("ghap.updated", "record {#id} updated: {status} ({domain}, {strategy})"),
    ("ghap.resolved", "record {#id} resolved: {status} ({domain}, {strategy})"),
    ("ghap.adopted", "record {#id} adopted: {status} ({domain}, {strategy})"),
    ("outcome.recorded", "an outcome was recorded: {verdict} (session {/})"),
    ("daemon.started", "svc {version} started (process {pid})"),
    ("daemon.stopped", "svc stopped"),
    ("daemon.joined", "daemon {#daemon_id} on {machine} has its lease (svc {version})"),
    ("daemon.lost", "daemon {#daemon_id} is gone, and did not say that it ended"),
];

const MESSAGE: &str = "the {=noun} {#id} of {@from_peer} to {@to_peer} is {state}{=why}";

const OF_MESSAGES: &[(&str, &str)] = &[
    ("message.queued", "{@from_peer} {=verb} {@to_peer} ({#id})"),
    ("message.offered", "{@to_peer} was given the {=noun} {#id} of {@from_peer}"),
    ("message.injected", "{@to_peer} has the {=noun} {#id} of {@from_peer}"),
    ("message.acked", "{@to_peer} acknowledged the {=noun} {#id} of {@from_peer}"),
    ("message.unseen", "{@to_peer} did not see the {=noun} {#id} of {@from_peer}; it comes again"),
];

const OF_AGENTS: &[(&str, &str)] = &[
    ("output", "{#/} | {data}"),
    ("stderr", "{#/} | {data}"),
    ("state", "agent {#/} is {=state}"),
    ("input", "input to agent {#/}: {data}"),
    ("chat_entry", "agent {#/}, {=entry}"),
    ("request", "agent {#/} needs permission: {title}"),
    ("answer", "agent {#/} got its answer from {by}"),
    ("exit", "agent {#/} has ended ({=facts})"),
];

const OF_SOURCES: &[(&str, &str)] = &[
    ("call", "{/}: {tool} was called, {outcome} ({duration_ms} ms)"),
    ("stderr", "{/} | {data}"),
    ("resource.updated", "{/}: {uri} has changed"),
];

const OTHERS: &[(&str, &str)] = &[
    (
        "session.adopted",
        "session {session_id} belongs to {to} from now on; the process of {from} is gone",
    ),
    ("agent.started", "agent {session_key} began ({backend})"),
    ("agent.ended", "agent {session_key} has ended{=code}"),
    ("agent.removed", "agent {session_key} was removed; its task stays"),
    ("request.opened", "agent {session_key} asks for permission"),
    ("request.closed", "the request of agent {session_key} was answered"),
    ("request.described", "the text of the prompt of {session_key} is known now"),
    ("request.offered", "the request of agent {session_key} can be answered here again"),
    ("request.withdrawn", "only the terminal of {session_key} can answer its request"),
    ("limit", "{display_name} has reached its usage limit{=until}"),
    ("run.queued", "what {source_session} sent to {target_session} waits for its turn"),
    ("run.began", "what {source_session} sent to {target_session} is being worked on"),
    ("run.ended", "what {source_session} sent to {target_session} is over ({state})"),
    ("memory.stored", "a memory was stored: {category} (session {/})"),
    ("memory.deleted", "a memory was deleted (session {/})"),
    ("value.stored", "a value was stored (session {/})"),
    ("source.state", "MCP server {name} is {state}"),
];

/// An event of which a sentence tells.
struct FeedEvent<'a> {
    screen: &'a Screen,
    stream: &'a str,
    kind: &'a str,
    data: &'a Value,
}

impl FeedEvent<'_> {
    /// A part of a sentence that is more than a member of the event.
    fn words(&self, name: &str) -> String {
        let Self { screen, stream, kind, data } = *self;
        let cell = |key: &str| output::cell(data, key);
        let by_type = |query: &str, response: &str, other: &str| match text(data, "type") {
            Some("query") => query.to_owned(),
            Some("response") => response.to_owned(),
            _ => other.to_owned(),
        };
        let with = |key: &str, before: &str, after: &str| {
            text(data, key).map(|value| format!("{before}{value}{after}")).unwrap_or_default()
        };
        match name {
            "task" => task(screen, data),
            "ending" => ending(data),
            "reason" => match cell("reason").as_str() {
                "silent" => "it was silent".to_owned(),
                "hook" => "its client says so".to_owned(),
                "heartbeat" => "it says so".to_owned(),
                "registered" => "it registered".to_owned(),
                other => other.to_owned(),
            },
            "noun" => by_type("question", "answer", "message"),
            "verb" => by_type("asks", "answers", "tells"),
            "why" => with("reason", " (", ")"),
            "until" => with("until", " until ", ""),
            "code" => match data["exit_code"].as_i64() {
                Some(code) => format!(" (exit code {code})"),
                None => String::new(),
            },
            "state" => cell(if data["state"].is_string() { "state" } else { "to" }),
            "entry" => entry(&data["chat_entry"]),
            "call" => call(data),
            "kind" => kind.to_owned(),
            "spaced" => kind.replace('.', " "),
            "stream" => stream.to_owned(),
            _ => facts(data),
        }
    }
}

fn entry(entry: &Value) -> String {
    let role = ["role", "type", "kind"].iter().find_map(|key| text(entry, key));
    let words = ["text", "content", "title"].iter().find_map(|key| text(entry, key));
    let words = words.map_or_else(|| facts(entry), str::to_owned);
    format!("{}: {words}", role.unwrap_or("entry"))
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
fn call(data: &Value) -> String {
    match text(data, "method") {
        Some("notifications/progress") => {
            format!("progress: {}", text(&data["params"], "message").unwrap_or("it goes on"))
        }
        Some("notifications/message") => format!("log: {}", output::plain(&data["params"]["data"])),
        Some(method) => format!("the client is told {method}"),
        None if data["error"].is_object() => {
            format!("it failed: {}", output::cell(&data["error"], "message"))
        }
        None if data["result"]["isError"] == true => "it was answered with an error".to_owned(),
        None if data.get("result").is_some() => "it was answered".to_owned(),
        None => facts(data),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn after_slash(stream: &str) -> &str {
    stream.split_once('/').map_or(stream, |(_, rest)| rest)
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

#[cfg(test)]
mod tests {
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
        let events = json!([
            ["daemon", "daemon.started", { "version": "0.1.0", "pid": 7 }],
            ["team", "peer.registered", { "peer_id": ann, "display_name": "ann", "backend": "claude" }],
            ["team", "peer.status", { "peer_id": ann, "status": "offline", "previous": "idle", "reason": "silent" }],
            ["peer/x", "message.queued", send("query", "queued")],
            ["peer/x", "message.acked", send("query", "acked")],
            ["peer/x", "message.refused", send("broadcast", "refused")],
            ["task/x", "terminal", task],
            ["task/x", "frame", { "task_id": "task_01kbpx6v5z7t5a4b6c8d9e0f1g", "line": "all is\nlost" }],
            ["session/s-1", "ghap.started", { "id": "ghap_01kbpx6v5z7t5a4b6c8d9e0f1g", "status": "active", "domain": "testing", "strategy": "ask-user" }],
            ["session/s-1", "outcome.recorded", { "verdict": "fail" }],
            ["agent/x", "state", { "from": "idle", "to": "running" }],
            ["agent/x", "output", { "data": "compiling" }],
            ["agent/x", "request", { "request_id": "r", "title": "rm -r target" }],
            ["agent/x", "usage", { "input_tokens": 7, "cost": { "usd": 1 } }],
            ["session/s-1", "session.adopted", { "session_id": "s-1", "from": "process:1", "to": "process:2" }],
            ["mcp/m-1", "message", { "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progress": 1, "message": "half" } }],
            ["mcp/m-1", "message", { "jsonrpc": "2.0", "id": 1, "result": { "content": [] } }],
            ["source/files", "call", { "tool": "read", "duration_ms": 7, "outcome": "ok" }],
            ["team", "source.state", { "name": "files", "state": "ready" }],
            ["peer/x", "run.ended", { "run_id": "run_1", "state": "replied", "source_session": "operator", "target_session": "agent:claude:s-1" }],
            ["session/s-1", "memory.stored", { "id": "mem_1", "category": "decision" }],
            ["session/s-1", "thing.of_later", { "id": "x", "list": [1, 2] }],
        ]);
        let mut feed = TerminalFeed::default();
        let items = events.as_array().expect("a list").iter().enumerate().map(|(n, event)| {
            json!({ "stream": event[0], "seq": n, "kind": event[1], "data": event[2], "at": "2026-03-31T11:57:01.123Z" })
        });
        items.map(|item| feed.line(&screen, &item)).collect()
    }

    #[test]
    fn daemons_that_join_and_are_lost_have_sentences() {
        let screen = Screen::for_tests(Some(100));
        for (kind, words) in [
            ("daemon.joined", "daemon b-1 on box has its lease (svc 0.1.0)"),
            ("daemon.lost", "daemon b-1 is gone, and did not say that it ended"),
        ] {
            let data = json!({ "daemon_id": "b-1", "machine_id": "m-1", "machine": "box", "version": "0.1.0" });
            let item = json!({ "stream": "daemon", "seq": 1, "kind": kind, "data": data, "at": "2026-03-31T11:57:01Z" });
            let line = TerminalFeed::default().line(&screen, &item);
            assert!(line.ends_with(words), "{line}");
        }
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
