//! `svc-bench`: the load generator.
//!
//! Each figure is measured alternately with a baseline, on the same data and by the same generator.
//! Baselines are a bare loop, a handler that does nothing, and on request Redis, `PostgreSQL` or
//! another MCP server. The machine's speed drifts, so only the ratio of the two is meaningful; the
//! goals are ratios wherever there is a baseline.
//!
//! Reading order: `scenario` lists what can be measured, `bench` is the state of a run, and
//! `report` summarises rounds and prints. `compare` runs two programs alternately. `load` and
//! `subscribers` are the generator, on top of the bytes of `wire`. `daemon` is svc under test;
//! `server` and `ceiling` are baselines. Then there is one file per kind of work.

mod agents;
mod append;
mod bench;
mod calls;
mod ceiling;
mod compare;
mod daemon;
mod fanout;
mod fleet;
mod fleet_agent;
mod floods;
mod growth;
mod growth_home;
mod hook;
mod idle;
mod load;
mod neighbour;
mod peers;
mod report;
mod retrieval;
mod sandbox;
mod scenario;
mod search;
mod server;
mod sessions;
mod subscribers;
mod wire;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum as _};

use bench::{Bench, Settings};
use report::{BenchMachine, Report};
use scenario::Scenario;

/// Measures svc on this machine, in a folder of its own
#[derive(Debug, Parser)]
#[command(
    name = "svc-bench",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  svc-bench --only append-http --only fanout
  svc-bench --svc ~/.cargo/bin/svc --peers
  svc-bench compare before/svc target/release/svc

A miss of a goal is printed as one; the exit code is 0 all the same."
)]
struct Cli {
    #[command(flatten)]
    args: BenchArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What to measure, and how long.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct BenchArgs {
    /// The program to measure [default: the `svc` beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    svc: Option<PathBuf>,
    /// Small sizes, done in less than a minute: shows that everything works, and nothing about
    /// speed
    #[arg(long)]
    quick: bool,
    /// Beside other servers, too: redis-server and postgres, where they are installed
    #[arg(long)]
    peers: bool,
    /// Searches over a million records, too, which take a while to make
    #[arg(long)]
    large: bool,
    /// Beside the MCP server at this address, too: streamable HTTP on /mcp, with a tool `echo` that
    /// takes nothing
    #[arg(long, value_name = "ADDRESS")]
    mcp_peer: Option<SocketAddr>,
    /// Only this; repeatable
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Scenario>,
    /// Print JSON: one document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Two programs in turns: for each line whether the second is worse by more than 3 %
    #[command(after_help = "\
Examples:
  svc-bench compare before/svc target/release/svc
  svc-bench compare before/svc target/release/svc --only replay --turns 15

The exit code is 0 whatever is worse.")]
    Compare(compare::CompareArgs),
    /// What each operation takes as the history grows: records, sessions, tasks, events, messages
    #[command(after_help = "\
Examples:
  svc-bench growth
  svc-bench growth --share 0.1 --only tasks

A miss of the goal is printed as one; the exit code is 0 all the same.")]
    Growth(growth::GrowthArgs),
    /// How many agents one daemon carries, and what each of them costs
    #[command(after_help = "\
Examples:
  svc-bench fleet
  svc-bench fleet --agents 100 --seconds 120

Without --agents it searches for the largest number at which hooks and messages are in time. The \
exit code is 0 whatever the times are.")]
    Fleet(fleet::FleetArgs),
    /// An agent of a fleet
    #[command(hide = true, after_help = "Example:\n  svc-bench fleet-agent < order")]
    FleetAgent,
    /// A server that stands beside the daemon in a measurement
    #[command(hide = true, after_help = "Example:\n  svc-bench server noop")]
    Server(server::ServerArgs),
    /// The program of an agent that is measured
    #[command(hide = true, after_help = "Example:\n  echo 200 1000 | svc-bench lines")]
    Lines {
        /// How many a second, and how many; else they are read
        numbers: Vec<u64>,
    },
    /// The program of an agent that answers each question
    #[command(hide = true, after_help = "Example:\n  echo 'Answer: x' | svc-bench echo")]
    Echo,
    /// A child MCP server, for the daemon in a measurement
    #[command(hide = true, after_help = "Example:\n  svc-bench child")]
    Child {
        /// It has a thousand tools
        #[arg(long)]
        large: bool,
        /// It makes this noise without end
        #[arg(long, requires = "while_there")]
        noise: Option<calls::Noise>,
        /// It makes its noise while this file is there
        #[arg(long = "while", value_name = "FILE")]
        while_there: Option<PathBuf>,
    },
}

impl BenchArgs {
    fn asks_for(&self, scenario: Scenario) -> bool {
        if scenario == Scenario::PeersMcp && self.mcp_peer.is_none() {
            return false;
        }
        if self.only.is_empty() {
            self.peers || !scenario.needs_peers()
        } else {
            self.only.contains(&scenario)
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Compare(args)) => compare::run(&args),
        Some(Command::Growth(args)) => growth::run(&args),
        Some(Command::Fleet(args)) => fleet::run(&args),
        Some(Command::FleetAgent) => fleet_agent::work(),
        Some(Command::Server(args)) => server::run(&args),
        Some(Command::Lines { numbers }) => agents::print_lines(&numbers),
        Some(Command::Echo) => sessions::answer_questions(),
        Some(Command::Child { large, noise, while_there }) => {
            if let (Some(noise), Some(file)) = (noise, while_there) {
                calls::make_noise(noise, file);
            }
            calls::serve(large)
        }
        None => measure(&cli.args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A failure to print is ignored.
            writeln!(io::stderr().lock(), "error: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &BenchArgs) -> anyhow::Result<()> {
    let mut bench = Bench::new(&Settings {
        svc: args.svc.clone(),
        quick: args.quick,
        large: args.large,
        mcp_peer: args.mcp_peer,
    })?;
    for scenario in Scenario::value_variants() {
        if args.asks_for(*scenario) {
            scenario.run(&mut bench)?;
        }
    }
    report::show_step("");
    let machine = BenchMachine {
        cores: std::thread::available_parallelism()?.get(),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        fsync_us: bench.disk.median(),
        peers: std::mem::take(&mut bench.peers),
    };
    let version = env!("CARGO_PKG_VERSION");
    let results = std::mem::take(&mut bench.results);
    let report = Report { version, quick: args.quick, machine, results };
    report::print(&if args.json { report.json()? } else { report.table() })
}
