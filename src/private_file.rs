//! Files that hold secrets: mode 0600, never half written.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Creates a file that must not exist yet.
pub(crate) fn create_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = options().create_new(true).open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Replaces a file atomically: a reader sees the old one or the new one, also after a power cut.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace_then(path, contents, File::sync_all)?;
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Replaces a file atomically without waiting for the disk, for a file that means nothing after a power cut.
pub(crate) fn replace_fleeting(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace_then(path, contents, |_| Ok(()))
}

fn replace_then(
    path: &Path,
    contents: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = options()
        .create(true)
        .truncate(true)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(contents)?;
            sync(&file)
        })
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        std::fs::remove_file(&temporary).ok();
    }
    written
}

/// Opens a file for appending, creating it with mode 0600.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    options().append(true).create(true).open(path)
}

/// Creates a folder with mode 0700, and its parents. A folder that exists is left as it is.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_replaced_file_is_private_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "old").expect("writes");
        replace(&path, b"new").expect("replaces");
        let mode = std::fs::metadata(&path).expect("exists").permissions().mode();
        assert_eq!((std::fs::read(&path).expect("reads"), mode & 0o777), (b"new".to_vec(), 0o600));
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 1);
        assert_eq!(
            create_new(&path, b"x").expect_err("exists").kind(),
            io::ErrorKind::AlreadyExists
        );
    }
}
