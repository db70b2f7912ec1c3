//! `svc bench`: what this machine gives, and what ours makes of it.
//!
//! Each figure stands beside another that was measured in turns with it, on the same data, by the same generator:
//! a bare loop, a handler that does nothing, and if asked for Redis and NATS. The ratio is the figure that means
//! something; the goals are ratios wherever there is something to compare with.
//!
//! Reading order: this file decides what runs, `stats` sums up rounds, `report` prints. `load`, `caller`,
//! `subscribers` and `publisher` are the generator over the bytes of `wire`; `daemon` is ours under test, `server` and
//! `ceiling` are what stands beside it. Then one file for each scenario.

mod append_http;
mod append_inproc;
mod caller;
mod ceiling;
mod check_in;
mod daemon;
mod fanout;
mod fanout_paced;
mod hook;
mod load;
mod mcp_call;
mod mcp_memory;
mod memory;
mod mixed;
mod peers;
mod publisher;
mod replay;
mod report;
mod retrieval;
mod sandbox;
mod server;
mod startup;
mod stats;
mod subscribers;
mod wire;

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};

pub(super) use server::{ServerArgs, run as run_server};

use replay::BigHome;
use report::{Entry, Machine, Report};
use sandbox::{Disk, Sandbox};
use stats::Window;

/// What to measure, and how long.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Small sizes, done in less than 20 s: shows that everything works, and nothing about speed
    #[arg(long)]
    quick: bool,
    /// Beside redis-server and nats-server too, whichever is installed
    #[arg(long)]
    peers: bool,
    /// Searches over a million records, too, which take a while to make
    #[arg(long)]
    large: bool,
    /// Beside the MCP server at this address, too: streamable HTTP on /mcp, with a tool `echo` that takes nothing
    #[arg(long, value_name = "ADDRESS")]
    mcp_peer: Option<SocketAddr>,
    /// Only this; repeatable
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Scenario>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Durable appends through the store, beside a bare group commit
    AppendInproc,
    /// Durable check-ins of the journal, beside plain appends
    CheckIn,
    /// Durable appends over HTTP, beside a handler that does nothing
    AppendHttp,
    /// One stream to many subscribers, beside axum's events and bare sockets
    Fanout,
    /// The time from a producer to a hundred subscribers, at a thousand events a second
    FanoutPaced,
    /// Producers and subscribers of one stream together
    Mixed,
    /// A long stream to one reader, beside a bare read
    Replay,
    /// From `exec` to the first answer
    Startup,
    /// What the daemon holds when nothing happens, and for each idle subscriber
    Memory,
    /// What a search of the journal finds, beside plain BM25 and a keyword score
    Retrieval,
    /// Calls of MCP tools, beside a plain handler of JSON
    McpCall,
    /// What a hook adds to a tool call, beside a program that does nothing
    Hook,
    /// What the daemon holds for each MCP client that is silent
    McpMemory,
    /// Appends, beside Redis and NATS
    PeersAppend,
    /// Producers and subscribers, beside Redis and NATS
    PeersMixed,
    /// A long stream, beside Redis and NATS
    PeersReplay,
    /// Calls in sessions, beside another MCP server
    PeersMcp,
}

impl Scenario {
    fn needs_peers(self) -> bool {
        matches!(self, Self::PeersAppend | Self::PeersMixed | Self::PeersReplay)
    }

    /// Whether the arguments ask for it.
    fn is_wanted(self, args: &BenchArgs) -> bool {
        if self == Self::PeersMcp && args.mcp_peer.is_none() {
            return false;
        }
        if args.only.is_empty() {
            args.peers || !self.needs_peers()
        } else {
            args.only.contains(&self)
        }
    }

    fn run(self, bench: &mut Bench) -> anyhow::Result<()> {
        match self {
            Self::AppendInproc => append_inproc::run(bench),
            Self::CheckIn => check_in::run(bench),
            Self::AppendHttp => append_http::run(bench),
            Self::Fanout => fanout::run(bench),
            Self::FanoutPaced => fanout_paced::run(bench),
            Self::Mixed => mixed::run(bench),
            Self::Replay => replay::run(bench),
            Self::Startup => startup::run(bench),
            Self::Memory => memory::run(bench),
            Self::Retrieval => retrieval::run(bench),
            Self::McpCall => mcp_call::run(bench),
            Self::Hook => hook::run(bench),
            Self::McpMemory => mcp_memory::run(bench),
            Self::PeersAppend => peers::run_append(bench),
            Self::PeersMixed => peers::run_mixed(bench),
            Self::PeersReplay => peers::run_replay(bench),
            Self::PeersMcp => peers::run_mcp(bench),
        }
    }
}

/// How to make a window: warm-up and length.
type WindowOf = (Duration, Duration);

/// A run: where it works, how long it measures, and what it has found.
#[derive(Debug)]
struct Bench {
    sandbox: Sandbox,
    quick: bool,
    large: bool,
    /// Rounds of each comparison.
    rounds: usize,
    /// Warm-up and length of each window.
    window_of: WindowOf,
    big_home: Option<BigHome>,
    mcp_peer: Option<SocketAddr>,
    /// What each peer is, or why it is not there.
    peers: Vec<String>,
    disk: Disk,
    results: Vec<Entry>,
}

impl Bench {
    fn new(args: &BenchArgs) -> anyhow::Result<Self> {
        let millis = |warm, measure| (Duration::from_millis(warm), Duration::from_millis(measure));
        let (rounds, window_of) =
            if args.quick { (3, millis(20, 80)) } else { (5, millis(200, 1000)) };
        let sandbox = Sandbox::new()?;
        let disk = Disk::look(&sandbox)?;
        Ok(Self {
            sandbox,
            disk,
            quick: args.quick,
            large: args.large,
            rounds,
            window_of,
            big_home: None,
            mcp_peer: args.mcp_peer,
            peers: Vec::new(),
            results: Vec::new(),
        })
    }

    /// Before each round: says which, and lets the disk come to rest.
    fn begin_round(&mut self, what: &str) -> anyhow::Result<()> {
        progress(what);
        if self.quick { Ok(()) } else { self.disk.settle(&self.sandbox) }
    }

    /// A window that begins after the usual warm-up.
    fn window(&self) -> Window {
        Window::after(self.window_of.0, self.window_of.1)
    }

    fn add(&mut self, entry: Entry) {
        self.results.push(entry);
    }
}

/// Tells whoever waits at a terminal what is under way.
fn progress(what: &str) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // Nothing can be done if that fails.
        write!(stderr, "\r\x1b[K{what}").and_then(|()| stderr.flush()).ok();
    }
}

/// Measures and prints.
pub(super) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<ExitCode> {
    let mut bench = Bench::new(args)?;
    let machine = Machine {
        cores: std::thread::available_parallelism()?.get(),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        fsync_us: 0.0,
        peers: Vec::new(),
    };
    for scenario in Scenario::value_variants() {
        if scenario.is_wanted(args) {
            scenario.run(&mut bench)?;
        }
    }
    progress("");
    let results = std::mem::take(&mut bench.results);
    let peers = std::mem::take(&mut bench.peers);
    let machine = Machine { peers, fsync_us: bench.disk.median(), ..machine };
    let version = env!("CARGO_PKG_VERSION");
    Report { version, quick: args.quick, machine, results }.print(json)?;
    Ok(ExitCode::SUCCESS)
}
