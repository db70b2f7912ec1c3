//! A server as a child of the daemon: started, found again by a mark in its environment, and ended with all that it has
//! started.
//!
//! The program is started by way of this one, called as [`LAUNCHER`]: that asks the kernel for a signal when the daemon
//! dies and then becomes the program, so no process stands between the two.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process_group};
use svc_model::ProcessIdentity;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::process_list::{ProcessEntry, signal_marked};

/// The first argument of this program when it starts a server.
pub const LAUNCHER: &str = "launch-server";
/// The variable that marks a server and all that it starts.
const MARK: &str = "SVC_SERVER_MARK";
/// How long a server may take to end after its input has.
const INPUT_GRACE: Duration = Duration::from_secs(2);
/// How long it may take after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// Time between two looks at processes that are to end.
const POLL: Duration = Duration::from_millis(10);

/// What is to be started.
#[derive(Debug, Clone)]
pub struct ServerCommand {
    pub program: String,
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// Told from all others of this machine.
    pub mark: String,
}

/// A server that runs.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    identity: ProcessIdentity,
    mark: String,
}

/// Our ends of a server's input and outputs.
#[derive(Debug)]
pub struct ServerPipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

impl ServerProcess {
    /// Starts a server. The error's text is for people.
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

    /// Which process it is; `started` is empty where the system does not say.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Waits until the program itself has ended, and says how.
    pub async fn wait(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Waits until the program itself has ended.
    pub async fn wait_for_status(&mut self) -> Option<ExitStatus> {
        self.child.wait().await.ok()
    }

    /// Kills it and all that it has started, and says how it ended if it had not yet.
    pub async fn kill(mut self) -> Option<ExitStatus> {
        // Its id is its own as long as nobody has waited for it.
        if self.child.id().is_some() {
            self.signal_group(Signal::KILL);
        }
        let status = self.child.wait().await.ok();
        end_marked(&self.mark, Signal::KILL).await;
        status
    }

    /// Ends it and all that it has started. Its input has ended already.
    pub async fn end(mut self) {
        if tokio::time::timeout(INPUT_GRACE, self.child.wait()).await.is_err() {
            // It is not reaped, so its id is nobody else's.
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
            let _ = kill_process_group(pid, signal);
            let _ = kill_process_group(pid, Signal::CONT);
        }
    }
}

/// Ends what an earlier daemon has left of a server. Only processes that bear the mark are touched, so an id that has
/// become somebody else's is not.
pub async fn end_leftovers(mark: &str) {
    end_marked(mark, Signal::TERM).await;
}

/// Checks that the folders of `path` have a program of this name that may be executed, by the rules of `execvp`.
///
/// The program may fail to start all the same: a script whose interpreter is missing passes this check.
pub fn find_program(program: &OsStr, path: &OsStr) -> io::Result<()> {
    let check = |file: &Path| {
        if !file.is_file() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(access(file, Access::EXEC_OK)?)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return check(Path::new(program));
    }
    let mut candidates = std::env::split_paths(path).map(|folder| check(&folder.join(program)));
    candidates.find(Result::is_ok).unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

async fn end_marked(mark: &str, first: Signal) {
    let began = tokio::time::Instant::now();
    let mut signal = first;
    loop {
        let found = {
            let mark = mark.to_owned();
            let signalled = move || signal_marked(MARK, &mark, signal);
            tokio::task::spawn_blocking(signalled).await.unwrap_or(0)
        };
        if found == 0 {
            return;
        }
        if first == Signal::KILL || began.elapsed() >= TERM_GRACE {
            signal = Signal::KILL;
        } else {
            signal = Signal::CONT;
        }
        tokio::time::sleep(POLL * 5).await;
    }
}

type SpawnRequest =
    (std::process::Command, tokio::runtime::Handle, oneshot::Sender<io::Result<Child>>);

/// The kernel tells a child of the end of the thread that started it, so all are started by one that does not end.
async fn spawn(command: std::process::Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<std::sync::mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = std::sync::mpsc::channel::<SpawnRequest>();
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

/// Becomes the program that the arguments name, after the id of the daemon: that of the parent, or the daemon is gone.
pub fn launch_server(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let parent: Option<i32> = arguments.next().and_then(|id| id.to_str()?.parse().ok());
    let Some(program) = arguments.next() else { return ExitCode::from(2) };
    #[cfg(target_os = "linux")]
    if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return ExitCode::from(126);
    }
    // It may have died before the kernel knew.
    let is_alive = rustix::process::getppid().map(|id| id.as_raw_nonzero().get()) == parent;
    if !is_alive {
        return ExitCode::from(126);
    }
    // What the daemon makes is for its owner alone; what a server makes is as under any other client.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let error = std::process::Command::new(program).args(arguments).exec();
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_the_system_finds_it() {
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
