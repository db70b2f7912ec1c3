//! Two files beside the database through which hooks and the daemon speak when they cannot reach each other.
//!
//! `hooks.spool` has the events that the daemon did not get, one line of JSON for each, until the daemon has taken them
//! in. `hooks.lost` has the events whose answers were not printed. The next hook of the session names them to the daemon
//! before its own event can be taken for a sign that the answers were seen; the daemon also reads the file now and then.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private_file;

/// The member of a line in `hooks.spool` that names the client's process.
pub const SPOOLED_PROCESS: &str = "process";

/// Largest `hooks.spool`, in bytes. Events beyond it are dropped.
const MAX_SPOOL: u64 = 16 * 1024 * 1024;
/// Largest `hooks.lost`, in bytes: some 500 lines. Beyond it the file begins anew, as each hook reads all of it.
const MAX_UNPRINTED: u64 = 64 * 1024;

/// `hooks.spool`: events for a daemon that comes later.
#[derive(Debug)]
pub struct HookSpool {
    path: PathBuf,
    /// The lines that a daemon has begun to take in.
    taken: PathBuf,
}

/// `hooks.lost`: events whose answers were not printed.
#[derive(Debug)]
pub struct UnprintedAnswers(PathBuf);

/// An event whose answer was not printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnprintedAnswer {
    /// The client's session.
    pub session: String,
    /// The id of the event.
    pub id: String,
}

/// The text of `hooks.lost` at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnprintedText(String);

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

impl UnprintedAnswers {
    /// The file of a data folder. It need not exist.
    pub fn in_home(home: &Path) -> Self {
        Self(home.join("hooks.lost"))
    }

    /// Adds an event.
    pub fn append(&self, answer: &UnprintedAnswer) -> io::Result<()> {
        let line = serde_json::to_string(answer)?;
        if line.len() as u64 >= MAX_UNPRINTED {
            return Err(io::Error::other("the session's id is too long"));
        }
        let file = open_locked(&self.0)?;
        if file.metadata()?.len() + line.len() as u64 > MAX_UNPRINTED {
            file.set_len(0)?;
        }
        append_line(file, &self.0, &line)
    }

    /// What the file has now; nothing if there is no file.
    pub fn read(&self) -> io::Result<UnprintedText> {
        match read(&self.0) {
            Ok(bytes) => Ok(UnprintedText(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UnprintedText::default()),
            Err(error) => Err(error),
        }
    }

    /// Removes the file, unless something was added after `read`.
    pub fn remove(&self, read: &UnprintedText) -> io::Result<()> {
        let _locked = open_locked(&self.0)?;
        if self.read()? == *read { fs::remove_file(&self.0) } else { Ok(()) }
    }
}

impl UnprintedText {
    /// The events of every line that can be read, in order.
    pub fn answers(&self) -> impl Iterator<Item = UnprintedAnswer> {
        self.0.lines().filter_map(|line| serde_json::from_str(line).ok())
    }

    /// Whether the file was empty or not there.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
    fn unprinted_answers_are_there_until_all_of_them_are_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = UnprintedAnswers::in_home(folder.path());
        let answer = |id: &str| UnprintedAnswer { session: "a\n\"b".to_owned(), id: id.to_owned() };
        let all = || file.read().unwrap().answers().collect::<Vec<_>>();
        assert_eq!(all(), []);
        file.append(&answer("1")).unwrap();
        let read = file.read().unwrap();
        file.append(&answer("2")).unwrap();
        file.remove(&read).unwrap();
        assert_eq!(all(), [answer("1"), answer("2")]);
        file.remove(&file.read().unwrap()).unwrap();
        let path = folder.path().join("hooks.lost");
        assert!(!path.exists());
        for n in 0..5_000 {
            file.append(&answer(&n.to_string())).unwrap();
        }
        assert!(fs::metadata(path).unwrap().len() <= MAX_UNPRINTED + 1);
        assert_eq!(all().last(), Some(&answer("4999")));
        assert!(file.append(&answer(&"x".repeat(100_000))).is_err());
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
