//! What hooks could not tell the daemon, because it was away: one line of JSON for each event, in a file beside the
//! database, until the daemon takes them in. So nothing that happened in a session is lost with a daemon that is not there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::private_file;

/// Most bytes that wait. Whoever does without the daemon for so long does without it.
const MOST: u64 = 16 * 1024 * 1024;

fn waiting(home: &Path) -> PathBuf {
    home.join("hooks.spool")
}

fn taken(home: &Path) -> PathBuf {
    home.join("hooks.spool.taken")
}

/// Adds a line, which has no end of line in it. `false` if too much waits already.
pub(crate) fn put(home: &Path, line: &str) -> io::Result<bool> {
    let path = waiting(home);
    loop {
        let mut file = private_file::append(&path)?;
        file.lock()?;
        // It may have been taken between being opened and being locked.
        if !is_at(&file, &path) {
            continue;
        }
        if file.metadata()?.len() + line.len() as u64 > MOST {
            return Ok(false);
        }
        file.write_all(format!("{line}\n").as_bytes())?;
        return Ok(true);
    }
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
