//! Hands waiting messages to clients by the clients' own ways, and settles each hand-over when the
//! client's record shows its outcome. Each session that such a way may reach has a task, whose
//! state is in rows.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use svc_model::{
    DeliveryState, HandoverId, HandoverWay, Message, MessageId, PeerId, PeerStatus,
    ProcessIdentity, StreamName,
    hook::{HookClient, MailOffer},
    limits,
    quote::{ModelText, model_text},
    stamp,
};
use svc_store::{HandoverRow, PeerRow, WriteTx, job};
use svc_sys::telemetry::chain;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    HandedMail, Handovers, MailGiver, TurnOfMail, confirm, hand_over,
    native_way::{NativeQuestion, NativeSession, NativeText, NativeWays, ShownMessages, way_of},
};
use crate::boxed;
use crate::service::{
    Error, Result,
    team::{advance, ids_of, note_unseen},
};

/// How often new sessions that a way may reach are looked up.
const SESSIONS_POLL: Duration = limits::RECORDS_POLL;
/// How often a closed way is tried again while messages wait for it.
const WAY_POLL: Duration = limits::RECORDS_POLL;
/// How long a client may take to show that it has a text.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a client's record may stay unreadable while the client lives: a plugin reconnects.
const UNREADABLE: Duration = Duration::from_secs(30);
/// The same bound once the client is gone: the person may continue the conversation at once.
const GONE: Duration = Duration::from_secs(15);
/// Pause before messages that may not go now are tried again: by then a bound or a lease may be
/// over.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Pause after a failure of the store.
const PAUSE: Duration = Duration::from_secs(1);

/// Why the outcome of a hand-over stays open.
const OUTCOME_UNKNOWN: &str = "outcome unknown";
/// Why a message that was handed over has not been read.
const HELD: &str = "held by the client";
/// The permission mode of Claude Code in which a text of another session waits for the person.
const BYPASS: &str = "bypassPermissions";

/// What a session's task does next.
enum Next {
    /// The task ends: this daemon has nothing more to do for the session.
    End,
    /// The task waits for an event of the inbox, for a change in the team if `on_team`, or for the
    /// time `until`.
    Wait { on_team: bool, until: Option<Instant> },
    /// The task runs its next step at once.
    Again,
}

impl Next {
    const fn at(until: Instant) -> Self {
        Self::Wait { on_team: false, until: Some(until) }
    }

    /// The session does not take messages now; a bound or a lease may be over by then.
    fn look_again() -> Self {
        Self::Wait { on_team: true, until: Some(Instant::now() + LOOK_AGAIN) }
    }

    /// The same wait, but until `at` at the latest.
    fn until(self, at: Option<Instant>) -> Self {
        match (self, at) {
            (next, None) | (next @ Self::Again, _) => next,
            (Self::End, Some(at)) => Self::at(at),
            (Self::Wait { on_team, until }, Some(at)) => {
                Self::Wait { on_team, until: Some(until.map_or(at, |until| until.min(at))) }
            }
        }
    }
}

/// An open hand-over, which is checked again at `at`.
#[derive(Clone, Copy)]
struct OpenHandover {
    at: Instant,
    /// Whether nothing shows yet that the client began to read the messages. Until then new
    /// messages wait.
    is_offered: bool,
}

/// What one session's task keeps in memory between two steps.
type HandoverWatch = BTreeMap<HandoverId, WatchedHandover>;

struct WatchedHandover {
    /// When this daemon made the hand-over, or first saw it.
    since: Instant,
    /// Whether this daemon made the hand-over. For any other, the client's record may count at
    /// once.
    is_own: bool,
    /// The session's process at that time. What waits in a process is lost with it.
    process: Option<ProcessIdentity>,
    /// When the record was first found unreadable.
    unreadable: Option<Instant>,
    /// When the record first showed a begun prompt that was not in the conversation.
    begun: Option<Instant>,
}

impl WatchedHandover {
    fn new(session: Option<&NativeSession>, is_own: bool) -> Self {
        let process = session.map(|session| session.process.clone());
        Self { since: Instant::now(), is_own, process, unreadable: None, begun: None }
    }

    /// Whether a prompt that the client has begun may still get into its record: the hooks of the
    /// prompt run, or the file is not written yet.
    fn may_keep(&mut self, begun: &[MessageId], status: PeerStatus) -> bool {
        if begun.is_empty() {
            self.begun = None;
            return false;
        }
        let first = *self.begun.get_or_insert_with(Instant::now);
        matches!(status, PeerStatus::Busy | PeerStatus::Waiting) || first.elapsed() < SILENCE
    }
}

impl Handovers {
    /// Hands over and settles until the future is dropped.
    #[boxed]
    pub async fn run(self) {
        let mut served = HashSet::<PeerId>::new();
        let mut tasks = JoinSet::new();
        loop {
            match self.reachable().await {
                Ok(peers) => {
                    for peer in peers {
                        if served.insert(peer.clone()) {
                            let handovers = self.clone();
                            tasks.spawn(async move {
                                handovers.serve(&peer).await;
                                peer
                            });
                        }
                    }
                }
                Err(error) => error.report("cannot look for sessions to wake"),
            }
            while let Some(ended) = tasks.try_join_next() {
                if let Ok(peer) = ended {
                    served.remove(&peer);
                }
            }
            sleep(SESSIONS_POLL).await;
        }
    }

    /// Peers of sessions that a client's own way may reach, or that have open hand-overs.
    async fn reachable(&self) -> Result<Vec<PeerId>> {
        let store = &self.core.store;
        let mut peers: Vec<PeerId> = Vec::new();
        for client in HookClient::ALL.into_iter().filter(|client| way_of(*client).is_some()) {
            let rows = store.peers().in_processes(client.as_str()).await?;
            peers.extend(rows.into_iter().map(|row| row.peer.peer_id));
        }
        peers.extend(store.handovers().all().await?.into_iter().map(|row| row.peer_id));
        Ok(peers)
    }

    async fn serve(&self, peer: &PeerId) {
        let stream = StreamName::new("peer", peer);
        let bus = self.core.store.bus();
        let mut inbox = bus.listen(&stream);
        let mut team = bus.listen(&StreamName::fixed(StreamName::TEAM));
        let mut watch = HandoverWatch::default();
        loop {
            // Reads the heads before the step, so that an event during the step ends the wait.
            let (last, change, last_step) = (inbox.last(), team.last(), Instant::now());
            let next = match self.step(peer, &mut watch).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!(%peer, error = chain(&error), "cannot hand over messages");
                    Next::at(Instant::now() + PAUSE)
                }
            };
            match next {
                Next::End => return,
                Next::Again => {}
                Next::Wait { on_team, until } => tokio::select! {
                    () = inbox.wait(last) => {}
                    () = team.wait(change), if on_team => {}
                    () = sleep_until(until.unwrap_or(last_step)), if until.is_some() => {}
                },
            }
        }
    }

    async fn step(&self, peer: &PeerId, watch: &mut HandoverWatch) -> Result<Next> {
        let store = &self.core.store;
        let row = store.peers().get(peer).await?;
        let session = match &row {
            Some(row) => self.session_of(row).await?,
            None => None,
        };
        let status = row.as_ref().map_or(PeerStatus::Offline, |row| row.peer.status);
        let (mut next, mut is_offered) = (None, false);
        for open in store.handovers().of_peer(peer).await? {
            let settled = self.settle(&open, (session.as_ref(), status), watch).await?;
            is_offered |= settled.is_some_and(|open| open.is_offered);
            next = [next, settled.map(|open| open.at)].into_iter().flatten().min();
        }
        if is_offered {
            // One hand-over at a time: messages that arrive meanwhile go together in the next one.
            return Ok(Next::End.until(next));
        }
        let (Some(row), Some(session)) = (row, session) else { return Ok(Next::End.until(next)) };
        if status == PeerStatus::Offline {
            return Ok(Next::End.until(next));
        }
        Ok(self.hand_over_new(&row, &session, watch).await?.until(next))
    }

    /// Hands over the waiting messages that the session takes now.
    async fn hand_over_new(
        &self,
        row: &PeerRow,
        session: &NativeSession,
        watch: &mut HandoverWatch,
    ) -> Result<Next> {
        let inboxes = self.core.store.inboxes();
        if !inboxes.has_mail(&session.peer, self.core.now()).await? {
            let held = inboxes.next_held_mail(&session.peer).await?;
            let until = held.map(|at| Instant::now() + at.since(self.core.now()));
            return Ok(Next::Wait { on_team: false, until });
        }
        let Some(way) = self.open_way(session).await else {
            return Ok(Next::at(Instant::now() + WAY_POLL));
        };
        let joins_turn = match row.peer.status {
            PeerStatus::Online | PeerStatus::Idle => false,
            PeerStatus::Busy if way.joins_turns() => true,
            _ => return Ok(Next::look_again()),
        };
        let record = NativeWays::record(way, session).await;
        let Some(text) = self.commit(session, way, (joins_turn, record)).await? else {
            return Ok(Next::look_again());
        };
        let is_handed_over = self.ways.deliver(way, session, &text).await;
        watch.insert(text.id.clone(), WatchedHandover::new(Some(session), true));
        if !is_handed_over {
            self.fail(&session.peer, &text.id).await?;
        }
        Ok(Next::Again)
    }

    /// Commits the hand-over of the waiting messages, and returns their text. `None` if none of
    /// them may go this way now.
    async fn commit(
        &self,
        session: &NativeSession,
        via: HandoverWay,
        (joins_turn, record): (bool, Option<String>),
    ) -> Result<Option<NativeText>> {
        let (session, tuning) = (session.clone(), self.core.tuning);
        let id = HandoverId::new(&self.core.ids, self.core.now());
        let job = self.core.store.write(job!(|tx| {
            let Some(row) = tx.peers().get(&session.peer).await? else { return Ok(None) };
            let is_in_turn = row.peer.status == PeerStatus::Busy;
            let takes = match row.peer.status {
                PeerStatus::Online | PeerStatus::Idle => !joins_turn,
                PeerStatus::Busy => joins_turn,
                _ => false,
            };
            let is_same = row.is_in(&session.process);
            // A waiter of the client's hooks may have begun a turn a moment ago.
            if !takes || !is_same || tx.inboxes().is_waking(&session.peer).await? && !is_in_turn {
                return Ok(None);
            }
            let turn = if joins_turn { TurnOfMail::Person } else { TurnOfMail::Begins };
            let giver = MailGiver {
                id: id.as_str(),
                via: via.as_str(),
                failed_handovers: (0, via.tries() - 1),
            };
            let offer = (MailOffer::New, turn);
            let handed = hand_over(tx, &row.peer, giver, offer, &tuning).await?;
            let Some(handed) = handed else { return Ok(None) };
            let handover = HandoverRow {
                handover_id: id.clone(),
                peer_id: session.peer,
                session_id: session.session_id,
                via,
                joins_turn,
                is_held: false,
                record,
                at: tx.now(),
            };
            tx.handovers().insert(&handover, &handed.ids).await?;
            Ok::<_, Error>(Some(NativeText { id, text: whole_text(handed), joins_turn }))
        }));
        job.await
    }

    /// Settles an open hand-over as far as the client shows its outcome; `None` if the hand-over is
    /// over.
    async fn settle(
        &self,
        open: &HandoverRow,
        (session, status): (Option<&NativeSession>, PeerStatus),
        watch: &mut HandoverWatch,
    ) -> Result<Option<OpenHandover>> {
        let id = &open.handover_id;
        let messages = self.core.store.handovers().messages(id).await?;
        let is_open = |state| match state {
            DeliveryState::Offered => true,
            DeliveryState::Injected => open.via.records_after_hook(),
            _ => false,
        };
        let (waiting, over): (Vec<Message>, Vec<Message>) =
            messages.into_iter().partition(|message| is_open(message.state));
        if !over.is_empty() || waiting.is_empty() {
            // These messages are answered, acknowledged or expired.
            let (id, over) = (id.clone(), ids_of(&over));
            let job = self.core.store.write(job!(|tx| tx.handovers().release(&id, &over).await));
            job.await?;
        }
        if waiting.is_empty() {
            watch.remove(id);
            return Ok(None);
        }
        let is_offered = waiting.iter().any(|message| message.state == DeliveryState::Offered);
        let again = |at| Ok(Some(OpenHandover { at, is_offered }));
        let seen = watch.entry(id.clone()).or_insert_with(|| WatchedHandover::new(session, false));
        let may_ask_now = open.via.answers_for_itself() && !seen.is_own;
        if !may_ask_now && seen.since.elapsed() < SILENCE {
            return again(seen.since + SILENCE);
        }
        let mark = |it: &Message| (it.id.clone(), stamp::naming(&it.id).into_string());
        let question = NativeQuestion {
            id: id.clone(),
            marks: waiting.iter().map(mark).collect(),
            record: open.record.clone(),
        };
        let shown = self.ways.record_shows(open.via, session, &question).await;
        let Some(ShownMessages { mut read, waiting: mut kept, begun }) = shown else {
            let first = *seen.unreadable.get_or_insert_with(Instant::now);
            let max_wait = if session.is_some() { UNREADABLE } else { GONE };
            if first.elapsed() < max_wait {
                return again((Instant::now() + WAY_POLL).min(first + max_wait));
            }
            self.end_unknown(open).await?;
            watch.remove(id);
            return Ok(None);
        };
        seen.unreadable = None;
        let is_alive =
            session.is_some_and(|session| seen.process.as_ref() == Some(&session.process));
        if !is_alive && !open.via.keeps_queue() {
            kept.clear();
        }
        if is_alive {
            // The client's hook has shown these messages, and its record does not contradict that.
            let is_told = |message: &&Message| {
                message.state == DeliveryState::Injected && !begun.contains(&message.id)
            };
            read.extend(waiting.iter().filter(is_told).map(|message| message.id.clone()));
        }
        if is_alive && seen.may_keep(&begun, status) {
            kept.extend(begun);
        }
        self.apply_record(open, is_alive, (read, kept)).await?;
        if self.core.store.handovers().messages(id).await?.is_empty() {
            watch.remove(id);
            return Ok(None);
        }
        again(Instant::now() + SILENCE)
    }

    /// Applies the client's record: messages that were read become `injected`, messages that the
    /// client keeps stay, and messages that it does not have are free for the next way.
    async fn apply_record(
        &self,
        open: &HandoverRow,
        is_alive: bool,
        (read, kept): (Vec<MessageId>, Vec<MessageId>),
    ) -> Result<()> {
        let open = open.clone();
        let peer = open.peer_id.clone();
        let job = self.core.store.write(job!(|tx| {
            let mut messages = tx.handovers().messages(&open.handover_id).await?;
            let mut shown: Vec<Message> =
                messages.extract_if(.., |message| read.contains(&message.id)).collect();
            confirm(tx, &peer, &open.handover_id, &mut shown).await?;
            messages.retain(|message| !kept.contains(&message.id));
            if messages.is_empty() || open.is_held {
                return Ok(());
            }
            let is_offered = |message: &Message| message.state == DeliveryState::Offered;
            let mode = tx.peers().permission_mode(&peer).await?;
            // Codex has a mode of the same name, in which it holds no text back.
            let may_hold = open.via == HandoverWay::Inbox && mode.as_deref() == Some(BYPASS);
            if is_alive && may_hold && messages.iter().all(is_offered) {
                // The person decides in the client whether the text is let in.
                return Ok(tx.handovers().note_held(&open.handover_id, HELD).await?);
            }
            // If the process is gone and showed none of the messages, the way has not failed:
            // it may bring them to the client's next process.
            let has_failed = is_alive || !shown.is_empty();
            free(tx, &peer, &open.handover_id, &messages, has_failed).await
        }));
        job.await
    }

    /// Releases the messages of a hand-over that the client certainly did not take.
    async fn fail(&self, peer: &PeerId, id: &HandoverId) -> Result<()> {
        let (peer, id) = (peer.clone(), id.clone());
        let job = self.core.store.write(job!(|tx| {
            let messages = tx.handovers().messages(&id).await?;
            free(tx, &peer, &id, &messages, true).await
        }));
        job.await
    }

    /// Ends the deliveries of a hand-over whose outcome cannot be known. Messages that a hook of
    /// the client has shown stay `injected`.
    async fn end_unknown(&self, open: &HandoverRow) -> Result<()> {
        let (id, peer) = (open.handover_id.clone(), open.peer_id.clone());
        let job = self.core.store.write(job!(|tx| {
            let mut messages = tx.handovers().messages(&id).await?;
            let ids = ids_of(&messages);
            messages.retain(|message| message.state == DeliveryState::Offered);
            let why = Some(OUTCOME_UNKNOWN);
            advance(tx, &peer, &mut messages, DeliveryState::Undeliverable, why).await?;
            Ok(tx.handovers().release(&id, &ids).await?)
        }));
        job.await
    }
}

/// The text for the client: the line for the person at the terminal, then the messages.
fn whole_text(handed: HandedMail) -> ModelText {
    if handed.wake_line.is_empty() {
        return handed.text;
    }
    model_text!("{}\n{}", handed.wake_line, handed.text)
}

/// Releases messages of a hand-over, and notifies what waits for mail. If the way has failed, the
/// messages are for the next way, otherwise for any way.
async fn free(
    tx: &mut WriteTx,
    peer: &PeerId,
    id: &HandoverId,
    messages: &[Message],
    has_failed: bool,
) -> Result<()> {
    let ids = ids_of(messages);
    tx.messages().note_turn(&ids, false).await?;
    if has_failed {
        tx.handovers().note_failed(&ids).await?;
    }
    tx.handovers().release(id, &ids).await?;
    if has_failed {
        return Ok(note_unseen(tx, peer, messages).await?);
    }
    let unseen = tx.inboxes().take_back(peer, &[id.to_string()]).await?;
    Ok(note_unseen(tx, peer, &unseen).await?)
}
