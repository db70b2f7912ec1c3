//! svc and each peer in turns.

use std::process::Command;

use super::{
    bare::BareAxum,
    peer::{Contest, Part, Peer},
    postgres::{Installation, Postgres},
    redis::{Redis, RedisUse},
};
use crate::{
    append_http, append_inproc,
    bench::{Bench, WindowOf},
    daemon::Daemon,
    mixed::{self, Both, Crowd},
    replay,
    report::Figure,
    stats::{self, Slice, Summary},
};

/// Starts the installed peers. Records each peer's version, or why it is missing.
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
    // Once, however many scenarios start them.
    bench.peers = said;
    Ok(peers)
}

/// The text after `mark` in the program's version.
fn version(program: &str, mark: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = text
        .match_indices(mark)
        .map(|(at, _)| at + mark.len())
        .find(|at| text[*at..].starts_with(|c: char| c.is_ascii_digit()))?;
    text[at..].split_whitespace().next().map(str::to_owned)
}

pub(crate) fn run_append(bench: &mut Bench) -> anyhow::Result<()> {
    let mut peers = start(bench)?;
    peers.push(Box::new(BareAxum::start(bench)?));
    let daemon = Daemon::start(&bench.sandbox, "peers-append")?;
    let tasks = append_http::make_tasks(bench, &daemon)?;
    let levels: &[usize] = if bench.quick { &[64] } else { &[1, 8, 64] };
    let mut contests: Vec<(Contest, usize, usize)> = levels
        .iter()
        .map(|producers| (Contest::Append { producers: *producers }, *producers, 1))
        .collect();
    contests.push((Contest::Batches, 64, 16));
    for (contest, producers, events) in contests {
        let name = append_inproc::name("peers-append", producers, events);
        contend(
            bench,
            &name,
            "events/s",
            (&peers, contest),
            |window_of| {
                let slice = append_http::append(&daemon, &tasks, window_of, producers, events)?;
                // Counted as events on both sides.
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
        |window_of| Ok(both(mixed::ours(&daemon, crowd, window_of)?)),
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
        |_| Ok(vec![replay::replay(&daemon, &home)?]),
        |peer, _| Ok(vec![peer.replay()?]),
    )?;
    daemon.process.stop()
}

/// The names of a round's slices, if there are several.
const PARTS: [&str; 2] = [" acks", " deliveries"];

/// Runs svc and each peer in turns.
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
            let figure =
                Figure::summed(format!("{name}{suffix}"), unit, Summary::from_rounds(&ours, 1))
                    .beside(
                        peer.name(),
                        Summary::from_rounds(&theirs, 1),
                        stats::ratio(&ours, &theirs),
                    );
            bench.add(match peer.part(contest) {
                Part::Goal(goal) => figure.goal(goal),
                _ => figure,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_has_no_version() {
        assert_eq!(version("svc-no-such-program", "v"), None);
    }
}
