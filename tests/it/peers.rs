//! Participants: their identity, their status, and its events.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, eventually};
use crate::expect::{all_pages, page, peer, register, text};
use crate::wire::{Caller, Event, Sse};

const SOON: Duration = Duration::from_secs(15);

#[test]
fn concurrent_registrations_create_one_peer() {
    let d = Daemon::start();
    for session in ["s-1", ""] {
        let body = json!({
            "display_name": "x", "backend": "claude", "path": "/p", "session_id": session,
            "metadata": { "a": "1" },
        });
        let ids: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(|| text(&register(&d, &body), "peer_id"))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| id == &ids[0]), "{ids:?}");
    }
    assert_eq!(page(&d.get("/v1/peers"), "peers").len(), 2);
}

/// The next status event of one participant, skipping those of others.
#[track_caller]
fn next_status(team: &mut Sse, id: &str) -> Event {
    loop {
        let event = team.event();
        if event.data["kind"] == "peer.status" && event.data["data"]["peer_id"] == json!(id) {
            return event;
        }
    }
}

#[track_caller]
fn status(caller: &Caller, id: &str) -> String {
    text(&caller.get(&format!("/v1/peers/{id}")).ok(200), "status")
}

#[test]
fn silent_peers_go_offline_at_the_timeout_and_return() {
    let mut d = Daemon::with(|plan| plan.env("SVC_PEER_TIMEOUT_MS", "700"));
    let id = peer(&d, "s-1");
    // The test makes no request here: the event must come by itself.
    let mut team = d.follow("/v1/events?stream=team");
    let event = next_status(&mut team, &id);
    assert_eq!(event.data["data"]["status"], "offline");
    assert_eq!(event.data["data"]["previous"], "online");
    assert!(event.data["data"]["reason"].is_string(), "{event:?}");
    assert_eq!(event.data["stream"], "team");
    assert_eq!(status(&d, &id), "offline");

    d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({})).ok(200);
    let event = next_status(&mut team, &id);
    assert_eq!(event.data["data"]["status"], "online");
    assert_eq!(event.data["data"]["previous"], "offline");
    assert_eq!(next_status(&mut team, &id).data["data"]["status"], "offline", "and again");

    // A daemon that was away for longer than the timeout still applies it.
    d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({ "status": "busy" })).ok(200);
    d.kill_and_restart();
    eventually(SOON, || status(&d, &id) == "offline");
}

#[test]
fn call_with_the_token_of_a_silent_session_makes_it_online_again() {
    let d = Daemon::with(|plan| plan.env("SVC_PEER_TIMEOUT_MS", "700"));
    let session = d.minted(&json!({ "session": "s-1" }));
    let id = peer(&session, "s-1");
    let mut team = d.follow("/v1/events?stream=team&after=latest");
    let calls: [&dyn Fn(); 2] =
        [&|| drop(session.get("/v1/agents").ok(200)), &|| drop(session.tool("ping", &json!({})))];
    for call in calls {
        assert_eq!(next_status(&mut team, &id).data["data"]["status"], "offline");
        call();
        let back = next_status(&mut team, &id).data["data"].clone();
        assert_eq!((&back["status"], &back["previous"]), (&json!("online"), &json!("offline")));
    }

    // Its calls are not silence, while others are silent for the whole timeout. Its row says so,
    // which is all that another daemon knows.
    let seen = || d.get(&format!("/v1/peers/{id}")).ok(200)["last_seen"].clone();
    let before = seen();
    eventually(SOON, || {
        session.get("/v1/agents").ok(200);
        status(&d, &id) == "online" && seen() != before
    });
    eventually(SOON, || status(&d, &id) == "offline");
}

#[test]
fn living_process_keeps_its_peer_idle() {
    let d = Daemon::with(|plan| plan.env("SVC_PEER_TIMEOUT_MS", "700"));
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let with_pid = |name: &str, pid: u32| {
        let body = json!({ "display_name": name, "backend": "x", "path": name, "pid": pid });
        text(&register(&d, &body), "peer_id")
    };
    let ours = with_pid("ours", std::process::id());
    let theirs = with_pid("theirs", sleeper.id());
    let dead = with_pid("dead", gone.id());
    let mut team = d.follow("/v1/events?stream=team");

    assert_eq!(next_status(&mut team, &dead).data["data"]["status"], "offline");
    eventually(SOON, || status(&d, &ours) == "idle" && status(&d, &theirs) == "idle");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    eventually(SOON, || status(&d, &theirs) == "offline");

    // A whole timeout later, measured by another participant, this one is idle still.
    let clock = peer(&d, "clock");
    eventually(SOON, || status(&d, &clock) == "offline");
    assert_eq!(status(&d, &ours), "idle");
    let history = all_pages(&d, "/v1/events?stream=team&limit=100", "events", "after");
    let offline = |event: &&Value| {
        event["data"]["peer_id"] == json!(ours) && event["data"]["status"] == "offline"
    };
    assert_eq!(history.iter().find(offline), None);
}

#[test]
fn peers_survive_kill_and_restart_unchanged() {
    let mut d = Daemon::start();
    let id = peer(&d, "s-1");
    let before = d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({ "status": "busy" })).ok(200);
    d.kill_and_restart();
    assert_eq!(d.get(&format!("/v1/peers/{id}")).ok(200), before);
    assert_eq!(peer(&d, "s-1"), id);
}
