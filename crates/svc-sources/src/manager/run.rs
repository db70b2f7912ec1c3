//! The start and the end of all servers, and background work: learning what servers offer, writing
//! what they report into the database, removing what is old.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, RwLock, Weak},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt as _, future::join_all};
use serde_json::json;
use svc_core::{
    service::{
        Services,
        sources::{CallEvent, SourceKey, SourceListRow},
    },
    tools::Catalogue,
};
use svc_model::{Caller, source::Sharing};
use svc_sys::{
    config::{Env, sources::SourceFiles},
    server_process::end_leftovers,
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{LearnedLists, ManagedSources, ManagerState, OfferChanges, SourceManager};
use crate::{
    core::CoreServer,
    http_clients::HttpClients,
    instance::{Instance, ResourceChange, StartLists, StateChange},
    lists::{Definition, OfferedLists, PinnedLists},
    log_unstored,
    metrics::SourceMetrics,
    results::{KeptResults, ResultBounds, remove_old},
    spec::SourceSpec,
    stdio::Containers,
    suspended::SuspendedCalls,
};

const PARALLEL_STARTS: usize = 8;
/// Idle time after which the instance of a session ends.
const SESSION_SILENCE: Duration = Duration::from_mins(10);
/// How often to check for sessions that have ended, while something runs for a session.
const SESSION_LOOK: Duration = Duration::from_secs(1);
/// Capacity of the queue of events of calls.
const EVENTS: usize = 4096;

#[derive(Debug)]
pub struct SourceManagerParts {
    pub services: Services,
    pub files: SourceFiles,
    pub env: Env,
    /// The catalogue that gets the servers' tools.
    pub catalogue: Weak<Catalogue>,
    pub metrics: SourceMetrics,
    /// Which results are kept as resources, and how many bytes of them.
    pub results: ResultBounds,
    /// The daemon's own files and folders, closed to the file tools of `core`.
    pub private: Vec<PathBuf>,
}

impl SourceManager {
    /// Reads the files and starts the servers, without waiting for them.
    pub async fn start(parts: SourceManagerParts) -> anyhow::Result<Self> {
        let SourceManagerParts { services, files, env, catalogue, metrics, results, private } =
            parts;
        let lists = services.sources.lists().await?;
        let pins = services.sources.pins().await?;
        let orphaned_marks = services.sources.orphaned_marks().await?;
        let clients = HttpClients::default();
        let (learned, lessons) = mpsc::unbounded_channel();
        let (states, state_changes) = mpsc::unbounded_channel();
        let (said, lines) = mpsc::channel(EVENTS);
        let (events, calls) = mpsc::channel(EVENTS);
        let (moved, moves) = mpsc::channel(EVENTS);
        let manager = Self(Arc::new(ManagerState {
            core: CoreServer::new(services.clone(), private),
            results: KeptResults::new(&files.home, results),
            suspended: SuspendedCalls::default(),
            moved,
            changes: OfferChanges::default(),
            services,
            files,
            env: Arc::new(env),
            catalogue,
            metrics,
            clients,
            state: Mutex::default(),
            plans: RwLock::default(),
            starts: Arc::new(Semaphore::new(PARALLEL_STARTS)),
            learned,
            states,
            said,
            events,
            stop: CancellationToken::new(),
            ending: TaskTracker::new(),
        }));
        for kept in lists {
            let (key, lists) = (SourceKey::from_row(&kept), lists_of(&kept));
            manager.state().lists.insert(key, LearnedLists::new(kept.fingerprint, lists));
        }
        for (kept, told) in pins {
            let (key, lists) = (SourceKey::from_row(&kept), Arc::new(lists_of(&kept)));
            let pin = PinnedLists { basis: kept.fingerprint, lists, told };
            manager.state().pins.insert(key, pin);
        }
        for mark in orphaned_marks {
            let this = manager.clone();
            let ending = async move {
                end_leftovers(&mark).await;
                Containers::new(this.home()).end(&mark).await;
                let forgotten = this.0.services.sources.forget_process(mark).await;
                log_unstored(forgotten, "cannot remove the record of a process");
            };
            manager.0.ending.spawn(ending.boxed());
        }
        // Of one type, so that the code that runs a task exists once and not for each.
        let background = [
            learn(manager.clone(), lessons).boxed(),
            write_states(manager.clone(), state_changes).boxed(),
            write_lines(manager.clone(), lines).boxed(),
            write_calls(manager.services().clone(), calls).boxed(),
            write_moves(manager.services().clone(), moves).boxed(),
            sweep_files(manager.clone()).boxed(),
            manager.clone().watch_files().boxed(),
            end_with_sessions(manager.clone()).boxed(),
        ];
        let background = background.map(tokio::spawn);
        let stop = manager.0.stop.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            background.iter().for_each(tokio::task::JoinHandle::abort);
        });
        manager.reload();
        Ok(manager)
    }

    /// Ends all servers, and waits until no process of them is left.
    pub async fn finish(&self) {
        let instances: Vec<_> = {
            let mut state = self.state();
            state.is_ending = true;
            state.instances.drain().map(|(_, instance)| instance).collect()
        };
        join_all(instances.iter().map(|instance| instance.end())).await;
        self.0.core.finish().await;
        self.0.ending.close();
        self.0.ending.wait().await;
        self.0.stop.cancel();
    }
}

/// Stores the lists that servers give, at their start and after each change.
async fn learn(manager: SourceManager, mut lessons: mpsc::UnboundedReceiver<StartLists>) {
    while let Some(StartLists { spec, is_of_learner, mut lists, done }) = lessons.recv().await {
        let (kept, is_new, pin) = {
            let mut state = manager.state();
            // An instance that is ending, with an earlier entry or approval, must not overwrite
            // the present lists.
            if state.learner(&spec.key).is_none_or(|learner| *learner.spec != *spec) {
                continue;
            }
            // The first connection after an approval: the server's present definitions are
            // approved.
            let basis = spec.pin_basis();
            let is_first = state.pins.get(&spec.key).is_none_or(|pin| pin.basis != basis);
            // Only the learner's definitions are approved unseen: nobody has called it before. And
            // what one project's instance offers must not be named to other projects.
            if !is_of_learner && (is_first || spec.key.project.is_empty()) {
                continue;
            }
            let of_this = state.learned(&spec.key, &spec.fingerprint);
            let last_known = of_this.map(|known| Arc::clone(&known.lists)).unwrap_or_default();
            let cut = std::mem::take(&mut lists.cut);
            let lists = lists.or_last_known(&last_known);
            let kept = row_of(&spec.key, &spec.fingerprint, &lists);
            // The texts are compared, too: the same definitions may be written differently.
            let is_new =
                of_this.is_none() || row_of(&spec.key, &spec.fingerprint, &last_known) != kept;
            if is_new {
                let learned = LearnedLists::new(spec.fingerprint.clone(), lists);
                state.lists.insert(spec.key.clone(), learned);
            }
            if let Some(known) = state.lists.get_mut(&spec.key) {
                known.cut = cut;
            }
            if is_first && let Some(known) = state.lists.get(&spec.key) {
                let lists = Arc::clone(&known.lists);
                let pin = PinnedLists { basis, lists, told: BTreeSet::new() };
                state.pins.insert(spec.key.clone(), pin);
            }
            if is_new || is_first {
                manager.settle(&mut state);
            }
            let news = note_changes(&mut state, &spec.key);
            let is_changed = is_first || !news.is_empty();
            let pin = state.pins.get(&spec.key).filter(|_| is_changed).cloned();
            (kept, is_new, pin.map(|pin| (pin, news)))
        };
        done.send(()).ok();
        if is_new {
            let stored = manager.services().sources.store_lists(kept).await;
            log_unstored(stored, "a server's lists are not on record");
        }
        if let Some((pin, news)) = pin {
            store_pin(manager.services(), &spec.key, &pin, news).await;
        }
    }
}

/// Stores and announces the states of servers. Those of an instance that an entry replaced or
/// switched off meanwhile come after the entry's own, and are left out.
async fn write_states(manager: SourceManager, mut changes: mpsc::UnboundedReceiver<StateChange>) {
    while let Some(StateChange { key, status, of_instance }) = changes.recv().await {
        let is_present = of_instance.is_none_or(|spec| {
            manager.spec(&key).is_some_and(|present| Arc::ptr_eq(&present, &spec))
        });
        if is_present {
            let stored = manager.services().sources.store_status(key, status).await;
            log_unstored(stored, "a server's state is not on record");
        }
    }
}

/// Removes large results and files of resources that are older than a week.
async fn sweep_files(manager: SourceManager) {
    loop {
        let (results, files) = (manager.results().clone(), manager.home().join("files"));
        let now = manager.services().now().as_millis();
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now).unwrap_or(0));
        let sweep = tokio::task::spawn_blocking(move || {
            results.sweep(now);
            remove_old(&files, now);
        });
        sweep.await.ok();
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
}

/// When a session ends, ends what runs for it alone: background commands and its own instances.
/// Ends instances of sessions that were not called for long, too.
async fn end_with_sessions(manager: SourceManager) {
    loop {
        tokio::time::sleep(SESSION_LOOK).await;
        end_instances(&manager, |serves, instance| {
            is_of_session(serves, instance) && instance.silent_for() >= SESSION_SILENCE
        });
        let mut sessions = manager.0.core.sessions();
        {
            let state = manager.state();
            let own = state.instances.iter();
            let own = own.filter(|((_, serves), instance)| is_of_session(serves, instance));
            sessions.extend(own.map(|((_, serves), _)| serves.clone()));
        }
        for session in sessions {
            let detail = manager.services().team.session_detail(&Caller::Operator, &session).await;
            if detail.is_ok_and(|detail| detail.session.ended_at.is_some()) {
                manager.0.core.end_session(&session);
                end_instances(&manager, |serves, instance| {
                    serves == session && is_of_session(serves, instance)
                });
            }
        }
    }
}

fn is_of_session(serves: &str, instance: &Instance) -> bool {
    !serves.is_empty() && instance.spec.entry.sharing == Sharing::Session
}

/// Ends instances and removes them.
fn end_instances(manager: &SourceManager, is_over: impl Fn(&str, &Instance) -> bool) {
    let mut state = manager.state();
    let over = state.instances.extract_if(|(_, serves), instance| is_over(serves, instance));
    for (_, instance) in over {
        manager.0.ending.spawn(async move { instance.end().await }.boxed());
    }
}

/// Returns the changes of a server that were not reported yet, and marks them as reported.
fn note_changes(state: &mut ManagedSources, key: &SourceKey) -> Vec<String> {
    let changed = state.lists.get(key).map(|known| Arc::clone(&known.changed));
    let (Some(changed), Some(pin)) = (changed, state.pins.get_mut(key)) else { return Vec::new() };
    let is_news = |change: &&String| !pin.told.contains(*change);
    let news: Vec<String> = changed.iter().filter(is_news).cloned().collect();
    if !news.is_empty() {
        // A change that disappears and comes back is reported again.
        pin.told = changed.iter().cloned().collect();
    }
    news
}

/// Maximum number of events in one write.
const EVENTS_AT_ONCE: usize = 256;
/// How often to check for dropped lines of error output.
const DROPPED_LOOK: Duration = Duration::from_secs(1);
/// How long events of calls wait for others, to be written in one batch.
const GATHERING: Duration = Duration::from_millis(20);

/// Writes lines of error output as events, and counts of those that were dropped.
async fn write_lines(manager: SourceManager, mut lines: mpsc::Receiver<(Arc<SourceSpec>, String)>) {
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
                    by_key.entry(spec.key.clone()).or_default().push(json!({ "data": line }));
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
            let stored = manager.services().sources.tell(key, "stderr", events).await;
            log_unstored(stored, "cannot store what a server printed");
        }
    }
}

async fn write_calls(services: Services, mut calls: mpsc::Receiver<(SourceKey, CallEvent)>) {
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
            let stored = services.sources.tell(key, "call", events).await;
            log_unstored(stored, "cannot store events of calls");
        }
    }
}

async fn write_moves(services: Services, mut moves: mpsc::Receiver<ResourceChange>) {
    while let Some(ResourceChange { stream, uri }) = moves.recv().await {
        let stored = services.sources.append_resource_update(stream, uri).await;
        log_unstored(stored, "cannot store the change of a resource");
    }
}

/// Stores pinned definitions, and writes events for new changes.
pub(super) async fn store_pin(
    services: &Services,
    key: &SourceKey,
    pin: &PinnedLists,
    news: Vec<String>,
) {
    let kept = row_of(key, &pin.basis, &pin.lists);
    let told = pin.told.iter().cloned().collect();
    let stored = services.sources.store_pin(kept, told, news).await;
    log_unstored(stored, "the definitions of a server that were approved are not on record");
}

fn lists_of(kept: &SourceListRow) -> OfferedLists {
    let lists = [&kept.tools, &kept.resources, &kept.templates, &kept.prompts];
    OfferedLists::from_each(lists.map(|text| serde_json::from_str(text).unwrap_or_default()))
}

fn row_of(key: &SourceKey, fingerprint: &str, lists: &OfferedLists) -> SourceListRow {
    let text =
        |list: &[Definition]| serde_json::to_string(list).unwrap_or_else(|_| "[]".to_owned());
    let [tools, resources, templates, prompts] = lists.each().map(text);
    let SourceKey { name, project } = key.clone();
    let fingerprint = fingerprint.to_owned();
    SourceListRow { name, project, fingerprint, tools, resources, templates, prompts }
}

#[cfg(test)]
mod tests {
    use svc_core::service::testing::opened;

    use super::*;

    /// Their processes may take seconds to end, and the files are watched meanwhile.
    #[tokio::test]
    async fn no_server_is_started_once_all_are_ending() {
        let (_test, services) = opened().await;
        let home = tempfile::tempdir().unwrap();
        let files = SourceFiles {
            home: home.path().to_owned(),
            config_file: home.path().join("config.toml"),
            flags: Vec::new(),
            imports: Vec::new(),
            strict: false,
        };
        let parts = SourceManagerParts {
            services,
            files: files.clone(),
            env: [("PATH", "/usr/bin:/bin")].into_iter().collect(),
            catalogue: Weak::new(),
            metrics: SourceMetrics::default(),
            results: ResultBounds { result_bytes: 1, kept_bytes: 1 },
            private: Vec::new(),
        };
        let manager = SourceManager::start(parts).await.unwrap();
        manager.finish().await;
        std::fs::write(&files.config_file, "[sources.late]\ncommand = \"cat\"\n").unwrap();
        manager.reload();
        let state = manager.state();
        assert_eq!(state.wanted.len(), 1, "the file was read");
        assert!(state.instances.is_empty(), "its server was started");
    }
}
