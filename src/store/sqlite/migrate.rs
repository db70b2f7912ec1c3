//! Schema versions: what the file has, what the program wants, and the way from one to the other.

use std::path::{Path, PathBuf};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, migrate::Migrator};

use super::{
    StoreError,
    db::{reader_options, writer_options},
    maintain::vacuum_into,
};

static MIGRATOR: Migrator = sqlx::migrate!();

/// The migrations of this program against those of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// Version of the database; 0 for a new file.
    pub current: i64,
    /// Version that this program writes.
    pub latest: i64,
    /// What is still to be applied, in order: version and description.
    pub pending: Vec<(i64, String)>,
}

/// Why a database cannot be brought to our version.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Written by a later release.
    #[error(
        "the database has schema version {found}, this svc knows up to version {known}: use the newer svc, \
         or restore a backup from before the upgrade"
    )]
    Newer {
        /// Version of the database.
        found: i64,
        /// Latest version of this program.
        known: i64,
    },
    /// A migration did not apply, or an applied one is not the one we know.
    #[error("cannot migrate the database")]
    Failed(#[source] sqlx::migrate::MigrateError),
    /// There is something to apply, and the caller did not want it applied.
    #[error("{0} migrations are pending: run `svc migrate`, or start without --no-migrate")]
    Pending(usize),
    /// The database could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Migrations {
    /// What a file that does not exist yet would need.
    pub fn of_nothing() -> Self {
        Self::from(0)
    }

    /// Compares with the database at `path`, without changing or making anything.
    pub async fn inspect_file(path: &Path) -> Result<Self, MigrateError> {
        if !path.exists() {
            return Ok(Self::of_nothing());
        }
        let mut conn = reader_options(path)?.connect().await.map_err(StoreError::from)?;
        let migrations = Self::inspect(&mut conn).await?;
        conn.close().await.map_err(StoreError::from)?;
        Ok(migrations)
    }

    /// Brings the database at `path` to our version, and makes it if it is missing. The caller holds its lock.
    pub async fn apply_file(path: &Path) -> Result<Self, MigrateError> {
        let mut conn = writer_options(path)?.connect().await.map_err(StoreError::from)?;
        let migrations = Self::inspect(&mut conn).await?;
        migrations.apply_with_backup(&mut conn, path).await?;
        conn.close().await.map_err(StoreError::from)?;
        Ok(migrations)
    }

    /// Compares, without changing anything.
    pub async fn inspect(conn: &mut SqliteConnection) -> Result<Self, MigrateError> {
        let current = applied(conn).await?;
        let migrations = Self::from(current);
        if current > migrations.latest {
            return Err(MigrateError::Newer { found: current, known: migrations.latest });
        }
        Ok(migrations)
    }

    fn from(current: i64) -> Self {
        let latest = MIGRATOR.iter().map(|step| step.version).max().unwrap_or(0);
        let pending = MIGRATOR
            .iter()
            .filter(|step| step.version > current)
            .map(|step| (step.version, step.description.to_string()))
            .collect();
        Self { current, latest, pending }
    }

    /// The same, after a copy of a database that has data.
    pub(super) async fn apply_with_backup(
        &self,
        conn: &mut SqliteConnection,
        path: &Path,
    ) -> Result<(), MigrateError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.current > 0 {
            let mut copy = path.as_os_str().to_owned();
            copy.push(format!(".bak-{}", self.current));
            let copy = PathBuf::from(copy);
            // One from an earlier attempt that did not finish is as old as the data, and as good.
            if !copy.exists() {
                vacuum_into(conn, &copy).await?;
            }
        }
        self.apply(conn).await
    }

    /// Applies what is pending, all of it or nothing.
    ///
    /// The caller holds the database's lock: on SQLite the migrator takes none of its own, and two at once would
    /// trip over each other's tables.
    async fn apply(&self, conn: &mut SqliteConnection) -> Result<(), MigrateError> {
        // One commit for all steps: they apply together or not at all, and a first start waits for the disk once.
        let mut tx = conn.begin().await.map_err(StoreError::from)?;
        MIGRATOR.run(&mut *tx).await.map_err(MigrateError::Failed)?;
        tx.commit().await.map_err(StoreError::from)?;
        Ok(())
    }
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
