//! Copies of the database file, and its check.

use std::{
    io,
    path::{Path, PathBuf},
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use svc_sys::private_file;

use super::connect::reader_options;
use crate::{LastBackup, StoreError};

/// Copies the database at `from` to the new file `to`, while a daemon may be writing to it, and
/// checks the copy.
pub async fn backup(from: &Path, to: &Path) -> Result<(), StoreError> {
    let mut conn = reader_options(from)?.connect().await?;
    vacuum_into(&mut conn, to).await?;
    conn.close().await?;
    Ok(())
}

/// Longest note of a backup, in bytes.
const NOTE_BYTES: u64 = 64 * 1024;

/// Where the last backup of the database at `db` is noted: in a file beside it. `svc backup` does
/// not write to the database, and a copy would lack the note.
fn backup_note(db: &Path) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(".last-backup");
    PathBuf::from(name)
}

/// Notes the last backup of the database at `db`.
pub fn note_backup(db: &Path, backup: &LastBackup) -> io::Result<()> {
    private_file::replace(&backup_note(db), &serde_json::to_vec(backup)?)
}

/// The last backup of the database at `db`; `None` if there is none, or nobody can say.
pub fn last_backup(db: &Path) -> Option<LastBackup> {
    let note = private_file::read_secret_bytes(&backup_note(db), NOTE_BYTES).ok()??;
    serde_json::from_slice(&note).ok()
}

/// The copy has its name only when it is whole and checked. It holds all that the database does, so
/// nobody else may read it at any time; a link in its place is an error.
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

/// Asks the engine to check the whole file at `path`.
pub(super) async fn findings(
    conn: &mut SqliteConnection,
    path: &Path,
    check: &'static str,
) -> Result<(), StoreError> {
    let findings = sqlx::query_scalar::<_, String>(check).fetch_all(conn).await?;
    if findings == ["ok"] {
        return Ok(());
    }
    Err(StoreError::Unsound { file: path.display().to_string(), findings: findings.join("; ") })
}

fn failed(error: io::Error) -> StoreError {
    sqlx::Error::Io(error).into()
}
