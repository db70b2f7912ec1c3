//! The spool of an agent's events: one line of JSON each, synced before any reader sees it.
//!
//! Events are numbered when they are appended. A thread writes all pending events with one write
//! and one sync. So the agent's output may wait for the disk, but never for a reader: readers take
//! bytes of the file, each with its own cursor.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use svc_client::hosts::spool_path;
use svc_model::{AgentId, Timestamp};
use svc_sys::{private_file, spool};
use tokio::sync::{Notify, watch};

/// Bytes pending for the disk at which the host stops reading the agent's output.
const MAX_PENDING: usize = 1024 * 1024;
/// Bytes of the file between two entries of the index.
const INDEX_STEP: u64 = 64 * 1024;
/// Delay before a retry when the disk is full or broken.
const RETRY: Duration = Duration::from_millis(200);

/// Both ends of a spool: appends events, and reads those on the disk.
#[derive(Debug, Clone)]
pub(super) struct AgentSpool(Arc<SharedSpool>);

#[derive(Debug)]
struct SharedSpool {
    file: File,
    /// The end of each event's line, from `agent_id` up to the value of its offset.
    owner: String,
    pending: Mutex<Pending>,
    work: Condvar,
    room: Notify,
    committed: watch::Sender<SpoolEnd>,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    /// Offset of the last event, whether written or pending.
    offset: u64,
    /// Bytes of all events, whether written or pending.
    end: u64,
    index: Vec<SpoolMark>,
    entries: Vec<EntryMark>,
    error: Option<String>,
    closed: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SpoolEnd {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Index entry: the event after `offset` begins at byte `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpoolMark {
    pub(super) offset: u64,
    pub(super) at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryMark {
    pub(super) offset: u64,
    at: u64,
    bytes: u32,
    pub(super) is_of_tool: bool,
}

impl AgentSpool {
    /// Creates the file with mode 0600 and locks it for the life of this process. An agent has only
    /// one spool in its life.
    pub(super) fn create(folder: &Path, agent: &AgentId) -> io::Result<Self> {
        let path = spool_path(folder, agent);
        let file = private_file::create_new_held(&path, b"")?;
        let owner = format!(",\"agent_id\":{},\"offset\":", serde_json::to_string(agent)?);
        let shared = Arc::new(SharedSpool {
            file,
            owner,
            pending: Mutex::new(Pending {
                index: vec![SpoolMark { offset: 0, at: 0 }],
                ..Pending::default()
            }),
            work: Condvar::new(),
            room: Notify::new(),
            committed: watch::Sender::new(SpoolEnd::default()),
        });
        let writer = Arc::clone(&shared);
        thread::Builder::new()
            .name("spool".to_owned())
            .spawn(move || writer.write_until_closed())?;
        Ok(Self(shared))
    }

    /// Appends an event and returns its offset. `body` is an object with at least one member; the
    /// event is `body` plus owner, offset and time. `entry` is set for an entry of the conversation
    /// and says whether the entry is of a tool. Readers see the event once it is on the disk.
    pub(super) fn append(
        &self,
        body: &impl Serialize,
        timestamp: Timestamp,
        entry: Option<bool>,
    ) -> u64 {
        let mut pending = self.0.lock();
        let pending = &mut *pending;
        let began = pending.bytes.len();
        let offset = pending.offset + 1;
        let written = serde_json::to_writer(&mut pending.bytes, body).map_err(io::Error::other);
        let closing = pending.bytes.pop();
        let rest =
            write!(pending.bytes, "{}{offset},\"timestamp\":\"{timestamp}\"}}", self.0.owner);
        if written.and(rest).is_err() || closing != Some(b'}') {
            // Our values serialise; an event that does not must not leave a partial line.
            pending.bytes.truncate(began);
            return pending.offset;
        }
        pending.bytes.push(b'\n');
        let bytes = pending.bytes.len() - began;
        if let Some(is_of_tool) = entry {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            pending.entries.push(EntryMark { offset, at: pending.end, bytes, is_of_tool });
        }
        pending.offset = offset;
        pending.end += bytes as u64;
        if pending.index.last().is_none_or(|mark| pending.end - mark.at >= INDEX_STEP) {
            pending.index.push(SpoolMark { offset, at: pending.end });
        }
        self.0.work.notify_one();
        offset
    }

    /// Bytes of all events, including pending ones.
    pub(super) fn appended(&self) -> u64 {
        self.0.lock().end
    }

    /// Waits until less than [`MAX_PENDING`] is pending.
    pub(super) async fn room(&self) {
        loop {
            let freed = self.0.room.notified();
            if self.0.lock().bytes.len() < MAX_PENDING {
                return;
            }
            freed.await;
        }
    }

    pub(super) fn committed(&self) -> watch::Receiver<SpoolEnd> {
        self.0.committed.subscribe()
    }

    /// The end of what is on the disk.
    pub(super) fn end(&self) -> SpoolEnd {
        *self.0.committed.borrow()
    }

    /// Waits until all events appended so far are on the disk.
    pub(super) async fn settled(&self) {
        let offset = self.0.lock().offset;
        let mut committed = self.committed();
        committed.wait_for(|end| end.offset >= offset).await.ok();
    }

    /// The error of the last write; `None` if it succeeded.
    pub(super) fn error(&self) -> Option<String> {
        self.0.lock().error.clone()
    }

    /// The position after the event at `offset`, which must be on the disk.
    pub(super) fn position_after(&self, offset: u64) -> io::Result<u64> {
        let mark = {
            let pending = self.0.lock();
            let next = pending.index.partition_point(|mark| mark.offset <= offset);
            pending.index[next.saturating_sub(1)]
        };
        let (mut at, mut left) = (mark.at, offset.saturating_sub(mark.offset));
        let mut block = vec![0; 64 * 1024];
        while left > 0 {
            let read = self.0.file.read_at(&mut block, at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut ends = block[..read].iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            let wanted = usize::try_from(left - 1).unwrap_or(usize::MAX);
            if let Some((end, _)) = ends.nth(wanted) {
                return Ok(at + end as u64 + 1);
            }
            left -= memchr::memchr_iter(b'\n', &block[..read]).count() as u64;
            at += read as u64;
        }
        Ok(at)
    }

    /// Whole events from `at`, where one begins, to `end`; about `size` bytes.
    pub(super) fn whole_lines(&self, at: u64, end: u64, size: usize) -> io::Result<Vec<u8>> {
        spool::whole_lines(&self.0.file, at, end, size)
    }

    pub(super) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.0.file.read_exact_at(buffer, at)
    }

    /// The entries whose events are on the disk.
    pub(super) fn entries(&self) -> Vec<EntryMark> {
        let last = self.end().offset;
        let pending = self.0.lock();
        pending.entries.iter().take_while(|entry| entry.offset <= last).copied().collect()
    }

    pub(super) fn read_entry(&self, entry: &EntryMark) -> io::Result<Vec<u8>> {
        let mut line = vec![0; entry.bytes as usize];
        self.read_at(&mut line, entry.at)?;
        Ok(line)
    }

    /// Ends the thread after all pending events are on the disk.
    pub(super) fn close(&self) {
        self.0.lock().closed = true;
        self.0.work.notify_one();
    }
}

impl SharedSpool {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_until_closed(&self) {
        let mut batch = Vec::new();
        loop {
            let mut pending = self.lock();
            while pending.bytes.is_empty() && !pending.closed {
                pending = self.work.wait(pending).unwrap_or_else(PoisonError::into_inner);
            }
            if pending.bytes.is_empty() {
                return;
            }
            std::mem::swap(&mut batch, &mut pending.bytes);
            let offset = pending.offset;
            drop(pending);
            self.room.notify_waiters();
            let at = self.committed.borrow().bytes;
            // Retries the same bytes at the same position, which overwrites a partial line.
            while let Err(error) =
                self.file.write_all_at(&batch, at).and_then(|()| self.file.sync_data())
            {
                self.lock().error = Some(error.to_string());
                thread::sleep(RETRY);
            }
            self.lock().error = None;
            let bytes = at + batch.len() as u64;
            self.committed.send_replace(SpoolEnd { offset, bytes });
            batch.clear();
            batch.shrink_to(256 * 1024);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spool(folder: &Path) -> io::Result<AgentSpool> {
        AgentSpool::create(folder, &AgentId::from("ag_test".to_owned()))
    }

    #[tokio::test]
    async fn events_are_numbered_and_found_by_offset() {
        let folder = tempfile::tempdir().unwrap();
        let spool = spool(folder.path()).unwrap();
        for number in 1..=5000_u64 {
            let body = json!({ "type": "output", "data": format!("line {number}") });
            assert_eq!(spool.append(&body, Timestamp::from_millis(7), None), number);
            if number == 2500 {
                spool.settled().await;
            }
        }
        spool.settled().await;
        let end = spool.end();
        assert_eq!(end.offset, 5000);
        let marks = spool.0.lock().index.len() as u64;
        assert!(marks <= end.bytes / INDEX_STEP + 1, "memory does not grow with each event");
        for after in [0, 1, 499, 2499, 2500, 4998, 4999] {
            let at = spool.position_after(after).unwrap();
            let mut bytes = vec![0; usize::try_from(end.bytes - at).unwrap()];
            spool.read_at(&mut bytes, at).unwrap();
            let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
            let event: Value = serde_json::from_slice(line).unwrap();
            let expected = json!({ "type": "output", "data": format!("line {}", after + 1),
                "agent_id": "ag_test", "offset": after + 1, "timestamp": "1970-01-01T00:00:00.007Z" });
            assert_eq!(event, expected);
        }
        assert_eq!(spool.position_after(5000).unwrap(), end.bytes);
    }

    #[tokio::test]
    async fn second_spool_of_an_agent_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = spool(folder.path()).unwrap();
        let second = spool(folder.path()).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        drop(first);
    }

    #[tokio::test]
    async fn entries_are_read_by_their_marks() {
        let folder = tempfile::tempdir().unwrap();
        let spool = spool(folder.path()).unwrap();
        spool.append(&json!({ "type": "output", "data": "é" }), Timestamp::from_millis(1), None);
        let entry = json!({ "type": "chat_entry", "chat_entry": 1 });
        spool.append(&entry, Timestamp::from_millis(2), Some(true));
        assert!(spool.entries().len() <= 1);
        spool.settled().await;
        let entries = spool.entries();
        assert_eq!((entries.len(), entries[0].offset, entries[0].is_of_tool), (1, 2, true));
        let line: Value = serde_json::from_slice(&spool.read_entry(&entries[0]).unwrap()).unwrap();
        assert_eq!(line["chat_entry"], json!(1));
    }
}
