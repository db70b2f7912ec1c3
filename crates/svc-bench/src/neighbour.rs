//! `neighbour`: the latency of a session's appends while another session tries to exhaust shared
//! resources; and the threads that flood a daemon until they are dropped.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    bench::Bench,
    daemon::{self, Daemon},
    load::{Caller, Protocol, Target},
    report::{Figure, Goal, Slice, Summary},
    wire,
};

/// Connections of the flooding session for each kind of request.
const CONNECTIONS: usize = 2;
const PEERS: usize = 100;
/// Text of a broadcast in bytes.
const BROADCAST_BYTES: usize = 256 * 1024;
/// Capabilities of an `initialize` in bytes; a few of them exceed a session's budget.
const CAPABILITIES_BYTES: usize = 2_400_000;

/// Appends per window, which takes about four seconds: long enough for a sustained flood.
const WINDOW: usize = 12_000;

/// More of one kind than any budget allows.
const MOST_ACCEPTED: usize = 30_000;

/// One thread that keeps a core busy and sends nothing: the effect of any other program on the
/// machine.
fn spin_one_core() -> Crowd {
    Crowd::counting(vec![Box::new(|_: &Answers| std::hint::spin_loop())], &Arc::default())
}

/// A session that sends broadcasts, opens MCP sessions and creates tasks, all unthrottled.
fn greedy_crowd(session: &Target, answers: &Arc<Answers>) -> Crowd {
    let requests = greedy_requests(session);
    let mut works: Vec<Work> = Vec::new();
    for request in requests.iter().cycle().take(CONNECTIONS * requests.len()) {
        let (address, request) = (session.address, request.clone());
        let mut connection = None;
        works.push(Box::new(move |answers| {
            // A flood reconnects when it is refused.
            match ask(&mut connection, address, &request) {
                Some(answer) => answers.add(&answer),
                None => connection = None,
            }
        }));
    }
    Crowd::counting(works, answers)
}

/// The requests of a flooding session: a broadcast, an MCP session, a task.
fn greedy_requests(session: &Target) -> [Vec<u8>; 3] {
    let broadcast = json!({ "text": "x".repeat(BROADCAST_BYTES) }).to_string();
    let capabilities = json!({ "roots": { "x": "y".repeat(CAPABILITIES_BYTES) } });
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": capabilities },
    });
    [
        session.request("POST", "/v1/peers/broadcast", &broadcast),
        session.request("POST", "/mcp", &initialize.to_string()),
        session.request("POST", "/v1/tasks", r#"{"title":"x"}"#),
    ]
}

/// Repeats each request until it is refused. Work within a session's budget has its normal cost;
/// what is measured is the cost of exceeding the budget.
fn exhaust_budget(session: &Target) -> anyhow::Result<()> {
    let mut connection = None;
    for request in greedy_requests(session) {
        let mut is_refused = false;
        for _ in 0..MOST_ACCEPTED {
            let answer = ask(&mut connection, session.address, &request);
            is_refused = answer.is_some_and(|answer| answer[9] == b'4');
            if is_refused {
                break;
            }
        }
        anyhow::ensure!(is_refused, "a session was refused nothing");
    }
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "neighbour")?;
    let (greedy, neighbour) = (session(&daemon, "greedy")?, session(&daemon, "neighbour")?);
    let own = json!({ "display_name": "greedy", "backend": "bench", "session_id": "greedy" });
    greedy.call("POST", "/v1/peers/register", &own.to_string())?;
    for number in 0..PEERS {
        let peer = json!({ "display_name": format!("p{number}"), "backend": "bench", "path": format!("/{number}") });
        daemon.target.call("POST", "/v1/peers/register", &peer.to_string())?;
    }
    let task = neighbour.call("POST", "/v1/tasks", r#"{"title":"bench"}"#)?;
    let task = task["task_id"].as_str().context("a task has an id")?;
    let append = neighbour.request("POST", &format!("/v1/tasks/{task}/events"), &daemon::body(1));
    let count = if bench.quick { 30 } else { WINDOW };
    let mut slices: [Vec<Slice>; 3] = Default::default();
    let answers: Arc<Answers> = Arc::default();
    if !bench.quick {
        exhaust_budget(&greedy)?;
    }
    let mut caller = Caller::open(neighbour.address, &Protocol::HTTP)?;
    measure(&mut caller, &append, count)?;
    for _ in 0..bench.rounds {
        bench.begin_round("neighbour")?;
        slices[0].push(measure(&mut caller, &append, count)?);
        let busy = spin_one_core();
        slices[1].push(measure(&mut caller, &append, count)?);
        drop(busy);
        let crowd = greedy_crowd(&greedy, &answers);
        slices[2].push(measure(&mut caller, &append, count)?);
        drop(crowd);
    }
    let (refused, asked) = answers.refused();
    let [alone, busy, beside] = slices.map(|rounds| Summary::from_rounds(&rounds, 1));
    let p99 = |summary: Summary| summary.p99_us.unwrap_or_default() / 1e3;
    for (name, other, goal) in
        [("a busy core", busy, Some(Goal::at_most(2.0))), ("nothing", alone, None)]
    {
        let times = p99(beside) / p99(other).max(1e-6);
        let figure = Figure::new("neighbour/p99", "times", times)
            .beside_value(format!("p99 beside {name}, ms"), p99(other))
            .note(format!(
                "p50 {:.2} ms, p99 {:.2} ms; {refused} of {asked} requests of the greedy session were refused",
                beside.p50_us.unwrap_or_default() / 1e3,
                p99(beside)
            ));
        bench.add(figure.goal_of(goal));
    }
    daemon.process.stop()
}

/// A session with a token of its own.
pub(crate) fn session(daemon: &Daemon, name: &str) -> anyhow::Result<Target> {
    mint(daemon, &json!({ "session": name }))
}

/// The daemon as a target with a token that it mints for this input.
pub(crate) fn mint(daemon: &Daemon, input: &Value) -> anyhow::Result<Target> {
    let minted = daemon.target.call("POST", "/v1/tokens", &input.to_string())?;
    let token = minted["token"].as_str().context("a token")?.to_owned();
    Ok(Target { address: daemon.target.address, token: Some(token) })
}

fn measure(caller: &mut Caller, append: &[u8], count: usize) -> anyhow::Result<Slice> {
    let (mut slice, began) = (Slice::default(), Instant::now());
    for _ in 0..count {
        let asked = Instant::now();
        caller.ask(append)?;
        slice.add(asked.elapsed());
    }
    slice.length = began.elapsed();
    Ok(slice)
}

/// Most characters of a refusal that are shown.
const SAID_CHARS: usize = 120;

/// The work that a thread repeats.
pub(crate) type Work = Box<dyn FnMut(&Answers) + Send>;

/// Threads that work until they are dropped.
pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    by_status: BTreeMap<u16, u64>,
    /// The beginning of a refusal's text, for each status.
    said: BTreeMap<u16, String>,
}

impl Crowd {
    /// Starts a thread for each piece of work. Responses are added to `answers`.
    pub(crate) fn counting(works: Vec<Work>, answers: &Arc<Answers>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = works.into_iter().map(|mut work| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(answers));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    work(&answers);
                }
            })
        });
        let threads = threads.collect();
        Self { stop, threads }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

impl Answers {
    pub(crate) fn add(&self, answer: &[u8]) {
        let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok());
        let Some(status) = status.and_then(|status| status.parse().ok()) else { return };
        let mut seen = self.seen();
        *seen.by_status.entry(status).or_default() += 1;
        if status >= 400 {
            let words = || words_of(wire::body(answer)).chars().take(SAID_CHARS).collect();
            let said = seen.said.entry(status).or_default();
            if said.is_empty() {
                *said = words();
            }
        }
    }

    /// Number of refusals, and of all responses.
    pub(crate) fn refused(&self) -> (u64, u64) {
        let seen = self.seen();
        let sum = |least: u16| seen.by_status.range(least..).map(|(_, count)| count).sum();
        (sum(400), sum(0))
    }

    pub(crate) fn summary(&self) -> String {
        let seen = self.seen();
        let mut all: Vec<String> =
            seen.by_status.iter().map(|(status, count)| format!("{count} × {status}")).collect();
        if all.is_empty() {
            all.push("no answer was read".to_owned());
        }
        let said = seen.said.iter().filter(|(_, said)| !said.is_empty());
        all.extend(said.map(|(status, said)| format!("{status} said {said:?}")));
        all.join(", ")
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a refusal from REST or MCP.
fn words_of(body: &[u8]) -> String {
    let document: Value = serde_json::from_slice(body).unwrap_or_default();
    let words = [&document["detail"], &document["error"]["message"]];
    let words = words.into_iter().find_map(Value::as_str);
    words.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned)
}

/// Sends a request and returns the beginning of the response; `None` if the connection ended.
pub(crate) fn ask(
    connection: &mut Option<TcpStream>,
    address: SocketAddr,
    request: &[u8],
) -> Option<Vec<u8>> {
    if connection.is_none() {
        let opened = TcpStream::connect(address).ok()?;
        opened.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        opened.set_write_timeout(Some(Duration::from_secs(10))).ok()?;
        *connection = Some(opened);
    }
    let socket = connection.as_mut()?;
    // The daemon may respond to a refused request before it has read the whole body.
    let is_sent = socket.write_all(request).is_ok();
    let mut answer = vec![0; 64 * 1024];
    let got = socket.read(&mut answer).ok().filter(|got| *got >= 12)?;
    if !is_sent || got == answer.len() {
        *connection = None;
    }
    answer.truncate(got);
    Some(answer)
}
