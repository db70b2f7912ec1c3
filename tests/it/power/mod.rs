//! Power cuts: what is not durable is lost. `kill -9` keeps the page cache, so it does not reveal a
//! missing sync.
//!
//! Daemon, hooks, runs, hosts and commands work on a disk that loses what was not synced (`disk`).
//! It fails after some number of writes, all processes are killed with it, and it comes back with
//! its durable state.

mod disk;
mod files;
mod mount;
mod work;

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::crash::{Chance, SetOnDrop, number};
use crate::daemon::{Daemon, Home, PATIENT, Ran, Running, all_pids, eventually};
use crate::expect::new_task;
use crate::stored::is_in_file;
use mount::PowerDisk;
use work::{Kept, check, check_lines};

/// The number of power cuts, unless `SVC_POWER_CUTS` sets it.
const CUTS: u64 = 20;
/// Most writes and syncs between two cuts.
const STEPS: u64 = 3_000;
const WITHIN: Duration = Duration::from_mins(2);
const PRODUCERS: usize = 2;

/// The environment of all work from one cut to the next.
struct Round<'a> {
    number: u64,
    power: &'a PowerDisk,
    /// A home with a daemon.
    home: &'a Home,
    /// A home without a daemon.
    away: &'a Home,
    is_over: &'a AtomicBool,
}

impl Round<'_> {
    /// Whether the power is on. Earlier work is acknowledged.
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst) && !self.power.is_off()
    }
}

#[test]
fn power_cut_loses_nothing_acknowledged() {
    only_if!(is_in_file());
    let cuts = number("SVC_POWER_CUTS").unwrap_or(CUTS);
    let seed = number("SVC_POWER_SEED")
        .unwrap_or_else(|| getrandom::u64().expect("the system has chance to give"));
    eprintln!("SVC_POWER_SEED={seed} SVC_POWER_CUTS={cuts}");
    let mut chance = Chance(seed);
    let place = TempDir::new().expect("a temporary folder");
    let mut power = match PowerDisk::mount(place.path()) {
        Ok(power) => power,
        Err(error) => {
            eprintln!("skipped: no file system can be mounted here (FUSE): {error}");
            return;
        }
    };
    let (home, away) = (Home::below(place.path()), Home::below(place.path()));
    std::fs::create_dir(away.user().join(".claude")).expect("a folder");
    power.lock().sync_all();
    let mut d = Daemon::with(|plan| plan.home(&home));
    let mut kept = Kept::default();
    for number in 0..cuts {
        let tasks: Vec<String> = (0..PRODUCERS).map(|_| new_task(&d)).collect();
        power.lock().cut_after(1 + chance.below(STEPS));
        let is_over = AtomicBool::new(false);
        let round = Round { number, power: &power, home: &home, away: &away, is_over: &is_over };
        let done = work_until_the_cut(&round, &d, &tasks, place.path());
        d.kill9();
        power.restore(&mut chance);
        let token = d.token.clone();
        d.restart();
        assert_eq!(d.token, token, "the operator's token is what it was");
        check(&d, &away, number, &done);
        kept.add(done);
    }
    d.stop();
    let path = home.path("svc.db");
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let file = file.expect("the database opens");
    let sound: String =
        file.query_row("pragma integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(sound, "ok");
    check_lines(&file, &kept);
    drop(file);
    let lost = power.lock().lost;
    eprintln!("{kept:?}, {lost} writes lost");
    assert!(lost > 0 && kept.is_of_every_kind(), "each was at work when the power went: {kept:?}");
}

fn work_until_the_cut(round: &Round<'_>, d: &Daemon, tasks: &[String], place: &Path) -> Kept {
    thread::scope(|scope| {
        // If this thread panics, the others must still end.
        let stop_anyway = SetOnDrop(round.is_over);
        let mut workers: Vec<ScopedJoinHandle<'_, Kept>> = tasks
            .iter()
            .map(|task| {
                let caller = d.with_token(d.token.as_deref().expect("a token"));
                scope.spawn(move || work::append(round, &caller, task))
            })
            .collect();
        workers.push(scope.spawn(|| work::hooks(round)));
        workers.push(scope.spawn(|| work::runs(round)));
        workers.push(scope.spawn(|| work::host(round)));
        let files = || Kept::new(files::change(round));
        workers.push(scope.spawn(files));
        eventually(WITHIN, || round.power.is_off());
        eventually(WITHIN, || {
            end_all(place);
            workers.iter().all(ScopedJoinHandle::is_finished)
        });
        // A worker may have started another process before it saw the cut.
        eventually(WITHIN, || end_all(place) == 0);
        let mut done = Kept::default();
        for worker in workers {
            done.add(worker.join().expect("a worker"));
        }
        drop(stop_anyway);
        done
    })
}

/// Runs a command to its end. Its working folder is on another disk: no program can start in a
/// folder without power.
fn run(home: &Home, args: &[&str], input: &str) -> Ran {
    let mut command = home.command(args);
    command.current_dir("/").envs([PATIENT]).stdin(Stdio::piped());
    let mut running = Running::spawn(command);
    let mut stdin = running.stdin();
    // A killed process does not read.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    running.wait(WITHIN)
}

/// Kills all processes on the disk, as a power cut does; returns their number.
fn end_all(place: &Path) -> usize {
    let place = place.as_os_str().as_encoded_bytes();
    let is_on_disk = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        folder.as_os_str().as_encoded_bytes().starts_with(place)
            || environment.windows(place.len()).any(|part| part == place)
    };
    let own = std::process::id().cast_signed();
    let mut count = 0;
    for pid in all_pids().into_iter().filter(|pid| *pid != own && is_on_disk(pid)) {
        count += 1;
        if let Some(pid) = Pid::from_raw(pid) {
            let _gone_already = kill_process(pid, Signal::KILL);
        }
    }
    count
}
