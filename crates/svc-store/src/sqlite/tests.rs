//! What readers' statements return and cost: SQL conditions of visibility agree with
//! [`Caller::access_to`] on each row, and statements that people and hooks wait for do not become
//! slower as the history grows.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use svc_model::{
    AccessLevel, AgentFilter, Caller, GhapFilter, Ownership, Principal, READ_ALL, Reader,
    SessionFilter, StreamName, TaskFilter,
};

use super::file::reader_options;
use crate::{
    MemoryFilter, PageSize, SearchFilter, SoughtTerm,
    testing::{TestStore, append, event, statements},
};

/// Owners in the text form of rows. The last does not parse.
const OWNERS: [&str; 4] = ["operator", "session:a", "session:b", "who knows"];
/// Projects of rows; an empty text means none.
const PROJECTS: [&str; 3] = ["", "/p", "/q"];

fn session(key: &str, project: Option<&str>, scopes: &[&str]) -> Caller {
    Caller::of_session("tok_1", key, project, scopes)
}

fn callers() -> [Caller; 6] {
    [
        Caller::Operator,
        session("a", Some("/p"), &[]),
        session("b", Some("/q"), &["exec"]),
        session("c", None, &[]),
        session("d", Some("/p"), &[READ_ALL]),
        session("e", Some("/p/"), &[]),
    ]
}

/// Ids of the rows that the caller may read.
fn readable(rows: &[(String, Ownership)], caller: &Caller) -> BTreeSet<String> {
    let is_readable = |thing: &Ownership| caller.access_to(thing) >= AccessLevel::Read;
    rows.iter().filter(|(_, thing)| is_readable(thing)).map(|(id, _)| id.clone()).collect()
}

fn stream(conn: &Connection, name: &str) -> i64 {
    let sql = "insert into stream (name, created_at, visibility) values (?, 1, 'operator')";
    conn.execute(sql, [name]).unwrap();
    conn.last_insert_rowid()
}

#[tokio::test]
async fn lists_return_exactly_the_rows_that_the_caller_may_read() {
    let test = TestStore::open().await;
    let conn = Connection::open(test.store.path()).unwrap();
    conn.pragma_update(None, "foreign_keys", false).unwrap();
    let (mut tasks, mut agents, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    let mut records = Vec::new();
    let mut number = 10;
    for owner in OWNERS {
        for project in PROJECTS {
            for runner in [None, Some("c")] {
                number += 1;
                let thing = Ownership {
                    runner: runner.map(|key| Principal::Session(key.into())),
                    ..Ownership::from_row(owner, project.to_owned())
                };
                let id = format!("task_{number}");
                let runner_text = runner.map(|key| format!("session:{key}"));
                conn.execute(
                    "insert into task (task_id, stream_id, status, created_by, created_at, project, runner)
                    values (?, ?, 'pending', ?, 1, ?, ?)",
                    params![id, stream(&conn, &format!("task/{id}")), owner, project, runner_text],
                )
                .unwrap();
                tasks.push((id, thing.clone()));
                let id = format!("ag_{number}");
                let key = runner.map_or_else(|| format!("agent:x:{number}"), str::to_owned);
                conn.execute(
                    "insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by,
                        state, request_timeout, started_at, ended_at)
                    values (?, ?, 'x', 'exec', ?, ?, '/', ?, 'done', 1, 1, 2)",
                    params![id, stream(&conn, &format!("agent/{id}")), key, project, owner],
                )
                .unwrap();
                agents.push((id, thing));
            }
            // A session whose peer the operator registered is its own owner.
            let id = if owner == "operator" && project.is_empty() { "c" } else { "" };
            let id = if id.is_empty() { format!("s_{number}") } else { id.to_owned() };
            conn.execute(
                "insert into session (session_id, project, source, created_by, started_at, last_seen_at)
                values (?, ?, 'startup', ?, 1, 1)",
                params![id, project, owner],
            )
            .unwrap();
            let of_session = (owner == "operator").then(|| Principal::Session(id.as_str().into()));
            let thing =
                Ownership { runner: of_session, ..Ownership::from_row(owner, project.to_owned()) };
            sessions.push((id.clone(), thing.clone()));
            let record = format!("ghap_{number}");
            conn.execute(
                "insert into ghap (ghap_id, session_id, project, domain, strategy, goal, hypothesis, action, prediction,
                    status, tier, created_at, updated_at, resolved_at)
                values (?, ?, ?, 'debugging', 'systematic-elimination', 'g', 'h', 'a', 'p', 'confirmed', 'gold', 1, 1, 2)",
                params![record, id, project],
            )
            .unwrap();
            let text = "insert into ghap_text (id, aim, lesson, rest)
                select id, 'word', '', '' from ghap where ghap_id = ?";
            conn.execute(text, [&record]).unwrap();
            let memory = format!("mem_{number}");
            conn.execute(
                "insert into memory (memory_id, project, category, content, digest, terms, importance, tags, session_id,
                    created_at)
                values (?, ?, 'fact', ?, ?, 'word', 0.5, '[]', ?, 1)",
                params![memory, project, memory, memory, id],
            )
            .unwrap();
            records.push((record, memory, thing));
        }
    }
    let ghaps: Vec<_> = records.iter().map(|(id, _, thing)| (id.clone(), thing.clone())).collect();
    let memories: Vec<_> = records.into_iter().map(|(_, id, thing)| (id, thing)).collect();
    let (store, size) = (&test.store, PageSize::rows(200));
    for caller in callers() {
        let reader = Reader::from_caller(&caller);
        let page = store.tasks().list(&reader, &TaskFilter::default(), None, size).await.unwrap();
        let shown = page.rows.into_iter().map(|row| row.task.task_id.to_string());
        assert_eq!(shown.collect::<BTreeSet<_>>(), readable(&tasks, &caller), "tasks: {caller:?}");
        let page = store.agents().list(&reader, &AgentFilter::default(), None, size).await.unwrap();
        let shown = page.rows.into_iter().map(|row| row.info.id.to_string());
        assert_eq!(
            shown.collect::<BTreeSet<_>>(),
            readable(&agents, &caller),
            "agents: {caller:?}"
        );
        let page =
            store.sessions().list(&reader, &SessionFilter::default(), None, size).await.unwrap();
        let shown = page.rows.into_iter().map(|session| session.session_id);
        let expected = readable(&sessions, &caller);
        assert_eq!(shown.collect::<BTreeSet<_>>(), expected, "sessions: {caller:?}");
        let page = store.ghaps().list(&reader, &GhapFilter::default(), None, size).await.unwrap();
        let shown = page.rows.into_iter().map(|ghap| ghap.id.to_string());
        assert_eq!(shown.collect::<BTreeSet<_>>(), readable(&ghaps, &caller), "ghaps: {caller:?}");
        let (page, total) =
            store.memories().list(&reader, &MemoryFilter::default(), 0, size).await.unwrap();
        assert_eq!(total, i64::try_from(page.len()).unwrap());
        let shown = page.into_iter().map(|memory| memory.id.as_str().to_owned());
        let expected = readable(&memories, &caller);
        assert_eq!(shown.collect::<BTreeSet<_>>(), expected, "memories: {caller:?}");
        let (terms, filter) =
            ([SoughtTerm { term: "word", weight: 1.0, memories: 12 }], MemoryFilter::default());
        let found = store.memories().candidates(&reader, &terms, &filter, 200).await.unwrap();
        let found = found.into_iter().map(|(memory, _)| memory.id.as_str().to_owned());
        assert_eq!(found.collect::<BTreeSet<_>>(), expected, "search of memories: {caller:?}");
        let index = store.search();
        let lists = index.postings(&reader, &["word"], &SearchFilter::default()).await.unwrap();
        let ids: Vec<i64> = lists.into_iter().flat_map(|(_, ids)| ids).collect();
        let found = index.ghaps(&ids).await.unwrap().into_iter().map(|ghap| ghap.id.to_string());
        let expected = readable(&ghaps, &caller);
        assert_eq!(found.collect::<BTreeSet<_>>(), expected, "search of records: {caller:?}");
        assert_eq!(ids.len(), expected.len(), "each once: {caller:?}");
        let count = store.values().count_resolved_for(&reader).await.unwrap();
        assert_eq!(count, i64::try_from(expected.len()).unwrap(), "sums: {caller:?}");
    }
}

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
    ("where status_rank in (0, 1, 2, 3, 4, 5) and display_name", FEW),
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
    ("cross join assignment d on d.task_id = a.task_id", &["SCAN a USING INDEX agent_removal"]),
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

/// Another program may have run `analyze` when the tables had other sizes.
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
