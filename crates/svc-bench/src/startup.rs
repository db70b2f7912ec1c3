//! `startup`: from `exec` to the first healthy response.

use std::time::Duration;

use crate::{
    bench::Bench,
    daemon::Daemon,
    report::{Figure, Goal},
    stats,
};

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let big = bench.big_home()?;
    let (mut empty, mut existing) = (Vec::new(), Vec::new());
    // A start takes milliseconds, so it needs more rounds than other figures.
    for round in 0..if bench.quick { 3 } else { 9 } {
        bench.begin_round("startup")?;
        empty.push(Daemon::time_start(&bench.sandbox, &format!("startup-{round}"))?);
        existing.push(Daemon::time_start(&bench.sandbox, big.name)?);
    }
    let millis = |times: Vec<Duration>| {
        stats::median(times.iter().map(|time| time.as_secs_f64() * 1e3).collect())
    };
    bench.add(Figure::new("startup/empty", "ms", millis(empty)).goal(Goal::at_most(15.0)));
    let name = format!("startup/{} events", big.frames);
    bench.add(Figure::new(name, "ms", millis(existing)).goal(Goal::at_most(50.0)));
    Ok(())
}
