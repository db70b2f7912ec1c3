//! The test harness: a data folder, a daemon in it, and commands that run against both.
//!
//! Hermetic: the environment is empty but for `PATH`, `HOME` and `SVC_HOME`, and all processes end
//! with the test.

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::wire::Caller;

/// Added to each bound: a disk that still writes a build back may block all processes for this
/// long. A condition that comes true earlier is not delayed.
const STALL: Duration = Duration::from_mins(1);
const READY_WITHIN: Duration = Duration::from_secs(20);
const EXIT_WITHIN: Duration = Duration::from_secs(15);
const COMMAND_WITHIN: Duration = Duration::from_secs(30);
/// Written to a pipe before its reader begins: every pipe holds as much.
const PIPE: usize = 4096;
/// The deadline of a hook that answers: a minute, so that a busy machine keeps it.
pub(crate) const PATIENT: (&str, &str) = ("SVC_HOOK_DEADLINE_MS", "60000");

/// Polls a condition, and panics at the bound.
#[track_caller]
pub(crate) fn eventually(bound: Duration, mut condition: impl FnMut() -> bool) {
    until(bound, || condition().then_some(()));
}

/// Polls for a value.
#[track_caller]
pub(crate) fn until<T>(bound: Duration, mut value: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + bound + STALL;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < end, "not so after {:?}", bound + STALL);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asserts that something takes less than a bound that separates right from wrong. Others use the
/// processors and the disk, too, so the minimum of several attempts counts.
#[track_caller]
pub(crate) fn quickly(bound: Duration, mut attempt: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..5 {
        took.push(attempt());
        if took.last().is_some_and(|took| *took < bound) {
            return;
        }
    }
    panic!("never within {bound:?}: {took:?}");
}

/// A folder that stands for a user's home. Dropping the last owner kills what still runs in it.
#[derive(Clone, Debug)]
pub(crate) struct Home(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    dir: TempDir,
    /// The address of the database, if it is no file of the folder.
    store: Option<String>,
}

/// The address of a new database, if `SVC_TEST_STORE` names another engine than SQLite.
fn new_store() -> Option<String> {
    match std::env::var("SVC_TEST_STORE").ok()?.as_str() {
        "postgres" => Some(svc_store::scratch_server::new_database()),
        other => panic!("SVC_TEST_STORE: there is no store {other:?}"),
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    pub(crate) fn below(folder: &Path) -> Self {
        let dir = TempDir::new_in(folder).expect("a temporary folder");
        Self(Arc::new(Folder { dir, store: new_store() }))
    }

    /// Without an address of a database, whatever the tests' store is.
    pub(crate) fn in_file() -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        Self(Arc::new(Folder { dir, store: None }))
    }

    pub(crate) fn in_store(url: &str) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        Self(Arc::new(Folder { dir, store: Some(url.to_owned()) }))
    }

    /// The user's home; the data folder is below it and is not created here.
    pub(crate) fn user(&self) -> &Path {
        self.0.dir.path()
    }

    /// Makes the folder of a project.
    pub(crate) fn project(&self) -> PathBuf {
        let project = self.user().join("project");
        fs::create_dir_all(project.join(".git")).expect("a folder");
        project
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.user().join("svc")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        match fs::read(self.path(name)) {
            Ok(bytes) => bytes,
            Err(error) => panic!("{name} cannot be read: {error}"),
        }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.dir()).expect("the folder can be made");
        fs::write(self.path(name), text).expect("the file can be written");
    }

    pub(crate) fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// How many programs of svc run in this home. Known on Linux only.
    pub(crate) fn programs(&self) -> usize {
        all_pids().into_iter().filter(|pid| self.0.is_of_home(*pid)).count()
    }

    /// The content of `daemon.json`, if it exists.
    pub(crate) fn daemon_json(&self) -> Option<Value> {
        self.0.daemon_json()
    }

    pub(crate) fn token(&self) -> Option<String> {
        let text = fs::read_to_string(self.path("token")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Runs a hook with a deadline that a busy machine keeps.
    #[track_caller]
    pub(crate) fn hook(&self, client: &str, payload: &Value) -> Ran {
        let mut command = self.command(&["hook", client]);
        command.envs([PATIENT]);
        let ran = Running::fed(command, payload.to_string().as_bytes()).wait(COMMAND_WITHIN);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    }

    /// The program with a clean environment in this home.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        catch_ignored_signals();
        let mut command = Command::new(env!("CARGO_BIN_EXE_svc"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.user())
            .env("SVC_HOME", self.dir())
            .current_dir(self.user());
        command.envs(self.0.store.iter().map(|url| ("SVC_STORE_URL", url)));
        command
    }
}

/// Makes children begin with the default action of SIGINT and SIGHUP, as they do under a shell with
/// a terminal.
///
/// A signal that this process ignores, as it does under `nohup` or as a background job of a shell,
/// stays ignored in its children. A signal with a handler gets its default action there. So a
/// handler is set, and only for ignored signals: otherwise it would keep Ctrl-C from ending the
/// tests.
fn catch_ignored_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let ignored = ignored_signals();
        for (kind, number) in [(SignalKind::hangup(), 1), (SignalKind::interrupt(), 2)] {
            if ignored & (1 << (number - 1)) != 0 {
                // The handler outlives the returned stream.
                runtime.block_on(async { drop(signal(kind).expect("a handler can be set")) });
            }
        }
    });
}

/// The signals that this process ignores, signal 1 as the lowest bit. Known on Linux only.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

impl Folder {
    fn daemon_json(&self) -> Option<Value> {
        let text = fs::read(self.dir.path().join("svc/daemon.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Drop for Folder {
    /// Kills daemons that a command put into the background, and hosts of agents, which outlive the
    /// daemon by design.
    fn drop(&mut self) {
        let has_agents = self.dir.path().join("svc/agents").is_dir();
        let daemon = self.daemon_json().and_then(|json| json["pid"].as_i64());
        let daemon = daemon.and_then(|pid| i32::try_from(pid).ok()).into_iter().collect();
        for pid in if has_agents { all_pids() } else { daemon } {
            // The pid may have been reused, so the process is checked.
            if self.is_of_home(pid)
                && let Some(pid) = Pid::from_raw(pid)
            {
                let _gone_already = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Folder {
    /// Whether a process is a program of svc that was started with this data folder. Processes of
    /// an agent end with its host.
    fn is_of_home(&self, pid: i32) -> bool {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let home = format!("SVC_HOME={}", self.dir.path().join("svc").display());
        read("cmdline")
            .split(|byte| *byte == 0)
            .next()
            .is_some_and(|program| program.ends_with(b"svc"))
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
    }
}

pub(crate) fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    flags: Vec<String>,
    env: Vec<(String, String)>,
    home: Option<Home>,
    descriptors: Option<u32>,
}

impl Plan {
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts these servers.
    pub(crate) fn servers(self, servers: &Value) -> Self {
        self.flag("--mcp-config").flag(&json!({ "mcpServers": servers }).to_string())
    }

    /// Limits the daemon's open files and sockets.
    pub(crate) fn descriptors(mut self, most: u32) -> Self {
        self.descriptors = Some(most);
        self
    }

    pub(crate) fn home(mut self, home: &Home) -> Self {
        self.home = Some(home.clone());
        self
    }
}

/// A running daemon, which also calls it as the operator: `daemon.get("/v1/peers")`.
pub(crate) struct Daemon {
    pub(crate) home: Home,
    pub(crate) version: String,
    plan: Plan,
    port: u16,
    caller: Caller,
    child: Option<Running>,
}

impl Deref for Daemon {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::with(|plan| plan)
    }

    pub(crate) fn with(plan: impl FnOnce(Plan) -> Plan) -> Self {
        let plan = plan(Plan::default());
        let home = plan.home.clone().unwrap_or_else(Home::new);
        let port = free_port();
        let (child, version) = launch(&home, &plan, port);
        let caller = Caller { addr: SocketAddr::from(([127, 0, 0, 1], port)), token: home.token() };
        Self { home, version, plan, port, caller, child: Some(child) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the daemon runs").child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.child.as_ref().expect("the daemon runs").signal(signal);
    }

    pub(crate) fn kill9(&mut self) {
        let mut child = self.child.take().expect("the daemon runs");
        child.child.kill().expect("our own child can be killed");
        child.child.wait().expect("our own child can be waited for");
    }

    /// Ends it with SIGTERM, like a service manager; returns how long that took.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> Duration {
        let child = self.child.take().expect("the daemon runs");
        let asked = Instant::now();
        child.signal(Signal::TERM);
        let ran = child.wait(EXIT_WITHIN);
        assert_eq!(ran.code, Some(0), "after SIGTERM: {ran:?}");
        asked.elapsed()
    }

    /// Restarts it in the same home on the same port.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.restart_with(|plan| plan);
    }

    #[track_caller]
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill9();
        self.restart();
    }

    #[track_caller]
    pub(crate) fn restart_with(&mut self, change: impl FnOnce(Plan) -> Plan) {
        if self.child.is_some() {
            self.stop();
        }
        self.plan = change(self.plan.clone());
        let (child, version) = launch(&self.home, &self.plan, self.port);
        self.child = Some(child);
        self.version = version;
        self.caller.token = self.home.token();
    }

    pub(crate) fn stderr(&self) -> String {
        self.child.as_ref().map(|child| child.stderr.text()).unwrap_or_default()
    }

    /// Mints a session token that reads the things of every project.
    #[track_caller]
    pub(crate) fn reader(&self, session: &str) -> Caller {
        self.minted(&json!({ "session": session, "scopes": ["read_all"] }))
    }

    /// Mints a session token in a project.
    #[track_caller]
    pub(crate) fn mint(
        &self,
        session: &str,
        project: &(impl Serialize + ?Sized),
        scopes: &[&str],
    ) -> Caller {
        self.minted(&json!({ "session": session, "project": project, "scopes": scopes }))
    }

    /// Mints a session token, as an agent's launcher does.
    #[track_caller]
    pub(crate) fn session(&self, session: &str) -> Caller {
        self.minted(&json!({ "session": session }))
    }

    #[track_caller]
    pub(crate) fn minted(&self, input: &Value) -> Caller {
        let minted = self.post("/v1/tokens", input).ok(201);
        self.with_token(minted["token"].as_str().expect("a token"))
    }
}

impl Drop for Daemon {
    #[expect(clippy::print_stderr, reason = "a failing test shows what its daemon had to say")]
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            if thread::panicking() {
                eprintln!("--- the daemon's stderr ---\n{}---", child.stderr.text());
            }
            drop(child);
        }
    }
}

/// A port outside the range of ephemeral ports: no outgoing connection can hold it while a daemon
/// restarts.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let of_clients = ports_of_clients();
    let seed = u16::try_from(std::process::id() % 400).expect("below 400") * 50;
    for _ in 0..20_000 {
        let port = 10_000 + (seed + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000) % 20_000;
        if !of_clients.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from 10000 to 29999 outside {of_clients:?}");
}

/// The range of ephemeral ports (`ip(7)`); the default range if it is not known, or if it leaves no
/// port between 10000 and 30000.
fn ports_of_clients() -> std::ops::RangeInclusive<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|end| end.parse().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) if first > 10_200 || last < 29_800 => first..=last,
        _ => 32_768..=60_999,
    }
}

#[track_caller]
fn launch(home: &Home, plan: &Plan, port: u16) -> (Running, String) {
    let listen = format!("127.0.0.1:{port}");
    let mut args = vec!["serve", "--listen", &listen];
    args.extend(plan.flags.iter().map(String::as_str));
    let mut command = home.command(&args);
    if let Some(most) = plan.descriptors {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {most} && exec \"$0\" \"$@\"")]);
        shell.arg(command.get_program()).args(command.get_args()).env_clear();
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(home.user());
        command = shell;
    }
    command.envs(plan.env.iter().map(|(name, value)| (name, value)));
    let child = Running::spawn(command);
    let end = Instant::now() + READY_WITHIN + STALL;
    while let Some(line) = child.line_before(end) {
        if let Some((version, url)) =
            line.strip_prefix("svc ").and_then(|rest| rest.split_once(" ready at "))
        {
            assert_eq!(url, format!("http://{listen}"), "the readiness line's address");
            return (child, version.to_owned());
        }
    }
    panic!("it ended before it was ready; stderr:\n{}", child.stderr.text());
}

#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// What a hook of Claude Code adds to the context.
    #[track_caller]
    pub(crate) fn context(&self) -> String {
        let printed: Value = serde_json::from_str(self.ok()).unwrap_or_default();
        printed["hookSpecificOutput"]["additionalContext"].as_str().unwrap_or_default().to_owned()
    }

    /// Its standard output; asserts success.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }

    /// Its standard output as JSON; asserts success.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        match serde_json::from_str(self.ok()) {
            Ok(json) => json,
            Err(error) => panic!("not JSON ({error}): {self:?}"),
        }
    }
}

#[track_caller]
pub(crate) fn svc(home: &Home, args: &[&str]) -> Ran {
    Running::spawn(home.command(args)).wait(COMMAND_WITHIN)
}

#[track_caller]
pub(crate) fn svc_with_input(home: &Home, args: &[&str], input: &[u8]) -> Ran {
    Running::fed(home.command(args), input).wait(COMMAND_WITHIN)
}

/// Writes a script that can be run.
///
/// Another process writes it: a file that this one had open could be so in a child that another
/// test starts at that moment, and what is open for writing cannot be run.
#[track_caller]
pub(crate) fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path);
    Running::fed(shell, text.as_bytes()).wait(COMMAND_WITHIN).ok();
}

/// The payload of a hook, with these members beside the usual ones.
pub(crate) fn hook_payload(session: &str, event: &str, cwd: &str, more: &Value) -> Value {
    let mut payload = json!({ "session_id": session, "hook_event_name": event, "cwd": cwd });
    let members = payload.as_object_mut().expect("an object");
    members.extend(more.as_object().expect("an object").clone());
    payload
}

/// A running command. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    /// In a mutex only so that threads may share the daemon that owns it.
    lines: Mutex<mpsc::Receiver<String>>,
    stdout: Gathered,
    stderr: Gathered,
}

impl Running {
    /// A command with this standard input. Its beginning is there before the command runs: `svc`
    /// without arguments waits for a second.
    pub(crate) fn fed(mut command: Command, input: &[u8]) -> Self {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let (beginning, rest) = input.split_at(input.len().min(PIPE));
        writer.write_all(beginning).expect("a pipe holds as much");
        command.stdin(reader);
        let running = Self::spawn(command);
        // A command that does not read its input may have closed it.
        drop(writer.write_all(rest));
        running
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let (send, lines) = mpsc::channel();
        let stdout = Gathered::default();
        let stderr = Gathered::default();
        stdout.gather(child.stdout.take().expect("stdout is piped"), Some(send));
        stderr.gather(child.stderr.take().expect("stderr is piped"), None);
        Self { child, lines: Mutex::new(lines), stdout, stderr }
    }

    /// Its standard input, if the command pipes it; dropping it closes it.
    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin is piped")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("our own child takes a signal");
    }

    /// The next line of its standard output, `None` at its end.
    #[track_caller]
    pub(crate) fn line(&self) -> Option<String> {
        self.line_before(Instant::now() + COMMAND_WITHIN + STALL)
    }

    /// What is found in one of the next lines of its standard output. The bound is for all of them:
    /// other lines may come for ever.
    #[track_caller]
    pub(crate) fn find<T>(&self, mut find: impl FnMut(&str) -> Option<T>) -> T {
        let end = Instant::now() + COMMAND_WITHIN + STALL;
        loop {
            let line = self.line_before(end).expect("a line before its end");
            if let Some(found) = find(&line) {
                return found;
            }
            assert!(Instant::now() < end, "only other lines; the last: {line}");
        }
    }

    #[track_caller]
    fn line_before(&self, end: Instant) -> Option<String> {
        let lines = self.lines.lock().expect("no holder panics");
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("no line in time; stderr:\n{}", self.stderr.text())
            }
        }
    }

    /// What its standard error has brought so far.
    pub(crate) fn said(&self) -> String {
        self.stderr.text()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be waited for").is_some()
    }

    #[track_caller]
    pub(crate) fn wait(mut self, bound: Duration) -> Ran {
        let status = self.exit(bound);
        // A child that keeps the pipe open would hang every shell that captures the output.
        let closed = Instant::now() + STALL;
        while !(self.stdout.closed() && self.stderr.closed()) {
            assert!(Instant::now() < closed, "it is gone and something holds its output open");
            thread::sleep(Duration::from_millis(5));
        }
        Ran { code: status.code(), stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    #[track_caller]
    fn exit(&mut self, bound: Duration) -> ExitStatus {
        let end = Instant::now() + bound + STALL;
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child can be waited for") {
                return status;
            }
            assert!(
                Instant::now() < end,
                "still running after {:?}; stdout:\n{}\nstderr:\n{}",
                bound + STALL,
                self.stdout.text(),
                self.stderr.text()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process is gone already, which is the goal.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The bytes that a pipe has brought so far; a thread drains it so that no writer blocks.
#[derive(Clone, Default)]
struct Gathered(Arc<Mutex<(Vec<u8>, bool)>>);

impl Gathered {
    fn gather(&self, pipe: impl Read + Send + 'static, lines: Option<mpsc::Sender<String>>) {
        let gathered = self.clone();
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                gathered.0.lock().expect("no holder panics").0.extend_from_slice(&line);
                if let Some(lines) = &lines {
                    let text = String::from_utf8_lossy(&line);
                    // The receiver may be gone.
                    drop(lines.send(text.trim_end_matches(['\n', '\r']).to_owned()));
                }
                line.clear();
            }
            gathered.0.lock().expect("no holder panics").1 = true;
        });
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no holder panics").0).into_owned()
    }

    fn closed(&self) -> bool {
        self.0.lock().expect("no holder panics").1
    }
}
