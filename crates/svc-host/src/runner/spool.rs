//! The file between the program and the daemon: a header line, then one event per line.
//!
//! A run appends to it, the sender reads it from the front, and it is removed when the daemon has acknowledged
//! everything. The run holds a lock on it, so that nobody else sends it meanwhile.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_setfl};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_sys::private_file;

/// Most events in one request.
const MAX_EVENTS: usize = 1000;
/// Most bytes in one request, far enough below the daemon's limit of 1 MiB.
const MAX_BYTES: usize = 512 * 1024;

/// The first line of a spool file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpoolHeader {
    /// The format: [`SpoolHeader::VERSION`].
    pub version: u32,
    /// The run's unique name. The id of every event begins with it.
    pub run: String,
    /// The body of the request that makes the task, with an idempotency key.
    pub create: Value,
}

/// A spool file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file or its folder cannot be created.
    #[error("cannot create {path}")]
    Create {
        /// The file or folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// A run that still goes on holds the file.
    #[error("{path} belongs to a `svc task run` that is still at it; it sends the rest itself")]
    InUse {
        /// The file.
        path: String,
    },
    /// The first line is no header.
    #[error("{path} is not a spool file")]
    NotASpool {
        /// The file.
        path: String,
        /// What is wrong with the first line.
        source: serde_json::Error,
    },
    /// Another version of the program wrote the file.
    #[error("{path} is of format {version}, this program knows {known}", known = SpoolHeader::VERSION)]
    UnknownFormat {
        /// The file.
        path: String,
        /// Its format.
        version: u32,
    },
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    path: PathBuf,
    written: u64,
}

/// The reading end: requests in order.
#[derive(Debug)]
pub struct SpoolReader {
    file: File,
    /// Bytes that the daemon has acknowledged, the header included.
    offset: u64,
    /// Bytes in one request from now on; halved when the daemon finds a request too large.
    limit: usize,
}

/// One request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventBatch {
    /// A JSON array of events.
    pub(super) body: Bytes,
    /// How many there are.
    pub(super) events: usize,
    /// The offset after the last of them.
    end: u64,
}

/// A spool file that a run left behind.
#[derive(Debug)]
pub struct LeftoverSpool {
    pub header: SpoolHeader,
    pub reader: SpoolReader,
    /// Bytes up to the end of the last whole line; what follows was cut off by a crash, or lost by a power cut.
    pub written: u64,
    /// Keeps everyone else from sending it.
    pub lock: File,
}

impl SpoolHeader {
    /// The format that this program writes and reads.
    pub const VERSION: u32 = 1;
}

impl Spool {
    /// Creates the file of a run, mode 0600, in a folder that is made if it is missing.
    pub(crate) fn create(folder: &Path, header: &SpoolHeader) -> Result<Self, SpoolError> {
        let create = |path: &Path| {
            let path = path.display().to_string();
            move |source| SpoolError::Create { path, source }
        };
        private_file::prepare_home(folder).map_err(create(folder))?;
        let path = folder.join(format!("{}.ndjson", header.run));
        let mut line =
            serde_json::to_vec(header).map_err(io::Error::other).map_err(create(&path))?;
        line.push(b'\n');
        let file = private_file::create_new_held(&path, &line).map_err(create(&path))?;
        fcntl_setfl(&file, OFlags::APPEND).map_err(io::Error::from).map_err(create(&path))?;
        Ok(Self { file, path, written: line.len() as u64 })
    }

    /// Appends whole lines.
    ///
    /// After a failure the file ends where it ended before, if that can be arranged; else in a torn line that no
    /// reader takes.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), SpoolError> {
        if let Err(error) = self.file.write_all(lines) {
            self.file.set_len(self.written).ok();
            return Err(SpoolError::Write { path: self.path.display().to_string(), error });
        }
        self.written += lines.len() as u64;
        Ok(())
    }

    /// Returns when the disk has all of it.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// How many bytes a reader may read.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Where the file is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file: nothing in it is of use any more.
    pub(crate) fn discard(self) {
        std::fs::remove_file(&self.path).ok();
    }

    /// The reading end.
    pub(super) fn reader(&self) -> Result<SpoolReader, SpoolError> {
        let open = || {
            let mut line = Vec::new();
            BufReader::new(private_file::open(&self.path)?).read_until(b'\n', &mut line)?;
            Ok(SpoolReader::new(private_file::open(&self.path)?, line.len() as u64))
        };
        open().map_err(read_failed(&self.path))
    }
}

impl LeftoverSpool {
    /// Opens the file.
    ///
    /// # Errors
    /// If a run still writes it, or it is no spool file.
    pub fn open(path: &Path) -> Result<Self, SpoolError> {
        let shown = || path.display().to_string();
        let file = private_file::open(path).map_err(read_failed(path))?;
        if file.try_lock().is_err() {
            return Err(SpoolError::InUse { path: shown() });
        }
        let mut line = Vec::new();
        // No header of ours is larger than a request's body.
        BufReader::new(&file)
            .take(1024 * 1024)
            .read_until(b'\n', &mut line)
            .map_err(read_failed(path))?;
        let header: SpoolHeader = serde_json::from_slice(&line)
            .map_err(|source| SpoolError::NotASpool { path: shown(), source })?;
        if header.version != SpoolHeader::VERSION {
            return Err(SpoolError::UnknownFormat { path: shown(), version: header.version });
        }
        let offset = line.len() as u64;
        let reader = SpoolReader::new(private_file::open(path).map_err(read_failed(path))?, offset);
        let written = last_line_end(&reader.file, offset).map_err(read_failed(path))?;
        Ok(Self { header, reader, written, lock: file })
    }
}

fn read_failed(path: &Path) -> impl FnOnce(io::Error) -> SpoolError {
    let path = path.display().to_string();
    move |source| SpoolError::Read { path, source }
}

impl SpoolReader {
    fn new(file: File, offset: u64) -> Self {
        Self { file, offset, limit: MAX_BYTES }
    }

    /// The next request, of the whole lines before `written`; `None` if all were acknowledged.
    pub(super) fn next(&self, written: u64) -> io::Result<Option<EventBatch>> {
        let available = usize::try_from(written.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let mut size = self.limit;
        loop {
            let mut block = vec![0; size.min(available)];
            self.file.read_exact_at(&mut block, self.offset)?;
            let most = if size > self.limit { 1 } else { MAX_EVENTS };
            let ends: Vec<usize> = line_ends(&block).take(most).collect();
            if let Some(last) = ends.last() {
                return Ok(Some(self.batch(&block[..*last], ends.len())));
            }
            if block.len() == available {
                return Ok(None);
            }
            // One line that alone is over the limit.
            size = size.saturating_mul(2);
        }
    }

    /// The daemon has this request.
    pub(super) fn acknowledge(&mut self, batch: &EventBatch) {
        self.offset = batch.end;
    }

    /// Makes smaller requests from now on; `false` if they cannot be smaller.
    pub(super) fn shrink(&mut self) -> bool {
        self.limit /= 2;
        self.limit > 0
    }

    fn batch(&self, lines: &[u8], events: usize) -> EventBatch {
        let mut body = Vec::with_capacity(lines.len() + 2);
        body.push(b'[');
        // JSON text has no line feed of its own, so each line feed ends an event.
        body.extend(
            lines[..lines.len() - 1].iter().map(|byte| if *byte == b'\n' { b',' } else { *byte }),
        );
        body.push(b']');
        EventBatch { body: body.into(), events, end: self.offset + lines.len() as u64 }
    }
}

fn line_ends(block: &[u8]) -> impl Iterator<Item = usize> + '_ {
    block.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1)
}

/// The end of the last whole line; what follows was cut off by a crash, or is behind what a power cut took.
fn last_line_end(file: &File, start: u64) -> io::Result<u64> {
    let mut end = first_hole(file, start)?;
    while end > start {
        let size = (end - start).min(64 * 1024);
        let mut block = vec![0; usize::try_from(size).unwrap_or_default()];
        file.read_exact_at(&mut block, end - size)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(end - size + at as u64 + 1);
        }
        end -= size;
    }
    Ok(start)
}

/// Where bytes of zero begin, or the end of the file. JSON has none: they stand for what the disk did not have yet when the power
/// went.
fn first_hole(file: &File, start: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut block = vec![0; 64 * 1024];
    let mut at = start;
    while at < length {
        let size = usize::try_from(length - at).unwrap_or(usize::MAX).min(block.len());
        file.read_exact_at(&mut block[..size], at)?;
        if let Some(hole) = memchr::memchr(0, &block[..size]) {
            return Ok(at + hole as u64);
        }
        at += size as u64;
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn header() -> SpoolHeader {
        SpoolHeader {
            version: 1,
            run: "run_x".to_owned(),
            create: json!({ "idempotency_key": "run_x" }),
        }
    }

    fn drain(reader: &mut SpoolReader, written: u64) -> Vec<Vec<Value>> {
        let mut all = Vec::new();
        while let Some(batch) = reader.next(written).expect("reads") {
            let events: Vec<Value> = serde_json::from_slice(&batch.body).expect("is JSON");
            assert_eq!(events.len(), batch.events);
            assert!(batch.body.len() <= reader.limit + 2 || batch.events == 1);
            reader.acknowledge(&batch);
            all.push(events);
        }
        all
    }

    proptest! {
        // No file of past failures: it would stand at the top of the repository.
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_event_once_in_order_within_the_limits(
            sizes in prop::collection::vec(0_usize..200, 0..80),
            limit in 20_usize..600,
        ) {
            let folder = tempfile::tempdir().expect("a folder");
            let mut spool = Spool::create(folder.path(), &header()).expect("creates");
            let mut reader = spool.reader().expect("opens");
            reader.limit = limit;
            for (number, size) in sizes.iter().enumerate() {
                let line = format!("{}\n", json!([number, "x".repeat(*size)]));
                spool.append(line.as_bytes()).expect("writes");
            }
            let got: Vec<u64> = drain(&mut reader, spool.written())
                .concat()
                .iter()
                .map(|event| event[0].as_u64().expect("a number"))
                .collect();
            prop_assert_eq!(got, (0..sizes.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_batch_has_at_most_a_thousand_events_and_is_the_same_until_acknowledged() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut spool = Spool::create(folder.path(), &header()).expect("creates");
        let mut reader = spool.reader().expect("opens");
        assert_eq!(reader.next(spool.written()).expect("reads"), None);
        spool.append("1\n".repeat(2500).as_bytes()).expect("writes");
        let first = reader.next(spool.written()).expect("reads");
        assert_eq!(reader.next(spool.written()).expect("reads"), first);
        let sizes: Vec<usize> = drain(&mut reader, spool.written()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn a_file_left_behind_opens_up_to_its_last_whole_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut spool = Spool::create(folder.path(), &header()).expect("creates");
        spool.append(b"1\n2\n").expect("writes");
        let path = spool.path().to_path_buf();
        let held = LeftoverSpool::open(&path).expect_err("is locked");
        assert!(held.to_string().contains("still at it"), "{held}");
        drop(spool);
        OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("opens")
            .write_all(b"3 cut o")
            .expect("writes");
        let mut leftover = LeftoverSpool::open(&path).expect("opens");
        assert_eq!(leftover.header.run, "run_x");
        let events = drain(&mut leftover.reader, leftover.written).concat();
        assert_eq!(events, [json!(1), json!(2)]);
        drop(leftover);
        // A power cut: the disk has a later part of the file, and not the one before it.
        OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("opens")
            .write_all(b"\n4\n\0\0\0\n6\n")
            .expect("writes");
        let content = std::fs::read_to_string(&path).expect("reads").replace("3 cut o", "3");
        std::fs::write(&path, content).expect("writes");
        let mut leftover = LeftoverSpool::open(&path).expect("opens");
        let events = drain(&mut leftover.reader, leftover.written).concat();
        assert_eq!(events, [json!(1), json!(2), json!(3), json!(4)]);
        std::fs::write(&path, "{}\n").expect("writes");
        drop(leftover);
        let other = LeftoverSpool::open(&path).expect_err("is no spool file");
        assert!(matches!(other, SpoolError::NotASpool { .. }), "{other}");
    }
}
