//! Clients' processes on the Unix socket: which client a process belongs to, which of our agents,
//! and its token. What a client starts (`svc stdio`, its hooks) proves on the socket which process
//! it belongs to, and acts as that process: all children of one client have one subject.
//!
//! The kernel names the process; its ancestors are looked up in the system's list of processes, so
//! that no process can name a client that did not start it. A process below the host of an agent
//! acts as that agent, whatever it connects with: the agent's own token, its hooks and its `svc
//! stdio` are one subject.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use svc_model::{
    Caller, Ids, LocalProcess, ProcessIdentity, ProcessState, SHELLS, Timestamp, TokenId,
    is_agent_key, limits, new_secret, token_hash,
};
use svc_store::{AgentRow, ProcessSubject, TokenRow, WriteTx, job};
use svc_sys::process_list::{self, ProcessEntry};
use tokio::time::{Instant, sleep};

use super::{
    Access, Credential,
    credentials::TokenKey,
    tokens::{MintedToken, new_token_row},
};
use crate::boxed;
use crate::service::{Error, Result, check};

/// Characters of a client's name in the subject of its process.
const NAME_CHARS: usize = 24;

/// Request for the token of a client's process.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct NewProcessToken {
    /// The client's process, which started the one that asks. By default the nearest one that is no
    /// shell.
    #[schemars(range(min = 1))]
    pub client_pid: Option<u32>,
    /// What the client is called, such as `claude-code`; by default as its program. The subject
    /// begins with it.
    pub client: Option<String>,
}

impl Access {
    /// Makes a token for the client of the process on the socket.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the named process is no ancestor of the one on the socket, or the
    /// operator revoked a token of the client.
    #[boxed]
    pub async fn trade(&self, peer: LocalProcess, input: NewProcessToken) -> Result<MintedToken> {
        check::short("client", input.client.as_deref())?;
        let client = self.client_of(peer, input.client_pid).await?;
        let name = input.client.unwrap_or_else(|| client.name.clone());
        let fresh = self.subject_of_unseen(&client.process, &name, client.cwd()).await?;
        let token = format!("svc_{}", new_secret());
        // Resolving a folder to its project is a write job of its own, so it happens before this
        // one.
        let own = match client.own_folder() {
            Some(folder) => Some((self.core.projects.of_folder(&folder).await?, folder)),
            None => None,
        };
        let bearer = client.bearer();
        let (hash, process, ids) = (token_hash(&token), client.process, self.core.ids.clone());
        let job = self.core.store.write(job!(|tx| {
            let mut subject = subject_of(tx, &process, fresh).await?;
            if let (Some((project, folder)), false) = (own, is_agent_key(&subject.session)) {
                // One process may have sessions in several folders, and starts the `svc
                // stdio` of a session in the session's folder.
                subject.project = Some(project);
                subject.cwd = Some(folder);
            }
            let replaced = replace_tokens(tx, &process, &bearer).await?;
            let row = row_of(&ids, subject, process, tx.now());
            tx.tokens().insert(&row, &hash).await?;
            tx.tokens().set_bearer(&row.token_id, &bearer).await?;
            Ok::<_, Error>((row, replaced))
        }));
        let (row, replaced) = job.await?;
        self.forget(&replaced);
        Ok(MintedToken { token, info: row.into() })
    }

    /// The caller for a request on the socket that names its client's process and has no token.
    ///
    /// # Errors
    /// As for [`Self::trade`].
    #[boxed]
    pub async fn caller_of_process(
        &self,
        peer: LocalProcess,
        client_pid: u32,
    ) -> Result<(Caller, Credential)> {
        let client = self.client_of(peer, Some(client_pid)).await?;
        let key = TokenKey::Process(client.process.clone());
        let read = || async move { self.row_of_client(client).await.map(Some) };
        let seen = self.token_by(key, read).await?.ok_or(Error::Unauthorized)?;
        Ok((seen.caller.clone(), seen.credential()))
    }

    async fn client_of(&self, peer: LocalProcess, named: Option<u32>) -> Result<ClientProcess> {
        let client = ClientProcess::find(peer, named)?;
        let now = self.core.now();
        for nearer in &client.between {
            if self.core.store.tokens().of_process(nearer, now).await?.is_some() {
                return Err(Error::Forbidden(format!(
                    "process {} is a client itself, and does not speak as process {}, which started it",
                    nearer.pid, client.process.pid
                )));
            }
        }
        Ok(client)
    }

    /// The row of the valid token of a process. The first call stores one whose secret nobody has:
    /// the socket identifies the process.
    async fn row_of_client(&self, client: ClientProcess) -> Result<TokenRow> {
        let process = &client.process;
        let known = self.core.store.tokens().of_process(process, self.core.now()).await?;
        if let Some(row) = known {
            return Ok(row);
        }
        let fresh = self.subject_of_unseen(process, &client.name, client.cwd()).await?;
        self.insert_row_of(client.process, fresh).await
    }

    /// The subject of a new process: the agent whose host runs it, or one of its own.
    async fn subject_of_unseen(
        &self,
        process: &ProcessIdentity,
        name: &str,
        cwd: Option<String>,
    ) -> Result<ProcessSubject> {
        if let Some(hosted) = self.subject_below_host(process).await? {
            return Ok(hosted);
        }
        let project = self.core.projects.of_any(cwd.as_deref()).await?;
        let scopes = self.core.session_scopes();
        Ok(ProcessSubject { scopes, project, cwd, ..fresh_subject(process.pid, name) })
    }

    async fn insert_row_of(
        &self,
        process: ProcessIdentity,
        fresh: ProcessSubject,
    ) -> Result<TokenRow> {
        let ids = self.core.ids.clone();
        let hash = token_hash(&new_secret());
        let job = self.core.store.write(job!(|tx| {
            if let Some(row) = tx.tokens().of_process(&process).await? {
                return Ok(row);
            }
            let subject = subject_of(tx, &process, fresh).await?;
            let row = row_of(&ids, subject, process, tx.now());
            tx.tokens().insert(&row, &hash).await?;
            Ok(row)
        }));
        job.await
    }

    /// The caller of a report that a hook wrote when it could not reach the daemon. The report is
    /// trusted as the operator is. `cwd` is the working folder of a process that is not known yet.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the operator revoked a token of the process.
    #[boxed]
    pub async fn caller_of_report(
        &self,
        process: ProcessIdentity,
        client: &str,
        cwd: Option<String>,
    ) -> Result<Caller> {
        let is_running = self.core.state_of(&self.core.here(&process)) == ProcessState::Running;
        if !is_running {
            let gone = process.clone();
            let known = self.core.change(job!(|tx| tx.tokens().process_subject(&gone).await));
            if let Some(subject) = known.await?.filter(|subject| !subject.is_barred)
                && let Some(token_id) = subject.token_id.clone()
            {
                // No new row and no scopes: no request comes with this token.
                let subject = ProcessSubject { scopes: Vec::new(), ..subject };
                let now = self.core.now();
                let row = row_of(&self.core.ids, subject, process, now);
                return Ok(self.cached(TokenRow { token_id, ..row }, now).await?.caller);
            }
        }
        let fresh = self.subject_of_unseen(&process, client, cwd).await?;
        let row = self.insert_row_of(process.clone(), fresh).await?;
        if !is_running {
            self.end_process(process).await?;
        }
        Ok(self.cached(row, self.core.now()).await?.caller)
    }

    async fn end_process(&self, process: ProcessIdentity) -> Result<()> {
        let limit = limits::PROCESSES_PER_PAGE;
        let ended = self.core.change(job!(|tx| tx.tokens().end_of_process(&process, limit).await));
        self.forget(&ended.await?);
        Ok(())
    }

    /// Revokes the tokens of this machine's processes that have ended.
    #[boxed]
    pub async fn sweep_processes(&self) -> Result<()> {
        let mut after: Option<ProcessIdentity> = None;
        loop {
            let limit = limits::PROCESSES_PER_PAGE;
            let page = self.core.store.tokens().processes(after.as_ref(), limit).await?;
            let is_last = page.len() < limit as usize;
            after = page.last().cloned();
            for gone in page.into_iter().filter(|it| self.core.is_gone(&self.core.here(it))) {
                self.end_process(gone).await?;
            }
            if is_last {
                break;
            }
        }
        let before = self.core.now().minus(limits::GONE_PROCESSES_KEPT);
        if self.core.store.tokens().has_gone_processes(before).await? {
            let limit = limits::PROCESSES_PER_PAGE;
            self.core
                .change(job!(|tx| tx.tokens().forget_gone_processes(before, limit).await))
                .await?;
        }
        Ok(())
    }
}

/// Removes the tokens of a client's process whose bearers have ended, and the oldest of this
/// bearer. Tokens of other bearers stay, whatever their number.
async fn replace_tokens(
    tx: &mut WriteTx,
    process: &ProcessIdentity,
    bearer: &str,
) -> Result<Vec<TokenId>> {
    let limit = limits::PROCESSES_PER_PAGE;
    let mut replaced = Vec::new();
    for known in tx.tokens().bearers(process).await? {
        let kept = if known == bearer { limits::BEARER_TOKENS - 1 } else { 0 };
        if known == bearer || !bearer_is_running(&known) {
            replaced.extend(tx.tokens().trim_of_bearer(process, &known, kept, limit).await?);
        }
    }
    Ok(replaced)
}

async fn subject_of(
    tx: &mut WriteTx,
    process: &ProcessIdentity,
    fresh: ProcessSubject,
) -> Result<ProcessSubject> {
    let subject = tx.tokens().process_subject(process).await?.unwrap_or(fresh);
    if subject.is_barred {
        return Err(Error::Forbidden(format!(
            "the operator took the token of process {} back: restart the client",
            process.pid
        )));
    }
    Ok(subject)
}

/// The subject of a new process. A random part distinguishes it from all earlier ones.
fn fresh_subject(pid: u32, name: &str) -> ProcessSubject {
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(NAME_CHARS)
        .collect();
    let name = match name.trim_matches('-') {
        "" => "client",
        name => name,
    };
    let secret = new_secret();
    let session = format!("{name}-{pid}-{}", &secret[..8]);
    ProcessSubject { session, ..ProcessSubject::default() }
}

fn row_of(
    ids: &Ids,
    subject: ProcessSubject,
    process: ProcessIdentity,
    now: Timestamp,
) -> TokenRow {
    TokenRow {
        scopes: subject.scopes,
        project: subject.project,
        process: Some(process),
        cwd: subject.cwd,
        ..new_token_row(ids, subject.session, now, limits::PROCESS_TOKEN_TTL)
    }
}

struct ClientProcess {
    process: ProcessIdentity,
    name: String,
    /// The processes from the client down to the one on the socket, inclusive. None of them may be
    /// a client of its own, or it would act as the client that started it.
    between: Vec<ProcessIdentity>,
    /// The process on the socket.
    peer: u32,
    peer_started: u64,
}

impl ClientProcess {
    /// The client that the process on the socket names, which must be this process or one of its
    /// ancestors; without a name, its nearest ancestor that is no shell.
    fn find(peer: LocalProcess, named: Option<u32>) -> Result<Self> {
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
    fn cwd(&self) -> Option<String> {
        folder_of(self.process.pid).or_else(|| self.own_folder())
    }

    fn own_folder(&self) -> Option<String> {
        folder_of(self.peer)
    }

    /// Identifies the process on the socket, which holds the token that it gets.
    fn bearer(&self) -> String {
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
fn bearer_is_running(bearer: &str) -> bool {
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
    async fn subject_below_host(
        &self,
        process: &ProcessIdentity,
    ) -> Result<Option<ProcessSubject>> {
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
            session: key,
            scopes: token.scopes,
            project: token.project,
            cwd: token.cwd,
            ..ProcessSubject::default()
        }))
    }

    async fn find_host_above(&self, process: &ProcessIdentity) -> Result<HostLookup> {
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
    use crate::service::testing::opened;

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

    fn bearer() -> Child {
        Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap()
    }

    fn child_on_socket(child: &Child) -> LocalProcess {
        let uid = rustix::process::geteuid().as_raw();
        let started = ProcessEntry::read(child.id()).map(|entry| entry.started);
        LocalProcess { uid, pid: Some(child.id()), started }
    }

    #[tokio::test]
    async fn the_number_of_bearers_of_a_process_revokes_no_token_of_another_bearer() {
        if !process_list::is_available() {
            return;
        }
        let (_test, services) = opened().await;
        let access = &services.access;
        let trade = async |child: &Child| {
            let input = NewProcessToken { client_pid: Some(std::process::id()), client: None };
            access.trade(child_on_socket(child), input).await.unwrap().token
        };
        let is_good = async |token: &str| access.authenticate(token).await.unwrap().is_some();
        let mut bearers: Vec<Child> = (0..40).map(|_| bearer()).collect();
        let mut tokens = Vec::new();
        for child in &bearers {
            tokens.push(trade(child).await);
        }
        for token in &tokens {
            assert!(is_good(token).await, "each thread has its own `svc stdio`");
        }
        // A bearer that trades repeatedly replaces its own tokens.
        for _ in 0..limits::BEARER_TOKENS {
            trade(&bearers[0]).await;
        }
        assert!(!is_good(&tokens[0]).await && is_good(&tokens[1]).await);
        // The tokens of an ended bearer are removed.
        bearers[1].kill().unwrap();
        bearers[1].wait().unwrap();
        trade(&bearers[2]).await;
        assert!(!is_good(&tokens[1]).await && is_good(&tokens[2]).await);
        for mut child in bearers {
            child.kill().ok();
            child.wait().unwrap();
        }
    }
}
