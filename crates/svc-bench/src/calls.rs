//! Calls of tools. `mcp-call`: calls of read-only tools; the baseline is an axum handler that
//! parses JSON and responds with as many bytes. `child-call`: calls of a child MCP server's tools
//! through the daemon; the baseline is the same call over the server's own pipes.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};
use svc_wire::mcp::{self, Revision, meta};

use super::{
    append::slice,
    bench::Bench,
    daemon::Daemon,
    load::{Caller, Protocol, Target, tool_call},
    report::{Figure, Goal, p50_p99},
    sandbox::Process,
    server::{Kind, Server},
    wire,
};

const PEERS: usize = 5;
/// Connections for the figure with a goal, and for those without.
const CONNECTIONS: usize = 16;

pub(crate) fn run_mcp_call(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "mcp-call")?;
    for number in 0..PEERS {
        let peer = json!({
            "display_name": format!("peer {number}"), "backend": "bench", "path": format!("/work/{number}"),
        });
        daemon.target.call("POST", "/v1/peers/register", &peer.to_string())?;
    }
    let tools = [
        ("peer_list", json!({})),
        ("TaskGet", json!({ "task_id": daemon.make_task()? })),
        ("ToolSearch", json!({ "query": "send a message", "detail": "name" })),
    ];
    let levels: &[usize] = if bench.quick { &[1, CONNECTIONS] } else { &[1, CONNECTIONS, 64] };
    for (tool, arguments) in &tools {
        let call = Call::new(&daemon, tool, arguments);
        let request = call.bare();
        let plain = call.plain(bench, &request)?;
        for connections in levels.iter().copied() {
            let name = format!("mcp-call/{tool}/{connections}");
            let figure = compare(bench, &name, connections, (&daemon, &request), &plain)?;
            bench.add(figure.goal_if(connections == CONNECTIONS, Goal::ratio(0.6)));
        }
    }
    // The same with the other protocol revisions, without a goal.
    let (tool, arguments) = &tools[0];
    let call = Call::new(&daemon, tool, arguments);
    for (era, request) in [("legacy", call.legacy()?), ("modern", call.modern())] {
        let plain = call.plain(bench, &request)?;
        let name = format!("mcp-call/{tool} {era}/{CONNECTIONS}");
        let figure = compare(bench, &name, CONNECTIONS, (&daemon, &request), &plain)?;
        bench.add(figure);
    }
    daemon.process.stop()
}

fn compare(
    bench: &mut Bench,
    name: &str,
    connections: usize,
    (daemon, request): (&Daemon, &[u8]),
    (plain, plain_request): &(Server, Vec<u8>),
) -> anyhow::Result<Figure> {
    let load = |bench: &Bench, target: &Target, process: &Process, request: &[u8]| {
        slice(bench.window_of, target.address, process, connections, |_| {
            (Protocol::HTTP, vec![request.to_vec()])
        })
    };
    bench.in_turns(
        (name, "calls/s", 1),
        |bench| load(bench, &daemon.target, &daemon.process, request),
        ("plain JSON handler", |bench| load(bench, &plain.target, &plain.process, plain_request)),
    )
}

struct Call<'a> {
    daemon: &'a Daemon,
    tool: &'a str,
    params: Value,
}

impl<'a> Call<'a> {
    fn new(daemon: &'a Daemon, tool: &'a str, arguments: &Value) -> Self {
        Self { daemon, tool, params: json!({ "name": tool, "arguments": arguments }) }
    }

    fn body(&self) -> String {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": self.params })
            .to_string()
    }

    fn bare(&self) -> Vec<u8> {
        self.daemon.target.request("POST", "/mcp", &self.body())
    }

    fn legacy(&self) -> anyhow::Result<Vec<u8>> {
        let session = open_session(&self.daemon.target)?;
        Ok(self.daemon.target.request_with("POST", "/mcp", &in_session(&session), &self.body()))
    }

    fn modern(&self) -> Vec<u8> {
        let version = Revision::V2026_07_28.as_str();
        let mut params = self.params.clone();
        params["_meta"] = json!({ meta::PROTOCOL_VERSION: version, meta::CLIENT_CAPABILITIES: {} });
        let headers =
            [(mcp::PROTOCOL_VERSION, version), (mcp::METHOD, "tools/call"), (mcp::NAME, self.tool)];
        let modern = Self { params, ..*self };
        self.daemon.target.request_with("POST", "/mcp", &headers, &modern.body())
    }

    /// A plain handler that responds with as many bytes as this request gets, and the same request
    /// to it.
    fn plain(&self, bench: &Bench, request: &[u8]) -> anyhow::Result<(Server, Vec<u8>)> {
        let answer = self.daemon.target.ask(request)?;
        let body = wire::body(&answer);
        let said: Value = serde_json::from_slice(body)?;
        let well =
            said["result"]["structuredContent"].is_object() && said["result"]["isError"].is_null();
        anyhow::ensure!(well, "{} does not answer as it should: {said}", self.tool);
        let plain = Server::start(&bench.sandbox, Kind::Json { bytes: body.len() })?;
        let request = plain.target.request("POST", "/mcp", &self.body());
        Ok((plain, request))
    }
}

/// Opens a session of the last revision with sessions.
pub(crate) fn open_session(target: &Target) -> anyhow::Result<String> {
    let session = session_of(&target.ask(&initialize(target))?)?;
    let body = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    target.ask(&target.request_with("POST", "/mcp", &in_session(&session), &body))?;
    Ok(session)
}

pub(crate) fn in_session(session: &str) -> [(&str, &str); 2] {
    [ACCEPT, (mcp::SESSION_ID, session)]
}

const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

pub(crate) fn initialize(target: &Target) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": Revision::V2025_11_25.as_str(),
        "capabilities": { "elicitation": {}, "roots": { "listChanged": true } },
        "clientInfo": { "name": "bench", "version": "1.0.0" },
    }});
    target.request_with("POST", "/mcp", &[ACCEPT], &body.to_string())
}

pub(crate) fn session_of(answer: &[u8]) -> anyhow::Result<String> {
    let id = wire::header(answer, mcp::SESSION_ID).context("a session has an id")?;
    Ok(id.to_owned())
}

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
        let params = json!({ "protocolVersion": "2025-11-25" });
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        direct.ask(&hello.to_string())?;
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
        // The process may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const MANY: usize = 1000;
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
            Some("tools/list") => json!({ "tools": tools(is_large) }),
            _ => {
                json!({ "content": [{ "type": "text", "text": message["params"]["arguments"].to_string() }] })
            }
        };
        // One write, as other output may come between two.
        let answer = format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        out.write_all(answer.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

pub(crate) fn run_child_call(bench: &mut Bench) -> anyhow::Result<()> {
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
    let through = daemon.target.request("POST", "/mcp", &tool_call("echo__echo", &arguments));
    let plain = tool_call("echo", &arguments);
    let mut direct = DirectChild::start()?;
    let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
    let mut times: [Vec<Duration>; 2] = Default::default();
    bench.begin_round("child-call")?;
    // Alternately, so that other load of the machine affects both equally.
    for _ in 0..if bench.quick { 200 } else { 5000 } {
        times[0].push(timed(|| direct.ask(&plain).map(drop))?);
        times[1].push(timed(|| caller.ask(&through).map(drop))?);
    }
    let [alone, ours] = times.map(p50_p99);
    for (name, ours, alone, most) in [("p50", ours.0, alone.0, 0.3), ("p99", ours.1, alone.1, 2.0)]
    {
        bench.add(
            Figure::new(format!("child-call/{name}"), "ms above direct", ours - alone)
                .beside_value("direct", alone)
                .goal(Goal::at_most(most)),
        );
    }
    let search = json!({ "query": "delete an invoice by its title", "detail": "name" });
    let search = daemon.target.request("POST", "/mcp", &tool_call("ToolSearch", &search));
    let mut times = Vec::new();
    for _ in 0..if bench.quick { 200 } else { 2000 } {
        times.push(timed(|| caller.ask(&search).map(drop))?);
    }
    bench.add(
        Figure::new("child-call/tool-search", "ms, p50", p50_p99(times).0)
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
