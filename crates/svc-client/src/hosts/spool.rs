//! Files of hosts: where they are, and what a dead host left in its spool.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use svc_model::AgentId;
use svc_sys::private_file;

use super::RawAgentEvent;

/// Where a host listens.
pub fn socket_path(folder: &Path, agent: &AgentId) -> PathBuf {
    folder.join(format!("{agent}.sock"))
}

fn spool_path(folder: &Path, agent: &AgentId) -> PathBuf {
    folder.join(format!("{agent}.spool"))
}

/// Removes the files of an agent that has ended and of which everything was taken over.
pub fn remove_files(folder: &Path, agent: &AgentId) {
    for path in [spool_path(folder, agent), socket_path(folder, agent)] {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove a file of a host");
        }
    }
}

/// The spool of a host that has ended.
#[derive(Debug)]
pub enum DeadSpool {
    /// There is none.
    Absent,
    /// Its host lives: it holds the lock.
    Held,
    /// Its events after the offset that was asked for.
    Left(SpoolLines),
}

impl DeadSpool {
    /// Opens the spool of an agent, to read the events after `after`.
    pub fn open(folder: &Path, agent: &AgentId, after: i64) -> io::Result<Self> {
        let file = match private_file::open(&spool_path(folder, agent)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Absent),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Self::Left(SpoolLines { lines: BufReader::new(file), after })),
            Err(TryLockError::WouldBlock) => Ok(Self::Held),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The events of a spool, in order. A line that a crash cut off is no event.
#[derive(Debug)]
pub struct SpoolLines {
    lines: BufReader<File>,
    after: i64,
}

impl SpoolLines {
    /// The next events, at most so many; empty at the end.
    pub fn next_batch(&mut self, most: usize) -> io::Result<Vec<RawAgentEvent>> {
        let mut batch = Vec::new();
        let mut line = Vec::new();
        while batch.len() < most {
            line.clear();
            let read = self.lines.read_until(b'\n', &mut line)?;
            let Some((b'\n', whole)) = line.split_last().filter(|_| read > 0) else { break };
            let Ok(event) = RawAgentEvent::parse(whole) else { break };
            if event.offset() > self.after {
                batch.push(event);
            }
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_a_dead_host_left_is_read_up_to_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let agent = AgentId::from("ag_1".to_owned());
        let open = |after| DeadSpool::open(folder.path(), &agent, after).unwrap();
        assert!(matches!(open(0), DeadSpool::Absent));
        let mut file = File::create(spool_path(folder.path(), &agent)).unwrap();
        for offset in 1..=3 {
            let event = format!(
                r#"{{"type":"error","error":"e","agent_id":"ag_1","offset":{offset},"timestamp":7}}"#
            );
            writeln!(file, "{event}").unwrap();
        }
        file.write_all(b"{\"type\":\"err").unwrap();
        file.try_lock().unwrap();
        assert!(matches!(open(0), DeadSpool::Held));
        drop(file);
        let DeadSpool::Left(mut lines) = open(1) else { panic!("it is dead") };
        let offsets =
            |batch: Vec<RawAgentEvent>| batch.iter().map(RawAgentEvent::offset).collect::<Vec<_>>();
        assert_eq!(offsets(lines.next_batch(1).unwrap()), [2]);
        assert_eq!(offsets(lines.next_batch(9).unwrap()), [3]);
        assert!(lines.next_batch(9).unwrap().is_empty());
        remove_files(folder.path(), &agent);
        assert!(matches!(open(0), DeadSpool::Absent));
    }
}
