//! The tool that reads the log.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use svc_model::{Event, NOT_BLANK, Timestamp, limits};

use super::{Call, Failure, Tool, ToolError};
use crate::service::log::{Gap, Selector};

pub(super) fn tools() -> Vec<Tool> {
    [Tool::new("events_read", READ, read).title("Read the event log").read_only().slow()]
        .into_iter()
        .map(|tool| tool.family("events"))
        .collect()
}

const WAIT_MAX: u64 = limits::EVENTS_WAIT.as_secs();

const READ: &str = "\
Reads the event log: everything that happened to peers, messages, tasks and the daemon, in order, without a hole.

Streams are `team` (peers come, go, change state), `task/<task_id>` (its output as `frame`, its states as `task` and \
`terminal`, what agents say as `reply`), `peer/<peer_id>` (deliveries of messages) and `daemon`. Give stream for one of \
them, prefix for several (`task/`), or neither for everything.

It is a cursor: begin with after = 0, or with a task's last_id for what comes from now on, and pass next_after as after \
the next time, with the same stream or prefix; then you miss nothing and get nothing twice. With wait_s it waits for the \
next event if there is none yet; no events after that time is no failure.";

/// Which events.
#[derive(Deserialize, JsonSchema)]
struct EventsReadArguments {
    /// One stream.
    #[schemars(regex(pattern = NOT_BLANK))]
    stream: Option<String>,
    /// All streams whose name begins so. Does not go with stream.
    prefix: Option<String>,
    /// Only events of this kind, such as `frame` or `peer.status`.
    #[schemars(regex(pattern = NOT_BLANK))]
    kind: Option<String>,
    /// Begin after this position: `next_after` of the previous call.
    #[schemars(extend("default" = 0))]
    after: Option<u64>,
    /// How many at most. Large ones are fewer: `next_after` goes on.
    #[schemars(range(min = 1, max = limits::PAGE_MAX), extend("default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    /// Seconds to wait for the next event if there is none yet.
    #[schemars(range(min = 0, max = WAIT_MAX), extend("default" = 0))]
    wait_s: Option<u64>,
}

/// The events after the cursor.
#[derive(Serialize, JsonSchema)]
struct EventsReadResult {
    events: Vec<ReadEvent>,
    /// How many there are.
    count: usize,
    /// Goes into `after` the next time.
    next_after: i64,
    /// What was asked for and the log does not have any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<LogGap>,
    /// The stream is over: nothing will follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    closed: bool,
}

/// An event.
#[derive(Serialize, JsonSchema)]
struct ReadEvent {
    /// Its position in the whole log.
    position: i64,
    stream: String,
    /// Its number in its stream.
    seq: i64,
    /// What happened.
    kind: String,
    /// As the kind has it.
    data: Box<RawValue>,
    at: Timestamp,
}

/// A part of the log that is not there.
#[derive(Serialize, JsonSchema)]
struct LogGap {
    requested: u64,
    /// The first position after `requested` that there is.
    oldest: i64,
    /// The latest position there is.
    latest: i64,
    /// `pruned`: removed by age or size. `ahead`: the log was set back to a backup, and is given
    /// from its start.
    reason: &'static str,
}

async fn read(call: Call, input: EventsReadArguments) -> Result<EventsReadResult, Failure> {
    let selector = match (input.stream, input.prefix) {
        (Some(_), Some(_)) => {
            return Err(ToolError::invalid("prefix", "prefix: does not go with stream").into());
        }
        (Some(stream), None) => Selector::Stream(stream),
        (None, prefix) => Selector::Prefix(prefix.unwrap_or_default()),
    };
    let wait = call.time_left(Duration::from_secs(input.wait_s.unwrap_or(0)));
    let (after, kind) = (input.after.unwrap_or(0), input.kind.as_deref());
    let reading = call
        .services
        .log
        .read_events(&call.caller, &selector, after, kind, input.limit, wait)
        .await?;
    let events: Vec<ReadEvent> = reading.events.iter().map(item).collect::<Result<_, _>>()?;
    let gap = reading.gap.map(|Gap { requested, oldest, latest, reason }| LogGap {
        requested,
        oldest,
        latest,
        reason: reason.as_str(),
    });
    let (count, next_after, closed) = (events.len(), reading.next_after, reading.closed);
    Ok(EventsReadResult { events, count, next_after, gap, closed })
}

fn item(event: &Event) -> Result<ReadEvent, ToolError> {
    let data = RawValue::from_string(event.data.to_string()).map_err(|error| {
        tracing::error!(position = event.position, %error, "an event in the log is not JSON");
        ToolError::internal()
    })?;
    Ok(ReadEvent {
        position: event.position,
        stream: event.stream.as_str().to_owned(),
        seq: event.seq,
        kind: event.kind.to_string(),
        data,
        at: event.at,
    })
}
