//! `floods`: the latency of a session's appends during a flood of its own daemon, compared with the
//! same flood of another daemon on the same machine. Also the memory of the flooded daemon, and its
//! refusals.
//!
//! The other daemon uses the same share of the processors and the disk. So the ratio is the effect
//! that one principal has on another through their shared daemon.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::json;

use super::{
    bench::Bench,
    daemon::{self, Daemon},
    idle,
    load::{Caller, Protocol, Target, tool_call},
    neighbour::{self, Answers, Crowd, Work, mint, session},
    report::{Figure, Goal, Slice, Summary, float},
    wire,
};

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Rounds of a flood. Each has one window during a flood of the other daemon, and one during a
/// flood of the daemon itself.
const ROUNDS: usize = 3;
/// Limit of open files of a daemon that gets a flood of connections.
const FEW_FILES: u32 = 300;
const HOLDERS: usize = 3;
/// How often a thread polls the connections that it holds.
const LOOK: Duration = Duration::from_millis(20);
const PIPELINED: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    Readers,
    TaskPages,
    Recall,
    Bodies,
    HalfOpen,
    Broadcasts,
    ChildStderr,
    ChildLists,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    readers: usize,
    /// Events per page, and bytes per event.
    events: (usize, usize),
    loops: usize,
    /// Tasks per page, and bytes per task.
    tasks: (usize, usize),
    memories: usize,
    bodies: usize,
    connections: usize,
    peers: usize,
    /// Appends per window, and the longest duration of a window.
    window: (usize, Duration),
}

impl Sizes {
    const FULL: Self = Self {
        readers: 300,
        events: (500, 8 * 1024),
        loops: 8,
        tasks: (64, 900 * 1024),
        memories: 1000,
        bodies: 600,
        connections: 600,
        peers: 100,
        window: (3000, Duration::from_secs(10)),
    };
    const QUICK: Self = Self {
        readers: 12,
        events: (20, 1024),
        loops: 2,
        tasks: (4, 16 * 1024),
        memories: 8,
        bodies: 12,
        connections: 12,
        peers: 3,
        window: (15, Duration::from_secs(2)),
    };
}

/// Bytes of a body without a token: within the bound for bodies, but beyond the bound for senders
/// without a credential.
const BODY_BYTES: usize = 990_000;
/// Bytes of a broadcast: the largest body.
const BROADCAST_BYTES: usize = 1_000_000;

impl Flood {
    const ALL: [Self; 8] = [
        Self::Readers,
        Self::TaskPages,
        Self::Recall,
        Self::Bodies,
        Self::HalfOpen,
        Self::Broadcasts,
        Self::ChildStderr,
        Self::ChildLists,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Readers => "readers that do not read",
            Self::TaskPages => "large pages of tasks",
            Self::Recall => "searches of memories",
            Self::Bodies => "bodies without a token",
            Self::HalfOpen => "half-open connections",
            Self::Broadcasts => "broadcasts of 1 MB",
            Self::ChildStderr => "a child's standard error",
            Self::ChildLists => "a child's changes of its list",
        }
    }

    /// Whether this is a flood of connections. If so, the neighbour opens a new connection for each
    /// append, over the socket.
    const fn is_of_connections(self) -> bool {
        matches!(self, Self::Bodies | Self::HalfOpen)
    }

    /// The kind of noise that a child server makes, as its command line names it.
    const fn noise(self) -> Option<&'static str> {
        match self {
            Self::ChildStderr => Some("stderr"),
            Self::ChildLists => Some("lists"),
            _ => None,
        }
    }
}

/// A daemon that is prepared for a flood.
struct Ground {
    daemon: Daemon,
    greedy: Target,
    /// A child server floods while this file exists.
    noise: PathBuf,
}

/// A flood that lasts until it is dropped.
struct RunningFlood {
    _crowd: Crowd,
    noise: Option<PathBuf>,
}

impl Drop for RunningFlood {
    fn drop(&mut self) {
        if let Some(noise) = &self.noise {
            // The file may not exist yet.
            std::fs::remove_file(noise).ok();
        }
    }
}

impl Ground {
    fn prepare(bench: &Bench, flood: Flood, name: &str, sizes: &Sizes) -> anyhow::Result<Self> {
        let home = bench.sandbox.path(name);
        let noise = bench.sandbox.path(&format!("{name}.noise"));
        std::fs::create_dir_all(&home)?;
        if let Some(kind) = flood.noise() {
            let program = std::env::current_exe()?.display().to_string();
            let config = format!(
                "[sources.noisy]\ncommand = {program:?}\n\
                 args = [\"child\", \"--noise\", {kind:?}, \"--while\", {:?}]\nsharing = \"shared\"\n",
                noise.display().to_string(),
            );
            std::fs::write(home.join("config.toml"), config)?;
        }
        let files = (flood == Flood::HalfOpen && !bench.quick).then_some(FEW_FILES);
        let daemon = Daemon::start_limited(&bench.sandbox, name, files)?;
        let greedy = session(&daemon, "greedy")?;
        let ground = Self { daemon, greedy, noise };
        ground.fill(flood, sizes)?;
        Ok(ground)
    }

    fn fill(&self, flood: Flood, sizes: &Sizes) -> anyhow::Result<()> {
        let operator = &self.daemon.target;
        match flood {
            Flood::Readers => {
                let task = self.greedy.call("POST", "/v1/tasks", r#"{"title":"flood"}"#)?;
                let task = task["task_id"].as_str().context("a task has an id")?;
                let (events, bytes) = sizes.events;
                let line = "x".repeat(bytes);
                let event = json!({ "kind": "frame", "data": { "line": line, "kind": "stdout" } });
                let path = format!("/v1/tasks/{task}/events");
                for _ in 0..events.div_ceil(20) {
                    self.greedy.call("POST", &path, &json!(vec![event.clone(); 20]).to_string())?;
                }
            }
            Flood::TaskPages => {
                let (tasks, bytes) = sizes.tasks;
                let body = json!({ "title": "flood", "prompt": "x".repeat(bytes) }).to_string();
                for _ in 0..tasks {
                    operator.call("POST", "/v1/tasks", &body)?;
                }
            }
            Flood::Recall => {
                for number in 0..sizes.memories {
                    let content =
                        format!("note {number}: {}", "the lock is held too long ".repeat(60));
                    let memory = json!({ "content": content, "category": "fact" });
                    self.greedy.call("POST", "/mcp", &tool_call("store_memory", &memory))?;
                }
            }
            Flood::Broadcasts => {
                let own =
                    json!({ "display_name": "greedy", "backend": "bench", "path": "/greedy" });
                self.greedy.call("POST", "/v1/peers/register", &own.to_string())?;
                for number in 0..sizes.peers {
                    let peer = json!({ "display_name": format!("p{number}"), "backend": "bench",
                        "path": format!("/{number}") });
                    operator.call("POST", "/v1/peers/register", &peer.to_string())?;
                }
            }
            Flood::ChildStderr | Flood::ChildLists => {
                let began = Instant::now();
                while operator.call("GET", "/v1/sources/noisy", "")?["state"] != "connected" {
                    let waited = began.elapsed();
                    anyhow::ensure!(waited < Duration::from_secs(30), "the child does not start");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            Flood::Bodies | Flood::HalfOpen => {}
        }
        Ok(())
    }

    fn flood(
        &self,
        flood: Flood,
        sizes: &Sizes,
        answers: &Arc<Answers>,
    ) -> anyhow::Result<RunningFlood> {
        let address = self.daemon.target.address;
        let works = match flood {
            Flood::Readers => {
                let path = "/v1/events?stream_prefix=task/&limit=500";
                let request = self.greedy.request("GET", path, "").repeat(PIPELINED);
                held(address, &request, sizes.readers)
            }
            Flood::Bodies => {
                let stranger = Target { address, token: None };
                let requests = ["/login", "/v1/daemon_proof"].map(|path| {
                    let mut request = stranger.request("POST", path, &"x".repeat(BODY_BYTES));
                    request.pop();
                    request
                });
                let works = |request: &Vec<u8>| held(address, request, sizes.bodies / 2);
                requests.iter().flat_map(works).collect()
            }
            Flood::HalfOpen => held(address, b"GET /health HTT", sizes.connections),
            Flood::TaskPages => {
                // The flooding session has the scope `read_all`, so each page is full.
                let input = json!({ "session": "greedy-reader", "scopes": ["read_all"] });
                let reader = mint(&self.daemon, &input)?;
                loops(address, &[reader.request("GET", "/v1/tasks?limit=500", "")], sizes.loops)
            }
            Flood::Recall => {
                let query = "a lock that is held too long";
                let requests = [
                    ("retrieve_memories", json!({ "query": query, "limit": 50 })),
                    ("assemble_context", json!({ "query": query })),
                ];
                let requests = requests.map(|(tool, arguments)| {
                    self.greedy.request("POST", "/mcp", &tool_call(tool, &arguments))
                });
                loops(address, &requests, sizes.loops)
            }
            Flood::Broadcasts => {
                let body = json!({ "text": "x".repeat(BROADCAST_BYTES) }).to_string();
                loops(address, &[self.greedy.request("POST", "/v1/peers/broadcast", &body)], 2)
            }
            Flood::ChildStderr | Flood::ChildLists => Vec::new(),
        };
        let noise = flood.noise().map(|_| self.noise.clone());
        if let Some(noise) = &noise {
            std::fs::write(noise, "")?;
        }
        Ok(RunningFlood { _crowd: Crowd::counting(works, answers), noise })
    }
}

/// Threads that repeat these requests and read the responses.
fn loops(address: SocketAddr, requests: &[Vec<u8>], count: usize) -> Vec<Work> {
    let one = |number: usize| -> Work {
        let request = requests[number % requests.len()].clone();
        let (mut connection, mut buffer) = (None, Vec::new());
        Box::new(move |answers| {
            buffer.clear();
            if let Some(beginning) = neighbour::ask(&mut connection, address, &request) {
                buffer.extend_from_slice(&beginning);
                answers.add(&buffer);
                let is_whole = matches!(wire::http_answer(&buffer), Ok(Some(_)) | Err(_));
                if !is_whole && connection.is_some() && !read_rest(&mut connection, &mut buffer) {
                    connection = None;
                }
            } else {
                connection = None;
                std::thread::sleep(LOOK);
            }
        })
    };
    (0..count).map(one).collect()
}

/// Reads the rest of a response; `false` if the connection ended.
fn read_rest(connection: &mut Option<TcpStream>, buffer: &mut Vec<u8>) -> bool {
    let Some(socket) = connection.as_mut() else { return false };
    let mut piece = vec![0; 256 * 1024];
    loop {
        match socket.read(&mut piece) {
            Ok(got) if got > 0 => buffer.extend_from_slice(&piece[..got]),
            _ => return false,
        }
        // Parses only if the last bytes look like the end of a response, as parsing a long response
        // after each chunk is slow.
        let ends = buffer.ends_with(b"}") || buffer.ends_with(b"\r\n");
        if ends && matches!(wire::http_answer(buffer), Ok(Some(_)) | Err(_)) {
            return true;
        }
    }
}

/// Threads that send a request on each of `count` connections and never read. A refused connection
/// is opened again.
fn held(address: SocketAddr, request: &[u8], count: usize) -> Vec<Work> {
    let holder = |number: usize| -> Work {
        let mine = count / HOLDERS + usize::from(number < count % HOLDERS);
        let request = request.to_vec();
        let mut connections: Vec<Option<HeldConnection>> = Vec::new();
        connections.resize_with(mine, || None);
        Box::new(move |answers| {
            for connection in &mut connections {
                let is_held = connection.as_mut().is_some_and(|held| held.go_on(&request, answers));
                if !is_held {
                    *connection = HeldConnection::open(address);
                }
            }
            std::thread::sleep(LOOK);
        })
    };
    (0..HOLDERS).map(holder).collect()
}

struct HeldConnection {
    socket: TcpStream,
    sent: usize,
    is_answered: bool,
}

impl HeldConnection {
    fn open(address: SocketAddr) -> Option<Self> {
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, sent: 0, is_answered: false })
    }

    /// Sends as much as fits into the socket, and peeks at the response. `false` if the connection
    /// ended or was refused.
    fn go_on(&mut self, request: &[u8], answers: &Answers) -> bool {
        let mut is_open = true;
        while self.sent < request.len() {
            match self.socket.write(&request[self.sent..]) {
                Ok(0) => break,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // A response that arrived before the error still counts.
                    is_open = false;
                    break;
                }
            }
        }
        let mut beginning = [0; 2048];
        match self.socket.peek(&mut beginning) {
            Ok(0) => false,
            Ok(got) => {
                if !self.is_answered && got >= 12 {
                    self.is_answered = true;
                    answers.add(&beginning[..got]);
                }
                is_open && beginning.get(9).is_none_or(|class| *class < b'4')
            }
            Err(error) => is_open && error.kind() == ErrorKind::WouldBlock,
        }
    }
}

enum Neighbour {
    Kept(Box<Caller>, Vec<u8>),
    /// On a new connection each time, over the daemon's socket.
    Anew(PathBuf, Vec<u8>),
}

impl Neighbour {
    fn start(daemon: &Daemon, is_anew: bool) -> anyhow::Result<Self> {
        let neighbour = session(daemon, "neighbour")?;
        let task = neighbour.call("POST", "/v1/tasks", r#"{"title":"bench"}"#)?;
        let task = task["task_id"].as_str().context("a task has an id")?;
        let path = format!("/v1/tasks/{task}/events");
        let body = daemon::body(1);
        if is_anew {
            let headers = [("connection", "close")];
            let request = neighbour.request_with("POST", &path, &headers, &body);
            return Ok(Self::Anew(daemon.home().join("svc.sock"), request));
        }
        let caller = Caller::open(neighbour.address, &Protocol::HTTP)?;
        Ok(Self::Kept(Box::new(caller), neighbour.request("POST", &path, &body)))
    }

    fn append(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Kept(caller, request) => caller.ask(request).map(drop),
            Self::Anew(socket, request) => append_anew(socket, request),
        }
    }

    /// Appends `count` times, or as often as possible within `time`, but at least once.
    fn measure(&mut self, (count, time): (usize, Duration)) -> anyhow::Result<Slice> {
        let (mut slice, began) = (Slice::default(), Instant::now());
        for _ in 0..count {
            let asked = Instant::now();
            self.append().context("the neighbour's append")?;
            slice.add(asked.elapsed());
            if began.elapsed() > time {
                break;
            }
        }
        slice.length = began.elapsed();
        Ok(slice)
    }
}

fn append_anew(socket: &Path, request: &[u8]) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    idle::raise_file_limit();
    for (number, flood) in Flood::ALL.into_iter().enumerate() {
        measure(bench, flood, number)?;
        if !bench.quick {
            bench.clear()?;
        }
    }
    Ok(())
}

fn measure(bench: &mut Bench, flood: Flood, number: usize) -> anyhow::Result<()> {
    let sizes = if bench.quick { Sizes::QUICK } else { Sizes::FULL };
    let ground = |bench: &Bench, side: &str| {
        Ground::prepare(bench, flood, &format!("floods-{number}-{side}"), &sizes)
    };
    let (own, other) = (ground(bench, "own")?, ground(bench, "other")?);
    let mut neighbour = Neighbour::start(&own.daemon, flood.is_of_connections())?;
    neighbour.measure(sizes.window)?;
    own.daemon.process.reset_peak();
    let answers: Arc<Answers> = Arc::default();
    let mut slices: [Vec<Slice>; 2] = Default::default();
    for _ in 0..if bench.quick { 1 } else { ROUNDS } {
        bench.begin_round(&format!("floods: {}", flood.name()))?;
        let elsewhere = other.flood(flood, &sizes, &Arc::default())?;
        slices[0].push(neighbour.measure(sizes.window)?);
        drop(elsewhere);
        let here = own.flood(flood, &sizes, &answers)?;
        slices[1].push(neighbour.measure(sizes.window)?);
        drop(here);
    }
    let peak = own.daemon.process.peak_bytes()?;
    let [elsewhere, here] = slices.map(|rounds| Summary::from_rounds(&rounds, 1));
    let ms = |micros: Option<f64>| micros.unwrap_or_default() / 1e3;
    let (name, p99) = (flood.name(), ms(here.p99_us));
    let times = p99 / ms(elsewhere.p99_us).max(1e-6);
    bench.add(
        Figure::new(format!("floods/{name}"), "times the p99", times)
            .beside_value("the same at another daemon: p99, ms", ms(elsewhere.p99_us))
            .goal(Goal::at_most(5.0))
            .note(answers.summary()),
    );
    bench.add(
        Figure { p50_us: here.p50_us, ..Figure::new(format!("floods/{name}/p99"), "ms", p99) }
            .goal(Goal::at_most(10.0)),
    );
    bench.add(
        Figure::new(format!("floods/{name}/memory"), "MiB, at most", float(peak) / MEBIBYTE)
            .goal(Goal::at_most(300.0)),
    );
    own.daemon.process.stop()?;
    other.daemon.process.stop()
}
