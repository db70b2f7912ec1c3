//! `svc events`: prints and follows the log.

use std::cmp::Ordering;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use svc_client::{FollowGap, FollowItem, Follower, with_query};
use svc_model::GapReason;

use super::feed::TerminalFeed;
use super::output::{self, Column, Listing};
use super::presence::OperatorPresence;
use super::{Context, UsageError};

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

/// `svc events …`.
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

/// Which events.
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

pub(super) async fn run(context: &Context, command: EventsCommand) -> anyhow::Result<ExitCode> {
    match command {
        EventsCommand::List { select, limit } => {
            select.check(false)?;
            let limit = limit.map(|limit| limit.to_string());
            let page: Value = context.client()?.get(&select.path(limit.as_deref())).await?;
            LIST.print(context, &page)?;
            Ok(ExitCode::SUCCESS)
        }
        EventsCommand::Tail { select } => {
            select.check(true)?;
            tail(context, &select).await
        }
    }
}

async fn tail(context: &Context, select: &Select) -> anyhow::Result<ExitCode> {
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
                    // The output of an unfinished entry; the event follows when the entry is
                    // finished.
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

/// Prints gaps and reconnections of a follower on standard error.
pub(super) fn note(item: &FollowItem) {
    match item {
        FollowItem::Event { .. } => {}
        FollowItem::Gap(gap) if gap.is_set_back() => output::note(&format!(
            "svc: the log was restored and is shorter (cursor {}, end {}); all events follow from its start",
            gap.requested, gap.latest
        )),
        FollowItem::Gap(gap) => {
            output::note(&format!("svc: {}", gone(gap)));
        }
        FollowItem::Disconnected { .. } => {
            output::note("svc: lost the daemon; resuming as soon as it answers");
        }
        FollowItem::Resumed => output::note("svc: resumed"),
    }
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
}
