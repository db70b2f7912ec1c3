//! Schema versions: the version of the file, the version of the program, and the migrations between
//! them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    migrate::{Migration, Migrator},
    sqlite::SqliteConnectOptions,
};

use super::file::{reader_options, vacuum_into, writer_options};
use crate::{MigrateError, Migrations, Result, StoreError, boxed};

/// Migrations from an empty file to the current schema. The first is the baseline, which creates
/// the schema of its version in one step.
static MIGRATOR: Migrator = sqlx::migrate!("../../migrations");
/// Migrations from the oldest supported schema to that of the baseline.
static UPGRADE: Migrator = sqlx::migrate!("../../migrations/upgrade");
const BASELINE: i64 = 56;
/// Version and digest of an earlier baseline. A file that it created records no migrations before
/// it.
const FORMER_BASELINE: (i64, &str) = (
    47,
    "ff292988f1f52488e9bbb19e0b9179b131fd3b18f4ea2d57a2a46447d484de5972f36e507562e2c0b8f1cf4c2589613d",
);
const OLDEST: i64 = 36;
/// Digest of migration `OLDEST`. The 35 migrations before it are not checked: a file with this
/// digest has their result.
const LAST_OF_OLDEST: &str = "284655d402935ced17212965ee24759fa421214044ac93b7d93af4221b0cdaa6edf727ef1a077cf6a50ca84179485656";

pub(super) type AppliedStep = (i64, Vec<u8>, bool);

impl Migrations {
    pub fn of_nothing() -> Self {
        after(0)
    }

    /// Compares with the database at `path`, without changing or creating anything.
    #[boxed(?Send)]
    pub async fn inspect_file(path: &Path) -> Result<Self, MigrateError> {
        if !path.exists() {
            return Ok(Self::of_nothing());
        }
        let mut conn = reader_options(path)?.connect().await?;
        let migrations = inspect(&mut conn).await?;
        conn.close().await?;
        Ok(migrations)
    }

    /// Migrates the database at `path` to our version, and creates it if it is missing. The caller
    /// holds its lock.
    #[boxed(?Send)]
    pub async fn apply_file(path: &Path) -> Result<Self, MigrateError> {
        let mut conn = writer_options(path)?.connect().await?;
        let migrations = inspect(&mut conn).await?;
        apply_with_backup(&migrations, &mut conn, path).await?;
        conn.close().await?;
        Ok(migrations)
    }
}

pub(crate) async fn inspect(conn: &mut SqliteConnection) -> Result<Migrations, MigrateError> {
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

/// Applies pending migrations. A database with data is copied first.
pub(crate) async fn apply_with_backup(
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

/// Copies the database to `.bak-<version>` beside it. An existing copy with the same last position
/// is from an earlier attempt that did not finish, and is kept as the copy. An existing copy of
/// other data, as after a restore, also stays: the name of the new copy then includes the last
/// position.
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
    let end = last_log_position(conn).await?;
    let end_of_copy = match reader_options(&copy)?.connect().await {
        Ok(mut known) => last_log_position(&mut known).await.ok(),
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

async fn last_log_position(conn: &mut SqliteConnection) -> Result<i64> {
    let end = sqlx::query_scalar::<_, i64>("select coalesce(max(position), 0) from event");
    Ok(end.fetch_one(conn).await?)
}

/// Applies all pending migrations or none.
///
/// The caller holds the database's lock: sqlx's migrator takes no lock on SQLite, and two
/// concurrent migrators would fail on each other's tables.
async fn apply(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    // One commit for all steps: they apply together or not at all, and a first start syncs the disk
    // once.
    let mut tx = conn.begin().await?;
    let failed = |error: sqlx::migrate::MigrateError| MigrateError::Failed(Arc::new(error));
    if is_before_baseline(&mut tx).await? {
        note_steps_of_former_baseline(&mut tx).await?;
        let steps = UPGRADE.iter().filter(|step| step.version > OLDEST).cloned().collect();
        let mut upgrade = Migrator::with_migrations(steps);
        upgrade.set_ignore_missing(true).run(&mut *tx).await.map_err(failed)?;
        note_baseline(&mut tx).await?;
    }
    MIGRATOR.run(&mut *tx).await.map_err(failed)?;
    tx.commit().await?;
    Ok(())
}

/// Whether the file was made by migrations from before the baseline.
async fn is_before_baseline(conn: &mut SqliteConnection) -> Result<bool> {
    if applied(conn).await? == 0 {
        return Ok(false);
    }
    let (former, digest) = FORMER_BASELINE;
    Ok(digest_of(conn, OLDEST).await?.as_deref() == Some(LAST_OF_OLDEST)
        || digest_of(conn, former).await?.as_deref() == Some(digest))
}

async fn digest_of(
    conn: &mut SqliteConnection,
    version: i64,
) -> Result<Option<String>, sqlx::Error> {
    let digest = "select lower(hex(checksum)) from _sqlx_migrations where version = ?";
    sqlx::query_scalar(digest).bind(version).fetch_optional(conn).await
}

/// The steps that have the result of the former baseline.
fn steps_of_former_baseline() -> impl Iterator<Item = &'static Migration> {
    UPGRADE.iter().filter(|step| step.version > OLDEST && step.version <= FORMER_BASELINE.0)
}

/// Replaces the former baseline, if it is recorded, by the steps that have its result.
async fn note_steps_of_former_baseline(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let (former, digest) = FORMER_BASELINE;
    if digest_of(conn, former).await?.as_deref() != Some(digest) {
        return Ok(());
    }
    for step in steps_of_former_baseline() {
        let noted = "insert or replace into _sqlx_migrations
            (version, description, installed_on, success, checksum, execution_time)
            values (?, ?, current_timestamp, true, ?, 0)";
        let noted = sqlx::query(noted).bind(step.version).bind(&*step.description);
        noted.bind(&*step.checksum).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Replaces the recorded migrations up to the baseline by the baseline.
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

/// An empty database of this version, made by the same migrations as that of `conn`.
pub(super) async fn model_of(
    conn: &mut SqliteConnection,
    version: i64,
) -> Result<SqliteConnection> {
    let steps = if is_before_baseline(conn).await? { &UPGRADE } else { &MIGRATOR };
    let steps = steps.iter().filter(|step| step.version <= version).cloned().collect();
    let options = SqliteConnectOptions::new().in_memory(true).disable_statement_logging();
    let mut model = options.connect().await?;
    let ran = Migrator::with_migrations(steps).run(&mut model).await;
    ran.map_err(|error| StoreError::Database(Arc::new(error)))?;
    Ok(model)
}

/// Gives an empty database the schema of a version before the baseline, as a daemon of that time
/// did.
#[cfg(test)]
pub(crate) async fn make_earlier(conn: &mut SqliteConnection, version: i64) {
    let steps = UPGRADE.iter().filter(|step| step.version <= version).cloned().collect();
    Migrator::with_migrations(steps).run(&mut *conn).await.unwrap();
    let noted = "update _sqlx_migrations set checksum = unhex(?) where version = ?";
    let noted = sqlx::query(noted).bind(LAST_OF_OLDEST).bind(OLDEST);
    noted.execute(conn).await.unwrap();
}

/// The applied migrations after the oldest supported schema, and all failed ones.
pub(super) async fn applied_steps(
    conn: &mut SqliteConnection,
) -> Result<Vec<AppliedStep>, sqlx::Error> {
    let steps = "select version, checksum, success from _sqlx_migrations
        where version > ? or not success order by version";
    let mut steps: Vec<AppliedStep> = sqlx::query_as(steps).bind(OLDEST).fetch_all(conn).await?;
    let is_former = |(version, digest, _): &AppliedStep| {
        let (former, former_digest) = FORMER_BASELINE;
        let is_same = |(at, byte): (usize, &u8)| {
            former_digest.get(2 * at..2 * at + 2) == Some(&*format!("{byte:02x}"))
        };
        *version == former
            && 2 * digest.len() == former_digest.len()
            && digest.iter().enumerate().all(is_same)
    };
    if steps.first().is_some_and(is_former) {
        let same = steps_of_former_baseline();
        steps.splice(..1, same.map(|step| (step.version, step.checksum.to_vec(), true)));
    }
    Ok(steps)
}

async fn applied(conn: &mut SqliteConnection) -> Result<i64> {
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

    fn fixtures() -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/schema");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "db")).collect()
    }

    #[tokio::test]
    async fn upgraded_fixtures_have_the_schema_of_a_new_file() {
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
            assert_eq!(applied_steps(&mut conn).await.unwrap(), steps, "{fixture:?}");
            conn.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_file_of_the_former_baseline_is_upgraded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("svc.db");
        let (former, digest) = FORMER_BASELINE;
        let fixture = fixtures().into_iter().find(|path| path.ends_with("47.db")).unwrap();
        std::fs::copy(fixture, &file).unwrap();
        let mut conn = connect(&file).await;
        let wanted = applied_steps(&mut conn).await.unwrap();
        // The list of migrations that files of that time have. Their schema is identical.
        let steps = sqlx::query("delete from _sqlx_migrations where version < ?").bind(former);
        steps.execute(&mut conn).await.unwrap();
        let noted = sqlx::query("update _sqlx_migrations set checksum = unhex(?)");
        noted.bind(digest).execute(&mut conn).await.unwrap();
        assert_eq!(applied_steps(&mut conn).await.unwrap(), wanted);
        conn.close().await.unwrap();
        let before = Migrations::apply_file(&file).await.unwrap();
        assert_eq!(before.current, former);
        assert_eq!(Migrations::inspect_file(&file).await.unwrap().pending, []);
        let mut conn = connect(&file).await;
        assert!(!is_before_baseline(&mut conn).await.unwrap());
        conn.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_file_with_unknown_migrations_is_left_unchanged() {
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
