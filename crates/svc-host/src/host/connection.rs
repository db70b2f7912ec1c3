//! One client of a host: its requests one after the other, and the stream at its own pace.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;
use svc_model::agent::{AgentDelta, AgentEvent, AgentEventBody};
use svc_model::{AgentId, Clock, Timestamp};
use svc_wire::host_protocol::{
    AnswerAgent, AttachAnswer, AttachStream, HOST_PROTOCOL, HistoryPage, HistoryQuery, HostInfo,
    HostList, HostReply, HostRequest, HostRequestKind, HostStatus, InterruptAgent, PingAnswer,
    PingHost, SendInput, StopAgent, agrees_with_protocol,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};

use super::commands::{AgentCommands, HostCommand};
use super::decode::ValueReader;
use super::saying::Saying;
use crate::runner::{AgentSpool, SpoolEnd};

/// Replies that may wait for a client before its requests are no longer read.
const MAX_REPLIES: usize = 16;
/// Bytes of the stream in one write.
const CHUNK: usize = 64 * 1024;
/// How often is looked whether a client that has said its last word still reads.
const STILL_READS: Duration = Duration::from_secs(1);
/// The least time between two pieces of what the agent is saying.
const PACE: Duration = Duration::from_millis(50);

/// What all connections share.
#[derive(Debug)]
pub(super) struct HostFace {
    pub(super) agent_id: AgentId,
    pub(super) epoch: String,
    pub(super) started_at: Timestamp,
    pub(super) socket_path: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) spool: AgentSpool,
    pub(super) saying: Saying,
    pub(super) agent: AgentCommands,
    /// How many clients follow the stream.
    pub(super) attached: Arc<AtomicUsize>,
}

/// Counts a client that follows the stream, until it is dropped.
#[derive(Debug)]
struct Attachment(Arc<AtomicUsize>);

impl Attachment {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What goes out, in order.
#[derive(Debug)]
enum Outgoing {
    Reply(Vec<u8>),
    /// The stream from this byte on follows the reply.
    Attach(Vec<u8>, u64),
    /// No event follows the reply.
    Detach(Vec<u8>),
}

/// Serves a client until it goes, or `closing` says that the host ends and the client has the whole stream.
pub(super) async fn serve(stream: UnixStream, face: Arc<HostFace>, closing: watch::Receiver<bool>) {
    let (reader, writer) = stream.into_split();
    let (outgoing, incoming) = mpsc::channel(MAX_REPLIES);
    let mut writing = tokio::spawn(write(writer, incoming, Arc::clone(&face), closing));
    // It lasts as long as the stream goes out, also after the last request.
    let attachment = Mutex::new(None);
    tokio::select! {
        _ = &mut writing => {}
        () = read(reader, &face, &outgoing, &attachment) => {
            drop(outgoing);
            // The client has said its last word and may still read the answers.
            writing.await.ok();
        }
    }
}

async fn read(
    mut reader: OwnedReadHalf,
    face: &Arc<HostFace>,
    outgoing: &mpsc::Sender<Outgoing>,
    attachment: &Mutex<Option<Attachment>>,
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
                Ok(request) => answer(request, face, outgoing, attachment).await,
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

/// The request in a value. Null is one without a type.
pub(super) fn request_of(value: Value) -> Result<HostRequest, String> {
    match value {
        Value::Null => return Ok(HostRequest::default()),
        Value::Object(_) => {}
        _ => return Err("expected an object".to_owned()),
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Answers one request; `false` if the client is gone.
async fn answer(
    request: HostRequest,
    face: &Arc<HostFace>,
    outgoing: &mpsc::Sender<Outgoing>,
    attachment: &Mutex<Option<Attachment>>,
) -> bool {
    let attach_as = |now| *attachment.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let Some(kind) = HostRequestKind::parse(&request.kind) else {
        let error = format!("unknown message type: {}", request.kind);
        let reply = HostReply::refusal(&request, error).to_line();
        return outgoing.send(Outgoing::Reply(reply)).await.is_ok();
    };
    let reply = match kind {
        HostRequestKind::Ping => ping(&request, face),
        HostRequestKind::Status => status(face).await,
        HostRequestKind::List => match face.agent.ask(HostCommand::Info).await {
            Ok(agent) => payload(&HostList { agents: vec![agent] }),
            Err(error) => Err(error),
        },
        HostRequestKind::Attach => {
            let out = match attach(&request, face) {
                Ok((answer, position)) => {
                    attach_as(None);
                    attach_as(Some(Attachment::new(&face.attached)));
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
        HostRequestKind::History => history(&request, face),
        HostRequestKind::Send => match request.decode::<SendInput>() {
            Ok(send) => told(face.agent.try_ask(|reply| HostCommand::Send(send, reply)).await),
            Err(error) => Err(error),
        },
        HostRequestKind::Answer => match request.decode::<AnswerAgent>() {
            Ok(answer) => {
                done(face.agent.try_ask(|reply| HostCommand::Answer(answer, reply)).await)
            }
            Err(error) => Err(error),
        },
        HostRequestKind::Interrupt => match request.decode::<InterruptAgent>() {
            Ok(interrupt) => {
                done(face.agent.try_ask(|reply| HostCommand::Interrupt(interrupt, reply)).await)
            }
            Err(error) => Err(error),
        },
        HostRequestKind::Stop => match request.decode::<StopAgent>() {
            Ok(stop) => {
                // It may take long, and the client may ask for other things meanwhile, such as a stop by force.
                let (face, outgoing) = (Arc::clone(face), outgoing.clone());
                tokio::spawn(async move {
                    let stopped = face.agent.ask(|reply| HostCommand::Stop(stop, reply)).await;
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

fn ping(request: &HostRequest, face: &HostFace) -> Answered {
    let PingHost { protocol_version } = request.decode()?;
    if let Some(version) = protocol_version.filter(|version| !agrees_with_protocol(version)) {
        return Err(format!(
            "unsupported protocol version: {version}; this host speaks {HOST_PROTOCOL}"
        ));
    }
    payload(&PingAnswer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_version: HOST_PROTOCOL.to_owned(),
        uptime: uptime(face.clock.now().since(face.started_at).as_secs()),
        started_at: face.started_at,
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

async fn status(face: &HostFace) -> Answered {
    let agent = face.agent.ask(HostCommand::Info).await?;
    payload(&HostStatus {
        host: HostInfo {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: HOST_PROTOCOL.to_owned(),
            started_at: face.started_at,
            socket_path: face.socket_path.clone(),
            attached: face.attached.load(Ordering::SeqCst),
        },
        agent,
    })
}

fn attach(request: &HostRequest, face: &HostFace) -> Result<(AttachAnswer, u64), String> {
    let AttachStream { offset } = request.decode()?;
    let end = face.spool.end();
    let after = u64::try_from(offset).unwrap_or(0);
    if after > end.offset {
        let last = end.offset;
        return Err(format!("offset {after} is beyond the end of the stream, which is {last}"));
    }
    let position = face.spool.position_after(after).map_err(|error| format!("spool: {error}"))?;
    let answer = AttachAnswer {
        agent_id: face.agent_id.clone(),
        stream_offset: end.offset,
        oldest_offset: 1,
        epoch: face.epoch.clone(),
    };
    Ok((answer, position))
}

fn history(request: &HostRequest, face: &HostFace) -> Answered {
    let query: HistoryQuery = request.decode()?;
    let offset = face.spool.end().offset;
    let mut marks = face.spool.entries();
    marks.retain(|mark| {
        query.before.is_none_or(|before| mark.offset < before)
            && (query.include_tools.unwrap_or(true) || !mark.is_of_tool)
    });
    let total = marks.len();
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let first = if limit == 0 { 0 } else { total.saturating_sub(limit) };
    let mut entries = Vec::new();
    for mark in &marks[first..] {
        let line = face.spool.read_entry(mark).map_err(|error| format!("spool: {error}"))?;
        let event = serde_json::from_slice::<AgentEvent>(&line);
        if let Ok(AgentEvent { body: AgentEventBody::ChatEntry { mut chat_entry }, .. }) = event {
            chat_entry.offset = Some(mark.offset);
            entries.push(chat_entry);
        }
    }
    let (agent_id, total) = (face.agent_id.clone(), total as u64);
    payload(&HistoryPage { agent_id, entries, offset, total })
}

fn reply_of(request: &HostRequest, answered: Answered) -> Vec<u8> {
    match answered {
        Ok(payload) => HostReply::success(request, payload),
        Err(error) => HostReply::refusal(request, error),
    }
    .to_line()
}

/// Writes replies as they come, and between them what is new in the spool, if the client is attached.
async fn write(
    mut writer: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Outgoing>,
    face: Arc<HostFace>,
    mut closing: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let spool = &face.spool;
    let mut committed = spool.committed();
    let mut saying = face.saying.reader();
    let mut next_words = Instant::now();
    let mut cursor: Option<u64> = None;
    // A client that has said its last word is served the stream as long as it takes it.
    let mut has_requests = true;
    let mut still_reads = tokio::time::interval(STILL_READS);
    loop {
        let end: SpoolEnd = *committed.borrow_and_update();
        if let Some(at) = cursor.filter(|_| next_words <= Instant::now())
            && let Some(words) = saying.next(at)
        {
            writer.write_all(&delta(words, &face)).await?;
            next_words = Instant::now() + PACE;
        }
        let behind = cursor.is_some_and(|at| at < end.bytes);
        tokio::select! {
            biased;
            next = outgoing.recv(), if has_requests => match next {
                Some(Outgoing::Reply(reply)) => writer.write_all(&reply).await?,
                Some(Outgoing::Attach(reply, position)) => {
                    writer.write_all(&reply).await?;
                    cursor = Some(position);
                    saying = face.saying.reader();
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
                // A reply may follow, and must not stand within a line.
                let block = spool.whole_lines(at, end.bytes, CHUNK)?;
                writer.write_all(&block).await?;
                cursor = Some(at + block.len() as u64);
            }
            () = saying.changed(next_words), if !behind && cursor.is_some() => {}
            changed = committed.changed(), if !behind && cursor.is_some() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            // Nothing else tells that it is gone until the agent says something.
            _ = still_reads.tick(), if !has_requests && !behind => {
                if has_hung_up(&writer) {
                    return Ok(());
                }
            }
            () = async { drop(closing.wait_for(|closing| *closing).await) }, if !behind => return Ok(()),
        }
    }
}

/// Whether the client has closed both ends, so that nobody reads what is written.
fn has_hung_up(writer: &OwnedWriteHalf) -> bool {
    let stream: &UnixStream = writer.as_ref();
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut watched, Some(&Timespec::default())).is_ok()
        && watched[0].revents().contains(PollFlags::HUP)
}

/// Words as they go to a client: an event without a number.
fn delta(words: AgentDelta, face: &HostFace) -> Vec<u8> {
    let mut line = serde_json::to_vec(&AgentEvent {
        body: AgentEventBody::Delta(words),
        agent_id: face.agent_id.clone(),
        offset: 0,
        timestamp: face.clock.now(),
    })
    .unwrap_or_default();
    line.push(b'\n');
    line
}
