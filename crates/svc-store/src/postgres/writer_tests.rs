//! The functions of the writer, as a connection calls them.

use sqlx::{Executor as _, PgConnection};

use super::{statement_tests::migrated, testing::is_installed};

async fn with_writer() -> PgConnection {
    let mut conn = migrated().await;
    // At each start.
    for _ in 0..2 {
        conn.execute(sqlx::raw_sql(super::open::WRITER)).await.unwrap();
    }
    conn.execute("insert into svc_group (daemon_id, number) values ('d', 0)").await.unwrap();
    conn
}

async fn number(conn: &mut PgConnection, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(conn).await.unwrap()
}

/// The answer may be lost as that of any commit, and the daemon asks again.
#[tokio::test]
async fn a_decision_is_the_same_when_it_is_asked_for_again() {
    if !is_installed() {
        return;
    }
    let mut conn = with_writer().await;
    let begin = "select a_commit from svc_begin('d', 1)";
    assert_eq!(number(&mut conn, begin).await, 1);
    let decide = "select svc_decide('d', 1)";
    assert_eq!([number(&mut conn, decide).await, number(&mut conn, decide).await], [1, 1]);
    // The second group never came.
    let decide = "select svc_decide('d', 2)";
    assert_eq!([number(&mut conn, decide).await, number(&mut conn, decide).await], [1, 1]);
    let late = sqlx::query("select svc_begin('d', 2)").execute(&mut conn).await;
    assert!(late.unwrap_err().to_string().contains("is decided already"));
    assert_eq!(number(&mut conn, "select a_commit from svc_begin('d', 3)").await, 2);
    assert_eq!(number(&mut conn, "select svc_decide('d', 3)").await, 3);
}
