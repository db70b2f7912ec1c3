//! Waits for mail on behalf of an idle session. A hook cannot do so, because its client waits for
//! the hook.

use std::pin::pin;

use svc_model::{
    Caller, HandoverWay, Peer, PeerStatus, SessionReference, SessionStanding, StreamName,
    hook::MailOffer, is_agent_key,
};
use svc_store::{PeerRow, job};

use super::{event::Hooks, write_job};
use crate::service::{
    Error, ResourceKind, Result, check,
    core::Core,
    handovers::{self, HandedMail, MailGiver, TurnOfMail},
    team,
};

/// A process that waits for a session's mail.
#[derive(Debug, Clone)]
pub struct MailWaiter {
    /// Names the waiter and its question. Only the session's waiter with the greatest id waits, so
    /// ids begin with a time.
    pub id: String,
    /// Ids of the waiter's earlier questions whose answers were not seen.
    pub lost: Vec<String>,
}

/// How a wait for mail ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailWait {
    /// Messages, which are `offered` from now on.
    Message(HandedMail),
    /// No message came: ask again.
    Nothing,
    /// A later process waits for this session.
    Retired,
    /// The session has ended, so nothing is waited for.
    Over,
}

/// What a waiter gets of its session's mail.
#[derive(Debug)]
enum WaiterMail {
    Handed(HandedMail),
    /// No messages while the session is in a turn: its other hooks hand messages over there.
    InTurn,
    Nothing,
}

/// Whether the process of a session is known and has ended.
pub(super) fn is_gone(core: &Core, row: &PeerRow) -> bool {
    row.process().is_some_and(|process| core.is_gone(&process))
}

impl Hooks {
    /// Waits until there is a message for a session's peer, or until `end`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the session has no peer, or is not the caller's yet;
    /// [`Error::Forbidden`] if it is another's; [`Error::Unauthorized`] if the caller's token is
    /// revoked meanwhile.
    pub async fn await_mail(
        &self,
        caller: &Caller,
        session_id: &str,
        waiter: MailWaiter,
        end: impl Future<Output = ()> + Send,
    ) -> Result<MailWait> {
        check::key("session_id", Some(session_id))?;
        let session_id = &*self.team.session_of_client(caller, session_id).await?;
        let unknown = || Error::not_found(ResourceKind::PeerOfSession, session_id);
        match self.team.standing(caller, session_id).await? {
            SessionStanding::Own => {}
            // The hook of the session's start, which runs concurrently, makes the session the
            // caller's.
            SessionStanding::Unclaimed
            | SessionStanding::Adoptable
            | SessionStanding::Absent
            | SessionStanding::Elsewhere => return Err(unknown()),
            standing => return Err(team::refusal(caller, session_id, standing)),
        }
        let credential = self.access.credential_name(caller);
        write_job::check_lost(&waiter.lost)?;
        if !waiter.lost.is_empty() {
            self.take_back(caller, session_id.to_owned(), waiter.lost).await?;
        }
        let entered = self.waiters.enter(&caller.principal(), session_id, &waiter.id);
        let Some(mut latest) = entered else {
            return Ok(MailWait::Retired);
        };
        let mut end = pin!(end);
        let store = &self.core.store;
        let peer = store.peers().of_session(session_id).await?.ok_or_else(unknown)?.peer;
        let stream = StreamName::new("peer", &peer.peer_id);
        // Listen first and read second, or a message in between wakes nobody.
        let mut listener = store.bus().listen(&stream);
        let mut changes = store.bus().listen(&StreamName::fixed(StreamName::TEAM));
        loop {
            let last_change = changes.last();
            let view = store.streams().view(&stream).await?;
            let view =
                view.ok_or_else(|| Error::not_found(ResourceKind::Stream, stream.as_str()))?;
            self.access.check_credential(caller, &credential).await?;
            let session = store.sessions().get(session_id).await?;
            if session.is_some_and(|session| session.ended_at.is_some()) {
                return Ok(MailWait::Over);
            }
            let mail = self.mail_for(caller, session_id, &peer, &waiter.id).await?;
            if let WaiterMail::Handed(mail) = mail {
                self.waiters.note_woken(&caller.principal(), session_id, self.core.now());
                return Ok(MailWait::Message(mail));
            }
            let is_in_turn = matches!(mail, WaiterMail::InTurn);
            // Only the wait is cancelled: messages that were handed over must be returned.
            tokio::select! {
                () = listener.wait(view.head) => {}
                () = changes.wait(last_change), if is_in_turn => {}
                _ = latest.changed() => return Ok(MailWait::Retired),
                () = &mut end => return Ok(MailWait::Nothing),
            }
        }
    }

    async fn mail_for(
        &self,
        caller: &Caller,
        session_id: &str,
        peer: &Peer,
        waiter: &str,
    ) -> Result<WaiterMail> {
        if !self.core.store.inboxes().has_mail(&peer.peer_id, self.core.now()).await? {
            return Ok(WaiterMail::Nothing);
        }
        let row = self.core.store.peers().get(&peer.peer_id).await?;
        if row.as_ref().is_some_and(is_in_turn) {
            return Ok(WaiterMail::InTurn);
        }
        if self.handovers.is_off(&peer.backend) {
            return Ok(WaiterMail::Nothing);
        }
        // The client's own way is tried first.
        let way = match &row {
            Some(row) => self.handovers.way_to(row).await?,
            None => None,
        };
        let least = way.map_or(0, HandoverWay::tries);
        let (peer, waiter, tuning) = (peer.clone(), waiter.to_owned(), self.core.tuning);
        let (caller, session_id) = (caller.clone(), session_id.to_owned());
        let core = self.core.clone();
        self.core
            .store
            .on_behalf_of(&caller)
            .write(job!(|tx| {
                // The session may have passed to another principal during the wait.
                team::claim(tx, &caller, &session_id, SessionReference::Call).await?;
                if tx.hooks().is_lost(&waiter).await? {
                    return Ok(WaiterMail::Nothing);
                }
                let now = tx.peers().get(&peer.peer_id).await?;
                // When the end of a process is noticed, its peer's row forgets it.
                let waits_for_dead =
                    caller.process().is_some_and(|it| core.is_gone(&core.here(it)));
                if waits_for_dead || now.as_ref().is_some_and(|row| is_gone(&core, row)) {
                    // The client was killed, and the waiter may end in a moment. The message
                    // stays in the inbox.
                    return Ok(WaiterMail::Nothing);
                }
                // For a moment at the end of a turn two waiters live, but a turn may begin with
                // one question at most.
                let is_waking = tx.inboxes().is_waking(&peer.peer_id).await?;
                if is_waking || now.as_ref().is_some_and(is_in_turn) {
                    return Ok(WaiterMail::InTurn);
                }
                if caller.session().is_some_and(is_agent_key)
                    && tx.peers().is_hosted(&peer.peer_id).await?
                {
                    // The host takes messages for a hosted agent, and makes turns of them.
                    return Ok(WaiterMail::Nothing);
                }
                tx.hooks().remember(&waiter).await?;
                let offer = (MailOffer::New, TurnOfMail::Begins);
                let hook = MailGiver::hook(&waiter);
                let giver = MailGiver { failed_handovers: (least, u32::MAX), ..hook };
                let handed = handovers::hand_over(tx, &peer, giver, offer, &tuning).await?;
                Ok(handed.map_or(WaiterMail::Nothing, WaiterMail::Handed))
            }))
            .await
    }
}

/// Whether a session is in a turn. A message wakes the session only afterwards.
fn is_in_turn(row: &PeerRow) -> bool {
    matches!(row.peer.status, PeerStatus::Busy | PeerStatus::Waiting)
}
