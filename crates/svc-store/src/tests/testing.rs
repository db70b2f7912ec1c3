//! A store on a temporary file, for tests of this crate and of crates that depend on it.

#![expect(clippy::unwrap_used, reason = "for tests alone")]

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _};
use svc_model::{
    Clock, Machine, MachineId, ManualClock, NewEvent, StreamName, StreamVisibility, Timestamp,
};
use svc_sys::machine::ThisMachine;

use crate::{
    OpenOptions, Result, WriteTx,
    sqlite::file::writer_options,
    store::{Store, Writer},
};

#[cfg(all(test, feature = "postgres"))]
use crate::{PostgresOptions, postgres::testing::new_database};
#[cfg(test)]
use crate::{
    columns::{DirectRow, EngineRow, read_row},
    families::frames,
    sqlite::direct_connection::each,
};
#[cfg(all(test, feature = "postgres"))]
use std::time::Duration;
#[cfg(all(test, feature = "postgres"))]
use svc_sys::config::ListenMode;

#[derive(Debug)]
pub struct TestStore {
    pub store: Store,
    pub clock: Arc<ManualClock>,
    writer: Writer,
    folder: tempfile::TempDir,
}

impl TestStore {
    pub async fn open() -> Self {
        Self::of_size(None).await
    }

    /// A store whose file has at most `max_bytes`.
    pub async fn of_size(max_bytes: Option<u64>) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_000)));
        Self::at(tempfile::tempdir().unwrap(), clock, max_bytes).await
    }

    async fn at(
        folder: tempfile::TempDir,
        clock: Arc<ManualClock>,
        max_bytes: Option<u64>,
    ) -> Self {
        let path = folder.path().join("svc.db");
        let machine = test_machine();
        let options = OpenOptions { path, max_bytes, migrate: true, machine };
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let (store, writer) = Store::open(&options, shared).await.unwrap();
        Self { store, clock, writer, folder }
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Changes the file without the writer, like another program.
    pub async fn execute(&self, sql: &'static str) {
        let mut conn = writer_options(self.store.path()).unwrap().connect().await.unwrap();
        sqlx::query(sql).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }

    /// Sets an end time on every task without changing its state.
    pub async fn contradict_tasks(&self) {
        self.execute("update task set closed_at = 1").await;
    }

    /// Runs a write job, which must not fail.
    pub async fn write<T, F>(&self, work: F) -> T
    where
        F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        self.store.write(work).await.unwrap()
    }

    /// The single column of a query.
    #[cfg(test)]
    pub(crate) fn column<T: Send>(&self, sql: &str) -> Vec<T>
    where
        (T,): DirectRow,
    {
        let mut values = Vec::new();
        let mut take = |row: &dyn EngineRow| {
            let (value,) = read_row(row)?;
            values.push(value);
            Ok(true)
        };
        let readers = &self.store.readers.file().unwrap().rows;
        readers.read_here(|conn| each(conn, sql, &[], &mut take)).unwrap();
        values
    }

    pub async fn restart(self) -> Self {
        self.writer.close(self.store).await.unwrap();
        Self::at(self.folder, self.clock, None).await
    }
}

#[cfg(all(test, feature = "postgres"))]
pub(crate) async fn open_on_server(clock: Arc<ManualClock>) -> (Store, Writer) {
    open_in_database(&new_database(), ListenMode::Notify, clock).await
}

#[cfg(all(test, feature = "postgres"))]
pub(crate) async fn open_in_database(
    url: &str,
    listen: ListenMode,
    clock: Arc<ManualClock>,
) -> (Store, Writer) {
    let options = PostgresOptions {
        url: url.parse().unwrap(),
        password: None,
        schema: "svc".to_owned(),
        max_connections: 6,
        connect_timeout: Duration::from_secs(30),
        listen,
        migrate: true,
    };
    Store::open_postgres(&options, &test_machine(), clock).await.unwrap()
}

/// The statements that sqlx checked, and those of a replay.
#[cfg(test)]
pub(crate) fn statements() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.sqlx");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let query = |path| {
        let file: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        file["query"].as_str().unwrap().to_owned()
    };
    let replay = [frames::STREAM_ROWS, frames::FEED_ROWS, frames::NEXT_POSITION];
    files.map(query).chain(replay.map(str::to_owned)).collect()
}

/// An active task without texts.
#[cfg(test)]
pub(crate) fn task(id: svc_model::TaskId, created_at: Timestamp) -> svc_model::Task {
    svc_model::Task {
        task_id: id,
        title: None,
        agent: None,
        prompt: None,
        from: None,
        metadata: None,
        status: svc_model::TaskStatus::Active,
        report: svc_model::TaskReport::default(),
        reason: None,
        result: None,
        cancel_requested_at: None,
        created_at,
        updated_at: created_at,
        result_truncated: false,
        closed_at: None,
        last_id: 0,
    }
}

fn test_machine() -> ThisMachine {
    let machine_id = MachineId::from("mach_test".to_owned());
    let machine = Machine { machine_id, name: "box".to_owned() };
    ThisMachine { machine, host: "host of a test".to_owned() }
}

pub fn event(kind: &str, data: &str) -> NewEvent {
    NewEvent { kind: kind.into(), data: data.into(), producer_id: None }
}

pub async fn append(store: &Store, name: &StreamName, events: Vec<NewEvent>) {
    let name = name.clone();
    let done: Result<()> = store
        .write(job!(|tx| {
            let visibility = match name.kind() {
                "mcp" => StreamVisibility::Answers,
                "" => StreamVisibility::Team,
                _ => StreamVisibility::for_daemon(),
            };
            tx.streams().open(&name, &visibility).await?;
            tx.append(&name, events).await?;
            Ok(())
        }))
        .await;
    done.unwrap();
}

/// Compares the log with a plain vector, under any order of appends, repeats, trims, reads,
/// closings and restarts.
#[cfg(test)]
mod model {
    use std::collections::HashMap;

    use proptest::{
        prelude::*,
        test_runner::{Config, TestRunner},
    };
    use svc_model::{Framing, NewEvent, Reader, Seq, StreamName};

    use super::{TestStore, append, event};
    use crate::{FeedScope, StoreError};

    #[derive(Debug, Clone)]
    enum LogStep {
        Append { stream: usize, events: usize, id: Option<u8> },
        Close { stream: usize },
        Trim { share: u8 },
        Read { stream: usize, after: u8 },
        Restart,
    }

    fn step() -> impl Strategy<Value = LogStep> {
        prop_oneof![
            8 => (0..3_usize, 1..40_usize, prop::option::weighted(0.3, 0..4_u8))
                .prop_map(|(stream, events, id)| LogStep::Append { stream, events, id }),
            1 => (0..3_usize).prop_map(|stream| LogStep::Close { stream }),
            2 => any::<u8>().prop_map(|share| LogStep::Trim { share }),
            4 => (0..3_usize, any::<u8>()).prop_map(|(stream, after)| LogStep::Read { stream, after }),
            1 => Just(LogStep::Restart),
        ]
    }

    /// The expected state of a stream.
    #[derive(Debug, Default)]
    struct Stream {
        /// Seq, position and data of each remaining event.
        events: Vec<(Seq, i64, String)>,
        head: Seq,
        closed: bool,
        ids: HashMap<u8, Seq>,
    }

    #[derive(Debug, Default)]
    struct CapturedLog {
        streams: [Stream; 3],
        position: i64,
        trimmed: i64,
    }

    fn name(stream: usize) -> StreamName {
        StreamName::new("task", stream)
    }

    async fn run(steps: Vec<LogStep>) {
        let mut test = TestStore::open().await;
        let mut log = CapturedLog::default();
        for stream in 0..3 {
            append(&test.store, &name(stream), vec![event("task", "0")]).await;
            log.position += 1;
            log.streams[stream].events.push((1, log.position, "0".to_owned()));
            log.streams[stream].head = 1;
        }
        for step in steps {
            match step {
                LogStep::Append { stream, events, id } => {
                    let model = &mut log.streams[stream];
                    let known = id.and_then(|id| model.ids.get(&id).copied());
                    let data = format!("{}", log.position);
                    let batch = match id {
                        Some(id) => vec![NewEvent {
                            producer_id: Some(id.to_string().into()),
                            ..event("frame", &data)
                        }],
                        None => vec![event("frame", &data); events],
                    };
                    let len = batch.len();
                    let outcome = test.store.append(name(stream), batch).await;
                    if let Some(seq) = known {
                        assert_eq!(outcome.unwrap().last, seq);
                    } else if model.closed {
                        assert!(matches!(outcome, Err(StoreError::StreamClosed)));
                    } else {
                        for _ in 0..len {
                            model.head += 1;
                            log.position += 1;
                            model.events.push((model.head, log.position, data.clone()));
                        }
                        assert_eq!(outcome.unwrap().last, model.head);
                        if let Some(id) = id {
                            model.ids.insert(id, model.head);
                        }
                    }
                }
                LogStep::Close { stream } => {
                    test.write(job!(|tx| tx.streams().close(&name(stream)).await)).await;
                    log.streams[stream].closed = true;
                }
                LogStep::Trim { share } => {
                    let until = log.position * i64::from(share) / 255;
                    test.store.upkeep().trim(until, u64::MAX).await.unwrap();
                    for stream in &mut log.streams {
                        let head = stream.head;
                        stream.events.retain(|(seq, position, _)| {
                            let stays = *position > until || *seq == head;
                            if !stays {
                                log.trimmed = log.trimmed.max(*position);
                            }
                            stays
                        });
                        // A producer id is removed with its event.
                        let left: Vec<Seq> = stream.events.iter().map(|it| it.0).collect();
                        stream.ids.retain(|_, seq| left.contains(seq));
                    }
                }
                LogStep::Read { stream, after } => {
                    let model = &log.streams[stream];
                    let view = test.store.streams().view(&name(stream)).await.unwrap().unwrap();
                    let floor = model.events.first().map_or(0, |it| it.0 - 1);
                    assert_eq!(
                        (view.floor, view.head, view.closed),
                        (floor, model.head, model.closed)
                    );
                    let after = Seq::from(after);
                    let mut cursor = after;
                    let mut text = String::new();
                    loop {
                        let (sender, mut pages) = tokio::sync::mpsc::channel(2);
                        let name = name(stream);
                        let read = test.store.frames().of_stream(
                            view.id,
                            &name,
                            cursor,
                            Framing::Data,
                            sender,
                        );
                        read.await.unwrap();
                        if pages.is_empty() {
                            break;
                        }
                        while let Some(page) = pages.recv().await {
                            cursor = page.cursor;
                            text.push_str(std::str::from_utf8(&page.bytes).unwrap());
                        }
                    }
                    let mut expected = String::new();
                    for (seq, _, data) in model.events.iter().filter(|(seq, ..)| *seq > after) {
                        let kind = if *seq == 1 { "task" } else { "frame" };
                        let frame = format!("id: {seq}\nevent: {kind}\ndata: {data}\n\n");
                        expected.push_str(&frame);
                    }
                    assert_eq!(text, expected);
                }
                LogStep::Restart => test = test.restart().await,
            }
        }
        let feed = test
            .store
            .events()
            .of_feed(
                &FeedScope::prefix("", Reader::All),
                0,
                i64::MAX,
                None,
                crate::PageSize::rows(u32::MAX),
            )
            .await;
        let mut expected: Vec<i64> =
            log.streams.iter().flat_map(|stream| stream.events.iter().map(|it| it.1)).collect();
        expected.sort_unstable();
        let found: Vec<i64> = feed.unwrap().rows.iter().map(|event| event.position).collect();
        assert_eq!(found, expected);
        assert_eq!(test.store.events().bounds().await.unwrap(), (log.trimmed, log.position));
    }

    #[test]
    fn the_log_behaves_like_a_durable_vector() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&prop::collection::vec(step(), 1..60), |steps| {
                runtime.block_on(run(steps));
                Ok(())
            })
            .unwrap();
    }
}

/// Records of the journal, created without the service.
pub mod journal {
    use svc_model::{
        GhapId, Timestamp,
        journal::{
            Domain, Ghap, GhapDraft, GhapEnd, GhapStatus, SessionSource, Strategy, Tier, Verdict,
        },
    };

    use super::TestStore;
    use crate::SessionStart;

    /// A confirmed record of session `s` with only a goal. The session is stored, the record is
    /// not.
    pub async fn record(at: &TestStore, number: usize, goal: &str) -> Ghap {
        let start = session("s", "operator");
        at.write(job!(|tx| tx.sessions().begin(&start).await)).await;
        let now = Timestamp::from_millis(1_000);
        let mut ghap = active(number, "s", goal, now);
        (ghap.status, ghap.end) = ended(Verdict::Confirmed, now);
        ghap
    }

    pub fn session(id: &str, created_by: &str) -> SessionStart {
        SessionStart {
            session_id: id.to_owned(),
            project: None,
            client: None,
            source: SessionSource::Startup,
            created_by: created_by.to_owned(),
        }
    }

    /// An active record with only a goal.
    pub fn active(number: usize, session: &str, goal: &str, now: Timestamp) -> Ghap {
        let draft = GhapDraft {
            domain: Domain::Debugging,
            strategy: Strategy::ReadTheError,
            goal: goal.to_owned(),
            hypothesis: String::new(),
            action: String::new(),
            prediction: String::new(),
            probability: None,
        };
        let id = GhapId::from(format!("ghap_{number}"));
        Ghap::begin(id, session.to_owned(), None, draft, now)
    }

    pub async fn put(at: &TestStore, ghap: Ghap) {
        at.write(job!(|tx| tx.ghaps().insert(&ghap).await)).await;
    }

    pub async fn update(at: &TestStore, ghap: Ghap) {
        at.write(job!(|tx| tx.ghaps().update(&ghap).await)).await;
    }

    /// An end at `at` with only a verdict.
    pub fn ended(verdict: Verdict, at: Timestamp) -> (GhapStatus, Option<Box<GhapEnd>>) {
        let end = GhapEnd {
            result: None,
            surprise: None,
            root_cause: None,
            lesson: None,
            tier: Tier::Silver,
            outcome_id: None,
            at,
        };
        (verdict.status(), Some(Box::new(end)))
    }
}
