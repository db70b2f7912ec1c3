//! svc and each peer alternately. A further baseline is the minimum for this stack and its
//! database: an axum handler, and a bare group commit behind it. There is also another MCP server,
//! with a session per connection; this is fair if that server also stores its sessions in a
//! database. `cargo bench --bench mcp` starts one that does.

use std::process::Command;

use anyhow::bail;
use serde_json::{Value, json};

use super::{
    Contest, Part, Peer,
    postgres::{Installation, Postgres},
    redis::{Redis, RedisUse},
};
use crate::{
    append,
    bench::{Bench, WindowOf},
    calls::{in_session, open_session},
    ceiling::{self, STREAMS},
    daemon::Daemon,
    fanout::{self, Both, Crowd},
    load::{self, Load, Protocol, Target, tool_call},
    report::{Figure, Goal, Slice, Window},
    server::{Kind, Server},
};

/// Starts the installed peers. Records each peer's version, or why the peer is missing.
fn start(bench: &mut Bench) -> anyhow::Result<Vec<Box<dyn Peer>>> {
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    let mut said = Vec::new();
    match version("redis-server", "v=") {
        None => said.push("redis-server: not installed".to_owned()),
        Some(version) => {
            for usage in [RedisUse::Always, RedisUse::AlwaysPublish, RedisUse::EverySecond] {
                peers.push(Box::new(Redis::start(&bench.sandbox, usage)?));
            }
            said.push(format!("redis-server {version}"));
        }
    }
    match Installation::find() {
        Err(why) => said.push(format!("postgres: {why}")),
        Ok(installation) => match Postgres::start(&bench.sandbox, &installation) {
            Err(error) => said.push(format!("postgres: {error:#}")),
            Ok(server) => {
                peers.push(Box::new(server));
                said.push(installation.version().unwrap_or_else(|| "postgres".to_owned()));
            }
        },
    }
    // Set rather than appended to, as several scenarios start the peers.
    bench.peers = said;
    Ok(peers)
}

/// The text after `mark` in the output of `program --version`.
fn version(program: &str, mark: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut ends = text.match_indices(mark).map(|(at, _)| at + mark.len());
    let at = ends.find(|at| text[*at..].starts_with(|c: char| c.is_ascii_digit()))?;
    text[at..].split_whitespace().next().map(str::to_owned)
}

pub(crate) fn run_append(bench: &mut Bench) -> anyhow::Result<()> {
    let mut peers = start(bench)?;
    peers.push(Box::new(BareAxum::start(bench)?));
    let daemon = Daemon::start(&bench.sandbox, "peers-append")?;
    let tasks = append::make_tasks(bench, &daemon)?;
    let levels: &[usize] = if bench.quick { &[64] } else { &[1, 8, 64] };
    let mut contests: Vec<(Contest, usize, usize)> = levels
        .iter()
        .map(|producers| (Contest::Append { producers: *producers }, *producers, 1))
        .collect();
    contests.push((Contest::Batches, 64, 16));
    for (contest, producers, events) in contests {
        let name = append::name("peers-append", producers, events);
        contend(
            bench,
            &name,
            "events/s",
            (&peers, contest),
            |window_of| {
                let slice = append::append(&daemon, &tasks, window_of, producers, events)?;
                // Events are counted on both sides, not requests.
                Ok(vec![Slice { count: slice.count * events as u64, ..slice }])
            },
            |peer, window_of| {
                Ok(vec![match contest {
                    Contest::Batches => peer.append_batches(window_of, producers)?,
                    _ => peer.append(window_of, producers)?,
                }])
            },
        )?;
    }
    daemon.process.stop()
}

pub(crate) fn run_mixed(bench: &mut Bench) -> anyhow::Result<()> {
    let peers = start(bench)?;
    let daemon = Daemon::start(&bench.sandbox, "peers-mixed")?;
    let crowd = Crowd::new(bench);
    let name = format!("peers-mixed/{}+{}", crowd.producers, crowd.subscribers);
    let both = |both: Both| vec![both.acks, both.deliveries];
    contend(
        bench,
        &name,
        "/s",
        (&peers, Contest::Mixed),
        |window_of| Ok(both(fanout::mixed_round(&daemon, crowd, window_of)?)),
        |peer, window_of| Ok(both(peer.mixed(window_of, crowd)?)),
    )?;
    daemon.process.stop()
}

pub(crate) fn run_replay(bench: &mut Bench) -> anyhow::Result<()> {
    let mut peers = start(bench)?;
    let home = bench.big_home()?;
    for peer in &mut peers {
        if !matches!(peer.part(Contest::Replay), Part::None) {
            peer.fill(home.frames)?;
        }
    }
    let daemon = Daemon::start(&bench.sandbox, home.name)?;
    contend(
        bench,
        "peers-replay",
        "events/s",
        (&peers, Contest::Replay),
        |_| Ok(vec![fanout::replay(&daemon, &home)?]),
        |peer, _| Ok(vec![peer.replay()?]),
    )?;
    daemon.process.stop()
}

/// Names of the slices of a round that has two.
const PARTS: [&str; 2] = [" acks", " deliveries"];

fn contend(
    bench: &mut Bench,
    name: &str,
    unit: &'static str,
    (peers, contest): (&[Box<dyn Peer>], Contest),
    ours: impl Fn(WindowOf) -> anyhow::Result<Vec<Slice>>,
    theirs: impl Fn(&dyn Peer, WindowOf) -> anyhow::Result<Vec<Slice>>,
) -> anyhow::Result<()> {
    let contenders: Vec<&dyn Peer> = peers
        .iter()
        .map(|peer| &**peer)
        .filter(|peer| !matches!(peer.part(contest), Part::None))
        .collect();
    let mut our_rounds: Vec<Vec<Slice>> = Vec::new();
    let mut their_rounds: Vec<Vec<Vec<Slice>>> = vec![Vec::new(); contenders.len()];
    for _ in 0..bench.rounds {
        bench.begin_round(name)?;
        our_rounds.push(ours(bench.window_of)?);
        for (peer, rounds) in contenders.iter().zip(&mut their_rounds) {
            rounds.push(theirs(*peer, bench.window_of)?);
        }
    }
    let parts = our_rounds.first().map_or(0, Vec::len);
    for (peer, rounds) in contenders.iter().zip(&their_rounds) {
        for (part, what) in PARTS.iter().enumerate().take(parts) {
            let of = |rounds: &[Vec<Slice>]| -> Vec<Slice> {
                rounds.iter().filter_map(|round| round.get(part).cloned()).collect()
            };
            let (ours, theirs) = (of(&our_rounds), of(rounds));
            let suffix = if parts > 1 { what } else { "" };
            let name = format!("{name}{suffix}");
            let figure = Figure::compared(name, unit, 1, &ours, (peer.name(), &theirs));
            bench.add(match peer.part(contest) {
                Part::Goal(goal) => figure.goal(goal),
                _ => figure,
            });
        }
    }
    Ok(())
}

pub(super) struct BareAxum(Server);

impl BareAxum {
    pub(super) fn start(bench: &Bench) -> anyhow::Result<Self> {
        let runtime = ceiling::runtime()?;
        let (store, writer) = append::open(&runtime, bench, "bare-axum")?;
        let database = store.path().to_owned();
        runtime.block_on(writer.close(store))?;
        Ok(Self(Server::start(&bench.sandbox, Kind::Commits { database })?))
    }

    fn append_of(
        &self,
        window_of: WindowOf,
        producers: usize,
        events: usize,
    ) -> anyhow::Result<Slice> {
        let Server { process, target } = &self.0;
        let body = crate::daemon::body(events);
        let slice = append::slice(window_of, target.address, process, producers, |number| {
            let path = format!("/append/{}/{events}", 1 + number % STREAMS);
            (Protocol::HTTP, vec![target.request("POST", &path, &body)])
        })?;
        Ok(Slice { count: slice.count * events as u64, ..slice })
    }
}

impl Peer for BareAxum {
    fn name(&self) -> &'static str {
        "axum, bare group commit"
    }

    fn part(&self, contest: Contest) -> Part {
        match contest {
            Contest::Append { .. } | Contest::Batches => Part::Beside,
            Contest::Mixed | Contest::Replay => Part::None,
        }
    }

    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        self.append_of(window_of, producers, 1)
    }

    fn append_batches(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        self.append_of(window_of, producers, 16)
    }

    fn mixed(&self, _: WindowOf, _: Crowd) -> anyhow::Result<Both> {
        bail!("it has no subscribers")
    }

    fn fill(&mut self, _: u64) -> anyhow::Result<()> {
        bail!("it replays nothing")
    }

    fn replay(&self) -> anyhow::Result<Slice> {
        bail!("it replays nothing")
    }
}

const CONNECTIONS: usize = 16;

pub(crate) fn run_mcp(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(address) = bench.mcp_peer else { return Ok(()) };
    let daemon = Daemon::start(&bench.sandbox, "peers-mcp")?;
    let task = json!({ "task_id": daemon.make_task()? });
    let peer = Target { address, token: None };
    let echo = in_sessions(&peer, "echo", &json!({}))?;
    for (tool, arguments) in
        [("TaskGet", task), ("ToolSearch", json!({ "query": "send", "detail": "name" }))]
    {
        let name = format!("peers-mcp/{tool}/{CONNECTIONS}");
        let requests = in_sessions(&daemon.target, tool, &arguments)?;
        let figure = bench.in_turns(
            (&name, "calls/s", 1),
            |bench| slice(bench.window_of, &daemon.target, &requests),
            ("its echo", |bench| slice(bench.window_of, &peer, &echo)),
        )?;
        bench.add(figure.goal(Goal::ratio(2.0)));
    }
    daemon.process.stop()
}

/// A request for each connection, each in a session of its own that is opened here.
fn in_sessions(target: &Target, tool: &str, arguments: &Value) -> anyhow::Result<Vec<Vec<u8>>> {
    let body = tool_call(tool, arguments);
    let one = || {
        let session = open_session(target)?;
        Ok(target.request_with("POST", "/mcp", &in_session(&session), &body))
    };
    (0..CONNECTIONS).map(|_| one()).collect()
}

fn slice(
    (warm, measure): WindowOf,
    target: &Target,
    requests: &[Vec<u8>],
) -> anyhow::Result<Slice> {
    load::runtime()?.block_on(async {
        let speech = |number: usize| (Protocol::HTTP, vec![requests[number].clone()]);
        let mut load = Load::open(target.address, requests.len(), speech).await?;
        load.run(Window::after(warm, measure)).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_has_no_version() {
        assert_eq!(version("svc-no-such-program", "v"), None);
    }
}
