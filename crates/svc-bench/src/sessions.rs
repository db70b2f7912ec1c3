//! `sessions`: a question from one hosted agent to another and its answer, through row, host, turn
//! and reply. The baseline is the same program at the end of pipes, with question and answer each
//! synced to a file.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Barrier,
    thread,
    time::Instant,
};

use anyhow::Context as _;
use serde_json::json;

use super::{
    bench::Bench,
    daemon::Daemon,
    load::{Caller, Protocol, Target, tool_call},
    neighbour::session,
    report::{Goal, Slice, Window},
    wire,
};

const TURN_END: &str = "END";
/// The beginning of the last line of a question.
const ASKED: &str = "Answer: ";
/// Number of pairs that ask concurrently.
const PAIRS: usize = 200;

/// The program of the agent: answers each question.
pub(crate) fn answer_questions() -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        if line?.starts_with(ASKED) {
            writeln!(stdout, "an answer\n{TURN_END}")?;
            stdout.flush()?;
        }
    }
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    let home = bench.sandbox.path("sessions");
    fs::create_dir_all(&home)?;
    let config = format!(
        "[agents.pair]\nbackend = \"exec\"\ncommand = [{:?}, \"echo\"]\nturn_end = {TURN_END:?}\n",
        own.display().to_string()
    );
    fs::write(home.join("config.toml"), config)?;
    let env = [("SVC_SESSION_SENDS", "4294967295")];
    let daemon = Daemon::start_with(&bench.sandbox, "sessions", &env)?;
    let pairs = if bench.quick { 2 } else { PAIRS };
    let asking = (0..pairs).map(|number| Asking::start(&daemon, number));
    let mut asking: Vec<Asking> = asking.collect::<anyhow::Result<_>>()?;
    let file = |number: usize| bench.sandbox.path(&format!("piped-{number}"));
    let piped = (0..pairs).map(|number| Piped::start(&own, &file(number)));
    let mut piped: Vec<Piped> = piped.collect::<anyhow::Result<_>>()?;
    // Shows whether the cost grows with the number of pairs, which would be a fault.
    let some =
        [(10, Vec::new()), (100, Vec::new())].into_iter().filter(|(count, _)| *count < pairs);
    let most = (pairs, vec![Goal::at_least(2_000.0)]);
    let alone = (1, vec![Goal::p50_us(10_000.0), Goal::p99_us(40_000.0)]);
    for (count, goals) in [alone].into_iter().chain(some).chain([most]) {
        let name = format!("sessions/round trip/{count}");
        let figure = bench.in_turns(
            (&name, "round trips/s", 1),
            |bench| {
                let cpu = daemon.process.cpu();
                let slice = at_once(bench, &mut asking[..count], Asking::ask)?;
                Ok(Slice { cpu: daemon.process.cpu_since(cpu), ..slice })
            },
            ("pipes, synced", |bench| at_once(bench, &mut piped[..count], Piped::ask)),
        )?;
        if goals.is_empty() {
            bench.add(figure.clone());
        }
        for goal in goals {
            bench.add(figure.clone().goal(goal));
        }
    }
    for pair in piped {
        pair.stop()?;
    }
    for pair in &asking {
        pair.stop(&daemon)?;
    }
    daemon.process.stop()
}

/// All pairs ask concurrently, each one question after the other.
fn at_once<T: Send>(
    bench: &Bench,
    all: &mut [T],
    ask: impl Fn(&mut T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Slice> {
    let (barrier, window) = (Barrier::new(all.len()), bench.window());
    thread::scope(|scope| {
        let askers: Vec<_> = all
            .iter_mut()
            .map(|one| {
                let (barrier, ask) = (&barrier, &ask);
                scope.spawn(move || {
                    barrier.wait();
                    ask_until(window, || ask(one))
                })
            })
            .collect();
        let mut slice = Slice::counted(0, window.length());
        for asker in askers {
            slice.join(asker.join().map_err(|_| anyhow::anyhow!("an asker failed"))??);
        }
        Ok(slice)
    })
}

fn ask_until(window: Window, mut ask: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Slice> {
    let mut slice = Slice::default();
    loop {
        let begun = Instant::now();
        if begun >= window.until {
            return Ok(slice);
        }
        ask()?;
        let ended = Instant::now();
        // A pair without an answer within the window is measured by its first question that is
        // answered after it.
        let is_within = begun >= window.from && ended <= window.until;
        if is_within || slice.count == 0 && ended > window.until {
            slice.add(ended - begun);
        }
    }
}

/// An agent that asks another one.
struct Asking {
    /// Opened with the first question, as the daemon closes a silent connection while the other
    /// agents start.
    connection: Option<Caller>,
    target: Target,
    request: Vec<u8>,
    agents: [String; 2],
}

impl Asking {
    fn start(daemon: &Daemon, number: usize) -> anyhow::Result<Self> {
        let start = |name: &str| {
            let input = json!({ "instance": "pair", "name": name, "cwd": "/" }).to_string();
            let view = daemon.target.call("POST", "/v1/hosts", &input)?;
            anyhow::Ok(view["id"].as_str().context("an agent has an id")?.to_owned())
        };
        let agents = [start(&format!("asks-{number}"))?, start(&format!("answers-{number}"))?];
        let target = session(daemon, &format!("agent:pair:asks-{number}"))?;
        let arguments = json!({
            "sessionKey": format!("agent:pair:answers-{number}"), "message": "a question", "timeoutSeconds": 30,
        });
        let request = target.request("POST", "/mcp", &tool_call("sessions_send", &arguments));
        Ok(Self { connection: None, target, request, agents })
    }

    fn ask(&mut self) -> anyhow::Result<()> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Caller::open(self.target.address, &Protocol::HTTP)?,
        };
        let answer = self.connection.insert(connection).ask(&self.request)?;
        let body = String::from_utf8_lossy(wire::body(&answer));
        anyhow::ensure!(body.contains("\"reply\":\"an answer\""), "no answer: {body}");
        Ok(())
    }

    fn stop(&self, daemon: &Daemon) -> anyhow::Result<()> {
        for id in &self.agents {
            let path = format!("/v1/hosts/{id}/stop");
            daemon.target.call("POST", &path, "{\"force\":true}")?;
        }
        Ok(())
    }
}

/// The same program at the end of two pipes.
struct Piped {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    file: File,
}

impl Piped {
    fn start(program: &Path, file: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .arg("echo")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("piped")?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Self { child, input, output, file: File::create(file)? })
    }

    fn ask(&mut self) -> anyhow::Result<()> {
        let question = format!("{ASKED}a question\n");
        self.file.write_all(question.as_bytes())?;
        self.file.sync_data()?;
        self.input.write_all(question.as_bytes())?;
        let mut answer = String::new();
        while !answer.ends_with(&format!("{TURN_END}\n")) {
            anyhow::ensure!(self.output.read_line(&mut answer)? > 0, "it has ended");
        }
        self.file.write_all(answer.as_bytes())?;
        Ok(self.file.sync_data()?)
    }

    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.input);
        self.child.wait()?;
        Ok(())
    }
}
