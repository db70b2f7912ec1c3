//! Reads files that others may have written, such as those of a repository: no pipe blocks a
//! thread, and no file takes more memory than its bound. Settings, secrets and documents are read
//! through this module.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Largest file of a client, in bytes. Some clients keep a history in theirs.
pub const CLIENT_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Reads a regular file of at most `most` bytes; follows links. `None` if it does not exist.
/// Refuses a larger file, and pipes and devices without blocking.
pub fn read_text(path: &Path, most: u64) -> io::Result<Option<String>> {
    read(path, most)?.map(text_of).transpose()
}

/// As [`read_text`], for a file that need not be UTF-8.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    match open_regular(path) {
        Ok(file) => read_open(file, most).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

pub fn read_open(file: impl io::Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The file may grow meanwhile, and some files of the system report no length.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("is larger than {} KiB", most / 1024)));
    }
    Ok(bytes)
}

pub fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    let text = String::from_utf8(bytes);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "is not UTF-8"))
}

/// Opens a regular file for reading. Refuses pipes and devices without blocking.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a device may have side effects.
    let is_file = std::fs::metadata(path)?.is_file();
    if is_file { open_as(path, OFlags::empty()) } else { Err(irregular()) }
}

/// As [`open_regular`], but refuses a link.
pub fn open_regular_itself(path: &Path) -> io::Result<File> {
    let kind = std::fs::symlink_metadata(path)?.file_type();
    // A link passes this check: `NOFOLLOW` makes the system report its own error.
    let is_file = kind.is_file() || kind.is_symlink();
    if is_file { open_as(path, OFlags::NOFOLLOW) } else { Err(irregular()) }
}

fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    // The file may have been replaced since the check; opening a pipe must not block until its
    // other end is open.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

fn irregular() -> io::Error {
    io::Error::other("is no regular file")
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_regular_files_within_the_bound_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("text"), "x".repeat(1024)).expect("is written");
        fs::write(at("large"), "x".repeat(1025)).expect("is written");
        fs::write(at("bytes"), [0xff]).expect("is written");
        File::create(at("sparse")).and_then(|file| file.set_len(8 << 30)).expect("is made");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("is made");
        symlink("text", at("link")).expect("is linked");
        symlink("/dev/zero", at("zero")).expect("is linked");
        symlink("pipe", at("link-to-pipe")).expect("is linked");
        for (name, expected) in [
            ("text", Ok(Some(1024))),
            ("link", Ok(Some(1024))),
            ("none", Ok(None)),
            ("text/below", Ok(None)),
            ("large", Err("is larger than 1 KiB")),
            ("sparse", Err("is larger than 1 KiB")),
            ("bytes", Err("is not UTF-8")),
            ("pipe", Err("is no regular file")),
            ("link-to-pipe", Err("is no regular file")),
            ("zero", Err("is no regular file")),
            (".", Err("is no regular file")),
        ] {
            let read = read_text(&at(name), 1024);
            let read = read.map(|text| text.map(|text| text.len())).map_err(|it| it.to_string());
            assert_eq!(read, expected.map_err(str::to_owned), "{name}");
        }
        for (name, opens) in [("text", true), ("link", false), ("pipe", false), (".", false)] {
            assert_eq!(open_regular_itself(&at(name)).is_ok(), opens, "{name}");
        }
    }
}
