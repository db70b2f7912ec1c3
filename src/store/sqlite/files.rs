//! Copies of the database file, and its check.

use std::path::Path;

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::connect::reader_options;
use crate::store::StoreError;

/// Copies the database at `from` to the new file `to`, while a daemon may be writing to it, and checks the copy.
pub async fn backup(from: &Path, to: &Path) -> Result<(), StoreError> {
    let mut conn = reader_options(from)?.connect().await?;
    vacuum_into(&mut conn, to).await?;
    conn.close().await?;
    Ok(())
}

/// Reads the whole file at `path` and checks its structure.
pub async fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let mut conn = reader_options(path)?.connect().await?;
    let findings =
        sqlx::query_scalar::<_, String>("pragma integrity_check(20)").fetch_all(&mut conn).await?;
    conn.close().await?;
    if findings == ["ok"] {
        return Ok(());
    }
    Err(StoreError::Unsound { file: path.display().to_string(), findings: findings.join("; ") })
}

pub(super) async fn vacuum_into(conn: &mut SqliteConnection, to: &Path) -> Result<(), StoreError> {
    let text = to.display().to_string();
    sqlx::query("vacuum into ?").bind(text).execute(conn).await?;
    restrict(to)?;
    check_integrity(to).await
}

/// The copy holds all that the database does, so nobody else may read it either.
fn restrict(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::File::open(path)?.sync_all())
        .map_err(|error| sqlx::Error::Io(error).into())
}
