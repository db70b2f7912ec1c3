//! `hooks.spool`: a file beside the database in which hooks leave what the daemon did not hear.
//!
//! A line is an event that the daemon did not get, or one whose answer was not printed; the daemon takes them in when it is there.
//! The next hook of a session names those without a printed answer itself, as its own event would be taken for a sign that the
//! answers were seen.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::private_file;

/// The member of a line in `hooks.spool` that names the client's process.
pub const SPOOLED_PROCESS: &str = "process";
/// The member of a line that names the session, if the answer was not printed.
pub const SPOOLED_UNPRINTED: &str = "unprinted";

/// Largest `hooks.spool`, in bytes. Events beyond it are dropped.
const MAX_SPOOL: u64 = 16 * 1024 * 1024;
/// How much of the end of `hooks.spool` a hook looks at, in bytes.
const LATEST: u64 = 64 * 1024;

/// `hooks.spool`: events for a daemon that comes later.
#[derive(Debug)]
pub struct HookSpool {
    path: PathBuf,
    /// The lines that a daemon has begun to take in.
    taken: PathBuf,
}

impl HookSpool {
    /// The spool of a data folder. The file need not exist.
    pub fn in_home(home: &Path) -> Self {
        Self { path: home.join("hooks.spool"), taken: home.join("hooks.spool.taken") }
    }

    /// Adds a line, which has no line feed in it, and returns when the disk has it. `false` if the spool is full.
    pub fn append(&self, line: &str) -> io::Result<bool> {
        let file = open_locked(&self.path)?;
        if file.metadata()?.len() + line.len() as u64 > MAX_SPOOL {
            return Ok(false);
        }
        append_line(file, &self.path, line)?;
        Ok(true)
    }

    /// The last lines, in order; none if there is no file.
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
        // The first line may lack its beginning.
        let whole = usize::from(start > 0);
        Ok(String::from_utf8_lossy(&bytes).lines().skip(whole).map(str::to_owned).collect())
    }

    /// Takes the lines, in order, out of the way of those who append.
    ///
    /// They stay in a file of their own until [`Self::remove_taken`], so that the next daemon finds them if this one is
    /// killed meanwhile.
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
        // A full disk or a power cut may have torn a line; the others count.
        let bytes = read(&self.taken)?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    /// Removes the lines that were taken.
    pub fn remove_taken(&self) -> io::Result<()> {
        match fs::remove_file(&self.taken) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Opens a file for appending, under an exclusive lock.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = private_file::append(path)?;
        file.lock()?;
        // The file may have been renamed or removed between being opened and being locked.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Appends a line to the file at `path`, and returns when the disk has it. What a power cut or a full disk left of the line before
/// gets an end: else it would take this one along.
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
    fn lines_are_taken_once_and_survive_their_taker() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        assert_eq!(spool.take().unwrap(), Vec::<String>::new());
        assert!(spool.append("1").unwrap() && spool.append("2").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "2"]);
        assert!(spool.append("3").unwrap());
        // The daemon was killed: the same again.
        assert_eq!(spool.take().unwrap(), ["1", "2"]);
        spool.remove_taken().unwrap();
        assert_eq!(spool.take().unwrap(), ["3"]);
        spool.remove_taken().unwrap();
        spool.remove_taken().unwrap();
        assert_eq!(spool.take().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_torn_line_takes_no_other_along() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        assert!(spool.append("1").unwrap());
        let torn = "1\n\0\0{\"half";
        fs::write(folder.path().join("hooks.spool"), torn).expect("writes");
        assert!(spool.append("2").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "\0\0{\"half", "2"]);
    }

    #[test]
    fn the_last_lines_are_read_whole() {
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
    fn a_full_spool_takes_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        let line = "x".repeat(1024 * 1024 - 1);
        assert_eq!((0..20).filter(|_| spool.append(&line).unwrap()).count(), 16);
    }
}
