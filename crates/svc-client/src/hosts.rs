//! Hosts of agents from a client's side: the protocol on a host's socket, the start of a host by
//! `svc agent host`, the spool of a dead host, and the end of the processes that such a host left.
//!
//! Each request has its own connection, so no request waits for another, and a host that does not
//! respond delays only its own requests.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Serialize, de::DeserializeOwned};
use svc_model::AgentId;
use svc_model::agent::{
    AGENT_MARK, AgentDelta, AgentEvent, AgentEventBody, AgentInfo, HostSpec, HostStarted,
};
use svc_sys::lines::LineReader;
use svc_sys::local_socket::{self, ConnectError};
use svc_sys::private_file::if_there;
use svc_sys::{process_list, spool};
use svc_wire::host_protocol::{
    AnswerAgent, AttachAnswer, AttachStream, HOST_PROTOCOL, HistoryPage, HistoryQuery, HostFrame,
    HostList, HostReply, HostRequest, HostRequestKind, HostStatus, InterruptAgent, PingAnswer,
    PingHost, ReplyError, SendAnswer, SendInput, StopAgent, StopAnswer, agrees_with_protocol,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// Time limit of a response; a host that takes longer counts as wedged.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Time limit of requests that wait for the host's disk.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Time limit of a stop, in addition to the time that the agent gets.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest line of a host, in bytes: one line may be a whole history.
const LINE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes that are read at once from a feed, and from a reply.
const FEED_BUFFER: usize = 64 * 1024;
const REPLY_BUFFER: usize = 4 * 1024;
/// Most events, and about the most bytes, of one batch.
const BATCH_EVENTS: usize = 512;
const BATCH_BYTES: usize = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No socket, or no listener.
    #[error("its host is not there")]
    Absent,
    /// The host has another user, another agent or another protocol.
    #[error("{0}")]
    Foreign(String),
    /// The host listens but does not respond.
    #[error("its host does not answer")]
    Wedged,
    #[error("the connection to its host broke: {0}")]
    Broken(io::Error),
    #[error("{0}")]
    Refused(String),
}

impl From<ReplyError> for HostError {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::Refused(reason) => Self::Refused(reason),
            ReplyError::Unreadable(error) => Self::Broken(error.into()),
        }
    }
}

/// The host of one agent.
///
/// [`connect`](Self::connect) asks the host for its agent; [`new`](Self::new) is told the agent.
/// [`attach`](Self::attach) returns a [`HostFeed`] of events. All futures except those of a feed
/// complete within seconds, or within the time limit of a stop.
#[derive(Debug, Clone)]
pub struct HostClient {
    agent: AgentId,
    socket: PathBuf,
}

impl HostClient {
    pub fn new(agent: AgentId, socket: PathBuf) -> Self {
        Self { agent, socket }
    }

    /// The host at `socket`, whatever its agent.
    pub async fn connect(socket: PathBuf) -> Result<Self, HostError> {
        let status = status_at(&socket).await?;
        Ok(Self { agent: status.agent.id, socket })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The host's status. Fails if the host has another agent or protocol.
    pub async fn status(&self) -> Result<HostStatus, HostError> {
        let status = status_at(&self.socket).await?;
        self.check_agent(&status.agent.id)?;
        Ok(status)
    }

    /// A host with another protocol refuses the request.
    pub async fn ping(&self) -> Result<PingAnswer, HostError> {
        let ping = PingHost { protocol_version: Some(HOST_PROTOCOL.to_owned()) };
        self.request(HostRequestKind::Ping, Some(&ping), ANSWER_WITHIN).await
    }

    pub async fn list(&self) -> Result<Vec<AgentInfo>, HostError> {
        let list: HostList =
            self.request(HostRequestKind::List, None::<&()>, ANSWER_WITHIN).await?;
        Ok(list.agents)
    }

    pub async fn send(&self, input: &SendInput) -> Result<SendAnswer, HostError> {
        self.request(HostRequestKind::Send, Some(&input), SEND_WITHIN).await
    }

    pub async fn answer(&self, answer: &AnswerAgent) -> Result<(), HostError> {
        self.command(HostRequestKind::Answer, Some(answer)).await
    }

    pub async fn interrupt(&self) -> Result<(), HostError> {
        self.command(HostRequestKind::Interrupt, None::<&()>).await
    }

    /// Ends the turn of one input, or removes the input from the queue.
    pub async fn withdraw(&self, message_id: &str) -> Result<(), HostError> {
        let interrupt = InterruptAgent { message_id: Some(message_id.to_owned()) };
        self.command(HostRequestKind::Interrupt, Some(&interrupt)).await
    }

    /// Stops the agent. Returns when the program has been reaped.
    pub async fn stop(&self, stop: &StopAgent) -> Result<StopAnswer, HostError> {
        let given = u64::try_from(stop.timeout).unwrap_or(0);
        let given = Duration::from_secs(if given == 0 { 30 } else { given });
        self.request(HostRequestKind::Stop, Some(&stop), given + STOP_GRACE).await
    }

    pub async fn history(&self, query: &HistoryQuery) -> Result<HistoryPage, HostError> {
        self.request(HostRequestKind::History, Some(&query), SEND_WITHIN).await
    }

    pub async fn attach(&self, offset: i64) -> Result<HostFeed, HostError> {
        let mut connection = HostConnection::open(&self.socket, FEED_BUFFER).await?;
        let attach = Some(AttachStream { offset });
        let reply =
            connection.exchange(HostRequestKind::Attach, attach.as_ref(), ANSWER_WITHIN).await?;
        let attached: AttachAnswer = reply.decode()?;
        self.check_agent(&attached.agent_id)?;
        Ok(HostFeed { connection, attached, delta: None })
    }

    fn check_agent(&self, other: &AgentId) -> Result<(), HostError> {
        if *other == self.agent {
            return Ok(());
        }
        Err(HostError::Foreign(format!("its socket is that of agent {other}")))
    }

    /// A request whose reply has no payload that matters.
    async fn command<P: Serialize>(
        &self,
        kind: HostRequestKind,
        payload: Option<&P>,
    ) -> Result<(), HostError> {
        self.request(kind, payload, SEND_WITHIN).await.map(|_: Option<serde_json::Value>| ())
    }

    async fn request<P: Serialize, A: DeserializeOwned>(
        &self,
        kind: HostRequestKind,
        request: Option<&P>,
        within: Duration,
    ) -> Result<A, HostError> {
        let mut connection = HostConnection::open(&self.socket, REPLY_BUFFER).await?;
        Ok(connection.exchange(kind, request, within).await?.decode()?)
    }
}

async fn status_at(socket: &Path) -> Result<HostStatus, HostError> {
    let mut connection = HostConnection::open(socket, REPLY_BUFFER).await?;
    let reply = connection.exchange(HostRequestKind::Status, None::<&()>, ANSWER_WITHIN).await?;
    let status: HostStatus = reply.decode()?;
    if !agrees_with_protocol(&status.host.protocol_version) {
        let version = &status.host.protocol_version;
        return Err(HostError::Foreign(format!("its host speaks protocol {version}")));
    }
    Ok(status)
}

#[derive(Debug)]
struct HostConnection {
    lines: LineReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl HostConnection {
    async fn open(socket: &Path, buffer: usize) -> Result<Self, HostError> {
        let connected = timeout(ANSWER_WITHIN, local_socket::connect(socket)).await;
        let stream = connected.map_err(|_| HostError::Wedged)?.map_err(|error| match error {
            ConnectError::Absent(_) => HostError::Absent,
            ConnectError::Foreign { .. } | ConnectError::OtherProcess { .. } => {
                HostError::Foreign(error.to_string())
            }
            ConnectError::Io { source, .. } => HostError::Broken(source),
        })?;
        let (reader, writer) = stream.into_split();
        Ok(Self { lines: LineReader::new(reader, buffer, LINE_BYTES), writer })
    }

    /// Sends a request and returns its reply. Events before the reply are skipped.
    async fn exchange<P: Serialize>(
        &mut self,
        kind: HostRequestKind,
        payload: Option<&P>,
        within: Duration,
    ) -> Result<HostReply, HostError> {
        let request = HostRequest::new(kind, payload);
        let line = request.map_err(|error| HostError::Broken(error.into()))?.to_line();
        let exchange = async {
            self.writer.write_all(&line).await?;
            loop {
                let Some(line) = self.next_line().await? else {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                };
                if let HostFrame::Reply(reply) = HostFrame::parse(line)? {
                    return Ok(reply);
                }
            }
        };
        let exchanged = timeout(within, exchange).await.map_err(|_| HostError::Wedged)?;
        exchanged.map_err(HostError::Broken)
    }

    /// The next whole line; `None` at the end. Cancel-safe.
    async fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        match self.lines.next().await? {
            Some(line) if line.is_cut => Err(io::Error::other("a line of the host is too long")),
            line => Ok(line.filter(|line| line.has_end).map(|line| line.bytes)),
        }
    }
}

#[derive(Debug, Clone)]
pub struct RawAgentEvent {
    /// The event's line without its line end, as it goes into the log.
    pub line: Arc<str>,
    pub event: AgentEvent,
}

impl RawAgentEvent {
    pub fn parse(line: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(line).map_err(io::Error::other)?;
        Ok(Self { line: text.into(), event: serde_json::from_str(text)? })
    }

    pub fn offset(&self) -> i64 {
        self.event.offset.cast_signed()
    }

    pub const fn body(&self) -> &AgentEventBody {
        &self.event.body
    }
}

#[derive(Debug)]
pub struct HostFeed {
    connection: HostConnection,
    attached: AttachAnswer,
    /// A delta to return after the last batch.
    delta: Option<AgentDelta>,
}

#[derive(Debug)]
pub enum HostUpdate {
    /// A batch of at least one event.
    Events(Vec<RawAgentEvent>),
    /// A piece of the text of an unfinished entry.
    Delta(AgentDelta),
}

impl HostFeed {
    pub const fn attached(&self) -> &AttachAnswer {
        &self.attached
    }

    /// The next news; `None` when the host has closed the connection. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Option<HostUpdate>, HostError> {
        if let Some(delta) = self.delta.take() {
            return Ok(Some(HostUpdate::Delta(delta)));
        }
        let mut batch: Vec<RawAgentEvent> = Vec::new();
        let mut bytes = 0;
        loop {
            let line = self.connection.next_line().await.map_err(HostError::Broken)?;
            let Some(line) = line else { break };
            let event = RawAgentEvent::parse(line).map_err(HostError::Broken)?;
            if let AgentEventBody::Delta(delta) = event.event.body {
                if batch.is_empty() {
                    return Ok(Some(HostUpdate::Delta(delta)));
                }
                self.delta = Some(delta);
                break;
            }
            bytes += event.line.len();
            batch.push(event);
            if batch.len() >= BATCH_EVENTS
                || bytes >= BATCH_BYTES
                || !self.connection.lines.has_line()
            {
                break;
            }
        }
        // Only the first line is waited for.
        Ok((!batch.is_empty()).then_some(HostUpdate::Events(batch)))
    }
}

/// Time limit for the report of a new host.
const STARTED_WITHIN: Duration = Duration::from_secs(15);
/// Longest report of a new host, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;

/// Starts a host and waits for its report. The started process soon ends, as the host detaches
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
        // Does not read to the end, as a descendant of the host may keep the pipe open.
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

pub fn spool_path(folder: &Path, agent: &AgentId) -> PathBuf {
    folder.join(format!("{agent}.spool"))
}

/// Removes the files of an agent that has ended and whose events are all in the log.
pub fn remove_files(folder: &Path, agent: &AgentId) {
    for path in [spool_path(folder, agent), socket_path(folder, agent)] {
        if let Err(error) = if_there(fs::remove_file(&path)) {
            tracing::warn!(%error, path = %path.display(), "cannot remove a file of a host");
        }
    }
}

#[derive(Debug)]
pub enum DeadSpool {
    Absent,
    /// The agent's host runs, as it holds the lock.
    Held,
    Left(SpoolLines),
}

impl DeadSpool {
    /// Opens the spool to read the events after offset `after`.
    pub fn open(folder: &Path, agent: &AgentId, after: i64) -> io::Result<Self> {
        Ok(match if_there(spool::take_over(&spool_path(folder, agent), false))? {
            Some(Some(file)) => Self::Left(SpoolLines { lines: BufReader::new(file), after }),
            Some(None) => Self::Held,
            None => Self::Absent,
        })
    }
}

/// The events of a spool in order. An incomplete last line is skipped.
#[derive(Debug)]
pub struct SpoolLines {
    lines: BufReader<File>,
    after: i64,
}

impl SpoolLines {
    /// The next events, at most `most`; empty at the end.
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

/// How long killed processes may take to end: a process that waits for a disk cannot end earlier.
const KILL_TIMEOUT: Duration = Duration::from_secs(4);
const KILL_POLL: Duration = Duration::from_millis(5);

/// Kills all processes of an agent whose host is dead, which it finds by their mark. Usually the
/// reaper has done so, unless it was killed too.
pub async fn end_tree(agent: &AgentId) {
    let deadline = Instant::now() + KILL_TIMEOUT;
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
    fn broken_connection_names_its_cause_once() {
        let error = HostError::Broken(io::Error::other("reset"));
        assert!(std::error::Error::source(&error).is_none(), "{error} has it already");
    }

    #[test]
    fn members_of_a_later_host_stay_in_the_line() {
        let line = r#"{"type":"error","error":"e","later":true,"agent_id":"ag_1","offset":3,"timestamp":"1970-01-01T00:00:00.007Z"}"#;
        assert_eq!(&*RawAgentEvent::parse(line.as_bytes()).unwrap().line, line);
    }

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
