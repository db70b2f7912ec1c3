//! Prints an answer, and says whether anybody can have read it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

/// Writes a line to standard output or standard error: one write, or none.
///
/// # Errors
/// If it was not written, or if nobody reads: an output that was closed when the program began is
/// `/dev/null` by now.
pub(super) fn print_line(to: impl AsFd, line: &str) -> io::Result<()> {
    // The standard library's handle reports success for a closed output.
    let mut file = File::from(to.as_fd().try_clone_to_owned()?);
    let metadata = file.metadata()?;
    let is_null = metadata.file_type().is_char_device()
        && std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == metadata.rdev());
    if is_null {
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
        print_line(&writer, "x").unwrap();
        drop(reader);
        assert!(print_line(&writer, "x").is_err());
        assert!(print_line(File::options().write(true).open("/dev/null").unwrap(), "x").is_err());
        assert!(print_line(File::open("/dev/null").unwrap(), "x").is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        print_line(file.as_file(), "x").unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "x\n");
    }
}
