//! Peers: their registration, their status, and the meaning of their silence.

use std::{sync::Arc, time::Duration};

use svc_model::{
    Caller, OpenCalls, Peer, PeerFilter, PeerId, PeerRole, PeerSilence, PeerStatus,
    ProcessIdentity, Reader, RegisterInput, ReportedStatus, StatusEvidence, StreamName,
    StreamVisibility, Timestamp, backend_names, changes_direction, is_agent_key, limits,
};
use svc_store::{PeerRow, StoreError, StrandedInbox, WriteTx, job};
use svc_sys::{process_list, telemetry::chain};

use super::{
    Team,
    delivery::{AGENT_ENDED, end_deliveries},
    note_peer, own_peer,
    sessions::end_left,
    set_reach, set_status,
};
use crate::boxed;
use crate::service::{Error, Page, PageBounds, ResourceKind, Result, check, process};

/// The reason in events about a peer or a session whose process has ended.
const PROCESS_GONE: &str = "its process is gone";
const PEER_REMOVED: &str = "the peer was removed";

impl Team {
    /// Registers a peer, or updates the peer with the same identity. Its session is the one in
    /// which the call is made, unless the input names another.
    #[boxed]
    pub async fn register_peer(
        &self,
        caller: &Caller,
        session: Option<&str>,
        mut input: RegisterInput,
    ) -> Result<Peer> {
        check_input(&input)?;
        check_rank(caller, &input)?;
        match given(input.session_id.as_deref()) {
            Some(named) => input.session_id = Some(self.check_named(caller, named).await?),
            None => input.session_id = session.map(str::to_owned),
        }
        // Reads the disk, which a write job must not do.
        let project = self.core.projects.to_start(caller, given(input.path.as_deref())).await?;
        let process = match caller.process().filter(|process| !process.started.is_empty()) {
            // The process of a client is known, so the input's claim does not count.
            Some(own) => Some(own.clone()),
            None => input.pid.and_then(process::running),
        };
        let pid = process.as_ref().map(|process| process.pid).or(input.pid);
        let input = RegisterInput { pid, ..input };
        let (caller, core) = (caller.clone(), self.core.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let known = known_peer(tx, &caller, &input).await?;
            if let Some(known) = known {
                let mut peer = update(tx, &caller, known, input, project, process).await?;
                // A busy or waiting status, which hooks reported, stays.
                if matches!(peer.status, PeerStatus::Idle | PeerStatus::Offline) {
                    let online = PeerStatus::Online;
                    set_status(tx, &mut peer, online, "registered").await?;
                }
                Ok(peer)
            } else {
                core.budget.check_rows(tx, &caller, 1).await?;
                let id = PeerId::new(&core.ids, tx.now());
                create(tx, &caller, id, input, project, process).await
            }
        }));
        job.await.map_err(|error: Error| error.of_repeatable(true))
    }

    /// Notes that a peer is alive, and its status if one is given.
    #[boxed]
    pub async fn heartbeat(
        &self,
        caller: &Caller,
        id: &str,
        status: Option<ReportedStatus>,
    ) -> Result<Peer> {
        let id = self.find_peer(caller, id, ResourceKind::ReportingPeer).await?;
        let caller = caller.clone();
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let mut row = own_peer(tx, &caller, &id, ResourceKind::ReportingPeer).await?;
            let next = status.map_or(
                match row.peer.status {
                    PeerStatus::Busy | PeerStatus::Waiting => row.peer.status,
                    _ => PeerStatus::Online,
                },
                PeerStatus::from,
            );
            row.peer.last_seen = tx.now();
            set_status(tx, &mut row.peer, next, "heartbeat").await?;
            Ok(row.peer)
        }));
        job.await.map_err(|error: Error| error.of_repeatable(true))
    }

    /// Removes a peer from the list. Messages that wait for it become undeliverable, in separate
    /// write jobs, so that a full inbox does not block other writes. If a crash or a failure leaves
    /// some, [`Self::sweep_stranded_inboxes`] ends them.
    #[boxed]
    pub async fn remove_peer(&self, caller: &Caller, id: &str) -> Result<Peer> {
        let id = self.find_peer(caller, id, ResourceKind::Peer).await?;
        let caller = caller.clone();
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let row = own_peer(tx, &caller, &id, ResourceKind::Peer).await?;
            if id.is_operator() {
                let why = "the operator's own peer stays: answers to the operator reach it";
                return Err(Error::Conflict(why.to_owned()));
            }
            remove(tx, &row.peer).await?;
            Ok(row.peer)
        }));
        let removed = job.await?;
        if let Err(error) = end_deliveries(&self.core, &removed.peer_id, PEER_REMOVED).await {
            let (peer, error) = (removed.peer_id.as_str(), chain(&error));
            tracing::warn!(peer, error, "cannot end the deliveries to a removed peer yet");
        }
        Ok(removed)
    }

    /// Ends the deliveries to inboxes that nobody reads any more: those left by the removal of a
    /// peer or the end of an agent, and copies of a broadcast that was being sent at that time.
    #[boxed]
    pub async fn sweep_stranded_inboxes(&self) -> Result<()> {
        for StrandedInbox { peer, is_removed } in
            self.core.store.inboxes().stranded(limits::PAGE_MAX).await?
        {
            let why = if is_removed { PEER_REMOVED } else { AGENT_ENDED };
            end_deliveries(&self.core, &peer, why).await?;
        }
        Ok(())
    }

    #[boxed]
    pub async fn peer(&self, caller: &Caller, id: &str) -> Result<Peer> {
        let id = self.find_peer(caller, id, ResourceKind::Peer).await?;
        let row = self.core.store.peers().get(&id).await?;
        let row = row.ok_or_else(|| Error::not_found(ResourceKind::Peer, id.as_str()))?;
        Ok(row.shown_to(&Reader::from_caller(caller)))
    }

    /// The peer that is registered with a session. The session speaks for it.
    #[boxed]
    pub async fn peer_of_session(&self, session: &str) -> Result<Option<Peer>> {
        let store = &self.core.store;
        let read = async || Ok(store.peers().of_session(session).await?.map(|row| row.peer));
        Ok(self.session_peers.get(store, session, read).await?.as_ref().clone())
    }

    /// Like [`Self::peer_of_session`], if the caller may speak as that peer.
    #[boxed]
    pub async fn own_peer_of_session(
        &self,
        caller: &Caller,
        session: &str,
    ) -> Result<Option<Peer>> {
        let Some(peer) = self.peer_of_session(session).await? else { return Ok(None) };
        let Some(key) = caller.session() else { return Ok(Some(peer)) };
        let row = self.core.store.peers().get(&peer.peer_id).await?;
        Ok(row.filter(|row| row.is_for(key)).map(|row| row.peer))
    }

    /// A page of the peers that the caller may see, ordered by status, then by name. `is_living`
    /// leaves out offline peers and agents that were started for one task.
    pub async fn peers(
        &self,
        caller: &Caller,
        filter: &PeerFilter,
        is_living: bool,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Arc<Page<Peer>>> {
        let (reader, page) = (Reader::from_caller(caller), page.into());
        let read = || self.read_peers(&reader, filter, is_living, page);
        self.peer_pages.get(&self.core.store, (&reader, filter, is_living, page), read).await
    }

    async fn read_peers(
        &self,
        reader: &Reader,
        filter: &PeerFilter,
        is_living: bool,
        page: PageBounds<'_>,
    ) -> Result<Page<Peer>> {
        let read = async |after: Option<(i64, String, String)>, limit| {
            self.core.store.peers().list(reader, filter, is_living, after.as_ref(), limit).await
        };
        let key = |PeerRow { peer, .. }: &PeerRow| {
            (peer.status as i64, peer.display_name.clone(), peer.peer_id.clone())
        };
        let machines = self.core.machine_names().await?;
        let page = Page::read("peers", page, read, key).await?;
        Ok(page.map(|mut row| {
            let machine = row.machine_id.as_ref().and_then(|id| machines.get(id));
            row.peer.machine = machine.cloned();
            row.shown_to(reader)
        }))
    }

    /// Marks silent peers idle while their process lives, else offline. A peer whose process has
    /// ended is offline at once. Returns the most time until the next sweep.
    #[boxed]
    pub async fn sweep_peers(&self) -> Result<Duration> {
        let now = self.core.now();
        let timeout = self.core.tuning.peer_timeout;
        for row in self.core.store.peers().stale(now.minus(timeout), now).await? {
            if self.is_hosted(&row).await? {
                // The agent's host reports its status, however long it is silent.
                continue;
            }
            let lasts = now.since(row.peer.last_seen);
            if lasts >= timeout && self.store_last_call(&row).await? {
                // The next sweep decides by the time of that call.
                continue;
            }
            let process = row.process();
            if let Some(gone) = process.as_ref().filter(|process| self.core.is_gone(process)) {
                self.process_ended(row.peer.peer_id, gone.process.clone()).await?;
                continue;
            }
            if row.peer.status == PeerStatus::Unreachable && process.is_some() {
                self.note_return(row.peer.peer_id).await?;
                continue;
            }
            let alive = process.is_some()
                || row.peer.pid.is_some_and(process_list::is_running)
                || self.has_open_session(row.peer.session_id.as_deref(), now).await?;
            let silence = move |row: &PeerRow, now: Timestamp| {
                let lasts = now.since(row.peer.last_seen);
                let is_calling = !row.open_calls.is_empty() && lasts < limits::OPEN_CALL;
                let is_limited = row.peer.is_limited();
                PeerSilence { lasts, timeout, is_alive: alive, is_calling, is_limited }
            };
            let lasts = now.since(row.peer.last_seen);
            let is_for_long = lasts >= limits::SHARED_PROCESS_SESSION && process.is_some();
            let is_unchanged = row.peer.status.after_silence(silence(&row, now)).is_none();
            let Peer { peer_id, last_seen, .. } = row.peer;
            let is_left =
                is_for_long && self.core.store.peers().shares_its_process(&peer_id).await?;
            if last_seen <= now && is_unchanged && !is_left {
                // No change while the peer's process or session lives.
                continue;
            }
            let job = self.core.store.write(job!(|tx| {
                let Some(mut row) = tx.peers().get(&peer_id).await? else { return Ok(()) };
                if row.peer.last_seen != last_seen {
                    return Ok(());
                }
                if row.peer.last_seen > tx.now() {
                    // The clock was set back. Silence counts from now, or it would never end.
                    row.peer.last_seen = tx.now();
                    return tx.peers().touch(&row.peer).await;
                }
                let next = match row.peer.status.after_silence(silence(&row, tx.now())) {
                    _ if is_left => PeerStatus::Offline,
                    Some(next) => next,
                    None => return Ok(()),
                };
                if !row.open_calls.is_empty() {
                    tx.peers().set_open_calls(&peer_id, &OpenCalls::default()).await?;
                }
                set_status(tx, &mut row.peer, next, "silent").await
            }));
            job.await?;
        }
        let pause = limits::PEER_CHECK.min(timeout / 4);
        let next = self.core.store.peers().longest_silence().await?;
        let due = next.map(|at| at.plus(timeout).since(self.core.now()) + Duration::from_millis(1));
        Ok(due.map_or(pause, |due| due.min(pause)).max(Duration::from_millis(10)))
    }

    /// Notes that the process of a peer has ended: the peer becomes offline and its session in the
    /// journal ends, so that the session's open record becomes an orphan.
    async fn process_ended(&self, peer_id: PeerId, gone: ProcessIdentity) -> Result<()> {
        let write = self.core.store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&peer_id).await? else { return Ok(()) };
            if !row.is_in(&gone) {
                return Ok(());
            }
            tx.peers().forget_process(&peer_id).await?;
            set_status(tx, &mut row.peer, PeerStatus::Offline, PROCESS_GONE).await?;
            match given(row.peer.session_id.as_deref()) {
                Some(session) => end_left(tx, &peer_id, session, PROCESS_GONE).await,
                None => Ok(()),
            }
        }));
        Ok(write.await?)
    }

    async fn note_return(&self, peer_id: PeerId) -> Result<()> {
        let write = self.core.store.write(job!(|tx| {
            let Some(mut row) = tx.peers().get(&peer_id).await? else { return Ok(()) };
            if row.peer.status != PeerStatus::Unreachable {
                return Ok(());
            }
            let now = tx.now();
            set_reach(tx, &mut row.peer, PeerStatus::Idle, now, "its machine is back").await
        }));
        Ok(write.await?)
    }

    async fn is_hosted(&self, row: &PeerRow) -> Result<bool, StoreError> {
        let Some(key) = row.agent_key() else { return Ok(false) };
        let agent = self.core.store.agents().of_key(key).await?;
        Ok(agent.is_some_and(|agent| agent.ended_at.is_none()))
    }

    /// Whether the session of a peer is open in the journal and not stale, or has an MCP connection
    /// that is open or was open a moment ago.
    async fn has_open_session(&self, session: Option<&str>, now: Timestamp) -> Result<bool> {
        let Some(session) = given(session) else { return Ok(false) };
        let (connected, stale) =
            (now.minus(limits::MCP_SESSION_OPEN), now.minus(limits::SESSION_STALE));
        let journal = self.core.store.sessions().get(session).await?;
        Ok(journal.is_some_and(|it| it.ended_at.is_none() && it.last_seen_at >= stale)
            || self.core.store.mcp().is_session_open(session, connected).await?)
    }
}

/// The peer with the identity of a registration, whose backend has either of its names.
async fn known_peer(
    tx: &mut WriteTx,
    caller: &Caller,
    input: &RegisterInput,
) -> Result<Option<PeerRow>, StoreError> {
    let names = backend_names(&input.backend);
    let other = if names.0 == input.backend { names.1 } else { names.0 };
    let session_id = input.session_id.as_deref().unwrap_or_default();
    let path = input.path.as_deref().unwrap_or_default();
    let (pane, owner) = (input.tmux_pane.as_deref().unwrap_or_default(), caller.session());
    let known = tx.peers().by_identity(&input.backend, session_id, path, pane, owner).await?;
    if known.is_some() || other == input.backend {
        return Ok(known);
    }
    tx.peers().by_identity(other, session_id, path, pane, owner).await
}

/// Only the operator registers people, and peers with a reserved name, such as `user`.
fn check_rank(caller: &Caller, input: &RegisterInput) -> Result<()> {
    if caller.is_operator() {
        return Ok(());
    }
    if input.role == Some(PeerRole::Human) {
        return Err(Error::not_yours("role", "human is the operator's to give"));
    }
    check::name("display_name", &input.display_name)?;
    check::name("backend", &input.backend)?;
    // The name that a session gives itself must be displayed as written. Its backend is one word,
    // as the stamp of its messages names it.
    if changes_direction(&input.display_name) {
        let why = "must not have characters that change the direction of text";
        return Err(Error::invalid("display_name", why));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if !input.backend.chars().all(is_part) {
        let why = "must be one word of letters, digits and -._, such as codex or claude-code";
        return Err(Error::invalid("backend", why));
    }
    Ok(())
}

fn check_input(input: &RegisterInput) -> Result<()> {
    check::not_blank("display_name", &input.display_name)?;
    check::not_blank("backend", &input.backend)?;
    for (field, text) in [
        ("display_name", Some(&input.display_name)),
        ("backend", Some(&input.backend)),
        ("path", input.path.as_ref()),
        ("circle", input.circle.as_ref()),
        ("session_id", input.session_id.as_ref()),
        ("tmux_pane", input.tmux_pane.as_ref()),
    ] {
        check::short(field, text.map(String::as_str))?;
    }
    if let Some(circle) = &input.circle {
        check::not_blank("circle", circle)?;
    }
    if input.pid == Some(0) {
        return Err(Error::invalid("pid", "must be the id of a process"));
    }
    let Some(metadata) = &input.metadata else { return Ok(()) };
    check_entries(metadata.len())?;
    for (key, value) in metadata {
        check::short("metadata", Some(key))?;
        check::short("metadata", value.as_deref())?;
    }
    Ok(())
}

fn check_entries(count: usize) -> Result<()> {
    let most = limits::METADATA_ENTRIES;
    if count > most {
        return Err(Error::invalid("metadata", format!("must have at most {most} entries")));
    }
    Ok(())
}

pub(in crate::service) async fn create(
    tx: &mut WriteTx,
    caller: &Caller,
    peer_id: PeerId,
    input: RegisterInput,
    project: Option<String>,
    process: Option<ProcessIdentity>,
) -> Result<Peer> {
    let now = tx.now();
    let metadata = input
        .metadata
        .map(|given| given.into_iter().filter_map(|(key, value)| Some((key, value?))).collect());
    let owner = caller.session().map(str::to_owned);
    let peer = Peer {
        peer_id,
        display_name: input.display_name,
        path: given(input.path),
        backend: input.backend,
        circle: input.circle.unwrap_or_else(|| "default".to_owned()),
        role: input.role.unwrap_or(PeerRole::Agent),
        status: PeerStatus::Online,
        evidence: StatusEvidence::Process,
        since: now,
        waiting_for: None,
        session_id: given(input.session_id),
        agent: owner.clone().filter(|owner| is_agent_key(owner)),
        tmux_pane: given(input.tmux_pane),
        pid: input.pid,
        machine: None,
        metadata,
        registered_at: now,
        last_seen: now,
    };
    let row = PeerRow {
        owner,
        project,
        process_started: process.map(|process| process.started),
        machine_id: peer.pid.map(|_| tx.machine_id().clone()),
        open_calls: OpenCalls::default(),
        peer,
    };
    tx.peers().put(&row).await?;
    let visibility = StreamVisibility::private(&row.principal());
    tx.streams().open(&StreamName::new("peer", &row.peer.peer_id), &visibility).await?;
    note_peer(tx, "peer.registered", &row.peer).await?;
    Ok(row.peer)
}

/// Updates a peer from its registration. Its status stays.
pub(in crate::service) async fn update(
    tx: &mut WriteTx,
    caller: &Caller,
    known: PeerRow,
    input: RegisterInput,
    project: Option<String>,
    process: Option<ProcessIdentity>,
) -> Result<Peer> {
    let mut row = known.clone();
    if let Some(session) = caller.session() {
        if !is_own(tx, caller, &row).await? {
            let why = "a peer with this identity belongs to another session";
            return Err(Error::Conflict(why.to_owned()));
        }
        row.owner = Some(session.to_owned());
        row.project = project;
    } else if row.owner.is_none() {
        row.project = project.or(row.project);
    }
    if input.pid.is_some() {
        row.process_started = process.map(|process| process.started);
        row.machine_id = Some(tx.machine_id().clone());
    }
    // Hooks give the name that peers have; a model may have given the other one.
    if row.peer.backend != input.backend && backend_names(&row.peer.backend).0 == input.backend {
        let session = row.peer.session_id.as_deref().unwrap_or_default();
        let path = row.peer.path.as_deref().unwrap_or_default();
        let pane = row.peer.tmux_pane.as_deref().unwrap_or_default();
        let owner = row.owner.as_deref();
        let other = tx.peers().by_identity(&input.backend, session, path, pane, owner).await?;
        if other.is_none() {
            row.peer.backend.clone_from(&input.backend);
        }
    }
    let peer = &mut row.peer;
    peer.display_name = input.display_name;
    peer.path = given(input.path).or_else(|| peer.path.take());
    peer.tmux_pane = given(input.tmux_pane).or_else(|| peer.tmux_pane.take());
    peer.circle = input.circle.unwrap_or_else(|| peer.circle.clone());
    peer.role = input.role.unwrap_or(peer.role);
    peer.pid = input.pid.or(peer.pid);
    if let Some(given) = input.metadata {
        let metadata = peer.metadata.get_or_insert_default();
        for (key, value) in given {
            match value {
                Some(value) => metadata.insert(key, value),
                None => metadata.remove(&key),
            };
        }
        check_entries(metadata.len())?;
    }
    let changed = row != known;
    row.peer.last_seen = tx.now();
    tx.peers().put(&row).await?;
    if changed {
        note_peer(tx, "peer.updated", &row.peer).await?;
    }
    Ok(row.peer)
}

/// Whether a peer belongs to this session token: it was registered with the token, or belongs to
/// one of the token's sessions.
async fn is_own(tx: &mut WriteTx, caller: &Caller, row: &PeerRow) -> Result<bool, StoreError> {
    let is_theirs = row.principal() == caller.principal();
    let Some(session) = row.peer.session_id.as_deref() else { return Ok(is_theirs) };
    if is_theirs || row.owner.is_some() {
        return Ok(is_theirs);
    }
    let owner = tx.sessions().owner(session).await?.and_then(|row| row.owner);
    Ok(owner == Some(caller.principal()))
}

/// Removes a peer from the list, with an event. [`end_deliveries`] ends the deliveries to it.
pub(super) async fn remove(tx: &mut WriteTx, peer: &Peer) -> Result<(), StoreError> {
    tx.peers().delete(&peer.peer_id).await?;
    note_peer(tx, "peer.removed", peer).await
}

fn given<T: AsRef<str>>(text: Option<T>) -> Option<T> {
    text.filter(|text| !text.as_ref().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{DeliveryState, NewMessage};
    use svc_store::McpTransport;
    use svc_wire::mcp::Revision;

    use super::*;
    use crate::service::{Services, mcp::NewMcpSession, team::NewSession, testing::opened};

    fn input(name: &str) -> RegisterInput {
        let input = json!({ "display_name": name, "backend": "test", "path": name });
        serde_json::from_value(input).unwrap()
    }

    fn message() -> NewMessage {
        serde_json::from_value(json!({ "text": "hello" })).unwrap()
    }

    #[tokio::test]
    async fn peer_of_claude_code_has_its_name_once_a_hook_gives_it() {
        let (_test, services) = opened().await;
        for (given, expected) in
            [("claude", "claude"), ("claude-code", "claude-code"), ("claude", "claude-code")]
        {
            let input = json!({ "display_name": "ada", "backend": given, "session_id": "s" });
            let input = serde_json::from_value(input).unwrap();
            let peer = services.team.register_peer(&Caller::Operator, None, input).await.unwrap();
            assert_eq!(peer.backend, expected);
        }
        let (test, services) = opened().await;
        let mut ids = Vec::new();
        for given in ["my-agent", "claude-code", "claude"] {
            let input = json!({ "display_name": "ada", "backend": given, "session_id": "s" });
            let input = serde_json::from_value(input).unwrap();
            let peer = services.team.register_peer(&Caller::Operator, None, input).await.unwrap();
            ids.push((peer.peer_id, peer.backend));
        }
        assert_eq!(ids[1], ids[2], "{ids:?}");
        // A hook registers the session's latest peer, whatever its backend.
        for known in ["my-agent", "claude"] {
            let mut row = test.store.peers().get(&ids[0].0).await.unwrap().unwrap();
            row.peer.backend = known.to_owned();
            let input = RegisterInput { backend: "claude-code".to_owned(), ..input("ada") };
            let job =
                services.team.core.store.write(job!(|tx| {
                    update(tx, &Caller::Operator, row, input, None, None).await
                }));
            assert_eq!(job.await.unwrap().backend, known, "another peer has that name");
        }
    }

    async fn start_session(services: &Services, id: &str) {
        let new =
            NewSession { session_id: Some(id.to_owned()), cwd: None, source: None, client: None };
        services.team.start_session(&Caller::Operator, None, new).await.unwrap();
    }

    async fn swept_status(services: &Services, id: &PeerId) -> PeerStatus {
        services.team.sweep_peers().await.unwrap();
        services.team.peer(&Caller::Operator, id.as_str()).await.unwrap().status
    }

    /// Sends more messages than two write jobs may end. Returns their ids.
    async fn fill_inbox(services: &Services, peer: &Peer) -> Vec<String> {
        let mut ids = Vec::new();
        for _ in 0..=2 * limits::ENDED_MESSAGES_PER_JOB {
            let sent =
                services.team.send_message(&Caller::Operator, peer.peer_id.as_str(), message());
            ids.push(sent.await.unwrap().id.as_str().to_owned());
        }
        ids
    }

    async fn waiting(services: &Services, ids: &[String]) -> usize {
        let mut waiting = 0;
        for id in ids {
            let message = services.team.message(&Caller::Operator, id).await.unwrap().message;
            waiting += usize::from(message.state != DeliveryState::Undeliverable);
        }
        waiting
    }

    #[tokio::test]
    async fn removing_a_peer_ends_its_full_inbox_in_bounded_jobs() {
        let (test, services) = opened().await;
        let operator = Caller::Operator;
        let peer = services.team.register_peer(&operator, None, input("a")).await.unwrap();
        let ids = fill_inbox(&services, &peer).await;
        let before = test.store.stats().jobs;
        services.team.remove_peer(&operator, peer.peer_id.as_str()).await.unwrap();
        assert_eq!(test.store.stats().jobs - before, 1 + 3, "the removal, and the messages");
        assert_eq!(waiting(&services, &ids).await, 0);
        let stream = StreamName::new("peer", &peer.peer_id);
        let head = test.store.streams().view(&stream).await.unwrap().unwrap().head;
        let events = i64::from(2 * (2 * limits::ENDED_MESSAGES_PER_JOB + 1));
        assert_eq!(head, events, "queued and undeliverable, each once");
    }

    /// The state after a crash between the removal of a peer and the end of its deliveries.
    #[tokio::test]
    async fn the_sweep_ends_only_deliveries_to_removed_peers() {
        let (test, services) = opened().await;
        let operator = Caller::Operator;
        let mut inboxes = Vec::new();
        for name in ["a", "b", "c"] {
            let peer = services.team.register_peer(&operator, None, input(name)).await.unwrap();
            let ids = fill_inbox(&services, &peer).await;
            inboxes.push((peer, ids));
        }
        let gone = [inboxes[0].0.peer_id.clone(), inboxes[2].0.peer_id.clone()];
        let job = test.store.write(job!(|tx| {
            tx.peers().delete(&gone[0]).await?;
            tx.peers().delete(&gone[1]).await
        }));
        let deleted: Result<(), StoreError> = job.await;
        deleted.unwrap();
        let left = async || {
            let mut left = Vec::new();
            for (_, ids) in &inboxes {
                left.push(waiting(&services, ids).await);
            }
            left
        };
        assert_eq!(left().await, [201, 201, 201]);
        services.team.sweep_stranded_inboxes().await.unwrap();
        assert_eq!(left().await, [0, 201, 0]);
        let before = test.store.stats().jobs;
        services.team.sweep_stranded_inboxes().await.unwrap();
        assert_eq!(test.store.stats().jobs, before, "nothing to write");
    }

    /// After the clock is set back, silence counts from the new time and leases do not count;
    /// nothing waits until the clock has caught up.
    #[tokio::test]
    async fn a_clock_that_is_set_back_holds_up_neither_silence_nor_leases() {
        let (test, services) = opened().await;
        let noon = Timestamp::from_millis(1_800_000_000_000);
        test.clock.set(noon);
        let caller = Caller::Operator;
        let peer = services.team.register_peer(&caller, None, input("a")).await.unwrap();
        let id = peer.peer_id.as_str();
        services.team.send_message(&caller, id, message()).await.unwrap();
        let take = async || {
            let page = PageBounds::new(None, None);
            services.team.take_messages(&caller, id, page).await.unwrap().items.len()
        };
        assert_eq!(take().await, 1);
        assert_eq!(take().await, 0);
        let before = test.store.events().bounds().await.unwrap().1;

        test.clock.set(noon.minus(Duration::from_hours(3)));
        services.team.sweep_peers().await.unwrap();
        assert_eq!(services.team.peer(&caller, id).await.unwrap().status, PeerStatus::Online);
        assert_eq!(take().await, 1);
        test.clock.advance(Duration::from_secs(61));
        services.team.sweep_peers().await.unwrap();
        assert_eq!(services.team.peer(&caller, id).await.unwrap().status, PeerStatus::Offline);
        assert_eq!(take().await, 1);
        let after = test.store.events().bounds().await.unwrap().1;
        assert_eq!(after, before + 1, "positions go on; one event, peer.status");
    }

    #[tokio::test]
    async fn an_open_mcp_session_keeps_its_peer_idle() {
        let (test, services) = opened().await;
        let new = NewMcpSession {
            transport: McpTransport::Http,
            revision: Revision::V2025_11_25,
            client: None,
            capabilities: "{}".to_owned(),
        };
        let session =
            services.mcp.open_mcp_session(&Caller::Operator, new).await.unwrap().session_id;
        let (operator, session_id) = (Caller::Operator, Some(session.as_str()));
        let registered = services.team.register_peer(&operator, session_id, input("a"));
        let id = registered.await.unwrap().peer_id;
        let status = async || swept_status(&services, &id).await;
        test.clock.advance(Duration::from_secs(61));
        assert_eq!(status().await, PeerStatus::Idle);
        services.mcp.touch_mcp_session(&session).await.unwrap();
        test.clock.advance(Duration::from_secs(119));
        assert_eq!(status().await, PeerStatus::Idle);
        assert_eq!(
            services.team.sweep_peers().await.unwrap(),
            limits::PEER_CHECK,
            "not at once again"
        );
        test.clock.advance(Duration::from_secs(2));
        assert_eq!(status().await, PeerStatus::Offline);
    }

    #[tokio::test]
    async fn an_open_session_of_the_journal_keeps_its_peer_idle() {
        let (test, services) = opened().await;
        let operator = Caller::Operator;
        start_session(&services, "s-1").await;
        let input = RegisterInput { session_id: Some("s-1".to_owned()), ..input("a") };
        let id = services.team.register_peer(&operator, None, input).await.unwrap().peer_id;
        let status = async || {
            let pause = services.team.sweep_peers().await.unwrap();
            assert_eq!(pause, limits::PEER_CHECK, "no sooner than it has to");
            services.team.peer(&Caller::Operator, id.as_str()).await.unwrap().status
        };
        test.clock.advance(limits::PEER_TIMEOUT);
        assert_eq!(status().await, PeerStatus::Idle);
        test.clock.advance(limits::SESSION_STALE.saturating_sub(limits::PEER_TIMEOUT));
        assert_eq!(status().await, PeerStatus::Idle);
        test.clock.advance(Duration::from_millis(1));
        assert_eq!(status().await, PeerStatus::Offline, "the session is stale");

        services.team.heartbeat(&operator, id.as_str(), None).await.unwrap();
        start_session(&services, "s-1").await;
        test.clock.advance(limits::PEER_TIMEOUT);
        assert_eq!(status().await, PeerStatus::Idle);
        let place = services.team.acting_session(&operator, Some("s-1"), None, None).await.unwrap();
        services.team.end_session(place, None).await.unwrap();
        assert_eq!(status().await, PeerStatus::Offline, "the session has ended");
    }

    /// A turn continues however long a tool runs, but not for ever.
    #[tokio::test]
    async fn a_silent_turn_goes_on_while_its_client_lives() {
        let (test, services) = opened().await;
        let operator = Caller::Operator;
        let input = RegisterInput { pid: Some(std::process::id()), ..input("a") };
        let id = services.team.register_peer(&operator, None, input).await.unwrap().peer_id;
        let busy = Some(ReportedStatus::Busy);
        services.team.heartbeat(&operator, id.as_str(), busy).await.unwrap();
        let status = async || swept_status(&services, &id).await;
        let set_calls = async |open: bool| {
            let id = id.clone();
            let write = test.store.write(job!(|tx| {
                let mut calls = OpenCalls::default();
                if open {
                    calls.begin("toolu_1");
                }
                tx.peers().set_open_calls(&id, &calls).await
            }));
            let written: Result<(), StoreError> = write.await;
            written.unwrap();
        };
        test.clock.advance(Duration::from_secs(61));
        assert_eq!(status().await, PeerStatus::Busy, "in one long thought");
        set_calls(true).await;
        test.clock.advance(Duration::from_hours(2));
        assert_eq!(status().await, PeerStatus::Busy, "in one long build");
        set_calls(false).await;
        assert_eq!(status().await, PeerStatus::Idle, "no call is open");
        services.team.heartbeat(&operator, id.as_str(), busy).await.unwrap();
        set_calls(true).await;
        test.clock.advance(limits::OPEN_CALL);
        assert_eq!(status().await, PeerStatus::Idle, "not for ever");
    }

    #[tokio::test]
    async fn a_shared_process_does_not_keep_a_silent_session_alive() {
        let (test, services) = opened().await;
        let operator = Caller::Operator;
        let register = async |session: &str| {
            start_session(&services, session).await;
            let input = RegisterInput {
                pid: Some(std::process::id()),
                session_id: Some(session.to_owned()),
                ..input(session)
            };
            services.team.register_peer(&operator, None, input).await.unwrap().peer_id
        };
        let status = async |id: &PeerId| swept_status(&services, id).await;
        let first = register("s-1").await;
        test.clock.advance(limits::SHARED_PROCESS_SESSION);
        assert_eq!(status(&first).await, PeerStatus::Idle, "the process is its own");
        let second = register("s-2").await;
        assert_eq!(status(&first).await, PeerStatus::Offline, "its terminal may be closed");
        assert_eq!(status(&second).await, PeerStatus::Online);
    }

    #[tokio::test]
    async fn the_next_sweep_comes_when_the_next_peer_is_due() {
        let (test, services) = opened().await;
        services.team.register_peer(&Caller::Operator, None, input("a")).await.unwrap();
        let pause = services.team.sweep_peers().await.unwrap();
        assert_eq!(pause, limits::PEER_CHECK);
        assert!(pause < Duration::from_secs(1), "the end of a process is seen within a second");
        test.clock.advance(Duration::from_millis(59_500));
        assert_eq!(services.team.sweep_peers().await.unwrap(), Duration::from_millis(501));
    }
}
