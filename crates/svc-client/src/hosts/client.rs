//! The daemon's end of a host's socket. Each request has a connection of its own, so none waits for another, and a host
//! that does not answer holds up nobody but who asked it. Who gives an agent its messages, one after the other, keeps a
//! connection.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use svc_model::AgentId;
use svc_model::agent::{AgentDelta, AgentEvent, AgentEventBody, AgentInfo};
use svc_sys::lines::LineReader;
use svc_sys::local_socket::{self, ConnectError};
use svc_wire::host_protocol::{
    AnswerAgent, AttachAnswer, AttachStream, HOST_PROTOCOL, HistoryPage, HistoryQuery, HostFrame,
    HostList, HostReply, HostRequest, HostRequestKind, HostStatus, InterruptAgent, PingAnswer,
    PingHost, ReplyError, SendAnswer, SendInput, StopAgent, StopAnswer, agrees_with_protocol,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// A host that does not answer within this time is wedged.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A send waits for the host's disk.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// What a stop takes beyond the time that the agent is given.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest line of a host, in bytes: a whole history may be one.
const LINE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of a feed that are read at once.
const FEED_BUFFER: usize = 64 * 1024;
/// The same of a reply: most are short.
const REPLY_BUFFER: usize = 4 * 1024;
/// Events in one batch, and bytes of them.
const BATCH_EVENTS: usize = 512;
const BATCH_BYTES: usize = 1024 * 1024;

/// Why a host did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is no socket, or nobody listens on it.
    #[error("its host is not there")]
    Absent,
    /// It is another user's, another agent's or speaks another protocol.
    #[error("{0}")]
    Foreign(String),
    /// It listens and does not answer.
    #[error("its host does not answer")]
    Wedged,
    /// The connection broke.
    #[error("the connection to its host broke: {0}")]
    Broken(#[source] io::Error),
    /// The host says no.
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
/// [`connect`](Self::connect) finds out whose host it is; [`new`](Self::new) is for those who know. Then
/// [`attach`](Self::attach) gives a [`HostFeed`], whose [`recv`](HostFeed::recv) gives what comes. All futures but those of a feed
/// end within seconds, or within the time that a stop is given.
#[derive(Debug, Clone)]
pub struct HostClient {
    agent: AgentId,
    socket: PathBuf,
}

impl HostClient {
    /// The host of this agent, which listens on `socket` if it lives.
    pub fn new(agent: AgentId, socket: PathBuf) -> Self {
        Self { agent, socket }
    }

    /// The host that listens on `socket`, whichever agent it has.
    ///
    /// # Errors
    /// If nobody listens there, if another user does, or if it speaks another protocol.
    pub async fn connect(socket: PathBuf) -> Result<Self, HostError> {
        let status = status_at(&socket).await?;
        Ok(Self { agent: status.agent.id, socket })
    }

    /// Its agent.
    pub const fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The host and its agent. A host of another agent, or of another protocol, is foreign.
    pub async fn status(&self) -> Result<HostStatus, HostError> {
        let status = status_at(&self.socket).await?;
        self.check_agent(&status.agent.id)?;
        Ok(status)
    }

    /// Its version and how long it has run. A host that does not speak our protocol refuses.
    pub async fn ping(&self) -> Result<PingAnswer, HostError> {
        let ping = PingHost { protocol_version: Some(HOST_PROTOCOL.to_owned()) };
        self.request(HostRequestKind::Ping, Some(&ping), ANSWER_WITHIN).await
    }

    /// Its agents: always one.
    pub async fn list(&self) -> Result<Vec<AgentInfo>, HostError> {
        let list: HostList =
            self.request(HostRequestKind::List, None::<&()>, ANSWER_WITHIN).await?;
        Ok(list.agents)
    }

    /// A way to give the agent input again and again.
    pub fn input(self) -> HostInput {
        HostInput { host: self, connection: None }
    }

    /// A way to ask again and again whether the host answers.
    pub fn probe(self) -> HostProbe {
        HostProbe { host: self, connection: None }
    }

    /// Gives the agent input.
    pub async fn send(&self, input: &SendInput) -> Result<SendAnswer, HostError> {
        self.request(HostRequestKind::Send, Some(&input), SEND_WITHIN).await
    }

    /// Answers what the agent asked.
    pub async fn answer(&self, answer: &AnswerAgent) -> Result<(), HostError> {
        let _answer: Option<serde_json::Value> =
            self.request(HostRequestKind::Answer, Some(&answer), SEND_WITHIN).await?;
        Ok(())
    }

    /// Ends the turn that is under way.
    pub async fn interrupt(&self) -> Result<(), HostError> {
        let _answer: Option<serde_json::Value> =
            self.request(HostRequestKind::Interrupt, None::<&()>, SEND_WITHIN).await?;
        Ok(())
    }

    /// Ends the turn of one input, or takes it back if it waits.
    pub async fn withdraw(&self, message_id: &str) -> Result<(), HostError> {
        let interrupt = InterruptAgent { message_id: Some(message_id.to_owned()) };
        let _answer: Option<serde_json::Value> =
            self.request(HostRequestKind::Interrupt, Some(&interrupt), SEND_WITHIN).await?;
        Ok(())
    }

    /// Ends the agent; answers when its program is reaped.
    pub async fn stop(&self, stop: &StopAgent) -> Result<StopAnswer, HostError> {
        let given = u64::try_from(stop.timeout).unwrap_or(0);
        let given = Duration::from_secs(if given == 0 { 30 } else { given });
        self.request(HostRequestKind::Stop, Some(&stop), given + STOP_GRACE).await
    }

    /// What was said.
    pub async fn history(&self, query: &HistoryQuery) -> Result<HistoryPage, HostError> {
        self.request(HostRequestKind::History, Some(&query), SEND_WITHIN).await
    }

    /// Follows the host's events after `offset`.
    pub async fn attach(&self, offset: i64) -> Result<HostFeed, HostError> {
        let mut connection = HostConnection::open(&self.socket, FEED_BUFFER).await?;
        let attach = Some(AttachStream { offset });
        let reply =
            connection.exchange(HostRequestKind::Attach, attach.as_ref(), ANSWER_WITHIN).await?;
        let attached: AttachAnswer = reply.decode()?;
        self.check_agent(&attached.agent_id)?;
        Ok(HostFeed { connection, attached, words: None })
    }

    fn check_agent(&self, other: &AgentId) -> Result<(), HostError> {
        if *other == self.agent {
            return Ok(());
        }
        Err(HostError::Foreign(format!("its socket is that of agent {other}")))
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

/// The status of the host that listens on `socket`.
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

/// Gives one agent input, on a connection that is kept from one to the next.
#[derive(Debug)]
pub struct HostInput {
    host: HostClient,
    /// `None` before the first, and after a failure.
    connection: Option<HostConnection>,
}

impl HostInput {
    /// Gives the agent input. Its idempotency key must be set: where the kept connection broke, nobody knows whether the host
    /// has it, and it is sent once more on a new one.
    pub async fn send(&mut self, input: &SendInput) -> Result<SendAnswer, HostError> {
        if let Some(kept) = self.connection.take() {
            match self.exchange(kept, input).await {
                Err(HostError::Broken(_)) => {}
                told => return told,
            }
        }
        let fresh = HostConnection::open(&self.host.socket, REPLY_BUFFER).await?;
        self.exchange(fresh, input).await
    }

    async fn exchange(
        &mut self,
        mut connection: HostConnection,
        input: &SendInput,
    ) -> Result<SendAnswer, HostError> {
        let reply = connection.exchange(HostRequestKind::Send, Some(input), SEND_WITHIN).await?;
        self.connection = Some(connection);
        Ok(reply.decode()?)
    }
}

/// Asks one host whether it answers, on a connection that is kept from one time to the next.
#[derive(Debug)]
pub struct HostProbe {
    host: HostClient,
    /// `None` before the first, and after a failure.
    connection: Option<HostConnection>,
}

impl HostProbe {
    /// Whether the host answers.
    pub async fn ping(&mut self) -> Result<(), HostError> {
        if let Some(kept) = self.connection.take() {
            match self.exchange(kept).await {
                Err(HostError::Broken(_)) => {}
                told => return told,
            }
        }
        let fresh = HostConnection::open(&self.host.socket, REPLY_BUFFER).await?;
        self.exchange(fresh).await
    }

    async fn exchange(&mut self, mut connection: HostConnection) -> Result<(), HostError> {
        connection.exchange(HostRequestKind::Ping, None::<&()>, ANSWER_WITHIN).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// A connection to a host.
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
            ConnectError::Foreign { .. } => HostError::Foreign(error.to_string()),
            ConnectError::Io { source, .. } => HostError::Broken(source),
        })?;
        let (reader, writer) = stream.into_split();
        Ok(Self { lines: LineReader::new(reader, buffer, LINE_BYTES), writer })
    }

    /// Asks, and waits for the answer. No events come before it: the connection is attached to nothing yet.
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
                let line = self.next_line().await?;
                let Some(line) = line else {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                };
                if let HostFrame::Reply(reply) = HostFrame::parse(line)? {
                    return Ok(reply);
                }
            }
        };
        match timeout(within, exchange).await {
            Err(_) => Err(HostError::Wedged),
            Ok(Err(error)) => Err(HostError::Broken(error)),
            Ok(Ok(reply)) => Ok(reply),
        }
    }

    /// The next whole line; `None` at the end. What a dropped future has read of a line stays.
    async fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        match self.lines.next().await? {
            Some(line) if line.is_cut => Err(io::Error::other("a line of the host is too long")),
            line => Ok(line.filter(|line| line.has_end).map(|line| line.bytes)),
        }
    }
}

/// An event as its host wrote it.
#[derive(Debug, Clone)]
pub struct RawAgentEvent {
    /// The line, without its end: this goes into the log.
    pub line: Arc<str>,
    /// The same, read.
    pub event: AgentEvent,
}

impl RawAgentEvent {
    /// Reads one line.
    pub fn parse(line: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(line).map_err(io::Error::other)?;
        let event: AgentEvent = serde_json::from_str(text)?;
        // The time stands last. A host of an earlier version writes it as a number, and readers of the log get text.
        let is_of_earlier =
            text.trim_end_matches('}').ends_with(|last: char| last.is_ascii_digit());
        let line = if is_of_earlier { serde_json::to_string(&event)?.into() } else { text.into() };
        Ok(Self { line, event })
    }

    /// Its number.
    pub fn offset(&self) -> i64 {
        self.event.offset.cast_signed()
    }

    /// What happened.
    pub const fn body(&self) -> &AgentEventBody {
        &self.event.body
    }
}

/// Events of a host as they come.
#[derive(Debug)]
pub struct HostFeed {
    connection: HostConnection,
    attached: AttachAnswer,
    /// Words that ended a batch.
    words: Option<AgentDelta>,
}

/// What a host tells.
#[derive(Debug)]
pub enum HostNews {
    /// Events: at least one, and those that were there already.
    Events(Vec<RawAgentEvent>),
    /// What its agent is saying.
    Words(AgentDelta),
}

impl HostFeed {
    /// What the host said when the feed began: the last offset at that moment, and the first that can be had.
    pub const fn attached(&self) -> &AttachAnswer {
        &self.attached
    }

    /// What comes next; `None` when the host has closed. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Result<Option<HostNews>, HostError> {
        if let Some(words) = self.words.take() {
            return Ok(Some(HostNews::Words(words)));
        }
        let mut batch: Vec<RawAgentEvent> = Vec::new();
        let mut bytes = 0;
        loop {
            let line = self.connection.next_line().await.map_err(HostError::Broken)?;
            let Some(line) = line else { break };
            let event = RawAgentEvent::parse(line).map_err(HostError::Broken)?;
            if let AgentEventBody::Delta(words) = event.event.body {
                if batch.is_empty() {
                    return Ok(Some(HostNews::Words(words)));
                }
                self.words = Some(words);
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
        // It waits at its first line alone: the others are there.
        Ok((!batch.is_empty()).then_some(HostNews::Events(batch)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixListener;

    use super::*;

    /// Answers so many requests on each of its connections, one connection after the other, and closes each then. Tells the
    /// keys that it got, by connection.
    async fn host_of(listener: UnixListener, requests: &[usize]) -> Vec<Vec<String>> {
        let mut heard = Vec::new();
        for count in requests {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let mut lines = LineReader::new(reader, REPLY_BUFFER, LINE_BYTES);
            let mut keys = Vec::new();
            for _ in 0..*count {
                let line = lines.next().await.unwrap().unwrap();
                let request: serde_json::Value = serde_json::from_slice(line.bytes).unwrap();
                keys.push(request["payload"]["idempotency_key"].as_str().unwrap().to_owned());
                let answer = serde_json::json!({ "message_id": keys.last(), "queued": false });
                let reply =
                    serde_json::json!({ "type": "host.send", "success": true, "payload": answer });
                let reply = format!("{reply}\n");
                writer.write_all(reply.as_bytes()).await.unwrap();
            }
            heard.push(keys);
        }
        heard
    }

    #[tokio::test]
    async fn inputs_share_a_connection_and_outlive_one_that_breaks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.sock");
        let (listener, _file) = local_socket::listen(&path).unwrap();
        let host = tokio::spawn(host_of(listener, &[2, 1]));
        let mut input = HostClient::new(AgentId::from("ag_1".to_owned()), path).input();
        for key in ["first", "second", "third"] {
            let wish =
                SendInput { idempotency_key: Some(key.to_owned()), ..SendInput::new("a question") };
            input.send(&wish).await.unwrap();
        }
        assert_eq!(host.await.unwrap(), [vec!["first", "second"], vec!["third"]]);
    }

    #[test]
    fn an_event_of_an_earlier_host_is_as_those_of_today() {
        let today = r#"{"type":"chat_entry","chat_entry":{"role":"tool","tool_input":"{\"a\":1}","timestamp":"1970-01-01T00:00:00.007Z"},"agent_id":"ag_1","offset":3,"timestamp":"1970-01-01T00:00:00.007Z"}"#;
        let earlier = r#"{"type":"chat_entry","chat_entry":{"role":"tool","tool_input":{"a":1},"timestamp":7},"agent_id":"ag_1","offset":3,"timestamp":7}"#;
        let [of_today, of_earlier] =
            [today, earlier].map(|line| RawAgentEvent::parse(line.as_bytes()).unwrap());
        assert_eq!((&*of_today.line, &*of_earlier.line), (today, today));
        assert_eq!(of_today.event, of_earlier.event);
        let unknown = today.replace("\"role\"", "\"later\":true,\"role\"");
        let kept = RawAgentEvent::parse(unknown.as_bytes()).unwrap();
        assert_eq!(&*kept.line, unknown, "what a later host says more stays");
    }
}
