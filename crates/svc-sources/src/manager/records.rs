//! What servers report, written into the database: lines of error output, calls, changes of
//! resources, and their lists.

use std::{collections::HashMap, sync::Arc, time::Duration};

use svc_core::service::{
    Services,
    sources::{CallEvent, SourceKey, SourceLists},
};
use svc_sys::telemetry;
use tokio::sync::mpsc;

use super::state::SourceManager;
use crate::{
    instance::ResourceChange,
    lists::{Definition, OfferedLists},
    pins::PinnedLists,
    spec::SourceSpec,
    stdio::stderr_event,
};

/// Most events of one write.
const EVENTS_AT_ONCE: usize = 256;
/// How often to check for dropped lines of error output.
const DROPPED_LOOK: Duration = Duration::from_secs(1);
/// How long events of calls wait for others, to be written in one batch.
const GATHERING: Duration = Duration::from_millis(20);

/// Writes lines of error output as events, and counts of those that were dropped.
pub(super) async fn write_lines(
    manager: SourceManager,
    mut lines: mpsc::Receiver<(Arc<SourceSpec>, String)>,
) {
    let mut some = Vec::new();
    let mut tick = tokio::time::interval(DROPPED_LOOK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut by_key: HashMap<SourceKey, Vec<_>> = HashMap::new();
        tokio::select! {
            received = lines.recv_many(&mut some, EVENTS_AT_ONCE) => {
                if received == 0 {
                    return;
                }
                for (spec, line) in some.drain(..) {
                    by_key.entry(spec.key.clone()).or_default().push(stderr_event(&line));
                }
            }
            _ = tick.tick() => {
                let now = tokio::time::Instant::now();
                for (key, quota) in &manager.state().stderr {
                    if let Some(dropped) = quota.report(now) {
                        by_key.entry(key.clone()).or_default().push(dropped.event());
                    }
                }
            }
        }
        for (key, events) in by_key {
            if let Err(error) = manager.services().sources.tell(key, "stderr", events).await {
                tracing::warn!(error = telemetry::chain(&error), "what a server said is not told");
            }
        }
    }
}

/// Writes events of calls.
pub(super) async fn write_calls(
    services: Services,
    mut calls: mpsc::Receiver<(SourceKey, CallEvent)>,
) {
    let mut some = Vec::new();
    while calls.recv_many(&mut some, EVENTS_AT_ONCE).await > 0 {
        if some.len() < EVENTS_AT_ONCE {
            // Calls come in bursts, and a commit for each would cost more than the call.
            tokio::time::sleep(GATHERING).await;
            while some.len() < EVENTS_AT_ONCE
                && let Ok(more) = calls.try_recv()
            {
                some.push(more);
            }
        }
        let mut by_key: HashMap<SourceKey, Vec<_>> = HashMap::new();
        for (key, event) in some.drain(..) {
            by_key.entry(key).or_default().push(event);
        }
        for (key, events) in by_key {
            if let Err(error) = services.sources.tell(key, "call", events).await {
                tracing::warn!(error = telemetry::chain(&error), "calls are not told");
            }
        }
    }
}

/// Writes events of changed resources.
pub(super) async fn write_moves(services: Services, mut moves: mpsc::Receiver<ResourceChange>) {
    while let Some(ResourceChange { stream, uri }) = moves.recv().await {
        if let Err(error) = services.sources.append_resource_update(stream, uri).await {
            tracing::warn!(error = telemetry::chain(&error), "a change is not told");
        }
    }
}

/// Stores pinned definitions, and writes events for new changes.
pub(super) async fn store_pin(
    services: &Services,
    key: &SourceKey,
    pin: &PinnedLists,
    news: Vec<String>,
) {
    let kept = rows_of(&pin.basis, &pin.lists);
    let told = pin.told.iter().cloned().collect();
    let written = services.sources.store_pin(key.clone(), kept, told, news).await;
    if let Err(error) = written {
        let error = telemetry::chain(&error);
        tracing::warn!(error, "the definitions of a server that were approved are not on record");
    }
}

pub(super) fn lists_of(kept: &SourceLists) -> OfferedLists {
    let list = |text: &str| serde_json::from_str::<Vec<Definition>>(text).unwrap_or_default();
    OfferedLists {
        tools: list(&kept.tools),
        resources: list(&kept.resources),
        templates: list(&kept.templates),
        prompts: list(&kept.prompts),
    }
}

pub(super) fn rows_of(fingerprint: &str, lists: &OfferedLists) -> SourceLists {
    let text =
        |list: &[Definition]| serde_json::to_string(list).unwrap_or_else(|_| "[]".to_owned());
    SourceLists {
        fingerprint: fingerprint.to_owned(),
        tools: text(&lists.tools),
        resources: text(&lists.resources),
        templates: text(&lists.templates),
        prompts: text(&lists.prompts),
    }
}
