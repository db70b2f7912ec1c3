//! Moves a history between the engines: `svc migrate --to` and `--from`.
//!
//! Before the copy, the source gets the mark `moving_to` with the id of this export; after the
//! copy, `moved_to`. The transaction of the copy writes the same id to the target. If a source has
//! a mark, the target therefore tells whether the copy took place, and repeating the command
//! finishes an interrupted move or begins it anew.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::{
    copy_rows::{Sum, Table, compare, tables},
    open::{migrate, open_alone},
};
use crate::{
    CopyError, CopyReport, Migrations, PostgresOptions, Result, StoreError, upkeep::MoveMark,
};

type CopyProgress<'a> = &'a mut dyn FnMut(&str, u64);

/// Copies the file, which the caller has locked, to a server.
pub(crate) async fn move_to_server(
    path: &Path,
    options: &PostgresOptions,
    is_trial: bool,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, CopyError> {
    Migrations::apply_file(path).await?;
    let mut conn = open_alone(options, !is_trial).await?;
    let place = options.place();
    let report = if is_trial {
        // The comparison needs the tables on the server. The rollback removes them.
        let mut trial = conn.begin().await.map_err(StoreError::from)?;
        let unhurried = "set local idle_in_transaction_session_timeout = 0";
        trial.execute(unhurried).await.map_err(StoreError::from)?;
        migrate(&mut trial, options).await?;
        let report = to_server(path, &mut trial, &place, is_trial, progress).await?;
        trial.rollback().await.map_err(StoreError::from)?;
        report
    } else {
        to_server(path, &mut conn, &place, is_trial, progress).await?
    };
    conn.close().await.map_err(StoreError::from)?;
    Ok(report)
}

/// Copies a server's schema to a file, which the caller has locked.
pub(crate) async fn move_to_file(
    options: &PostgresOptions,
    path: &Path,
    is_trial: bool,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, CopyError> {
    let mut conn = open_alone(options, !is_trial).await?;
    // A trial leaves no file.
    let trial = (is_trial && !path.exists()).then(tempfile::tempdir).transpose();
    let trial = trial.map_err(|error| StoreError::from(sqlx::Error::from(error)))?;
    let file =
        trial.as_ref().map_or_else(|| path.to_owned(), |folder| folder.path().join("svc.db"));
    Migrations::apply_file(&file).await?;
    let report = to_file(&mut conn, &file, &options.place(), is_trial, progress).await?;
    conn.close().await.map_err(StoreError::from)?;
    Ok(report)
}

/// Copies the file to the server's schema, which has our tables and whose lock the caller holds.
/// `target` names the schema.
pub(super) async fn to_server(
    path: &Path,
    conn: &mut PgConnection,
    target: &str,
    is_trial: bool,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, CopyError> {
    let (mut file, tables) = open_file(path, conn).await?;
    let known =
        mark_of_file(&file, MoveMark::MOVED_TO)?.or(mark_of_file(&file, MoveMark::MOVING_TO)?);
    if let Some(mark) = known {
        if mark.at != target {
            return Err(CopyError::Elsewhere(mark.at));
        }
        if export_of_server(conn).await?.as_ref() == Some(&mark.export) {
            let last = last_of_file(&file)?;
            if mark.last.is_some_and(|moved| moved < last) {
                return Err(CopyError::ChangedSince(path.display().to_string()));
            }
            if !is_trial {
                finish_file(&mut file, &mark)?;
            }
            return Ok(CopyReport { tables: vec![], is_repeat: true });
        }
    }
    refuse_used(conn, &tables, target).await?;
    if is_trial {
        let mut counted = Vec::new();
        for table in &tables {
            let sum = table.sum_of_file(&file)?;
            progress(&table.name, sum.rows);
            counted.push((table.name.clone(), sum.rows));
        }
        return Ok(CopyReport { tables: counted, is_repeat: false });
    }
    let last = Some(last_of_file(&file)?);
    let mark = MoveMark { export: new_export(conn).await?, at: target.to_owned(), last };
    put_mark(&file, MoveMark::MOVING_TO, &mark)?;
    let copied = fill_server(&file, conn, &tables, &mark, path, progress).await;
    match copied {
        Ok(report) => {
            finish_file(&mut file, &mark)?;
            Ok(report)
        }
        Err(Interrupted { error, may_be_there }) => {
            if !may_be_there {
                file.execute("delete from setting where name = ?", [MoveMark::MOVING_TO])?;
            }
            Err(error)
        }
    }
}

/// Copies the server's schema, whose lock the caller holds, to a file that has our tables and no
/// data. `source` names the schema.
pub(super) async fn to_file(
    conn: &mut PgConnection,
    path: &Path,
    source: &str,
    is_trial: bool,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, CopyError> {
    let (mut file, tables) = open_file(path, conn).await?;
    let target = path.display().to_string();
    let known = mark_of_server(conn, MoveMark::MOVED_TO).await?;
    let known =
        if known.is_some() { known } else { mark_of_server(conn, MoveMark::MOVING_TO).await? };
    if let Some(mark) = known {
        if mark.at != target {
            return Err(CopyError::Elsewhere(mark.at));
        }
        if mark_of_file(&file, MoveMark::MOVED_FROM)?.is_some_and(|from| from.export == mark.export)
        {
            let last = last_of_server(conn).await?;
            if mark.last.is_some_and(|moved| moved < last) {
                return Err(CopyError::ChangedSince(source.to_owned()));
            }
            if !is_trial {
                finish_server(conn, &mark).await?;
            }
            return Ok(CopyReport { tables: vec![], is_repeat: true });
        }
    }
    for table in &tables {
        if file.query_row(&table.is_used(), [], |row| row.get::<_, bool>(0))? {
            return Err(CopyError::HasData { place: target, table: table.name.clone() });
        }
    }
    if is_trial {
        let mut counted = Vec::new();
        for table in &tables {
            let sum = table.sum_of_server(conn).await?;
            progress(&table.name, sum.rows);
            counted.push((table.name.clone(), sum.rows));
        }
        return Ok(CopyReport { tables: counted, is_repeat: false });
    }
    let last = Some(last_of_server(conn).await?);
    let mark = MoveMark { export: new_export(conn).await?, at: target, last };
    put_mark_on_server(conn, MoveMark::MOVING_TO, &mark).await?;
    let from = MoveMark { at: source.to_owned(), ..mark.clone() };
    let copied = fill_file(conn, &mut file, &tables, &from, progress).await;
    match copied {
        Ok(report) => {
            finish_server(conn, &mark).await?;
            Ok(report)
        }
        Err(error) => {
            // SQLite's commit is the last step, and its failure means that it did not take place.
            let undo = sqlx::query("delete from setting where name = $1").bind(MoveMark::MOVING_TO);
            undo.execute(conn).await.map_err(StoreError::from)?;
            Err(error)
        }
    }
}

/// Opens the file. Also returns the tables, which must be the same in the file and on the server.
async fn open_file(
    path: &Path,
    conn: &mut PgConnection,
) -> Result<(Connection, Vec<Table>), CopyError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = Connection::open_with_flags(path, flags)?;
    file.pragma_update(None, "synchronous", "full")?;
    let tables = tables(conn).await.map_err(StoreError::from)?;
    compare(&file, &tables)?;
    Ok((file, tables))
}

impl From<rusqlite::Error> for CopyError {
    fn from(error: rusqlite::Error) -> Self {
        StoreError::from(error).into()
    }
}

struct Interrupted {
    error: CopyError,
    /// The server did not answer the commit, so the target may have the rows.
    may_be_there: bool,
}

impl<E: Into<CopyError>> From<E> for Interrupted {
    fn from(error: E) -> Self {
        Self { error: error.into(), may_be_there: false }
    }
}

async fn fill_server(
    file: &Connection,
    conn: &mut PgConnection,
    tables: &[Table],
    mark: &MoveMark,
    path: &Path,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, Interrupted> {
    let mut whole = conn.begin().await.map_err(StoreError::from)?;
    // The comparison of rows between two statements takes longer than a daemon's transaction may.
    let unhurried = "set local idle_in_transaction_session_timeout = 0; set local lock_timeout = 0";
    whole.execute(unhurried).await.map_err(StoreError::from)?;
    // Reads all tables in one transaction, so in one state.
    let read = file.unchecked_transaction()?;
    let mut sums = Vec::new();
    for table in tables {
        // The file already has the rows that triggers would write.
        set_triggers(&mut whole, table, "disable").await?;
        sums.push(table.send(file, &mut whole, progress).await?);
        set_triggers(&mut whole, table, "enable").await?;
        if table.counts_ids {
            let name = &table.name;
            let next = format!(
                "select setval(pg_get_serial_sequence(current_schema() || '.{name}', 'id'),
                    coalesce(max(id), 1), max(id) is not null) from {name}"
            );
            whole.execute(AssertSqlSafe(next)).await.map_err(StoreError::from)?;
        }
    }
    read.commit()?;
    for (table, sum) in tables.iter().zip(&sums) {
        require_equal(table, sum, &table.sum_of_server(&mut whole).await?)?;
    }
    let from = MoveMark { at: path.display().to_string(), ..mark.clone() };
    put_mark_on_server(&mut whole, MoveMark::MOVED_FROM, &from).await?;
    if let Err(error) = whole.commit().await {
        return Err(Interrupted { error: StoreError::from(error).into(), may_be_there: true });
    }
    // Without `analyze`, the first query plans are for empty tables. A failure does not fail the
    // copy.
    if let Err(error) = conn.execute("analyze").await {
        tracing::warn!(%error, "the copied tables were not analysed");
    }
    Ok(report(tables, &sums))
}

async fn fill_file(
    conn: &mut PgConnection,
    file: &mut Connection,
    tables: &[Table],
    from: &MoveMark,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, CopyError> {
    file.pragma_update(None, "foreign_keys", false)?;
    let mut whole = conn.begin().await.map_err(StoreError::from)?;
    // Reads all tables in one transaction, so in one state.
    let still = "set transaction isolation level repeatable read, read only;
        set local idle_in_transaction_session_timeout = 0";
    whole.execute(still).await.map_err(StoreError::from)?;
    let inside = file.transaction()?;
    let triggers = "select name, sql from sqlite_schema where type = 'trigger' order by rowid";
    let triggers: Vec<(String, String)> = inside
        .prepare(triggers)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (name, _) in &triggers {
        inside.execute_batch(&format!("drop trigger {name}"))?;
    }
    // The migrations create the row of the scope of all memories; the server's rows include it.
    inside.execute_batch("delete from search_scope")?;
    let mut sums = Vec::new();
    for table in tables {
        sums.push(table.receive(&mut whole, &inside, progress).await?);
    }
    for (_, sql) in &triggers {
        inside.execute_batch(sql)?;
    }
    // The server has no such index, so these are built from the copied rows.
    for index in ["ghap_fts", "term_trigram"] {
        inside.execute_batch(&format!("insert into {index} ({index}) values ('rebuild')"))?;
    }
    for (table, sum) in tables.iter().zip(&sums) {
        require_equal(table, &table.sum_of_file(&inside)?, sum)?;
    }
    let orphan = "select \"table\" from pragma_foreign_key_check limit 1";
    let orphan: Option<String> = inside.query_row(orphan, [], |row| row.get(0)).optional()?;
    if let Some(table) = orphan {
        return Err(CopyError::Differs { table });
    }
    put_mark(&inside, MoveMark::MOVED_FROM, from)?;
    inside.commit()?;
    whole.rollback().await.map_err(StoreError::from)?;
    Ok(report(tables, &sums))
}

fn report(tables: &[Table], sums: &[Sum]) -> CopyReport {
    let rows = tables.iter().zip(sums).map(|(table, sum)| (table.name.clone(), sum.rows));
    CopyReport { tables: rows.collect(), is_repeat: false }
}

fn require_equal(table: &Table, source: &Sum, target: &Sum) -> Result<(), CopyError> {
    if source == target { Ok(()) } else { Err(CopyError::Differs { table: table.name.clone() }) }
}

async fn set_triggers(conn: &mut PgConnection, table: &Table, state: &str) -> Result<()> {
    let alter = format!("alter table {} {state} trigger user", table.name);
    conn.execute(AssertSqlSafe(alter)).await?;
    Ok(())
}

async fn refuse_used(
    conn: &mut PgConnection,
    tables: &[Table],
    target: &str,
) -> Result<(), CopyError> {
    for table in tables {
        let is_used = sqlx::query_scalar::<_, bool>(AssertSqlSafe(table.is_used()));
        if is_used.fetch_one(&mut *conn).await.map_err(StoreError::from)? {
            return Err(CopyError::HasData { place: target.to_owned(), table: table.name.clone() });
        }
    }
    Ok(())
}

const LAST: &str = "select coalesce(max(position), 0) from event";

fn last_of_file(file: &Connection) -> rusqlite::Result<i64> {
    file.query_row(LAST, [], |row| row.get(0))
}

async fn last_of_server(conn: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar(LAST).fetch_one(conn).await?)
}

async fn new_export(conn: &mut PgConnection) -> Result<String> {
    Ok(sqlx::query_scalar("select gen_random_uuid()::text").fetch_one(conn).await?)
}

fn mark_of_file(file: &Connection, name: &str) -> Result<Option<MoveMark>, CopyError> {
    let value = "select value from setting where name = ?";
    let value: Option<String> = file.query_row(value, [name], |row| row.get(0)).optional()?;
    Ok(value.and_then(|text| MoveMark::read(&text)))
}

fn put_mark(file: &Connection, name: &str, mark: &MoveMark) -> Result<(), CopyError> {
    let put = "insert into setting (name, value) values (?1, ?2)
        on conflict (name) do update set value = ?2";
    file.execute(put, [name, &mark.text()])?;
    Ok(())
}

fn finish_file(file: &mut Connection, mark: &MoveMark) -> Result<(), CopyError> {
    let whole = file.transaction()?;
    put_mark(&whole, MoveMark::MOVED_TO, mark)?;
    whole.execute("delete from setting where name = ?", [MoveMark::MOVING_TO])?;
    Ok(whole.commit()?)
}

async fn mark_of_server(conn: &mut PgConnection, name: &str) -> Result<Option<MoveMark>> {
    let value = sqlx::query_scalar("select value from setting where name = $1").bind(name);
    let value: Option<String> = value.fetch_optional(conn).await?;
    Ok(value.and_then(|text| MoveMark::read(&text)))
}

async fn export_of_server(conn: &mut PgConnection) -> Result<Option<String>> {
    Ok(mark_of_server(conn, MoveMark::MOVED_FROM).await?.map(|mark| mark.export))
}

async fn put_mark_on_server(conn: &mut PgConnection, name: &str, mark: &MoveMark) -> Result<()> {
    let put = sqlx::query(
        "insert into setting (name, value) values ($1, $2)
        on conflict (name) do update set value = excluded.value",
    );
    put.bind(name).bind(mark.text()).execute(conn).await?;
    Ok(())
}

async fn finish_server(conn: &mut PgConnection, mark: &MoveMark) -> Result<()> {
    let mut whole = conn.begin().await?;
    put_mark_on_server(&mut whole, MoveMark::MOVED_TO, mark).await?;
    let begun = sqlx::query("delete from setting where name = $1").bind(MoveMark::MOVING_TO);
    begun.execute(&mut *whole).await?;
    Ok(whole.commit().await?)
}
