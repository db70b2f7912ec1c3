//! Servers at a URL: both eras of streamable HTTP, and the transport of 2024-11-05.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::toy_http::{ToyEra, ToyHttp};
use super::{SOON, body, call, failed, in_state, said, source, ten_calls_succeed, with_servers};
use crate::daemon::{Daemon, Home, free_port, quickly, until};

fn entry(server: &ToyHttp) -> Value {
    json!({ "type": "http", "url": server.url() })
}

#[test]
fn remote_server_of_either_era_works() {
    let home = Home::new();
    let (legacy, modern) = (ToyHttp::start(ToyEra::Legacy), ToyHttp::start(ToyEra::Modern));
    let sse = ToyHttp::start(ToyEra::Sse);
    let entries = json!({
        "old": entry(&legacy), "new": entry(&modern), "stream": { "type": "sse", "url": sse.url() },
        "moved": { "type": "http", "url": format!("http://{}/moved", modern.addr) },
        "elsewhere": { "type": "http", "url": format!("http://{}/elsewhere", modern.addr) },
    });
    let mut d = with_servers(&home, &entries);
    for (name, transport) in [("old", "http"), ("new", "http"), ("stream", "sse")] {
        let shown = in_state(&d, name, "connected");
        assert_eq!((&shown["transport"], &shown["sharing"]), (&json!(transport), &json!("shared")));
        assert_eq!((&shown["tools"], shown.get("pid")), (&json!(6), None), "{shown}");
        let answer = call(&d, &format!("{name}__echo"), &json!({ "value": "hello" }));
        assert_eq!(said(&answer), "hello", "{name}: {answer}");
        // A stream with progress before the response.
        assert_eq!(said(&call(&d, &format!("{name}__step"), &json!({}))), "stepped", "{name}");
        // Its list changes, and it sends a notification.
        call(&d, &format!("{name}__grow"), &json!({}));
        until(SOON, || (source(&d, name)["tools"] == 7).then_some(()));
    }
    // Arguments that its schema puts into headers, in the revision with that rule and in one
    // without.
    let region = call(&d, "new__head", &json!({ "region": "west" }));
    assert_eq!(said(&region), "west", "{region}");
    let warnings = source(&d, "new")["warnings"].to_string();
    assert!(warnings.contains("bad") && warnings.contains("x-mcp-header"), "{warnings}");
    // A response whose stream broke is resumed.
    assert_eq!(said(&call(&d, "old__cut", &json!({}))), "resumed");
    let error = failed(&call(&d, "new__cut", &json!({})));
    assert_eq!(error["allowed"]["outcome"], "unknown", "{error}");
    // A redirect is followed within a server, and nowhere else.
    in_state(&d, "moved", "connected");
    let elsewhere = in_state(&d, "elsewhere", "failed");
    assert!(
        elsewhere["reason"].as_str().is_some_and(|why| why.contains("redirects")),
        "{elsewhere}"
    );
    d.stop();
    assert_eq!(legacy.toy.deleted.load(SeqCst), 1, "the session is ended");
    assert!(
        legacy
            .toy
            .notes
            .lock()
            .expect("a lock")
            .iter()
            .any(|note| note == "notifications/initialized")
    );
}

#[test]
fn remote_request_carries_the_clients_trace() {
    let home = Home::new();
    let (legacy, modern) = (ToyHttp::start(ToyEra::Legacy), ToyHttp::start(ToyEra::Modern));
    let sse = ToyHttp::start(ToyEra::Sse);
    let d = with_servers(
        &home,
        &json!({
            "old": entry(&legacy), "new": entry(&modern), "stream": { "type": "sse", "url": sse.url() },
            "toy": super::entry(&home, &[]),
        }),
    );
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let called = |tool: &str, is_named: bool| {
        let params = json!({ "name": tool, "arguments": { "value": "x" } });
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let request = d.request("POST", "/mcp").json(&call);
        let reply = if is_named {
            request.header("X-Request-Id", "mine-1").header("traceparent", parent).send()
        } else {
            request.send()
        };
        said(&reply.json())
    };
    for (name, server) in [("old", &legacy), ("new", &modern), ("stream", &sse)] {
        in_state(&d, name, "connected");
        called(&format!("{name}__echo"), true);
        called(&format!("{name}__echo"), false);
        let traces = server.toy.traces.lock().expect("a lock").clone();
        let [(id, of, meta), (no_id, of_nothing, none)] = &traces[..] else {
            panic!("{name}: {traces:?}")
        };
        assert_eq!((id.as_str(), of.as_str()), ("mine-1", parent), "{name}");
        assert_eq!(
            (&meta["traceparent"], &meta["svc/request_id"]),
            (&json!(parent), &json!("mine-1"))
        );
        // The daemon's own request id is for its log only.
        assert_eq!((no_id.as_str(), of_nothing.as_str()), ("", ""), "{name}");
        assert_eq!(none.get("traceparent").or(none.get("svc/request_id")), None, "{name}: {none}");
    }
    in_state(&d, "toy", "connected");
    let read = called("toy__raw", true);
    let meta = format!(r#""_meta":{{"traceparent":"{parent}","svc/request_id":"mine-1"}}"#);
    assert!(read.contains(&meta), "{read}");
    assert!(!called("toy__raw", false).contains("_meta"));
}

/// A server that responds to no call, or whose proxy reports it as down, is not shown as connected,
/// and is retried.
#[test]
fn down_remote_server_is_shown_as_down() {
    for sickness in [1, 502, 503, 504] {
        let home = Home::new();
        let server = ToyHttp::start(ToyEra::Legacy);
        let d = with_servers(&home, &json!({ "web": entry(&server) }));
        in_state(&d, "web", "connected");
        server.toy.sick.store(sickness, SeqCst);
        let error = failed(&call(&d, "web__bump", &json!({})));
        assert_eq!(error["allowed"]["outcome"], "unknown", "{sickness}: {error}");
        let down = in_state(&d, "web", "backing_off");
        assert!(down["attempt"].is_u64() && down["next_at"].is_string(), "{sickness}: {down}");
        server.toy.sick.store(0, SeqCst);
        in_state(&d, "web", "connected");
        assert_eq!(said(&call(&d, "web__bump", &json!({}))), "bumped", "{sickness}");
    }
}

/// A server that has no room for a stream now, or takes an earlier one for open, is asked again.
#[test]
fn stream_that_a_remote_server_refuses_for_now_is_requested_again() {
    for (era, status) in [(ToyEra::Legacy, 429), (ToyEra::Legacy, 409), (ToyEra::Modern, 429)] {
        let home = Home::new();
        let server = ToyHttp::start(era);
        server.toy.stream_refusal.store(status, SeqCst);
        server.toy.refused_streams.store(2, SeqCst);
        let d = with_servers(&home, &json!({ "web": entry(&server) }));
        in_state(&d, "web", "connected");
        // Nobody hears of a change before the stream is open.
        until(SOON, || {
            call(&d, "web__grow", &json!({}));
            (source(&d, "web")["tools"] == 7).then_some(())
        });
        assert_eq!(server.toy.refused_streams.load(SeqCst), 0, "{era:?} {status}");
    }
}

/// The end of the daemon does not wait for the program that prints the headers of a server.
#[test]
fn server_whose_headers_helper_hangs_ends_at_once() {
    let home = Home::new();
    let server = ToyHttp::start(ToyEra::Modern);
    let begun = home.user().join("begun");
    let helper = format!("touch {}; sleep 60", begun.display());
    let entry = json!({ "type": "http", "url": server.url(), "headersHelper": helper });
    let mut d = with_servers(&home, &json!({ "web": entry }));
    // The helper itself may run for ten seconds.
    quickly(Duration::from_secs(8), || {
        until(SOON, || begun.exists().then_some(()));
        let began = Instant::now();
        d.stop();
        let took = began.elapsed();
        std::fs::remove_file(&begun).expect("is there");
        d.restart();
        took
    });
}

#[test]
fn ended_session_is_reopened_once_and_only_idempotent_calls_repeated() {
    let home = Home::new();
    let server = ToyHttp::start(ToyEra::Legacy);
    let d = with_servers(&home, &json!({ "web": entry(&server) }));
    in_state(&d, "web", "connected");
    assert_eq!(said(&call(&d, "web__bump", &json!({}))), "bumped");
    server.forget();
    let error = failed(&call(&d, "web__bump", &json!({})));
    assert_eq!(error["allowed"]["outcome"], "unknown", "{error}");
    assert_eq!(server.toy.bumped.load(SeqCst), 1, "it is not repeated");
    assert_eq!(said(&call(&d, "web__bump", &json!({}))), "bumped");
    let before = server.toy.opened.load(SeqCst);
    server.forget();
    ten_calls_succeed(&d);
    assert_eq!(server.toy.opened.load(SeqCst), before + 1, "one new session for all");
    assert_eq!(source(&d, "web")["state"], "connected");
}

#[test]
fn unreachable_remote_server_delays_no_other_and_reconnects() {
    let home = Home::new();
    let port = free_port();
    let hanging = ToyHttp::start(ToyEra::Modern);
    hanging.toy.hangs.store(true, SeqCst);
    let entries = json!({
        "gone": { "type": "http", "url": format!("http://127.0.0.1:{port}/mcp") },
        "hangs": entry(&hanging),
    });
    let mut d = with_servers(&home, &entries);
    // Neither readiness nor lists wait for the five seconds of the first request.
    quickly(Duration::from_secs(5), || {
        d.stop();
        let began = Instant::now();
        d.restart();
        let listed = d.get("/v1/sources").ok(200);
        assert_eq!(listed["count"], 2);
        began.elapsed()
    });
    let gone = in_state(&d, "gone", "backing_off");
    assert!(gone["reason"].as_str().is_some_and(|why| why.contains("cannot be reached")), "{gone}");
    let server = ToyHttp::start_at(ToyEra::Legacy, port);
    d.post("/v1/sources/gone/reconnect", &json!({})).ok(200);
    in_state(&d, "gone", "connected");
    // It dies, which is noticed without a call, and it is connected again.
    drop(server);
    in_state(&d, "gone", "backing_off");
    quickly(Duration::from_secs(2), || {
        let began = Instant::now();
        let error = failed(&call(&d, "gone__echo", &json!({ "value": "x" })));
        assert_eq!(error["allowed"]["state"], "backing_off", "{error}");
        began.elapsed()
    });
    let _again = ToyHttp::start_at(ToyEra::Legacy, port);
    in_state(&d, "gone", "connected");
}

#[test]
fn slow_modern_server_is_not_taken_for_a_legacy_one() {
    let home = Home::new();
    let slow = ToyHttp::start(ToyEra::Modern);
    slow.toy.unanswered_discoveries.store(1, SeqCst);
    let d = with_servers(&home, &json!({ "slow": entry(&slow) }));
    in_state(&d, "slow", "connected");
    assert_eq!(slow.toy.unanswered_discoveries.load(SeqCst), 0, "it was asked");
    // A failed first start before a second one would show as `backing_off`.
    let states = d.get("/v1/events?stream=team&kind=source.state").ok(200);
    assert!(!states.to_string().contains("backing_off"), "{states}");
}

#[test]
fn entry_and_helper_headers_are_sent_and_never_shown() {
    let home = Home::new();
    let (fixed, printed) = (ToyHttp::start(ToyEra::Modern), ToyHttp::start(ToyEra::Modern));
    let wants = |server: &ToyHttp, value: &str| {
        *server.toy.wants.lock().expect("a lock") = Some(("x-key".to_owned(), value.to_owned()));
    };
    wants(&fixed, "hush-fixed");
    wants(&printed, "hush-first");
    let file = home.user().join("headers.json");
    let print = |value: &str| {
        std::fs::write(&file, json!({ "X-Key": value }).to_string()).expect("is written");
    };
    print("hush-first");
    let entries = json!({
        "fixed": { "type": "http", "url": fixed.url(), "headers": { "X-Key": "${KEY_OF_FIXED}" } },
        "wrong": { "type": "http", "url": fixed.url(), "headers": { "X-Key": "y", "Authorization": "Bearer hush-wrong" } },
        "printed": { "type": "http", "url": printed.url(), "headersHelper": format!("cat {}", file.display()) },
        "broken": { "type": "http", "url": printed.url(), "headersHelper": "echo hush-broken" },
        "unset": { "type": "http", "url": printed.url(), "headers": { "X-Key": "${NOWHERE_SET}" } },
    });
    let d =
        Daemon::with(|plan| plan.home(&home).servers(&entries).env("KEY_OF_FIXED", "hush-fixed"));
    in_state(&d, "fixed", "connected");
    in_state(&d, "printed", "connected");
    let wrong = in_state(&d, "wrong", "failed");
    assert!(wrong["reason"].as_str().is_some_and(|why| why.contains("Authorization")), "{wrong}");
    let broken = in_state(&d, "broken", "backing_off");
    assert!(broken["reason"].as_str().is_some_and(|why| why.contains("headersHelper")), "{broken}");
    let unset = in_state(&d, "unset", "misconfigured");
    let reason = unset["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("headers.X-Key") && reason.contains("NOWHERE_SET"), "{reason}");
    // The header has expired: the helper runs again, and the call is sent again.
    wants(&printed, "hush-second");
    print("hush-second");
    assert_eq!(said(&call(&d, "printed__echo", &json!({ "value": "on" }))), "on");
    let events = body(&d.get("/v1/events?stream=team&limit=500"));
    let shown = format!("{}{events}{}", d.get("/v1/sources").ok(200), d.stderr());
    assert!(!shown.contains("hush-"), "{shown}");
}
