//! Files of lines that outlive their writers. The spool of a process has that process as its only
//! writer; others read it, also after the process was killed. [`HookSpool`] has many writers.
//!
//! A single writer creates its file with [`create_new_held`](crate::private_file::create_new_held)
//! and so holds a lock on it as long as the writer lives. A line counts once its line feed is
//! written. Lines contain no zero bytes: those mark blocks that had not reached the disk at a power
//! cut.

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memchr::memmem::Finder;

use crate::backoff::Backoff;
use crate::lines::{Line, LineSplitter};
use crate::private_file::{self, if_there};

const BLOCK: usize = 64 * 1024;

/// Opens the file of a writer that has ended and takes its lock: exclusive if `alone`, else shared
/// with other readers. `None` while the writer or an exclusive reader holds the lock. `NotFound` if
/// the file does not exist.
pub fn take_over(path: &Path, alone: bool) -> io::Result<Option<File>> {
    let file = private_file::open(path)?;
    let locked = if alone { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whole lines from `at` up to `end`: as many as fit into `size` bytes, but at least one if there
/// is any.
pub fn whole_lines(file: &File, at: u64, end: u64, size: usize) -> io::Result<Vec<u8>> {
    let available = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
    let mut size = size;
    loop {
        let mut block = vec![0; size.min(available)];
        file.read_exact_at(&mut block, at)?;
        if let Some(last) = memchr::memrchr(b'\n', &block) {
            block.truncate(last + 1);
            return Ok(block);
        }
        if block.len() == available {
            return Ok(Vec::new());
        }
        // The line is longer than `size`.
        size = size.saturating_mul(2);
    }
}

/// The end of the last whole line after `start`, or `start`. A crash leaves an incomplete line, and
/// a power cut leaves zero bytes.
pub fn last_line_end(file: &File, start: u64) -> io::Result<u64> {
    let mut end = first_hole(file, start)?;
    let mut block = vec![0; BLOCK];
    while end > start {
        let size = usize::try_from(end - start).unwrap_or(usize::MAX).min(BLOCK);
        let at = end - size as u64;
        file.read_exact_at(&mut block[..size], at)?;
        if let Some(last) = memchr::memrchr(b'\n', &block[..size]) {
            return Ok(at + last as u64 + 1);
        }
        end = at;
    }
    Ok(start)
}

/// The first zero byte, or the end of the file.
fn first_hole(file: &File, start: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut block = vec![0; BLOCK];
    let mut at = start;
    while at < length {
        let size = usize::try_from(length - at).unwrap_or(usize::MAX).min(BLOCK);
        file.read_exact_at(&mut block[..size], at)?;
        if let Some(hole) = memchr::memchr(0, &block[..size]) {
            return Ok(at + hole as u64);
        }
        at += size as u64;
    }
    Ok(length.max(start))
}

/// Member of a line: the client's process.
pub const SPOOLED_PROCESS: &str = "process";
/// Member of a line: the session, if the hook's output was not printed.
pub const SPOOLED_UNPRINTED: &str = "unprinted";

/// Largest size of both files together, in bytes; further events are dropped.
const MAX_SPOOL: usize = 16 * 1024 * 1024;

/// `hooks.spool`: a file beside the database. It has one line for each hook event that the daemon
/// did not receive, or whose output was not printed.
///
/// The next daemon takes the events in. The next hook of a session reports those without printed
/// output itself, because its own event would count as a sign that the output was seen.
#[derive(Debug, Clone)]
pub struct HookSpool {
    path: PathBuf,
    /// File of lines that a daemon has begun to take in.
    taken: PathBuf,
}

impl HookSpool {
    /// The file need not exist.
    pub fn in_home(home: &Path) -> Self {
        Self { path: home.join("hooks.spool"), taken: home.join("hooks.spool.taken") }
    }

    /// Appends and syncs a line without a line feed. Returns `false` if the spool is full.
    pub fn append(&self, line: &str) -> io::Result<bool> {
        Ok(self.append_all(&[line])? == 1)
    }

    /// Appends lines without line feeds by one write and one sync. Returns how many there was room
    /// for.
    pub fn append_all<L: AsRef<str>>(&self, lines: &[L]) -> io::Result<usize> {
        let file = open_locked(&self.path)?;
        let taken = if_there(fs::metadata(&self.taken))?.map_or(0, |taken| taken.len());
        let length = file.metadata()?.len() + taken;
        let (mut text, mut count) = (String::new(), 0);
        for line in lines {
            let line = line.as_ref();
            if length + (text.len() + line.len()) as u64 > MAX_SPOOL as u64 {
                break;
            }
            text.push_str(line);
            text.push('\n');
            count += 1;
        }
        if count > 0 {
            append_text(file, &self.path, &text)?;
        }
        Ok(count)
    }

    /// What `read` makes of the lines that contain `text`, also of those that a daemon has begun to
    /// take in: the last `most`, in order. One line at a time is in memory.
    pub fn find_last<T>(
        &self,
        text: &str,
        most: usize,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<VecDeque<T>> {
        let text = Finder::new(text);
        // In this order, so that lines which are moved meanwhile are read twice rather than never.
        let appended = find_last_in(&self.path, &text, most, &read)?;
        let mut found = find_last_in(&self.taken, &text, most, &read)?;
        found.extend(appended);
        found.drain(..found.len().saturating_sub(most));
        Ok(found)
    }

    /// Moves the lines into a file of their own, and returns them.
    ///
    /// The lines stay in that file until [`Self::end_take`], so the next daemon finds them if this
    /// one is killed first.
    pub fn take(&self) -> io::Result<Vec<String>> {
        if !self.taken.try_exists()? {
            let Some(file) = if_there(private_file::open(&self.path))? else {
                return Ok(Vec::new());
            };
            lock(&file, Instant::now() + LOCK_PATIENCE)?;
            fs::rename(&self.path, &self.taken)?;
        }
        // An incomplete line after a full disk or a power cut does not affect the others.
        let mut bytes = Vec::new();
        private_file::open(&self.taken)?.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }

    /// Removes the lines that were taken, except `left`: those are the first of the next
    /// [`Self::take`]. If the daemon is killed meanwhile, that has some of them twice.
    pub fn end_take<L: AsRef<str>>(&self, left: &[L]) -> io::Result<()> {
        if !left.is_empty() {
            let _lock = open_locked(&self.path)?;
            let mut lines = String::new();
            for line in left {
                lines.push_str(line.as_ref());
                lines.push('\n');
            }
            let mut lines = lines.into_bytes();
            private_file::open(&self.path)?.read_to_end(&mut lines)?;
            private_file::replace(&self.path, &lines)?;
        }
        if_there(fs::remove_file(&self.taken)).map(drop)
    }
}

fn find_last_in<T>(
    path: &Path,
    text: &Finder<'_>,
    most: usize,
    read: &impl Fn(&[u8]) -> Option<T>,
) -> io::Result<VecDeque<T>> {
    let mut found = VecDeque::new();
    let Some(mut file) = if_there(private_file::open(path))? else { return Ok(found) };
    let mut take = |line: Line<'_>| {
        if text.find(line.bytes).is_some() {
            found.extend(read(line.bytes));
            found.drain(..found.len().saturating_sub(most));
        }
    };
    let (mut lines, mut block) = (LineSplitter::dropping_excess(MAX_SPOOL), vec![0; BLOCK]);
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            break;
        }
        lines.push(&block[..count], &mut take);
    }
    lines.finish(&mut take);
    Ok(found)
}

/// How long a lock is waited for. A person may have stopped the hook that holds it, and a client
/// waits for its hook.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two attempts at a lock. A writer holds it for one sync of the disk.
const LOCK_RETRY: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(5));

/// Takes the lock by trying until the deadline: nothing could end a wait in the kernel, so a waiter
/// that gives up would leave a thread behind.
fn lock(file: &File, deadline: Instant) -> io::Result<()> {
    let mut attempts = 0;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let text = "its lock is held by another hook";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_RETRY.wait(attempts)),
        }
        attempts += 1;
    }
}

fn open_locked(path: &Path) -> io::Result<File> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        let file = private_file::append(path)?;
        lock(&file, deadline)?;
        // The file may have been renamed or removed before the lock was taken.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
}

/// Appends and syncs whole lines. If the file ends with an incomplete line, a line feed is written
/// first, so that it does not corrupt the next one.
fn append_text(mut file: File, path: &Path, text: &str) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        private_file::open(path)?.read_exact_at(&mut last, length - 1)?;
    }
    let end = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{end}{text}").as_bytes())?;
    file.sync_data()?;
    if length == 0 { private_file::sync_folder_of(path) } else { Ok(()) }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spool_is_taken_over_when_its_writer_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("spool");
        assert_eq!(take_over(&path, true).unwrap_err().kind(), io::ErrorKind::NotFound);
        let writer = private_file::create_new_held(&path, b"1\n").unwrap();
        assert!(take_over(&path, true).unwrap().is_none());
        assert!(take_over(&path, false).unwrap().is_none());
        drop(writer);
        let readers = [(); 2].map(|()| take_over(&path, false).unwrap());
        assert!(readers.iter().all(Option::is_some));
        assert!(take_over(&path, true).unwrap().is_none());
        drop(readers);
        assert!(take_over(&path, true).unwrap().is_some());
    }

    #[test]
    fn whole_lines_within_the_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("spool");
        let file = private_file::create_new_held(&path, b"1\n22\nlong line\ntorn").unwrap();
        for (at, end, size, expected) in [
            (0, 15, 5, "1\n22\n"),
            (0, 15, 4, "1\n"),
            (0, 15, 64, "1\n22\nlong line\n"),
            (5, 15, 1, "long line\n"),
            (5, 14, 1, ""),
            (15, 19, 64, ""),
            (19, 19, 64, ""),
        ] {
            let lines = whole_lines(&file, at, end, size).unwrap();
            assert_eq!(String::from_utf8(lines).unwrap(), expected, "{at} {end} {size}");
        }
        whole_lines(&file, 15, 99, 64).expect_err("the file is shorter");
    }

    #[test]
    fn last_whole_line_stands_before_what_a_crash_or_a_power_cut_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let long = "x".repeat(2 * BLOCK);
        for (number, (text, start, expected)) in [
            ("h\n1\n2 cut o", 2, 4),
            ("h\n1\n\0\0\n3\n", 2, 4),
            ("h\n", 2, 2),
            ("h\ntorn", 2, 2),
            (&*format!("h\n1\n{long}"), 2, 4),
            (&*format!("h\n{long}\n"), 2, 2 * BLOCK as u64 + 3),
        ]
        .into_iter()
        .enumerate()
        {
            let path = folder.path().join(number.to_string());
            let file = private_file::create_new_held(&path, text.as_bytes()).unwrap();
            assert_eq!(last_line_end(&file, start).unwrap(), expected, "{number}");
        }
    }

    fn end_take(spool: &HookSpool, left: &[&str]) {
        assert_eq!(spool.end_take(left).map_err(|error| error.kind()), Ok(()));
    }

    fn hook_spool() -> (tempfile::TempDir, HookSpool) {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(folder.path());
        (folder, spool)
    }

    #[test]
    fn taken_lines_stay_until_they_are_removed() {
        let (_folder, spool) = hook_spool();
        assert_eq!(spool.take().unwrap(), Vec::<String>::new());
        assert!(spool.append("1").unwrap() && spool.append("2").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "2"]);
        assert!(spool.append("3").unwrap());
        // The daemon was killed before it removed the lines, so the next one takes them again.
        assert_eq!(spool.take().unwrap(), ["1", "2"]);
        end_take(&spool, &[]);
        assert_eq!(spool.take().unwrap(), ["3"]);
        end_take(&spool, &[]);
        end_take(&spool, &[]);
        assert_eq!(spool.take().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn lines_that_are_left_come_first_in_the_next_take() {
        let (folder, spool) = hook_spool();
        assert_eq!(spool.append_all(&["1", "2", "3"]).unwrap(), 3);
        assert_eq!(spool.take().unwrap(), ["1", "2", "3"]);
        assert!(spool.append("4").unwrap());
        end_take(&spool, &["1", "3"]);
        assert!(spool.append("5").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "3", "4", "5"]);
        // Nothing was appended meanwhile.
        end_take(&spool, &["3"]);
        assert_eq!(spool.take().unwrap(), ["3"]);
        end_take(&spool, &[]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn torn_line_takes_no_other_along() {
        let (folder, spool) = hook_spool();
        assert!(spool.append("1").unwrap());
        let torn = "1\n\0\0{\"half";
        fs::write(folder.path().join("hooks.spool"), torn).expect("writes");
        assert!(spool.append("2").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "\0\0{\"half", "2"]);
    }

    #[test]
    fn lines_are_found_wherever_they_stand() {
        let (_folder, spool) = hook_spool();
        let notes = |most| {
            let read = |line: &[u8]| String::from_utf8(line.to_vec()).ok();
            spool.find_last("note", most, read).unwrap()
        };
        assert!(notes(9).is_empty());
        assert_eq!(spool.append_all(&["note 1", "other", "note 2"]).unwrap(), 3);
        assert_eq!(notes(9), ["note 1", "note 2"]);
        // Other sessions' events follow.
        let line = "x".repeat(300_000);
        assert!((0..10).all(|_| spool.append(&line).unwrap()));
        assert_eq!(notes(9), ["note 1", "note 2"]);
        assert_eq!(notes(1), ["note 2"]);
        assert_eq!(spool.take().unwrap().len(), 13);
        // A hook that runs now must find its note: the daemon may not have read it yet.
        assert_eq!(notes(9), ["note 1", "note 2"]);
        assert!(spool.append("note 3").unwrap());
        assert_eq!(notes(9), ["note 1", "note 2", "note 3"]);
        assert_eq!(notes(2), ["note 2", "note 3"]);
        end_take(&spool, &[]);
        assert_eq!(notes(9), ["note 3"]);
    }

    /// Tries again when other threads had the lock at each attempt, as a slow disk makes likely.
    fn patiently<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match work() {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                done => return done,
            }
        }
    }

    #[test]
    fn many_writers_and_a_taker_lose_nothing() {
        let (_folder, spool) = hook_spool();
        let mut lines = Vec::new();
        thread::scope(|scope| {
            let spool = &spool;
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    scope.spawn(move || {
                        for number in 0..200 {
                            let line = format!("{writer}-{number}");
                            assert!(patiently(|| spool.append(&line)).unwrap());
                        }
                    })
                })
                .collect();
            while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
                lines.extend(patiently(|| spool.take()).unwrap());
                end_take(spool, &[]);
            }
        });
        lines.extend(spool.take().unwrap());
        assert_eq!(lines.len(), 800);
    }

    /// The lines of the kernel's list with those that wait for the lock of a file.
    fn waiters(file: &File) -> Vec<String> {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let inode = file.metadata().map(|meta| format!(":{} ", meta.ino())).unwrap_or_default();
        let waiting = locks.lines().filter(|line| line.contains("->") && line.contains(&inode));
        waiting.map(str::to_owned).collect()
    }

    #[test]
    fn stopped_writer_holds_up_nobody_for_long() {
        let (folder, spool) = hook_spool();
        assert!(spool.append("1").unwrap());
        let stopped = private_file::open(&folder.path().join("hooks.spool")).unwrap();
        stopped.lock().unwrap();
        assert_eq!(spool.append("2").unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(spool.take().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(waiters(&stopped), Vec::<String>::new(), "who gave up waits no longer");
        drop(stopped);
        assert!(spool.append("3").unwrap());
        assert_eq!(spool.take().unwrap(), ["1", "3"]);
    }

    #[test]
    fn full_spool_takes_no_more() {
        let (_folder, spool) = hook_spool();
        let line = "x".repeat(1024 * 1024 - 1);
        assert_eq!((0..15).filter(|_| spool.append(&line).unwrap()).count(), 15);
        assert_eq!(spool.append_all(&[&*line, "one more"]).unwrap(), 1);
        assert!(!spool.append("one more").unwrap());
        assert_eq!(spool.take().unwrap().len(), 16);
        // Lines that may be put back keep their room.
        assert!(!spool.append("one more").unwrap());
        end_take(&spool, &[&line]);
        assert!(spool.append("one more").unwrap());
    }
}
