use std::time::Duration;

use super::{
    CheckedRun, HookClient, HookEvent, HookMoment, HookPrompt, HookToolUse, UsageLimit, effects::*,
};
use crate::{
    Peer, PeerStatus, StatusEvidence, Timestamp, WaitingKind,
    journal::{Session, SessionSource},
    limits,
};
use svc_outcome::{RunKind, RunResult, RunVerdict};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const EARLIER: Timestamp = Timestamp::from_millis(900_000);
const LATER: Timestamp = Timestamp::from_millis(1_100_000);

fn event(client: HookClient, moment: HookMoment) -> HookEvent {
    HookEvent::example(client, "", moment)
}

fn claude(moment: HookMoment) -> HookEvent {
    event(HookClient::ClaudeCode, moment)
}

fn in_sub_agent(event: HookEvent) -> HookEvent {
    HookEvent { agent_id: "a".to_owned(), ..event }
}

fn tool(name: &str) -> HookToolUse {
    HookToolUse::example(name)
}

fn test_run() -> HookToolUse {
    let verdict = RunVerdict {
        verdict: RunResult::Pass,
        kind: RunKind::Test,
        runner: "cargo test",
        passed: None,
        failed: None,
        skipped: None,
        summary: String::new(),
    };
    let run = Some(CheckedRun { command: "cargo test".to_owned(), verdict });
    HookToolUse { run, ..tool("Bash") }
}

fn start() -> HookMoment {
    HookMoment::Start { source: SessionSource::Startup }
}

fn prompt() -> HookMoment {
    HookMoment::Prompt { text: "p".to_owned() }
}

fn stop() -> HookMoment {
    HookMoment::Stop { again: false, words: None }
}

fn turn_over() -> HookMoment {
    HookMoment::TurnOver { failure: None }
}

fn end() -> HookMoment {
    HookMoment::End { reason: Some("logout".to_owned()) }
}

fn compacted() -> HookMoment {
    HookMoment::Start { source: SessionSource::Compact }
}

fn asks(tool: Option<&str>) -> HookMoment {
    let title = Some("touch made".to_owned());
    let tool = tool.map(str::to_owned);
    HookMoment::Waiting(HookPrompt { kind: WaitingKind::Permission, title, tool, asks: None })
}

fn late(happened_at: Timestamp) -> HookTiming {
    HookTiming::Late { happened_at }
}

fn session(last_seen_at: Timestamp) -> Session {
    Session {
        session_id: "s".to_owned(),
        project: None,
        client: None,
        source: SessionSource::Startup,
        started_at: Timestamp::from_millis(0),
        last_seen_at,
        ended_at: None,
        end_reason: None,
        tool_calls: 0,
        tool_count: 0,
    }
}

fn ended_session(last_seen_at: Timestamp) -> Session {
    Session { ended_at: Some(last_seen_at), ..session(last_seen_at) }
}

fn peer(status: PeerStatus, last_seen: Timestamp) -> Peer {
    Peer {
        backend: "claude-code".to_owned(),
        status,
        evidence: StatusEvidence::Hook,
        session_id: Some("s".to_owned()),
        ..Peer::operator(last_seen)
    }
}

#[test]
fn an_event_counts_once() {
    use HookIdHistory::{GivenUp, New, Repeated};
    let live = HookTiming::Live;
    for (history, timing, expected) in [
        (New, live, HookReception::New(live)),
        (New, late(EARLIER), HookReception::New(late(EARLIER))),
        (GivenUp, live, HookReception::New(late(NOW))),
        (GivenUp, late(EARLIER), HookReception::New(late(EARLIER))),
        (Repeated, live, HookReception::Repeated { first_reply_unseen: false }),
        (Repeated, late(EARLIER), HookReception::Repeated { first_reply_unseen: true }),
    ] {
        assert_eq!(reception(history, timing, NOW), expected, "{history:?} {timing:?}");
    }
}

#[test]
fn a_late_event_has_no_audience_and_a_sub_agent_only_by_policy() {
    let (silent, told) = (
        HookPolicy { sub_agents: false, ..HookPolicy::default() },
        HookPolicy { sub_agents: true, ..HookPolicy::default() },
    );
    let (own, beneath) = (claude(prompt()), in_sub_agent(claude(prompt())));
    for (event, timing, policy, expected) in [
        (&own, HookTiming::Live, silent, HookAudience::Session),
        (&own, HookTiming::Live, told, HookAudience::Session),
        (&own, late(EARLIER), told, HookAudience::Nobody),
        (&beneath, HookTiming::Live, silent, HookAudience::Nobody),
        (&beneath, HookTiming::Live, told, HookAudience::SubAgent),
        (&beneath, late(EARLIER), told, HookAudience::Nobody),
    ] {
        assert_eq!(audience(event, timing, policy), expected, "{event:?} {timing:?}");
    }
}

#[test]
fn what_an_event_does_to_a_session() {
    use SessionEffect::{Begin, End, Keep, Touch};
    let (open, over) = (Some(session(EARLIER)), Some(ended_session(EARLIER)));
    let ends = || End { reason: Some("logout".to_owned()) };
    let live = HookTiming::Live;
    for (moment, timing, known, expected) in [
        (start(), live, &None, Begin(SessionSource::Startup)),
        (start(), live, &open, Begin(SessionSource::Startup)),
        (start(), live, &over, Begin(SessionSource::Startup)),
        (prompt(), live, &None, Begin(SessionSource::Startup)),
        (prompt(), live, &open, Touch),
        (prompt(), live, &over, Begin(SessionSource::Resume)),
        (stop(), live, &None, Begin(SessionSource::Startup)),
        (stop(), live, &open, Touch),
        (stop(), live, &over, Keep { is_over: true }),
        (end(), live, &None, Keep { is_over: false }),
        (end(), live, &open, ends()),
        (end(), live, &over, Keep { is_over: true }),
        // Reported late, but nothing later is known.
        (end(), late(EARLIER), &open, ends()),
        (prompt(), late(NOW), &over, Begin(SessionSource::Resume)),
        (prompt(), late(NOW), &None, Begin(SessionSource::Startup)),
    ] {
        let effect = session_effect(&claude(moment.clone()), timing, known.as_ref());
        assert_eq!(effect, expected, "{moment:?} {timing:?} {known:?}");
    }
}

#[test]
fn a_late_event_changes_nothing_that_is_known_from_later_on() {
    let before = late(EARLIER.minus(Duration::from_millis(1)));
    let known_peer = peer(PeerStatus::Idle, EARLIER);
    for moment in [start(), prompt(), stop(), end(), HookMoment::Compacted, HookMoment::Other] {
        let event = claude(moment);
        for (known, is_over) in [(session(EARLIER), false), (ended_session(EARLIER), true)] {
            let effect = session_effect(&event, before, Some(&known));
            assert_eq!(effect, SessionEffect::Keep { is_over }, "{event:?}");
        }
        let change = presence_change(&event, before, &SessionEffect::Touch, Some(&known_peer));
        assert_eq!(change, PresenceChange::Keep, "{event:?}");
    }
}

#[test]
fn what_an_event_does_to_a_peer() {
    use PeerStatus::{Busy, Idle, Offline, Online, Waiting};
    use PresenceChange::{Keep, Register, Report};
    let live = HookTiming::Live;
    for (moment, known, expected) in [
        (start(), None, Register(Online)),
        (start(), Some(Offline), Register(Online)),
        (prompt(), None, Register(Busy)),
        (prompt(), Some(Idle), Report(Busy)),
        (HookMoment::ToolStart(tool("Bash")), Some(Online), Report(Busy)),
        (stop(), Some(Busy), Report(Idle)),
        (turn_over(), Some(Busy), Report(Idle)),
        (compacted(), Some(Busy), Register(Busy)),
        (compacted(), Some(Idle), Register(Idle)),
        (asks(Some("Bash")), Some(Busy), Report(Waiting)),
        (HookMoment::Answered(None), Some(Waiting), Report(Busy)),
        (end(), None, Keep),
        (end(), Some(Busy), Report(Offline)),
        (HookMoment::Other, None, Register(Online)),
        (HookMoment::Other, Some(Offline), Register(Online)),
        (prompt(), Some(Offline), Register(Busy)),
        (HookMoment::Other, Some(Busy), Report(Busy)),
        (HookMoment::Compacted, Some(Idle), Report(Idle)),
    ] {
        let known_peer = known.map(|status| peer(status, EARLIER));
        let event = claude(moment);
        for timing in [live, late(EARLIER)] {
            let change =
                presence_change(&event, timing, &SessionEffect::Touch, known_peer.as_ref());
            assert_eq!(change, expected, "{event:?} {known:?}");
        }
        let beneath = in_sub_agent(event);
        let change = presence_change(&beneath, live, &SessionEffect::Touch, known_peer.as_ref());
        let shows = match (&beneath.moment, known) {
            (HookMoment::Waiting(_), Some(_)) => Report(Waiting),
            (HookMoment::Answered(None), Some(Waiting)) => Report(Busy),
            _ => Keep,
        };
        assert_eq!(change, shows, "{beneath:?}");
    }
}

#[test]
fn a_prompt_stands_until_its_tool_ends_or_another_begins() {
    use PeerStatus::{Busy, Waiting};
    let busy = peer(Busy, EARLIER);
    let asked = waiting_for(&claude(asks(Some("Bash"))), &busy, NOW).expect("it waits");
    assert_eq!((asked.since, asked.tool.as_deref()), (NOW, Some("Bash")));
    assert_eq!(asked.title.as_deref(), Some("touch made"));
    let waiting = Peer { waiting_for: Some(asked.clone()), ..peer(Waiting, EARLIER) };
    for (moment, status) in [
        (HookMoment::ToolEnd(tool("Bash")), Busy),
        (HookMoment::ToolEnd(tool("Read")), Waiting),
        (HookMoment::ToolStart(tool("Read")), Busy),
        (HookMoment::Other, Waiting),
        (HookMoment::BatchEnd, Waiting),
    ] {
        let event = claude(moment);
        let change =
            presence_change(&event, HookTiming::Live, &SessionEffect::Touch, Some(&waiting));
        assert_eq!(change, PresenceChange::Report(status), "{event:?}");
    }
    // The client reports again that it waits, without saying for what.
    let again = waiting_for(&claude(asks(None)), &waiting, NOW.plus(Duration::from_secs(6)));
    assert_eq!(again, Some(asked));
}

#[test]
fn a_call_is_open_from_its_start_to_its_end() {
    let live = HookTiming::Live;
    let busy = peer(PeerStatus::Busy, NOW);
    let mut calls = OpenCalls::default();
    let mut follow = |moment: HookMoment, timing| {
        let changed = follow_calls(&mut calls, &claude(moment), timing, Some(&busy));
        (changed, calls.is_empty())
    };
    let (begins, ends) =
        (|| HookMoment::ToolStart(tool("Bash")), || HookMoment::ToolEnd(tool("Bash")));
    assert_eq!(follow(begins(), late(EARLIER)), (false, true), "its end may have been told");
    assert_eq!(follow(begins(), live), (true, false));
    assert_eq!(follow(HookMoment::Other, live), (false, false));
    assert_eq!(follow(compacted(), live), (false, false));
    assert_eq!(follow(ends(), late(EARLIER)), (true, true));
    for end in [prompt(), stop(), turn_over(), start(), end(), HookMoment::BatchEnd] {
        assert_eq!(follow(begins(), live), (true, false));
        assert_eq!(follow(end, live), (true, true));
    }
    let beneath = in_sub_agent(claude(begins()));
    assert!(!follow_calls(&mut calls, &beneath, live, Some(&busy)));
}

#[test]
fn an_echo_of_a_session_that_is_over_is_no_sign_of_life() {
    let gone = peer(PeerStatus::Offline, EARLIER);
    let over = SessionEffect::Keep { is_over: true };
    for (moment, expected) in [
        (HookMoment::Other, PresenceChange::Keep),
        (HookMoment::Compacted, PresenceChange::Keep),
        (stop(), PresenceChange::Register(PeerStatus::Idle)),
    ] {
        let change = presence_change(&claude(moment), HookTiming::Live, &over, Some(&gone));
        assert_eq!(change, expected);
    }
}

#[test]
fn mail_is_handed_over_where_the_model_gets_it() {
    let handover = |confirms_given, offer| MailHandover { confirms_given, offer };
    for (event, expected) in [
        (claude(start()), handover(false, MailOffer::NewAndGivenNews)),
        (
            claude(HookMoment::Start { source: SessionSource::Compact }),
            handover(false, MailOffer::NewAndGiven),
        ),
        (claude(prompt()), handover(true, MailOffer::New)),
        (claude(stop()), handover(true, MailOffer::New)),
        (claude(HookMoment::Stop { again: true, words: None }), handover(true, MailOffer::Nothing)),
        (
            event(HookClient::Codex, HookMoment::Stop { again: true, words: None }),
            handover(true, MailOffer::New),
        ),
        (claude(end()), handover(true, MailOffer::Nothing)),
        (event(HookClient::Opencode, start()), handover(false, MailOffer::Nothing)),
        (event(HookClient::Opencode, prompt()), handover(true, MailOffer::New)),
        (event(HookClient::Opencode, stop()), handover(true, MailOffer::Nothing)),
    ] {
        assert_eq!(mail_handover(&event), expected, "{event:?}");
    }
}

#[test]
fn a_reminder_comes_when_it_is_due_and_read() {
    use HookMoment::{ToolEnd, ToolStart};
    use ToolCountEffect::{Keep, Reset, ResetAndRemind};
    let policy = HookPolicy { check_in: 10, ..HookPolicy::default() };
    let told = HookPolicy { sub_agents: true, ..policy };
    let call = || claude(ToolStart(tool("Bash")));
    let (live, of_gemini) = (HookTiming::Live, |tool| event(HookClient::Gemini, ToolEnd(tool)));
    for (event, timing, policy, count, expected) in [
        (call(), live, policy, 9, Keep),
        (call(), live, policy, 10, ResetAndRemind),
        (call(), live, policy, 11, ResetAndRemind),
        (call(), late(EARLIER), policy, 10, Keep),
        (in_sub_agent(call()), live, policy, 10, Reset),
        (in_sub_agent(call()), live, told, 10, ResetAndRemind),
        (in_sub_agent(call()), late(EARLIER), told, 10, Keep),
        // The end of a tool that shows the record resets the count and does not count itself.
        (of_gemini(tool("mcp_svc_start_ghap")), live, policy, 1, Reset),
        (of_gemini(tool("mcp_svc_update_ghap")), late(EARLIER), policy, 10, Reset),
        (of_gemini(tool("run_shell_command")), live, policy, 10, ResetAndRemind),
        (claude(ToolStart(tool("mcp__svc__start_ghap"))), live, policy, 3, Keep),
    ] {
        let counted = event.counted_tool().expect("a counted call");
        let effect = tool_count_effect(&event, counted, timing, policy, count);
        assert_eq!(effect, expected, "{event:?} {timing:?} {count}");
    }
}

#[test]
fn a_tool_call_counts_at_its_start_or_at_its_end() {
    use HookMoment::{ToolEnd, ToolStart};
    for client in HookClient::ALL {
        let at_start = event(client, ToolStart(tool("Bash"))).counted_tool().is_some();
        let at_end = event(client, ToolEnd(tool("Bash"))).counted_tool().is_some();
        assert!(at_start != at_end, "{client:?}");
        assert_eq!(at_start, matches!(client, HookClient::ClaudeCode | HookClient::Codex));
    }
}

#[test]
fn only_what_writes_nothing_is_a_mere_sign_of_life() {
    use HookMoment::{ToolEnd, ToolStart};
    let (busy, none) = (peer(PeerStatus::Busy, NOW), OpenCalls::default());
    for (event, expected) in [
        (claude(HookMoment::Other), true),
        (claude(HookMoment::BatchEnd), true),
        (claude(ToolEnd(tool("Bash"))), true),
        (claude(ToolEnd(test_run())), false),
        (claude(ToolStart(tool("Bash"))), false),
        (event(HookClient::Gemini, ToolStart(tool("Bash"))), false),
        (event(HookClient::Gemini, ToolEnd(tool("Bash"))), false),
        (claude(prompt()), false),
        (claude(stop()), false),
        (claude(HookMoment::Compacted), false),
    ] {
        let is_sign = is_sign_of_life(&event, &session(NOW), (&busy, &none), NOW);
        assert_eq!(is_sign, expected, "{event:?}");
    }
    let other = claude(HookMoment::Other);
    let stale = NOW.minus(limits::HOOK_SEEN_RESOLUTION);
    assert!(!is_sign_of_life(&other, &session(stale), (&busy, &none), NOW));
    let silent = peer(PeerStatus::Busy, stale);
    assert!(!is_sign_of_life(&other, &session(NOW), (&silent, &none), NOW));
    assert!(!is_sign_of_life(&other, &ended_session(NOW), (&busy, &none), NOW));
    let tool_end = claude(ToolEnd(tool("Bash")));
    let idle = peer(PeerStatus::Idle, NOW);
    assert!(!is_sign_of_life(&tool_end, &session(NOW), (&idle, &none), NOW), "it is busy now");
    let mut open = OpenCalls::default();
    open.begin(tool("Bash").call());
    for event in [tool_end, claude(HookMoment::BatchEnd)] {
        assert!(!is_sign_of_life(&event, &session(NOW), (&busy, &open), NOW), "it ends a call");
    }
}

#[test]
fn opencode_begins_with_its_first_prompt() {
    let resumed = HookMoment::Start { source: SessionSource::Resume };
    let first_prompt = event(HookClient::Opencode, prompt());
    for (event, peer_status, expected) in [
        (claude(resumed.clone()), None, Some(SessionSource::Resume)),
        (event(HookClient::Opencode, resumed), None, Some(SessionSource::Resume)),
        (claude(prompt()), None, None),
        (first_prompt.clone(), None, Some(SessionSource::Startup)),
        (first_prompt.clone(), Some(PeerStatus::Online), Some(SessionSource::Startup)),
        (first_prompt, Some(PeerStatus::Busy), None),
    ] {
        let known = peer_status.map(|status| peer(status, NOW));
        assert_eq!(session_source_of_start(&event, known.as_ref()), expected, "{event:?}");
    }
}

#[test]
fn a_limit_lasts_until_a_turn_begins() {
    let limit = UsageLimit { said: "You've hit your limit".to_owned(), until: Some(LATER) };
    let idle = peer(PeerStatus::Idle, EARLIER);
    let asked = waiting_for(&claude(HookMoment::Refused(limit.clone())), &idle, NOW);
    let asked = asked.expect("it waits");
    assert_eq!((asked.kind, asked.until), (WaitingKind::Limit, Some(LATER)));
    let limited = Peer { waiting_for: Some(asked.clone()), ..peer(PeerStatus::Waiting, EARLIER) };
    let touch = SessionEffect::Touch;
    let change = |moment: HookMoment| {
        presence_change(&claude(moment), HookTiming::Live, &touch, Some(&limited))
    };
    // The client reports after a minute that it has been idle.
    assert_eq!(change(turn_over()), PresenceChange::Report(PeerStatus::Waiting));
    assert_eq!(waiting_for(&claude(turn_over()), &limited, NOW), Some(asked));
    let stop = HookMoment::Stop { again: false, words: None };
    assert_eq!(change(stop), PresenceChange::Report(PeerStatus::Waiting));
    assert_eq!(change(prompt()), PresenceChange::Report(PeerStatus::Busy));
    assert_eq!(change(HookMoment::Retry(None)), PresenceChange::Report(PeerStatus::Busy));
    let again = HookMoment::Refused(UsageLimit { until: None, ..limit });
    assert_eq!(change(again.clone()), PresenceChange::Report(PeerStatus::Waiting));
    let asked = waiting_for(&claude(again), &limited, NOW).expect("it waits");
    assert_eq!((asked.until, asked.since), (None, NOW));
}
