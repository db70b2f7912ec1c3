//! The end of a client's record, which may be long.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use svc_model::limits;

/// The end of a record with a line for each entry.
pub(super) fn tail_of(mut file: File) -> Option<String> {
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(limits::RECORD_TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(limits::RECORD_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    Some(String::from_utf8_lossy(&tail).into_owned())
}
