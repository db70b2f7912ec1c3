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
    open::{inspect, migrate, open_alone},
};
use crate::{
    CopyError, CopyReport, MigrateError, Migrations, PostgresOptions, Result, StoreError, boxed,
    upkeep::MoveMark,
};

type CopyProgress<'a> = &'a mut dyn FnMut(&str, u64);

/// Moves the history in the file at `path`, which the caller has locked, to a server. `progress`
/// gets a table's name and the number of its rows so far. A trial changes nothing.
#[boxed(?Send)]
pub async fn move_to_server(
    path: &Path,
    options: &PostgresOptions,
    is_trial: bool,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<CopyReport, CopyError> {
    Migrations::apply_file(path).await?;
    let mut conn = open_alone(options, !is_trial).await?;
    let place = options.place();
    let report = if is_trial {
        // The comparison needs the tables on the server. The rollback removes them.
        let mut trial = conn.begin().await?;
        let unhurried = "set local idle_in_transaction_session_timeout = 0";
        trial.execute(unhurried).await?;
        migrate(&mut trial, options).await?;
        let report = to_server(path, &mut trial, &place, is_trial, progress).await?;
        trial.rollback().await?;
        report
    } else {
        to_server(path, &mut conn, &place, is_trial, progress).await?
    };
    conn.close().await?;
    Ok(report)
}

/// Moves a server's history to the file at `path`, which the caller has locked.
#[boxed(?Send)]
pub async fn move_to_file(
    options: &PostgresOptions,
    path: &Path,
    is_trial: bool,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<CopyReport, CopyError> {
    let mut conn = open_alone(options, false).await?;
    if inspect(&mut conn).await?.current == 0 {
        let (schema, url) = (&options.schema, options.url.shown());
        let why = format!("there is no history in schema {schema} of {url}");
        return Err(MigrateError::Refused(why).into());
    }
    if !is_trial {
        migrate(&mut conn, options).await?;
    }
    // A trial leaves no file.
    let trial = (is_trial && !path.exists()).then(tempfile::tempdir).transpose();
    let trial = trial.map_err(sqlx::Error::from)?;
    let file =
        trial.as_ref().map_or_else(|| path.to_owned(), |folder| folder.path().join("svc.db"));
    Migrations::apply_file(&file).await?;
    let report = to_file(&mut conn, &file, &options.place(), is_trial, progress).await?;
    conn.close().await?;
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
    let (mut databases, tables) = open_file(path, conn).await?;
    let source = Place { side: Side::File, name: path.display().to_string() };
    let target = Place { side: Side::Server, name: target.to_owned() };
    databases.copy(&tables, &source, &target, is_trial, progress).await
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
    let (mut databases, tables) = open_file(path, conn).await?;
    let source = Place { side: Side::Server, name: source.to_owned() };
    let target = Place { side: Side::File, name: path.display().to_string() };
    databases.copy(&tables, &source, &target, is_trial, progress).await
}

/// Opens the file. Also returns the tables, which must be the same in the file and on the server.
async fn open_file<'a>(
    path: &Path,
    conn: &'a mut PgConnection,
) -> Result<(Databases<'a>, Vec<Table>), CopyError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = Connection::open_with_flags(path, flags)?;
    file.pragma_update(None, "synchronous", "full")?;
    let tables = tables(conn).await?;
    compare(&file, &tables)?;
    Ok((Databases { file, conn }, tables))
}

#[derive(Debug, Clone, Copy)]
enum Side {
    File,
    Server,
}

struct Place {
    side: Side,
    /// As messages to people name it.
    name: String,
}

/// The two databases of a move.
struct Databases<'a> {
    file: Connection,
    conn: &'a mut PgConnection,
}

// The marks of both databases. SQLite and PostgreSQL read these texts alike.
const MARK: &str = "select value from setting where name = $1";
const PUT_MARK: &str = "insert into setting (name, value) values ($1, $2)
    on conflict (name) do update set value = excluded.value";
const REMOVE_MARK: &str = "delete from setting where name = $1";
const LAST: &str = "select coalesce(max(position), 0) from event";

impl Databases<'_> {
    async fn copy(
        &mut self,
        tables: &[Table],
        source: &Place,
        target: &Place,
        is_trial: bool,
        progress: CopyProgress<'_>,
    ) -> Result<CopyReport, CopyError> {
        let mut known = self.mark(source.side, MoveMark::MOVED_TO).await?;
        if known.is_none() {
            known = self.mark(source.side, MoveMark::MOVING_TO).await?;
        }
        if let Some(mark) = known {
            if mark.at != target.name {
                return Err(CopyError::Elsewhere(mark.at));
            }
            let arrived = self.mark(target.side, MoveMark::MOVED_FROM).await?;
            if arrived.is_some_and(|arrived| arrived.export == mark.export) {
                let last = self.last(source.side).await?;
                if mark.last.is_some_and(|moved| moved < last) {
                    return Err(CopyError::ChangedSince(source.name.clone()));
                }
                if !is_trial {
                    self.finish(source.side, &mark).await?;
                }
                return Ok(CopyReport { tables: vec![], is_repeat: true });
            }
        }
        for table in tables {
            if self.is_used(target.side, table).await? {
                let (place, table) = (target.name.clone(), table.name.clone());
                return Err(CopyError::HasData { place, table });
            }
        }
        if is_trial {
            let mut sums = Vec::new();
            for table in tables {
                let sum = match source.side {
                    Side::File => table.sum_of_file(&self.file)?,
                    Side::Server => table.sum_of_server(self.conn).await?,
                };
                progress(&table.name, sum.rows);
                sums.push(sum);
            }
            return Ok(report(tables, &sums));
        }
        let last = Some(self.last(source.side).await?);
        let mark = MoveMark { export: new_export(self.conn).await?, at: target.name.clone(), last };
        match source.side {
            Side::File => put_mark(&self.file, MoveMark::MOVING_TO, &mark)?,
            Side::Server => put_mark_on_server(self.conn, MoveMark::MOVING_TO, &mark).await?,
        }
        let from = MoveMark { at: source.name.clone(), ..mark.clone() };
        let copied = match target.side {
            Side::Server => fill_server(&self.file, self.conn, tables, &from, progress).await,
            // SQLite's commit is the last step, and its failure means that it did not take place.
            Side::File => fill_file(self.conn, &mut self.file, tables, &from, progress)
                .await
                .map_err(Interrupted::from),
        };
        match copied {
            Ok(report) => {
                self.finish(source.side, &mark).await?;
                Ok(report)
            }
            Err(Interrupted { error, may_be_there }) => {
                if !may_be_there {
                    self.remove_mark(source.side).await?;
                }
                Err(error)
            }
        }
    }

    async fn mark(&mut self, side: Side, name: &str) -> Result<Option<MoveMark>, CopyError> {
        let value: Option<String> = match side {
            Side::File => self.file.query_row(MARK, [name], |row| row.get(0)).optional()?,
            Side::Server => {
                sqlx::query_scalar(MARK).bind(name).fetch_optional(&mut *self.conn).await?
            }
        };
        Ok(value.and_then(|text| MoveMark::read(&text)))
    }

    async fn remove_mark(&mut self, side: Side) -> Result<(), CopyError> {
        match side {
            Side::File => {
                self.file.execute(REMOVE_MARK, [MoveMark::MOVING_TO])?;
            }
            Side::Server => {
                let remove = sqlx::query(REMOVE_MARK).bind(MoveMark::MOVING_TO);
                remove.execute(&mut *self.conn).await?;
            }
        }
        Ok(())
    }

    /// Position of the last event.
    async fn last(&mut self, side: Side) -> Result<i64, CopyError> {
        Ok(match side {
            Side::File => self.file.query_row(LAST, [], |row| row.get(0))?,
            Side::Server => sqlx::query_scalar(LAST).fetch_one(&mut *self.conn).await?,
        })
    }

    async fn is_used(&mut self, side: Side, table: &Table) -> Result<bool, CopyError> {
        let text = table.is_used();
        Ok(match side {
            Side::File => self.file.query_row(&text, [], |row| row.get(0))?,
            Side::Server => {
                sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut *self.conn).await?
            }
        })
    }

    /// Records in the source that the move is complete.
    async fn finish(&mut self, source: Side, mark: &MoveMark) -> Result<(), CopyError> {
        match source {
            Side::File => {
                let whole = self.file.transaction()?;
                put_mark(&whole, MoveMark::MOVED_TO, mark)?;
                whole.execute(REMOVE_MARK, [MoveMark::MOVING_TO])?;
                whole.commit()?;
            }
            Side::Server => {
                let mut whole = self.conn.begin().await?;
                put_mark_on_server(&mut whole, MoveMark::MOVED_TO, mark).await?;
                let begun = sqlx::query(REMOVE_MARK).bind(MoveMark::MOVING_TO);
                begun.execute(&mut *whole).await?;
                whole.commit().await?;
            }
        }
        Ok(())
    }
}

fn put_mark(file: &Connection, name: &str, mark: &MoveMark) -> Result<(), CopyError> {
    file.execute(PUT_MARK, [name, &mark.text()])?;
    Ok(())
}

async fn put_mark_on_server(
    conn: &mut PgConnection,
    name: &str,
    mark: &MoveMark,
) -> Result<(), CopyError> {
    sqlx::query(PUT_MARK).bind(name).bind(mark.text()).execute(conn).await?;
    Ok(())
}

async fn new_export(conn: &mut PgConnection) -> Result<String, CopyError> {
    Ok(sqlx::query_scalar("select gen_random_uuid()::text").fetch_one(conn).await?)
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
    from: &MoveMark,
    progress: CopyProgress<'_>,
) -> Result<CopyReport, Interrupted> {
    let mut whole = conn.begin().await?;
    // The comparison of rows between two statements takes longer than a daemon's transaction may.
    let unhurried = "set local idle_in_transaction_session_timeout = 0; set local lock_timeout = 0";
    whole.execute(unhurried).await?;
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
            whole.execute(AssertSqlSafe(next)).await?;
        }
    }
    read.commit()?;
    for (table, sum) in tables.iter().zip(&sums) {
        require_equal(table, sum, &table.sum_of_server(&mut whole).await?)?;
    }
    put_mark_on_server(&mut whole, MoveMark::MOVED_FROM, from).await?;
    if let Err(error) = whole.commit().await {
        return Err(Interrupted { error: error.into(), may_be_there: true });
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
    let mut whole = conn.begin().await?;
    // Reads all tables in one transaction, so in one state.
    let still = "set transaction isolation level repeatable read, read only;
        set local idle_in_transaction_session_timeout = 0";
    whole.execute(still).await?;
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
    whole.rollback().await?;
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
