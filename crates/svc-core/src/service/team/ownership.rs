//! Who owns a client's session. The rule is [`SessionStanding`]; this file takes the facts from
//! rows and processes.

use std::time::Duration;

use serde_json::json;
use svc_model::{
    Caller, KnownOwner, MachineId, Ownership, Peer, Principal, ProcessIdentity, ProcessState,
    SessionReference, SessionStanding, StreamName, StreamVisibility, TokenHash, client_session_id,
    is_daemons_session_id, is_own_session, is_reserved_name, limits, own_session_ids,
    session_id_in_process,
};
use svc_store::{StoreError, SubjectHolders, WriteTx, job};
use svc_sys::process_list;
use tokio::time::{Instant, sleep_until};

use super::{Team, log_impersonation, stream_of, tell, visibility_of};
use crate::boxed;
use crate::service::{Error, Result};

impl Team {
    /// The relation of a session to this caller at present. A write checks it again in its write
    /// job.
    #[boxed]
    pub async fn standing(&self, caller: &Caller, session_id: &str) -> Result<SessionStanding> {
        // The common case, without the writer.
        if self.owns(caller, session_id).await? {
            return Ok(SessionStanding::Own);
        }
        self.standing_by(caller, session_id, SessionReference::Call).await
    }

    async fn standing_by(
        &self,
        caller: &Caller,
        session_id: &str,
        contact: SessionReference,
    ) -> Result<SessionStanding> {
        let (caller, id) = (caller.clone(), session_id.to_owned());
        self.core
            .store
            .on_behalf_of(&caller)
            .write(job!(|tx| Ok(standing(tx, &caller, &id, contact).await?)))
            .await
    }

    /// The daemon's id of the session that a client's process calls `client_id`. The two are equal,
    /// unless `client_id` was taken by a session of another process.
    pub(in crate::service) async fn session_in_process(
        &self,
        process: &ProcessIdentity,
        client_id: &str,
    ) -> Result<String> {
        let in_process = session_id_in_process(client_id, process);
        let is_kept_apart = self.core.store.sessions().owner(&in_process).await?.is_some();
        Ok(if is_kept_apart { in_process } else { client_id.to_owned() })
    }

    /// Like `session_in_process`, for the process of a caller.
    #[boxed]
    pub async fn session_of_client(&self, caller: &Caller, client_id: &str) -> Result<String> {
        match caller.process().filter(|_| caller.is_client_process()) {
            Some(process) if !self.owns(caller, client_id).await? => {
                self.session_in_process(process, client_id).await
            }
            _ => Ok(client_id.to_owned()),
        }
    }

    /// The daemon's id of the session that the hook of a caller's client calls `client_id`, for a
    /// `client_id` that is not the caller's session. If a process of another project has a session
    /// of that id, the caller's session gets an id of its own.
    pub(in crate::service) async fn session_of_hook(
        &self,
        caller: &Caller,
        client_id: &str,
        secret: Option<TokenHash>,
    ) -> Result<String> {
        let Some(process) = caller.process().filter(|_| caller.is_client_process()) else {
            return Ok(client_id.to_owned());
        };
        let session_id = self.session_in_process(process, client_id).await?;
        if session_id != client_id {
            return Ok(session_id);
        }
        let by_hook = SessionReference::Hook(secret);
        let standing = self.standing_by(caller, client_id, by_hook).await?;
        // A late report of a process that has ended begins no session.
        let is_running = || self.core.state_of(&self.core.here(process)) == ProcessState::Running;
        let is_apart = standing == SessionStanding::Elsewhere && is_running();
        Ok(if is_apart { session_id_in_process(client_id, process) } else { session_id })
    }

    /// Whether a session is this caller's. The operator may act in every session on record.
    #[boxed]
    pub async fn owns(&self, caller: &Caller, session_id: &str) -> Result<bool> {
        let row = self.core.store.sessions().owner(session_id).await?;
        let row = row.as_ref().map(|row| row.owner.as_ref());
        Ok(is_own_session(&caller.principal(), session_id, row))
    }

    /// The caller in the project of its session: one process may have sessions in several projects.
    #[boxed]
    pub async fn in_project_of(&self, caller: &Caller, session: Option<&str>) -> Result<Caller> {
        let Some(session) = session.filter(|_| caller.is_client_process()) else {
            return Ok(caller.clone());
        };
        if !self.owns(caller, session).await? {
            return Ok(caller.clone());
        }
        let project =
            self.core.store.sessions().get(session).await?.and_then(|known| known.project);
        match project {
            Some(project) => self.core.projects.caller_in(caller, &project, None).await,
            None => Ok(caller.clone()),
        }
    }

    /// The id of the session that a caller names and may act for. Every session id from a caller is
    /// checked here or by `claim`.
    ///
    /// # Errors
    /// [`Error::NotYours`] if the caller may not act for it.
    #[boxed]
    pub async fn check_named(&self, caller: &Caller, named: &str) -> Result<String> {
        self.session_of(caller, named, false).await
    }

    /// Like [`Self::check_named`]; if the caller `may_claim` it, also a session that nobody has.
    pub(super) async fn session_of(
        &self,
        caller: &Caller,
        named: &str,
        may_claim: bool,
    ) -> Result<String> {
        let session_id = self.session_of_client(caller, named).await?;
        match self.standing(caller, &session_id).await? {
            SessionStanding::Own => Ok(session_id),
            SessionStanding::Unclaimed if may_claim => Ok(session_id),
            standing => Err(refusal(caller, &session_id, standing)),
        }
    }

    /// The session that a call with a token acts in if it names none: the latest open session of
    /// the token's principal, else the session named after the principal.
    #[boxed]
    pub async fn default_session(&self, caller: &Caller) -> Result<Option<String>> {
        let Some(key) = caller.session() else { return Ok(None) };
        let (store, principal) = (&self.core.store, caller.principal());
        let read = async || Ok(store.sessions().latest_of(&principal).await?);
        let latest = self.latest_sessions.get(store, principal.to_string(), read).await?;
        if let Some(latest) = latest.as_deref() {
            return Ok(Some(latest.to_owned()));
        }
        for own in own_session_ids(key) {
            if self.owns(caller, &own).await? {
                return Ok(Some(own));
            }
        }
        Ok(Some(key.to_owned()))
    }

    /// The peer that a caller with a token speaks as. If there is none yet, waits at most `bound`
    /// for the first hook of the caller's client to register one.
    #[boxed]
    pub async fn peer_of_caller(&self, caller: &Caller, bound: Duration) -> Result<Option<Peer>> {
        let end = Instant::now() + bound;
        let store = &self.core.store;
        // Events of peers are in this stream. Listens before it reads; otherwise it would miss an
        // event in between.
        let stream = StreamName::fixed(StreamName::TEAM);
        let mut listener = store.bus().listen(&stream);
        loop {
            let head = store.streams().view(&stream).await?.map_or(0, |view| view.head);
            let Some(session) = self.default_session(caller).await? else { return Ok(None) };
            let peer = self.own_peer_of_session(caller, &session).await?;
            if peer.is_some() || Instant::now() >= end {
                return Ok(peer);
            }
            tokio::select! {
                () = listener.wait(head) => {}
                () = sleep_until(end) => {}
            }
        }
    }
}

/// The error for a session that is not the caller's. It is logged.
pub(in crate::service) fn refusal(
    caller: &Caller,
    session_id: &str,
    standing: SessionStanding,
) -> Error {
    let why = match standing {
        SessionStanding::Occupied => {
            return Error::Conflict(format!(
                "session {session_id:?} is in use by another process of its client: end that one first"
            ));
        }
        SessionStanding::Reserved => format!(
            "session {session_id:?} has an id that the daemon gives, or that the operator keeps: choose another"
        ),
        SessionStanding::Absent => format!(
            "session {session_id:?} is another client's, which takes it up again by its own hook when it is resumed, and not by a call"
        ),
        _ => {
            let own = caller.session().unwrap_or_default();
            format!(
                "this token speaks for session {own:?} and its own sessions, and session {session_id:?} is none of them"
            )
        }
    };
    log_impersonation(caller, "session_id", session_id);
    Error::not_yours("session_id", why)
}

/// Checks that a session is the caller's before anything is written about it. An unclaimed session
/// becomes the caller's with its first row. A hook of its client takes over a session whose owner
/// is gone.
///
/// # Errors
/// [`Error::NotYours`] if the session is another principal's, [`Error::Conflict`] if another
/// process of the caller's client has it.
pub(in crate::service) async fn claim(
    tx: &mut WriteTx,
    caller: &Caller,
    session_id: &str,
    contact: SessionReference,
) -> Result<()> {
    match standing(tx, caller, session_id, contact).await? {
        SessionStanding::Own | SessionStanding::Unclaimed => Ok(()),
        SessionStanding::Adoptable => Ok(adopt(tx, caller, session_id).await?),
        standing => Err(refusal(caller, session_id, standing)),
    }
}

async fn standing(
    tx: &mut WriteTx,
    caller: &Caller,
    session_id: &str,
    contact: SessionReference,
) -> Result<SessionStanding, StoreError> {
    let principal = caller.principal();
    let Some(row) = tx.sessions().owner(session_id).await? else {
        let client_id = client_session_id(session_id);
        if client_id != session_id && !caller.is_operator() {
            let own = caller.process().map(|process| session_id_in_process(client_id, process));
            let is_own = own.as_deref() == Some(session_id);
            let may_begin =
                is_own && !is_daemons_session_id(client_id) && !is_reserved_name(client_id);
            return Ok(if may_begin {
                SessionStanding::Unclaimed
            } else {
                SessionStanding::Reserved
            });
        }
        let is_subject = !caller.is_operator() && tx.tokens().is_subject(session_id).await?;
        let standing = SessionStanding::decide(&principal, session_id, None, is_subject);
        return Ok(match (standing, caller.session()) {
            (SessionStanding::Unclaimed, Some(key))
                if is_peer_of_another(tx, caller, key, session_id).await? =>
            {
                SessionStanding::Foreign
            }
            (standing, _) => standing,
        });
    };
    if is_own_session(&principal, session_id, Some(row.owner.as_ref())) {
        return Ok(SessionStanding::Own);
    }
    let facts = facts(tx, caller, session_id, row, contact).await?;
    Ok(SessionStanding::decide(&principal, session_id, Some(&facts), false))
}

/// Whether a session without a row has a peer that is not the caller's.
async fn is_peer_of_another(
    tx: &mut WriteTx,
    caller: &Caller,
    key: &str,
    session_id: &str,
) -> Result<bool, StoreError> {
    if tx.peers().is_session_of_another_in_other_case(session_id, key).await? {
        return Ok(true);
    }
    let peer = tx.peers().of_session(session_id).await?;
    let Some(row) = peer.filter(|row| row.peer.session_id.as_deref() == Some(session_id)) else {
        return Ok(false);
    };
    let is_own_process = row.owner.is_none() && runs_in(row.peer.pid, caller);
    Ok(row.owner.as_deref() != Some(key) && !is_own_process)
}

async fn facts(
    tx: &mut WriteTx,
    caller: &Caller,
    session_id: &str,
    row: Ownership,
    contact: SessionReference,
) -> Result<KnownOwner, StoreError> {
    let is_proven = match (contact, &row.owner) {
        (SessionReference::Call, _) => false,
        // No secret is needed: `same_process` decides.
        (SessionReference::Hook(_), Some(Principal::Operator)) => true,
        (SessionReference::Hook(shown), _) => {
            let lock = tx.sessions().lock(session_id).await?;
            let is_free =
                lock.ended_at.is_some_and(|at| tx.now().since(at) >= limits::SESSION_KEY_KEPT);
            is_free || lock.secret.is_some() && lock.secret == shown
        }
    };
    let mut known = KnownOwner {
        owner: row.owner,
        is_gone: false,
        same_project: false,
        same_process: false,
        is_proven,
    };
    match &known.owner {
        Some(Principal::Session(owner)) => {
            let holders = tx.tokens().subject_holders(owner).await?;
            known.is_gone = is_gone(&holders, tx.machine_id());
            // One process has sessions in several projects, so the projects of its tokens count
            // only for a session whose own is unknown.
            known.same_project = caller.project().is_some_and(|project| match &row.project {
                Some(own) => own == project,
                None => holders.projects.iter().any(|theirs| theirs == project),
            });
        }
        Some(Principal::Operator) => {
            let peer = tx.peers().of_session(session_id).await?;
            known.same_process = peer.is_some_and(|row| {
                row.peer.session_id.as_deref() == Some(session_id)
                    && row.machine_id.as_ref() == Some(tx.machine_id())
                    && runs_in(row.peer.pid, caller)
            });
        }
        None => {}
    }
    Ok(known)
}

/// Whether no process can act as a subject any more. A live process may get a new token at any
/// time, and only the daemon of another machine knows whether a process there lives.
fn is_gone(holders: &SubjectHolders, here: &MachineId) -> bool {
    let is_gone = |process| process_list::state(process, here) == ProcessState::Gone;
    !holders.has_minted && holders.processes.iter().all(is_gone)
}

fn runs_in(pid: Option<u32>, caller: &Caller) -> bool {
    pid.is_some() && pid == caller.process().map(|process| process.pid)
}

async fn adopt(tx: &mut WriteTx, caller: &Caller, session_id: &str) -> Result<(), StoreError> {
    let (Some(to), Some(row)) = (caller.session(), tx.sessions().owner(session_id).await?) else {
        return Ok(());
    };
    let from = match &row.owner {
        Some(Principal::Session(key)) => Some(&**key),
        _ => None,
    };
    let peers = tx.sessions().adopt(session_id, from, to).await?;
    let visibility = visibility_of(tx, session_id).await?;
    tx.streams().set_visibility(&stream_of(session_id), &visibility).await?;
    for peer in peers {
        let visibility = StreamVisibility::private(&caller.principal());
        tx.streams().set_visibility(&StreamName::new("peer", &peer), &visibility).await?;
    }
    let data = json!({
        "session_id": session_id, "from": row.owner.as_ref().map(ToString::to_string),
        "to": caller.principal().to_string(),
    });
    tell(tx, session_id, "session.adopted", &data).await
}

#[cfg(test)]
mod tests {
    use svc_store::testing::TestStore;
    use svc_sys::session_secret::SessionSecrets;

    use super::*;
    use crate::service::{
        log::{Selector, StartAfter, Subscription, SubscriptionChunk},
        team::NewSession,
        testing::{opened, services_in},
    };

    fn session(key: &str) -> Caller {
        Caller::of_session("tok_1", key, Some("/p"), &[])
    }

    /// The adoption ends the former owner's subscription to the session's peer, and makes the peer
    /// readable for the new owner. The writer caches streams, so both its cache and the table must
    /// change.
    #[tokio::test]
    async fn an_adopted_peer_is_read_only_by_its_new_owner() {
        let (test, services) = opened().await;
        let (former, heir) = (session("a"), session("b"));
        let new =
            NewSession { session_id: Some("a".to_owned()), cwd: None, source: None, client: None };
        services.team.start_session(&former, None, new).await.unwrap();
        let register = async |caller: &Caller, more: serde_json::Value| {
            let mut input = json!({ "display_name": "x", "backend": "test" });
            input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let input = serde_json::from_value(input).unwrap();
            services.team.register_peer(caller, None, input).await.unwrap().peer_id
        };
        let peer = register(&former, json!({ "session_id": "a" })).await;
        let formers_own = register(&former, json!({ "path": "/p/a" })).await;
        let heirs_own = register(&heir, json!({ "path": "/p/b" })).await;
        let note = async |to: &svc_model::PeerId| {
            let message = serde_json::from_value(json!({ "text": "hello" })).unwrap();
            services.team.send_message(&Caller::Operator, to.as_str(), message).await.unwrap();
        };
        let follow = async |caller: &Caller, selector: &Selector| {
            services.log.subscribe(caller, selector, StartAfter::Latest, None).await
        };
        let stream = Selector::Stream(format!("peer/{peer}"));
        let mut open = follow(&former, &stream).await.unwrap();
        assert!(follow(&heir, &stream).await.is_err());
        let everything = Selector::Prefix("peer/".to_owned());
        let mut feed = follow(&heir, &everything).await.unwrap();
        let mut former_feed = follow(&former, &everything).await.unwrap();
        // From here on, the subscriptions read commits instead of the table.
        for to in [&formers_own, &heirs_own] {
            note(to).await;
        }
        for feed in [&mut feed, &mut former_feed] {
            next_frames(feed).await;
        }

        let caller = heir.clone();
        let claimed = test
            .store
            .write(move |tx| {
                let hook = SessionReference::Hook(Some([7; 32]));
                Box::pin(async move {
                    tx.sessions().put_secret("a", &[7; 32]).await?;
                    claim(tx, &caller, "a", hook).await
                })
            })
            .await;
        claimed.unwrap();
        assert!(open.next().await.unwrap().is_none(), "it ends");
        assert!(follow(&former, &stream).await.is_err());
        for to in [&peer, &formers_own] {
            note(to).await;
        }
        let shown = next_frames(&mut feed).await;
        assert!(shown.contains(peer.as_str()), "{shown}");
        let shown = next_frames(&mut former_feed).await;
        assert!(shown.contains(formers_own.as_str()) && !shown.contains(peer.as_str()), "{shown}");
    }

    /// The id of an ended session stays reserved for its principal for 30 days. Then its secret is
    /// removed and the id is free.
    #[tokio::test]
    async fn the_secret_of_an_ended_session_is_removed_when_its_id_is_free() {
        let (test, home) = (TestStore::open().await, tempfile::tempdir().unwrap());
        let services = services_in(&test, home.path());
        let secrets = SessionSecrets::in_home(home.path());
        let (former, heir) = (session("a"), session("b"));
        let new =
            NewSession { session_id: Some("a".to_owned()), cwd: None, source: None, client: None };
        services.team.start_session(&former, None, new).await.unwrap();
        let hash = secrets.ensure("a").unwrap();
        let claimed = async |contact: SessionReference| {
            let caller = heir.clone();
            let claimed: Result<()> =
                test.store.write(job!(|tx| claim(tx, &caller, "a", contact).await)).await;
            claimed
        };
        let put: Result<(), StoreError> =
            test.store.write(job!(|tx| tx.sessions().put_secret("a", &hash).await)).await;
        put.unwrap();
        let acting = services.team.acting_session(&former, None, None, None).await.unwrap();
        services.team.end_session(acting, None).await.unwrap();

        test.clock.advance(limits::SESSION_KEY_KEPT.saturating_sub(Duration::from_secs(1)));
        services.team.sweep_session_secrets().await.unwrap();
        assert!(secrets.read("a").is_some());
        for contact in [
            SessionReference::Call,
            SessionReference::Hook(None),
            SessionReference::Hook(Some([0; 32])),
        ] {
            let refused = claimed(contact).await;
            assert!(matches!(refused, Err(Error::NotYours { .. })), "{contact:?}: {refused:?}");
        }
        test.clock.advance(Duration::from_secs(2));
        services.team.sweep_session_secrets().await.unwrap();
        assert_eq!(secrets.read("a"), None);
        assert!(matches!(claimed(SessionReference::Call).await, Err(Error::NotYours { .. })));
        claimed(SessionReference::Hook(None)).await.unwrap();
    }

    async fn next_frames(feed: &mut Subscription) -> String {
        let max_wait = Duration::from_secs(20);
        let next = tokio::time::timeout(max_wait, feed.next()).await.expect("in time");
        let Some(SubscriptionChunk::Frames(frames)) = next.unwrap() else { panic!("no frames") };
        String::from_utf8(frames.to_vec()).unwrap()
    }
}
