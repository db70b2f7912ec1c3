//! A write that should change a row and finds none is an error, and its job is rolled back.

use futures_util::future::BoxFuture;
use svc_model::{
    CallId, GhapId, McpSessionId, MessageId, OpenCalls, Ownership, Peer, PeerId, StreamName,
    StreamVisibility, Task, TaskId, TaskReport, TaskStatus, Timestamp, TokenId, journal::Ghap,
};
use svc_wire::mcp::Revision;

use super::testing::{TestStore, event, journal::record};
use crate::{CallState, StoreError, TaskRow, WriteTx};

type Write = for<'tx> fn(&'tx mut WriteTx) -> BoxFuture<'tx, Result<(), StoreError>>;

fn id<T: From<String>>() -> T {
    T::from("unknown".to_owned())
}

const AT: Timestamp = Timestamp::from_millis(1);

fn task() -> TaskRow {
    let task = Task {
        task_id: id::<TaskId>(),
        title: None,
        agent: None,
        prompt: None,
        from: None,
        metadata: None,
        status: TaskStatus::Active,
        report: TaskReport::default(),
        reason: None,
        result: None,
        cancel_requested_at: None,
        created_at: AT,
        updated_at: AT,
        closed_at: None,
        last_id: 0,
    };
    let owned = Ownership::from_row("operator", String::new());
    TaskRow { task, owned, process: None }
}

#[tokio::test]
async fn a_write_that_finds_no_row_fails_and_rolls_back() {
    let writes: [(&str, Write); 15] = [
        ("mcp_session", |tx| Box::pin(async move { tx.mcp().touch_session(&id()).await })),
        ("mcp_session", |tx| {
            Box::pin(async move {
                let id: McpSessionId = id();
                tx.mcp().describe_session(&id, Revision::V2025_11_25, None, "{}").await
            })
        }),
        ("mcp_session", |tx| Box::pin(async move { tx.mcp().set_log_level(&id(), "info").await })),
        ("mcp_session", |tx| Box::pin(async move { tx.mcp().set_tools(&id(), 1).await })),
        ("mcp_session", |tx| Box::pin(async move { tx.mcp().tie_session(&id(), "s").await })),
        ("mcp_call", |tx| {
            Box::pin(async move {
                tx.mcp().update_call(&id::<CallId>(), CallState::Completed, None, None).await
            })
        }),
        ("hook_seen", |tx| {
            Box::pin(async move { tx.hooks().note_reminder("unknown", "", 1).await })
        }),
        ("task", |tx| Box::pin(async move { tx.tasks().update(&task()).await })),
        ("token", |tx| Box::pin(async move { tx.tokens().note_use(&id::<TokenId>()).await })),
        ("session", |tx| Box::pin(async move { tx.sessions().end("unknown", None).await })),
        ("session", |tx| Box::pin(async move { tx.sessions().date("unknown", AT, false).await })),
        ("peer", |tx| {
            let peer = Peer { peer_id: id(), ..Peer::operator(AT) };
            Box::pin(async move { tx.peers().touch(&peer).await })
        }),
        ("peer", |tx| {
            Box::pin(async move {
                tx.peers().set_open_calls(&id::<PeerId>(), &OpenCalls::default()).await
            })
        }),
        ("peer", |tx| Box::pin(async move { tx.peers().delete(&id::<PeerId>()).await })),
        ("message", |tx| {
            Box::pin(async move { tx.inboxes().lease(&[id::<MessageId>()], AT, None).await })
        }),
    ];
    let test = TestStore::open().await;
    for (expected, write) in writes {
        let done: Result<(), StoreError> = test
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let stream = StreamName::new("task", "undone");
                    tx.streams().open(&stream, &StreamVisibility::Team).await?;
                    tx.append(&stream, vec![event("frame", "{}")]).await?;
                    write(tx).await
                })
            })
            .await;
        let Err(StoreError::NothingChanged { table, id }) = done else {
            panic!("{expected}: {done:?}")
        };
        assert_eq!(table, expected);
        assert!(id == "unknown" || table == "message", "{table}: {id}");
    }
    let mut ghap: Ghap = record(&test, 1, "a goal").await;
    ghap.id = id::<GhapId>();
    let done: Result<(), StoreError> =
        test.store.write(move |tx| Box::pin(async move { tx.ghaps().update(&ghap).await })).await;
    assert!(matches!(done, Err(StoreError::NothingChanged { table: "ghap", .. })), "{done:?}");
    assert_eq!(test.store.streams().view(&StreamName::new("task", "undone")).await.unwrap(), None);
}
