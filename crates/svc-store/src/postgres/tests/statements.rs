//! On a server: that all statements prepare, and which of them read whole tables; and what the
//! writer's SQL functions do.

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, PgConnection, Row as _, SqlSafeStr as _,
    postgres::PgConnectOptions,
};

use super::testing::{is_installed, new_database};
use crate::{
    postgres::{
        open,
        translate::{OWN, translate},
    },
    testing::statements,
};

pub(super) async fn migrated() -> PgConnection {
    let options: PgConnectOptions = new_database().parse().unwrap();
    let mut conn = options.disable_statement_logging().connect().await.unwrap();
    conn.execute("create schema svc; set search_path = svc, pg_catalog").await.unwrap();
    open::MIGRATOR.run(&mut conn).await.unwrap();
    conn
}

#[test]
fn translated_texts_are_known() {
    let mut texts: Vec<String> = statements().iter().map(|text| translate(text)).collect();
    texts.sort_unstable();
    insta::assert_snapshot!(texts.join("\n;\n"));
}

#[test]
fn an_own_text_belongs_to_one_statement() {
    let statements = statements();
    for (part, _) in OWN {
        let own = statements.iter().filter(|text| text.contains(part));
        assert_eq!(own.count(), 1, "{part}");
    }
}

#[tokio::test]
async fn all_statements_prepare() {
    if !is_installed() {
        return;
    }
    let mut conn = migrated().await;
    let mut failed = Vec::new();
    for text in statements() {
        let sql = translate(&text);
        if let Err(error) = conn.prepare(AssertSqlSafe(sql.clone()).into_sql_str()).await {
            failed.push(format!("{error}: {sql}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Parts of statements that read a whole table, on SQLite as well: the table is small, or a sweep
/// or a start reads it.
const READ_ALL: &[&str] = &[
    "from login_code where expires_at",
    "from orphan_offer where session_id",
    "where revoke_reason = ? and revoked_at < ?",
    "where length(?1) >= 6 and substr(a.agent_id",
    "from learned_value v\n            where (?1 is null or axis",
    "where client_pid = ? and client_started = ? and bearer is not null",
    "peer other on other.pid = own.pid",
    "instance from source_process",
    // Runs once, for the first machine that opens a database.
    "machine_id = ? where machine_id = ''",
    // A database has few daemons and few machines.
    "delete from daemon where machine_id = ?",
    "from machine m cross join",
    "from machine order by first_seen",
    "from daemon d join machine m",
    "substr(host_started, -1) = '@'",
    "substr(runner_started, -1) = '@'",
    "told from source_pin",
    "prompts from source_list",
    "where owner is null and session_id = ''",
    "and revoke_reason = 'revoked') as \"is_barred!: bool\"",
];

#[tokio::test]
async fn statements_read_by_an_index() {
    if !is_installed() {
        return;
    }
    let mut conn = migrated().await;
    // The tables are empty: with these settings the planner uses an index wherever one serves.
    let settings = "set enable_seqscan = off; set plan_cache_mode = force_generic_plan";
    conn.execute(settings).await.unwrap();
    let mut whole = Vec::new();
    for text in statements() {
        if READ_ALL.iter().any(|part| text.contains(part)) {
            continue;
        }
        let sql = translate(&text);
        let is_used = |number: &usize| sql.contains(&format!("${number}"));
        let nulls = vec!["null"; (1..100).take_while(is_used).count()].join(", ");
        let arguments = if nulls.is_empty() { nulls } else { format!("({nulls})") };
        let explained = format!("deallocate all; prepare s as {sql}; explain execute s{arguments}");
        let plan = sqlx::raw_sql(AssertSqlSafe(explained)).fetch_all(&mut conn).await.unwrap();
        let lines = plan.iter().map(|row| row.get::<String, _>(0));
        let scans: Vec<String> = lines.filter(|line| line.contains("Seq Scan on ")).collect();
        if !scans.is_empty() {
            whole.push(format!("{scans:?}: {text}"));
        }
    }
    assert!(whole.is_empty(), "{}", whole.join("\n\n"));
}

async fn with_writer() -> PgConnection {
    let mut conn = migrated().await;
    // Each start of a daemon runs it.
    for _ in 0..2 {
        conn.execute(sqlx::raw_sql(open::WRITER)).await.unwrap();
    }
    conn.execute("insert into svc_group (daemon_id, number) values ('d', 0)").await.unwrap();
    conn
}

async fn number(conn: &mut PgConnection, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(conn).await.unwrap()
}

/// The answer to `svc_decide` may be lost; the daemon then asks again.
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
    // The server never received the second group.
    let decide = "select svc_decide('d', 2)";
    assert_eq!([number(&mut conn, decide).await, number(&mut conn, decide).await], [1, 1]);
    let late = sqlx::query("select svc_begin('d', 2)").execute(&mut conn).await;
    assert!(late.unwrap_err().to_string().contains("is decided already"));
    assert_eq!(number(&mut conn, "select a_commit from svc_begin('d', 3)").await, 2);
    assert_eq!(number(&mut conn, "select svc_decide('d', 3)").await, 3);
}
