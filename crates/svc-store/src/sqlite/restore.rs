//! Prepares a copy of a backup to become the database: checks that its schema is that of the
//! migrations, and ends credentials and sessions from before the restore.
//!
//! A backup is an untrusted file. A trigger in it would run with the daemon's writes, and a view
//! could replace the result of a query. So the schema is compared text by text before anything is
//! written.

use std::{collections::BTreeMap, path::Path};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use svc_model::Timestamp;

use super::{
    file::{findings, reader_options, restore_options},
    migrate::{applied_steps, inspect, model_of},
};
use crate::{Migrations, RestoreError, Result, boxed, upkeep::MoveMark};

/// Statements that invalidate state from before the restore.
///
/// A token, an MCP session and a signing key may have been revoked, closed or leaked since the
/// backup. A lease on a message ends at once. The caller of an unfinished call is gone: the call
/// gets no result and does not run again.
const INVALIDATE_OLD_STATE: &[&str] = &[
    "update message set leased_until = 0, given_by = null where state = 'offered'",
    "update token set revoked_at = ?1 where revoked_at is null",
    "delete from login_code",
    "update mcp_session set closed_at = ?1 where closed_at is null",
    "update mcp_call set principal = 'restored' where state in ('working', 'input_required')",
    "delete from secret",
];

const STATISTICS: &[(&str, &str)] = &[
    ("sqlite_stat1", "CREATE TABLE sqlite_stat1(tbl,idx,stat)"),
    ("sqlite_stat4", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"),
];

/// Settings in the file's header that differ if another program created the file.
const SETTINGS: &[&str] = &["application_id", "user_version", "encoding"];

/// Checks the file at `path`, a copy of a backup, and invalidates state from before `now`. Returns
/// its migrations.
///
/// # Errors
/// If the file is damaged, of a later version, or has a schema that the migrations do not create.
#[boxed(?Send)]
pub async fn prepare_restore(path: &Path, now: Timestamp) -> Result<Migrations, RestoreError> {
    let mut conn = restore_options(path)?.connect().await?;
    let prepared = prepare(&mut conn, path, now).await;
    let closed = conn.close().await;
    let migrations = prepared?;
    closed?;
    Ok(migrations)
}

/// The first difference between the schema of the database at `path` and the schema of the
/// migrations; `None` if there is none. Changes nothing.
///
/// # Errors
/// If the file cannot be read, or is of a later version.
#[boxed(?Send)]
pub async fn schema_difference(path: &Path) -> Result<Option<String>, RestoreError> {
    let mut conn = read_only(path).await?;
    let migrations = inspect(&mut conn).await?;
    let mut model = model_of(&mut conn, migrations.current).await?;
    let found = difference(&mut conn, &mut model).await?;
    for conn in [conn, model] {
        conn.close().await?;
    }
    Ok(found)
}

/// The database to which the history of the file at `path` was moved, or to which an unfinished
/// move moves it.
///
/// # Errors
/// If the file cannot be read, or has no history.
#[boxed]
pub async fn gone_to(path: &Path) -> Result<Option<String>> {
    let mut conn = read_only(path).await?;
    let marks =
        "select value from setting where name in ('moved_to', 'moving_to') order by name limit 1";
    let mark: Option<String> = sqlx::query_scalar(marks).fetch_optional(&mut conn).await?;
    conn.close().await?;
    Ok(mark.map(|mark| MoveMark::read(&mark).map_or(mark, |mark| mark.at)))
}

/// Opens the file to read it. If nobody else has it open, it is opened as immutable: reading it
/// would otherwise leave a write-ahead log and its index beside it.
async fn read_only(path: &Path) -> Result<SqliteConnection> {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let is_alone = !Path::new(&wal).exists();
    Ok(reader_options(path)?.immutable(is_alone).connect().await?)
}

async fn prepare(
    conn: &mut SqliteConnection,
    path: &Path,
    now: Timestamp,
) -> Result<Migrations, RestoreError> {
    findings(conn, path, "pragma integrity_check(20)").await?;
    let migrations = inspect(conn).await?;
    if migrations.current == 0 {
        return Err(RestoreError::NoSvcSchema);
    }
    let mut model = model_of(conn, migrations.current).await?;
    let difference = difference(conn, &mut model).await?;
    model.close().await?;
    if let Some(difference) = difference {
        return Err(RestoreError::Foreign(difference));
    }
    let orphans =
        sqlx::query_scalar::<_, String>("select distinct \"table\" from pragma_foreign_key_check");
    let orphans = orphans.fetch_all(&mut *conn).await?;
    if let Some(table) = orphans.first() {
        return Err(RestoreError::Foreign(format!("rows of the table {table} refer to nothing")));
    }
    invalidate_old_state(conn, now).await?;
    Ok(migrations)
}

/// The first difference from the model, as text for the person who restores the file.
async fn difference(
    conn: &mut SqliteConnection,
    model: &mut SqliteConnection,
) -> Result<Option<String>, sqlx::Error> {
    for setting in SETTINGS {
        let (found, wanted) =
            (read_setting(conn, setting).await?, read_setting(model, setting).await?);
        if found != wanted {
            return Ok(Some(format!("its {setting} is {found} and not {wanted}")));
        }
    }
    let (found, wanted) = (schema(conn).await?, schema(model).await?);
    for ((kind, name), text) in &found {
        match wanted.get(&(kind.clone(), name.clone())) {
            None => return Ok(Some(format!("svc makes no {kind} {name}"))),
            Some(known) if known != text => {
                return Ok(Some(format!("its {kind} {name} is not the one that svc makes")));
            }
            Some(_) => {}
        }
    }
    let missing = wanted.keys().find(|entry| !found.contains_key(*entry));
    if let Some((kind, name)) = missing {
        return Ok(Some(format!("it has no {kind} {name}")));
    }
    let (found, wanted) = (applied_steps(conn).await?, applied_steps(model).await?);
    Ok((found != wanted).then(|| "its list of migrations is not that of svc".to_owned()))
}

async fn read_setting(conn: &mut SqliteConnection, name: &str) -> Result<String, sqlx::Error> {
    // The names are constants above.
    let question = format!("select cast({name} as text) from pragma_{name}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(question)).fetch_one(conn).await
}

type ObjectTexts = BTreeMap<(String, String), (String, Option<String>)>;

/// Table and SQL of each schema object by kind and name, without SQLite's statistics.
async fn schema(conn: &mut SqliteConnection) -> Result<ObjectTexts, sqlx::Error> {
    let rows = sqlx::query_as::<_, (String, String, String, Option<String>)>(
        "select type, name, tbl_name, sql from sqlite_schema",
    );
    let rows = rows.fetch_all(conn).await?;
    let is_statistics = |kind: &str, name: &str, sql: Option<&str>| {
        kind == "table" && STATISTICS.iter().any(|known| (known.0, Some(known.1)) == (name, sql))
    };
    Ok(rows
        .into_iter()
        .filter(|(kind, name, _, sql)| !is_statistics(kind, name, sql.as_deref()))
        .map(|(kind, name, table, sql)| {
            // sqlx's migrator creates this table, and its versions format the statement
            // differently.
            let sql = if name == "_sqlx_migrations" { sql.map(|sql| plain(&sql)) } else { sql };
            ((kind, name), (table, sql))
        })
        .collect())
}

fn plain(sql: &str) -> String {
    sql.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn invalidate_old_state(
    conn: &mut SqliteConnection,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    for statement in INVALIDATE_OLD_STATE {
        let query = sqlx::query(*statement);
        let query = if statement.contains("?1") { query.bind(now.as_millis()) } else { query };
        query.execute(&mut *tx).await?;
    }
    tx.commit().await
}
