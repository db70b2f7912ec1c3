//! `svc agent host` and `svc agent reaper`, which the daemon starts: how a host begins, and the
//! environment of its agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use svc_model::agent::{AGENT_MARK, AgentBackend, HostSpec, HostStarted};
use svc_model::{Clock as _, Ids, SystemClock, random_bytes};
use svc_sys::private_file;
use svc_sys::process_list::ProcessEntry;
use tokio::sync::watch;

use super::agent::HostedAgent;
use super::backend::protocol_of;
use super::connection::{AgentCommands, HostContext, HostSocket};
use super::partial_entry::PartialEntry;
use super::run::HostRun;
use crate::runner::{
    AgentExit, AgentPipes, AgentProcess, AgentSpool, ReaperOrder, agent_spool_path, run_reaper,
};

/// The argument of a host in a session of its own.
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

/// Starts the host in a session of its own and passes its report on. This process ends, so the
/// host is not a child of the daemon.
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

/// This program, even if its file was replaced or removed since.
fn own_program() -> PathBuf {
    let known = std::env::current_exe().ok().filter(|path| path.exists());
    known.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn report(started: &HostStarted) {
    let mut line = serde_json::to_vec(started).unwrap_or_default();
    line.push(b'\n');
    // The reader may be gone.
    io::stdout().write_all(&line).ok();
}

fn run_detached() -> Result<(), String> {
    // Fails only for the leader of a group, which has no terminal to lose.
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
    let path = agent_spool_path(&folder, &spec.agent_id);
    private_file::prepare_home(&folder)
        .map_err(|error| format!("the folder {}: {error}", folder.display()))?;
    let spool = AgentSpool::create(&folder, &spec.agent_id)
        .map_err(|error| format!("the spool {}: {error}", path.display()))?;
    let begun = begin(&spec).await.inspect_err(|_| {
        // The spool is empty.
        std::fs::remove_file(&path).ok();
    });
    let (socket, process, pipes, exit) = begun?;
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
    let pid = process.pid();
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
    let run = HostRun { agent, process, pipes, exit, spool: spool.clone(), commands, linger };
    let result = run.run().await.map_err(|error| format!("the host failed: {error}"));
    close.send_replace(true);
    serving.await.ok();
    spool.close();
    result
}

/// Binds the socket and starts the program.
async fn begin(
    spec: &HostSpec,
) -> Result<(HostSocket, AgentProcess, AgentPipes, AgentExit), String> {
    let socket = HostSocket::bind(&spec.folder, &spec.agent_id)
        .map_err(|error| format!("the socket of {}: {error}", spec.agent_id))?;
    let protocol = protocol_of(spec);
    let mut command = spec.command.clone();
    command.extend(protocol.arguments());
    let env = agent_environment(spec, own_environment(), protocol.environment());
    let mut reaper = Command::new(own_program());
    reaper.arg0("svc").args(["agent", "reaper", spec.agent_id.as_str()]);
    let order = ReaperOrder { command, cwd: spec.cwd.clone(), env };
    let (process, pipes, exit) = AgentProcess::start(&mut reaper, &order).await?;
    Ok((socket, process, pipes, exit))
}

/// Without variables that are not UTF-8.
fn own_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The starter reads our outputs to their end, so they end here.
fn release_outputs() {
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

const COMMON: [&str; 16] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TERM",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
];
const CLAUDE: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CONFIG_DIR",
];
const CODEX: [&str; 4] = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"];
const GEMINI: [&str; 9] = [
    "GEMINI_API_KEY",
    "GEMINI_MODEL",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GEMINI_CLI_HOME",
];
const OPENCODE: [&str; 4] =
    ["OPENCODE_API_KEY", "OPENCODE_CONFIG", "OPENROUTER_API_KEY", "OPENCODE_CONFIG_CONTENT"];

/// A variable of ours that an agent gets only if its settings name it.
fn is_ours(name: &str) -> bool {
    name.starts_with("CLAUDECODE") || name == "SVC_TOKEN" || name == "SVC_TOKEN_FILE"
}

/// Whether a variable passes from the host's own environment.
fn passes(backend: AgentBackend, name: &str) -> bool {
    let lists: &[&[&str]] = match backend {
        AgentBackend::Claude => &[&CLAUDE],
        AgentBackend::Codex => &[&CODEX],
        AgentBackend::Gemini => &[&GEMINI],
        // These run models of any vendor.
        AgentBackend::OpenCode | AgentBackend::Acp => &[&CLAUDE, &CODEX, &GEMINI, &OPENCODE],
        AgentBackend::Exec => &[],
    };
    !is_ours(name) && (COMMON.contains(&name) || lists.iter().any(|names| names.contains(&name)))
}

/// The whole environment of an agent: what passes of `own`, overridden by its settings, then by its
/// backend.
pub(super) fn agent_environment(
    spec: &HostSpec,
    own: impl Iterator<Item = (String, String)>,
    backend: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let passed = own.filter(|(name, _)| passes(spec.backend, name));
    let set = spec.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    // Marks the agent and its descendants, to be found when the rest of the host is gone.
    let mark = (AGENT_MARK.to_owned(), spec.agent_id.as_str().to_owned());
    let all: BTreeMap<_, _> = passed.chain(set).chain(backend).chain([mark]).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
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
                ..super::super::fuzzed::spec(backend)
            };
            let own = own.map(|name| (name.to_owned(), "x".to_owned()));
            let all = agent_environment(&spec, own.into_iter(), []);
            let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{backend}");
        }
    }
}
