//! Schema versions: what the file has, what the program wants, and the way from one to the other.

use sqlx::{Connection as _, SqliteConnection, migrate::Migrator};

use super::StoreError;

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
    /// The database could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Migrations {
    /// Compares, without changing anything.
    pub async fn inspect(conn: &mut SqliteConnection) -> Result<Self, MigrateError> {
        let current = applied(conn).await?;
        let latest = MIGRATOR.iter().map(|step| step.version).max().unwrap_or(0);
        if current > latest {
            return Err(MigrateError::Newer { found: current, known: latest });
        }
        let pending = MIGRATOR
            .iter()
            .filter(|step| step.version > current)
            .map(|step| (step.version, step.description.to_string()))
            .collect();
        Ok(Self { current, latest, pending })
    }

    /// Applies what is pending, all of it or nothing.
    ///
    /// The caller holds the database's lock: on SQLite the migrator takes none of its own, and two at once would
    /// trip over each other's tables.
    pub async fn apply(&self, conn: &mut SqliteConnection) -> Result<(), MigrateError> {
        if self.current == 0 {
            // One commit instead of one for each step: a first start is a single wait for the disk.
            let mut tx = conn.begin().await.map_err(StoreError::from)?;
            MIGRATOR.run_direct(None, &mut *tx, false).await.map_err(MigrateError::Failed)?;
            tx.commit().await.map_err(StoreError::from)?;
        } else {
            MIGRATOR.run_direct(None, conn, false).await.map_err(MigrateError::Failed)?;
        }
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
