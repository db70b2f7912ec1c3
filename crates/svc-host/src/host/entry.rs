//! `svc agent host` and `svc agent reaper`: programs for the daemon and not for people.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use svc_model::agent::{HostSpec, HostStarted};
use svc_model::{Clock as _, Ids, SystemClock, random_bytes};
use svc_sys::private_file;
use svc_sys::process_list::ProcessEntry;
use tokio::sync::watch;

use super::agent::HostedAgent;
use super::backend::protocol_of;
use super::commands::AgentCommands;
use super::connection::HostFace;
use super::environment::agent_environment;
use super::run::HostRun;
use super::saying::Saying;
use super::server::HostSocket;
use crate::runner::{AgentCommandLine, AgentProcess, AgentSpool, agent_spool_path, run_reaper};

/// The argument of a host that is a process of its own session.
const DETACHED: &str = "--detached";

/// Runs the program that `svc agent …` names, if it is one of a host's; `None` if it is for people.
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
            tell(&HostStarted::Failed { error });
            Some(ExitCode::FAILURE)
        }
    }
}

/// Starts the host in a session of its own and passes on what it comes to. As this process ends, the host is nobody's child.
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
            tell(&running);
            Ok(())
        }
        Err(_) => Err("the host ended before it told anything".to_owned()),
    }
}

/// This program, also if its file was replaced or removed since.
fn own_program() -> PathBuf {
    let known = std::env::current_exe().ok().filter(|path| path.exists());
    known.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn tell(started: &HostStarted) {
    let mut line = serde_json::to_vec(started).unwrap_or_default();
    line.push(b'\n');
    // Nobody reads it if whoever started this is gone.
    io::stdout().write_all(&line).ok();
}

fn run_detached() -> Result<(), String> {
    // Fails only for a process that leads a group already, which then has no terminal to lose either.
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
    let begun = begin(&spec).await;
    let (socket, process, pipes, exit) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            // Nothing is in it.
            std::fs::remove_file(&path).ok();
            return Err(error);
        }
    };
    let (agent, commands) = AgentCommands::channel();
    let saying = Saying::new();
    let mut epoch = [0; 8];
    random_bytes(&mut epoch);
    let face = Arc::new(HostFace {
        agent_id: spec.agent_id.clone(),
        epoch: hex::encode(epoch),
        started_at,
        socket_path: socket.path().display().to_string(),
        clock: clock.clone(),
        spool: spool.clone(),
        saying: saying.clone(),
        agent,
        attached: Arc::default(),
    });
    let linger = Duration::from_millis(spec.linger_ms);
    let pid = process.pid();
    let said = (spool.clone(), saying);
    let hosted = HostedAgent::new(spec, clock, ids, said, pid, Instant::now());
    let me = std::process::id();
    tell(&HostStarted::Running {
        host_pid: me,
        host_started: ProcessEntry::read(me).map_or(0, |entry| entry.started),
        pid,
        socket_path: socket.path().to_path_buf(),
    });
    forget_outputs();
    let (close, closing) = watch::channel(false);
    let serving = tokio::spawn(socket.serve(face, closing));
    let run =
        HostRun { agent: hosted, process, pipes, exit, spool: spool.clone(), commands, linger };
    let result = run.run().await.map_err(|error| format!("the host failed: {error}"));
    close.send_replace(true);
    serving.await.ok();
    spool.close();
    result
}

type Begun = (HostSocket, AgentProcess, crate::runner::AgentPipes, crate::runner::AgentExit);

/// Binds the socket and starts the program.
async fn begin(spec: &HostSpec) -> Result<Begun, String> {
    let socket = HostSocket::bind(&spec.folder, &spec.agent_id)
        .map_err(|error| format!("the socket of {}: {error}", spec.agent_id))?;
    let protocol = protocol_of(spec);
    let mut command = spec.command.clone();
    command.extend(protocol.arguments());
    let env = agent_environment(spec, own_environment(), protocol.environment());
    let mut reaper = Command::new(own_program());
    reaper.arg0("svc").args(["agent", "reaper", spec.agent_id.as_str()]);
    let command = AgentCommandLine { command, cwd: spec.cwd.clone(), env };
    let (process, pipes, exit) = AgentProcess::start(&mut reaper, command).await?;
    Ok((socket, process, pipes, exit))
}

/// The environment that agents inherit. Variables that are not UTF-8 are left out.
fn own_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Whoever started this reads to the end of our outputs, so they end here.
fn forget_outputs() {
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}
