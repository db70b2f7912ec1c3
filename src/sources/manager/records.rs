//! What servers say is put on record: lists, lines, calls, changes. What is old goes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::mpsc;

use super::state::{InstanceKey, LearnedLists, SourceManager};
use crate::{
    domain::{Caller, source::Sharing},
    service::sources::{CallEvent, SourceKey, SourceLists},
    sources::{
        instance::{Instance, ResourceMove, StartLesson, stderr_event},
        lists::OfferedLists,
        results::remove_old,
        spec::SourceSpec,
    },
    telemetry,
};

/// After so long a silence the instance of a session ends.
const SESSION_SILENCE: Duration = Duration::from_mins(10);
/// How often it is looked for sessions that are over, while something runs for one.
const SESSION_LOOK: Duration = Duration::from_secs(1);
/// Most events of one write.
const EVENTS_AT_ONCE: usize = 256;
/// How long events of calls wait for others.
const GATHERING: Duration = Duration::from_millis(20);

impl SourceManager {
    pub(super) async fn learn(self, mut lessons: mpsc::UnboundedReceiver<StartLesson>) {
        while let Some(StartLesson { spec, lists, done }) = lessons.recv().await {
            let kept = rows_of(&spec.fingerprint, &lists);
            let is_new = {
                let mut state = self.state();
                let learned =
                    LearnedLists { fingerprint: spec.fingerprint.clone(), lists: Arc::new(lists) };
                let before = state.lists.get(&spec.key);
                let is_new = before != Some(&learned);
                let (before, after) = (before.map(|known| &known.lists), &learned.lists);
                let has_new_resources = before.is_none_or(|before| {
                    before.resources != after.resources || before.templates != after.templates
                });
                if has_new_resources {
                    self.0.resources_changed.send_modify(|count| *count += 1);
                }
                if before.is_none_or(|before| before.prompts != after.prompts) {
                    self.0.prompts_changed.send_modify(|count| *count += 1);
                }
                if is_new {
                    state.lists.insert(spec.key.clone(), learned);
                    self.settle(&mut state);
                }
                is_new
            };
            if is_new {
                self.tell_catalogue();
            }
            done.send(()).ok();
            if !is_new {
                continue;
            }
            if let Err(error) = self.0.services.sources.keep_lists(spec.key.clone(), kept).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "a server's lists are not on record");
            }
        }
    }

    pub(super) async fn write_lines(self, mut lines: mpsc::Receiver<(Arc<SourceSpec>, String)>) {
        let mut some = Vec::new();
        while lines.recv_many(&mut some, EVENTS_AT_ONCE).await > 0 {
            let mut by_key: HashMap<SourceKey, Vec<_>> = HashMap::new();
            for (spec, line) in some.drain(..) {
                by_key.entry(spec.key.clone()).or_default().push(stderr_event(&line));
            }
            for (key, events) in by_key {
                if let Err(error) = self.0.services.sources.tell(key, "stderr", events).await {
                    tracing::warn!(
                        error = telemetry::chain(&error),
                        "what a server said is not told"
                    );
                }
            }
        }
    }

    pub(super) async fn write_calls(self, mut calls: mpsc::Receiver<(SourceKey, CallEvent)>) {
        let mut some = Vec::new();
        while calls.recv_many(&mut some, EVENTS_AT_ONCE).await > 0 {
            if some.len() < EVENTS_AT_ONCE {
                // Calls come in crowds, and a commit for each would cost more than the call.
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
                if let Err(error) = self.0.services.sources.tell(key, "call", events).await {
                    tracing::warn!(error = telemetry::chain(&error), "calls are not told");
                }
            }
        }
    }

    pub(super) async fn write_moves(self, mut moves: mpsc::Receiver<ResourceMove>) {
        while let Some(ResourceMove { stream, uri }) = moves.recv().await {
            if let Err(error) = self.0.services.sources.tell_update(stream, uri).await {
                tracing::warn!(error = telemetry::chain(&error), "a change is not told");
            }
        }
    }

    /// Removes large results and files of resources that are older than a week.
    pub(super) async fn sweep_files(self) {
        loop {
            let (results, files) = (self.0.results.clone(), self.home().join("files"));
            let now = self.0.services.now().as_millis();
            let now =
                SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now).unwrap_or(0));
            let sweep = tokio::task::spawn_blocking(move || {
                results.sweep(now);
                remove_old(&files, now);
            });
            sweep.await.ok();
            tokio::time::sleep(Duration::from_hours(1)).await;
        }
    }

    /// Ends what runs for one session alone when the session is over: commands in the background, and instances of its own.
    pub(super) async fn end_with_sessions(self) {
        loop {
            tokio::time::sleep(SESSION_LOOK).await;
            let mut sessions = self.0.core.sessions();
            {
                let state = self.state();
                let own = state.instances.iter().filter(|((_, serves), instance)| {
                    !serves.is_empty() && instance.spec.entry.sharing == Sharing::Session
                });
                sessions.extend(own.map(|((_, serves), _)| serves.clone()));
            }
            for session in sessions {
                let detail = self.0.services.team.session_detail(&Caller::Operator, &session).await;
                if detail.is_ok_and(|detail| detail.session.ended_at.is_some()) {
                    self.0.core.end_session(&session);
                    self.end_instances(|serves, instance| {
                        serves == session && instance.spec.entry.sharing == Sharing::Session
                    });
                }
            }
        }
    }

    /// Ends instances, and forgets them.
    fn end_instances(&self, is_over: impl Fn(&str, &Instance) -> bool) {
        let mut state = self.state();
        let over: Vec<InstanceKey> = state
            .instances
            .iter()
            .filter(|((_, serves), instance)| is_over(serves, instance))
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            if let Some(instance) = state.instances.remove(&key) {
                self.0.ending.spawn(async move { instance.end().await });
            }
        }
    }

    /// Ends instances of sessions that nobody has called for long, and those whose files name them no more.
    pub(super) async fn end_silent(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(30)).await;
            // Files that are gone or have changed, also where nobody calls any more.
            let this = self.clone();
            tokio::task::spawn_blocking(move || this.refresh_all()).await.ok();
            self.end_instances(|serves, instance| {
                !serves.is_empty()
                    && instance.spec.entry.sharing == Sharing::Session
                    && instance.silent_for() >= SESSION_SILENCE
            });
        }
    }
}

pub(super) fn lists_of(kept: &SourceLists) -> OfferedLists {
    let list = |text: &str| serde_json::from_str(text).unwrap_or_default();
    OfferedLists {
        tools: list(&kept.tools),
        resources: list(&kept.resources),
        templates: list(&kept.templates),
        prompts: list(&kept.prompts),
    }
}

fn rows_of(fingerprint: &str, lists: &OfferedLists) -> SourceLists {
    let text = |list: &Vec<serde_json::Value>| serde_json::Value::from(list.clone()).to_string();
    SourceLists {
        fingerprint: fingerprint.to_owned(),
        tools: text(&lists.tools),
        resources: text(&lists.resources),
        templates: text(&lists.templates),
        prompts: text(&lists.prompts),
    }
}
