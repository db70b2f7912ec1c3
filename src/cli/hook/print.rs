//! What is printed, and whether anybody can have seen it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

/// Writes a line to standard output or standard error: one write, or none.
///
/// # Errors
/// If it was not written, or where nobody reads: what was closed when the program began is `/dev/null` by now.
pub(super) fn whole(to: impl AsFd, line: &str) -> io::Result<()> {
    // Not through the standard library's handle, which takes a closed one for one that takes everything.
    let mut file = File::from(to.as_fd().try_clone_to_owned()?);
    let kind = file.metadata()?;
    let null = kind.file_type().is_char_device()
        && std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == kind.rdev());
    if null {
        return Err(io::Error::other("nobody reads it"));
    }
    file.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_was_not_printed() {
        let (reader, writer) = io::pipe().unwrap();
        whole(&writer, "x").unwrap();
        drop(reader);
        assert!(whole(&writer, "x").is_err());
        assert!(whole(File::options().write(true).open("/dev/null").unwrap(), "x").is_err());
        assert!(whole(File::open("/dev/null").unwrap(), "x").is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        whole(file.as_file(), "x").unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "x\n");
    }
}
