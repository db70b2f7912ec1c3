//! All statements on a server: that they prepare, and by what they read.

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, PgConnection, Row as _, SqlSafeStr as _,
    postgres::PgConnectOptions,
};

use super::{
    own_texts::OWN,
    testing::{is_installed, new_database},
    translate::translate,
};
use crate::sqlite::testing::statements;

pub(super) async fn migrated() -> PgConnection {
    let options: PgConnectOptions = new_database().parse().unwrap();
    let mut conn = options.disable_statement_logging().connect().await.unwrap();
    conn.execute("create schema svc; set search_path = svc, pg_catalog").await.unwrap();
    super::open::MIGRATOR.run(&mut conn).await.unwrap();
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

/// Parts of statements that read a whole table, on SQLite as well: a small one, or one that a sweep
/// or a start reads.
const READ_ALL: &[&str] = &[
    "from login_code where expires_at",
    "from orphan_offer where session_id",
    "where revoke_reason = ? and revoked_at < ?",
    "where length(?1) >= 6 and substr(a.agent_id",
    "from learned_value v\n            where (?1 is null or axis",
    "where client_pid = ? and client_started = ? and bearer is not null",
    "peer other on other.pid = own.pid",
    "instance from source_process",
    // Once, by the first machine that opens a database.
    "machine_id = ? where machine_id = ''",
    // Daemons are as few as machines.
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
    // Tables are empty here: the planner takes an index wherever one serves.
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
