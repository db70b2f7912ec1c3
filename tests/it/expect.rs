//! What tests expect of answers: the shapes, and the ids of streams.

pub(crate) use crate::shapes::{
    all_pages, append, done, each, escape, frame, instant, invalid, new_task, page, peer, problem,
    register, text,
};
use crate::wire::Event;

/// Events with ids that leave nothing out, from `first` on.
#[track_caller]
pub(crate) fn dense(events: &[Event], first: u64) {
    let ids: Vec<_> = events.iter().map(|event| event.id).collect();
    let wanted: Vec<_> = (first..).take(events.len()).map(Some).collect();
    assert_eq!(ids, wanted);
}

/// Where a task's stream is.
pub(crate) fn subscribe(task: &str) -> String {
    format!("/v1/biam/subscribe?task_id={task}")
}
