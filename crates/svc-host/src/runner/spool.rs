//! The file between the program and the daemon: a header line, then one event per line.
//!
//! A run appends to it, the sender reads it from the front, and it is removed when the daemon has
//! acknowledged everything. The run holds a lock on it, so that nobody else sends it meanwhile.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_setfl};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_sys::{private_file, spool_file};

const MAX_EVENTS: usize = 1000;
/// Most bytes in one request, far enough below the daemon's limit of 1 MiB.
const MAX_BYTES: usize = 512 * 1024;

/// The first line of a spool file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpoolHeader {
    pub version: u32,
    /// Unique; the id of every event begins with it.
    pub run: String,
    /// The body of the request that makes the task, with an idempotency key.
    pub create: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("cannot create {path}")]
    Create { path: String, source: io::Error },
    #[error("cannot read {path}")]
    Read { path: String, source: io::Error },
    #[error("cannot write {path}: {error}")]
    Write { path: String, error: io::Error },
    #[error("{path} belongs to a `svc task run` that is still at it; it sends the rest itself")]
    InUse { path: String },
    #[error("{path} is not a spool file")]
    NotASpool { path: String, source: serde_json::Error },
    #[error("{path} is of format {version}, this program knows {known}", known = SpoolHeader::VERSION)]
    UnknownFormat { path: String, version: u32 },
}

#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    path: PathBuf,
    written: u64,
}

#[derive(Debug)]
pub struct SpoolReader {
    file: File,
    /// Bytes that the daemon has acknowledged, the header included.
    offset: u64,
    /// Bytes in one request; halved when the daemon finds a request too large.
    limit: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventBatch {
    /// A JSON array of events.
    pub(super) body: Bytes,
    pub(super) events: usize,
    /// The offset after the last event.
    end: u64,
}

#[derive(Debug)]
pub struct LeftoverSpool {
    pub header: SpoolHeader,
    pub reader: SpoolReader,
    /// Bytes up to the end of the last whole line. A crash or a power cut leaves a torn one.
    pub written: u64,
    /// Keeps others from sending the spool meanwhile.
    pub lock: File,
}

impl SpoolHeader {
    pub const VERSION: u32 = 1;
}

impl Spool {
    /// Creates the file of a run, mode 0600, and its folder.
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

    /// Appends whole lines. After a failure the file is cut to its old end; if that fails too,
    /// it ends in a torn line, which readers skip.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), SpoolError> {
        if let Err(error) = self.file.write_all(lines) {
            self.file.set_len(self.written).ok();
            return Err(SpoolError::Write { path: self.path.display().to_string(), error });
        }
        self.written += lines.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Bytes that a reader may read.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn discard(self) {
        std::fs::remove_file(&self.path).ok();
    }

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
    /// Opens the file, unless a run still writes it.
    pub fn open(path: &Path) -> Result<Self, SpoolError> {
        let shown = || path.display().to_string();
        let file = spool_file::take_over(path, true).map_err(read_failed(path))?;
        let file = file.ok_or_else(|| SpoolError::InUse { path: shown() })?;
        let mut line = Vec::new();
        // A header is no larger than the body of a request.
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
        let written = spool_file::last_line_end(&reader.file, offset).map_err(read_failed(path))?;
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

    /// The next request, of whole lines before `written`; `None` if all were acknowledged.
    pub(super) fn next(&self, written: u64) -> io::Result<Option<EventBatch>> {
        let block = spool_file::whole_lines(&self.file, self.offset, written, self.limit)?;
        // A block above the limit begins with one line that alone exceeds it.
        let most = if block.len() > self.limit { 1 } else { MAX_EVENTS };
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', &block).take(most).collect();
        Ok(ends.last().map(|last| self.batch(&block[..=*last], ends.len())))
    }

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
        // JSON text has no raw line feed, so each line feed ends an event.
        body.extend(
            lines[..lines.len() - 1].iter().map(|byte| if *byte == b'\n' { b',' } else { *byte }),
        );
        body.push(b']');
        EventBatch { body: body.into(), events, end: self.offset + lines.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn create() -> (tempfile::TempDir, Spool) {
        let (run, create) = ("run_x".to_owned(), json!({ "idempotency_key": "run_x" }));
        let folder = tempfile::tempdir().expect("a folder");
        let spool = Spool::create(folder.path(), &SpoolHeader { version: 1, run, create });
        (folder, spool.expect("creates"))
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
        // A file of past failures would be written to the top of the repository.
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_event_is_sent_once_in_order_within_the_limits(
            sizes in prop::collection::vec(0_usize..200, 0..80),
            limit in 20_usize..600,
        ) {
            let (_folder, mut spool) = create();
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
    fn batch_has_at_most_1000_events_and_repeats_until_acknowledged() {
        let (_folder, mut spool) = create();
        let mut reader = spool.reader().expect("opens");
        assert_eq!(reader.next(spool.written()).expect("reads"), None);
        spool.append("1\n".repeat(2500).as_bytes()).expect("writes");
        let first = reader.next(spool.written()).expect("reads");
        assert_eq!(reader.next(spool.written()).expect("reads"), first);
        let sizes: Vec<usize> = drain(&mut reader, spool.written()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn leftover_spool_opens_up_to_its_last_whole_line() {
        let (_folder, mut spool) = create();
        spool.append(b"1\n2\n").expect("writes");
        let path = spool.path().to_path_buf();
        let held = LeftoverSpool::open(&path).expect_err("is locked");
        assert!(held.to_string().contains("still at it"), "{held}");
        drop(spool);
        let mut file = OpenOptions::new().append(true).open(&path).expect("opens");
        file.write_all(b"3 cut o").expect("writes");
        let mut leftover = LeftoverSpool::open(&path).expect("opens");
        assert_eq!(leftover.header.run, "run_x");
        let events = drain(&mut leftover.reader, leftover.written).concat();
        assert_eq!(events, [json!(1), json!(2)]);
        std::fs::write(&path, "{}\n").expect("writes");
        drop(leftover);
        let other = LeftoverSpool::open(&path).expect_err("is no spool file");
        assert!(matches!(other, SpoolError::NotASpool { .. }), "{other}");
    }
}
