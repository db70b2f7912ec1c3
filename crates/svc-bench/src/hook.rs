//! `hook`: the latency that a hook adds to each tool call of a client, from the hook's start to its
//! end, with and without a daemon, and the daemon's share of it. The baselines are a program that
//! does nothing, and a shell hook with `curl` and `jq`.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    append::slice,
    bench::Bench,
    daemon::Daemon,
    load::{Protocol, tool_call},
    report::{Figure, Goal, Slice, Summary, median, p50_p99},
};

const SESSION: &str = "bench";

/// The shell hook of an earlier system at a tool call: it calls two tools.
const SHELL: &str = r#"
call() {
    curl -sf -X POST "$URL/mcp" -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \
        -d "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"$1\",\"arguments\":$2}}" \
        | jq -r '.result.content[0].text'
}
call increment_tool_count '{}' | jq -r .tool_count >/dev/null
[ "$(call should_check_in '{"frequency":10}' | jq -r .should_check_in)" = true ] && call reset_tool_count '{}' >/dev/null
exit 0
"#;

fn payload(event: &str, session_id: &str) -> Value {
    json!({
        "session_id": session_id, "hook_event_name": event, "cwd": "/work", "tool_name": "Bash",
        "tool_use_id": "toolu_1", "tool_input": { "command": "ls" },
        "tool_response": { "stdout": "a\nb\n", "stderr": "", "interrupted": false },
    })
}

/// The tool call that a hook makes for an event of a session.
pub(crate) fn call(event: &str, session_id: &str) -> String {
    let arguments = json!({ "client": "claude-code", "payload": payload(event, session_id) });
    tool_call("hook_event", &arguments)
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let daemon = Daemon::start(&bench.sandbox, "hook")?;
    let away = bench.sandbox.path("hook-away");
    let program = bench.sandbox.svc().to_owned();
    let before = payload("PreToolUse", SESSION).to_string();
    let hook = |home: &Path| {
        let mut command = Command::new(&program);
        command.args(["hook", "claude"]).env_clear().env("SVC_HOME", home);
        command
    };
    let mut times: [Vec<Duration>; 3] = Default::default();
    bench.begin_round("hook")?;
    // Alternately, so that other load of the machine affects all equally.
    for _ in 0..if bench.quick { 20 } else { 400 } {
        times[0].push(time(&mut Command::new("/bin/true"), &before)?);
        times[1].push(time(&mut hook(daemon.home()), &before)?);
        times[2].push(time(&mut hook(&away), &before)?);
    }
    let [nothing, warm, gone] = times.map(p50_p99);
    for (name, ours) in [("warm", warm), ("no daemon", gone)] {
        let above = |name: &str, value: f64, other: f64, most: f64| {
            Figure::new(format!("hook/{name}"), "ms above true", value - other)
                .beside_value("true", other)
                .goal(Goal::at_most(most))
        };
        bench.add(above(&format!("{name} p50"), ours.0, nothing.0, 5.0));
        bench.add(above(&format!("{name} p99"), ours.1, nothing.1, 20.0));
    }
    if let Some(shell) = shell(bench, &daemon)? {
        bench.add(
            Figure::new("hook/shell with curl and jq, p50", "ms", shell)
                .beside_value("svc hook", warm.0)
                .note("what a hook of two calls costs without this program"),
        );
    }
    for event in ["PreToolUse", "PostToolUse"] {
        let request = daemon.target.request("POST", "/mcp", &call(event, SESSION));
        let mut slices: Vec<Slice> = Vec::new();
        for _ in 0..bench.rounds {
            bench.begin_round("hook")?;
            slices.push(slice(bench.window_of, daemon.target.address, &daemon.process, 1, |_| {
                (Protocol::HTTP, vec![request.clone()])
            })?);
        }
        let name = format!("hook/daemon {event}");
        bench.add(
            Figure::summed(name, "calls/s", Summary::from_rounds(&slices, 1))
                .goal(Goal::p99_us(1000.0)),
        );
    }
    daemon.process.stop()
}

fn time(command: &mut Command, input: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run a hook")?;
    let mut stdin = child.stdin.take().context("it has an input")?;
    // A program may end without reading its input.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    anyhow::ensure!(child.wait()?.success(), "a hook failed");
    Ok(begun.elapsed())
}

/// The median of the shell hook in milliseconds; `None` if its programs are missing.
fn shell(bench: &Bench, daemon: &Daemon) -> anyhow::Result<Option<f64>> {
    let lacks = |tool: &&str| Command::new(tool).arg("--version").output().is_err();
    if ["bash", "curl", "jq"].iter().any(lacks) {
        return Ok(None);
    }
    let mut times = Vec::new();
    for _ in 0..if bench.quick { 3 } else { 40 } {
        let mut command = Command::new("bash");
        command.args(["-c", SHELL]).env("URL", format!("http://{}", daemon.target.address));
        command.env("TOKEN", daemon.target.token.as_deref().unwrap_or_default());
        times.push(time(&mut command, "")?.as_secs_f64() * 1e3);
    }
    Ok(Some(median(times)))
}
