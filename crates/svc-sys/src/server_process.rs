//! A server as a child of the daemon: its start, the mark in its environment by which its processes
//! are found, and its end with all its descendants.
//!
//! This program starts the server, called as [`LAUNCHER`]: it asks the kernel for a signal when the
//! daemon dies, and then becomes the server by `exec`, so no process is between the two.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use svc_model::ProcessIdentity;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::process_list::{ProcessEntry, signal_group, signal_marked};

/// The first argument of this program when it starts a server.
pub const LAUNCHER: &str = "launch-server";
/// Environment variable that marks a server and all its descendants.
const MARK: &str = "SVC_SERVER_MARK";
/// How long a server may take to end after the end of its input.
const INPUT_GRACE: Duration = Duration::from_secs(2);
/// How long a server may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub struct ServerCommand {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// Unique on this machine.
    pub mark: String,
}

#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    identity: ProcessIdentity,
    mark: String,
}

/// The daemon's ends of the server's pipes.
#[derive(Debug)]
pub struct ServerPipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

impl ServerProcess {
    /// The error is a text for people.
    pub async fn start(command: ServerCommand) -> Result<(Self, ServerPipes), String> {
        let ServerCommand { program, args, env, cwd, mark } = command;
        if !cwd.is_dir() {
            return Err(format!("the working folder {} is no folder", cwd.display()));
        }
        let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
        find_program(program.as_ref(), path.unwrap_or_default().as_ref()).map_err(|error| {
            match error.kind() {
                io::ErrorKind::NotFound => format!("there is no program {program:?} on the PATH"),
                io::ErrorKind::PermissionDenied => format!("{program:?} may not be executed"),
                _ => format!("{program:?}: {error}"),
            }
        })?;
        let own = std::env::current_exe().map_err(|error| format!("cannot find svc: {error}"))?;
        let mut launcher = std::process::Command::new(own);
        launcher
            .arg(LAUNCHER)
            .arg(std::process::id().to_string())
            .arg(&program)
            .args(args)
            .env_clear()
            .envs(env)
            .env(MARK, &mark)
            .current_dir(cwd)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let failed = |error: io::Error| format!("cannot start {program:?}: {error}");
        let mut child = spawn(launcher).await.map_err(failed)?;
        let pid = child.id().ok_or_else(|| format!("{program:?} ended at once"))?;
        let identity = ProcessEntry::read(pid).map_or_else(
            || ProcessIdentity { pid, started: String::new() },
            |entry| entry.identity(pid),
        );
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(format!("cannot start {program:?}: no pipes"));
        };
        let process = Self { child, identity, mark };
        Ok((process, ServerPipes { stdin, stdout, stderr }))
    }

    /// `started` is empty without `/proc`.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    pub async fn wait(&mut self) -> Option<ExitStatus> {
        self.child.wait().await.ok()
    }

    /// Kills the server and all its descendants.
    pub async fn kill(mut self) -> Option<ExitStatus> {
        // Until the server is reaped, no other process gets its pid.
        if self.child.id().is_some() {
            self.signal_group(Signal::KILL);
        }
        let status = self.child.wait().await.ok();
        end_marked(&self.mark, Signal::KILL).await;
        status
    }

    /// Ends the server and all its descendants. Its input must be closed already.
    pub async fn end(mut self) {
        if tokio::time::timeout(INPUT_GRACE, self.child.wait()).await.is_err() {
            // Not reaped yet, so no other process has its pid.
            self.signal_group(Signal::TERM);
            if tokio::time::timeout(TERM_GRACE, self.child.wait()).await.is_err() {
                self.signal_group(Signal::KILL);
                self.child.wait().await.ok();
            }
        }
        end_marked(&self.mark, Signal::TERM).await;
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.identity.pid.cast_signed()) {
            signal_group(pid, signal);
        }
    }
}

/// Ends the processes of a server that an earlier daemon started. Only marked processes are
/// signalled, so a reused pid is safe.
pub async fn end_leftovers(mark: &str) {
    end_marked(mark, Signal::TERM).await;
}

/// Checks that `path` has an executable of this name, by the rules of `execvp`.
///
/// The program may still fail to start: a script whose interpreter is missing passes.
pub fn find_program(program: &OsStr, path: &OsStr) -> io::Result<()> {
    // The system's error, which `execvp` gives, too: one text for a missing program.
    let missing = || io::Error::from(Errno::NOENT);
    let check = |file: &Path| {
        if !file.is_file() {
            return Err(missing());
        }
        Ok(access(file, Access::EXEC_OK)?)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return check(Path::new(program));
    }
    let mut candidates = std::env::split_paths(path).map(|folder| check(&folder.join(program)));
    candidates.find(Result::is_ok).unwrap_or_else(|| Err(missing()))
}

async fn end_marked(mark: &str, first: Signal) {
    let began = tokio::time::Instant::now();
    let mut signal = first;
    loop {
        let mark = mark.to_owned();
        let signalled = move || signal_marked(MARK, &mark, signal);
        if tokio::task::spawn_blocking(signalled).await.unwrap_or(0) == 0 {
            return;
        }
        let kills = first == Signal::KILL || began.elapsed() >= TERM_GRACE;
        signal = if kills { Signal::KILL } else { Signal::CONT };
        tokio::time::sleep(POLL).await;
    }
}

type SpawnJob = (std::process::Command, tokio::runtime::Handle, oneshot::Sender<io::Result<Child>>);

/// The kernel sends the death signal when the thread that started a child ends, so one thread that
/// never ends starts all children.
async fn spawn(command: std::process::Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<std::sync::mpsc::Sender<SpawnJob>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = std::sync::mpsc::channel::<SpawnJob>();
        std::thread::spawn(move || {
            for (command, runtime, reply) in requests {
                let _guard = runtime.enter();
                drop(reply.send(Command::from(command).spawn()));
            }
        });
        sender
    });
    let (reply, child) = oneshot::channel();
    let request = (command, tokio::runtime::Handle::current(), reply);
    spawner.send(request).map_err(|_| io::ErrorKind::BrokenPipe)?;
    child.await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
}

/// Becomes the program in the arguments. The first argument is the pid of the daemon, which must be
/// the parent process.
pub fn launch_server(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let parent: Option<i32> = arguments.next().and_then(|id| id.to_str()?.parse().ok());
    let Some(program) = arguments.next() else { return ExitCode::from(2) };
    #[cfg(target_os = "linux")]
    if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return ExitCode::from(126);
    }
    // The daemon may have died before the signal was requested.
    let is_alive = rustix::process::getppid().map(|id| id.as_raw_nonzero().get()) == parent;
    if !is_alive {
        return ExitCode::from(126);
    }
    // The daemon's umask is private; a server gets the usual one.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let error = std::process::Command::new(program).args(arguments).exec();
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_found_by_the_rules_of_execvp() {
        let path = OsStr::new("/no/such/folder:/bin:/usr/bin");
        for (program, kind) in [
            ("sh", None),
            ("/bin/sh", None),
            ("no-such-program-anywhere", Some(io::ErrorKind::NotFound)),
            ("/no/such/program", Some(io::ErrorKind::NotFound)),
            ("/etc/passwd", Some(io::ErrorKind::PermissionDenied)),
            ("/etc", Some(io::ErrorKind::NotFound)),
        ] {
            let result = find_program(OsStr::new(program), path);
            assert_eq!(result.err().map(|error| error.kind()), kind, "{program}");
        }
    }
}
