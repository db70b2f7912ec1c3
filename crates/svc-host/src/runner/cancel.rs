//! Learns that someone asked the task to stop.

use serde_json::Value;
use svc_client::{Discovery, FollowItem, Follower, with_query};

/// Follows a task until someone asks it to stop.
#[derive(Debug)]
pub(super) struct CancelWatcher {
    discovery: Discovery,
}

impl CancelWatcher {
    /// Looks for the daemon as `discovery` says.
    pub(super) fn new(discovery: Discovery) -> Self {
        Self { discovery }
    }

    /// Returns when the task carries a cancel request; never if there is none.
    ///
    /// Follows the task's own events and not its output, which this process sends.
    pub(super) async fn requested(self, task_id: &str) {
        let stream = format!("task/{task_id}");
        let query = [("stream", Some(stream.as_str())), ("kind", Some("task"))];
        if self.follow(with_query("/v1/events", &query)).await {
            return;
        }
        // Someone who may not read the log may still follow the task.
        let query = [("task_id", Some(task_id))];
        if !self.follow(with_query("/v1/biam/subscribe", &query)).await {
            std::future::pending::<()>().await;
        }
    }

    /// `true` for a cancel request, `false` if the stream is over or refused.
    async fn follow(&self, path: String) -> bool {
        let mut follower = Follower::new(self.discovery.clone(), path).patient();
        while let Ok(Some(item)) = follower.next().await {
            if let FollowItem::Event { data, .. } = item
                && has_request(&data)
            {
                return true;
            }
        }
        false
    }
}

/// Whether an event carries the request: in the task itself, or in the item of the log that holds the task.
fn has_request(data: &str) -> bool {
    let Ok(event) = serde_json::from_str::<Value>(data) else {
        return false;
    };
    let task = event.get("data").filter(|data| data.is_object()).unwrap_or(&event);
    task.get("cancel_requested_at").is_some_and(|at| !at.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_seen_in_either_form() {
        let cases = [
            (r#"{"task_id":"t","cancel_requested_at":"2025-01-01T00:00:00.000Z"}"#, true),
            (r#"{"kind":"task","data":{"cancel_requested_at":"x"}}"#, true),
            (r#"{"task_id":"t","cancel_requested_at":null}"#, false),
            (r#"{"line":"cancel_requested_at","kind":"stdout"}"#, false),
            ("nonsense", false),
        ];
        for (data, expected) in cases {
            assert_eq!(has_request(data), expected, "{data}");
        }
    }
}
