//! What a hook's event changes: pure functions from the known state and the event to effects, so
//! that each rule is a line of a test. The service applies the effects in one write job.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{HookClient, HookEvent, HookMoment, HookPrompt, HookToolUse};
use crate::{
    Peer, PeerStatus, Timestamp, WaitingFor,
    journal::{Session, SessionSource},
    limits,
    words::words,
};

/// The open calls of tools of one session, the oldest first: each by the client's id of it, or by
/// its tool if the client gives no ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpenCalls(Vec<String>);

impl OpenCalls {
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, call: &str) -> bool {
        self.0.iter().any(|open| open == call)
    }

    /// Adds a call that has begun; returns whether it was not open.
    pub fn begin(&mut self, call: &str) -> bool {
        if call.len() > limits::SHORT_TEXT_BYTES || self.has(call) {
            return false;
        }
        if self.0.len() >= limits::OPEN_CALLS {
            self.0.remove(0);
        }
        self.0.push(call.to_owned());
        true
    }

    /// Removes a call that has ended; returns whether it was open.
    pub fn end(&mut self, call: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|open| open != call);
        self.0.len() < before
    }

    /// Removes all calls; returns whether there were any.
    pub fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

/// What the section `[hooks]` of the configuration says.
#[derive(Debug, Clone, Copy)]
pub struct HookPolicy {
    /// Tool calls after which a session is reminded of its active record.
    pub check_in: i64,
    /// Whether a prompt is answered with what the team knows about it.
    pub context: bool,
    /// Whether sub-agents get reminders and notes on runs.
    pub sub_agents: bool,
    pub attended: AttendedPrompts,
}

words! {
    /// What happens with prompts that clients show the persons who started them.
    #[derive(Default)]
    pub enum AttendedPrompts {
        /// They are shown, and can be answered through `svc` as well.
        #[default]
        Answer = "answer",
        Watch = "watch",
        /// Their sessions count as waiting, and nothing more is shown.
        Off = "off",
    }
}

impl FromStr for AttendedPrompts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == text);
        known.ok_or_else(|| format!("`{text}` is not answer, watch or off"))
    }
}

impl Default for HookPolicy {
    fn default() -> Self {
        Self {
            check_in: limits::CHECK_IN,
            context: true,
            sub_agents: false,
            attended: AttendedPrompts::default(),
        }
    }
}

/// When an event reaches the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HookTiming {
    /// The hook waits for the reply.
    #[default]
    Live,
    /// Nobody waits for the reply: the daemon was away, or the hook has given up. The event does
    /// not change state that is known from a later time.
    Late { happened_at: Timestamp },
}

impl HookTiming {
    pub fn is_live(self) -> bool {
        self == Self::Live
    }

    /// When the event happened.
    pub fn time(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Live => now,
            Self::Late { happened_at } => happened_at,
        }
    }

    /// Whether the event happened before `known_at`, the time of something known.
    pub fn is_before(self, known_at: Timestamp) -> bool {
        matches!(self, Self::Late { happened_at } if happened_at < known_at)
    }
}

/// What is known of an event's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookIdHistory {
    /// Nothing, or the event has no id.
    New,
    /// A later hook has reported that the event's hook gave up waiting.
    GivenUp,
    Repeated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookReception {
    New(HookTiming),
    /// The event has no effects, as it counts once.
    Repeated {
        /// A repeat from the spool shows that nobody saw the first reply. What that reply handed
        /// over is taken back.
        first_reply_unseen: bool,
    },
}

/// How an event with this history and this timing is received at `now`.
pub fn reception(history: HookIdHistory, timing: HookTiming, now: Timestamp) -> HookReception {
    match (history, timing) {
        (HookIdHistory::Repeated, timing) => {
            HookReception::Repeated { first_reply_unseen: !timing.is_live() }
        }
        (HookIdHistory::GivenUp, HookTiming::Live) => {
            HookReception::New(HookTiming::Late { happened_at: now })
        }
        (HookIdHistory::GivenUp | HookIdHistory::New, timing) => HookReception::New(timing),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HookAudience {
    #[default]
    Nobody,
    Session,
    /// A sub-agent, which gets only reminders and notes on runs.
    SubAgent,
}

pub fn audience(event: &HookEvent, timing: HookTiming, policy: HookPolicy) -> HookAudience {
    match (timing, event.is_of_sub_agent()) {
        (HookTiming::Live, false) => HookAudience::Session,
        (HookTiming::Live, true) if policy.sub_agents => HookAudience::SubAgent,
        _ => HookAudience::Nobody,
    }
}

/// What an event does to its session's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEffect {
    Keep {
        is_over: bool,
    },
    Begin(SessionSource),
    Touch,
    /// The session ends, for a reason in the client's words.
    End {
        reason: Option<String>,
    },
}

/// What an event does to the row of its session. A late event from before the session's last
/// contact changes nothing, and so reopens no session.
pub fn session_effect(
    event: &HookEvent,
    timing: HookTiming,
    known: Option<&Session>,
) -> SessionEffect {
    let is_over = known.is_some_and(|session| session.ended_at.is_some());
    if known.is_some_and(|session| timing.is_before(session.last_seen_at)) {
        return SessionEffect::Keep { is_over };
    }
    match (&event.moment, known) {
        (HookMoment::End { .. }, None) => SessionEffect::Keep { is_over },
        (HookMoment::End { .. }, Some(_)) if is_over => SessionEffect::Keep { is_over },
        (HookMoment::End { reason }, Some(_)) => SessionEffect::End { reason: reason.clone() },
        (HookMoment::Start { source }, _) => SessionEffect::Begin(*source),
        // The hooks were installed after the session began.
        (_, None) => SessionEffect::Begin(SessionSource::Startup),
        (HookMoment::Prompt { .. }, Some(_)) if is_over => {
            SessionEffect::Begin(SessionSource::Resume)
        }
        (_, Some(_)) if is_over => SessionEffect::Keep { is_over },
        (_, Some(_)) => SessionEffect::Touch,
    }
}

/// What an event does to its session's peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceChange {
    Keep,
    /// The peer registers, for the first time or again.
    Register(PeerStatus),
    Report(PeerStatus),
}

/// What an event does to its session's peer. `session` is what it does to the session.
pub fn presence_change(
    event: &HookEvent,
    timing: HookTiming,
    session: &SessionEffect,
    known: Option<&Peer>,
) -> PresenceChange {
    let said = said_status(event, known);
    // After the session's end, an event without a status, such as the end of a sub-agent, is no
    // sign of life.
    let is_echo = said.is_none() && *session == SessionEffect::Keep { is_over: true };
    let is_of_another = event.is_of_sub_agent() && !concerns_the_prompt(event, known);
    if is_of_another || is_echo {
        return PresenceChange::Keep;
    }
    match known {
        None if matches!(event.moment, HookMoment::End { .. }) => PresenceChange::Keep,
        None => PresenceChange::Register(said.unwrap_or(PeerStatus::Online)),
        Some(peer) if timing.is_before(peer.last_seen) => PresenceChange::Keep,
        Some(peer) => {
            let status = said.unwrap_or(match peer.status {
                PeerStatus::Offline => PeerStatus::Online,
                status => status,
            });
            let comes_back = peer.status == PeerStatus::Offline && status != PeerStatus::Offline;
            if event.is_start() || comes_back {
                PresenceChange::Register(status)
            } else {
                PresenceChange::Report(status)
            }
        }
    }
}

/// The status that an event reports. While a person is asked about one tool, the end of another
/// tool does not report a status.
fn said_status(event: &HookEvent, known: Option<&Peer>) -> Option<PeerStatus> {
    let asked = known.and_then(|peer| peer.waiting_for.as_ref()?.tool.as_deref());
    match (&event.moment, asked) {
        (HookMoment::ToolEnd(done), Some(asked)) if done.tool != asked => None,
        // Neither the end of the refused turn nor a person's Esc ends a usage limit.
        (HookMoment::TurnOver { .. } | HookMoment::Stop { .. }, _)
            if known.is_some_and(Peer::is_limited) =>
        {
            None
        }
        (moment, _) => moment.peer_status(),
    }
}

/// Whether an event of a sub-agent is about a prompt, which its session shows.
fn concerns_the_prompt(event: &HookEvent, known: Option<&Peer>) -> bool {
    let Some(peer) = known else { return false };
    match event.moment {
        HookMoment::Waiting(_) => true,
        HookMoment::Answered(_) | HookMoment::ToolStart(_) | HookMoment::ToolEnd(_) => {
            peer.status == PeerStatus::Waiting
        }
        _ => false,
    }
}

/// What a session waits for after an event that happened `at`, if it waits then.
pub fn waiting_for(event: &HookEvent, known: &Peer, at: Timestamp) -> Option<WaitingFor> {
    let waits = known.waiting_for.clone().filter(|_| known.status == PeerStatus::Waiting);
    match (&event.moment, waits) {
        (HookMoment::Refused(limit) | HookMoment::Retry(Some(limit)), _) => {
            Some(limit.waiting_for(at))
        }
        // A repeated report without details keeps what is known of the prompt.
        (HookMoment::Waiting(HookPrompt { tool: None, .. }), Some(waits)) => Some(waits),
        (HookMoment::Waiting(HookPrompt { kind, title, tool, .. }), _) => Some(WaitingFor {
            kind: *kind,
            since: at,
            title: title.clone(),
            tool: tool.clone(),
            until: None,
        }),
        (_, waits) => waits,
    }
}

/// Updates the open calls of tools after an event; returns whether they changed. A late event from
/// before the peer's last contact opens no call: the call's end may have been reported.
pub fn follow_calls(
    calls: &mut OpenCalls,
    event: &HookEvent,
    timing: HookTiming,
    known: Option<&Peer>,
) -> bool {
    if event.is_of_sub_agent() {
        return false;
    }
    let is_past = known.is_some_and(|peer| timing.is_before(peer.last_seen));
    match &event.moment {
        HookMoment::ToolEnd(tool) => calls.end(tool.call()),
        _ if is_past => false,
        HookMoment::ToolStart(tool) => calls.begin(tool.call()),
        HookMoment::Start { source } if *source != SessionSource::Compact => calls.clear(),
        // A call that was refused has no end of its own.
        HookMoment::BatchEnd
        | HookMoment::Prompt { .. }
        | HookMoment::Stop { .. }
        | HookMoment::TurnOver { .. }
        | HookMoment::Refused(_)
        | HookMoment::End { .. } => calls.clear(),
        HookMoment::Start { .. }
        | HookMoment::Waiting(_)
        | HookMoment::Answered(_)
        | HookMoment::Retry(_)
        | HookMoment::Compacted
        | HookMoment::Other => false,
    }
}

/// What happens to a peer's messages at an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailHandover {
    /// Whether the event proves that the session has what earlier hooks gave it.
    pub confirms_given: bool,
    pub offer: MailOffer,
}

/// Which messages go into the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailOffer {
    /// None: the reply would not reach the model.
    Nothing,
    /// Those that the session was not given.
    New,
    /// Also those that it was given and has not acknowledged: a session that begins anew may never
    /// have seen them.
    NewAndGiven,
    /// Like [`Self::NewAndGiven`], without questions. A question begins a turn of its own, or comes
    /// with the first prompt; at the start of the session it would come twice.
    NewAndGivenNews,
}

/// What happens to a peer's messages at a live event.
pub fn mail_handover(event: &HookEvent) -> MailHandover {
    let offer = match (&event.moment, event.takes_context()) {
        (_, false) => MailOffer::Nothing,
        // The current turn continues with them.
        (HookMoment::Start { source: SessionSource::Compact }, true) => MailOffer::NewAndGiven,
        (HookMoment::Start { .. }, true) => MailOffer::NewAndGivenNews,
        (_, true) => MailOffer::New,
    };
    MailHandover { confirms_given: !event.is_start(), offer }
}

/// Effect on the number of tool calls since the session last saw its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCountEffect {
    Keep,
    Reset,
    /// The session is also reminded of its active record.
    ResetAndRemind,
}

/// Tools that show a session its record.
const RECORD_TOOLS: &[&str] = &["start_ghap", "update_ghap", "adopt_ghap"];

/// `count` includes this call of `tool`.
pub fn tool_count_effect(
    event: &HookEvent,
    tool: &HookToolUse,
    timing: HookTiming,
    policy: HookPolicy,
    count: i64,
) -> ToolCountEffect {
    let is_over = matches!(event.moment, HookMoment::ToolEnd(_));
    if is_over && RECORD_TOOLS.iter().any(|name| tool.calls(name)) {
        // The tool itself has reset the count, and this call of it does not count.
        return ToolCountEffect::Reset;
    }
    // If nobody waits for the reply, the reminder comes with the next call.
    if count < policy.check_in || !timing.is_live() {
        return ToolCountEffect::Keep;
    }
    match audience(event, timing, policy) {
        HookAudience::Nobody => ToolCountEffect::Reset,
        HookAudience::Session | HookAudience::SubAgent => ToolCountEffect::ResetAndRemind,
    }
}

/// Whether an event only updates the last contact of session and peer, which is recent anyway.
/// `calls` are the open calls. With mail in the inbox the event does more, and the end of a batch
/// does with an open prompt.
pub fn is_sign_of_life(
    event: &HookEvent,
    session: &Session,
    (peer, calls): (&Peer, &OpenCalls),
    now: Timestamp,
) -> bool {
    let is_fresh = |at| now.since(at) < limits::HOOK_SEEN_RESOLUTION;
    let writes_nothing = match event.moment {
        HookMoment::ToolStart(_)
        | HookMoment::ToolEnd(_)
        | HookMoment::BatchEnd
        | HookMoment::Other => {
            event.counted_tool().is_none()
                && event.finished_run().is_none()
                && !follow_calls(&mut calls.clone(), event, HookTiming::Live, Some(peer))
        }
        _ => false,
    };
    writes_nothing
        && session.ended_at.is_none()
        && is_fresh(session.last_seen_at)
        && is_fresh(peer.last_seen)
        && said_status(event, Some(peer)).is_none_or(|status| status == peer.status)
}

/// How the session begins, if this is the first event at which the client takes context. `peer` is
/// the peer before the event. opencode takes no context at a session's start, so for opencode it is
/// the first prompt.
pub fn session_source_of_start(event: &HookEvent, peer: Option<&Peer>) -> Option<SessionSource> {
    match event.moment {
        HookMoment::Start { source } => Some(source),
        HookMoment::Prompt { .. } if event.client == HookClient::Opencode => {
            let is_first = peer.is_none_or(|peer| peer.status == PeerStatus::Online);
            is_first.then_some(SessionSource::Startup)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_open_until_it_ends_or_many_come_after_it() {
        let mut calls = OpenCalls::default();
        assert!(calls.begin("a") && !calls.begin("a") && calls.begin("b"));
        assert!(calls.end("a") && !calls.end("a") && !calls.is_empty());
        for number in 0..limits::OPEN_CALLS {
            assert!(calls.begin(&number.to_string()));
        }
        assert!(!calls.end("b"), "it made room");
        assert!(!calls.begin(&"x".repeat(10_000)));
        assert!(calls.clear() && calls.is_empty() && !calls.clear());
    }
}
