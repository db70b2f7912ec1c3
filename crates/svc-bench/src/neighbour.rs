//! `neighbour`: the latency of a session's appends while another session tries to exhaust what all
//! of them share.

use std::{sync::Arc, time::Instant};

use anyhow::Context as _;
use serde_json::json;

use crate::{
    bench::Bench,
    caller::Caller,
    crowd::{self, Answers, Crowd, Work},
    daemon::{self, Daemon},
    load::Protocol,
    report::{Figure, Goal},
    stats::{Slice, Summary},
    target::Target,
};

/// Connections of each kind of the flooding session.
const CONNECTIONS: usize = 2;
/// Peers that each of its broadcasts reaches.
const PEERS: usize = 100;
/// Text of a broadcast, in bytes.
const BROADCAST_BYTES: usize = 256 * 1024;
/// Capabilities of an `initialize`, in bytes: beyond the budget of a session after some of them.
const CAPABILITIES_BYTES: usize = 2_400_000;

/// Appends of a window, some four seconds: long enough for a sustained flood.
const WINDOW: usize = 12_000;

/// More of one thing than any budget allows.
const MOST_ACCEPTED: usize = 30_000;

/// One thread that uses a core and sends nothing: the cost of any other program on the machine.
fn spin_one_core() -> Crowd {
    Crowd::counting(vec![Box::new(|_: &Answers| std::hint::spin_loop())], &Arc::default())
}

/// A session that broadcasts, opens MCP sessions and creates tasks, all unthrottled.
fn greedy_crowd(session: &Target, answers: &Arc<Answers>) -> Crowd {
    let requests = greedy_requests(session);
    let mut works: Vec<Work> = Vec::new();
    for request in requests.iter().cycle().take(CONNECTIONS * requests.len()) {
        let (address, request) = (session.address, request.clone());
        let mut connection = None;
        works.push(Box::new(move |answers| {
            // A flood reconnects when it is refused.
            match crowd::ask(&mut connection, address, &request) {
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

/// Repeats each request until it is refused. Work within a session's budget costs what any work
/// costs; measured is the cost of what exceeds it.
fn exhaust_budget(session: &Target) -> anyhow::Result<()> {
    let mut connection = None;
    for request in greedy_requests(session) {
        let mut is_refused = false;
        for _ in 0..MOST_ACCEPTED {
            let answer = crowd::ask(&mut connection, session.address, &request);
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
        bench.add(match goal {
            Some(goal) => figure.goal(goal),
            None => figure,
        });
    }
    daemon.process.stop()
}

/// A session with a token of its own.
pub(crate) fn session(daemon: &Daemon, name: &str) -> anyhow::Result<Target> {
    let minted =
        daemon.target.call("POST", "/v1/tokens", &json!({ "session": name }).to_string())?;
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
