//! Everything that one event writes, in one commit. That begins with what earlier replies gave and
//! nobody saw: it is taken back, and given again.
//!
//! Each call of a hook has an id, and everything that its reply gives is stored with that id. A
//! hook that could not print its reply notes the id in a file, which the session's next hook or the
//! daemon reads.

use std::sync::Arc;

use svc_model::{
    AgentRequestId, Caller, Peer, PeerId, PeerState, PeerStatus, ProcessIdentity, RegisterInput,
    SessionReference, StatusEvidence, Timestamp, TokenHash, TokenId, WaitingFor,
    hook::{
        self, AttendedPrompts, EarlierRun, HookAudience, HookClient, HookEvent, HookIdHistory,
        HookMoment, HookPolicy, HookPrompt, HookReception, HookTiming, PresenceChange, RunNote,
        SessionEffect, ToolCountEffect, headlines,
    },
    is_agent_key, limits,
    quote::ModelText,
};
use svc_store::{PeerRow, SessionStart, StoreError, WriteTx};
use svc_sys::session_secret::SessionSecrets;

use crate::service::{
    Error, Result, assignments, check,
    core::Core,
    handovers::{self, MailGiver, ShownHandover, TurnOfMail},
    journal::{NewOutcome, put_outcome},
    prompts::{self, NewPrompt},
    team::{self, ActingSession},
};

/// The fields that `svc hook` sends with an event, beside the client's own payload.
#[derive(Debug, Clone, Default)]
pub struct HookCall {
    /// Names the event: an event that is sent again counts once. A late repeat shows that the first
    /// reply was not seen.
    pub id: Option<String>,
    /// The client's process on the daemon's machine.
    pub pid: Option<u32>,
    /// The tmux pane that the client runs in.
    pub tmux_pane: Option<String>,
    /// Whether the hook waits for the reply.
    pub timing: HookTiming,
    /// Ids of this session's events whose replies were not seen and will not be.
    pub lost: Vec<String>,
    /// SHA-256 of the session's secret, which the hook read in the data folder.
    pub secret: Option<TokenHash>,
    /// Whether the client's hook reports the event, so that its folder is the session's; false if a
    /// model calls the tool.
    pub is_from_hook: bool,
}

/// What an event may write about a session that is unknown so far or begins again.
pub(super) struct SessionProfile {
    pub(super) project: Option<String>,
    /// Root folder of the project.
    pub(super) root: Option<String>,
    /// A free name for the session's peer, if the peer needs one.
    pub(super) peer_name: Option<String>,
}

/// Inputs of the write job of an event.
pub(super) struct HookWriteJob {
    pub(super) core: Core,
    pub(super) caller: Caller,
    pub(super) event: Arc<HookEvent>,
    pub(super) acting: ActingSession,
    /// When the event arrived, before it waited for the writer.
    pub(super) arrived: Timestamp,
    /// The call. Its `pid` is the process that the connection shows, if it shows one.
    pub(super) call: HookCall,
    /// Where the session's secret is kept, if the session gets one with this event.
    pub(super) secrets: Option<SessionSecrets>,
    pub(super) profile: SessionProfile,
    /// Whether the profile's name replaces the peer's present name.
    pub(super) is_renamed: bool,
    /// The client's process with its start time, if it runs or is known to have run.
    pub(super) process: Option<ProcessIdentity>,
    pub(super) policy: HookPolicy,
    /// Whether the client shows a dialog while its hook runs, so that the hook may hold the prompt.
    pub(super) has_dialog: bool,
}

/// What the job passes to the reply, and what is left to do after the commit.
#[derive(Default)]
pub(super) struct HookJobResult {
    pub(super) audience: HookAudience,
    pub(super) reminder: Option<ModelText>,
    pub(super) run: Option<RunNote>,
    /// Messages that this reply hands over.
    pub(super) mail: Option<ModelText>,
    /// The lines that a person is shown about the messages that woke the session.
    pub(super) headline: Option<ModelText>,
    /// Tokens of the session that the event ended.
    pub(super) ended_tokens: Vec<TokenId>,
    /// The prompt that the hook must hold.
    pub(super) held: Option<AgentRequestId>,
}

/// What was done to the session's row.
struct AppliedSession {
    effect: SessionEffect,
    ended_tokens: Vec<TokenId>,
}

/// A session's peer after an event.
struct SessionPresence {
    peer: Peer,
    /// Whether the vendor had refused the session for usage before the event.
    was_limited: bool,
}

impl HookWriteJob {
    pub(super) async fn run(self, tx: &mut WriteTx) -> Result<HookJobResult> {
        if self.is_of_removed_agent(tx).await? {
            return Ok(HookJobResult::default());
        }
        let contact = SessionReference::Hook(self.call.secret);
        team::claim(tx, &self.caller, &self.event.session_id, contact).await?;
        let timing = match self.settle(tx).await? {
            HookReception::New(timing) => timing,
            HookReception::Repeated { .. } => return Ok(HookJobResult::default()),
        };
        let AppliedSession { effect, ended_tokens } = self.apply_session(tx, timing).await?;
        self.keep_secret(tx).await?;
        let reminder = self.count_tool(tx, timing).await?;
        let run = self.record_run(tx).await?;
        let peer = self.apply_presence(tx, timing, &effect).await?;
        let held = self.follow_prompts(tx, timing).await?;
        let (mail, headline) = match peer {
            Some(SessionPresence { mut peer, was_limited }) if timing.is_live() => {
                let (mail, headline) = self.hand_over_mail(tx, &peer, was_limited).await?;
                if let (Some(_), HookMoment::Stop { .. }) = (&mail, &self.event.moment) {
                    // The session continues its turn with what it is given at the end of the turn.
                    let at = tx.now();
                    let state = self.state(PeerStatus::Busy, None, at);
                    team::set_state(tx, &mut peer, state, "hook").await?;
                }
                (mail, headline)
            }
            Some(SessionPresence { peer, .. }) => {
                if let HookMoment::Prompt { text } = &self.event.moment
                    && !self.event.is_of_sub_agent()
                {
                    handovers::confirm_shown(tx, &peer.peer_id, text).await?;
                    assignments::late_turn_prompted(tx, &peer.peer_id, text).await?;
                }
                self.answer_questions(tx, &peer.peer_id).await?;
                (None, None)
            }
            None => (None, None),
        };
        let audience = hook::audience(&self.event, timing, self.policy);
        Ok(HookJobResult { audience, reminder, run, mail, headline, ended_tokens, held })
    }

    /// Whether a process of a hosted agent reports the event that was removed with all its
    /// sessions: a late event begins none of them again. Only the processes below an agent's host
    /// have its key, and the agent's row goes only with its removal.
    async fn is_of_removed_agent(&self, tx: &mut WriteTx) -> Result<bool, StoreError> {
        match self.caller.session().filter(|key| is_agent_key(key)) {
            Some(key) if self.caller.process().is_some() => Ok(!tx.agents().was_run(key).await?),
            _ => Ok(false),
        }
    }

    /// Opens and closes the prompts of an attended session. Returns the prompt that the hook must
    /// hold.
    async fn follow_prompts(
        &self,
        tx: &mut WriteTx,
        timing: HookTiming,
    ) -> Result<Option<AgentRequestId>> {
        prompts::follow_event(tx, &self.event, timing).await?;
        let HookMoment::Waiting(HookPrompt { asks: Some(prompt), .. }) = &self.event.moment else {
            return Ok(None);
        };
        let is_attended = !self.caller.session().is_some_and(is_agent_key);
        if !is_attended
            || !timing.is_live()
            || self.event.is_of_sub_agent() && self.event.client == HookClient::ClaudeCode
            || self.policy.attended == AttendedPrompts::Off
        {
            return Ok(None);
        }
        let owned = tx.sessions().owner(&self.event.session_id).await?;
        let Some(owned) = owned else { return Ok(None) };
        let is_held = self.has_dialog && self.policy.attended == AttendedPrompts::Answer;
        let id = AgentRequestId::new(&self.core.ids, tx.now());
        let (session, cwd) = (self.event.session_id.as_str(), self.event.cwd.clone());
        let new = NewPrompt { id, session, cwd, prompt, owned, is_held };
        let id = prompts::open(tx, new).await?;
        Ok(is_held.then_some(id))
    }

    /// Keeps the session's secret, now that the session is the caller's. Writes the file before the
    /// commit, so that neither a hook that disconnects early nor the end of the daemon can leave a
    /// session without its secret. If the file cannot be written, the session goes on, but no other
    /// process can take it over.
    async fn keep_secret(&self, tx: &mut WriteTx) -> Result<(), StoreError> {
        let Some(secrets) = &self.secrets else { return Ok(()) };
        match secrets.ensure(&self.event.session_id) {
            Ok(secret) => tx.sessions().put_secret(&self.event.session_id, &secret).await,
            Err(error) => {
                tracing::warn!(%error, "cannot keep the secret by which a session is taken up again");
                Ok(())
            }
        }
    }

    /// Takes back what earlier hooks of the session did not print, before anything is given or
    /// counts as seen; and stores the event's id.
    async fn settle(&self, tx: &mut WriteTx) -> Result<HookReception> {
        let session_id = &self.event.session_id;
        take_back(tx, &self.core, &self.caller, session_id, &self.call.lost).await?;
        let history = match &self.call.id {
            Some(id) if !tx.hooks().remember(id).await? => HookIdHistory::Repeated,
            Some(id) if tx.hooks().is_lost(id).await? => HookIdHistory::GivenUp,
            _ => HookIdHistory::New,
        };
        let reception = hook::reception(history, self.call.timing, tx.now());
        if let (HookReception::Repeated { first_reply_unseen: true }, Some(id)) =
            (reception, &self.call.id)
        {
            take_back(tx, &self.core, &self.caller, session_id, std::slice::from_ref(id)).await?;
        }
        Ok(reception)
    }

    /// Writes the session's row and its events.
    async fn apply_session(&self, tx: &mut WriteTx, timing: HookTiming) -> Result<AppliedSession> {
        let session_id = &self.event.session_id;
        let known = tx.sessions().get(session_id).await?;
        let effect = hook::session_effect(&self.event, timing, known.as_ref());
        let mut ended_tokens = Vec::new();
        match &effect {
            SessionEffect::Keep { .. } => return Ok(AppliedSession { effect, ended_tokens }),
            SessionEffect::Touch => {
                let project = self.profile.project.as_deref().or_else(|| self.caller.project());
                let session = (session_id.as_str(), known.as_ref());
                team::touch_uncharged(tx, &self.caller, project, session).await?;
            }
            SessionEffect::End { reason } => {
                ended_tokens = team::end(tx, session_id, reason.as_deref()).await?.tokens;
            }
            SessionEffect::Begin(source) => {
                let start = SessionStart {
                    session_id: session_id.clone(),
                    project: self.profile.project.clone(),
                    client: Some(self.event.client.as_str().to_owned()),
                    source: *source,
                    created_by: self.caller.principal().to_string(),
                };
                team::begin(tx, &start).await?;
            }
        }
        if known.as_ref().is_none_or(|session| session.ended_at.is_some()) {
            // No hook is refused for its session's row.
            self.core.budget.note_uncharged(&self.caller);
        }
        if let HookTiming::Late { happened_at } = timing {
            // With the present time, the row would be newer than events that happened after this
            // one.
            tx.sessions().date(session_id, happened_at, known.is_none()).await?;
        }
        Ok(AppliedSession { effect, ended_tokens })
    }

    /// Counts a tool call, and returns the reminder that is due with it.
    async fn count_tool(
        &self,
        tx: &mut WriteTx,
        timing: HookTiming,
    ) -> Result<Option<ModelText>, StoreError> {
        let Some(tool) = self.event.counted_tool() else { return Ok(None) };
        let ActingSession { session_id, agent_id } = &self.acting;
        let at = timing.time(tx.now());
        let count = tx.tool_counts().count_tool(session_id, agent_id, &tool.tool, at).await?;
        match hook::tool_count_effect(&self.event, tool, timing, self.policy, count) {
            ToolCountEffect::Keep => return Ok(None),
            ToolCountEffect::Reset => {
                tx.tool_counts().reset(session_id, agent_id).await?;
                return Ok(None);
            }
            ToolCountEffect::ResetAndRemind => tx.tool_counts().reset(session_id, agent_id).await?,
        }
        let Some(record) = tx.ghaps().active(session_id).await? else { return Ok(None) };
        if let Some(id) = &self.call.id {
            tx.hooks().note_reminder(id, agent_id, count).await?;
        }
        Ok(Some(record.reminder(count)))
    }

    /// Records the outcome of a test, a build or a check. Returns what it means for the session's
    /// record.
    async fn record_run(&self, tx: &mut WriteTx) -> Result<Option<RunNote>> {
        let Some((tool, run)) = self.event.finished_run() else { return Ok(None) };
        let session_id = &self.acting.session_id;
        let earlier: Vec<_> = tx
            .outcomes()
            .last_verdicts(session_id, 2)
            .await?
            .into_iter()
            .map(|(verdict, at)| EarlierRun { verdict, at })
            .collect();
        let new = NewOutcome {
            command: run.command.chars().take(limits::GHAP_LONG_TEXT_CHARS).collect(),
            verdict: run.verdict.verdict.into(),
            summary: Some(run.verdict.summary.clone()),
            tool_use_id: tool.use_id.clone(),
        };
        let (outcome, is_new) =
            put_outcome(tx, &self.core.ids, &self.caller, &self.acting, new).await?;
        if !is_new || !hook::is_evidence(run.verdict.kind, run.verdict.verdict.into()) {
            return Ok(None);
        }
        let active = tx.ghaps().active(session_id).await?;
        Ok(hook::run_note(&outcome, &earlier, active.as_ref()))
    }

    /// Writes the session's peer and its events; `None` if the event does not change the peer.
    async fn apply_presence(
        &self,
        tx: &mut WriteTx,
        timing: HookTiming,
        session: &SessionEffect,
    ) -> Result<Option<SessionPresence>> {
        let known = match tx.peers().of_session(&self.event.session_id).await? {
            None => self.peer_of_agent(tx).await?,
            known => known,
        };
        let known_peer = known.as_ref().map(|row| &row.peer);
        let was_limited = known_peer.is_some_and(Peer::is_limited);
        let mut calls = known.as_ref().map(|row| row.open_calls.clone()).unwrap_or_default();
        let are_others = hook::follow_calls(&mut calls, &self.event, timing, known_peer);
        let change = hook::presence_change(&self.event, timing, session, known_peer);
        let known_id = known_peer.map(|peer| peer.peer_id.clone());
        let (peer, status) = match change {
            PresenceChange::Keep => (None, PeerStatus::Online),
            PresenceChange::Register(status) => (Some(self.register(tx, known).await?), status),
            PresenceChange::Report(status) => match known {
                Some(row) => (Some(self.in_process(tx, row).await?), status),
                None => (None, status),
            },
        };
        let id = peer.as_ref().map(|peer| peer.peer_id.clone()).or(known_id);
        if let (Some(id), true) = (id, are_others) {
            tx.peers().set_open_calls(&id, &calls).await?;
        }
        let Some(mut peer) = peer else { return Ok(None) };
        if let (Some(mode), true) = (&self.event.permission_mode, timing.is_live()) {
            tx.peers().note_permission_mode(&peer.peer_id, mode).await?;
        }
        let at = timing.time(tx.now());
        peer.last_seen = at;
        let waiting_for = hook::waiting_for(&self.event, &peer, at);
        let waiting_for = waiting_for.filter(|_| status == PeerStatus::Waiting);
        let state = self.state(status, waiting_for, at);
        team::set_state(tx, &mut peer, state, "hook").await?;
        Ok(Some(SessionPresence { peer, was_limited }))
    }

    /// A peer's state, with this client's events as evidence.
    fn state(
        &self,
        status: PeerStatus,
        waiting_for: Option<WaitingFor>,
        at: Timestamp,
    ) -> PeerState {
        let evidence = StatusEvidence::of_events(self.event.client);
        PeerState { status, waiting_for, at, evidence }
    }

    /// The peer of an agent that the daemon runs. The agent keeps one peer, whichever of its
    /// conversations the event is of.
    async fn peer_of_agent(&self, tx: &mut WriteTx) -> Result<Option<PeerRow>, StoreError> {
        let Some(key) = self.caller.session() else { return Ok(None) };
        if self.event.is_of_sub_agent() || tx.agents().live(key).await?.is_none() {
            return Ok(None);
        }
        let own = tx.peers().of_key(key).await?;
        let Some(mut row) = own.filter(|row| row.owner.as_deref() == Some(key)) else {
            return Ok(None);
        };
        row.peer.session_id = Some(self.event.session_id.clone());
        tx.peers().put(&row).await?;
        Ok(Some(row))
    }

    /// Moves the peer to the process that reports it: another process, if it took the session over.
    async fn in_process(&self, tx: &mut WriteTx, mut row: PeerRow) -> Result<Peer, StoreError> {
        if let Some(process) = self.process.as_ref().filter(|process| !row.is_in(process)) {
            row.peer.pid = self.call.pid;
            row.process_started = Some(process.started.clone());
            row.machine_id = Some(tx.machine_id().clone());
            tx.peers().put(&row).await?;
        }
        Ok(row.peer)
    }

    async fn register(&self, tx: &mut WriteTx, known: Option<PeerRow>) -> Result<Peer> {
        let client = self.event.client.as_str();
        let known_name = known.as_ref().map(|row| row.peer.display_name.clone());
        let name = match &self.profile.peer_name {
            Some(free) if self.is_renamed || known_name.is_none() => Some(free.clone()),
            _ => known_name,
        };
        let input = RegisterInput {
            display_name: name.unwrap_or_else(|| client.to_owned()),
            backend: client.to_owned(),
            path: self.profile.root.clone(),
            circle: None,
            role: None,
            session_id: Some(self.event.session_id.clone()),
            tmux_pane: self.call.tmux_pane.clone(),
            pid: self.call.pid,
            metadata: None,
        };
        let project = match self.caller.session() {
            Some(_) => self.caller.project().map(str::to_owned),
            None => self.profile.project.clone(),
        };
        if let Some(row) = known {
            return team::update(tx, &self.caller, row, input, project, self.process.clone()).await;
        }
        let id = PeerId::new(&self.core.ids, tx.now());
        team::create(tx, &self.caller, id, input, project, self.process.clone()).await
    }

    /// The last words of a turn answer the questions that the turn began with; a turn without last
    /// words answers nothing.
    async fn answer_questions(&self, tx: &mut WriteTx, peer: &PeerId) -> Result<()> {
        let end = match &self.event.moment {
            HookMoment::Stop { words: Some(words), .. } => Ok(words.as_str()),
            HookMoment::TurnOver { failure } => Err(failure.as_deref()),
            HookMoment::Refused(limit) => Err(Some(limit.said.as_str())),
            _ => return Ok(()),
        };
        if self.event.is_of_sub_agent() || self.is_hosted(tx, peer).await? {
            return Ok(());
        }
        match end {
            Ok(words) => assignments::turn_said(tx, &self.core, peer, words).await,
            Err(failure) => assignments::turn_failed(tx, &self.core, peer, failure).await,
        }
    }

    /// Whether the session is a hosted agent's: its host reports its turns.
    async fn is_hosted(&self, tx: &mut WriteTx, peer: &PeerId) -> Result<bool, StoreError> {
        Ok(self.caller.session().is_some_and(is_agent_key) && tx.peers().is_hosted(peer).await?)
    }

    /// Notes which messages the session has. Returns the messages for the reply, and the lines for
    /// a person if messages woke the session.
    async fn hand_over_mail(
        &self,
        tx: &mut WriteTx,
        peer: &Peer,
        was_limited: bool,
    ) -> Result<(Option<ModelText>, Option<ModelText>)> {
        if matches!(self.event.moment, HookMoment::Compacted) {
            // After a compaction, the context no longer has what the session was given.
            tx.seen().forget(&self.event.session_id).await?;
        }
        let handover = hook::mail_handover(&self.event);
        let mut woken_by = Vec::new();
        let mut turn = match &self.event.moment {
            HookMoment::Stop { .. } => TurnOfMail::Begins,
            _ => TurnOfMail::Person,
        };
        if self.event.is_start() && self.event.client == HookClient::Opencode {
            let session = (peer, self.event.session_id.as_str());
            handovers::leave_to_record(tx, &self.core.ids, session, self.arrived).await?;
        }
        if handover.confirms_given {
            let mut given = handovers::confirm_given(tx, &peer.peer_id, self.arrived).await?;
            if let HookMoment::Prompt { text } = &self.event.moment {
                let mut shown = ShownHandover::default();
                if !self.event.is_of_sub_agent() {
                    shown = handovers::confirm_shown(tx, &peer.peer_id, text).await?;
                    given.append(&mut shown.messages);
                }
                woken_by = handovers::headlines_of_wake(tx, &given, text).await?;
                // A text that joins a turn begins none.
                if !self.event.is_of_sub_agent() && !shown.joins_turn {
                    let core = &self.core;
                    let has_question =
                        assignments::turn_prompted(tx, core, &peer.peer_id, &given, text).await?;
                    turn = match (has_question, woken_by.is_empty()) {
                        (true, _) => TurnOfMail::BegunByQuestion,
                        (false, false) => TurnOfMail::Begins,
                        (false, true) => TurnOfMail::Person,
                    };
                }
            }
        }
        self.answer_questions(tx, &peer.peer_id).await?;
        if self.is_hosted(tx, &peer.peer_id).await? {
            // The host takes messages for a hosted agent, and makes turns of them.
            return Ok((None, headlines(&woken_by, 0)));
        }
        if was_limited && matches!(self.event.moment, HookMoment::Prompt { .. }) {
            // The vendor may refuse this turn, too. If it does not, the turn's next event shows
            // that.
            return Ok((None, headlines(&woken_by, 0)));
        }
        let giver = MailGiver::hook(self.call.id.as_deref().unwrap_or_default());
        let offer = (handover.offer, turn);
        let handed = handovers::hand_over(tx, peer, giver, offer, &self.core.tuning).await?;
        let Some(mut mail) = handed else { return Ok((None, headlines(&woken_by, 0))) };
        // Messages that did not fit in the wake come with this prompt, and the person sees lines
        // about them, too.
        if !woken_by.is_empty() {
            woken_by.append(&mut mail.headlines);
        }
        Ok((Some(mail.text), headlines(&woken_by, mail.others)))
    }
}

/// Checks the ids of events whose replies were not seen.
pub(super) fn check_lost(ids: &[String]) -> Result<()> {
    if ids.len() > limits::HOOKS_LOST {
        return Err(Error::invalid("lost", format!("at most {} ids", limits::HOOKS_LOST)));
    }
    ids.iter().try_for_each(|id| check::short("lost", Some(id)))
}

/// Takes back what the replies to these events gave to a session: messages, context, reminders, and
/// offers of open records.
pub(super) async fn take_back(
    tx: &mut WriteTx,
    core: &Core,
    caller: &Caller,
    session_id: &str,
    events: &[String],
) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    // An event may arrive after its id was reported as lost, so the ids are stored. A caller that
    // has no room for them is not refused, because its event counts more: what the reply to such a
    // late event gives is taken back with the next report.
    let room = core.budget.room_for_reported(tx, caller).await?;
    let count = usize::try_from(room).map_or(events.len(), |room| room.min(events.len()));
    if count > 0 {
        tx.hooks().remember_lost(&events[..count], &caller.principal()).await?;
    }
    tx.seen().take_back(session_id, events).await?;
    tx.seen().take_back_orphan_offers(session_id, events).await?;
    tx.hooks().take_back_reminders(session_id, events).await?;
    let Some(row) = tx.peers().of_session(session_id).await? else { return Ok(()) };
    let unseen = tx.inboxes().take_back(&row.peer.peer_id, events).await?;
    // No turn began with these messages, so the end of a turn does not answer the questions among
    // them.
    let ids: Vec<_> = unseen.iter().map(|message| message.id.clone()).collect();
    tx.messages().note_turn(&ids, false).await?;
    Ok(team::note_unseen(tx, &row.peer.peer_id, &unseen).await?)
}
