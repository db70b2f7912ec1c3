//! Whose a client's session is: the rule is [`SessionStanding`], the facts are rows and processes.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{
    Team,
    session_stream::{stream_of, tell, visibility_of},
};
use crate::{
    domain::{
        Caller, KnownOwner, Ownership, Peer, Principal, SessionStanding, StreamName,
        StreamVisibility,
    },
    service::{Error, process},
    store::{StoreError, SubjectHolders, WriteTx},
};

impl Team {
    /// What a session is to this caller, as it stands now. Whoever writes asks again in its write job.
    pub async fn standing(
        &self,
        caller: &Caller,
        session_id: &str,
    ) -> Result<SessionStanding, Error> {
        let principal = caller.principal();
        if caller.is_operator() || caller.session() == Some(session_id) {
            return Ok(SessionStanding::Own);
        }
        // The common case, without the writer.
        let owner = self.core.store.session_owner(session_id).await?;
        if owner.is_some_and(|row| row.owner.as_ref() == Some(&principal)) {
            return Ok(SessionStanding::Own);
        }
        let (caller, id) = (caller.clone(), session_id.to_owned());
        self.core
            .store
            .on_behalf_of(&caller)
            .write(move |tx| Box::pin(async move { Ok(standing(tx, &caller, &id).await?) }))
            .await
    }

    /// Whether a session is this caller's. The operator may act in any.
    pub async fn owns(&self, caller: &Caller, session_id: &str) -> Result<bool, Error> {
        if caller.is_operator() || caller.session() == Some(session_id) {
            return Ok(true);
        }
        let owner = self.core.store.session_owner(session_id).await?;
        let principal = caller.principal();
        Ok(owner.is_some_and(|row| row.owner.as_ref() == Some(&principal)))
    }

    /// The session that a call with a token acts in when nothing names one: the latest open one of its principal, else the
    /// one that is called as the principal is.
    pub async fn default_session(&self, caller: &Caller) -> Result<Option<String>, Error> {
        let Some(key) = caller.session() else { return Ok(None) };
        let (store, principal) = (&self.core.store, caller.principal());
        let read = async || Ok(store.latest_session_of(&principal).await?);
        let latest = self.latest_sessions.get(store, principal.to_string(), read).await?;
        Ok(Some(latest.as_deref().unwrap_or(key).to_owned()))
    }

    /// The peer that a caller with a token speaks as. If there is none yet, this waits for one that the first hook of its client
    /// is about to register, for at most `bound`.
    pub async fn peer_of_caller(
        &self,
        caller: &Caller,
        bound: Duration,
    ) -> Result<Option<Peer>, Error> {
        let end = Instant::now() + bound;
        let store = &self.core.store;
        // Events of peers are in this stream. Listen before looking, or one that comes in between wakes nobody.
        let stream = StreamName::fixed(StreamName::TEAM);
        let mut listener = store.bus().listen(&stream);
        loop {
            let head = store.view(&stream).await?.map_or(0, |view| view.head);
            let Some(session) = self.default_session(caller).await? else { return Ok(None) };
            let peer = self.peer_of_session(&session).await?;
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

/// The refusal of a session that is another's.
pub(in crate::service) fn foreign(caller: &Caller, session_id: &str) -> Error {
    let own = caller.session().unwrap_or_default();
    Error::Forbidden(format!(
        "session_id: this token speaks for session {own:?} and its own sessions, and session {session_id:?} is none of them"
    ))
}

/// Makes sure that a session is the caller's before anything is written of it. An unclaimed session becomes the caller's
/// with its first row. A session whose owner is gone is taken over.
///
/// # Errors
/// [`Error::Forbidden`] if it is another's.
pub(in crate::service) async fn claim(
    tx: &mut WriteTx,
    caller: &Caller,
    session_id: &str,
) -> Result<(), Error> {
    match standing(tx, caller, session_id).await? {
        SessionStanding::Own | SessionStanding::Unclaimed => Ok(()),
        SessionStanding::Adoptable => Ok(adopt(tx, caller, session_id).await?),
        SessionStanding::Foreign => Err(foreign(caller, session_id)),
    }
}

async fn standing(
    tx: &mut WriteTx,
    caller: &Caller,
    session_id: &str,
) -> Result<SessionStanding, StoreError> {
    let principal = caller.principal();
    let Some(key) = caller.session().filter(|key| *key != session_id) else {
        return Ok(SessionStanding::Own);
    };
    let Some(row) = tx.session_owner(session_id).await? else {
        let is_subject = tx.is_subject(session_id).await?
            || is_peer_of_another(tx, caller, key, session_id).await?;
        return Ok(SessionStanding::of(&principal, session_id, None, is_subject));
    };
    if row.owner.as_ref() == Some(&principal) {
        return Ok(SessionStanding::Own);
    }
    let facts = facts(tx, caller, session_id, row).await?;
    Ok(SessionStanding::of(&principal, session_id, Some(&facts), false))
}

/// Whether a peer stands for a session that has no row, and is not the caller's.
async fn is_peer_of_another(
    tx: &mut WriteTx,
    caller: &Caller,
    key: &str,
    session_id: &str,
) -> Result<bool, StoreError> {
    let peer = tx.peer_of_session(session_id).await?;
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
) -> Result<KnownOwner, StoreError> {
    let mut known =
        KnownOwner { owner: row.owner, is_gone: false, same_project: false, same_process: false };
    match &known.owner {
        Some(Principal::Session(owner)) => {
            let holders = tx.subject_holders(owner).await?;
            known.is_gone = is_gone(&holders);
            // A client may be told of a folder that its process is not in, so what its owner's token says counts, too.
            known.same_project = caller.project().is_some_and(|project| {
                row.project.as_deref() == Some(project)
                    || holders.projects.iter().any(|theirs| theirs == project)
            });
        }
        Some(Principal::Operator) => {
            let peer = tx.peer_of_session(session_id).await?;
            known.same_process = peer.is_some_and(|row| {
                row.peer.session_id.as_deref() == Some(session_id) && runs_in(row.peer.pid, caller)
            });
        }
        None => {}
    }
    Ok(known)
}

/// Whether nobody can speak as a subject any more. A process that is alive trades for a new token at any time.
fn is_gone(holders: &SubjectHolders) -> bool {
    !holders.has_minted && !holders.processes.iter().any(process::is_running)
}

fn runs_in(pid: Option<u32>, caller: &Caller) -> bool {
    pid.is_some() && pid == caller.process().map(|process| process.pid)
}

async fn adopt(tx: &mut WriteTx, caller: &Caller, session_id: &str) -> Result<(), StoreError> {
    let (Some(to), Some(row)) = (caller.session(), tx.session_owner(session_id).await?) else {
        return Ok(());
    };
    let from = match &row.owner {
        Some(Principal::Session(key)) => Some(&**key),
        _ => None,
    };
    let peers = tx.adopt_session(session_id, from, to).await?;
    let visibility = visibility_of(tx, session_id).await?;
    tx.set_visibility(&stream_of(session_id), &visibility).await?;
    for peer in peers {
        let visibility = StreamVisibility::private(&caller.principal());
        tx.set_visibility(&StreamName::of("peer", &peer), &visibility).await?;
    }
    let data = json!({
        "session_id": session_id, "from": row.owner.as_ref().map(ToString::to_string),
        "to": caller.principal().to_string(),
    });
    tell(tx, session_id, "session.adopted", &data).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        domain::{TokenId, journal::SessionSource},
        service::{
            log::{Selector, StartAfter, Subscription, SubscriptionChunk},
            team::NewSession,
            testing::services,
        },
        store::testing::TestStore,
    };

    fn session(key: &str) -> Caller {
        Caller::Session {
            key: key.into(),
            token: TokenId::from("tok_1".to_owned()),
            scopes: Arc::new([]),
            project: Some("/p".into()),
            process: None,
            folder: None,
        }
    }

    /// What the former owner has open of a session's peer ends with the adoption, and what the new owner has open shows it: the
    /// writer, which knows each stream, has to hear of it as well as the table.
    #[tokio::test]
    async fn an_adopted_peer_is_read_by_its_new_owner_alone() {
        let test = TestStore::open().await;
        let services = services(&test);
        let (former, heir) = (session("a"), session("b"));
        let new = NewSession {
            session_id: Some("a".to_owned()),
            cwd: None,
            source: SessionSource::Startup,
            client: None,
        };
        services.team.start_session(&former, None, new).await.unwrap();
        let register = async |caller: &Caller, more: serde_json::Value| {
            let mut input = json!({ "display_name": "x", "backend": "test" });
            input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let input = serde_json::from_value(input).unwrap();
            services.team.register_peer(caller, input).await.unwrap().peer_id
        };
        let peer = register(&former, json!({ "session_id": "a" })).await;
        let formers_own = register(&former, json!({ "path": "/p/a" })).await;
        let heirs_own = register(&heir, json!({ "path": "/p/b" })).await;
        let note = async |to: &crate::domain::PeerId| {
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
        // From here on they take what commits bring, and not the table.
        for to in [&formers_own, &heirs_own] {
            note(to).await;
        }
        for feed in [&mut feed, &mut former_feed] {
            next_frames(feed).await;
        }

        let caller = heir.clone();
        let claimed = test
            .store
            .write(move |tx| Box::pin(async move { claim(tx, &caller, "a").await }))
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

    async fn next_frames(feed: &mut Subscription) -> String {
        let patience = Duration::from_secs(20);
        let next = tokio::time::timeout(patience, feed.next()).await.expect("in time");
        let Some(SubscriptionChunk::Frames(frames)) = next.unwrap() else { panic!("no frames") };
        String::from_utf8(frames.to_vec()).unwrap()
    }
}
