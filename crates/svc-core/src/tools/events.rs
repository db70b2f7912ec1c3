//! The tool that reads the log.

use schemars::JsonSchema;
use serde::Deserialize;
use svc_model::{NOT_BLANK, limits};

use super::{Call, Failure, Tool, ToolError};
use crate::service::log::{EventReading, Selector};

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new("events_read", READ, read).title("Read the event log").read_only().slow()]
}

const READ: &str = "\
Reads the event log: everything that happened to peers, messages, tasks and the daemon, in order, without a hole.

Streams are `team` (peers come, go, change state), `task/<task_id>` (its output as `frame`, its states as `task` and \
`terminal`, what agents say as `reply`), `peer/<peer_id>` (deliveries of messages) and `daemon`. Give stream for one of \
them, prefix for several (`task/`), or neither for everything.

It is a cursor: begin with after = 0, or with a task's last_id for what comes from now on, and pass next_after as after \
the next time, with the same stream or prefix; then you miss nothing and get nothing twice.";

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
}

async fn read(call: Call, input: EventsReadArguments) -> Result<EventReading, Failure> {
    let selector = match (input.stream, input.prefix) {
        (Some(_), Some(_)) => {
            return Err(ToolError::invalid("prefix", "prefix: does not go with stream").into());
        }
        (Some(stream), None) => Selector::Stream(stream),
        (None, prefix) => Selector::Prefix(prefix.unwrap_or_default()),
    };
    let (after, kind) = (input.after.unwrap_or(0), input.kind.as_deref());
    let log = &call.services.log;
    Ok(log.read_events(&call.caller, &selector, after, kind, input.limit).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use svc_model::StreamName;
    use svc_store::testing::{append, event};

    use super::super::{
        ErrorType,
        tests::{World, each, nothing},
    };

    async fn add(world: &World, stream: &'static str, kind: &str) {
        append(world.services.store(), &StreamName::fixed(stream), vec![event(kind, "{\"n\":1}")])
            .await;
    }

    #[tokio::test]
    async fn pages_by_cursor_return_every_event_once() {
        let (world, call) = World::with_operator().await;
        for n in 0..10 {
            add(&world, if n % 2 == 0 { "team" } else { "task/t" }, if n < 6 { "a" } else { "b" })
                .await;
        }
        for (filter, total, last) in [
            (nothing(), 10, 10),
            (json!({ "prefix": "" }), 10, 10),
            (json!({ "prefix": "ta" }), 5, 10),
            (json!({ "prefix": "none" }), 0, 10),
            (json!({ "stream": "team" }), 5, 5),
            (json!({ "stream": "team", "kind": "b" }), 2, 5),
            (json!({ "kind": "a" }), 6, 10),
            (json!({ "kind": "none" }), 0, 10),
        ] {
            let (mut seen, mut after) = (Vec::new(), json!(0));
            loop {
                let mut arguments = filter.clone();
                arguments["after"] = after.clone();
                arguments["limit"] = json!(2);
                let page = world.call(&call, "events_read", arguments).await;
                after = page["next_after"].clone();
                assert_eq!(page["count"], json!(page["events"].as_array().unwrap().len()));
                if page["count"] == 0 {
                    break;
                }
                seen.extend(each(&page["events"], "position"));
            }
            let mut sorted = seen.clone();
            sorted.sort_by_key(Value::as_i64);
            sorted.dedup();
            assert_eq!((seen.len(), &seen), (total, &sorted), "{filter}");
            assert_eq!(after, last, "{filter}: what was passed over is not looked at again");
        }
    }

    #[tokio::test]
    async fn unreadable_streams_and_cursors_are_reported() {
        let (world, call) = World::with_operator().await;
        add(&world, "team", "a").await;
        let both = json!({ "stream": "team", "prefix": "t" });
        world.refuse_field(&call, "events_read", both, "prefix").await;
        for unknown in ["none", "task/../x", "ä", "a\"b"] {
            let arguments = json!({ "stream": unknown });
            world.refuse(&call, "events_read", arguments, ErrorType::NotFound).await;
        }
        // A cursor ahead of the log begins from the start, with a gap.
        for arguments in [json!({ "after": 99 }), json!({ "after": u64::MAX, "stream": "team" })] {
            let page = world.call(&call, "events_read", arguments).await;
            assert_eq!(page["gap"]["reason"], "ahead");
            assert_eq!(page["count"], 1);
            assert_eq!(page["next_after"], 1);
        }
    }

    #[tokio::test]
    async fn a_read_reports_that_the_stream_is_closed() {
        let (world, call) = World::with_operator().await;
        let id = world.task().await;
        world.call(&call, "TaskCancel", json!({ "task_id": id })).await;
        let stream = format!("task/{id}");
        let page = world.call(&call, "events_read", json!({ "stream": stream })).await;
        assert_eq!((&page["count"], &page["closed"]), (&json!(2), &json!(true)));
        let after = json!({ "stream": stream, "after": 2 });
        let page = world.call(&call, "events_read", after).await;
        assert_eq!(page["count"], 0);
        assert_eq!(page["closed"], true);
        assert_eq!(page["next_after"], 2);
        let page = world.call(&call, "events_read", json!({ "after": 2 })).await;
        assert_eq!((&page["count"], page.get("closed")), (&json!(0), None));
    }
}
