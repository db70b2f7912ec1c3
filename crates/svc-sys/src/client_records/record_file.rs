//! Where a client's process keeps its records, and the end of a record, which may be long.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use svc_model::limits;

use crate::{bounded_file, private_file};

/// The folder that a variable of a process names; `None` if it is not set, empty, or unknown.
pub(super) fn folder(pid: u32, name: &str) -> Option<PathBuf> {
    variable(pid, name).map(PathBuf::from)
}

/// A variable of a process; `None` if it is not set, empty, or unknown.
pub(super) fn variable(pid: u32, name: &str) -> Option<OsString> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=").filter(|it| !it.is_empty())
    })?;
    Some(OsString::from_vec(value.to_vec()))
}

/// Opens a record, if it is this user's and nobody else can write it.
pub(super) fn open(path: &Path) -> Option<File> {
    let file = bounded_file::open_regular_itself(path).ok()?;
    private_file::check_source(path, &file.metadata().ok()?).ok()?;
    Some(file)
}

pub(super) fn tail_of(mut file: File) -> Option<String> {
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(limits::RECORD_TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(limits::RECORD_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    Some(String::from_utf8_lossy(&tail).into_owned())
}
