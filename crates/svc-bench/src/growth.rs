//! `growth`: the duration of each operation as the history grows, at three sizes of one data
//! folder.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    agents::{mapped_mib, resident_mib},
    bench::svc_program,
    daemon::Daemon,
    growth_home::{self, HistorySize, Words},
    load::{Caller, Protocol, Target, tool_call},
    report,
    sandbox::Sandbox,
};

/// The sizes, and the goal: by which factor an operation may take longer at the last.
const SIZES: [HistorySize; 3] = [
    HistorySize { records: 500, sessions: 300, events: 30_000, messages: 2_000 },
    HistorySize { records: 5_000, sessions: 3_000, events: 300_000, messages: 22_000 },
    HistorySize { records: 50_000, sessions: 12_000, events: 2_100_000, messages: 122_000 },
];
const MOST: f64 = 1.5;
/// The goal for the memory at the second size, in MiB.
const RESIDENT: f64 = 32.0;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct GrowthArgs {
    /// The program to measure [default: the `svc` beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    svc: Option<PathBuf>,
    /// The share of each size that is filled: less is sooner done, and says less
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    share: f64,
    /// How often each operation is measured at each size
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    times: usize,
    /// How long the daemon rests before its memory is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    rest: u64,
    /// Only operations whose name contains this; repeatable
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Print JSON: one document
    #[arg(long)]
    json: bool,
}

/// An operation, at each size: median and 95th percentile in milliseconds.
#[derive(Debug, Serialize)]
struct GrowthLine {
    name: &'static str,
    sizes: Vec<(f64, f64)>,
    /// The last median divided by the first.
    ratio: f64,
}

/// What the daemon has in memory after the work of a size, once it has rested, in MiB.
#[derive(Debug, Serialize)]
struct RestingMemory {
    resident: f64,
    /// Its own, and not pages of its program, which all processes of `svc` share.
    anonymous: f64,
}

#[derive(Debug, Serialize)]
struct GrowthReport {
    lines: Vec<GrowthLine>,
    memory: Vec<RestingMemory>,
}

pub(crate) fn run(args: &GrowthArgs) -> anyhow::Result<()> {
    let sandbox = Sandbox::new(svc_program(args.svc.as_deref())?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (mut lines, mut memory): (Vec<GrowthLine>, Vec<RestingMemory>) = Default::default();
    let mut before = HistorySize::default();
    // The daemon creates the folder with its token.
    Daemon::start(&sandbox, "growth")?.process.stop()?;
    for size in SIZES.map(|size| size.share(args.share)) {
        let path = sandbox.path("growth").join("svc.db");
        runtime.block_on(growth_home::fill(&path, before, size))?;
        before = size;
        let begun = Instant::now();
        let daemon = Daemon::start(&sandbox, "growth")?;
        let started = begun.elapsed().as_secs_f64() * 1e3;
        let mut at = vec![("start", (started, started))];
        for (name, request) in operations(size) {
            if args.only.is_empty() || args.only.iter().any(|part| name.contains(part.as_str())) {
                report::show_step(&format!("{} records: {name}", size.records));
                at.push((name, measure(&daemon.target, args.times, request.as_ref())?));
            }
        }
        report::show_step(&format!("{} records: rest", size.records));
        std::thread::sleep(Duration::from_secs(args.rest));
        let pid = u64::from(daemon.process.id());
        memory.push(RestingMemory {
            resident: resident_mib(pid)?,
            anonymous: mapped_mib(pid, "Anonymous:")?,
        });
        daemon.process.stop()?;
        for (index, (name, times)) in at.into_iter().enumerate() {
            match lines.get_mut(index) {
                Some(line) => line.sizes.push(times),
                None => lines.push(GrowthLine { name, sizes: vec![times], ratio: 0.0 }),
            }
        }
    }
    report::show_step("");
    for line in &mut lines {
        let (first, last) = (line.sizes.first(), line.sizes.last());
        line.ratio = first.zip(last).map_or(0.0, |(first, last)| last.0 / first.0);
    }
    let report = GrowthReport { lines, memory };
    report::print(&if args.json { serde_json::to_string(&report)? + "\n" } else { table(&report) })
}

fn table(report: &GrowthReport) -> String {
    let mut rows = vec![["p50 (p95), ms", "1", "2", "3", "3 : 1"].map(str::to_owned)];
    for line in &report.lines {
        let shown = |index: usize| {
            let shown = line.sizes.get(index).map(|(p50, p95)| format!("{p50:.2} ({p95:.2})"));
            shown.unwrap_or_default()
        };
        let miss = if line.ratio > MOST { " miss" } else { "" };
        let ratio = format!("{:.2}{miss}", line.ratio);
        rows.push([line.name.to_owned(), shown(0), shown(1), shown(2), ratio]);
    }
    let memory = |index: usize| {
        let memory = report.memory.get(index);
        let text = memory.map(|memory| format!("{:.1} ({:.1})", memory.resident, memory.anonymous));
        text.unwrap_or_default()
    };
    let miss = report.memory.get(1).is_some_and(|memory| memory.resident > RESIDENT);
    let miss = if miss { "miss" } else { "" }.to_owned();
    let name = "memory at rest (anonymous), MiB".to_owned();
    rows.push([name, memory(0), memory(1), memory(2), miss]);
    report::aligned(&rows).map(|line| line + "\n").collect()
}

/// Median and 95th percentile of the times that a request takes, in milliseconds.
fn measure(
    target: &Target,
    times: usize,
    request: &dyn Fn(&Target, usize) -> Vec<u8>,
) -> anyhow::Result<(f64, f64)> {
    let mut caller = Caller::open(target.address, &Protocol::HTTP)?;
    let mut elapsed = Vec::with_capacity(times);
    // A tenth of the requests is the warm-up.
    let warm = times / 10 + 1;
    for number in 0..times + warm {
        let request = request(target, number);
        let begun = Instant::now();
        let answer = caller.ask(&request)?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        let text = String::from_utf8_lossy(&answer);
        let is_answered = text.starts_with("HTTP/1.1 2") && !text.contains("\"isError\":true");
        anyhow::ensure!(is_answered, "{}\n{text}", String::from_utf8_lossy(&request));
        if number >= warm {
            elapsed.push(took);
        }
    }
    elapsed.sort_by(f64::total_cmp);
    let at = |share: usize| elapsed.get(elapsed.len() * share / 100).copied().unwrap_or(0.0);
    Ok((at(50), at(95)))
}

type Operation = Box<dyn Fn(&Target, usize) -> Vec<u8>>;

fn operations(size: HistorySize) -> Vec<(&'static str, Operation)> {
    let get = |path: &'static str| -> Operation {
        Box::new(move |target, _| target.request("GET", path, ""))
    };
    let mut all: Vec<(&'static str, Operation)> = vec![
        ("hook of a prompt", Box::new(|target, number| hook(target, "UserPromptSubmit", number))),
        ("hook of a tool", Box::new(|target, number| hook(target, "PreToolUse", number))),
        ("assemble_context", search("assemble_context")),
        ("retrieve_memories", search("retrieve_memories")),
        ("search_experiences", search("search_experiences")),
        ("ToolSearch", search("ToolSearch")),
        (
            "get_clusters",
            Box::new(|target, _| tool(target, "get_clusters", json!({ "axis": "full" }))),
        ),
        ("sessions_list", Box::new(|target, _| tool(target, "sessions_list", json!({})))),
        ("list_memories", Box::new(|target, _| tool(target, "list_memories", json!({})))),
    ];
    for (name, path) in [
        ("calibration", "/v1/ghap/calibration"),
        ("records", "/v1/ghap"),
        ("open records", "/v1/ghap?status=active&limit=500"),
        ("records of a project", "/v1/ghap?project=/work/p3&limit=20"),
        ("sessions", "/v1/sessions"),
        ("open sessions", "/v1/sessions?open=true"),
        ("tasks", "/v1/tasks"),
        ("tasks by status=active", "/v1/tasks?status=active&limit=20"),
        ("tasks by agent", "/v1/tasks?agent=agent-3&limit=20"),
        ("events by prefix", "/v1/events?stream_prefix=team&limit=20"),
        ("events by kind", "/v1/events?kind=peer.status&limit=20"),
        ("peers", "/v1/peers"),
        ("messages", "/v1/messages?limit=200"),
        ("open messages", "/v1/messages?open=true&limit=50"),
        ("requests", "/v1/requests?open=true&limit=50"),
        ("health", "/v1/health"),
        ("/metrics", "/metrics"),
    ] {
        all.push((name, get(path)));
    }
    let task = growth_home::task_id(size.sessions - 1);
    all.push((
        "append",
        Box::new(move |target, _| {
            let body = r#"{"kind":"frame","data":{"line":"x","kind":"stdout"}}"#;
            target.request("POST", &format!("/v1/tasks/{task}/events"), body)
        }),
    ));
    let peer = growth_home::peer_id(size.sessions - 1);
    all.push((
        "send",
        Box::new(move |target, number| {
            let body = json!({ "text": format!("message {number}"), "type": "notification" });
            let path = format!("/v1/peers/{}/messages", peer.as_str());
            target.request("POST", &path, &body.to_string())
        }),
    ));
    all.extend(writes());
    all
}

/// What writes to the journal and makes a task. A record is ended by the operation after it.
fn writes() -> Vec<(&'static str, Operation)> {
    let session = |number: usize| format!("bench-record-{number}");
    vec![
        (
            "task",
            Box::new(|target, number| {
                let body = json!({ "title": format!("task {number}"), "agent": "bench" });
                target.request("POST", "/v1/tasks", &body.to_string())
            }),
        ),
        (
            "store_memory",
            Box::new(|target, number| {
                let content = Words::from_seed(number + 9_700_001).text(25);
                let content = format!("{content} {}", uncommon(number));
                tool(target, "store_memory", json!({ "content": content, "category": "fact" }))
            }),
        ),
        (
            "start_ghap",
            Box::new(move |target, number| {
                let mut words = Words::from_seed(number + 9_800_001);
                let record = json!({
                    "session_id": session(number), "domain": "debugging",
                    "strategy": "check-assumptions", "goal": words.text(8),
                    "hypothesis": words.text(10), "action": words.text(8),
                    "prediction": words.text(8), "probability": 0.7,
                });
                tool(target, "start_ghap", record)
            }),
        ),
        (
            "resolve_ghap",
            Box::new(move |target, number| {
                let mut words = Words::from_seed(number + 9_900_001);
                let end = json!({
                    "session_id": session(number), "status": "confirmed", "result": words.text(8),
                    "lesson": { "what_worked": words.text(8), "takeaway": words.text(8) },
                });
                tool(target, "resolve_ghap", end)
            }),
        ),
    ]
}

/// A word that no other call has: a memory that is known is not stored again.
fn uncommon(number: usize) -> String {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    format!("x{since}n{number}")
}

fn search(name: &'static str) -> Operation {
    Box::new(move |target, number| {
        let query = Words::from_seed(number + 9_000_001).text(12);
        tool(target, name, json!({ "query": query }))
    })
}

fn hook(target: &Target, event: &str, number: usize) -> Vec<u8> {
    let payload = json!({
        "session_id": format!("bench-{}", number % 20), "hook_event_name": event,
        "cwd": growth_home::project(number), "prompt": Words::from_seed(number + 9_500_001).text(12),
        "tool_name": "Bash", "tool_use_id": format!("toolu_{number}"),
        "tool_input": { "command": "ls" },
    });
    tool(target, "hook_event", json!({ "client": "claude-code", "payload": payload }))
}

#[expect(clippy::needless_pass_by_value, reason = "callers make them for it")]
fn tool(target: &Target, name: &str, arguments: Value) -> Vec<u8> {
    target.request("POST", "/mcp", &tool_call(name, &arguments))
}
