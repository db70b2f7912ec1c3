//! Baselines: the minimum for axum, and the minimum for a socket. Each is a process of its own,
//! `svc-bench server <kind>`, like the daemon.

use std::{
    convert::Infallible,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use clap::{Args, Subcommand};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::broadcast;

use super::{
    ceiling::{Appender, GroupCommit, STREAMS, data, runtime},
    load::Target,
    sandbox::{Process, Sandbox},
    wire::FrameSize,
};

/// Arguments of the servers.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Which one
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum Kind {
    /// POST of anything answers a small JSON
    #[command(after_help = "Example:\n  svc-bench server noop")]
    Noop,
    /// POST of anything to `/append/{stream}/{events}` inserts so many events in a bare group
    /// commit
    #[command(after_help = "Example:\n  svc-bench server commits bench.db")]
    Commits {
        /// A database with our tables
        database: PathBuf,
    },
    /// An `axum::response::sse::Event` for each event and subscriber
    #[command(after_help = "Example:\n  svc-bench server events")]
    Events,
    /// Frames written to the sockets by one thread, without HTTP
    #[command(after_help = "Example:\n  svc-bench server raw")]
    Raw,
    /// POST of JSON to /mcp answers JSON
    #[command(after_help = "Example:\n  svc-bench server json 400")]
    Json {
        /// Length of the answer
        bytes: usize,
    },
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) target: Target,
}

impl Server {
    pub(crate) fn start(sandbox: &Sandbox, kind: Kind) -> anyhow::Result<Self> {
        let name = match kind {
            Kind::Noop => "noop",
            Kind::Commits { .. } => "commits",
            Kind::Events => "events",
            Kind::Raw => "raw",
            Kind::Json { .. } => "json",
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["server", name]);
        match kind {
            Kind::Json { bytes } => drop(command.arg(bytes.to_string())),
            Kind::Commits { database } => drop(command.arg(database)),
            Kind::Noop | Kind::Events | Kind::Raw => {}
        }
        let mut process = sandbox.start(name, &mut command)?;
        let line = process.first_line()?;
        let address = line.trim().parse().with_context(|| format!("it said {line:?}"))?;
        Ok(Self { process, target: Target { address, token: None } })
    }

    /// A request to follow the events, which begin when `subscribers` do so; `batch` of them in one
    /// write, if the server chooses.
    pub(crate) fn follow_request(&self, subscribers: usize, batch: usize) -> Vec<u8> {
        let path = format!("/events?subscribers={subscribers}&batch={batch}");
        self.target.request("GET", &path, "")
    }
}

pub(crate) fn frame_size() -> FrameSize {
    FrameSize::measure(frame(1).len(), 1)
}

fn frame(id: u64) -> String {
    format!("id: {id}\nevent: frame\ndata: {}\n\n", data())
}

pub(crate) fn run(args: &ServerArgs) -> anyhow::Result<()> {
    if args.kind == Kind::Raw {
        return raw();
    }
    let runtime = match args.kind {
        Kind::Commits { .. } => runtime()?,
        _ => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
    };
    let router = router(&args.kind)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        announce(listener.local_addr()?)?;
        let listener = axum::serve::ListenerExt::tap_io(listener, |socket| {
            socket.set_nodelay(true).ok();
        });
        axum::serve(listener, router).await?;
        Ok(())
    })
}

fn announce(address: SocketAddr) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush())
}

fn router(kind: &Kind) -> anyhow::Result<Router> {
    Ok(match kind {
        Kind::Commits { database } => {
            let group = GroupCommit::start(database, i64::try_from(STREAMS)?)?;
            let appender = group.appender();
            // The loop runs until the process ends.
            std::mem::forget(group);
            Router::new().route("/append/{stream}/{events}", post(commit)).with_state(appender)
        }
        Kind::Noop | Kind::Raw => Router::new().route("/v1/tasks/{id}/events", post(noop)),
        Kind::Events => {
            Router::new().route("/events", get(events)).with_state(broadcast::Sender::new(RING))
        }
        Kind::Json { bytes } => {
            // The size includes the JSON around the text.
            let text: Arc<str> = "x".repeat(bytes.saturating_sub(45)).into();
            Router::new().route("/mcp", post(answer_json)).with_state(text)
        }
    })
}

/// The least work of a durable append: reads the body, and responds when that many events are on
/// the disk.
async fn commit(
    State(appender): State<Appender>,
    Path((stream, events)): Path<(i64, usize)>,
    body: Bytes,
) -> Response {
    match appender.append(stream, data(), events).await {
        Ok(last) => {
            let json = format!("{{\"first_id\":{},\"last_id\":{last}}}", body.len());
            ([(header::CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[derive(Serialize)]
struct JsonAnswer<'a> {
    jsonrpc: &'static str,
    id: &'a Value,
    result: &'a str,
}

/// The least work of a handler of JSON: parses the body, and writes a response that depends on it.
async fn answer_json(State(result): State<Arc<str>>, body: Bytes) -> Response {
    let Ok(asked) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let answer = JsonAnswer { jsonrpc: "2.0", id: &asked["id"], result: &result };
    let json = serde_json::to_vec(&answer).expect("an answer has a JSON form");
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

async fn noop(body: Bytes) -> impl IntoResponse {
    let json = format!("{{\"first_id\":{len},\"last_id\":{len}}}", len = body.len());
    ([(header::CONTENT_TYPE, "application/json")], json)
}

/// Events that the slowest subscriber may be behind. The publisher waits, so that no subscriber
/// loses any.
const RING: usize = 16 * 1024;

#[derive(Debug, Deserialize)]
struct Follow {
    subscribers: usize,
}

type Published = Arc<(u64, Arc<str>)>;

async fn events(
    State(sender): State<broadcast::Sender<Published>>,
    Query(Follow { subscribers }): Query<Follow>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let receiver = sender.subscribe();
    if sender.receiver_count() == subscribers {
        // In its own thread, so that it does not compete with the subscribers' tasks.
        std::thread::spawn(move || publish(&sender, subscribers));
    }
    let events = stream::unfold(receiver, |mut receiver| async move {
        let published = receiver.recv().await.ok()?;
        let (id, data) = &*published;
        let event = Event::default().id(id.to_string()).event("frame").data(&**data);
        Some((Ok(event), receiver))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// Publishes as long as all subscribers are connected.
fn publish(sender: &broadcast::Sender<Published>, subscribers: usize) {
    let data = data();
    // Gives the latest subscriber time to send its head.
    std::thread::sleep(Duration::from_millis(20));
    let mut id = 0;
    while sender.receiver_count() == subscribers {
        if sender.len() > RING / 2 {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        for _ in 0..64 {
            id += 1;
            sender.send(Arc::new((id, Arc::clone(&data)))).ok();
        }
    }
}

/// One thread that writes the same bytes to every socket in turn.
fn raw() -> anyhow::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    announce(listener.local_addr()?)?;
    let mut sockets = Vec::new();
    loop {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut request = [0; 1024];
        let got = socket.read(&mut request)?;
        let request = String::from_utf8_lossy(&request[..got]).into_owned();
        let number = |name: &str| -> Option<usize> {
            let (_, rest) = request.split_once(name)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let (subscribers, batch) =
            (number("subscribers=").unwrap_or(1), number("batch=").unwrap_or(1));
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")?;
        sockets.push(socket);
        if sockets.len() == subscribers {
            // Ends when one of them disconnects, as they all disconnect together.
            write_frames(&mut sockets, batch as u64).ok();
            sockets.clear();
        }
    }
}

fn write_frames(sockets: &mut [std::net::TcpStream], batch: u64) -> std::io::Result<()> {
    let mut id = 0;
    loop {
        let bytes: String = (id + 1..=id + batch).map(frame).collect();
        id += batch;
        for socket in &mut *sockets {
            socket.write_all(bytes.as_bytes())?;
        }
    }
}
