//! Jobs with statements of their own: other reads see their rows, and a write that should change a
//! row and finds none fails.

use futures_util::future::BoxFuture;
use svc_model::{
    AgentId, CallId, DeliveryState, GhapId, MachineId, McpSessionId, Message, MessageId,
    MessageType, OpenCalls, Ownership, Peer, PeerId, PeerRole, PeerStatus, Principal, RunId,
    StreamName, StreamVisibility, TaskId, Timestamp, TokenId,
    conversation::{Provenance, RunMode, RunState, SourceTool},
    journal::Ghap,
};
use svc_wire::mcp::Revision;

use crate::{
    AgentMail, AssignmentRow, AssignmentState, CallState, DeliveryTerms, PeerRow, Result,
    StoreError, TaskRow, WriteTx,
    testing::{TestStore, event, journal::record, task},
};

const AT: Timestamp = Timestamp::from_millis(7);

/// One row of each table, with distinct values in all columns.
const ROWS: &str = "
    insert into stream (name, created_at, visibility) values ('agent/ag_1', 1, 'team'), ('task/t', 2, 'team');
    insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, task, description, created_by,
        state, host_pid, host_started, pid, vendor_session, exit_code, signal, error, token_id, task_id, request_timeout,
        idempotency_key, request_fingerprint, started_at, ended_at)
    values ('ag_1', (select id from stream where name = 'agent/ag_1'), 'pair', 'exec', 'agent:pair:one', '/p', '/c', 'a task',
        'words', 'operator', 'idle', 11, 12, 13, 'vendor', 14, 15, 'broken', 'tok_1', 't', 16, 'key', 'hash', 17, null);
    insert into task (task_id, stream_id, status, created_by, created_at)
        values ('t', (select id from stream where name = 'task/t'), 'active', 'operator', 3);
    insert into assignment (run_id, task_id, mode, source_session, created_at, instance, backend, requirements, attempt, state,
        target_agent, is_spawned, taken_at, has_words, said, turn)
    values ('run_t', 't', 'followup', 'operator', 3, 'pair', 'exec', '{\"mode\":\"peer-prefer\",\"failover\":[\"other\"]}', 2, 'running',
        'ag_1', 1, 21, 0, 22, null);";

fn peer_row(id: &str) -> PeerRow {
    let mut row = PeerRow {
        peer: Peer::operator(AT),
        owner: Some(format!("agent:pair:{id}")),
        project: Some("/p".to_owned()),
        process_started: Some("5".to_owned()),
        machine_id: Some(MachineId::from("mach_1".to_owned())),
        open_calls: OpenCalls::default(),
    };
    row.open_calls.begin("call");
    row.peer.peer_id = PeerId::from(format!("peer_{id}"));
    row.peer.role = PeerRole::Orchestrator;
    row.peer.status = PeerStatus::Busy;
    row.peer.path = Some("/c".to_owned());
    row.peer.session_id = Some(format!("session of {id}"));
    row.peer.pid = Some(4);
    row.peer.metadata = Some([("a".to_owned(), "b".to_owned())].into());
    row
}

fn message(id: &str) -> Message {
    let run = RunId::from(format!("run_{id}"));
    let provenance =
        Provenance::inter_session(Some("agent:pair:one".to_owned()), SourceTool::SessionsSend, run);
    Message {
        id: MessageId::from(format!("msg_{id}")),
        kind: MessageType::Query,
        from_peer: "peer_from".to_owned(),
        to_peer: PeerId::from(format!("peer_{id}")),
        text: "a\0question".to_owned(),
        correlation_id: Some("msg_0".to_owned()),
        timestamp: AT,
        state: DeliveryState::Accepted,
        provenance: Some(provenance),
    }
}

fn run_row(id: &str) -> AssignmentRow {
    let (run_id, session) = (RunId::from(format!("run_{id}")), "agent:pair:from".to_owned());
    AssignmentRow {
        message_id: Some(MessageId::from(format!("msg_{id}"))),
        source_peer: PeerId::from("peer_from".to_owned()),
        source_agent: Some(AgentId::from("ag_from".to_owned())),
        target_session: format!("agent:pair:{id}"),
        target_peer: PeerId::from(format!("peer_{id}")),
        target_agent: Some(AgentId::from(format!("ag_{id}"))),
        state: AssignmentState::Sent,
        waits_until: Some(Timestamp::from_millis(100_000)),
        idempotency_key: Some(format!("key of {id}")),
        ..AssignmentRow::new(run_id, session, AT)
    }
}

/// The assignment of `run_row` after its end, with all fields set.
fn ended_run(id: &str) -> AssignmentRow {
    AssignmentRow {
        state: AssignmentState::NoReply,
        reason: Some("failed".to_owned()),
        error: Some("words".to_owned()),
        reply_id: Some(MessageId::from("msg_9".to_owned())),
        answered: Some(RunState::NoReply),
        begun_at: Some(Timestamp::from_millis(8)),
        ended_at: Some(Timestamp::from_millis(9)),
        ..run_row(id)
    }
}

/// Everything that the frequent jobs of a conversation read.
async fn read_all(tx: &mut WriteTx, id: &'static str) -> Result<String> {
    let (row, message) = (run_row(id), message(id));
    let owner = format!("agent:pair:{id}");
    let principal = Principal::Session(owner.as_str().into());
    let read = (
        tx.peers().get(&message.to_peer).await?,
        tx.peers().of_session(&owner).await?,
        tx.messages().get(&message.id).await?,
        tx.inboxes().is_full(&message.to_peer, 1).await?,
        tx.upkeep().rows_kept(&principal, 100).await?,
    );
    let of_run = (
        tx.assignments().get(&row.run_id).await?,
        tx.assignments().of_message(&message.id).await?,
        tx.assignments().by_key(&row.source_session, &format!("key of {id}")).await?,
        tx.assignments().waits_from(&row.source_session).await?,
        tx.assignments()
            .count_since(
                (&row.source_session, Some(&row.source_peer)),
                &row.target_peer,
                AT.minus(std::time::Duration::from_millis(1)),
            )
            .await?,
        tx.messages().turn_of(&message.id).await?,
        tx.agents().was_run("agent:pair:one").await?,
    );
    Ok(format!("{read:?} {of_run:?}"))
}

#[tokio::test]
async fn a_job_and_a_reader_return_the_same_rows() {
    let test = TestStore::open().await;
    test.execute(ROWS).await;
    let read = test.store.write(job!(|tx| {
        let (id, task) = (AgentId::from("ag_1".to_owned()), TaskId::from("t".to_owned()));
        let agent = tx.agents().get(&id).await?.expect("it is there");
        let live = tx.agents().live("agent:pair:one").await?;
        assert_eq!(live.as_ref(), Some(&agent));
        let work = (tx.assignments().of_task(&task).await?, tx.assignments().of_agent(&id).await?);
        let stream = tx.streams().state(&StreamName::new("agent", &id)).await?;
        Ok::<_, StoreError>(format!("{agent:?} {work:?} {stream:?}"))
    }));
    let read = read.await.unwrap();
    let agent = test.store.agents().get(&AgentId::from("ag_1".to_owned())).await.unwrap();
    assert_eq!(agent, test.store.agents().of_key("agent:pair:one").await.unwrap());
    assert!(read.starts_with(&format!("{:?}", agent.unwrap())), "{read}");
    assert!(read.contains("ag_1") && read.contains("vendor") && read.contains("PeerPrefer"));
}

/// Twenty agents were started with the name later than the agent with the key.
#[tokio::test]
async fn an_agent_is_found_by_its_key_beside_many_that_were_started_with_that_name() {
    let test = TestStore::open().await;
    test.execute(
        "
        insert into stream (name, created_at, visibility)
            with recursive n(i) as (values (0) union all select i + 1 from n where i < 20)
            select 'agent/ag_' || i, 1, 'team' from n;
        insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by, state, pid,
            request_timeout, started_at)
            with recursive n(i) as (values (0) union all select i + 1 from n where i < 20)
            select 'ag_' || i, (select id from stream where name = 'agent/ag_' || i), iif(i = 0, 'ann', 'i' || i), 'exec',
                iif(i = 0, 'agent:ann:main', 'agent:i' || i || ':ann'), '/p', '/c', 'operator', 'idle', 1, 1, i
            from n;",
    )
    .await;
    let named = test.store.agents().named("ann").await.unwrap();
    let ids: Vec<&str> = named.iter().map(|row| row.info.id.as_str()).collect();
    assert_eq!(ids, ["ag_0"]);
    test.execute("delete from agent where agent_id = 'ag_0';").await;
    assert_eq!(test.store.agents().named("ann").await.unwrap().len(), 20);
}

/// Of those that are gone, the latest is meant most often.
#[tokio::test]
async fn the_latest_of_many_peers_of_a_name_are_found() {
    let test = TestStore::open().await;
    test.write(job!(|tx| {
        for number in 0..60 {
            let mut row = peer_row(&number.to_string());
            row.peer.display_name = "ann".to_owned();
            row.peer.status = if number == 3 { PeerStatus::Idle } else { PeerStatus::Offline };
            row.peer.registered_at = Timestamp::from_millis(number);
            tx.peers().put(&row).await?;
        }
        Ok(())
    }))
    .await;
    let found = test.store.peers().named("ann", 3).await.unwrap();
    let ids: Vec<&str> = found.iter().map(|row| row.peer.peer_id.as_str()).collect();
    assert_eq!(ids, ["peer_3", "peer_59", "peer_58"]);
}

#[tokio::test]
async fn rows_of_one_job_are_visible_to_later_jobs_and_readers() {
    let test = TestStore::open().await;
    let store = &test.store;
    let id = "to";
    let written = store.write(job!(|tx| {
        tx.peers().put(&peer_row(id)).await?;
        let message = message(id);
        let sent_by = format!("session:agent:pair:{id}");
        let terms =
            DeliveryTerms { turn: Some(3), held_until: Some(AT), ..DeliveryTerms::default() };
        tx.messages().insert(&message, &sent_by, Some("key"), terms).await?;
        let ids = [message.id];
        let states = [DeliveryState::Accepted, DeliveryState::Queued];
        tx.messages().advance(&ids, &states, Some("why")).await?;
        tx.inboxes().lease(&ids, AT, Some("ag_1")).await?;
        tx.assignments().insert(&run_row(id)).await?;
        read_all(tx, id).await
    }));
    let written = written.await.unwrap();
    let read = store.write(move |tx| Box::pin(read_all(tx, id))).await.unwrap();
    assert_eq!(written, read);
    let expected = format!("{:?}", run_row(id));
    assert_eq!(read.matches(&expected).count(), 3, "{read}");
    assert!(read.contains("WaitEdge") && read.contains("Some(3)") && read.contains("a\\0question"));
    let done: Result<()> = store
        .write(job!(|tx| {
            tx.assignments().update(&ended_run(id)).await?;
            let mut peer = peer_row(id).peer;
            peer.status = PeerStatus::Idle;
            tx.peers().touch(&peer).await
        }))
        .await;
    done.unwrap();
    let read = store.write(move |tx| Box::pin(read_all(tx, id))).await.unwrap();
    let ended = format!("{:?}", ended_run(id));
    assert_eq!(read.matches(&ended).count(), 3, "{read}");
    assert!(!read.contains("WaitEdge") && read.contains("Idle"), "{read}");
    assert_readers_read(&test, id, &read).await;
}

/// Checks that reads on the caller's thread return what a job has `read`.
async fn assert_readers_read(test: &TestStore, id: &str, read: &str) {
    let store = &test.store;
    let (row, message) = (run_row(id), message(id));
    let peer = store.peers().get(&message.to_peer).await.unwrap();
    let key = format!("session of {id}");
    let of_key = store.peers().of_session_key(&key.to_uppercase(), 9).await.unwrap();
    assert_eq!(peer.as_ref(), of_key.first());
    let read_alone = (
        peer,
        store.peers().of_session(&format!("agent:pair:{id}")).await.unwrap(),
        store.messages().get(&message.id).await.unwrap(),
    );
    assert!(read.starts_with(format!("{read_alone:?}").trim_end_matches(')')), "{read_alone:?}");
    let run = store.assignments().get(&row.run_id).await.unwrap();
    assert!(read.contains(&format!("{run:?}")), "{run:?}");
    assert_eq!(store.inboxes().next_held_mail(&message.to_peer).await.unwrap(), Some(AT));
    let before = AT.minus(std::time::Duration::from_millis(1));
    assert_eq!(store.inboxes().mail_of_agent(&message.to_peer, before, 9).await.unwrap(), []);
    let mail = store.inboxes().mail_of_agent(&message.to_peer, AT, 9).await.unwrap();
    let expected =
        AgentMail { message: read_alone.2.unwrap(), mode: Some(RunMode::Followup), turn: Some(3) };
    assert_eq!(mail, [expected]);
    assert_eq!(store.messages().deliveries(&message.id).await.unwrap().len(), 2);
}

type Write = for<'tx> fn(&'tx mut WriteTx) -> BoxFuture<'tx, Result<()>>;

fn id<T: From<String>>() -> T {
    T::from("unknown".to_owned())
}

fn task_row() -> TaskRow {
    let owned = Ownership::from_row("operator", String::new());
    TaskRow { task: task(id(), AT), owned, process: None }
}

#[tokio::test]
async fn a_write_that_finds_no_row_fails_and_rolls_back() {
    let writes: [(&str, Write); 15] = [
        ("mcp_session", job!(|tx| tx.mcp().touch_session(&id()).await)),
        (
            "mcp_session",
            job!(|tx| {
                let id: McpSessionId = id();
                tx.mcp().describe_session(&id, Revision::V2025_11_25, None, "{}").await
            }),
        ),
        ("mcp_session", job!(|tx| tx.mcp().set_log_level(&id(), "info").await)),
        ("mcp_session", job!(|tx| tx.mcp().set_tools(&id(), 1).await)),
        ("mcp_session", job!(|tx| tx.mcp().tie_session(&id(), "s").await)),
        (
            "mcp_call",
            job!(|tx| tx
                .mcp()
                .update_call(&id::<CallId>(), CallState::Completed, None, None)
                .await),
        ),
        ("hook_seen", job!(|tx| tx.hooks().note_reminder("unknown", "", 1).await)),
        ("task", job!(|tx| tx.tasks().update(&task_row()).await)),
        ("token", job!(|tx| tx.tokens().note_use(&id::<TokenId>()).await)),
        ("session", job!(|tx| tx.sessions().end("unknown", None).await)),
        ("session", job!(|tx| tx.sessions().date("unknown", AT, false).await)),
        ("peer", |tx| {
            let peer = Peer { peer_id: id(), ..Peer::operator(AT) };
            Box::pin(async move { tx.peers().touch(&peer).await })
        }),
        (
            "peer",
            job!(|tx| tx.peers().set_open_calls(&id::<PeerId>(), &OpenCalls::default()).await),
        ),
        ("peer", job!(|tx| tx.peers().delete(&id::<PeerId>()).await)),
        ("message", job!(|tx| tx.inboxes().lease(&[id::<MessageId>()], AT, None).await)),
    ];
    let test = TestStore::open().await;
    for (expected, write) in writes {
        let done: Result<()> = test
            .store
            .write(job!(|tx| {
                let stream = StreamName::new("task", "undone");
                tx.streams().open(&stream, &StreamVisibility::Team).await?;
                tx.append(&stream, vec![event("frame", "{}")]).await?;
                write(tx).await
            }))
            .await;
        let Err(StoreError::NothingChanged { table, id }) = done else {
            panic!("{expected}: {done:?}")
        };
        assert_eq!(table, expected);
        assert!(id == "unknown" || table == "message", "{table}: {id}");
    }
    let mut ghap: Ghap = record(&test, 1, "a goal").await;
    ghap.id = id::<GhapId>();
    let done: Result<()> = test.store.write(job!(|tx| tx.ghaps().update(&ghap).await)).await;
    assert!(matches!(done, Err(StoreError::NothingChanged { table: "ghap", .. })), "{done:?}");
    assert_eq!(test.store.streams().view(&StreamName::new("task", "undone")).await.unwrap(), None);
}
