//! Copies of the database file, and its integrity check.

use std::{
    io,
    path::{Path, PathBuf},
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use svc_sys::private_file;

use super::connect::reader_options;
use crate::{LastBackup, StoreError};

/// Copies the database at `from` to the new file `to`, and checks the copy. A daemon may be writing
/// to the database meanwhile.
pub async fn backup(from: &Path, to: &Path) -> Result<(), StoreError> {
    let mut conn = reader_options(from)?.connect().await?;
    vacuum_into(&mut conn, to).await?;
    conn.close().await?;
    Ok(())
}

/// Maximum size of a backup note.
const NOTE_BYTES: u64 = 64 * 1024;

/// The note of the last backup is a file beside the database `db`. `svc backup` does not write to
/// the database, and the copy would lack the note.
fn backup_note(db: &Path) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(".last-backup");
    PathBuf::from(name)
}

pub fn note_backup(db: &Path, backup: &LastBackup) -> io::Result<()> {
    private_file::replace(&backup_note(db), &serde_json::to_vec(backup)?)
}

/// The last backup of the database at `db`; `None` if there is none or the note cannot be read.
pub fn last_backup(db: &Path) -> Option<LastBackup> {
    let note = private_file::read_secret_bytes(&backup_note(db), NOTE_BYTES).ok()??;
    serde_json::from_slice(&note).ok()
}

/// The copy gets its name only when it is complete and checked. It holds all data of the database,
/// so its mode excludes other users at all times; a link at its path is an error.
pub(super) async fn vacuum_into(conn: &mut SqliteConnection, to: &Path) -> Result<(), StoreError> {
    let file = private_file::temporary_beside(to).map_err(failed)?;
    let text = file.path().display().to_string();
    sqlx::query("vacuum into ?").bind(text).execute(conn).await?;
    check_integrity(file.path()).await?;
    file.as_file().sync_all().map_err(failed)?;
    private_file::persist_new(file, to).map_err(failed)
}

async fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let mut conn = reader_options(path)?.connect().await?;
    findings(&mut conn, path, "pragma integrity_check(20)").await?;
    conn.close().await?;
    Ok(())
}

/// Runs the engine's integrity check on the whole file at `path`.
pub(super) async fn findings(
    conn: &mut SqliteConnection,
    path: &Path,
    check: &'static str,
) -> Result<(), StoreError> {
    let findings = sqlx::query_scalar::<_, String>(check).fetch_all(conn).await?;
    if findings == ["ok"] {
        return Ok(());
    }
    Err(StoreError::IntegrityCheckFailed {
        file: path.display().to_string(),
        findings: findings.join("; "),
    })
}

fn failed(error: io::Error) -> StoreError {
    sqlx::Error::Io(error).into()
}
