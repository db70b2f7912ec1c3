//! What hooks could not tell the daemon, because it was away: one line of JSON for each event, in a file beside the
//! database, until the daemon takes them in. So nothing that happened in a session is lost with a daemon that is not there.
//!
//! Beside it, in `hooks.lost`: which hooks could not print what the daemon may have answered. The next hook of the session
//! says so before its event can be taken for a sign that the answer was seen; the daemon looks for itself now and then.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private_file;

/// Most bytes that wait. Whoever does without the daemon for so long does without it.
const MOST: u64 = 16 * 1024 * 1024;
/// Most bytes of `hooks.lost`, which each hook reads if it is there: some 500 lines. Then it begins anew.
const MOST_LOST: u64 = 64 * 1024;

/// A hook whose answer nobody saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    /// The client's session.
    pub(crate) session: String,
    /// The id of the event.
    pub(crate) id: String,
}

fn waiting(home: &Path) -> PathBuf {
    home.join("hooks.spool")
}

fn taken(home: &Path) -> PathBuf {
    home.join("hooks.spool.taken")
}

fn lost_at(home: &Path) -> PathBuf {
    home.join("hooks.lost")
}

/// Adds a line, which has no end of line in it. `false` if too much waits already.
pub(crate) fn put(home: &Path, line: &str) -> io::Result<bool> {
    let mut file = open_locked(&waiting(home))?;
    if file.metadata()?.len() + line.len() as u64 > MOST {
        return Ok(false);
    }
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(true)
}

/// Opens a file for appending, and has it to itself.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = private_file::append(path)?;
        file.lock()?;
        // It may have been taken between being opened and being locked.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Notes that nobody saw what the daemon may have answered to a hook.
pub(crate) fn put_lost(home: &Path, lost: &Lost) -> io::Result<()> {
    let line = serde_json::to_string(lost)?;
    if line.len() as u64 >= MOST_LOST {
        return Err(io::Error::other("the session's id is too long"));
    }
    let mut file = open_locked(&lost_at(home))?;
    if file.metadata()?.len() + line.len() as u64 > MOST_LOST {
        file.set_len(0)?;
    }
    file.write_all(format!("{line}\n").as_bytes())
}

/// What nobody saw, as it stands there: for [`Lost`] and for [`forget_lost`].
pub(crate) fn read_lost(home: &Path) -> io::Result<String> {
    match fs::read(lost_at(home)) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The lines that make sense, in order.
pub(crate) fn parse_lost(text: &str) -> impl Iterator<Item = Lost> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Says that the daemon knows all of this, unless more has come since.
pub(crate) fn forget_lost(home: &Path, known: &str) -> io::Result<()> {
    let path = lost_at(home);
    let _locked = open_locked(&path)?;
    if read_lost(home)? == known { fs::remove_file(&path) } else { Ok(()) }
}

/// Takes what waits out of the way of those who add to it: the lines, in order. They stay in a file until
/// [`forget`], so that a daemon that is killed meanwhile finds them again.
pub(crate) fn take(home: &Path) -> io::Result<Vec<String>> {
    let taken = taken(home);
    if !taken.try_exists()? {
        let path = waiting(home);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.lock()?;
        fs::rename(&path, &taken)?;
    }
    // A line may be torn if a disk was full; the others count.
    let bytes = fs::read(&taken)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// Says that what was taken is done with.
pub(crate) fn forget(home: &Path) -> io::Result<()> {
    match fs::remove_file(taken(home)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_once_and_survive_their_taker() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path();
        assert_eq!(take(home).unwrap(), Vec::<String>::new());
        assert!(put(home, "1").unwrap() && put(home, "2").unwrap());
        assert_eq!(take(home).unwrap(), ["1", "2"]);
        assert!(put(home, "3").unwrap());
        // It was killed: the same again.
        assert_eq!(take(home).unwrap(), ["1", "2"]);
        forget(home).unwrap();
        assert_eq!(take(home).unwrap(), ["3"]);
        forget(home).unwrap();
        forget(home).unwrap();
        assert_eq!(take(home).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_nobody_saw_is_there_until_all_of_it_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path();
        let lost = |id: &str| Lost { session: "a\n\"b".to_owned(), id: id.to_owned() };
        let all = || parse_lost(&read_lost(home).unwrap()).collect::<Vec<_>>();
        assert_eq!(all(), []);
        put_lost(home, &lost("1")).unwrap();
        let known = read_lost(home).unwrap();
        put_lost(home, &lost("2")).unwrap();
        forget_lost(home, &known).unwrap();
        assert_eq!(all(), [lost("1"), lost("2")]);
        forget_lost(home, &read_lost(home).unwrap()).unwrap();
        assert!(!home.join("hooks.lost").exists());
        for n in 0..5_000 {
            put_lost(home, &lost(&n.to_string())).unwrap();
        }
        assert!(fs::metadata(home.join("hooks.lost")).unwrap().len() <= MOST_LOST + 1);
        assert_eq!(all().last(), Some(&lost("4999")));
        assert!(put_lost(home, &lost(&"x".repeat(100_000))).is_err());
    }

    #[test]
    fn many_writers_and_a_taker_lose_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path();
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    scope.spawn(move || {
                        for number in 0..200 {
                            assert!(put(home, &format!("{writer}-{number}")).unwrap());
                        }
                    })
                })
                .collect();
            while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                found.extend(take(home).unwrap());
                forget(home).unwrap();
            }
        });
        found.extend(take(home).unwrap());
        assert_eq!(found.len(), 800);
    }

    #[test]
    fn there_is_an_end_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let line = "x".repeat(1024 * 1024 - 1);
        let put = || put(folder.path(), &line).unwrap();
        assert_eq!((0..20).filter(|_| put()).count(), 16);
    }
}
