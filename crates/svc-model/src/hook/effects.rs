//! What an event changes: given what is known and what happened, these effects. Pure, so that each
//! rule is a line of a test; the service applies the effects in one write job.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{HookClient, HookEvent, HookMoment, HookPrompt, HookToolUse};
use crate::{
    OpenCalls, Peer, PeerStatus, Timestamp, WaitingFor,
    journal::{Session, SessionSource},
    limits,
};

/// What a person may configure.
#[derive(Debug, Clone, Copy)]
pub struct HookPolicy {
    /// After this many tool calls a session is reminded of its active record.
    pub check_in: i64,
    /// Whether a prompt is answered with what the team knows about it.
    pub context: bool,
    /// Whether sub-agents get reminders and notes on runs.
    pub sub_agents: bool,
    /// What becomes of the prompts of attended sessions.
    pub attended: AttendedPrompts,
}

/// What becomes of the prompts that clients show the persons who started them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttendedPrompts {
    /// They are shown, and can be answered here as well.
    #[default]
    Answer,
    /// They are shown.
    Watch,
    /// Their sessions count as waiting, and nothing more is shown.
    Off,
}

impl FromStr for AttendedPrompts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "answer" => Ok(Self::Answer),
            "watch" => Ok(Self::Watch),
            "off" => Ok(Self::Off),
            _ => Err(format!("`{text}` is not answer, watch or off")),
        }
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
    /// Nobody waits for the reply: the daemon was away, or the hook has given up. What is known
    /// from later on stays.
    Late { happened_at: Timestamp },
}

impl HookTiming {
    /// Whether the hook waits for the reply.
    pub fn is_live(self) -> bool {
        self == Self::Live
    }

    /// The time to note, at `now`.
    pub fn time(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Live => now,
            Self::Late { happened_at } => happened_at,
        }
    }

    /// Whether the event happened before `known_at`, of which something is known already.
    pub fn is_before(self, known_at: Timestamp) -> bool {
        matches!(self, Self::Late { happened_at } if happened_at < known_at)
    }
}

/// What is known of an event's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookIdHistory {
    /// Nothing, or the event has no id.
    New,
    /// The hook gave up waiting before the event arrived, and a later one has said so.
    GivenUp,
    /// The event came before.
    Repeated,
}

/// How an event is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookReception {
    /// Its effects follow.
    New(HookTiming),
    /// It counts once, so nothing follows.
    Repeated {
        /// A repeat from the spool shows that nobody saw the first reply. What that handed over is
        /// taken back.
        first_reply_unseen: bool,
    },
}

/// How an event with this history, told with this timing, is taken in at `now`.
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

/// Who reads the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HookAudience {
    #[default]
    Nobody,
    /// The session itself.
    Session,
    /// A sub-agent, which gets reminders and notes on runs alone.
    SubAgent,
}

/// Who reads the reply to this event.
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
    /// The row stays as it is.
    Keep {
        /// Whether the session is over.
        is_over: bool,
    },
    /// The session begins, or begins again.
    Begin(SessionSource),
    /// The session is alive.
    Touch,
    /// The session is over from now on.
    End {
        /// The client's word for why.
        reason: Option<String>,
    },
}

/// What an event does to the row of its session, which is `known` so far. A late event opens no
/// session again.
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
        // Its hooks were installed after it began.
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
    /// Nothing.
    Keep,
    /// The peer registers, for the first time or again, and has this status.
    Register(PeerStatus),
    /// The peer is alive and has this status.
    Report(PeerStatus),
}

/// What an event does to its session's peer, which is `known` so far. `session` is what it does to
/// the session.
pub fn presence_change(
    event: &HookEvent,
    timing: HookTiming,
    session: &SessionEffect,
    known: Option<&Peer>,
) -> PresenceChange {
    let said = said_status(event, known);
    // An event without a status, such as the end of a sub-agent, comes after the session's end and
    // is no sign of life.
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

/// The status that an event tells of. While a person is asked about one tool, another that runs
/// beside it ends nothing.
fn said_status(event: &HookEvent, known: Option<&Peer>) -> Option<PeerStatus> {
    let asked = known.and_then(|peer| peer.waiting_for.as_ref()?.tool.as_deref());
    match (&event.moment, asked) {
        (HookMoment::ToolEnd(done), Some(asked)) if done.tool != asked => None,
        // The end of a refused turn, and a person's Esc, do not end a usage limit.
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
        // That it still waits, in fewer words.
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

/// Notes which calls of tools are open after an event; answers whether that is another set. What is
/// told late opens none: its end may have been told.
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
        HookMoment::Prompt { .. }
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

/// What becomes of a peer's messages at an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailHandover {
    /// Whether the event shows that the session has what earlier hooks gave it.
    pub confirms_given: bool,
    /// The messages that go into the reply.
    pub offer: MailOffer,
}

/// Which messages go into the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailOffer {
    /// None: the reply would not reach the model.
    Nothing,
    /// Those that the session has not been given.
    New,
    /// Also those that it was given and has not acknowledged: a session that begins anew may never
    /// have seen them.
    NewAndGiven,
    /// The same without questions. One begins a turn of its own, or comes with the first prompt;
    /// with the start of the session as well it would stand there twice.
    NewAndGivenNews,
}

/// What becomes of a peer's messages at a live event.
pub fn mail_handover(event: &HookEvent) -> MailHandover {
    let offer = match (&event.moment, event.takes_context()) {
        (_, false) => MailOffer::Nothing,
        // The turn under way goes on with it.
        (HookMoment::Start { source: SessionSource::Compact }, true) => MailOffer::NewAndGiven,
        (HookMoment::Start { .. }, true) => MailOffer::NewAndGivenNews,
        (_, true) => MailOffer::New,
    };
    MailHandover { confirms_given: !event.is_start(), offer }
}

/// What happens to the count of tool calls since the record was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCountEffect {
    /// It goes on.
    Keep,
    /// It begins from zero.
    Reset,
    /// It begins from zero, and the session is reminded of its active record.
    ResetAndRemind,
}

/// Tools that show a session its record.
const RECORD_TOOLS: &[&str] = &["start_ghap", "update_ghap", "adopt_ghap"];

/// What happens to a count that is `count` with this call of `tool`.
pub fn tool_count_effect(
    event: &HookEvent,
    tool: &HookToolUse,
    timing: HookTiming,
    policy: HookPolicy,
    count: i64,
) -> ToolCountEffect {
    let is_over = matches!(event.moment, HookMoment::ToolEnd(_));
    if is_over && RECORD_TOOLS.iter().any(|name| tool.calls(name)) {
        // The tool itself began the count from zero, and its own call is none of those since.
        return ToolCountEffect::Reset;
    }
    // A reminder that nobody would read waits for the next call.
    if count < policy.check_in || !timing.is_live() {
        return ToolCountEffect::Keep;
    }
    match audience(event, timing, policy) {
        HookAudience::Nobody => ToolCountEffect::Reset,
        HookAudience::Session | HookAudience::SubAgent => ToolCountEffect::ResetAndRemind,
    }
}

/// Whether an event changes nothing but when session and peer were last heard of, and that was a
/// moment ago. `calls` are the open calls so far. With mail in the inbox it changes more.
pub fn is_sign_of_life(
    event: &HookEvent,
    session: &Session,
    (peer, calls): (&Peer, &OpenCalls),
    now: Timestamp,
) -> bool {
    let is_fresh = |at| now.since(at) < limits::HOOK_SEEN_RESOLUTION;
    let writes_nothing = match event.moment {
        HookMoment::ToolStart(_) | HookMoment::ToolEnd(_) => {
            event.counted_tool().is_none()
                && event.finished_run().is_none()
                && !follow_calls(&mut calls.clone(), event, HookTiming::Live, Some(peer))
        }
        HookMoment::Other => true,
        _ => false,
    };
    writes_nothing
        && session.ended_at.is_none()
        && is_fresh(session.last_seen_at)
        && is_fresh(peer.last_seen)
        && said_status(event, Some(peer)).is_none_or(|status| status == peer.status)
}

/// How the session begins, if this is the first event at which the client takes context. `peer` is
/// what was known of its peer before. opencode takes none at a session's start, so there it is the
/// first prompt.
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
