//! Starting a host: `svc agent host`, with its specification on standard input and one line of
//! response. The files of a host, and what a dead one left.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use svc_model::AgentId;
use svc_model::agent::{AGENT_MARK, HostSpec, HostStarted};
use svc_sys::lines::LineReader;
use svc_sys::{process_list, spool_file};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::RawAgentEvent;

/// Time limit for the response of a new host.
const STARTED_WITHIN: Duration = Duration::from_secs(15);
/// Longest response, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;

/// Starts a host and waits for its response. The started process ends soon: the host detaches
/// itself.
pub async fn launch(program: &Path, spec: &HostSpec) -> io::Result<HostStarted> {
    let input = serde_json::to_vec(spec)?;
    let mut child = Command::new(program)
        .args(["agent", "host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // Reaps the process even if this future is dropped.
    tokio::spawn(async move { child.wait().await });
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(io::Error::other("the host has no pipes"));
    };
    let answer = async {
        stdin.write_all(&input).await?;
        stdin.shutdown().await?;
        drop(stdin);
        let mut lines = LineReader::new(stdout, ANSWER_BYTES, ANSWER_BYTES);
        // Not to the end: a descendant of the host may keep the pipe open.
        match lines.next().await?.filter(|line| !line.bytes.is_empty()) {
            Some(line) => serde_json::from_slice(line.bytes).map_err(io::Error::from),
            None => Err(io::Error::other("the host ended without a word")),
        }
    };
    timeout(STARTED_WITHIN, answer)
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the host has not answered in time")))
}

pub fn socket_path(folder: &Path, agent: &AgentId) -> PathBuf {
    folder.join(format!("{agent}.sock"))
}

fn spool_path(folder: &Path, agent: &AgentId) -> PathBuf {
    folder.join(format!("{agent}.spool"))
}

/// For an agent that has ended and whose events are in the log.
pub fn remove_files(folder: &Path, agent: &AgentId) {
    for path in [spool_path(folder, agent), socket_path(folder, agent)] {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove a file of a host");
        }
    }
}

#[derive(Debug)]
pub enum DeadSpool {
    Absent,
    /// Its host runs: it holds the lock.
    Held,
    Left(SpoolLines),
}

impl DeadSpool {
    /// For the events after offset `after`.
    pub fn open(folder: &Path, agent: &AgentId, after: i64) -> io::Result<Self> {
        match spool_file::take_over(&spool_path(folder, agent), false) {
            Ok(Some(file)) => Ok(Self::Left(SpoolLines { lines: BufReader::new(file), after })),
            Ok(None) => Ok(Self::Held),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Absent),
            Err(error) => Err(error),
        }
    }
}

/// The events of a spool, in order. A torn last line is skipped.
#[derive(Debug)]
pub struct SpoolLines {
    lines: BufReader<File>,
    after: i64,
}

impl SpoolLines {
    /// Empty at the end.
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

/// How long killed processes may take to end; one that waits for a disk cannot end before.
const KILL_PATIENCE: Duration = Duration::from_secs(4);
const KILL_POLL: Duration = Duration::from_millis(5);

/// Kills all processes of an agent whose host is dead, by their mark. The reaper does so unless it
/// was killed too.
pub async fn end_tree(agent: &AgentId) {
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        let mark = agent.as_str().to_owned();
        let signalled = tokio::task::spawn_blocking(move || {
            process_list::signal_marked(AGENT_MARK, &mark, Signal::KILL)
        });
        let left = signalled.await.unwrap_or(0);
        if left == 0 {
            return;
        }
        if Instant::now() >= deadline {
            tracing::error!(%agent, left, "processes of an agent whose host is gone do not end");
            return;
        }
        sleep(KILL_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn dead_spool_is_read_up_to_its_last_whole_line() {
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
