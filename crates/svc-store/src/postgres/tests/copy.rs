//! Moves between the engines, with values that a format could lose.

use rusqlite::{Connection, types::Value};
use sqlx::{Executor as _, PgConnection};
use svc_model::{Reader, StreamName};

use super::{super::copy, statements::migrated, testing::is_installed};
use crate::{
    CopyError, CopyReport, Migrations, SearchFilter,
    testing::{
        TestStore, append, event,
        journal::{put, record},
    },
};

const ODD: &str = r#"{"text":"a\\b	tab \\N 🦀 é","path":"C:\\new"}"#;

/// A store with rows of each type of column, and with some that triggers have written.
async fn filled() -> TestStore {
    let at = TestStore::open().await;
    let ghap = record(&at, 1, "The tokenizer hangs on computeCartTotal").await;
    put(&at, ghap).await;
    for number in 0..3 {
        let name = StreamName::new("task", format!("t{number}"));
        append(&at.store, &name, vec![event("frame", ODD), event("frame", "{}")]).await;
    }
    at.execute("update ghap set probability = 0.1 + 0.2").await;
    at.execute("insert into secret (name, value) values ('key', x'00ff5c780a')").await;
    at.execute(
        "insert into setting (name, value) values ('odd', char(8, 9, 10, 11, 12, 13, 92) || 'N')",
    )
    .await;
    let memory = "insert into memory (memory_id, project, category, content, digest, terms, importance, tags, session_id,
        created_at) values ('m1', '/p', 'fact', 'words', 'd', 'clock tower', 1e-7, '[]', 's', 5)";
    at.execute(memory).await;
    at
}

/// That store and an empty schema of a server; `None` without a server.
async fn both_sides() -> Option<(TestStore, PgConnection)> {
    if !is_installed() {
        return None;
    }
    Some((filled().await, migrated().await))
}

async fn send(at: &TestStore, conn: &mut PgConnection) -> Result<CopyReport, CopyError> {
    copy::to_server(at.store.path(), conn, "there", false, &mut |_, _| {}).await
}

/// All rows of all tables, except those of full-text indexes, which are derived from other tables.
fn rows(path: &std::path::Path) -> Vec<(String, Vec<Vec<Value>>)> {
    let file = Connection::open(path).unwrap();
    let names =
        "select name from sqlite_schema where type = 'table' and sql not like 'create virtual%'
        and name not like 'ghap_fts%' and name not like 'term_trigram%' and name not like 'sqlite%'
        and name <> '_sqlx_migrations' order by name";
    let mut names = file.prepare(names).unwrap();
    let names: Vec<String> =
        names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let all = names.into_iter().map(|name| {
        let condition = if name == "setting" { "where name not like 'mov%'" } else { "" };
        let mut select =
            file.prepare(&format!("select * from {name} {condition} order by 1, 2")).unwrap();
        let width = select.column_count();
        let read = |row: &rusqlite::Row<'_>| (0..width).map(|at| row.get(at)).collect();
        let rows = select.query_map([], read).unwrap().map(Result::unwrap).collect();
        (name, rows)
    });
    all.collect()
}

#[tokio::test]
async fn a_history_goes_to_the_server_and_comes_back() {
    let Some((at, mut conn)) = both_sides().await else { return };
    let trial = copy::to_server(at.store.path(), &mut conn, "there", true, &mut |_, _| {}).await;
    assert_eq!(at.store.settings().gone_to().await.unwrap(), None, "a trial changes nothing");
    let sent = send(&at, &mut conn).await.unwrap();
    assert_eq!(trial.unwrap().tables, sent.tables);
    assert!(sent.tables.contains(&("event".to_owned(), 6)), "{sent:?}");
    assert!(sent.tables.iter().any(|(table, rows)| table == "memory_posting" && *rows == 2));
    assert_eq!(at.store.settings().gone_to().await.unwrap().as_deref(), Some("there"));
    let last = sqlx::query_scalar::<_, i64>("select max(id) from stream");
    let last = last.fetch_one(&mut conn).await.unwrap();
    let insert = "insert into stream (name, created_at) values ('task/new', 1) returning id";
    let next: i64 = sqlx::query_scalar(insert).fetch_one(&mut conn).await.unwrap();
    assert_eq!(next, last + 1, "ids go on after the copied ones");
    conn.execute("delete from stream where name = 'task/new'").await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let back = folder.path().join("svc.db");
    Migrations::apply_file(&back).await.unwrap();
    let came = copy::to_file(&mut conn, &back, "there", false, &mut |_, _| {}).await.unwrap();
    assert_eq!(came.tables, sent.tables);
    assert_eq!(rows(&back), rows(at.store.path()));
    assert_eq!(crate::schema_difference(&back).await.unwrap(), None);
    let again = copy::to_file(&mut conn, &back, "there", false, &mut |_, _| {}).await.unwrap();
    assert!(again.is_repeat, "{again:?}");

    // The indexes of the copy return the same results.
    let options = crate::OpenOptions::for_file(back).unwrap();
    let clock = std::sync::Arc::new(svc_model::SystemClock);
    let (store, writer) = crate::Store::open(&options, clock).await.unwrap();
    let index = store.search();
    let found = index.postings(&Reader::All, &["hang"], &SearchFilter::default()).await.unwrap();
    assert_eq!(found, [("hang".to_owned(), vec![1])]);
    writer.close(store).await.unwrap();
}

#[tokio::test]
async fn a_move_whose_end_was_not_noted_is_finished() {
    let Some((at, mut conn)) = both_sides().await else { return };
    send(&at, &mut conn).await.unwrap();
    at.execute("update setting set name = 'moving_to' where name = 'moved_to'").await;
    assert!(send(&at, &mut conn).await.unwrap().is_repeat);
    let file = Connection::open(at.store.path()).unwrap();
    let marks = "select group_concat(name) from setting where name like 'mov%'";
    let marks: String = file.query_row(marks, [], |row| row.get(0)).unwrap();
    assert_eq!(marks, "moved_to");
}

#[tokio::test]
async fn a_move_that_ended_before_its_commit_begins_anew() {
    let Some((at, mut conn)) = both_sides().await else { return };
    let mark =
        r#"insert into setting (name, value) values ('moving_to', '{"export":"x","at":"there"}')"#;
    at.execute(mark).await;
    assert!(!send(&at, &mut conn).await.unwrap().is_repeat);
}

#[tokio::test]
async fn move_to_a_second_server_or_over_rows_is_refused() {
    let Some((at, mut conn)) = both_sides().await else { return };
    send(&at, &mut conn).await.unwrap();
    let mut elsewhere = migrated().await;
    let error =
        copy::to_server(at.store.path(), &mut elsewhere, "elsewhere", false, &mut |_, _| {})
            .await
            .unwrap_err();
    assert!(matches!(&error, CopyError::Elsewhere(place) if place == "there"), "{error}");
    let other = filled().await;
    let error = send(&other, &mut conn).await.unwrap_err();
    assert!(matches!(&error, CopyError::HasData { .. }), "{error}");
}

#[tokio::test]
async fn a_copy_that_fails_leaves_both_sides_as_they_were() {
    let Some((at, mut conn)) = both_sides().await else { return };
    at.execute("insert into setting (name, value) values ('zero', 'a' || char(0))").await;
    let error = send(&at, &mut conn).await.unwrap_err();
    assert!(
        matches!(&error, CopyError::Nul { table, column }
        if (&**table, &**column) == ("setting", "value")),
        "{error}"
    );
    assert_eq!(at.store.settings().gone_to().await.unwrap(), None);
    at.execute("delete from setting where name = 'zero'").await;
    assert!(send(&at, &mut conn).await.is_ok(), "and the target is empty still");
}
