//! Schema versions: what the file has, what the program wants, and the way from one to the other.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, migrate::Migrator};

use super::{
    connect::{reader_options, writer_options},
    files::vacuum_into,
};
use crate::store::{MigrateError, Migrations, StoreError};

pub(super) static MIGRATOR: Migrator = sqlx::migrate!();

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
        let mut copy = path.as_os_str().to_owned();
        copy.push(format!(".bak-{}", migrations.current));
        let copy = PathBuf::from(copy);
        // One from an earlier attempt that did not finish is as old as the data, and as good.
        if copy.symlink_metadata().is_err() {
            vacuum_into(conn, &copy).await?;
        }
    }
    apply(conn).await
}

/// Applies what is pending, all of it or nothing.
///
/// The caller holds the database's lock: on SQLite the migrator takes none of its own, and two at once would trip over
/// each other's tables.
async fn apply(conn: &mut SqliteConnection) -> Result<(), MigrateError> {
    // One commit for all steps: they apply together or not at all, and a first start waits for the disk once.
    let mut tx = conn.begin().await.map_err(StoreError::from)?;
    let applied = MIGRATOR.run(&mut *tx).await;
    applied.map_err(|error| MigrateError::Failed(Arc::new(error)))?;
    tx.commit().await.map_err(StoreError::from)?;
    Ok(())
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
