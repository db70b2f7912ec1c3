//! The disk below a folder.

use std::path::Path;

/// The nearest folder that exists: the data folder may not exist yet.
pub fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// Bytes that this user can still write there; `None` if the system does not tell.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(existing(path)).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_folder_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(existing(&folder.path().join("a/b")), folder.path());
    }
}
