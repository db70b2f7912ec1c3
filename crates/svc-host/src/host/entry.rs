//! The life of a host: the commands `svc agent host` and `svc agent reaper`, which the daemon
//! starts; the environment of the agent; and the loop of one thread that serves the program, its
//! output, the clients and the deadlines.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::future::pending;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use svc_client::hosts::spool_path;
use svc_model::agent::{AGENT_MARK, AgentBackend, HostSpec, HostStarted};
use svc_model::{Clock as _, Ids, SystemClock, random_bytes};
use svc_sys::lines::{Line, LineSplitter, json_line};
use svc_sys::private_file;
use svc_sys::process_list::{ProcessEntry, signal_name};
use svc_wire::host_protocol::{StopAgent, StopAnswer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep_until, timeout};

use super::agent::{Action, HostedAgent};
use super::agent_spool::AgentSpool;
use super::backend::protocol_of;
use super::connection::{AgentCommands, HostCommand, HostContext, HostSocket};
use super::reaper::{AgentExit, AgentPipes, AgentProcess, ReaperOrder, run_reaper};
use super::record::{AgentEnd, PartialEntry};
use crate::runner::Signals;

/// Argument of the second process, which is the host in its own session.
const DETACHED: &str = "--detached";

/// Runs `svc agent host` or `svc agent reaper`; `None` for other commands of `svc agent`.
pub fn run_if_asked(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let first = arguments.next()?;
    if first == "reaper" {
        return Some(run_reaper());
    }
    if first != "host" {
        return None;
    }
    let started = if arguments.next().is_some_and(|argument| argument == DETACHED) {
        run_detached()
    } else {
        detach()
    };
    match started {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            report(&HostStarted::Failed { error });
            Some(ExitCode::FAILURE)
        }
    }
}

/// Starts the host in a session of its own and passes its report on. Then this process ends, so
/// that the host is not a child of the daemon.
fn detach() -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot start a host: {error}");
    let mut spec = Vec::new();
    io::stdin().read_to_end(&mut spec).map_err(failed)?;
    let mut host = Command::new(own_program())
        .arg0("svc")
        .args(["agent", "host", DETACHED])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let mut stdin = host.stdin.take().ok_or("cannot start a host")?;
    stdin.write_all(&spec).map_err(failed)?;
    drop(stdin);
    let stdout = host.stdout.take().ok_or("cannot start a host")?;
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).map_err(failed)?;
    match serde_json::from_str(&line) {
        Ok(HostStarted::Failed { error }) => Err(error),
        Ok(running) => {
            report(&running);
            Ok(())
        }
        Err(_) => Err("the host ended before it told anything".to_owned()),
    }
}

/// The path of this program, even if its file was replaced or removed.
fn own_program() -> PathBuf {
    let known = std::env::current_exe().ok().filter(|path| path.exists());
    known.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn report(started: &HostStarted) {
    let line = json_line(started).unwrap_or_default();
    // The reader may be gone.
    io::stdout().write_all(&line).ok();
}

fn run_detached() -> Result<(), String> {
    // Fails only for the leader of a process group, which has no controlling terminal to lose.
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text).map_err(|error| format!("cannot read: {error}"))?;
    let spec: HostSpec =
        serde_json::from_slice(&text).map_err(|error| format!("wrong specification: {error}"))?;
    drop(text);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start a host: {error}"))?;
    let result = runtime.block_on(host(spec));
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn host(spec: HostSpec) -> Result<(), String> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("cannot become a subreaper: {error}"))?;
    let (clock, ids) = (Arc::new(SystemClock), Ids::random());
    let started_at = clock.now();
    let folder = spec.folder.clone();
    let path = spool_path(&folder, &spec.agent_id);
    private_file::prepare_home(&folder)
        .map_err(|error| format!("the folder {}: {error}", folder.display()))?;
    let spool = AgentSpool::create(&folder, &spec.agent_id)
        .map_err(|error| format!("the spool {}: {error}", path.display()))?;
    let begun = begin(&spec).await.inspect_err(|_| {
        // Nothing was written to the spool yet.
        std::fs::remove_file(&path).ok();
    });
    let (socket, program) = begun?;
    let (sender, commands) = AgentCommands::channel();
    let partial = PartialEntry::new();
    let mut epoch = [0; 8];
    random_bytes(&mut epoch);
    let context = Arc::new(HostContext {
        agent_id: spec.agent_id.clone(),
        epoch: hex::encode(epoch),
        started_at,
        socket_path: socket.path().display().to_string(),
        clock: clock.clone(),
        spool: spool.clone(),
        partial: partial.clone(),
        agent: sender,
        attached: Arc::default(),
    });
    let linger = Duration::from_millis(spec.linger_ms);
    let pid = program.0.pid;
    let output = (spool.clone(), partial);
    let agent = HostedAgent::new(spec, clock, ids, output, pid, Instant::now());
    let me = std::process::id();
    report(&HostStarted::Running {
        host_pid: me,
        host_started: ProcessEntry::read(me).map_or(0, |entry| entry.started),
        pid,
        socket_path: socket.path().to_path_buf(),
    });
    release_outputs();
    let (close, closing) = watch::channel(false);
    let serving = tokio::spawn(socket.serve(context, closing));
    let result = run(agent, program, &spool, commands, linger).await;
    let result = result.map_err(|error| format!("the host failed: {error}"));
    close.send_replace(true);
    serving.await.ok();
    spool.close();
    result
}

/// Binds the socket and starts the program.
async fn begin(spec: &HostSpec) -> Result<(HostSocket, RunningProgram), String> {
    let socket = HostSocket::bind(&spec.folder, &spec.agent_id)
        .map_err(|error| format!("the socket of {}: {error}", spec.agent_id))?;
    let protocol = protocol_of(spec);
    let mut command = spec.command.clone();
    command.extend(protocol.arguments());
    let env = agent_environment(spec, own_environment(), protocol.environment());
    let mut reaper = Command::new(own_program());
    reaper.arg0("svc").args(["agent", "reaper", spec.agent_id.as_str()]);
    let order = ReaperOrder { command, cwd: spec.cwd.clone(), env };
    Ok((socket, AgentProcess::start(&mut reaper, &order).await?))
}

/// This process's environment without variables that are not UTF-8.
fn own_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Closes this process's standard streams: the process that started it reads them to their end.
fn release_outputs() {
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

// Variables that the agent inherits from the host. svc's own variables are passed only if the
// agent's settings name them.
const COMMON: &str = "PATH HOME USER LANG TERM TMPDIR http_proxy https_proxy all_proxy no_proxy \
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY NODE_EXTRA_CA_CERTS SSL_CERT_FILE";
const CLAUDE: &str = "ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL ANTHROPIC_MODEL \
    CLAUDE_CODE_OAUTH_TOKEN CLAUDE_CONFIG_DIR";
const CODEX: &str = "OPENAI_API_KEY OPENAI_BASE_URL CODEX_API_KEY CODEX_HOME";
const GEMINI: &str = "GEMINI_API_KEY GEMINI_MODEL GOOGLE_API_KEY GOOGLE_APPLICATION_CREDENTIALS \
    GOOGLE_CLOUD_PROJECT GOOGLE_CLOUD_LOCATION GOOGLE_GEMINI_BASE_URL GOOGLE_GENAI_USE_VERTEXAI \
    GEMINI_CLI_HOME";
const OPENCODE: &str =
    "OPENCODE_API_KEY OPENCODE_CONFIG OPENROUTER_API_KEY OPENCODE_CONFIG_CONTENT";

fn passes(backend: AgentBackend, name: &str) -> bool {
    let lists: &[&str] = match backend {
        AgentBackend::Claude => &[COMMON, CLAUDE],
        AgentBackend::Codex => &[COMMON, CODEX],
        AgentBackend::Gemini => &[COMMON, GEMINI],
        // These programs run models of any vendor.
        AgentBackend::OpenCode | AgentBackend::Acp => &[COMMON, CLAUDE, CODEX, GEMINI, OPENCODE],
        AgentBackend::Exec => &[COMMON],
    };
    lists.iter().flat_map(|list| list.split(' ')).any(|known| known == name)
}

/// The whole environment of an agent: the inherited part of `own`, overridden by the agent's
/// settings, then by its backend.
fn agent_environment(
    spec: &HostSpec,
    own: impl Iterator<Item = (String, String)>,
    backend: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let passed = own.filter(|(name, _)| passes(spec.backend, name));
    let set = spec.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    // Marks the agent and its descendants, so that they can be found after the rest of the host is
    // gone.
    let mark = (AGENT_MARK.to_owned(), spec.agent_id.as_str().to_owned());
    let all: BTreeMap<_, _> = passed.chain(set).chain(backend).chain([mark]).collect();
    all.into_iter().collect()
}

/// Bytes of output that are read at once.
const BLOCK: usize = 64 * 1024;
/// Longest line of the program, in bytes; the excess is dropped.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// How long the outputs may stay open after the agent's end, as another process may hold them.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the agent may take to end after the host was signalled.
const HOST_STOP: Duration = Duration::from_secs(5);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest timeout that a stop may ask for.
const LONGEST_STOP_TIMEOUT: Duration = Duration::from_hours(1);

type RunningProgram = (AgentProcess, AgentPipes, AgentExit);

/// A client that waits for a stop, and since when it waits.
type StopWaiter = (oneshot::Sender<StopAnswer>, Instant);

/// Runs until the agent has ended, no client has asked for a while, and all events are on the disk.
async fn run(
    mut agent: HostedAgent,
    (mut process, pipes, exit): RunningProgram,
    spool: &AgentSpool,
    mut commands: mpsc::Receiver<HostCommand>,
    linger: Duration,
) -> io::Result<()> {
    let (input, parts) = mpsc::unbounded_channel();
    tokio::spawn(feed(pipes.stdin, parts, spool.clone()));
    let mut stdout = RunOutput::new(pipes.stdout, spool.clone());
    let mut stderr = RunOutput::new(pipes.stderr, spool.clone());
    let mut signals = Signals::new()?;
    let mut stops: VecDeque<StopWaiter> = VecDeque::new();
    let exit = exit.wait();
    tokio::pin!(exit);
    let ended = loop {
        perform(agent.take_actions(), &input, &mut process).await;
        let deadline = agent.deadline();
        tokio::select! {
            biased;
            Some(command) = commands.recv() => execute(&mut agent, command, &mut stops),
            ended = &mut exit => break ended,
            block = stdout.next(), if stdout.is_open => stdout.take(block, &mut agent, true),
            block = stderr.next(), if stderr.is_open => stderr.take(block, &mut agent, false),
            () = until(deadline) => agent.tick(Instant::now()),
            signal = signals.next() => if signal != Signal::HUP {
                agent.stop(Some(HOST_STOP), signal_name(signal.as_raw()), Instant::now());
            },
        }
    };
    timeout(OUTPUT_TIMEOUT, async {
        while stdout.is_open || stderr.is_open {
            tokio::select! {
                block = stdout.next(), if stdout.is_open => stdout.take(block, &mut agent, true),
                block = stderr.next(), if stderr.is_open => stderr.take(block, &mut agent, false),
            }
        }
    })
    .await
    .ok();
    agent.exited(ended, Instant::now());
    agent.take_actions();
    // The agent's end is recorded before clients get the response to a stop.
    while let Some((waiter, since)) = stops.pop_front() {
        if let Some(end) = agent.end {
            waiter.send(stop_answer(end, since.elapsed())).ok();
        }
    }
    linger_on(agent, commands, linger).await;
    timeout(Duration::from_secs(30), spool.settled()).await.ok();
    Ok(())
}

/// Answers clients after the end of the agent.
async fn linger_on(
    mut agent: HostedAgent,
    mut commands: mpsc::Receiver<HostCommand>,
    linger: Duration,
) {
    // Bounds the total time however often clients ask. With the drain of the stream it is at most
    // 20 s.
    let most = Instant::now() + linger + linger / 2;
    let mut end = Instant::now() + linger;
    loop {
        tokio::select! {
            Some(command) = commands.recv() => {
                let mut stops = VecDeque::new();
                execute(&mut agent, command, &mut stops);
                end = most.min(Instant::now() + linger);
            }
            () = until(Some(end)) => return,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

async fn perform(
    actions: Vec<Action>,
    input: &mpsc::UnboundedSender<Action>,
    process: &mut AgentProcess,
) {
    for action in actions {
        match action {
            Action::Write { .. } | Action::CloseInput => {
                input.send(action).ok();
            }
            Action::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    process.signal(signal).await;
                }
            }
            Action::Kill => process.kill().await,
        }
    }
}

fn execute(agent: &mut HostedAgent, command: HostCommand, stops: &mut VecDeque<StopWaiter>) {
    let now = Instant::now();
    // The command is carried out even if its sender is gone.
    match command {
        HostCommand::Info(reply) => drop(reply.send(agent.info())),
        HostCommand::Send(send, reply) => drop(reply.send(agent.send(send, now))),
        HostCommand::Answer(answer, reply) => drop(reply.send(agent.answer(answer, now))),
        HostCommand::Interrupt(interrupt, reply) => {
            drop(reply.send(agent.interrupt(interrupt.message_id.as_deref(), now)));
        }
        HostCommand::Stop(StopAgent { force, timeout, reason }, reply) => {
            if let Some(end) = agent.end {
                reply.send(stop_answer(end, Duration::ZERO)).ok();
                return;
            }
            let max_wait = u64::try_from(timeout).ok().filter(|seconds| *seconds > 0);
            let max_wait = max_wait.map_or(STOP_TIMEOUT, Duration::from_secs);
            let max_wait = max_wait.min(LONGEST_STOP_TIMEOUT);
            agent.stop((!force).then_some(max_wait), reason.as_deref(), now);
            stops.push_back((reply, now));
        }
    }
}

fn stop_answer(end: AgentEnd, took: Duration) -> StopAnswer {
    StopAnswer {
        stopped: true,
        exit_code: end.exit_code,
        signal: end.signal,
        graceful: end.graceful,
        duration: match took.as_millis() {
            millis @ 0..1000 => format!("{millis}ms"),
            millis => format!("{}.{:03}s", millis / 1000, millis % 1000),
        },
        final_state: end.state,
    }
}

#[derive(Debug)]
struct RunOutput {
    pipe: pipe::Receiver,
    spool: AgentSpool,
    lines: LineSplitter,
    block: Vec<u8>,
    is_open: bool,
}

impl RunOutput {
    fn new(pipe: pipe::Receiver, spool: AgentSpool) -> Self {
        Self {
            pipe,
            spool,
            lines: LineSplitter::dropping_excess(MAX_LINE),
            block: vec![0; BLOCK],
            is_open: true,
        }
    }

    /// Reads the next bytes once few enough are pending for the disk.
    async fn next(&mut self) -> usize {
        self.spool.room().await;
        self.pipe.read(&mut self.block).await.unwrap_or(0)
    }

    fn take(&mut self, size: usize, agent: &mut HostedAgent, is_stdout: bool) {
        let now = Instant::now();
        let line = |line: Line<'_>| {
            if is_stdout {
                agent.output(line, now);
            } else {
                agent.stderr(line);
            }
        };
        if size == 0 {
            self.is_open = false;
            self.lines.finish(line);
        } else {
            self.lines.push(&self.block[..size], line);
        }
    }
}

/// Writes to the agent's standard input, each part once its event is on the disk.
async fn feed(
    mut stdin: pipe::Sender,
    mut parts: mpsc::UnboundedReceiver<Action>,
    spool: AgentSpool,
) {
    let mut committed = spool.committed();
    while let Some(Action::Write { bytes, after }) = parts.recv().await {
        if committed.wait_for(|end| end.offset >= after).await.is_err() {
            return;
        }
        // Other code notices that the agent takes no more input.
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fuzz::spec;
    use super::*;

    #[test]
    fn only_listed_variables_pass() {
        let own = ["PATH", "HOME", "SECRET", "CLAUDECODE", "SVC_TOKEN", "OPENAI_API_KEY", "LANG"];
        for (backend, expected) in [
            (AgentBackend::Exec, "HOME LANG PATH REVIEW SVC_AGENT_ID"),
            (AgentBackend::Codex, "HOME LANG OPENAI_API_KEY PATH REVIEW SVC_AGENT_ID"),
            (AgentBackend::Claude, "HOME LANG PATH REVIEW SVC_AGENT_ID"),
        ] {
            let spec = HostSpec {
                env: BTreeMap::from([("REVIEW".to_owned(), "1".to_owned())]),
                ..spec(backend)
            };
            let own = own.map(|name| (name.to_owned(), "x".to_owned()));
            let all = agent_environment(&spec, own.into_iter(), []);
            let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{backend}");
        }
    }
}
