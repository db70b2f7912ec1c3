//! The file between the command and the daemon: a header line, then one event per line.
//!
//! Written at the end, read from the front, removed when the daemon has it all. Held under a lock while a run writes
//! it, so that a resend keeps away.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::private_file;

/// Most events in one request.
pub(crate) const MAX_EVENTS: usize = 1000;
/// Most bytes in one request, far enough below the daemon's limit of 1 MiB.
pub(crate) const MAX_BYTES: usize = 512 * 1024;

/// The first line of a spool file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The format; 1.
    pub(crate) version: u32,
    /// The run's unique name, which begins the id of every event.
    pub(crate) run: String,
    /// The body of the request that makes the task, with an idempotency key.
    pub(crate) create: Value,
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
pub(crate) struct Batches {
    file: File,
    offset: u64,
    /// Bytes in one request from now on; halved when the daemon finds one too large.
    limit: usize,
}

/// One request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// A JSON array of events.
    pub(crate) body: Bytes,
    /// How many there are.
    pub(crate) events: usize,
    end: u64,
}

impl Spool {
    /// Creates the file of a run, mode 0600, in a folder that is made if it is missing.
    pub(crate) fn create(folder: &Path, header: &Header) -> anyhow::Result<Self> {
        private_file::create_folder(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{}.ndjson", header.run));
        let mut line = serde_json::to_vec(header)?;
        line.push(b'\n');
        private_file::create_new(&path, &line)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let file = private_file::append(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .context("cannot lock the spool file")?;
        Ok(Self { file, path, written: line.len() as u64 })
    }

    /// Appends whole lines.
    ///
    /// After a failure the file ends where it ended before, if that can be arranged; else in a torn line that no
    /// reader takes.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            self.file.set_len(self.written).ok();
            return Err(error);
        }
        self.written += lines.len() as u64;
        Ok(())
    }

    /// How many bytes a reader may read.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// The file's place.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The reading end.
    pub(crate) fn reader(&self) -> io::Result<Batches> {
        let mut line = Vec::new();
        BufReader::new(File::open(&self.path)?).read_until(b'\n', &mut line)?;
        Ok(Batches { file: File::open(&self.path)?, offset: line.len() as u64, limit: MAX_BYTES })
    }
}

/// Opens a file that a run left behind: its header, its requests, and up to where it is whole.
///
/// Fails if a run still writes it or it is no spool file.
pub(crate) fn open(path: &Path) -> anyhow::Result<(Header, Batches, u64, File)> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!(
            "{} belongs to a `svc task run` that is still at it; it sends the rest itself",
            path.display()
        );
    }
    let mut line = Vec::new();
    // No header of ours is larger than a request's body.
    BufReader::new(&file).take(1024 * 1024).read_until(b'\n', &mut line)?;
    let header: Header = serde_json::from_slice(&line)
        .with_context(|| format!("{} is not a spool file", path.display()))?;
    if header.version != 1 {
        bail!("{} is of format {}, this program knows 1", path.display(), header.version);
    }
    let offset = line.len() as u64;
    let batches = Batches { file: File::open(path)?, offset, limit: MAX_BYTES };
    let whole = last_line_end(&batches.file, offset)?;
    Ok((header, batches, whole, file))
}

impl Batches {
    /// The next request, of the whole lines before `written`; `None` if all were acknowledged.
    pub(crate) fn next(&self, written: u64) -> io::Result<Option<Batch>> {
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

    /// The daemon has this one.
    pub(crate) fn acknowledge(&mut self, batch: &Batch) {
        self.offset = batch.end;
    }

    /// Makes smaller requests from now on; `false` if they could not be smaller.
    pub(crate) fn shrink(&mut self) -> bool {
        self.limit /= 2;
        self.limit > 0
    }

    fn batch(&self, lines: &[u8], events: usize) -> Batch {
        let mut body = Vec::with_capacity(lines.len() + 2);
        body.push(b'[');
        // JSON text has no line feed of its own, so each one ends an event.
        body.extend(
            lines[..lines.len() - 1].iter().map(|byte| if *byte == b'\n' { b',' } else { *byte }),
        );
        body.push(b']');
        Batch { body: body.into(), events, end: self.offset + lines.len() as u64 }
    }
}

fn line_ends(block: &[u8]) -> impl Iterator<Item = usize> + '_ {
    block.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1)
}

/// The end of the last whole line; what follows was cut off by a crash.
fn last_line_end(file: &File, start: u64) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn header() -> Header {
        Header {
            version: 1,
            run: "run_x".to_owned(),
            create: json!({ "idempotency_key": "run_x" }),
        }
    }

    fn drain(batches: &mut Batches, written: u64) -> Vec<Vec<Value>> {
        let mut all = Vec::new();
        while let Some(batch) = batches.next(written).expect("reads") {
            let events: Vec<Value> = serde_json::from_slice(&batch.body).expect("is JSON");
            assert_eq!(events.len(), batch.events);
            assert!(batch.body.len() <= batches.limit + 2 || batch.events == 1);
            batches.acknowledge(&batch);
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
            let mut batches = spool.reader().expect("opens");
            batches.limit = limit;
            for (number, size) in sizes.iter().enumerate() {
                let line = format!("{}\n", json!([number, "x".repeat(*size)]));
                spool.append(line.as_bytes()).expect("writes");
            }
            let got: Vec<u64> = drain(&mut batches, spool.written())
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
        let mut batches = spool.reader().expect("opens");
        assert_eq!(batches.next(spool.written()).expect("reads"), None);
        spool.append("1\n".repeat(2500).as_bytes()).expect("writes");
        let first = batches.next(spool.written()).expect("reads");
        assert_eq!(batches.next(spool.written()).expect("reads"), first);
        let sizes: Vec<usize> = drain(&mut batches, spool.written()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn a_file_left_behind_opens_up_to_its_last_whole_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut spool = Spool::create(folder.path(), &header()).expect("creates");
        spool.append(b"1\n2\n").expect("writes");
        let path = spool.path().to_path_buf();
        assert!(open(&path).expect_err("is locked").to_string().contains("still at it"));
        drop(spool);
        OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("opens")
            .write_all(b"3 cut o")
            .expect("writes");
        let (found, mut batches, whole, lock) = open(&path).expect("opens");
        assert_eq!(found.run, "run_x");
        assert_eq!(drain(&mut batches, whole).concat(), [json!(1), json!(2)]);
        std::fs::write(&path, "{}\n").expect("writes");
        drop(lock);
        open(&path).expect_err("is no spool file");
    }
}
