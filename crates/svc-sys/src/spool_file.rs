//! A file of lines that one process appends to and others read, also after that process was killed.
//!
//! The writer creates the file by
//! [`create_new_held`](crate::private_file::create_new_held) and so holds a lock on
//! it as long as it lives. A line counts once it has its line feed. Lines have no zero bytes: those
//! are blocks that the disk did not have at a power cut. A file with many writers is a
//! `hook_spool`.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::private_file;

const BLOCK: usize = 64 * 1024;

/// Opens the file of a writer that has ended, and takes its lock: exclusive, or shared with other
/// readers. `None` while the writer, or an exclusive reader, holds it. `NotFound` if there is no
/// file.
pub fn take_over(path: &Path, alone: bool) -> io::Result<Option<File>> {
    let file = private_file::open(path)?;
    let locked = if alone { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whole lines of the bytes from `at` to `end`: as many as fit into `size` bytes, but at least one
/// if there is one.
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
        // A line longer than `size`.
        size = size.saturating_mul(2);
    }
}

/// The end of the last whole line after `start`, or `start`. A crash leaves a torn line, a power
/// cut zero bytes.
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
}
