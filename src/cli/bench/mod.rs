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
mod daemon;
mod fanout;
mod fanout_paced;
mod load;
mod memory;
mod mixed;
mod publisher;
mod replay;
mod report;
mod sandbox;
mod server;
mod startup;
mod stats;
mod subscribers;
mod wire;

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};

pub(super) use server::{ServerArgs, run as run_server};

use replay::BigHome;
use report::{Entry, Machine, Report};
use sandbox::Sandbox;
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
    /// Only this; repeatable
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Scenario>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Durable appends through the store, beside a bare group commit
    AppendInproc,
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
}

impl Scenario {
    fn run(self, bench: &mut Bench) -> anyhow::Result<()> {
        match self {
            Self::AppendInproc => append_inproc::run(bench),
            Self::AppendHttp => append_http::run(bench),
            Self::Fanout => fanout::run(bench),
            Self::FanoutPaced => fanout_paced::run(bench),
            Self::Mixed => mixed::run(bench),
            Self::Replay => replay::run(bench),
            Self::Startup => startup::run(bench),
            Self::Memory => memory::run(bench),
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
    /// Rounds of each comparison.
    rounds: usize,
    /// Warm-up and length of each window.
    window_of: WindowOf,
    big_home: Option<BigHome>,
    results: Vec<Entry>,
}

impl Bench {
    fn new(args: &BenchArgs) -> anyhow::Result<Self> {
        let millis = |warm, measure| (Duration::from_millis(warm), Duration::from_millis(measure));
        let (rounds, window_of) =
            if args.quick { (3, millis(20, 80)) } else { (5, millis(200, 1000)) };
        Ok(Self {
            sandbox: Sandbox::new()?,
            quick: args.quick,
            rounds,
            window_of,
            big_home: None,
            results: Vec::new(),
        })
    }

    /// A window that begins after the usual warm-up.
    fn window(&self) -> Window {
        Window::after(self.window_of.0, self.window_of.1)
    }

    /// Tells whoever waits what is under way.
    fn progress(&self, what: &str) {
        let mut stderr = io::stderr().lock();
        if stderr.is_terminal() {
            // Nothing can be done if that fails.
            let _ = write!(stderr, "\r\x1b[K{what}").and_then(|()| stderr.flush());
        }
    }

    fn add(&mut self, entry: Entry) {
        self.results.push(entry);
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
        fsync_us: sandbox::fsync_micros(&bench.sandbox.path(""))?,
        peers: Vec::new(),
    };
    for scenario in Scenario::value_variants() {
        if args.only.is_empty() || args.only.contains(scenario) {
            scenario.run(&mut bench)?;
        }
    }
    bench.progress("");
    let results = std::mem::take(&mut bench.results);
    let version = env!("CARGO_PKG_VERSION");
    Report { version, quick: args.quick, machine, results }.print(json)?;
    Ok(ExitCode::SUCCESS)
}
