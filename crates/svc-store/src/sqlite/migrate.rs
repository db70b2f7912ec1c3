//! Schema versions: what the file has, what the program wants, and the way from one to the other.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection, migrate::Migrator,
    sqlite::SqliteConnectOptions,
};

use super::{
    connect::{reader_options, writer_options},
    files::vacuum_into,
};
use crate::{MigrateError, Migrations, StoreError};

/// From nothing to the present schema: first the baseline, which makes that of its version in one
/// piece.
static MIGRATOR: Migrator = sqlx::migrate!("../../migrations");
/// From the oldest schema that is upgraded to that of the baseline.
static UPGRADE: Migrator = sqlx::migrate!("../../migrations/upgrade");
/// Version of the baseline.
const BASELINE: i64 = 47;
/// Version of the oldest schema that is upgraded.
const OLDEST: i64 = 36;
/// Digest of the migration that brought a file to that schema. The 35 before it are not looked at:
/// what they made is.
const LAST_OF_OLDEST: &str = "284655d402935ced17212965ee24759fa421214044ac93b7d93af4221b0cdaa6edf727ef1a077cf6a50ca84179485656";

/// Version, digest and success of a migration that was applied.
pub(super) type AppliedStep = (i64, Vec<u8>, bool);

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

    /// Brings the database at `path` to our version, and makes it if it is missing. The caller
    /// holds its lock.
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
    if (1..OLDEST).contains(&current) {
        return Err(MigrateError::Older { found: current, oldest: OLDEST });
    }
    Ok(migrations)
}

/// What a database of version `current` still needs.
fn after(current: i64) -> Migrations {
    let latest = MIGRATOR.iter().map(|step| step.version).max().unwrap_or(0);
    let upgrade = UPGRADE.iter().filter(|_| current > 0);
    let pending = upgrade
        .chain(MIGRATOR.iter().filter(|step| current == 0 || step.version > BASELINE))
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

/// Copies the database to `.bak-<version>` beside it. A copy with the same end of the log is from
/// an earlier attempt that did not finish, and is as good. One of other data stays, as when a
/// backup was restored: the new one has the end of the log in its name, too.
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
/// The caller holds the database's lock: on SQLite the migrator takes none of its own, and two at
/// once would trip over each other's tables.
async fn apply(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    // One commit for all steps: they apply together or not at all, and a first start waits for the
    // disk once.
    let mut tx = conn.begin().await.map_err(StoreError::from)?;
    let failed = |error: sqlx::migrate::MigrateError| MigrateError::Failed(Arc::new(error));
    if is_before_baseline(&mut tx).await? {
        let steps = UPGRADE.iter().filter(|step| step.version > OLDEST).cloned().collect();
        let mut upgrade = Migrator::with_migrations(steps);
        upgrade.set_ignore_missing(true).run(&mut *tx).await.map_err(failed)?;
        note_baseline(&mut tx).await.map_err(StoreError::from)?;
    }
    MIGRATOR.run(&mut *tx).await.map_err(failed)?;
    tx.commit().await.map_err(StoreError::from)?;
    Ok(())
}

/// Whether a file was made step by step, before there was a baseline.
async fn is_before_baseline(conn: &mut SqliteConnection) -> Result<bool, StoreError> {
    if applied(conn).await? == 0 {
        return Ok(false);
    }
    let digest = "select lower(hex(checksum)) from _sqlx_migrations where version = ?";
    let digest = sqlx::query_scalar::<_, String>(digest).bind(OLDEST).fetch_optional(conn).await?;
    Ok(digest.as_deref() == Some(LAST_OF_OLDEST))
}

/// Lists the baseline in place of the migrations that made the same schema.
async fn note_baseline(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    for step in MIGRATOR.iter().filter(|step| step.version == BASELINE) {
        let former = sqlx::query("delete from _sqlx_migrations where version < ?");
        former.bind(BASELINE).execute(&mut *conn).await?;
        let noted = "update _sqlx_migrations set description = ?, checksum = ? where version = ?";
        let noted = sqlx::query(noted).bind(&*step.description).bind(&*step.checksum);
        noted.bind(BASELINE).execute(&mut *conn).await?;
    }
    Ok(())
}

/// An empty database of this version, made as that of `conn` was.
pub(super) async fn model_of(
    conn: &mut SqliteConnection,
    version: i64,
) -> Result<SqliteConnection, StoreError> {
    let steps = if is_before_baseline(conn).await? { &UPGRADE } else { &MIGRATOR };
    let steps = steps.iter().filter(|step| step.version <= version).cloned().collect();
    let options = SqliteConnectOptions::new().in_memory(true).disable_statement_logging();
    let mut model = options.connect().await?;
    let ran = Migrator::with_migrations(steps).run(&mut model).await;
    ran.map_err(|error| StoreError::Database(Arc::new(error)))?;
    Ok(model)
}

/// The migrations that were applied, without those that made the oldest schema; those that failed
/// are among them.
pub(super) async fn applied_steps(
    conn: &mut SqliteConnection,
) -> Result<Vec<AppliedStep>, sqlx::Error> {
    let steps = "select version, checksum, success from _sqlx_migrations
        where version > ? or not success order by version";
    sqlx::query_as(steps).bind(OLDEST).fetch_all(conn).await
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
    use super::*;

    async fn connect(path: &Path) -> SqliteConnection {
        writer_options(path).unwrap().connect().await.unwrap()
    }

    type Object = (String, String, Option<String>);

    async fn objects(conn: &mut SqliteConnection) -> Vec<Object> {
        let objects = "select type || ' ' || name, tbl_name, sql from sqlite_schema
            where name <> '_sqlx_migrations' and name not like 'sqlite_stat%' order by 1";
        sqlx::query_as(objects).fetch_all(conn).await.unwrap()
    }

    /// The database of each earlier version.
    fn fixtures() -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/schema");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "db")).collect()
    }

    #[tokio::test]
    async fn an_upgraded_file_has_the_schema_of_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = folder.path().join("fresh.db");
        Migrations::apply_file(&fresh).await.unwrap();
        let mut fresh = connect(&fresh).await;
        let (wanted, steps) = (objects(&mut fresh).await, applied_steps(&mut fresh).await.unwrap());
        let fixtures = fixtures();
        assert!(fixtures.len() >= 8, "{fixtures:?}");
        for fixture in fixtures {
            let file = folder.path().join(fixture.file_name().unwrap());
            std::fs::copy(&fixture, &file).unwrap();
            let before = Migrations::apply_file(&file).await.unwrap();
            assert_eq!(fixture.file_stem().unwrap().to_str(), Some(&*before.current.to_string()));
            let after = Migrations::inspect_file(&file).await.unwrap();
            assert_eq!(after.pending, [], "{fixture:?}");
            let mut conn = connect(&file).await;
            assert_eq!(objects(&mut conn).await, wanted, "{fixture:?}");
            if before.pending.is_empty() {
                // The next migration finds the list as it was, and puts it in order.
                apply(&mut conn).await.unwrap();
            }
            assert_eq!(applied_steps(&mut conn).await.unwrap(), steps, "{fixture:?}");
            conn.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_file_of_unknown_migrations_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = fixtures().into_iter().find(|path| path.ends_with("40.db")).unwrap();
        let changes = [
            ("update _sqlx_migrations set checksum = x'00' where version = 36", "VersionMissing"),
            ("update _sqlx_migrations set success = false where version = 40", "40"),
            ("update _sqlx_migrations set checksum = x'00' where version = 40", "40"),
            ("delete from _sqlx_migrations where version >= 36", "35"),
        ];
        for (number, (change, told)) in changes.into_iter().enumerate() {
            let file = folder.path().join(format!("{number}.db"));
            std::fs::copy(&fixture, &file).unwrap();
            let mut conn = connect(&file).await;
            sqlx::query(change).execute(&mut conn).await.unwrap();
            let before = objects(&mut conn).await;
            let error = format!("{:?}", Migrations::apply_file(&file).await.unwrap_err());
            assert!(error.contains(told), "{error}");
            assert_eq!(objects(&mut conn).await, before);
            conn.close().await.unwrap();
        }
    }
}
