//! Peers: who takes part, and whether somebody is here.

use std::collections::BTreeMap;

use serde_json::Value;
use svc_model::{
    MachineId, OpenCalls, Peer, PeerFilter, PeerId, PeerRole, PeerStatus, Reader, StatusEvidence,
    Timestamp, WaitingFor, backend_names, is_agent_key, json_bytes,
};

use super::{PeerReads, PeerWrites};
use crate::{
    PageSize, PeerRow, Result, RowPage, boxed_methods,
    columns::{Columns, DirectRow, Fault, to_json},
    readers::Rows as _,
    statement::{change, changed, column, find_value, query, value},
};

impl DirectRow for PeerRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let mut peer = Peer {
            peer_id: columns.next("peer_id")?,
            display_name: columns.next("display_name")?,
            path: columns.non_empty("path")?,
            backend: columns.next("backend")?,
            circle: columns.next("circle")?,
            role: columns.next("role")?,
            status: columns.next("status")?,
            evidence: columns.next("evidence")?,
            since: columns.next("since")?,
            waiting_for: columns.json_if_any("waiting_for")?.and_then(wait_of),
            ..Peer::operator(Timestamp::default())
        };
        let open_calls = columns.json("open_calls")?;
        peer.session_id = columns.non_empty("session_id")?;
        peer.tmux_pane = columns.non_empty("tmux_pane")?;
        peer.pid = columns.next("pid")?;
        peer.metadata = columns.json_if_any("metadata")?.map(texts_of);
        let owner: Option<String> = columns.next("owner")?;
        peer.agent = owner.clone().filter(|owner| is_agent_key(owner));
        let project = columns.non_empty("project")?;
        let process_started = columns.next("process_started")?;
        let machine_id = columns.non_empty("machine_id")?.map(MachineId::from);
        peer.registered_at = columns.next("registered_at")?;
        peer.last_seen = columns.next("last_seen")?;
        Ok(Self { peer, owner, project, process_started, machine_id, open_calls })
    }
}

/// What an earlier version stored in another form is not shown: the next event replaces it.
fn wait_of(stored: Value) -> Option<WaitingFor> {
    serde_json::from_value(stored).ok()
}

/// Rows of schema 36 may have values that are no texts: such a value becomes its JSON text.
fn texts_of(metadata: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let text_of = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    metadata.into_iter().map(|(key, value)| (key, text_of(value))).collect()
}

macro_rules! peers {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select peer_id as "peer_id!", display_name, path, backend, circle, role as "role: PeerRole",
                status as "status: PeerStatus", evidence as "evidence!: StatusEvidence", since as "since!: Timestamp", waiting_for, open_calls, session_id, tmux_pane, pid, metadata, owner as "owner?", project as "project!", process_started, machine_id as "machine_id!",
                registered_at as "registered_at!: Timestamp", last_seen as "last_seen!: Timestamp"
            from peer "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl PeerWrites<'_> {
    /// The client's permission mode, in the client's own words: whether it asks its person before
    /// it uses tools.
    pub async fn permission_mode(&mut self, id: &PeerId) -> Result<Option<String>> {
        Ok(find_value!(self.tx.direct, "select permission_mode from peer where peer_id = ?"; id)
            .flatten())
    }

    pub async fn note_permission_mode(&mut self, id: &PeerId, mode: &str) -> Result<()> {
        change!(self.tx,
            "update peer set permission_mode = ?1 where peer_id = ?2 and permission_mode is not ?1";
            mode, id);
        Ok(())
    }

    pub async fn get(&mut self, id: &PeerId) -> Result<Option<PeerRow>> {
        Ok(peers!(one(), self.tx.direct, "where peer_id = ?"; id))
    }

    /// The peer with this identity: the session if there is one, else the location. An empty value
    /// matches only an empty value. Of a location, the owner's own peer comes first; the operator
    /// (no owner) gets only its own.
    pub async fn by_identity(
        &mut self,
        backend: &str,
        session_id: &str,
        path: &str,
        tmux_pane: &str,
        owner: Option<&str>,
    ) -> Result<Option<PeerRow>> {
        let owner = owner.unwrap_or_default();
        let raw = if session_id.is_empty() {
            peers!(one(), self.tx.direct,
                "where backend = ?1 and path = ?2 and tmux_pane = ?3 and session_id = '' and peer_id <> 'operator'
                    and coalesce(owner, '') in (?4, iif(?4 = '', '', coalesce(owner, '')))
                order by coalesce(owner, '') = ?4 desc limit 1"; backend, path, tmux_pane, owner)
        } else {
            peers!(one(), self.tx.direct,
                "where backend = ? and session_id = ? and session_id <> ''"; backend, session_id)
        };
        Ok(raw)
    }

    /// The peer that stands for a session: registered with that session id, or by its own
    /// principal; of several, the latest. A session whose id merely equals a principal's key does
    /// not get that principal's peer.
    pub async fn of_session(&mut self, session: &str) -> Result<Option<PeerRow>> {
        Ok(peers!(one(), self.tx.direct,
            "where owner = ?1 and not exists (
                    select 1 from session s where s.session_id = ?1 and s.created_by not in ('operator', 'session:' || ?1)
                ) or session_id = ?1 collate nocase and session_id = ?1
            order by owner = ?1 desc, registered_at desc, peer_id desc limit 1"; session))
    }

    /// Whether a peer of another owner stands for a session whose id differs from `session` only in
    /// case. Keys are compared without case, so both would have the same key.
    pub async fn is_session_of_another_in_other_case(
        &mut self,
        session: &str,
        owner: &str,
    ) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from peer
                where session_id = ?1 collate nocase and session_id <> ?1
                    and coalesce(owner, '') <> ?2) as "taken!: bool""#; session, owner))
    }

    /// The peer that the holder of a key speaks as: the one that the holder registered, or that the
    /// operator registered for it; of several, the latest.
    pub async fn of_key(&mut self, key: &str) -> Result<Option<PeerRow>> {
        Ok(peers!(one(), self.tx.direct,
            "where owner = ?1 or owner is null and session_id = ?1 collate nocase and session_id = ?1
            order by owner = ?1 desc, registered_at desc, peer_id desc limit 1"; key))
    }

    /// Peers of open sessions of this client which hooks reported and which no hosted agent has, at
    /// most `limit`: free ones first, then the latest seen.
    pub async fn attended(&mut self, backend: &str, limit: u32) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.tx.direct,
            "where backend = ? and session_id <> '' and status <> 'offline'
                and coalesce(owner, '') not in (select session_key from agent)
                and exists (select 1 from session s where s.session_id = peer.session_id and s.ended_at is null)
            order by status in ('busy', 'waiting'), last_seen desc, peer_id limit ?";
            backend, limit))
    }

    /// Peers that the operator acts as, the latest seen first.
    pub async fn of_operator(&mut self, limit: u32) -> Result<Vec<PeerId>> {
        Ok(column!(self.tx.direct,
            r#"select peer_id as "peer_id!: PeerId" from peer where owner is null and session_id = ''
            order by last_seen desc limit ?"#; limit))
    }

    pub async fn put(&mut self, row: &PeerRow) -> Result<()> {
        let peer = &row.peer;
        let id = peer.peer_id.as_str();
        let path = peer.path.as_deref().unwrap_or_default();
        let session_id = peer.session_id.as_deref().unwrap_or_default();
        let tmux_pane = peer.tmux_pane.as_deref().unwrap_or_default();
        let project = row.project.as_deref().unwrap_or_default();
        let metadata = peer
            .metadata
            .as_ref()
            .map(|map| serde_json::to_string(map).expect("strings have a JSON form"));
        let waiting_for = peer.waiting_for.as_ref().map(to_json);
        let open_calls = to_json(&row.open_calls);
        let machine_id = row.machine_id.as_ref().map_or("", MachineId::as_str);
        change!(self.tx,
            "insert into peer (peer_id, display_name, path, backend, circle, role, status, session_id, tmux_pane, \
                pid, metadata, owner, registered_at, last_seen, project, process_started, since, waiting_for, open_calls, evidence, \
                machine_id) \
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21) \
            on conflict (peer_id) do update set \
                display_name = ?2, path = ?3, backend = ?4, circle = ?5, role = ?6, status = ?7, session_id = ?8, \
                tmux_pane = ?9, pid = ?10, metadata = ?11, owner = ?12, last_seen = ?14, \
                project = ?15, process_started = ?16, since = ?17, waiting_for = ?18, open_calls = ?19, evidence = ?20, \
                machine_id = ?21";
            id, peer.display_name, path, peer.backend, peer.circle, peer.role, peer.status,
            session_id, tmux_pane, peer.pid, metadata, row.owner, peer.registered_at,
            peer.last_seen, project, row.process_started, peer.since, waiting_for, open_calls,
            peer.evidence, machine_id);
        Ok(())
    }

    /// Stores the fields that heartbeats and time change: state and last contact.
    pub async fn touch(&mut self, peer: &Peer) -> Result<()> {
        let id = peer.peer_id.as_str();
        let waiting_for = peer.waiting_for.as_ref().map(to_json);
        let done = change!(self.tx,
            "update peer set status = ?, evidence = ?, since = ?, waiting_for = ?, last_seen = ? where peer_id = ?";
            peer.status, peer.evidence, peer.since, waiting_for, peer.last_seen, id);
        changed(done, "peer", id)
    }

    pub async fn set_open_calls(&mut self, id: &PeerId, calls: &OpenCalls) -> Result<()> {
        let (id, calls) = (id.as_str(), to_json(calls));
        let done = change!(self.tx, "update peer set open_calls = ? where peer_id = ?"; calls, id);
        changed(done, "peer", id)
    }

    pub async fn forget_process(&mut self, id: &PeerId) -> Result<()> {
        let done = change!(self.tx,
            "update peer set pid = null, process_started = null, machine_id = '' where peer_id = ?";
            id);
        changed(done, "peer", id)
    }

    pub async fn delete(&mut self, id: &PeerId) -> Result<()> {
        let done = change!(self.tx, "delete from peer where peer_id = ?"; id);
        changed(done, "peer", id)
    }

    /// The number of peers that a broadcast of `from` reaches, without those that already have a
    /// message with this key. Leaves out the same peers as [`Self::ids`].
    pub async fn count_receivers(
        &mut self,
        circle: Option<&str>,
        from: &str,
        key: Option<&str>,
    ) -> Result<u64> {
        let receivers = value!(self.tx.direct,
            r#"select count(*) as "receivers!: i64" from peer
            where (?1 is null or circle = ?1) and peer_id <> ?2
                and not exists (
                    select 1 from message where from_peer = ?2 and to_peer = peer.peer_id and idempotency_key = ?3
                )
                and not (
                    owner like 'agent:%' and exists (select 1 from agent ended where ended.session_key = owner)
                    and not exists (
                        select 1 from agent living where living.session_key = owner and living.ended_at is null
                    )
                )"#; circle, from, key);
        Ok(u64::try_from(receivers).unwrap_or(0))
    }

    /// Ids of peers, or of those in `circle`, sorted, each with its status: those after `after`, at
    /// most `limit`. Leaves out peers of ended agents, because their messages reach no later agent
    /// of the same name.
    pub async fn ids(
        &mut self,
        circle: Option<&str>,
        after: Option<&PeerId>,
        limit: u32,
    ) -> Result<Vec<(PeerId, PeerStatus)>> {
        let after = after.map_or("", PeerId::as_str);
        Ok(query!(all(), self.tx.direct,
            r#"select peer_id as "peer_id!", status as "status: PeerStatus" from peer
            where (?1 is null or circle = ?1) and peer_id > ?2
                and not (
                    owner like 'agent:%' and exists (select 1 from agent ended where ended.session_key = owner)
                    and not exists (
                        select 1 from agent living where living.session_key = owner and living.ended_at is null
                    )
                )
            order by peer_id limit ?3"#; circle, after, limit))
    }

    /// Whether a peer is that of a live hosted agent, whose messages become turns.
    pub async fn is_hosted(&mut self, peer: &PeerId) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (
                select 1 from peer p join agent a on a.session_key = p.owner and a.ended_at is null
                where p.peer_id = ? and p.owner like 'agent:%'
            ) as "is!: bool""#; peer))
    }
}

#[boxed_methods]
impl PeerReads<'_> {
    pub async fn get(&self, id: &PeerId) -> Result<Option<PeerRow>> {
        Ok(peers!(one(), self.store.near(), "where peer_id = ?"; id))
    }

    pub async fn of_session(&self, session: &str) -> Result<Option<PeerRow>> {
        Ok(peers!(one(), self.store.near(),
            "where owner = ?1 and not exists (
                    select 1 from session s where s.session_id = ?1 and s.created_by not in ('operator', 'session:' || ?1)
                ) or session_id = ?1 collate nocase and session_id = ?1
            order by owner = ?1 desc, registered_at desc, peer_id desc limit 1"; session))
    }

    /// The peer that the holder of a key speaks as: the one that the holder registered, or that the
    /// operator registered for it; of several, the latest.
    pub async fn of_key(&self, key: &str) -> Result<Option<PeerRow>> {
        Ok(peers!(one(), self.store.near(),
            "where owner = ?1 or owner is null and session_id = ?1 collate nocase and session_id = ?1
            order by owner = ?1 desc, registered_at desc, peer_id desc limit 1"; key))
    }

    /// The session of a client's process, among those whose peers the operator registered; of
    /// several, the latest seen.
    pub async fn session_of_process(&self, pid: u32) -> Result<Option<String>> {
        Ok(find_value!(self.store.pool(),
            "select session_id from peer where pid = ? and machine_id = ? and owner is null and session_id <> ''
                and status <> 'offline'
            order by last_seen desc, peer_id desc limit 1"; pid, self.store.machine_id()))
    }

    /// Peers with exactly this name, by status, of each status the latest registered first, at most
    /// `limit`. The statuses are named, so that an index finds the name.
    pub async fn named(&self, name: &str, limit: u32) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.pool(),
            "where status_rank in (0, 1, 2, 3, 4, 5) and display_name = ?
            order by status_rank, registered_at desc, peer_id desc limit ?";
            name, limit))
    }

    /// Peers of sessions that the daemon does not host, the latest seen first, after the cursor
    /// `before`, at most `limit`.
    pub async fn of_sessions(
        &self,
        before: Option<(Timestamp, &PeerId)>,
        limit: u32,
    ) -> Result<Vec<PeerRow>> {
        let (at, id) = before.map_or((i64::MAX, ""), |(at, id)| (at.as_millis(), id.as_str()));
        Ok(peers!(all(), self.store.pool(),
            "where role <> 'human' and (session_id <> '' or owner is not null)
                and (last_seen, peer_id) < (?1, ?2)
                and not exists (select 1 from agent a where a.session_key = peer.owner)
            order by last_seen desc, peer_id desc limit ?3"; at, id, limit))
    }

    /// Peers whose ids begin with `prefix`, in list order, at most `limit`.
    pub async fn with_prefix(&self, prefix: &str, limit: u32) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.pool(),
            "where peer_id >= ?1 and peer_id < ?1 || '~' order by status_rank, display_name, peer_id limit ?2";
            prefix, limit))
    }

    /// Peers with this session id, ignoring case, and a peer without a session whose own id it is;
    /// in list order, at most `limit`.
    pub async fn of_session_key(&self, session_id: &str, limit: u32) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.near(),
            "where session_id = ?1 collate nocase or (session_id = '' and peer_id = ?1 collate nocase)
            order by status_rank, display_name, peer_id limit ?2"; session_id, limit))
    }

    /// Peers in list order (state, name, id) after the cursor `after`. A path filter matches only
    /// peers whose path the reader may see.
    pub async fn list(
        &self,
        reader: &Reader,
        filter: &PeerFilter,
        is_living: bool,
        after: Option<&(i64, String, String)>,
        size: PageSize,
    ) -> Result<RowPage<PeerRow>> {
        let limit = size.limit();
        let (rank, name, id) = match after {
            Some((rank, name, id)) => (*rank, name.as_str(), id.as_str()),
            None => (-1, "", ""),
        };
        // A backend has either of its names.
        let (backend, other) = filter.backend.as_deref().map(backend_names).unzip();
        Ok(peers!(page(size, |row: &PeerRow| json_bytes(&row.peer)), self.store.pool(),
            "where (?1 is null or status = ?1) and (?2 is null or backend in (?2, ?12)) and (?3 is null or circle = ?3)
                and (?4 is null or path = ?4 and (?9 is null or owner = ?9 or session_id = ?9 or project = ?10))
                and (status_rank, display_name, peer_id) > (?5, ?6, ?7)
                and (not ?11 or status <> 'offline' and not exists (
                    select 1 from agent own where own.session_key = peer.owner and own.task_id is not null
                ))
            order by status_rank, display_name, peer_id limit ?8";
            filter.status, backend, filter.circle, filter.path, rank, name, id, limit,
            reader.key(), reader.project(), is_living, other))
    }

    /// Peers whose state may have to change: silent since `before`, last seen after `now` (the
    /// clock was set back), or in a process that may have exited. Leaves out those in processes of
    /// another machine, whose state only that machine's daemon knows.
    pub async fn stale(&self, before: Timestamp, now: Timestamp) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.pool(),
            "where status <> 'offline' and machine_id in ('', ?3)
                and (last_seen <= ?1 or last_seen > ?2 or process_started is not null)";
            before, now, self.store.machine_id()))
    }

    /// Peers of this client on this machine whose process is known and that are reachable.
    pub async fn in_processes(&self, backend: &str) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.pool(),
            "where status <> 'offline' and status <> 'unreachable' and backend = ?
                and process_started is not null and session_id <> '' and machine_id = ?";
            backend, self.store.machine_id()))
    }

    /// Like [`Self::in_processes`], only those in the state `waiting`.
    pub async fn waiting_in_processes(&self, backend: &str) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.pool(),
            "where status = 'waiting' and backend = ? and process_started is not null and session_id <> ''
                and machine_id = ?"; backend, self.store.machine_id()))
    }

    /// Peers of processes and of live hosted agents on a machine, unless they are offline.
    pub async fn on_machine(&self, machine: &MachineId) -> Result<Vec<PeerRow>> {
        Ok(peers!(all(), self.store.pool(),
            "where status <> 'offline' and (machine_id = ?1 or owner in (
                select session_key from agent where machine_id = ?1 and ended_at is null
            ))"; machine))
    }

    /// Peers whose vendor rejects them because of a usage limit.
    pub async fn limited(&self) -> Result<Vec<PeerRow>> {
        Ok(peers!(
            all(),
            self.store.pool(),
            "where status = 'waiting' and waiting_for ->> '$.kind' = 'limit'"
        ))
    }

    /// Whether another session that has not ended runs in the process of a peer.
    pub async fn shares_its_process(&self, id: &PeerId) -> Result<bool> {
        Ok(value!(self.store.pool(),
            r#"select exists (
                select 1 from peer own
                join peer other on other.pid = own.pid and other.process_started = own.process_started
                    and other.peer_id <> own.peer_id
                join session s on s.session_id = other.session_id
                where own.peer_id = ? and s.ended_at is null
            ) as "shares!: bool""#; id.as_str()))
    }

    /// When the longest silent peer was last seen, without peers whose process or session keeps
    /// their state.
    pub async fn longest_silence(&self) -> Result<Option<Timestamp>> {
        Ok(value!(
            self.store.pool(),
            r#"select min(last_seen) as "at: Timestamp" from peer
            where status not in ('unreachable', 'offline')
                and not (status in ('busy', 'waiting', 'idle') and (pid is not null or session_id <> ''))"#
        ))
    }
}
