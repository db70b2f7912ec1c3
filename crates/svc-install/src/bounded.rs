//! Files that others may have written: read so that none of them holds up a thread, and none is larger in memory than its bound.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Largest file that is read, in bytes. Some clients keep a history in theirs.
const MOST: u64 = 64 * 1024 * 1024;

/// Reads a regular file. What is none, such as a pipe or a device, and what is larger than the bound is refused, without waiting
/// for it.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, MOST)
}

/// Reads a regular file that is text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "is not UTF-8"))
}

fn read_within(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let irregular = || io::Error::other("is no regular file");
    // To open a device may do something.
    if !std::fs::metadata(path)?.is_file() {
        return Err(irregular());
    }
    // Another may stand there by now, and to open a pipe must not wait for its other end.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(irregular());
    }
    let mut bytes = Vec::new();
    take_all(file, most, &mut bytes)?;
    Ok(bytes)
}

fn take_all(file: File, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let too_large = || io::Error::other(format!("is larger than {} KiB", most / 1024));
    if file.metadata()?.len() > most {
        return Err(too_large());
    }
    // It may grow meanwhile.
    file.take(most + 1).read_to_end(bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_regular_file_or_too_large_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("text"), "x").expect("is written");
        File::create(at("sparse")).and_then(|file| file.set_len(8 << 30)).expect("is made");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("is made");
        std::os::unix::fs::symlink("/dev/zero", at("zero")).expect("is linked");
        assert_eq!(read_text(&at("text")).expect("is read"), "x");
        assert_eq!(read(&at("none")).expect_err("is none").kind(), ErrorKind::NotFound);
        for name in ["sparse", "pipe", "zero", "."] {
            read(&at(name)).expect_err(name);
        }
        assert_eq!(read_within(&at("text"), 1).expect("fits"), b"x");
        read_within(&at("text"), 0).expect_err("is larger");
    }
}
