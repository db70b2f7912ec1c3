//! `child-call`: a call of a child MCP server's tool through the daemon; the baseline is the same
//! call on the server's own pipes.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    caller::Caller,
    daemon::Daemon,
    load::Protocol,
    report::{Figure, Goal},
};

/// A server on its own pipes.
struct DirectChild {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl DirectChild {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("child")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut direct = Self { child, input, output };
        direct.ask(&request("initialize", &json!({ "protocolVersion": "2025-11-25" })))?;
        Ok(direct)
    }

    fn ask(&mut self, request: &str) -> anyhow::Result<String> {
        let mut answer = String::new();
        self.input.write_all(format!("{request}\n").as_bytes())?;
        self.output.read_line(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for DirectChild {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// Tools of the server that has many.
const MANY: usize = 1000;
/// Verbs and nouns of the tools' descriptions.
const WORDS: [&[&str]; 2] = [
    &[
        "create", "list", "delete", "update", "search", "export", "merge", "archive", "copy",
        "share",
    ],
    &[
        "issue",
        "branch",
        "invoice",
        "calendar event",
        "contact",
        "file",
        "ticket",
        "channel",
        "report",
        "page",
    ],
];

/// The server's tools: one that echoes its argument, or many of the same form.
fn tools(is_large: bool) -> Vec<Value> {
    let schema = json!({ "type": "object" });
    if !is_large {
        return vec![json!({ "name": "echo", "inputSchema": schema })];
    }
    let tool = |number: usize| {
        let [verb, noun] = [WORDS[0][number % 10], WORDS[1][number / 10 % 10]];
        json!({
            "name": format!("{verb}_{}_{number}", noun.replace(' ', "_")),
            "description": format!("{verb} a {noun} of workspace {}, by its id or its title", number / 100),
            "inputSchema": schema,
        })
    };
    (0..MANY).map(tool).collect()
}

/// What a server floods its client with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Noise {
    /// Lines on standard error.
    Stderr,
    /// Notifications that its tools have changed.
    Lists,
}

/// Floods the daemon beside the server's work, as long as a file exists. Ends with the process.
pub(crate) fn make_noise(noise: Noise, file: PathBuf) {
    const BURST: usize = 100;
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let burst = match noise {
        Noise::Stderr => format!("warning: {}\n", "x".repeat(190)),
        Noise::Lists => format!("{changed}\n"),
    };
    let burst = burst.repeat(BURST);
    std::thread::spawn(move || {
        loop {
            if !file.exists() {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let written = match noise {
                Noise::Stderr => io::stderr().write_all(burst.as_bytes()),
                Noise::Lists => io::stdout().write_all(burst.as_bytes()),
            };
            if written.is_err() {
                return;
            }
        }
    });
}

/// The server: its tools echo their arguments.
pub(crate) fn serve(is_large: bool) -> anyhow::Result<()> {
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let Some(id) = message.get("id") else { continue };
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "bench", "version": "1" },
            }),
            Some("tools/list") => {
                json!({ "tools": tools(is_large) })
            }
            _ => {
                json!({ "content": [{ "type": "text", "text": message["params"]["arguments"].to_string() }] })
            }
        };
        // In one write: a noise may come in between.
        let answer = format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        out.write_all(answer.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let home = bench.sandbox.path("child-call");
    std::fs::create_dir_all(&home)?;
    let program = std::env::current_exe()?.display().to_string();
    let config = format!(
        "[sources.echo]\ncommand = {program:?}\nargs = [\"child\"]\nsharing = \"shared\"\n\
        [sources.many]\ncommand = {program:?}\nargs = [\"child\", \"--large\"]\nsharing = \"shared\"\n",
    );
    std::fs::write(home.join("config.toml"), config)?;
    let daemon = Daemon::start(&bench.sandbox, "child-call")?;
    let began = Instant::now();
    for name in ["echo", "many"] {
        let target = format!("/v1/sources/{name}");
        while daemon.target.call("GET", &target, "")?["state"] != "connected" {
            anyhow::ensure!(began.elapsed() < Duration::from_secs(30), "{name} does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let arguments = json!({ "text": "x".repeat(200) });
    let through = request("tools/call", &json!({ "name": "echo__echo", "arguments": arguments }));
    let through = daemon.target.request("POST", "/mcp", &through);
    let plain = request("tools/call", &json!({ "name": "echo", "arguments": arguments }));
    let mut direct = DirectChild::start()?;
    let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
    let mut times: [Vec<Duration>; 2] = Default::default();
    bench.begin_round("child-call")?;
    // In turns, so that other load of the machine affects both alike.
    for _ in 0..if bench.quick { 200 } else { 5000 } {
        times[0].push(timed(|| direct.ask(&plain).map(drop))?);
        times[1].push(timed(|| caller.ask(&through).map(drop))?);
    }
    let [alone, ours] = times.map(|mut times| {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
        (at(50).as_secs_f64() * 1e3, at(99).as_secs_f64() * 1e3)
    });
    for (name, ours, alone, most) in [("p50", ours.0, alone.0, 0.3), ("p99", ours.1, alone.1, 2.0)]
    {
        bench.add(
            Figure::new(format!("child-call/{name}"), "ms above direct", ours - alone)
                .beside_value("direct", alone)
                .goal(Goal::at_most(most)),
        );
    }
    let search = json!({ "query": "delete an invoice by its title", "detail": "name" });
    let search = request("tools/call", &json!({ "name": "ToolSearch", "arguments": search }));
    let search = daemon.target.request("POST", "/mcp", &search);
    let mut times = Vec::new();
    for _ in 0..if bench.quick { 200 } else { 2000 } {
        times.push(timed(|| caller.ask(&search).map(drop))?);
    }
    times.sort_unstable();
    let median = times[times.len() / 2].as_secs_f64() * 1e3;
    bench.add(
        Figure::new("child-call/tool-search", "ms, p50", median)
            .beside_value("tools", f64::from(u32::try_from(MANY)?))
            .goal(Goal::at_most(1.0))
            .note("a whole call over HTTP: the search and its way".to_owned()),
    );
    daemon.process.stop()
}

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}
