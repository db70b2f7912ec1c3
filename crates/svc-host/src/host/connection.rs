//! The socket of a host and its clients. Each client gets responses in the order of its requests,
//! and reads the stream at its own pace.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use svc_client::hosts::socket_path;
use svc_model::agent::{AgentDelta, AgentEvent, AgentEventBody, AgentInfo};
use svc_model::{AgentId, Clock, Timestamp};
use svc_sys::lines::json_line;
use svc_sys::local_socket::{self, SocketFile};
use svc_wire::host_protocol::{
    AnswerAgent, AttachAnswer, AttachStream, HOST_PROTOCOL, HistoryPage, HistoryQuery, HostInfo,
    HostList, HostReply, HostRequest, HostRequestKind, HostStatus, InterruptAgent, PingAnswer,
    PingHost, SendAnswer, SendInput, StopAgent, StopAnswer, agrees_with_protocol,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::agent_spool::{AgentSpool, SpoolEnd};
use super::decode::{ValueReader, request_of};
use super::record::PartialEntry;

/// Replies queued for a client at which its further requests are not read.
const MAX_REPLIES: usize = 16;
/// Bytes of the stream per write.
const CHUNK: usize = 64 * 1024;
/// How often a client that sends no more requests is checked for having hung up.
const HANG_UP_POLL: Duration = Duration::from_secs(1);
/// Least time between two deltas of an unfinished entry.
const PACE: Duration = Duration::from_millis(50);
/// Delay after `accept` failed, for example because no descriptors are left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// How long clients may take to read the rest of the stream when the host ends.
const DRAIN_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct HostContext {
    pub(super) agent_id: AgentId,
    pub(super) epoch: String,
    pub(super) started_at: Timestamp,
    pub(super) socket_path: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) spool: AgentSpool,
    pub(super) partial: PartialEntry,
    pub(super) agent: AgentCommands,
    /// Each client that follows the stream holds a clone, which counts it.
    pub(super) attached: Arc<()>,
}

/// A command to the agent, with the sender of its result.
#[derive(Debug)]
pub(super) enum HostCommand {
    Info(oneshot::Sender<AgentInfo>),
    Send(SendInput, oneshot::Sender<Result<SendAnswer, String>>),
    Answer(AnswerAgent, oneshot::Sender<Result<(), String>>),
    Interrupt(InterruptAgent, oneshot::Sender<Result<(), String>>),
    Stop(StopAgent, oneshot::Sender<StopAnswer>),
}

#[derive(Debug, Clone)]
pub(super) struct AgentCommands(mpsc::Sender<HostCommand>);

impl AgentCommands {
    pub(super) fn channel() -> (Self, mpsc::Receiver<HostCommand>) {
        let (sender, receiver) = mpsc::channel(16);
        (Self(sender), receiver)
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> HostCommand,
    ) -> Result<T, String> {
        let (sender, receiver) = oneshot::channel();
        let ends = || "the host ends".to_owned();
        self.0.send(command(sender)).await.map_err(|_| ends())?;
        receiver.await.map_err(|_| ends())
    }

    /// Forwards a request with its payload to the agent, and waits for the result.
    async fn forward<P: DeserializeOwned, T>(
        &self,
        request: &HostRequest,
        command: impl FnOnce(P, oneshot::Sender<Result<T, String>>) -> HostCommand,
    ) -> Result<T, String> {
        let payload = request.decode()?;
        self.ask(|reply| command(payload, reply)).await?
    }
}

#[derive(Debug)]
pub(super) struct HostSocket {
    listener: UnixListener,
    file: SocketFile,
    path: PathBuf,
}

impl HostSocket {
    /// Binds the socket of an agent in `folder`, whatever the length of the path.
    pub(super) fn bind(folder: &Path, agent: &AgentId) -> io::Result<Self> {
        let path = socket_path(folder, agent);
        let (listener, file) = local_socket::listen(&path)?;
        Ok(Self { listener, file, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Serves clients until `closing`; then attached clients get the rest of the stream.
    pub(super) async fn serve(self, host: Arc<HostContext>, mut closing: watch::Receiver<bool>) {
        let mut clients = JoinSet::new();
        let me = rustix::process::geteuid().as_raw();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = clients.join_next() => continue,
                () = async { drop(closing.wait_for(|closing| *closing).await) } => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    // Only clients of this user are served.
                    if stream.peer_cred().is_ok_and(|peer| peer.uid() == me) {
                        clients.spawn(serve(stream, Arc::clone(&host), closing.clone()));
                    }
                }
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
        drop(self.file);
        drop(self.listener);
        timeout(DRAIN_TIME, async { while clients.join_next().await.is_some() {} }).await.ok();
    }
}

#[derive(Debug)]
enum Outgoing {
    Reply(Vec<u8>),
    /// The reply; after it follows the stream from this byte on.
    Attach(Vec<u8>, u64),
    Detach(Vec<u8>),
}

/// Serves a client until it disconnects, or until the host is `closing` and the client has the
/// whole stream.
async fn serve(stream: UnixStream, host: Arc<HostContext>, closing: watch::Receiver<bool>) {
    let (reader, writer) = stream.into_split();
    let (outgoing, incoming) = mpsc::channel(MAX_REPLIES);
    let mut writing = tokio::spawn(write(writer, incoming, Arc::clone(&host), closing));
    // Lives until the stream ends, even if the client sends no more requests.
    let attachment = Mutex::new(None);
    tokio::select! {
        _ = &mut writing => {}
        () = read(reader, &host, &outgoing, &attachment) => {
            drop(outgoing);
            // The client may still read replies after its last request.
            writing.await.ok();
        }
    }
}

async fn read(
    mut reader: OwnedReadHalf,
    host: &Arc<HostContext>,
    outgoing: &mpsc::Sender<Outgoing>,
    attachment: &Mutex<Option<Arc<()>>>,
) {
    let mut values = ValueReader::default();
    let mut block = vec![0; 16 * 1024];
    loop {
        match reader.read(&mut block).await {
            Ok(0) | Err(_) => return,
            Ok(size) => values.push(&block[..size]),
        }
        while let Some(value) = values.next_value() {
            let answered = match value.and_then(request_of) {
                Ok(request) => answer(request, host, outgoing, attachment).await,
                Err(error) => {
                    let error = format!("decode request: {error}");
                    let reply = HostReply::refusal(&HostRequest::default(), error);
                    outgoing.send(Outgoing::Reply(reply.to_line())).await.is_ok()
                }
            };
            if !answered {
                return;
            }
        }
    }
}

/// Handles a request. Returns `false` if the client is gone.
async fn answer(
    request: HostRequest,
    host: &Arc<HostContext>,
    outgoing: &mpsc::Sender<Outgoing>,
    attachment: &Mutex<Option<Arc<()>>>,
) -> bool {
    let attach_as = |now| *attachment.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let Some(kind) = HostRequestKind::parse(&request.kind) else {
        let error = format!("unknown message type: {}", request.kind);
        let reply = HostReply::refusal(&request, error).to_line();
        return outgoing.send(Outgoing::Reply(reply)).await.is_ok();
    };
    let reply = match kind {
        HostRequestKind::Ping => ping(&request, host),
        HostRequestKind::Status => status(host).await,
        HostRequestKind::List => {
            let agent = host.agent.ask(HostCommand::Info).await;
            told(agent.map(|agent| HostList { agents: vec![agent] }))
        }
        HostRequestKind::Attach => {
            let out = match attach(&request, host) {
                Ok((answer, position)) => {
                    attach_as(Some(Arc::clone(&host.attached)));
                    let answer = payload(&answer).ok().flatten();
                    Outgoing::Attach(HostReply::success(&request, answer).to_line(), position)
                }
                Err(error) => Outgoing::Reply(HostReply::refusal(&request, error).to_line()),
            };
            return outgoing.send(out).await.is_ok();
        }
        HostRequestKind::Detach => {
            attach_as(None);
            let reply = HostReply::success(&request, None).to_line();
            return outgoing.send(Outgoing::Detach(reply)).await.is_ok();
        }
        HostRequestKind::History => history(&request, host),
        HostRequestKind::Send => told(host.agent.forward(&request, HostCommand::Send).await),
        HostRequestKind::Answer => done(host.agent.forward(&request, HostCommand::Answer).await),
        HostRequestKind::Interrupt => {
            done(host.agent.forward(&request, HostCommand::Interrupt).await)
        }
        HostRequestKind::Stop => match request.decode::<StopAgent>() {
            Ok(stop) => {
                // A stop may take long, and the client may send other requests meanwhile, such as a
                // forced stop.
                let (host, outgoing) = (Arc::clone(host), outgoing.clone());
                tokio::spawn(async move {
                    let stopped = host.agent.ask(|reply| HostCommand::Stop(stop, reply)).await;
                    let reply = reply_of(&request, told(stopped));
                    outgoing.send(Outgoing::Reply(reply)).await.ok();
                });
                return true;
            }
            Err(error) => Err(error),
        },
    };
    outgoing.send(Outgoing::Reply(reply_of(&request, reply))).await.is_ok()
}

type Answered = Result<Option<Value>, String>;

fn payload(payload: &impl Serialize) -> Answered {
    serde_json::to_value(payload).map(Some).map_err(|error| error.to_string())
}

fn told(result: Result<impl Serialize, String>) -> Answered {
    result.and_then(|answer| payload(&answer))
}

fn done(result: Result<(), String>) -> Answered {
    result.map(|()| None)
}

fn ping(request: &HostRequest, host: &HostContext) -> Answered {
    let PingHost { protocol_version } = request.decode()?;
    if let Some(version) = protocol_version.filter(|version| !agrees_with_protocol(version)) {
        return Err(format!(
            "unsupported protocol version: {version}; this host speaks {HOST_PROTOCOL}"
        ));
    }
    payload(&PingAnswer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_version: HOST_PROTOCOL.to_owned(),
        uptime: uptime(host.clock.now().since(host.started_at).as_secs()),
        started_at: host.started_at,
    })
}

fn uptime(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

async fn status(host: &HostContext) -> Answered {
    let agent = host.agent.ask(HostCommand::Info).await?;
    payload(&HostStatus {
        host: HostInfo {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: HOST_PROTOCOL.to_owned(),
            started_at: host.started_at,
            socket_path: host.socket_path.clone(),
            attached: Arc::strong_count(&host.attached) - 1,
        },
        agent,
    })
}

fn attach(request: &HostRequest, host: &HostContext) -> Result<(AttachAnswer, u64), String> {
    let AttachStream { offset } = request.decode()?;
    let end = host.spool.end();
    let after = u64::try_from(offset).unwrap_or(0);
    if after > end.offset {
        let last = end.offset;
        return Err(format!("offset {after} is beyond the end of the stream, which is {last}"));
    }
    let position = host.spool.position_after(after).map_err(|error| format!("spool: {error}"))?;
    let answer = AttachAnswer {
        agent_id: host.agent_id.clone(),
        stream_offset: end.offset,
        oldest_offset: 1,
        epoch: host.epoch.clone(),
    };
    Ok((answer, position))
}

fn history(request: &HostRequest, host: &HostContext) -> Answered {
    let query: HistoryQuery = request.decode()?;
    let offset = host.spool.end().offset;
    let mut marks = host.spool.entries();
    marks.retain(|mark| {
        query.before.is_none_or(|before| mark.offset < before)
            && (query.include_tools.unwrap_or(true) || !mark.is_of_tool)
    });
    let total = marks.len();
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let first = if limit == 0 { 0 } else { total.saturating_sub(limit) };
    let mut entries = Vec::new();
    for mark in &marks[first..] {
        let line = host.spool.read_entry(mark).map_err(|error| format!("spool: {error}"))?;
        let event = serde_json::from_slice::<AgentEvent>(&line);
        if let Ok(AgentEvent { body: AgentEventBody::ChatEntry { mut chat_entry }, .. }) = event {
            chat_entry.offset = Some(mark.offset);
            entries.push(chat_entry);
        }
    }
    let (agent_id, total) = (host.agent_id.clone(), total as u64);
    payload(&HistoryPage { agent_id, entries, offset, total })
}

fn reply_of(request: &HostRequest, answered: Answered) -> Vec<u8> {
    match answered {
        Ok(payload) => HostReply::success(request, payload),
        Err(error) => HostReply::refusal(request, error),
    }
    .to_line()
}

/// Writes replies and, if the client is attached, new events between them.
async fn write(
    mut writer: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Outgoing>,
    host: Arc<HostContext>,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let spool = &host.spool;
    let mut committed = spool.committed();
    let mut partial = host.partial.reader();
    let mut next_piece = Instant::now();
    let mut cursor: Option<u64> = None;
    // A client that sends no more requests still gets the stream for as long as it reads.
    let mut has_requests = true;
    let mut hang_up_poll = tokio::time::interval(HANG_UP_POLL);
    loop {
        let end: SpoolEnd = *committed.borrow_and_update();
        if let Some(at) = cursor.filter(|_| next_piece <= Instant::now())
            && let Some(piece) = partial.next(at)
        {
            writer.write_all(&delta(piece, &host)).await?;
            next_piece = Instant::now() + PACE;
        }
        let behind = cursor.is_some_and(|at| at < end.bytes);
        tokio::select! {
            biased;
            next = outgoing.recv(), if has_requests => match next {
                Some(Outgoing::Reply(reply)) => writer.write_all(&reply).await?,
                Some(Outgoing::Attach(reply, position)) => {
                    writer.write_all(&reply).await?;
                    cursor = Some(position);
                    partial = host.partial.reader();
                }
                Some(Outgoing::Detach(reply)) => {
                    cursor = None;
                    writer.write_all(&reply).await?;
                }
                None if cursor.is_none() => return Ok(()),
                None => has_requests = false,
            },
            () = std::future::ready(()), if behind => {
                let at = cursor.unwrap_or_default();
                // Only whole lines, as a reply may follow.
                let block = spool.whole_lines(at, end.bytes, CHUNK)?;
                writer.write_all(&block).await?;
                cursor = Some(at + block.len() as u64);
            }
            () = partial.changed(next_piece), if !behind && cursor.is_some() => {}
            changed = committed.changed(), if !behind && cursor.is_some() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            // Without new events, only this check notices that the client is gone.
            _ = hang_up_poll.tick(), if !has_requests && !behind => {
                if has_hung_up(&writer) {
                    return Ok(());
                }
            }
            () = async { drop(closing.wait_for(|closing| *closing).await) }, if !behind => return Ok(()),
        }
    }
}

/// Whether the client has closed both directions of the connection.
fn has_hung_up(writer: &OwnedWriteHalf) -> bool {
    let stream: &UnixStream = writer.as_ref();
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut watched, Some(&Timespec::default())).is_ok()
        && watched[0].revents().contains(PollFlags::HUP)
}

/// A delta of an unfinished entry is an event without an offset.
fn delta(piece: AgentDelta, host: &HostContext) -> Vec<u8> {
    let (agent_id, timestamp) = (host.agent_id.clone(), host.clock.now());
    let body = AgentEventBody::Delta(piece);
    json_line(&AgentEvent { body, agent_id, offset: 0, timestamp }).unwrap_or_default()
}
