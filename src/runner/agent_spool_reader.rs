//! An agent's spool as its host left it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::domain::agent::AgentEvent;
use crate::private_file;

/// Reads the events of a spool whose host has ended, in order. A line that a crash cut off is no event.
#[derive(Debug)]
pub(crate) struct AgentSpoolReader {
    lines: BufReader<File>,
    /// Events up to this offset are passed over.
    after: u64,
}

impl AgentSpoolReader {
    /// Opens the file; `None` if there is none, or its host still lives.
    pub(crate) fn open(path: &Path, after: u64) -> io::Result<Option<Self>> {
        let file = match private_file::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(Self { lines: BufReader::new(file), after })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The next event that is whole; `None` at the end.
    pub(crate) fn next_event(&mut self) -> io::Result<Option<AgentEvent>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.lines.read_until(b'\n', &mut line)? == 0 || line.last() != Some(&b'\n') {
                return Ok(None);
            }
            let Ok(event) = serde_json::from_slice::<AgentEvent>(&line) else { return Ok(None) };
            if event.offset > self.after {
                return Ok(Some(event));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::super::agent_spool::{AgentSpool, agent_spool_path};
    use super::*;
    use crate::domain::AgentId;

    #[tokio::test]
    async fn what_a_host_left_is_read_up_to_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let agent = AgentId::from("ag_left".to_owned());
        let path = agent_spool_path(folder.path(), &agent);
        assert!(AgentSpoolReader::open(&path, 0).unwrap().is_none(), "there is none");
        let spool = AgentSpool::create(folder.path(), &agent).unwrap();
        for number in 0..3 {
            spool.append(&json!({ "type": "error", "error": format!("{number}") }), 1);
        }
        spool.settled().await;
        assert!(AgentSpoolReader::open(&path, 0).unwrap().is_none(), "its host lives");
        spool.close();
        drop(spool);
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        File::options().append(true).open(&copy).unwrap().write_all(b"{\"type\":\"err").unwrap();
        let mut reader = AgentSpoolReader::open(&copy, 1).unwrap().unwrap();
        let mut offsets = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            offsets.push(event.offset);
        }
        assert_eq!(offsets, [2, 3]);
    }
}
