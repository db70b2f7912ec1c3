//! An agent of `fleet`: the process of a client, which runs `svc hook` at each event of its turns,
//! uses `svc stdio` for its tool calls, and may have a task. An agent may also make the same calls
//! directly.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    agents::{clock_us, private_mib},
    daemon,
    growth_home::Words,
    load::{Caller, Protocol, Target, tool_call},
    sandbox::cpu_times,
    wire,
};

/// Tool calls of a turn.
const TURN: u64 = 20;
/// Time between two tool calls: a turn takes a minute.
const PACE: Duration = Duration::from_secs(3);
const TOOL_RUN: Duration = Duration::from_millis(300);
/// Tool calls between two messages: two turns, which take two minutes.
const BETWEEN_MESSAGES: u64 = 2 * TURN;
/// Tool calls between the starts of two records: ten turns, which take ten minutes.
const BETWEEN_RECORDS: u64 = 10 * TURN;
/// Tool calls from the start of a record to its end.
const RECORD: u64 = TURN / 2;
pub(crate) const LINES: u64 = 10;
/// Agents in a project; they are neighbours.
const NEIGHBOURS: usize = 5;
/// One of this many agents has a task.
const TASK_EVERY: usize = 5;
/// Deadline of hooks that must reach the daemon before the agent goes on, however busy the machine
/// is: the start of a session, which the next call names, and all hooks of a quick fleet. The
/// others keep theirs, since their durations are measured.
const PATIENT_DEADLINE_MS: &str = "60000";
/// A word in each message, by which a hook's output is recognised as having one.
const MARK: &str = "fleetmessage";

/// The order for an agent. It is passed on standard input, as it may contain a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FleetOrder {
    pub(crate) svc: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) number: usize,
    pub(crate) agents: usize,
    /// The factor by which everything is faster than for a real agent.
    pub(crate) speed: u32,
    /// The daemon's address and token, for an agent that runs no programs.
    pub(crate) direct: Option<(SocketAddr, String)>,
}

/// When an agent works, in microseconds on the clock that all processes share.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct FleetTimes {
    pub(crate) begin: u64,
    /// Operations that begin from here until the end are counted.
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// What an agent has measured in the period that counts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct FleetAccount {
    /// Durations of hooks, or of the calls in their place, in microseconds.
    pub(crate) hooks: Vec<u32>,
    /// Messages: the id, and when sending began.
    pub(crate) sent: Vec<(String, u64)>,
    pub(crate) handed_over: u64,
    pub(crate) records: u64,
    pub(crate) late_ms: u64,
    pub(crate) hooks_cpu_ms: u64,
    /// CPU time of `svc stdio` and of `svc task run`, in milliseconds.
    pub(crate) programs_cpu_ms: u64,
    pub(crate) programs_mib: f64,
}

/// Reads the order and the times, works, and prints the account.
pub(crate) fn work() -> anyhow::Result<()> {
    let mut input = io::stdin().lines();
    let mut next = || input.next().context("no order")?.map_err(anyhow::Error::from);
    let order: FleetOrder = serde_json::from_str(&next()?)?;
    let mut agent = FleetAgent::start(order)?;
    print("ready")?;
    let times: FleetTimes = serde_json::from_str(&next()?)?;
    agent.run(times)?;
    let account = agent.finish(times)?;
    print(&serde_json::to_string(&account)?)
}

fn print(line: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

pub(crate) fn sleep_until(at: u64) {
    thread::sleep(Duration::from_micros(at.saturating_sub(clock_us())));
}

enum Way {
    Programs(Bridge),
    Direct(Target, Caller),
}

struct FleetAgent {
    order: FleetOrder,
    way: Way,
    /// The process of `svc task run`.
    runner: Option<Child>,
    peer: String,
    account: FleetAccount,
    /// CPU time of ended children, and of programs, at the time when counting began.
    before: (Duration, Duration),
}

impl FleetAgent {
    /// Begins the session as a client does: first its MCP server, then the hook for the start.
    fn start(order: FleetOrder) -> anyhow::Result<Self> {
        std::fs::create_dir_all(order.folder())?;
        let way = match &order.direct {
            None => Way::Programs(Bridge::start(&order)?),
            Some((address, token)) => {
                let target = Target { address: *address, token: Some(token.clone()) };
                Way::Direct(target, Caller::open(*address, &Protocol::HTTP)?)
            }
        };
        let account = FleetAccount::default();
        let (runner, before) = (None, Default::default());
        let mut agent = Self { order, way, runner, peer: String::new(), account, before };
        agent.hook("SessionStart", json!({ "source": "startup" }))?;
        let session = agent.order.session();
        let name = agent.order.name();
        let own = json!({ "display_name": name, "backend": "claude-code", "session_id": session });
        let peer = agent.tool("peer_register", &own)?;
        peer["peer_id"].as_str().context("a peer has an id")?.clone_into(&mut agent.peer);
        Ok(agent)
    }

    fn run(&mut self, times: FleetTimes) -> anyhow::Result<()> {
        let pace = micros(PACE / self.order.speed);
        // Spreads the agents over the interval between two tool calls.
        let share = (self.order.number as u64 * 7919) % 1000;
        let begin = times.begin + pace * share / 1000;
        if let Way::Direct(target, caller) = &mut self.way {
            // The daemon closes silent connections while many others arrive.
            sleep_until(begin);
            *caller = Caller::open(target.address, &Protocol::HTTP)?;
        }
        if self.order.number.is_multiple_of(TASK_EVERY) {
            self.begin_task(times)?;
        }
        let mut is_counting = false;
        for call in 0.. {
            let due = begin + pace * call;
            if due >= times.until {
                break;
            }
            if !is_counting && due >= times.from {
                is_counting = true;
                sleep_until(times.from);
                self.account = FleetAccount::default();
                self.before = (ended_children(), self.programs_cpu());
            }
            sleep_until(due);
            let late = clock_us().saturating_sub(due) / 1000;
            self.account.late_ms = self.account.late_ms.max(late);
            self.call_tool(call)?;
        }
        sleep_until(times.until);
        Ok(())
    }

    fn call_tool(&mut self, call: u64) -> anyhow::Result<()> {
        let number = self.order.number as u64;
        let mut words = Words::from_seed(usize::try_from(number * 100_003 + call)?);
        if call.is_multiple_of(TURN) {
            if call > 0 {
                let said =
                    json!({ "stop_hook_active": false, "last_assistant_message": words.text(30) });
                self.hook("Stop", said)?;
            }
            self.hook("UserPromptSubmit", json!({ "prompt": words.text(12) }))?;
        }
        let mut event = json!({
            "tool_name": "Bash", "tool_use_id": format!("toolu_{number}_{call}"),
            "tool_input": { "command": words.text(6), "description": words.text(4) },
        });
        self.hook("PreToolUse", event.clone())?;
        // Calls of the daemon's tools take the place of other tool calls.
        let offset = number * 7;
        if call % BETWEEN_MESSAGES == offset % BETWEEN_MESSAGES {
            self.send(&words.text(40))?;
        } else if call % BETWEEN_RECORDS == offset % BETWEEN_RECORDS + 1 {
            self.begin_record(&mut words)?;
        } else if call % BETWEEN_RECORDS == offset % BETWEEN_RECORDS + 1 + RECORD {
            self.end_record(&mut words)?;
        } else {
            thread::sleep(TOOL_RUN / self.order.speed);
        }
        event["tool_response"] =
            json!({ "stdout": words.text(60), "stderr": "", "interrupted": false });
        self.hook("PostToolUse", event)
    }

    fn hook(&mut self, name: &str, mut event: Value) -> anyhow::Result<()> {
        let folder = self.order.folder();
        event["session_id"] = self.order.session().into();
        event["hook_event_name"] = name.into();
        event["cwd"] = folder.display().to_string().into();
        event["permission_mode"] = "default".into();
        let begun = Instant::now();
        let said = match &mut self.way {
            Way::Programs(_) => {
                let mut command = self.order.program(&["hook", "claude"]);
                if name == "SessionStart" || self.order.speed > 1 {
                    command.env("SVC_HOOK_DEADLINE_MS", PATIENT_DEADLINE_MS);
                }
                let mut child = command.spawn()?;
                let mut stdin = child.stdin.take().context("piped")?;
                stdin.write_all(event.to_string().as_bytes())?;
                drop(stdin);
                let output = child.wait_with_output()?;
                anyhow::ensure!(output.status.success(), "a hook failed");
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Way::Direct(target, caller) => {
                let arguments = json!({ "client": "claude-code", "payload": event });
                let request = target.request("POST", "/mcp", &tool_call("hook_event", &arguments));
                String::from_utf8_lossy(wire::body(&caller.ask(&request)?)).into_owned()
            }
        };
        let took = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.account.hooks.push(took);
        self.account.handed_over += u64::from(said.contains(MARK));
        Ok(())
    }

    fn tool(&mut self, name: &str, arguments: &Value) -> anyhow::Result<Value> {
        let answer: Value = match &mut self.way {
            Way::Programs(bridge) => {
                bridge.ask("tools/call", &json!({ "name": name, "arguments": arguments }))?
            }
            Way::Direct(target, caller) => {
                let request = target.request("POST", "/mcp", &tool_call(name, arguments));
                serde_json::from_slice(wire::body(&caller.ask(&request)?))?
            }
        };
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        anyhow::ensure!(result.is_object() && result["isError"] != true, "{name}: {answer}");
        Ok(serde_json::from_str(text).unwrap_or_else(|_| result["structuredContent"].clone()))
    }

    fn send(&mut self, text: &str) -> anyhow::Result<()> {
        let Some(neighbour) = self.order.neighbour() else { return Ok(()) };
        let begun = clock_us();
        let mut message = json!({ "to": neighbour, "text": format!("{MARK} {text}") });
        if matches!(self.way, Way::Direct(..)) {
            message["from_peer"] = self.peer.clone().into();
        }
        let sent = self.tool("peer_send", &message)?;
        let id = sent["id"].as_str().context("a message has an id")?;
        self.account.sent.push((id.to_owned(), begun));
        Ok(())
    }

    fn begin_record(&mut self, words: &mut Words) -> anyhow::Result<()> {
        let record = json!({
            "session_id": self.order.session(), "domain": "debugging",
            "strategy": "check-assumptions", "goal": words.text(8), "hypothesis": words.text(10),
            "action": words.text(8), "prediction": words.text(8), "probability": 0.7,
        });
        self.account.records += 1;
        self.tool("start_ghap", &record).map(drop)
    }

    fn end_record(&mut self, words: &mut Words) -> anyhow::Result<()> {
        let end = json!({
            "session_id": self.order.session(), "status": "confirmed", "result": words.text(8),
            "lesson": { "what_worked": words.text(8), "takeaway": words.text(8) },
        });
        self.tool("resolve_ghap", &end).map(drop)
    }

    /// Begins a task that prints lines until the end: by `svc task run`, or by a thread that
    /// appends them.
    fn begin_task(&mut self, times: FleetTimes) -> anyhow::Result<()> {
        let rate = LINES * u64::from(self.order.speed);
        // Enough lines for the task to outlive the measurement of its memory.
        let count = rate * (times.until.saturating_sub(clock_us()) / 1_000_000 + 2);
        match &self.way {
            Way::Programs(_) => {
                let own = std::env::current_exe()?;
                let (rate, count) = (rate.to_string(), count.to_string());
                let mut command = self.order.program(&["task", "run", "--"]);
                command.arg(own).args(["lines", &rate, &count]);
                let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
                self.runner = Some(child);
            }
            Way::Direct(target, _) => {
                let task = target.call("POST", "/v1/tasks", r#"{"title":"fleet"}"#)?;
                let task = task["task_id"].as_str().context("a task has an id")?;
                let path = format!("/v1/tasks/{task}/events");
                let append = target.request("POST", &path, &daemon::event_body(0));
                let mut caller = Caller::open(target.address, &Protocol::HTTP)?;
                // The thread ends with this process at the latest.
                thread::spawn(move || {
                    for _ in 0..count {
                        caller.ask(&append)?;
                        thread::sleep(Duration::from_micros(1_000_000 / rate));
                    }
                    anyhow::Ok(())
                });
            }
        }
        Ok(())
    }

    fn programs(&self) -> impl Iterator<Item = u32> {
        let bridge = match &self.way {
            Way::Programs(bridge) => Some(bridge.child.id()),
            Way::Direct(..) => None,
        };
        bridge.into_iter().chain(self.runner.as_ref().map(Child::id))
    }

    fn programs_cpu(&self) -> Duration {
        self.programs().filter_map(|pid| Some(cpu_times(pid)?.0)).sum()
    }

    fn finish(mut self, times: FleetTimes) -> anyhow::Result<FleetAccount> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut account = std::mem::take(&mut self.account);
        account.hooks_cpu_ms = millis(ended_children().saturating_sub(self.before.0));
        account.programs_cpu_ms = millis(self.programs_cpu().saturating_sub(self.before.1));
        account.programs_mib =
            self.programs().filter_map(|pid| private_mib(u64::from(pid)).ok()).sum();
        account.sent.retain(|(_, at)| *at >= times.from);
        if let Some(mut runner) = self.runner.take() {
            runner.wait()?;
        }
        if let Way::Programs(bridge) = self.way {
            bridge.stop()?;
        }
        Ok(account)
    }
}

impl FleetOrder {
    fn name(&self) -> String {
        format!("fleet-{}", self.number)
    }

    fn session(&self) -> String {
        format!("f1ee7000-0000-4000-8000-{:012x}", self.number)
    }

    fn folder(&self) -> PathBuf {
        self.work.join(format!("p{}", self.number / NEIGHBOURS))
    }

    /// The name of the next agent in the project, unless this agent is alone.
    fn neighbour(&self) -> Option<String> {
        let first = self.number - self.number % NEIGHBOURS;
        let next = first + (self.number + 1) % NEIGHBOURS;
        let next = if next < self.agents { next } else { first };
        (next != self.number).then(|| format!("fleet-{next}"))
    }

    /// A command that runs svc, with pipes.
    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.svc);
        command.args(arguments).env_clear().env("SVC_HOME", &self.home).current_dir(self.folder());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }
}

/// `svc stdio`, as a client uses it.
struct Bridge {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    last: u64,
}

impl Bridge {
    fn start(order: &FleetOrder) -> anyhow::Result<Self> {
        let mut child = order.program(&["stdio"]).spawn()?;
        let input = child.stdin.take().context("piped")?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        let mut bridge = Self { child, input, output, last: 0 };
        let client = json!({ "name": "claude-code", "version": "2.1.329" });
        let hello =
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        bridge.ask("initialize", &hello)?;
        bridge.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(bridge)
    }

    fn ask(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.last += 1;
        let id = self.last;
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let mut line = String::new();
            anyhow::ensure!(self.output.read_line(&mut line)? > 0, "svc stdio has ended");
            let answer: Value = serde_json::from_str(&line)?;
            // Notifications may come before the response.
            if answer["id"] == id {
                return Ok(answer);
            }
        }
    }

    fn write(&mut self, message: &Value) -> anyhow::Result<()> {
        self.input.write_all(format!("{message}\n").as_bytes())?;
        Ok(self.input.flush()?)
    }

    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.input);
        self.child.wait()?;
        Ok(())
    }
}

fn ended_children() -> Duration {
    cpu_times(std::process::id()).map_or(Duration::ZERO, |times| times.1)
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
