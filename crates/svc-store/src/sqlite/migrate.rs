//! Schema versions: what the file has, what the program wants, and the way from one to the other.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, SqliteConnection,
    migrate::{Migrate as _, Migrator},
};

use super::{
    connect::{reader_options, writer_options},
    files::vacuum_into,
};
use crate::{MigrateError, Migrations, StoreError};

pub(super) static MIGRATOR: Migrator = sqlx::migrate!("../../migrations");
/// What the migrations up to the version in its first line make. A test below compares the two, and writes it anew with
/// `INSTA_UPDATE=always`, as snapshots are.
static SCHEMA: &str = include_str!("schema.sql");

impl Migrations {
    /// What a file that does not exist yet would need.
    pub fn of_nothing() -> Self {
        after(0)
    }

    /// Compares with the database at `path`, without changing or making anything.
    pub async fn inspect_file(path: &Path) -> Result<Self, MigrateError> {
        if !path.exists() {
            return Ok(Self::of_nothing());
        }
        let mut conn = reader_options(path)?.connect().await.map_err(StoreError::from)?;
        let migrations = inspect(&mut conn).await?;
        conn.close().await.map_err(StoreError::from)?;
        Ok(migrations)
    }

    /// Brings the database at `path` to our version, and makes it if it is missing. The caller holds its lock.
    pub async fn apply_file(path: &Path) -> Result<Self, MigrateError> {
        let mut conn = writer_options(path)?.connect().await.map_err(StoreError::from)?;
        let migrations = inspect(&mut conn).await?;
        apply_with_backup(&migrations, &mut conn, path).await?;
        conn.close().await.map_err(StoreError::from)?;
        Ok(migrations)
    }
}

/// Compares, without changing anything.
pub(super) async fn inspect(conn: &mut SqliteConnection) -> Result<Migrations, MigrateError> {
    let current = applied(conn).await?;
    let migrations = after(current);
    if current > migrations.latest {
        return Err(MigrateError::Newer { found: current, known: migrations.latest });
    }
    Ok(migrations)
}

/// What a database of version `current` still needs.
fn after(current: i64) -> Migrations {
    let latest = MIGRATOR.iter().map(|step| step.version).max().unwrap_or(0);
    let pending = MIGRATOR
        .iter()
        .filter(|step| step.version > current)
        .map(|step| (step.version, step.description.to_string()))
        .collect();
    Migrations { current, latest, pending }
}

/// Applies what is pending, after a copy of a database that has data.
pub(super) async fn apply_with_backup(
    migrations: &Migrations,
    conn: &mut SqliteConnection,
    path: &Path,
) -> Result<(), MigrateError> {
    if migrations.pending.is_empty() {
        return Ok(());
    }
    if migrations.current > 0 {
        keep_copy(conn, path, migrations.current).await?;
    }
    apply(conn).await
}

/// Copies the database to `.bak-<version>` beside it. A copy with the same end of the log is from an earlier attempt that did
/// not finish, and is as good. One of other data stays, as when a backup was restored: the new one has the end of the log in its name, too.
async fn keep_copy(
    conn: &mut SqliteConnection,
    path: &Path,
    version: i64,
) -> Result<(), MigrateError> {
    let named = |suffix: String| {
        let mut copy = path.as_os_str().to_owned();
        copy.push(format!(".bak-{suffix}"));
        PathBuf::from(copy)
    };
    let copy = named(version.to_string());
    if copy.symlink_metadata().is_err() {
        return Ok(vacuum_into(conn, &copy).await?);
    }
    let end = log_end(conn).await?;
    let end_of_copy = match reader_options(&copy)?.connect().await {
        Ok(mut known) => log_end(&mut known).await.ok(),
        Err(_) => None,
    };
    if end_of_copy == Some(end) {
        return Ok(());
    }
    let copy = named(format!("{version}-{end}"));
    if copy.symlink_metadata().is_err() {
        vacuum_into(conn, &copy).await?;
    }
    Ok(())
}

/// The position of the last event.
async fn log_end(conn: &mut SqliteConnection) -> Result<i64, StoreError> {
    let end = sqlx::query_scalar::<_, i64>("select coalesce(max(position), 0) from event");
    Ok(end.fetch_one(conn).await?)
}

/// Applies what is pending, all of it or nothing.
///
/// The caller holds the database's lock: on SQLite the migrator takes none of its own, and two at once would trip over
/// each other's tables.
async fn apply(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    // One commit for all steps: they apply together or not at all, and a first start waits for the disk once.
    let mut tx = conn.begin().await.map_err(StoreError::from)?;
    let objects = sqlx::query_scalar::<_, i64>("select count(*) from sqlite_schema");
    if objects.fetch_one(&mut *tx).await.map_err(StoreError::from)? == 0 {
        make_schema(&mut tx).await?;
    }
    let applied = MIGRATOR.run(&mut *tx).await;
    applied.map_err(|error| MigrateError::Failed(Arc::new(error)))?;
    tx.commit().await.map_err(StoreError::from)?;
    Ok(())
}

/// What the first migrations make of an empty database, in a fraction of their time. They count as applied.
async fn make_schema(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    let noted = conn.ensure_migrations_table(&MIGRATOR.table_name).await;
    noted.map_err(|error| MigrateError::Failed(Arc::new(error)))?;
    let rows: Vec<String> = MIGRATOR
        .iter()
        .filter(|step| step.version <= schema_version())
        .map(|step| {
            let description = step.description.replace('\'', "''");
            format!(
                "({}, '{description}', 1, x'{}', 0)",
                step.version,
                hex::encode(&*step.checksum)
            )
        })
        .collect();
    let note = format!(
        "insert into {} (version, description, success, checksum, execution_time) values {}",
        MIGRATOR.table_name,
        rows.join(", ")
    );
    sqlx::raw_sql(SCHEMA).execute(&mut *conn).await.map_err(StoreError::from)?;
    sqlx::raw_sql(AssertSqlSafe(note)).execute(conn).await.map_err(StoreError::from)?;
    Ok(())
}

/// The migration up to which [`SCHEMA`] goes: the number in its first line.
fn schema_version() -> i64 {
    let line = SCHEMA.lines().next().unwrap_or_default();
    line.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

async fn applied(conn: &mut SqliteConnection) -> Result<i64, StoreError> {
    let known = sqlx::query_scalar::<_, i64>(
        "select count(*) from sqlite_schema where name = '_sqlx_migrations'",
    )
    .fetch_one(&mut *conn)
    .await?;
    if known == 0 {
        return Ok(0);
    }
    let version = sqlx::query_scalar::<_, Option<i64>>("select max(version) from _sqlx_migrations")
        .fetch_one(conn)
        .await?;
    Ok(version.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _};

    use rusqlite::Connection;

    use super::*;

    /// How many migrations may be newer than the schema: each makes the first start slower.
    const NEWER: i64 = 5;

    async fn connect(path: &Path) -> SqliteConnection {
        writer_options(path).unwrap().connect().await.unwrap()
    }

    fn strings(conn: &Connection, sql: &str) -> Vec<Vec<String>> {
        let mut statement = conn.prepare(sql).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        let mut all = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let cell = |column| row.get::<_, Option<String>>(column).unwrap().unwrap_or_default();
            all.push((0..columns).map(cell).collect());
        }
        all
    }

    /// The rows of each table, as values of SQL.
    fn contents(conn: &Connection, kinds: &str) -> BTreeMap<String, Vec<String>> {
        let tables = strings(
            conn,
            &format!(
                "select name from pragma_table_list where schema = 'main' and type in ({kinds})
                    and name <> '_sqlx_migrations' and name not like 'sqlite\\_%' escape '\\' order by name"
            ),
        );
        let rows = |table: &str| {
            let columns = strings(conn, &format!("select name from pragma_table_info('{table}')"));
            let columns: Vec<String> =
                columns.iter().map(|row| format!("quote(\"{}\")", row[0])).collect();
            let sql = format!("select {} from \"{table}\"", columns.join(" || ', ' || "));
            strings(conn, &sql).into_iter().map(|row| row.concat()).collect::<Vec<_>>()
        };
        tables.iter().map(|row| (row[0].clone(), rows(&row[0]))).collect()
    }

    /// The statements that make what is in the database.
    fn written(conn: &Connection, version: i64) -> String {
        let mut text = format!(
            "-- What the migrations up to {version} make of an empty file, for a first start. Written by a test of migrate.rs.\n"
        );
        let objects = strings(
            conn,
            "select sql from sqlite_schema where sql is not null and tbl_name <> '_sqlx_migrations'
                and name not in (select name from pragma_table_list where type = 'shadow')
                and name not like 'sqlite\\_%' escape '\\' order by type <> 'table', rowid",
        );
        for object in objects {
            writeln!(text, "{};", object[0]).expect("writing to a string does not fail");
        }
        for (table, rows) in contents(conn, "'table'") {
            for row in rows {
                writeln!(text, "insert into {table} values ({row});")
                    .expect("writing to a string does not fail");
            }
        }
        text
    }

    #[tokio::test]
    async fn the_schema_is_what_the_migrations_make() {
        let folder = tempfile::tempdir().unwrap();
        let (stepwise, at_once) =
            (folder.path().join("stepwise.db"), folder.path().join("once.db"));
        let mut conn = connect(&stepwise).await;
        MIGRATOR.run(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        let stepwise = Connection::open(stepwise).unwrap();
        let latest = after(0).latest;
        if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite/schema.sql");
            std::fs::write(file, written(&stepwise, latest)).unwrap();
        }
        assert!(
            latest - schema_version() <= NEWER && schema_version() <= latest,
            "schema.sql is of version {}, the migrations of {latest}: INSTA_UPDATE=always writes it",
            schema_version()
        );

        let mut conn = connect(&at_once).await;
        apply(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        let at_once = Connection::open(at_once).unwrap();
        let objects = "select type || ' ' || name, tbl_name, sql from sqlite_schema order by 1";
        assert_eq!(strings(&at_once, objects), strings(&stepwise, objects));
        // The rows that migrations make, and those of the full-text indexes.
        let kinds = "'table', 'shadow'";
        assert_eq!(contents(&at_once, kinds), contents(&stepwise, kinds));
        let steps =
            "select cast(version as text), description, cast(success as text), hex(checksum)
            from _sqlx_migrations order by version";
        assert_eq!(strings(&at_once, steps), strings(&stepwise, steps));
        let settings = "select cast(user_version as text) from pragma_user_version";
        assert_eq!(strings(&at_once, settings), strings(&stepwise, settings));
    }
}
