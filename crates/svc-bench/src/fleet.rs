//! `fleet`: how many agents one daemon can carry, and the cost of each in CPU time, memory and
//! disk. A page watches through its event stream, and people watch with `svc top`.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    agents::clock_us,
    bench::svc_program,
    daemon::Daemon,
    fleet_agent::{FleetAccount, FleetOrder, FleetTimes, micros, sleep_until},
    idle::raise_file_limit,
    report::{self, Slice, float},
    sandbox::{Process, Sandbox},
    wire::Body,
};

/// The goals of a fleet, in milliseconds, at the 99th percentile.
const HOOK_MS: f64 = 25.0;
const DELIVERY_MS: f64 = 100.0;
/// The smallest fleet of a search.
const FEW: usize = 8;
/// A search ends when the fleet that is too large is larger than the other by less than this share.
const CLOSE: usize = 10;
/// Before anything counts, agents work for this long.
const WARM: Duration = Duration::from_secs(10);
/// How long an agent may take to begin, or to end.
const TIMEOUT: Duration = Duration::from_mins(1);
/// How much faster everything happens with `--quick`.
const QUICK: u32 = 20;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// The program to measure [default: the `svc` beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    svc: Option<PathBuf>,
    /// How many agents [default: as many as are in time]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    agents: Option<u32>,
    /// How long each fleet is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Few agents, twenty times as fast, for seconds: shows that everything works, and nothing
    /// about speed
    #[arg(long, conflicts_with_all = ["agents", "seconds"])]
    quick: bool,
    /// Print JSON: one document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Serialize)]
struct FleetFigures {
    agents: usize,
    /// Whether agents make the calls of `svc hook`, `svc stdio` and `svc task run` themselves.
    direct: bool,
    hooks: usize,
    hook_p50_ms: f64,
    hook_p99_ms: f64,
    messages: usize,
    delivery_p50_ms: f64,
    delivery_p99_ms: f64,
    /// Hooks that gave a message to their model.
    handed_over: u64,
    records: u64,
    /// How late the latest tool call began: agents that were held up do less than they should.
    late_ms: u64,
    /// Processor time for each agent, in milliseconds of a minute.
    daemon_cpu_ms: f64,
    hooks_cpu_ms: f64,
    /// Of `svc stdio` and `svc task run`.
    programs_cpu_ms: f64,
    /// Processor time of three `svc top` together.
    tops_cpu_ms: f64,
    daemon_mib: f64,
    /// What each agent adds to it.
    daemon_kib_each: f64,
    /// Private memory of `svc stdio` and `svc task run`, for each agent.
    programs_mib: f64,
    /// What each agent adds to the data folder if it works around the clock.
    disk_mib_day: f64,
    in_time: bool,
}

#[derive(Debug, Serialize)]
struct FleetReport {
    /// The largest fleet that was in time, if it was searched for.
    carries: Option<usize>,
    fleets: Vec<FleetFigures>,
}

pub(crate) fn run(args: &FleetArgs) -> anyhow::Result<()> {
    let sandbox = Sandbox::new(svc_program(args.svc.as_deref())?)?;
    raise_file_limit();
    let (speed, length) = if args.quick {
        (QUICK, Duration::from_secs(3))
    } else {
        (1, Duration::from_secs(args.seconds))
    };
    let fleet = Fleet { sandbox, speed, length };
    let mut report = FleetReport { carries: None, fleets: Vec::new() };
    let wanted = if args.quick { Some(3) } else { args.agents.map(|agents| agents as usize) };
    let most = if let Some(agents) = wanted {
        report.fleets.push(fleet.measure(agents, false)?);
        agents
    } else {
        let carries = search(FEW, |agents| fleet.is_in_time(agents, &mut report.fleets))?;
        report.carries = Some(carries);
        carries
    };
    if most > 0 {
        report.fleets.push(fleet.measure(most, true)?);
    }
    report::show_step("");
    report::print(&if args.json { serde_json::to_string(&report)? + "\n" } else { table(&report) })
}

/// The largest number that passes, about. `first` is tried first.
fn search(
    first: usize,
    mut passes: impl FnMut(usize) -> anyhow::Result<bool>,
) -> anyhow::Result<usize> {
    let (mut good, mut next) = (0, first);
    while passes(next)? {
        good = next;
        next *= 2;
    }
    let mut bad = next;
    while bad - good > (bad / CLOSE).max(1) {
        let middle = usize::midpoint(good, bad);
        if passes(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good)
}

struct Fleet {
    sandbox: Sandbox,
    speed: u32,
    length: Duration,
}

struct Member {
    process: Process,
    input: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
}

impl Fleet {
    /// Whether a fleet of this size is in time. A fleet that breaks down is not.
    fn is_in_time(&self, agents: usize, all: &mut Vec<FleetFigures>) -> anyhow::Result<bool> {
        match self.measure(agents, false) {
            Ok(figures) => {
                let in_time = figures.in_time;
                all.push(figures);
                Ok(in_time)
            }
            // The first step has to work.
            Err(error) if all.is_empty() => Err(error),
            Err(error) => {
                report::show_step("");
                // A failure to print is ignored.
                writeln!(std::io::stderr().lock(), "{agents} agents: {error:#}").ok();
                Ok(false)
            }
        }
    }

    fn measure(&self, agents: usize, direct: bool) -> anyhow::Result<FleetFigures> {
        let way = if direct { "direct" } else { "programs" };
        report::show_step(&format!("{agents} agents, {way}: they begin"));
        self.sandbox.clear(None)?;
        let daemon = Daemon::start(&self.sandbox, "fleet")?;
        let mut watch = FleetWatch::start(&self.sandbox, &daemon)?;
        let resident = daemon.process.resident_bytes()?;
        let mut members = (0..agents)
            .map(|number| self.begin(&daemon, number, agents, direct))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let begin = clock_us() + 200_000;
        let from = begin + micros(WARM / self.speed);
        let times = FleetTimes { begin, from, until: from + micros(self.length) };
        for member in &mut members {
            writeln!(member.input, "{}", serde_json::to_string(&times)?)?;
        }
        report::show_step(&format!("{agents} agents, {way}: they work"));
        sleep_until(times.from);
        let before = (daemon.process.cpu(), watch.cpu(), disk_bytes(daemon.home())?);
        sleep_until(times.until);
        let daemon_cpu = daemon.process.cpu_since(before.0).unwrap_or_default();
        let tops_cpu = watch.cpu().saturating_sub(before.1);
        let disk = disk_bytes(daemon.home())?.saturating_sub(before.2);
        let resident = (resident, daemon.process.resident_bytes()?);
        let accounts =
            members.into_iter().map(Member::finish).collect::<anyhow::Result<Vec<_>>>()?;
        watch.check()?;
        let figures =
            Sums { agents, direct, length: self.length, daemon_cpu, tops_cpu, disk, resident };
        let figures = figures.figures(&accounts, &watch);
        drop(watch);
        daemon.process.stop()?;
        figures
    }

    /// Starts an agent and waits until it has begun its session.
    fn begin(
        &self,
        daemon: &Daemon,
        number: usize,
        agents: usize,
        direct: bool,
    ) -> anyhow::Result<Member> {
        let token = daemon.target.token.clone().unwrap_or_default();
        let order = FleetOrder {
            svc: self.sandbox.svc().to_owned(),
            home: daemon.home().to_owned(),
            work: self.sandbox.path("work"),
            number,
            agents,
            speed: self.speed,
            direct: direct.then_some((daemon.target.address, token)),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("fleet-agent").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = self.sandbox.launch(&format!("agent-{number}"), &mut command)?;
        let (mut input, output) = process.pipes()?;
        let (sender, lines) = mpsc::channel();
        // The thread ends with the agent.
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                sender.send(line).ok();
            }
        });
        writeln!(input, "{}", serde_json::to_string(&order)?)?;
        let member = Member { process, input, lines };
        member.next()?;
        Ok(member)
    }
}

impl Member {
    fn next(&self) -> anyhow::Result<String> {
        let line = self.lines.recv_timeout(TIMEOUT);
        let line = line.with_context(|| {
            format!("an agent has ended or hangs: {}", self.process.complaint())
        })?;
        Ok(line?)
    }

    fn finish(self) -> anyhow::Result<FleetAccount> {
        Ok(serde_json::from_str(&self.next()?)?)
    }
}

struct Sums {
    agents: usize,
    direct: bool,
    length: Duration,
    daemon_cpu: Duration,
    tops_cpu: Duration,
    disk: u64,
    /// Resident bytes of the daemon, before the agents and in the end.
    resident: (u64, u64),
}

impl Sums {
    fn figures(
        &self,
        accounts: &[FleetAccount],
        watch: &FleetWatch,
    ) -> anyhow::Result<FleetFigures> {
        let (mut hooks, mut deliveries) = (Slice::default(), Slice::default());
        for account in accounts {
            for micros in &account.hooks {
                hooks.add(Duration::from_micros(u64::from(*micros)));
            }
            for (message, sent) in &account.sent {
                let arrived = watch.arrival(message);
                let arrived = arrived.with_context(|| format!("the page has no {message}"))?;
                deliveries.add(Duration::from_micros(arrived.saturating_sub(*sent)));
            }
        }
        let ms = |slice: &Slice, share| report::percentile(slice, share).unwrap_or_default() / 1e3;
        let sum = |of: fn(&FleetAccount) -> u64| accounts.iter().map(of).sum::<u64>();
        let each = float(self.agents as u64);
        let minutes = self.length.as_secs_f64() / 60.0;
        let for_each = |millis: f64| millis / each / minutes;
        let mebibytes = |bytes: u64| float(bytes) / (1024.0 * 1024.0);
        let (hook_p99_ms, delivery_p99_ms) = (ms(&hooks, 0.99), ms(&deliveries, 0.99));
        let programs_mib: f64 = accounts.iter().map(|account| account.programs_mib).sum();
        let grown = self.resident.1.saturating_sub(self.resident.0);
        Ok(FleetFigures {
            agents: self.agents,
            direct: self.direct,
            hooks: hooks.latencies.len(),
            hook_p50_ms: ms(&hooks, 0.5),
            hook_p99_ms,
            messages: deliveries.latencies.len(),
            delivery_p50_ms: ms(&deliveries, 0.5),
            delivery_p99_ms,
            handed_over: sum(|account| account.handed_over),
            records: sum(|account| account.records),
            late_ms: accounts.iter().map(|account| account.late_ms).max().unwrap_or(0),
            daemon_cpu_ms: for_each(self.daemon_cpu.as_secs_f64() * 1e3),
            hooks_cpu_ms: for_each(float(sum(|account| account.hooks_cpu_ms))),
            programs_cpu_ms: for_each(float(sum(|account| account.programs_cpu_ms))),
            tops_cpu_ms: self.tops_cpu.as_secs_f64() * 1e3 / minutes,
            daemon_mib: mebibytes(self.resident.1),
            daemon_kib_each: float(grown) / 1024.0 / each,
            programs_mib: programs_mib.max(0.0) / each,
            disk_mib_day: for_each(mebibytes(self.disk)) * 60.0 * 24.0,
            in_time: hook_p99_ms <= HOOK_MS && delivery_p99_ms <= DELIVERY_MS,
        })
    }
}

/// Bytes of the data folder: pages in use of the database, and all other files.
fn disk_bytes(home: &Path) -> anyhow::Result<u64> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = rusqlite::Connection::open_with_flags(home.join("svc.db"), flags)?;
    let used = "select (page_count - freelist_count) * page_size
        from pragma_page_count, pragma_freelist_count, pragma_page_size";
    let used: i64 = database.query_row(used, [], |row| row.get(0))?;
    Ok(u64::try_from(used)? + folder_bytes(home))
}

/// Bytes of the files below a folder, without those of the database, and without `spool`, where the
/// output of a command is until it ends.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| {
        let is_database = entry.file_name().as_encoded_bytes().starts_with(b"svc.db");
        match entry.metadata() {
            Ok(meta) if meta.is_dir() && entry.file_name() == "spool" => 0,
            Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
            Ok(meta) if meta.is_file() && !is_database => meta.len(),
            // A file may disappear meanwhile.
            _ => 0,
        }
    });
    sizes.sum()
}

fn table(report: &FleetReport) -> String {
    const HEADERS: &str = "agents||hooks|p50/p99, ms|messages|p50/p99, ms|late, ms|\
        CPU ms/min: daemon|hooks|stdio, run|daemon, MiB|KiB each|stdio, run, MiB|disk, MiB/day";
    let mut headers = HEADERS.split('|').map(str::to_owned);
    let mut rows: Vec<[String; 14]> =
        vec![std::array::from_fn(|_| headers.next().unwrap_or_default())];
    for fleet in &report.fleets {
        let verdict = match (fleet.direct, fleet.in_time) {
            (true, _) => "direct",
            (false, true) => "in time",
            (false, false) => "late",
        };
        rows.push([
            fleet.agents.to_string(),
            verdict.to_owned(),
            fleet.hooks.to_string(),
            format!("{:.1}/{:.1}", fleet.hook_p50_ms, fleet.hook_p99_ms),
            fleet.messages.to_string(),
            format!("{:.1}/{:.1}", fleet.delivery_p50_ms, fleet.delivery_p99_ms),
            fleet.late_ms.to_string(),
            report::number(fleet.daemon_cpu_ms),
            report::number(fleet.hooks_cpu_ms),
            report::number(fleet.programs_cpu_ms),
            report::number(fleet.daemon_mib),
            report::number(fleet.daemon_kib_each),
            report::number(fleet.programs_mib),
            report::number(fleet.disk_mib_day),
        ]);
    }
    let mut lines: Vec<String> = report::aligned(&rows).collect();
    if let Some(carries) = report.carries {
        lines.push(format!(
            "The daemon carries {carries} agents: hooks take at most {HOOK_MS} ms and messages \
             {DELIVERY_MS} ms, at the 99th percentile."
        ));
    }
    lines.join("\n") + "\n"
}

const TOPS: usize = 3;
const SCREEN: Winsize = Winsize { ws_row: 50, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };

/// When the page had each message, by its id, on the clock of all processes.
type Arrivals = Arc<Mutex<HashMap<String, u64>>>;

/// The page and the terminals. They end on drop.
pub(crate) struct FleetWatch {
    arrivals: Arrivals,
    page: TcpStream,
    tops: Vec<(Process, File)>,
}

impl FleetWatch {
    pub(crate) fn start(sandbox: &Sandbox, daemon: &Daemon) -> anyhow::Result<Self> {
        let request = [("accept", "text/event-stream")].as_slice();
        let request = daemon.target.request_with("GET", "/v1/events?after=latest", request, "");
        let mut page = TcpStream::connect(daemon.target.address)?;
        page.write_all(&request)?;
        let arrivals = Arrivals::default();
        let (reader, noted) = (page.try_clone()?, Arc::clone(&arrivals));
        // The thread ends with the connection.
        thread::spawn(move || read_page(reader, &noted));
        let tops = (0..TOPS)
            .map(|number| start_top(sandbox, daemon, number))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { arrivals, page, tops })
    }

    /// When the page had the message; `None` if it has not come.
    pub(crate) fn arrival(&self, message: &str) -> Option<u64> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).get(message).copied()
    }

    pub(crate) fn cpu(&self) -> Duration {
        self.tops.iter().filter_map(|(top, _)| top.cpu()).sum()
    }

    /// Fails if a terminal's program has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for (top, _) in &mut self.tops {
            anyhow::ensure!(top.is_running(), "svc top has ended: {}", top.complaint());
        }
        Ok(())
    }
}

impl Drop for FleetWatch {
    fn drop(&mut self) {
        // The connection may have ended before.
        self.page.shutdown(std::net::Shutdown::Both).ok();
    }
}

fn read_page(mut page: TcpStream, arrivals: &Arrivals) -> anyhow::Result<()> {
    let (mut body, mut rest) = (Body::default(), Vec::new());
    let mut block = vec![0; 64 * 1024];
    loop {
        let got = page.read(&mut block)?;
        if got == 0 {
            return Ok(());
        }
        let now = clock_us();
        body.feed(&block[..got], |bytes| rest.extend_from_slice(bytes))?;
        let mut from = 0;
        while let Some(end) = rest[from..].iter().position(|byte| *byte == b'\n') {
            note(&rest[from..from + end], now, arrivals);
            from += end + 1;
        }
        rest.drain(..from);
    }
}

/// Notes the first event of a message.
fn note(line: &[u8], now: u64, arrivals: &Arrivals) {
    const KIND: &[u8] = br#""kind":"message.queued""#;
    let Some(data) = line.strip_prefix(b"data: ") else { return };
    if !data.windows(KIND.len()).any(|bytes| bytes == KIND) {
        return;
    }
    let event: Value = serde_json::from_slice(data).unwrap_or_default();
    if let Some(id) = event["data"]["id"].as_str() {
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.entry(id.to_owned()).or_insert(now);
    }
}

/// `svc top` on a terminal of its own, whose screen is read and thrown away.
fn start_top(sandbox: &Sandbox, daemon: &Daemon, number: usize) -> anyhow::Result<(Process, File)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("no terminal")?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    tcsetwinsize(&ours, SCREEN)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = File::options().read(true).write(true).open(name.to_str()?)?;
    let mut command = Command::new(sandbox.svc());
    command.arg("top").env_clear().env("SVC_HOME", daemon.home()).env("TERM", "xterm-256color");
    command.stdin(Stdio::from(theirs.try_clone()?)).stdout(Stdio::from(theirs));
    let top = sandbox.launch(&format!("top-{number}"), &mut command)?;
    let ours = File::from(ours);
    let mut screen = ours.try_clone()?;
    // Reading ends with an error when the program has ended.
    thread::spawn(move || {
        let mut block = vec![0; 64 * 1024];
        while screen.read(&mut block).is_ok_and(|got| got > 0) {}
    });
    Ok((top, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_finds_the_largest_number_that_passes() {
        for most in [0, 1, 7, 8, 9, 100, 1000] {
            let mut asked = 0;
            let found = search(FEW, |agents| {
                asked += 1;
                Ok(agents <= most)
            });
            let found = found.unwrap_or_default();
            assert!(found <= most && most - found <= most / CLOSE + 1, "{found} of {most}");
            assert!(asked <= 12, "{asked} for {most}");
        }
    }
}
