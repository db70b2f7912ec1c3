//! Plans of statements that people and hooks wait for: what they read must not grow with the
//! history.

use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use svc_model::StreamName;

use super::{
    connect::reader_options,
    testing::{TestStore, append, event, statements},
};

/// Sorting and grouping of rows that are few by construction.
const FEW: &[&str] = &["USE TEMP B-TREE", "SCAN (subquery"];

/// A part of a statement's text that no other statement has, and what its plan may contain besides
/// searches of an index.
const HOT: &[(&str, &[&str])] = &[
    ("where t.status = ?1 and (?1 is null", &[]),
    ("where t.agent = ?2 and (?1 is null", &[]),
    ("where t.from_peer = ?3 and (?1 is null", &[]),
    ("where true and (?1 is null or t.status", &[]),
    ("where s.ended_at is null and (?1 is null", &[]),
    ("where s.project = ?1 and (?1 is null", &[]),
    ("where true and (?1 is null or s.project", &[]),
    ("where g.session_id = ?4 and (?1 is null", &[]),
    ("where g.status = 'active' and (?1 is null", &[]),
    ("where g.project = ?3 and (?1 is null", &[]),
    ("where true and (?1 is null or g.domain", &[]),
    ("and (last_seen, peer_id) < (?1, ?2)", &[]),
    ("where g.status = 'active' and g.project = ?1", &[]),
    ("e.kind = ?4 and e.kind <> 'frame' and e.position", &[]),
    ("true and e.position > ?1 and s.name", &[]),
    ("is_answered = 0 and id < ?1", &[]),
    ("and id < ?1 and (?2 is null or from_peer", &[]),
    ("where to_peer = ?1 and id < ?2", &["SCAN (subquery"]),
    ("where from_peer = ?1 and to_peer = ?2 and id", &["SCAN (subquery"]),
    // The last row that fits ends the scan.
    ("as \"last!: i64\",", &["SCAN ghap"]),
    ("subject = 'ended') + (", &[]),
    ("subject = 'strategy'", FEW),
    ("subject = 'cause'", FEW),
    ("subject = 'client'", FEW),
    ("subject = 'tenth'", FEW),
    ("subject = 'week'", FEW),
    ("from json_each(?) j cross join memory_term t", &[]),
    (
        "cross join memory_term t on t.term = j.value\n            cross join search_scope c",
        &["SCAN latest"],
    ),
    (
        "where m.project = '' and m.importance >= ?2",
        &["SCAN (subquery", "USE TEMP B-TREE FOR ORDER BY"],
    ),
    // A session's own memories and records of other projects are few.
    ("select o.id, o.scope from session s", &["SCAN m", "USE TEMP B-TREE"]),
    ("as \"of_project!: String\"", &["SCAN latest", "SCAN o", "USE TEMP B-TREE"]),
];

#[tokio::test]
async fn hot_statements_read_no_more_than_they_return() {
    let at = TestStore::open().await;
    let mut conn = reader_options(at.store.path()).unwrap().connect().await.unwrap();
    let statements = statements();
    let mut grows = Vec::new();
    for (part, allowed) in HOT {
        let mut own = statements.iter().filter(|text| text.contains(part)).peekable();
        assert!(own.peek().is_some(), "no statement has {part:?}");
        for text in own {
            let explained = AssertSqlSafe(format!("explain query plan {text}"));
            let lines = sqlx::query(explained).fetch_all(&mut conn).await.unwrap();
            let lines: Vec<String> = lines.iter().map(|line| line.get("detail")).collect();
            let is_bad = |line: &&String| {
                (line.starts_with("SCAN ") || line.contains("TEMP B-TREE"))
                    && !line.starts_with("SCAN CONSTANT ROW")
                    && !line.contains("VIRTUAL TABLE")
                    && !allowed.iter().any(|part| line.contains(part))
            };
            let bad: Vec<&String> = lines.iter().filter(is_bad).collect();
            if !bad.is_empty() {
                grows.push(format!("{bad:?} of {lines:?}: {text}"));
            }
        }
    }
    assert!(grows.is_empty(), "{}", grows.join("\n"));
}

/// Another program may have made statistics, of tables that have other sizes today.
#[tokio::test]
async fn plans_do_not_depend_on_statistics() {
    let at = TestStore::open().await;
    append(&at.store, &StreamName::fixed("team"), vec![event("peer.status", "{}")]).await;
    at.execute("analyze").await;
    let at = at.restart().await;
    let mut conn = reader_options(at.store.path()).unwrap().connect().await.unwrap();
    let tables = "select count(*) from sqlite_schema where name like 'sqlite_stat%'";
    let count: i64 = sqlx::query_scalar(tables).fetch_one(&mut conn).await.unwrap();
    assert_eq!(count, 0);
}
