//! `agents`: the cost of a host between its agent and the agent's watchers: latency from a line to
//! a watcher, throughput from a pipe to the spool, idle memory and CPU, and the daemon's restart.
//! The baseline is a bare pipe.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    bench::Bench,
    daemon::Daemon,
    report::{self, Figure, Goal},
};

/// Bytes of a line, including its line feed.
const LINE: usize = 100;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    let home = bench.sandbox.path("agents");
    fs::create_dir_all(&home)?;
    let config = format!(
        "[agents.idle]\nbackend = \"exec\"\ncommand = [\"cat\"]\n\
         [agents.lines]\nbackend = \"exec\"\ncommand = [{own:?}, \"lines\"]\n\
         [agents.flood]\nbackend = \"exec\"\ncommand = [\"sh\", \"-c\", \"read n; yes {} | head -n $n\"]\n",
        "x".repeat(LINE - 1),
        own = own.display().to_string(),
    );
    fs::write(home.join("config.toml"), config)?;
    let daemon = Daemon::start(&bench.sandbox, "agents")?;
    bench.begin_round("agents/watcher")?;
    watcher(bench, &daemon)?;
    bench.begin_round("agents/spool")?;
    spool(bench, &daemon)?;
    bench.begin_round("agents/host")?;
    host(bench)?;
    bench.begin_round("agents/idle")?;
    idle(bench, daemon)
}

/// Starts an agent; returns its id and its socket.
fn start(daemon: &Daemon, instance: &str, name: &str) -> anyhow::Result<(String, Value)> {
    let input = json!({ "instance": instance, "name": name, "cwd": "/" });
    let view = daemon.target.call("POST", "/v1/hosts", &input.to_string())?;
    Ok((view["id"].as_str().context("an agent has an id")?.to_owned(), view))
}

fn send(daemon: &Daemon, id: &str, input: &str) -> anyhow::Result<()> {
    let body = json!({ "input": input }).to_string();
    daemon.target.call("POST", &format!("/v1/hosts/{id}/send"), &body).map(drop)
}

fn stop(daemon: &Daemon, id: &str) -> anyhow::Result<()> {
    daemon.target.call("POST", &format!("/v1/hosts/{id}/stop"), "{\"force\":true}").map(drop)
}

/// Microseconds on the monotonic clock, which all processes share.
pub(crate) fn clock_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

/// The program of the agent: prints lines that begin with the time. The two numbers are the lines
/// per second and the number of lines; they are read from standard input if they are not given.
pub(crate) fn print_lines(numbers: &[u64]) -> anyhow::Result<()> {
    let mut order = String::new();
    if numbers.is_empty() {
        std::io::stdin().read_line(&mut order)?;
    }
    let read = order.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let mut numbers = numbers.iter().copied().chain(read);
    let (rate, count) = numbers.next().zip(numbers.next()).context("a rate and a number")?;
    let mut stdout = std::io::stdout().lock();
    let begun = Instant::now();
    for number in 0..count {
        let due = Duration::from_micros(number * 1_000_000 / rate);
        thread::sleep(due.saturating_sub(begun.elapsed()));
        writeln!(stdout, "T{:016} {}", clock_us(), "x".repeat(LINE - 19))?;
        stdout.flush()?;
    }
    Ok(())
}

/// The latency of each line in a stream, until `count` lines have arrived. The rest of the stream
/// is not parsed, as the event at the end of the turn repeats the whole text.
fn latencies(mut reader: impl std::io::Read, count: u64) -> anyhow::Result<Vec<u64>> {
    let (mut found, mut pending, mut block) = (Vec::new(), Vec::new(), vec![0; 64 * 1024]);
    while (found.len() as u64) < count {
        let size = reader.read(&mut block)?;
        anyhow::ensure!(size > 0, "the stream ended after {} lines", found.len());
        let now = clock_us();
        pending.extend_from_slice(&block[..size]);
        let mut from = 0;
        while let Some(at) = pending[from..].iter().position(|byte| *byte == b'T') {
            let Some(digits) = pending.get(from + at + 1..from + at + 17) else { break };
            if digits.iter().all(u8::is_ascii_digit) {
                let text = std::str::from_utf8(digits)?;
                found.push(now.saturating_sub(text.parse()?));
            }
            from += at + 1;
            if found.len() as u64 == count {
                return Ok(found);
            }
        }
        let keep = pending.len().saturating_sub(17).max(from);
        pending.drain(..keep.min(pending.len()));
    }
    Ok(found)
}

fn at(times: &mut [u64], share: usize) -> f64 {
    times.sort_unstable();
    report::float(times[(times.len() * share / 100).min(times.len() - 1)]) / 1e3
}

/// 200 lines a second from each of 20 agents, each with a watcher.
fn watcher(bench: &mut Bench, daemon: &Daemon) -> anyhow::Result<()> {
    let (agents, count) = if bench.quick { (4, 100) } else { (20, 2_000) };
    let mut watching = Vec::new();
    for number in 0..agents {
        let (id, _) = start(daemon, "lines", &format!("w{number}"))?;
        let path = format!("/v1/events?stream=agent/{id}");
        let headers = [("Accept", "text/event-stream")];
        let request = daemon.target.request_with("GET", &path, &headers, "");
        let mut stream = TcpStream::connect(daemon.target.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(&request)?;
        watching.push((id, thread::spawn(move || latencies(stream, count))));
    }
    for (id, _) in &watching {
        send(daemon, id, &format!("200 {count}"))?;
    }
    let mut times = Vec::new();
    for (_, watcher) in watching {
        times.extend(watcher.join().map_err(|_| anyhow::anyhow!("a watcher failed"))??);
    }
    let mut bare = Vec::new();
    let mut children = Vec::new();
    for _ in 0..agents {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("lines")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        writeln!(child.stdin.take().context("piped")?, "200 {count}")?;
        let stdout = child.stdout.take().context("piped")?;
        children.push((child, thread::spawn(move || latencies(stdout, count))));
    }
    for (mut child, reader) in children {
        bare.extend(reader.join().map_err(|_| anyhow::anyhow!("a reader failed"))??);
        child.wait()?;
    }
    for (name, share, most) in [("p50", 50, 3.0), ("p99", 99, 15.0)] {
        bench.add(
            Figure::new(format!("agents/line to watcher {name}"), "ms", at(&mut times, share))
                .over("bare pipe", at(&mut bare, share))
                .goal(Goal::at_most(most))
                .note(format!("{agents} agents, 200 lines/s each; host, daemon and SSE")),
        );
    }
    Ok(())
}

/// Throughput from a pipe to the synced spool, unthrottled.
fn spool(bench: &mut Bench, daemon: &Daemon) -> anyhow::Result<()> {
    let count: u32 = if bench.quick { 20_000 } else { 500_000 };
    let mut rates = Vec::new();
    for round in 0..bench.rounds {
        let (id, view) = start(daemon, "flood", &format!("f{round}"))?;
        let socket = view["socket_path"].as_str().context("a path")?;
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"{\"type\":\"host.attach\"}\n")?;
        let begun = Instant::now();
        send(daemon, &id, &count.to_string())?;
        let mut tail = Vec::new();
        let mut block = vec![0; 256 * 1024];
        loop {
            let size = stream.read(&mut block)?;
            anyhow::ensure!(size > 0, "the host has ended");
            tail.extend_from_slice(&block[..size]);
            if tail.windows(13).any(|part| part == b"\"type\":\"exit\"") {
                break;
            }
            tail.drain(..tail.len().saturating_sub(64));
        }
        rates.push(f64::from(count) / begun.elapsed().as_secs_f64());
    }
    let mut bare = Vec::new();
    for _ in 0..bench.rounds {
        let script = format!("yes {} | head -n {count}", "x".repeat(LINE - 1));
        let begun = Instant::now();
        let mut child = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("piped")?);
        anyhow::ensure!(lines.lines().count() == count as usize, "lines are missing");
        child.wait()?;
        bare.push(f64::from(count) / begun.elapsed().as_secs_f64());
    }
    bench.add(
        Figure::new("agents/lines to the spool", "lines/s", report::median(rates))
            .over("bare pipe", report::median(bare))
            .goal(Goal::at_least(50_000.0))
            .note("100 bytes each, to the end of the program, which a watcher of the host sees"),
    );
    Ok(())
}

/// Time until the program of a host runs and its socket responds, and the host's memory at that
/// point.
fn host(bench: &mut Bench) -> anyhow::Result<()> {
    let folder = bench.sandbox.path("hosts");
    let starts = if bench.quick { 3 } else { 25 };
    let (mut ours, mut bare, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..starts {
        let spec = json!({
            "agent_id": format!("ag_host{number}"), "folder": folder, "instance": "idle",
            "session_key": format!("agent:idle:h{number}"), "backend": "exec", "command": ["cat"], "cwd": "/",
            "linger_ms": 0,
        });
        let begun = Instant::now();
        let mut starter = Command::new(bench.sandbox.svc())
            .args(["agent", "host"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        starter.stdin.take().context("piped")?.write_all(spec.to_string().as_bytes())?;
        let mut line = String::new();
        BufReader::new(starter.stdout.take().context("piped")?).read_line(&mut line)?;
        ours.push(begun.elapsed().as_secs_f64() * 1e3);
        starter.wait()?;
        let started: Value = serde_json::from_str(&line)?;
        let pid = started["host_pid"].as_u64().with_context(|| format!("no host: {line}"))?;
        memory.push(resident_mib(pid)?);
        let mut stream = UnixStream::connect(started["socket_path"].as_str().context("a socket")?)?;
        stream.write_all(b"{\"type\":\"host.stop\",\"payload\":{\"force\":true}}\n")?;
        BufReader::new(stream).read_line(&mut line)?;
        let begun = Instant::now();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        bare.push(begun.elapsed().as_secs_f64() * 1e3);
        drop(child.stdin.take());
        child.wait()?;
    }
    bench.add(
        Figure::new("agents/host ready", "ms", report::median(ours))
            .over("starting the program alone", report::median(bare))
            .goal(Goal::at_most(50.0))
            .note("from the start of the host until its program runs and its socket answers"),
    );
    let figure = Figure::new("agents/host in memory", "MiB", report::median(memory));
    bench.add(figure.goal(Goal::at_most(15.0)));
    Ok(())
}

/// Memory of a host, CPU and memory of the idle daemon, and the daemon's restart.
fn idle(bench: &mut Bench, daemon: Daemon) -> anyhow::Result<()> {
    let agents: u32 = if bench.quick { 5 } else { 100 };
    let rest = Duration::from_secs(if bench.quick { 1 } else { 10 });
    // Waits until earlier work is done.
    while share_of(&daemon, Duration::from_secs(1)) > 1.0 {}
    let without = share_of(&daemon, rest);
    let (mut ids, mut memory) = (Vec::new(), Vec::new());
    for number in 0..agents {
        let (id, view) = start(&daemon, "idle", &format!("i{number}"))?;
        let pid = view["host_pid"].as_u64().context("a pid")?;
        memory.push(private_mib(pid)?);
        ids.push(id);
    }
    let with = share_of(&daemon, rest);
    bench.add(
        Figure::new("agents/daemon at rest", "% of a core", with)
            .beside_value("no agents", without)
            .note(format!("{agents} idle agents")),
    );
    let figure = Figure::new("agents/private memory of a host", "MiB", report::median(memory));
    bench.add(figure.goal(Goal::at_most(4.0)));
    daemon.process.stop()?;
    let begun = Instant::now();
    let daemon = Daemon::start(&bench.sandbox, "agents")?;
    let ready = begun.elapsed();
    for id in &ids {
        send(&daemon, id, "back")?;
    }
    for id in &ids {
        let path = format!("/v1/events?stream=agent/{id}&limit=500");
        loop {
            let page = daemon.target.call("GET", &path, "")?;
            if page.to_string().contains("\"back\"") {
                break;
            }
            let waited = begun.elapsed();
            anyhow::ensure!(waited < Duration::from_secs(30), "agent {id} is not followed");
        }
    }
    let whole = begun.elapsed();
    bench.add(
        Figure::new("agents/re-attached", "ms", whole.saturating_sub(ready).as_secs_f64() * 1e3)
            .goal(Goal::at_most(300.0))
            .note(format!(
                "{agents} hosts, from the daemon's readiness until the log has a word to each"
            )),
    );
    for id in &ids {
        stop(&daemon, id)?;
    }
    daemon.process.stop()
}

/// CPU use of the daemon over `time`, in percent of a core.
fn share_of(daemon: &Daemon, time: Duration) -> f64 {
    let before = daemon.process.cpu();
    thread::sleep(time);
    let spent = daemon.process.cpu_since(before).unwrap_or_default();
    100.0 * spent.as_secs_f64() / time.as_secs_f64()
}

/// Memory of a process that it shares with no other process.
pub(crate) fn private_mib(pid: u64) -> anyhow::Result<f64> {
    mapped_mib(pid, "Private_")
}

pub(crate) fn resident_mib(pid: u64) -> anyhow::Result<f64> {
    mapped_mib(pid, "Rss:")
}

pub(crate) fn mapped_mib(pid: u64, name: &str) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = text
        .lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum::<u64>();
    Ok(report::float(kib) / 1024.0)
}
