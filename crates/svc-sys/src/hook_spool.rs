//! `hooks.spool`: a file beside the database with events of hooks that the daemon did not get.
//!
//! A line is an event that the daemon did not get, or one whose output was not printed. The next
//! daemon takes them in. The next hook of a session names those without printed output itself: its
//! own event would count as a sign that the output was seen.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::private_file;

/// Member of a line: the client's process.
pub const SPOOLED_PROCESS: &str = "process";
/// Member of a line: the session, if the output was not printed.
pub const SPOOLED_UNPRINTED: &str = "unprinted";

/// Largest file, in bytes; further events are dropped.
const MAX_SPOOL: u64 = 16 * 1024 * 1024;
/// Bytes at the end that a hook reads.
const LATEST: u64 = 64 * 1024;

#[derive(Debug)]
pub struct HookSpool {
    path: PathBuf,
    /// Lines that a daemon has begun to take in.
    taken: PathBuf,
}

impl HookSpool {
    /// The file need not exist.
    pub fn in_home(home: &Path) -> Self {
        Self { path: home.join("hooks.spool"), taken: home.join("hooks.spool.taken") }
    }

    /// Appends and syncs a line, which has no line feed. `false` if the spool is full.
    pub fn append(&self, line: &str) -> io::Result<bool> {
        let file = open_locked(&self.path)?;
        if file.metadata()?.len() + line.len() as u64 > MAX_SPOOL {
            return Ok(false);
        }
        append_line(file, &self.path, line)?;
        Ok(true)
    }

    pub fn latest(&self) -> io::Result<Vec<String>> {
        let mut file = match private_file::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let start = file.metadata()?.len().saturating_sub(LATEST);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // The first line may be incomplete.
        let whole = usize::from(start > 0);
        Ok(String::from_utf8_lossy(&bytes).lines().skip(whole).map(str::to_owned).collect())
    }

    /// Moves the lines into a file of their own, and returns them.
    ///
    /// They stay there until [`Self::remove_taken`], so that the next daemon finds them if this one
    /// is killed meanwhile.
    pub fn take(&self) -> io::Result<Vec<String>> {
        if !self.taken.try_exists()? {
            let file = match private_file::open(&self.path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            file.lock()?;
            fs::rename(&self.path, &self.taken)?;
        }
        // A torn line after a full disk or a power cut leaves the others valid.
        let bytes = read(&self.taken)?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    pub fn remove_taken(&self) -> io::Result<()> {
        match fs::remove_file(&self.taken) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = private_file::append(path)?;
        file.lock()?;
        // It may have been renamed or removed before the lock.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Appends and syncs a line. A torn line before it is ended first, else it
/// would corrupt this one.
fn append_line(mut file: File, path: &Path, line: &str) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        private_file::open(path)?.read_exact_at(&mut last, length - 1)?;
    }
    let end = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{end}{line}\n").as_bytes())?;
    file.sync_data()?;
    if length == 0 { private_file::sync_folder_of(path) } else { Ok(()) }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    private_file::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_lines_stay_until_they_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        assert_eq!(spool.take().unwrap(), Vec::<String>::new());
        assert!(spool.append("1").unwrap() && spool.append("2").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "2"]);
        assert!(spool.append("3").unwrap());
        // The daemon was killed: it takes the same lines again.
        assert_eq!(spool.take().unwrap(), ["1", "2"]);
        spool.remove_taken().unwrap();
        assert_eq!(spool.take().unwrap(), ["3"]);
        spool.remove_taken().unwrap();
        spool.remove_taken().unwrap();
        assert_eq!(spool.take().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn torn_line_takes_no_other_along() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        assert!(spool.append("1").unwrap());
        let torn = "1\n\0\0{\"half";
        fs::write(folder.path().join("hooks.spool"), torn).expect("writes");
        assert!(spool.append("2").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "\0\0{\"half", "2"]);
    }

    #[test]
    fn last_lines_are_read_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        assert_eq!(spool.latest().unwrap(), Vec::<String>::new());
        assert!(spool.append("1").unwrap() && spool.append("2").unwrap());
        assert_eq!(spool.latest().unwrap(), ["1", "2"]);
        let line = "x".repeat(1000);
        assert!((0..100).all(|_| spool.append(&line).unwrap()));
        let latest = spool.latest().unwrap();
        assert_eq!(latest.len(), 65);
        assert!(latest.iter().all(|found| *found == line));
        assert_eq!(spool.take().unwrap().len(), 102);
        assert_eq!(spool.latest().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn many_writers_and_a_taker_lose_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        let mut lines = Vec::new();
        std::thread::scope(|scope| {
            let spool = &spool;
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    scope.spawn(move || {
                        for number in 0..200 {
                            assert!(spool.append(&format!("{writer}-{number}")).unwrap());
                        }
                    })
                })
                .collect();
            while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                lines.extend(spool.take().unwrap());
                spool.remove_taken().unwrap();
            }
        });
        lines.extend(spool.take().unwrap());
        assert_eq!(lines.len(), 800);
    }

    #[test]
    fn full_spool_takes_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        let line = "x".repeat(1024 * 1024 - 1);
        assert_eq!((0..20).filter(|_| spool.append(&line).unwrap()).count(), 16);
    }
}
