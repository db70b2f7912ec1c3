//! `svc events`: lists and follows the log, with an event on each line for people.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use svc_client::{Client, FollowGap, FollowItem, Follower, with_object};

use super::naming::peer_names;
use super::output::{self, Column, Listing, Screen, clock, short, visible};
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
    let (first, last) = (gap.requested.saturating_add(1), gap.oldest.saturating_sub(1));
    let events = match first.cmp(&last) {
        Ordering::Less => format!("events {first} to {last} are"),
        Ordering::Equal => format!("event {first} is"),
        Ordering::Greater => format!("some of the events after {} are", gap.requested),
    };
    format!("{events} gone ({})", gap.reason)
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

/// Renders events as lines. Keeps names of participants, since events of messages have ids only.
#[derive(Debug, Default)]
struct TerminalFeed {
    names: HashMap<String, String>,
}

impl TerminalFeed {
    /// Reads the names of the participants; goes on without names if the daemon does not respond.
    async fn with_names(client: &Client) -> Self {
        Self { names: peer_names(client, "peer_id").await }
    }

    /// One event on one line: its stream, its kind and its members. For a program the line has the
    /// `seq`, too, and is not truncated.
    fn line(&mut self, screen: &Screen, item: &Value) -> String {
        let data = &item["data"];
        if let (Some(id), Some(name)) = (text(data, "peer_id"), text(data, "display_name")) {
            self.names.insert(id.to_owned(), name.to_owned());
        }
        let at = text(item, "at").unwrap_or_default();
        let stream = short(screen, text(item, "stream").unwrap_or_default());
        let kind = visible(text(item, "kind").unwrap_or_default());
        let words = visible(&match text(data, "line").or_else(|| text(data, "data")) {
            Some(output) => format!("| {output}"),
            None => self.facts(screen, data),
        });
        if !screen.is_for_people() {
            let seq = output::cell(item, "seq");
            return format!("{} {stream} #{seq} {kind} {words}", clock(screen, at));
        }
        // The width of the time without its colour codes.
        let taken = clock(&Screen { color: false, ..*screen }, at).chars().count() + 2;
        let room = screen.fit_width().map_or(usize::MAX, usize::from).saturating_sub(taken);
        let words = output::cut(format!("{stream} {kind} {words}"), room);
        let state = ["state", "status", "verdict"].iter().find_map(|key| text(data, key));
        let style = output::state_style(state.unwrap_or_default());
        let words = if screen.color { style.paint(&words) } else { words };
        format!("{}  {words}", clock(screen, at))
    }

    /// The members of an event as text, with names in place of the ids of participants; lists are
    /// only counted.
    fn facts(&self, screen: &Screen, data: &Value) -> String {
        let Some(fields) = data.as_object() else { return output::plain(data) };
        let fact = |(key, value): (&String, &Value)| match value {
            Value::Null => None,
            Value::Object(_) => Some(format!("{key} ({})", self.facts(screen, value))),
            Value::Array(items) => Some(format!("{} {key}", items.len())),
            value => {
                let value = output::plain(value);
                let known = self.names.get(&value).cloned();
                let value = known.unwrap_or_else(|| short(screen, &value));
                Some(format!("{} {value}", key.replace('_', " ")))
            }
        };
        fields.iter().filter_map(fact).collect::<Vec<_>>().join(", ")
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
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
            reason: "pruned".to_owned(),
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
    fn a_person_reads_lines_with_names() {
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
