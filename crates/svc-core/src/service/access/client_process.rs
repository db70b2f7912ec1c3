//! Which client a process on the Unix socket belongs to, and which of our agents. The kernel names
//! the process; its ancestors are looked up in the system's list of processes, so that no process
//! can name a client that did not start it.
//!
//! A process below the host of an agent acts as that agent, whatever it connects with: the agent's
//! own token, its hooks and its `svc stdio` are one subject.

use std::{path::PathBuf, time::Duration};

use svc_model::{LocalProcess, ProcessIdentity, SHELLS, limits};
use svc_store::{AgentRow, ProcessSubject};
use svc_sys::process_list::{self, ProcessEntry};
use tokio::time::{Instant, sleep};

use super::Access;
use crate::service::Error;

pub(super) struct ClientProcess {
    pub(super) process: ProcessIdentity,
    pub(super) name: String,
    /// The processes from the client down to the one on the socket, inclusive. None of them may be
    /// a client of its own, or it would act as the client that started it.
    pub(super) between: Vec<ProcessIdentity>,
    /// The process on the socket.
    peer: u32,
    peer_started: u64,
}

impl ClientProcess {
    /// The client that the process on the socket names, which must be this process or one of its
    /// ancestors; without a name, its nearest ancestor that is no shell.
    pub(super) fn find(peer: LocalProcess, named: Option<u32>) -> Result<Self, Error> {
        let forbidden = |why: &str| Err(Error::Forbidden(why.to_owned()));
        let LocalProcess { pid, started, .. } = peer;
        let Some(peer) = pid.filter(|pid| *pid > 0) else {
            return forbidden("the system does not say which process this is");
        };
        if !process_list::is_available() {
            let why = "this system has no list of processes (/proc) that says which client this is";
            return forbidden(why);
        }
        let now = ProcessEntry::read(peer).map(|entry| entry.started);
        let Some(peer_started) = started.filter(|_| now == started) else {
            // The connection may have been passed to any process, and by now the id may belong to
            // another process.
            return forbidden("the process that connected has ended");
        };
        let mut between = Vec::new();
        for (pid, entry) in with_ancestors(peer, peer_started) {
            let is_client = match named {
                Some(named) => pid == named,
                None => pid != peer && !SHELLS.contains(&entry.name.as_str()),
            };
            if is_client {
                if user_of(pid) != Some(rustix::process::geteuid().as_raw()) {
                    return forbidden(&format!("process {pid} is another user's"));
                }
                let (process, name) = (entry.identity(pid), entry.name);
                return Ok(Self { process, name, between, peer, peer_started });
            }
            between.push(entry.identity(pid));
        }
        match named {
            Some(named) => {
                forbidden(&format!("process {named} did not start process {peer}, which names it"))
            }
            None => forbidden(&format!("no client started process {peer}")),
        }
    }

    /// The working folder of the client. If the client hides it (a program may ask the system to),
    /// the folder of the process on the socket, which the client started.
    pub(super) fn cwd(&self) -> Option<String> {
        folder_of(self.process.pid).or_else(|| self.own_folder())
    }

    pub(super) fn own_folder(&self) -> Option<String> {
        folder_of(self.peer)
    }

    /// Identifies the process on the socket, which holds the token that it gets.
    pub(super) fn bearer(&self) -> String {
        format!("{}:{}", self.peer, self.peer_started)
    }
}

/// A process that started at `started` or before, and its ancestors, the nearest first.
fn with_ancestors(pid: u32, started: u64) -> impl Iterator<Item = (u32, ProcessEntry)> {
    let mut next = Some((pid, started));
    let read = move || {
        let (pid, started) = next.take()?;
        // A process that started later than its child has reused the id of an ancestor that ended.
        let is_ancestor = |entry: &ProcessEntry| entry.is_running && entry.started <= started;
        let entry = ProcessEntry::read(pid).filter(is_ancestor)?;
        next = (entry.parent > 1).then_some((entry.parent, entry.started));
        Some((pid, entry))
    };
    std::iter::from_fn(read).take(limits::PROCESS_DEPTH)
}

/// Whether the process that [`ClientProcess::bearer`] identifies still runs.
pub(super) fn bearer_is_running(bearer: &str) -> bool {
    let Some((pid, started)) = bearer.split_once(':') else { return false };
    let entry = pid.parse().ok().and_then(ProcessEntry::read);
    entry.is_some_and(|entry| entry.is_running && entry.started.to_string() == started)
}

fn folder_of(pid: u32) -> Option<String> {
    let folder: PathBuf = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    folder.into_os_string().into_string().ok()
}

/// The effective user of a process. The owner of its folder in `/proc` is root for a process that
/// may not be traced.
fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Bound on the wait for the row that names the host: a program may connect before that is written.
const HOST_ROW_WAIT: Duration = Duration::from_secs(5);
const HOST_ROW_POLL: Duration = Duration::from_millis(10);

enum HostLookup {
    Agent(Box<AgentRow>),
    /// A host that no row names, while some agent's host is not known yet.
    UnknownHost,
    /// No host above the process, or a client nearer to it than the host.
    Nobody,
}

impl Access {
    /// The subject of a process that a host runs; `None` for all others.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the operator revoked the agent's own token.
    pub(super) async fn subject_below_host(
        &self,
        process: &ProcessIdentity,
    ) -> Result<Option<ProcessSubject>, Error> {
        let deadline = Instant::now() + HOST_ROW_WAIT;
        let agent = loop {
            match self.find_host_above(process).await? {
                HostLookup::Agent(agent) => break agent,
                HostLookup::UnknownHost if Instant::now() < deadline => sleep(HOST_ROW_POLL).await,
                HostLookup::UnknownHost | HostLookup::Nobody => return Ok(None),
            }
        };
        let token = match &agent.token_id {
            Some(id) => self.core.store.tokens().get(id).await?,
            None => None,
        };
        let key = agent.info.session_key;
        let Some(token) = token.filter(|token| token.revoked_at.is_none()) else {
            return Err(Error::Forbidden(format!("the operator took the token of {key} back")));
        };
        Ok(Some(ProcessSubject {
            token_id: None,
            session: key,
            scopes: token.scopes,
            project: token.project,
            cwd: token.cwd,
            is_barred: false,
        }))
    }

    async fn find_host_above(&self, process: &ProcessIdentity) -> Result<HostLookup, Error> {
        let mut has_unknown_host = false;
        for (pid, entry) in with_ancestors(process.pid, u64::MAX) {
            let identity = entry.identity(pid);
            if let Some(agent) = self.core.store.agents().of_host(&identity).await? {
                return Ok(HostLookup::Agent(Box::new(agent)));
            }
            has_unknown_host |= is_host_program(pid);
            if pid == process.pid {
                if identity != *process {
                    return Ok(HostLookup::Nobody);
                }
            } else {
                let tokens = self.core.store.tokens();
                if tokens.of_process(&identity, self.core.now()).await?.is_some() {
                    return Ok(HostLookup::Nobody);
                }
            }
        }
        if has_unknown_host {
            let live = self.core.store.agents().live().await?;
            let here = &self.core.store.machine().machine_id;
            if live.iter().any(|agent| agent.host.is_none() && agent.machine_id == *here) {
                return Ok(HostLookup::UnknownHost);
            }
        }
        Ok(HostLookup::Nobody)
    }
}

/// Whether a process is `svc agent host`.
fn is_host_program(pid: u32) -> bool {
    process_list::command_line(pid).is_some_and(
        |words| matches!(&words[..], [_, agent, host, ..] if agent == "agent" && host == "host"),
    )
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn family() -> (Child, u32) {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (shell, line.trim().parse().unwrap())
    }

    fn kill_orphan(pid: u32) {
        let orphan = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
        rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
    }

    fn on_socket(pid: u32) -> LocalProcess {
        let uid = rustix::process::geteuid().as_raw();
        let started = ProcessEntry::read(pid).map(|entry| entry.started);
        LocalProcess { uid, pid: Some(pid), started }
    }

    #[test]
    fn only_an_ancestor_is_accepted_as_the_client() {
        if !process_list::is_available() {
            return;
        }
        let (mut shell, child) = family();
        let (mut other, cousin) = family();
        let own = std::process::id();
        let found =
            |named| ClientProcess::find(on_socket(child), named).map(|found| found.process.pid);
        assert_eq!(found(None).unwrap(), own, "past the shell");
        assert_eq!(found(Some(own)).unwrap(), own);
        assert_eq!(found(Some(shell.id())).unwrap(), shell.id());
        assert_eq!(found(Some(child)).unwrap(), child, "itself");
        for stranger in [other.id(), cousin, 1, u32::MAX] {
            assert!(matches!(found(Some(stranger)), Err(Error::Forbidden(_))), "{stranger}");
        }
        let client = ClientProcess::find(on_socket(child), Some(own)).unwrap();
        let between: Vec<u32> = client.between.iter().map(|process| process.pid).collect();
        assert_eq!(between, [child, shell.id()]);
        assert!(client.cwd().is_some());
        for family in [&mut shell, &mut other] {
            family.kill().unwrap();
            family.wait().unwrap();
        }
        assert!(matches!(found(Some(shell.id())), Err(Error::Forbidden(_))), "it is gone");
        for orphan in [child, cousin] {
            kill_orphan(orphan);
        }
    }

    #[test]
    fn without_a_process_there_is_no_client() {
        for pid in [None, Some(0)] {
            let nobody = LocalProcess { uid: 0, pid, started: None };
            assert!(matches!(ClientProcess::find(nobody, None), Err(Error::Forbidden(_))));
        }
    }

    #[test]
    fn a_connection_of_a_process_that_ended_gives_no_client() {
        if !process_list::is_available() {
            return;
        }
        let (mut shell, child) = family();
        let own = std::process::id();
        let connected = on_socket(child);
        assert!(ClientProcess::find(connected, Some(own)).is_ok());
        // By now the id belongs to another process.
        let earlier = connected.started.map(|started| started - 1);
        for started in [earlier, None] {
            let ended = LocalProcess { started, ..connected };
            let refused =
                ClientProcess::find(ended, Some(own)).map(drop).expect_err("it is refused");
            assert!(refused.to_string().contains("has ended"), "{refused}");
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
        kill_orphan(child);
    }
}
