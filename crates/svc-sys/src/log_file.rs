//! The log's file. When it has reached its size it becomes `….1`, that becomes `….2`, and the oldest is removed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
};

use crate::private_file;

/// Size at which a file is put aside, in bytes.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// Files that are kept beside the present one.
const KEPT: usize = 3;

/// Appends to a file that only its owner may read.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// What was written last ends a line. A line is never divided between two files.
    is_line_over: bool,
    max_bytes: u64,
}

impl LogFile {
    /// Goes on with the file that exists.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let file = private_file::append(&path)?;
        let len = file.metadata()?.len();
        Ok(Self { path, file, len, is_line_over: true, max_bytes: MAX_BYTES })
    }

    /// The name of the file that was put aside `age` rotations ago.
    fn aged(&self, age: usize) -> PathBuf {
        let mut name: OsString = self.path.clone().into();
        if age > 0 {
            name.push(format!(".{age}"));
        }
        name.into()
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (0..KEPT).rev() {
            match fs::rename(self.aged(age), self.aged(age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = private_file::append(&self.path)?;
        self.len = 0;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.is_line_over && self.len >= self.max_bytes {
            // A log that cannot be put aside grows: better than one that ends.
            self.rotate().ok();
        }
        let written = self.file.write(text)?;
        self.len += written as u64;
        if let Some(last) = text[..written].last() {
            self.is_line_over = *last == b'\n';
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_full_file_is_put_aside_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.log");
        fs::write(&path, "before\n").unwrap();
        let mut log = LogFile { max_bytes: 10, ..LogFile::open(path.clone()).unwrap() };
        for number in 0..10 {
            writeln!(log, "line {number}").unwrap();
        }
        let read = |age| fs::read_to_string(log.aged(age)).unwrap();
        assert_eq!(read(0), "line 9\n");
        assert_eq!(read(1), "line 7\nline 8\n");
        assert_eq!(read(2), "line 5\nline 6\n");
        assert_eq!(read(3), "line 3\nline 4\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_cannot_be_put_aside_is_written_to_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.log");
        // A file cannot replace a folder.
        fs::write(folder.path().join("svc.log.2"), "").unwrap();
        fs::create_dir_all(folder.path().join("svc.log.3/occupied")).unwrap();
        let mut log = LogFile { max_bytes: 1, ..LogFile::open(path.clone()).unwrap() };
        writeln!(log, "one").unwrap();
        writeln!(log, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }
}
