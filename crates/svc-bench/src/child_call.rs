//! `child-call`: a call of a child MCP server's tool through the daemon, beside the same call on the server's own pipes.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
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

/// The server: one tool, which gives back what it is given.
pub(crate) fn serve() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let Some(id) = message.get("id") else { continue };
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "bench", "version": "1" },
            }),
            Some("tools/list") => {
                json!({ "tools": [{ "name": "echo", "inputSchema": { "type": "object" } }] })
            }
            _ => {
                json!({ "content": [{ "type": "text", "text": message["params"]["arguments"].to_string() }] })
            }
        };
        writeln!(out, "{}", json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
        out.flush()?;
    }
    Ok(())
}

/// Runs it.
pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let home = bench.sandbox.path("child-call");
    std::fs::create_dir_all(&home)?;
    let program = std::env::current_exe()?;
    let config = format!(
        "[sources.echo]\ncommand = {:?}\nargs = [\"child\"]\nsharing = \"shared\"\n",
        program.display().to_string()
    );
    std::fs::write(home.join("config.toml"), config)?;
    let daemon = Daemon::start(&bench.sandbox, "child-call")?;
    let began = Instant::now();
    while daemon.target.call("GET", "/v1/sources/echo", "")?["state"] != "connected" {
        anyhow::ensure!(began.elapsed() < Duration::from_secs(30), "the server does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let arguments = json!({ "text": "x".repeat(200) });
    let through = request("tools/call", &json!({ "name": "echo__echo", "arguments": arguments }));
    let through = daemon.target.request("POST", "/mcp", &through);
    let plain = request("tools/call", &json!({ "name": "echo", "arguments": arguments }));
    let mut direct = DirectChild::start()?;
    let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
    let mut times: [Vec<Duration>; 2] = Default::default();
    bench.begin_round("child-call")?;
    // In turns, so that whatever else the machine does hits both alike.
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
    daemon.process.stop()
}

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}
