//! Messages: from one participant to another, in order, once, and never lost before they are
//! acknowledged.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::daemon::{Daemon, eventually, until};
use crate::expect::{each, page, peer, problem, text};
use crate::shapes::{ack, peek, read, send, states};

const SOON: Duration = Duration::from_secs(15);

#[test]
fn unacknowledged_messages_are_delivered_again() {
    let mut d = Daemon::with(|plan| plan.env("SVC_LEASE_MS", "400"));
    let to = peer(&d, "s-1");
    let (lost, kept) = (send(&d, &to, "lost"), send(&d, &to, "kept"));
    assert_eq!(read(&d, &to).len(), 2);
    ack(&d, &to, &[&kept]);
    let again = until(SOON, || Some(read(&d, &to)).filter(|read| !read.is_empty()));
    assert_eq!(each(&again, "id"), [lost.as_str()], "only what was not acknowledged");
    assert_eq!(states(&d, &lost)[..3], ["accepted", "queued", "offered"]);

    // A reader that dies with the daemon loses nothing either.
    d.kill_and_restart();
    let again = until(SOON, || Some(read(&d, &to)).filter(|read| !read.is_empty()));
    assert_eq!(each(&again, "id"), [lost.as_str()]);
    ack(&d, &to, &[&lost]);
    // A later message is delivered again, and the acknowledged ones are not.
    let clock = send(&d, &to, "clock");
    assert_eq!(each(&read(&d, &to), "id"), [clock.as_str()]);
    let again = until(SOON, || Some(read(&d, &to)).filter(|read| !read.is_empty()));
    assert_eq!(each(&again, "id"), [clock]);
}

#[test]
fn two_readers_never_get_the_same_message() {
    let d = Daemon::start();
    let to = peer(&d, "s-1");
    let mut ids: Vec<_> = (0..60).map(|n| send(&d, &to, &n.to_string())).collect();
    let mut read: Vec<String> = thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let path = format!("/v1/peers/{to}/messages?limit=3");
                    let mut mine = Vec::new();
                    loop {
                        let page = page(&d.get(&path), "messages");
                        if page.is_empty() {
                            return mine;
                        }
                        mine.extend(each(&page, "id"));
                    }
                })
            })
            .collect();
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    read.sort();
    ids.sort();
    assert_eq!(read, ids);
}

#[test]
fn a_repeated_idempotency_key_is_the_same_message() {
    let mut d = Daemon::start();
    let (to, other) = (peer(&d, "s-1"), peer(&d, "s-2"));
    let path = format!("/v1/peers/{to}/messages");
    let body = json!({ "text": "once", "idempotency_key": "k-1" });
    let first = d.post(&path, &body).ok(200);
    let ids: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| text(&d.post(&path, &body).ok(200), "id"))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| first["id"] == json!(id)), "{ids:?}");
    d.kill_and_restart();
    assert_eq!(d.post(&path, &body).ok(200)["id"], first["id"]);
    assert_eq!(peek(&d, &to).len(), 1);
    let another = json!({ "text": "twice", "idempotency_key": "k-2" });
    assert_ne!(d.post(&path, &another).ok(200)["id"], first["id"]);
    assert_eq!(peek(&d, &to).len(), 2);
    // A key names one message.
    for (field, value) in [("text", "thrice"), ("type", "query"), ("correlation_id", "c")] {
        let mut other = body.clone();
        other[field] = json!(value);
        let refusal = problem(&d.post(&path, &other), 409, "conflict");
        assert!(text(&refusal, "detail").contains(&text(&first, "id")), "{refusal}");
    }
    assert_eq!(peek(&d, &to).len(), 2);
    assert!(peek(&d, &other).is_empty());
    let cast = json!({ "text": "to all", "idempotency_key": "k-3" });
    assert_eq!(d.post("/v1/peers/broadcast", &cast).ok(200)["delivered_to"], 2);
    d.kill_and_restart();
    assert_eq!(d.post("/v1/peers/broadcast", &cast).ok(200)["delivered_to"], 2);
    for (field, value) in [("text", "to some"), ("correlation_id", "c")] {
        let mut other = cast.clone();
        other[field] = json!(value);
        problem(&d.post("/v1/peers/broadcast", &other), 409, "conflict");
    }
}

/// The acknowledgement takes more than one write job.
#[test]
fn hundreds_of_messages_are_acknowledged_in_one_request() {
    let d = Daemon::start();
    let to = peer(&d, "s-1");
    let sent: Vec<String> = (0..510).map(|number| send(&d, &to, &number.to_string())).collect();
    let ids: Vec<&str> = sent.iter().map(String::as_str).collect();
    let acked = ack(&d, &to, &ids);
    assert_eq!((&acked["count"], acked["acked"][509].as_str()), (&json!(510), Some(ids[509])));
    assert!(read(&d, &to).is_empty());
    assert_eq!(states(&d, ids[509]).last().map(String::as_str), Some("acked"));
    let unknown =
        d.post(&format!("/v1/peers/{to}/messages/ack"), &json!({ "ids": [ids[0], "msg_x"] }));
    assert_eq!(unknown.status(), 404, "{unknown:?}");
}

#[test]
fn any_text_is_returned_byte_for_byte() {
    let mut d = Daemon::start();
    let to = peer(&d, "s-1");
    let mut long = "\"\\\u{2}\n🦀é\u{2028}".repeat(500_000 / 14);
    long.push('.');
    let texts = [
        "quotes \" and ' and \\ and / and `",
        "lines\nand\r\ncarriage\rreturns\ttabs",
        "a control character \u{3} in the middle and at the end \u{3}",
        "separators \u{2028} and \u{2029} and \u{85}",
        "🦀 👩‍👩‍👧 e\u{301} \u{202e}right to left",
        "\u{feff}a mark first",
        "\u{1}\u{1b}[31m\u{7f}\u{10ffff}\u{fffd}\u{ffff}",
        "data: x\n\nid: 7\nevent: terminal\n\n",
        "'); drop table message; --",
        "  blanks around  ",
        "{\"json\": [1, 2.0, 1e400]}",
        &long,
    ];
    let ids: Vec<_> = texts.iter().map(|words| send(&d, &to, words)).collect();
    d.kill_and_restart();
    let inbox = peek(&d, &to);
    assert_eq!(each(&inbox, "id"), ids);
    for (message, words) in inbox.iter().zip(texts) {
        assert!(message["text"] == *words, "{:?}", words.chars().take(80).collect::<String>());
    }
}

#[test]
fn a_restart_keeps_every_message_with_its_state() {
    let mut d = Daemon::start();
    let to = peer(&d, "s-1");
    let (acked, offered) = (send(&d, &to, "acked"), send(&d, &to, "offered"));
    read(&d, &to);
    ack(&d, &to, &[&acked]);
    let queued = send(&d, &to, "queued");
    let snapshot = |d: &Daemon| {
        [&acked, &offered, &queued].map(|id| d.get(&format!("/v1/messages/{id}")).ok(200))
    };
    let before = snapshot(&d);
    d.kill_and_restart();
    assert_eq!(snapshot(&d), before);
    assert_eq!(each(&read(&d, &to), "id"), [queued], "a lease outlives the daemon as well");
}

#[test]
fn an_inbox_can_be_followed_while_it_fills() {
    let d = Daemon::start();
    let to = peer(&d, "s-1");
    send(&d, &to, "first");
    let mut inbox = d.follow(&format!("/v1/events?stream=peer/{to}"));
    let first = inbox.event();
    assert_eq!((first.id, first.data["kind"].as_str()), (Some(1), Some("message.queued")));
    let second = send(&d, &to, "second");
    let event = inbox.event();
    assert_eq!(event.id, Some(2));
    assert!(event.data["data"].to_string().contains(&second), "{event:?}");
    eventually(SOON, || read(&d, &to).is_empty());
}
