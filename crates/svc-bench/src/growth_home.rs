//! A data folder with a history: records, memories, sessions, tasks, events and messages, written
//! through the store. Words are distributed as in natural texts: few are frequent, most are rare.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers of rows and ranks of words, which are small"
)]

use std::{path::Path, sync::Arc};

use svc_model::{
    DeliveryState, GhapId, Message, MessageId, MessageType, NewEvent, OpenCalls, Ownership, Peer,
    PeerId, PeerRole, PeerStatus, StatusEvidence, StreamName, StreamVisibility, SystemClock, Task,
    TaskId, TaskReport, TaskStatus, Timestamp,
    journal::{
        Domain, Ghap, GhapDraft, GhapEnd, Lesson, RootCause, RootCauseCategory, SessionSource,
        Strategy, Tier, Verdict,
    },
    learning::{Memory, MemoryCategory, MemoryId},
    text,
};
use svc_store::{DeliveryTerms, OpenOptions, PeerRow, SessionStart, Store, StoreError, TaskRow};

use super::report;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HistorySize {
    /// Number of records, and of memories.
    pub(crate) records: usize,
    /// Number of sessions, and of tasks.
    pub(crate) sessions: usize,
    pub(crate) events: usize,
    pub(crate) messages: usize,
}

impl HistorySize {
    /// A share of this size, but at least a minimum of each kind.
    pub(crate) fn share(self, share: f64) -> Self {
        let part = |whole: usize| ((whole as f64 * share) as usize).max(2 * OPEN);
        Self {
            records: part(self.records),
            sessions: part(self.sessions),
            events: part(self.events),
            messages: part(self.messages),
        }
    }
}

/// Number of projects, to which rows are assigned in turn.
pub(crate) const PROJECTS: usize = 20;
/// Number of agents, to which tasks are assigned in turn.
const AGENTS: usize = 8;
/// Number of tasks and sessions that stay open: the latest ones.
pub(crate) const OPEN: usize = 20;
/// Number of distinct words in all texts.
const WORDS: f64 = 40_000.0;
const BATCH: usize = 250;
/// One event in this many is a peer's status in the stream of the team; one in ten belongs to a
/// session; the others are lines of tasks.
const TEAM_EVERY: usize = 1_000;
const SESSION_EVERY: usize = 10;
const DAY_MS: i64 = 86_400_000;

/// A pseudo-random sequence of words that is the same in each run.
#[derive(Debug, Clone)]
pub(crate) struct Words(u64);

impl Words {
    pub(crate) fn from_seed(seed: usize) -> Self {
        Self((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        f64::from(u32::try_from(self.0 >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }

    /// The frequency of a word is inversely proportional to its rank.
    fn word(&mut self) -> String {
        let mut rank = (WORDS.powf(self.share()) - 1.0) as u32;
        let mut word = String::new();
        for _ in 0..3 {
            for letters in ["bdfgklmnprtvz", "aiou"] {
                let count = u32::try_from(letters.len()).unwrap_or(1);
                let at = (rank % count) as usize;
                word.push(char::from(letters.as_bytes()[at]));
                rank /= count;
            }
        }
        word
    }

    pub(crate) fn text(&mut self, words: usize) -> String {
        let words: Vec<String> = (0..words).map(|_| self.word()).collect();
        words.join(" ")
    }
}

pub(crate) fn project(number: usize) -> String {
    format!("/work/p{}", number % PROJECTS)
}

/// Adds the rows by which a history of size `to` exceeds one of size `from`.
pub(crate) async fn fill(path: &Path, from: HistorySize, to: HistorySize) -> anyhow::Result<()> {
    let options = OpenOptions::for_file(path.to_owned())?;
    let (store, writer) = Store::open(&options, Arc::new(SystemClock)).await?;
    let now = store_now();
    for part in parts("sessions", from.sessions, to.sessions) {
        write(&store, part, move |tx, number| {
            Box::pin(async move { put_session(tx, number, now, to.sessions).await })
        })
        .await?;
    }
    for part in parts("records", from.records, to.records) {
        write(&store, part, move |tx, number| {
            Box::pin(async move {
                tx.ghaps().insert(&record(number, to, now)).await?;
                let (memory, session) = memory(number, to, now);
                let digest = format!("{number:064}");
                let terms = text::terms(&memory.content);
                tx.memories().insert(&memory, &digest, &terms, &session, false).await?;
                Ok(())
            })
        })
        .await?;
    }
    let lines = (to.events - from.events) / (to.sessions - from.sessions).max(1);
    for part in parts("tasks", from.sessions, to.sessions) {
        for part in part.chunks(BATCH / 10) {
            write(&store, part.to_vec(), move |tx, number| {
                Box::pin(async move {
                    put_task(tx, number, now, number + OPEN >= to.sessions).await?;
                    put_events(tx, number, lines).await
                })
            })
            .await?;
        }
    }
    for part in parts("messages", from.messages, to.messages) {
        write(&store, part, move |tx, number| {
            Box::pin(async move {
                let message = message(number, to, now);
                tx.messages().insert(&message, "operator", None, DeliveryTerms::default()).await
            })
        })
        .await?;
    }
    // The daemon's maintenance has done this by the time that there are so many records.
    while !store.upkeep().merge_indexes().await? {}
    writer.close(store).await?;
    Ok(())
}

fn store_now() -> Timestamp {
    svc_model::Clock::now(&SystemClock)
}

/// The numbers from `from` to `to` in batches.
fn parts(what: &'static str, from: usize, to: usize) -> impl Iterator<Item = Vec<usize>> {
    (from..to).step_by(BATCH).map(move |start| {
        report::show_step(&format!("preparing {what}: {start} of {to}"));
        (start..to.min(start + BATCH)).collect()
    })
}

type Put<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

async fn write<F>(store: &Store, numbers: Vec<usize>, put: F) -> Result<(), StoreError>
where
    F: for<'a> Fn(&'a mut svc_store::WriteTx, usize) -> Put<'a> + Send + Sync + 'static,
{
    store
        .write(move |tx| {
            Box::pin(async move {
                for number in numbers {
                    put(tx, number).await?;
                }
                Ok(())
            })
        })
        .await
}

/// The time of a row: the last row is from now, the others go back evenly over a year.
fn time(number: usize, all: usize, now: Timestamp) -> Timestamp {
    let ago = (all - number) as i64 * (365 * DAY_MS) / all.max(1) as i64;
    Timestamp::from_millis(now.as_millis() - ago)
}

fn record(number: usize, size: HistorySize, now: Timestamp) -> Ghap {
    let mut words = Words::from_seed(number + 1);
    let at = time(number, size.records, now);
    let pick = |count: usize| (words.clone().share() * 1e6) as usize % count;
    let (domain, strategy) =
        (Domain::ALL[pick(Domain::ALL.len())], Strategy::ALL[pick(Strategy::ALL.len())]);
    let category = RootCauseCategory::ALL[pick(RootCauseCategory::ALL.len())];
    let verdict = if words.share() < 0.6 { Verdict::Confirmed } else { Verdict::Falsified };
    let draft = GhapDraft {
        domain,
        strategy,
        goal: words.text(8),
        hypothesis: words.text(10),
        action: words.text(8),
        prediction: words.text(8),
        probability: (words.share() < 0.7).then_some((words.share() * 20.0).round() / 20.0),
    };
    let is_wrong = verdict == Verdict::Falsified;
    let end = GhapEnd {
        result: Some(words.text(8)),
        surprise: is_wrong.then(|| words.text(8)),
        root_cause: is_wrong.then(|| RootCause { category, description: words.text(8) }),
        lesson: Some(Lesson { what_worked: words.text(8), takeaway: Some(words.text(8)) }),
        tier: Tier::Silver,
        outcome_id: None,
        at,
    };
    let session = session_id(number % size.sessions);
    let id = GhapId::from(format!("ghap_{number:08}"));
    let ghap = Ghap::begin(id, session, Some(project(number % size.sessions)), draft, at);
    Ghap { status: verdict.status(), end: Some(Box::new(end)), ..ghap }
}

fn memory(number: usize, size: HistorySize, now: Timestamp) -> (Memory, String) {
    let mut words = Words::from_seed(number + 7_000_001);
    let session = number % size.sessions;
    let memory = Memory {
        id: MemoryId::from(format!("mem_{number:08}")),
        project: Some(project(session)),
        category: MemoryCategory::Fact,
        content: words.text(25),
        importance: 0.5,
        tags: Vec::new(),
        confirmed_again: 0,
        created_at: time(number, size.records, now),
    };
    (memory, session_id(session))
}

fn session_id(number: usize) -> String {
    format!("session-{number:06}")
}

pub(crate) fn peer_id(number: usize) -> PeerId {
    PeerId::from(format!("peer_{number:06}"))
}

async fn put_session(
    tx: &mut svc_store::WriteTx,
    number: usize,
    now: Timestamp,
    all: usize,
) -> Result<(), StoreError> {
    let is_open = number + OPEN >= all;
    let (id, at) = (session_id(number), time(number, all, now));
    let start = SessionStart {
        session_id: id.clone(),
        project: Some(project(number)),
        client: Some("claude-code".to_owned()),
        source: SessionSource::Startup,
        created_by: "operator".to_owned(),
    };
    tx.sessions().begin(&start).await?;
    if !is_open {
        tx.sessions().end(&id, Some("other")).await?;
    }
    tx.sessions().date(&id, at, true).await?;
    let peer = Peer {
        peer_id: peer_id(number),
        display_name: format!("agent {number}"),
        path: Some(project(number)),
        backend: "claude-code".to_owned(),
        circle: "default".to_owned(),
        role: PeerRole::Agent,
        status: if is_open { PeerStatus::Idle } else { PeerStatus::Offline },
        since: at,
        waiting_for: None,
        session_id: Some(id),
        agent: None,
        tmux_pane: None,
        pid: None,
        machine: None,
        metadata: None,
        evidence: StatusEvidence::Hook,
        registered_at: at,
        last_seen: at,
    };
    let project = Some(project(number));
    let open_calls = OpenCalls::default();
    let row =
        PeerRow { peer, owner: None, project, process_started: None, machine_id: None, open_calls };
    tx.peers().put(&row).await
}

pub(crate) fn task_id(number: usize) -> String {
    format!("task_{number:026}")
}

async fn put_task(
    tx: &mut svc_store::WriteTx,
    number: usize,
    now: Timestamp,
    is_open: bool,
) -> Result<(), StoreError> {
    let stream = StreamName::new("task", task_id(number));
    let state = tx.streams().open(&stream, &StreamVisibility::Team).await?;
    let mut words = Words::from_seed(number + 3_000_001);
    let task = Task {
        task_id: TaskId::from(task_id(number)),
        title: Some(words.text(5)),
        agent: Some(format!("agent-{}", number % AGENTS)),
        prompt: Some(words.text(40)),
        from: None,
        metadata: None,
        status: if is_open { TaskStatus::Active } else { TaskStatus::Done },
        report: TaskReport { exit_code: None, signal: None, error: None },
        reason: None,
        result: None,
        result_truncated: false,
        cancel_requested_at: None,
        created_at: Timestamp::from_millis(now.as_millis() + number as i64),
        updated_at: now,
        closed_at: (!is_open).then_some(now),
        last_id: 0,
    };
    let owned = Ownership::from_row("operator", project(number));
    tx.tasks().insert(&task, &owned, state.id, None).await?;
    let row = TaskRow { task, owned, process: None };
    tx.tasks().update(&row).await
}

/// The events of one step: lines of a task, some events of a session, and few events of the team.
async fn put_events(
    tx: &mut svc_store::WriteTx,
    number: usize,
    count: usize,
) -> Result<(), StoreError> {
    let (task, session) =
        (StreamName::new("task", task_id(number)), StreamName::new("session", session_id(number)));
    let team = StreamName::fixed("team");
    tx.streams().open(&session, &StreamVisibility::Team).await?;
    tx.streams().open(&team, &StreamVisibility::Team).await?;
    let line = format!(r#"{{"line":"{}","kind":"stdout"}}"#, "x".repeat(120));
    let event = |kind: &'static str, data: &str| NewEvent {
        kind: kind.into(),
        data: data.into(),
        producer_id: None,
    };
    let lines = vec![event("frame", &line); (count - count / SESSION_EVERY).max(1)];
    tx.append(&task, lines).await?;
    let calls = vec![event("tool.used", r#"{"tool":"Bash"}"#); (count / SESSION_EVERY).max(1)];
    tx.append(&session, calls).await?;
    // A task has fewer events than there are between two events of the team.
    if (number * count) / TEAM_EVERY != ((number + 1) * count) / TEAM_EVERY {
        tx.append(&team, vec![event("peer.status", r#"{"status":"idle"}"#)]).await?;
    }
    Ok(())
}

fn message(number: usize, size: HistorySize, now: Timestamp) -> Message {
    let mut words = Words::from_seed(number + 5_000_001);
    let (from, to) = (number % size.sessions, (number / 2 + 1) % size.sessions);
    Message {
        id: MessageId::from(format!("msg_{number:08}")),
        kind: MessageType::Notification,
        from_peer: peer_id(from).as_str().to_owned(),
        to_peer: peer_id(to),
        text: words.text(20),
        correlation_id: None,
        timestamp: time(number, size.messages, now),
        state: DeliveryState::Acked,
        provenance: None,
    }
}
