//! Slow calls in a legacy session: streams that can be resumed.

use std::thread;

use serde_json::{Value, json};

use super::{
    Client, LEGACY, SOON, Stream, call_states, finish, given, is_wait_answer, message, modern_body,
    modern_post, post, request, result, subscribers, tool, wait_for, with_client,
};
use crate::daemon::{Daemon, eventually};
use crate::expect::new_task;
use crate::wire::Caller;

/// The params of a `TaskWait` with a progress token.
fn with_token(task: &str, token: &Value) -> Value {
    let mut params = tool("TaskWait", &wait_for(task));
    params["_meta"] = json!({ "progressToken": token });
    params
}

/// The stream of an event's id, and the seq in it.
#[track_caller]
fn parts(id: &str) -> (&str, u64) {
    let (stream, seq) = id.rsplit_once('.').expect("a stream and a seq");
    (stream, seq.parse().expect("a number"))
}

#[test]
fn slow_call_is_a_stream_from_the_start() {
    let (d, client) = with_client();
    let task = new_task(&d);
    let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
    let first = call.block().expect("a first event");
    assert_eq!(call_states(&d), ["working"], "head and id come before the answer");
    assert_eq!(first.data, [""], "a priming event says nothing: {first:?}");
    let primed = first.id.expect("but where it is");
    assert!(first.retry.is_some_and(|retry| retry.parse::<u64>().is_ok_and(|ms| ms <= 2_000)));
    finish(&d, &task);
    let answer = call.next();
    is_wait_answer(&answer.json, id);
    assert_eq!(call.rest(), [], "nothing follows the answer");
    let (stream, seq) = parts(answer.event_id());
    assert_eq!(stream, parts(&primed).0, "ids name their stream");
    assert!(seq > parts(&primed).1);
    assert_eq!(call_states(&d), ["completed"]);
    // A quick call has no stream.
    let reply = client.post(&request(1, "tools/call", &tool("peer_list", &json!({})))).send();
    assert_eq!(reply.header("content-type"), Some("application/json"));
}

#[test]
fn only_its_session_can_resume_a_stream() {
    let d = Daemon::start();
    let (mine, theirs) = (d.reader("s-1"), d.session("s-2"));
    let client = Client::open(&mine, "2025-11-25");
    let task = new_task(&d);
    let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    // It can be resumed repeatedly, also while it is open.
    let mut again = client.listen(Some(primed.event_id()));
    assert_eq!(again.next(), primed, "the new connection can be resumed, too");
    finish(&d, &task);
    let answer = call.answer();
    is_wait_answer(&answer.json, id);
    assert_eq!(again.rest(), std::slice::from_ref(&answer));
    assert_eq!(client.listen(Some(primed.event_id())).rest(), [primed.clone(), answer.clone()]);
    let end = client.no_stream(Some(answer.event_id()));
    assert_eq!((end.status(), end.body.len()), (204, 0), "{end:?}");

    let (stream, seq) = parts(answer.event_id());
    let ahead = format!("{stream}.{}", seq + 1);
    let huge = format!("{stream}.99999999999999999999");
    let negative = format!("{stream}.-1");
    let dotted = format!("{stream}.0.0");
    let bare = format!("{stream}.");
    for last in [
        &ahead,
        &huge,
        &negative,
        &dotted,
        &bare,
        stream,
        "x",
        ".",
        "x.1",
        "1",
        "-1",
        "0.x",
        "\u{e9}.1",
        "task.1",
        &format!("mcp/{stream}.0"),
        &format!(" {stream} .0"),
    ] {
        let reply = client.no_stream(Some(last));
        assert_eq!(reply.status(), 404, "{last:?}: {reply:?}");
    }
    // Another session of the same caller, the sessions of others, and no session at all.
    let others = [
        (Client::open(&mine, "2025-11-25"), 404),
        (Client::open(&theirs, "2025-11-25"), 404),
        (Client::open(&d, "2025-11-25"), 404),
        (client.of(&theirs), 404),
        (client.of(&d), 404),
    ];
    for (other, status) in others {
        let reply = other.no_stream(Some(primed.event_id()));
        assert_eq!(reply.status(), status, "{reply:?}");
    }
    let asked = mine.request("GET", "/mcp").header("Accept", "text/event-stream");
    assert_eq!(asked.header("Last-Event-ID", primed.event_id()).send().status(), 405);
}

#[test]
fn streams_before_2025_11_25_begin_with_a_message() {
    let d = Daemon::start();
    for revision in &LEGACY[..3] {
        let client = Client::open(&d, revision);
        for token in [Value::Null, json!("t"), json!(7)] {
            let task = new_task(&d);
            let (id, mut call) = client.begin_with(&with_token(&task, &token));
            let first = call.next();
            assert!(first.id.is_some(), "{first:?}");
            if token.is_null() {
                assert_eq!(first.method(), "notifications/message", "{first:?}");
            } else {
                assert_eq!(first.method(), "notifications/progress", "{first:?}");
                assert_eq!(first.json["params"]["progressToken"], token);
                assert!(first.json["params"]["progress"].is_number());
            }
            call.knife().cut();
            finish(&d, &task);
            let rest = client.listen(Some(first.event_id())).rest();
            assert_eq!(rest.len(), 1, "nothing that is empty: {rest:?}");
            is_wait_answer(&rest[0].json, id);
        }
    }
}

#[test]
fn waiting_client_gets_keep_alives_or_progress() {
    let d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "100"));
    let client = Client::open(&d, "2025-11-25");
    let task = new_task(&d);
    let (_, mut plain) = client.begin("TaskWait", &wait_for(&task));
    let (_, mut told) = client.begin_with(&with_token(&task, &json!("abc")));
    let mut listening = client.listen(None);
    for stream in [&mut plain, &mut listening] {
        assert!(stream.block().is_some_and(|block| block.id.is_some()));
        for _ in 0..3 {
            let block = stream.block().expect("the stream goes on");
            assert!(block.comment.is_some() && block.id.is_none(), "{block:?}");
        }
    }
    let mut last = -1.0;
    for _ in 0..4 {
        let progress = told.news("notifications/progress");
        assert_eq!(progress.json["params"]["progressToken"], "abc");
        let now = progress.json["params"]["progress"].as_f64().expect("a number");
        assert!(now > last, "progress goes on: {last} {now}");
        last = now;
    }
    finish(&d, &task);
    plain.answer();
    told.answer();
}

#[test]
fn cancelled_call_ends_without_a_response() {
    let d = Daemon::start();
    let before = subscribers(&d);
    for (revision, id, taken_back) in [
        ("2025-11-25", "1", "1"),
        ("2025-06-18", "\"caf\\u00e9/\\/\"", "\"café\\u002f/\""),
        ("2025-03-26", "-1", "-1"),
    ] {
        let client = Client::open(&d, revision);
        let task = new_task(&d);
        let params = tool("TaskWait", &wait_for(&task));
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        let asked = client.post(&json!(0)).without("Content-Length").body(body);
        let mut call = Stream::open(&asked);
        let first = call.next();
        // The same id in another session is another request.
        let notice = |client: &Client| {
            let body = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{taken_back},"reason":"no"}}}}"#
            );
            let reply = client.post(&json!(0)).without("Content-Length").body(body).send();
            assert_eq!(reply.status(), 202, "{reply:?}");
        };
        notice(&Client::open(&d, revision));
        call.is_silent();
        notice(&client);
        assert_eq!(call.rest(), [], "no answer");
        assert_eq!(call_states(&d).last().map(String::as_str), Some("cancelled"));
        // Nothing is left, and another attempt does no harm.
        let reply = client.no_stream(Some(first.event_id()));
        assert_eq!(reply.status(), 204, "{reply:?}");
        notice(&client);
    }
    eventually(SOON, || subscribers(&d) <= before);
}

#[test]
fn ids_that_differ_in_their_last_digit_are_of_two_calls() {
    let (d, client) = with_client();
    let task = new_task(&d);
    let params = tool("TaskWait", &wait_for(&task));
    let begin = |id: &str| {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        let asked = client.post(&json!(0)).without("Content-Length").body(body);
        let mut call = Stream::open(&asked);
        call.next();
        call
    };
    let ids = ["18446744073709551616", "18446744073709551617"];
    let calls = ids.map(begin);
    assert_eq!(call_states(&d), ["working", "working"]);
    finish(&d, &task);
    for (id, mut call) in ids.into_iter().zip(calls) {
        let last = std::iter::from_fn(|| call.block()).last().expect("an answer");
        let answer = last.data.concat();
        assert!(answer.contains(&format!("\"id\":{id},")), "{answer}");
    }
}

#[test]
fn disconnect_does_not_cancel_a_call_in_a_session() {
    let (d, client) = with_client();
    let task = new_task(&d);
    let (id, mut call) = client.begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    call.knife().cut();
    call.is_over();
    client.ask("ping", &json!({}));
    assert_eq!(call_states(&d), ["working"]);
    finish(&d, &task);
    eventually(SOON, || call_states(&d) == ["completed"]);
    is_wait_answer(&client.listen(Some(primed.event_id())).answer().json, id);
}

#[test]
fn disconnect_cancels_a_stateless_call() {
    let d = Daemon::start();
    let before = subscribers(&d);
    let task = new_task(&d);
    let mut params = with_token(&task, &json!("t"));
    for accept in ["text/event-stream", "application/json, text/event-stream"] {
        params["_meta"]["progressToken"] = json!(accept);
        let body = modern_body(1, "tools/call", &params, &json!({}));
        let asked = modern_post(&d, &body).without("Accept").header("Accept", accept);
        let mut stream = Stream::open(&asked);
        let first = stream.block().expect("a first block");
        assert!(first.id.is_none() && first.retry.is_none(), "nothing to resume: {first:?}");
        eventually(SOON, || subscribers(&d) > before);
        stream.knife().cut();
        eventually(SOON, || subscribers(&d) <= before);
    }
    assert!(call_states(&d).is_empty(), "nothing was put on record");
    let body = modern_body(2, "tools/call", &params, &json!({}));
    let mut stream = Stream::open(&modern_post(&d, &body));
    finish(&d, &task);
    let mut all = stream.rest();
    assert!(all.iter().all(|message| message.id.is_none()), "{all:?}");
    is_wait_answer(&all.pop().expect("an answer").json, 2);
}

#[test]
fn stream_of_a_stateless_call_ends_with_its_token() {
    let d = Daemon::start();
    let before = subscribers(&d);
    let session = d.session("s-1");
    let task = new_task(&session);
    let params = tool("TaskWait", &wait_for(&task));
    let body = modern_body(1, "tools/call", &params, &json!({}));
    let mut stream = Stream::open(&modern_post(&session, &body));
    let token = d.get("/v1/tokens").ok(200)["tokens"][0]["token_id"].clone();
    d.delete(&format!("/v1/tokens/{}", token.as_str().expect("an id"))).ok(200);
    let last = stream.rest().pop().expect("the end of the call");
    assert_eq!(last.json["error"]["data"]["code"], "unauthorized", "{last:?}");
    eventually(SOON, || subscribers(&d) <= before);
}

#[test]
fn repeated_request_is_the_same_call() {
    let (d, client) = with_client();
    for round in 0..20 {
        let task = new_task(&d);
        let body = request(round, "tools/call", &tool("TaskWait", &wait_for(&task)));
        let mut streams: Vec<Stream> = thread::scope(|scope| {
            let twice: Vec<_> =
                (0..3).map(|_| scope.spawn(|| Stream::open(&client.post(&body)))).collect();
            twice.into_iter().map(|stream| stream.join().expect("a stream")).collect()
        });
        streams.push(Stream::open(&client.post(&body)));
        finish(&d, &task);
        let answers: Vec<_> = streams.iter_mut().map(Stream::answer).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        is_wait_answer(&answers[0].json, round);
        assert_eq!(call_states(&d).len() as u64, round + 1, "one call on record");
    }
    // The same id with other params is another call, and so is the same request in another session.
    let (one, two) = (new_task(&d), new_task(&d));
    let body = |task: &str| request("same", "tools/call", &tool("TaskWait", &wait_for(task)));
    let mut first = Stream::open(&client.post(&body(&one)));
    let mut second = Stream::open(&client.post(&body(&two)));
    let mut other = Stream::open(&Client::open(&d, "2025-11-25").post(&body(&one)));
    finish(&d, &two);
    let answer = second.answer().json;
    assert_eq!(given(&answer["result"])["task"]["task_id"], json!(two));
    finish(&d, &one);
    for stream in [&mut first, &mut other] {
        let answer = stream.answer().json;
        assert_eq!(given(&answer["result"])["task"]["task_id"], json!(one));
    }
}

#[test]
fn client_that_accepts_no_streams_gets_json() {
    let d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "100"));
    let client = Client::open(&d, "2025-06-18");
    let task = new_task(&d);
    let body = request(3, "tools/call", &with_token(&task, &json!("t")));
    let asked = client.post(&body).without("Accept").header("Accept", "application/json");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| asked.send());
        eventually(SOON, || call_states(&d) == ["working"]);
        finish(&d, &task);
        let reply = waiting.join().expect("an answer");
        assert_eq!(reply.header("content-type"), Some("application/json"));
        is_wait_answer(&reply.json(), 3);
    });
    // A cancelled call has to end.
    let task = new_task(&d);
    let body = request(4, "tools/call", &tool("TaskWait", &wait_for(&task)));
    let asked = client.post(&body).without("Accept").header("Accept", "application/json");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| asked.send());
        eventually(SOON, || call_states(&d) == ["completed", "working"]);
        client.notify("notifications/cancelled", &json!({ "requestId": 4 }));
        let reply = waiting.join().expect("an answer");
        let answer = message(&reply);
        assert_eq!((&answer["id"], answer.get("result")), (&json!(4), None), "{answer}");
        assert!(answer["error"]["code"].is_i64());
    });
}

#[test]
fn concurrent_calls_each_get_their_own_response() {
    let d = Daemon::start();
    let sessions: Vec<Client> = LEGACY.iter().map(|it| Client::open(&d, it)).collect();
    let task = new_task(&d);
    let mut calls: Vec<(u64, Stream)> =
        (0..40).map(|n| sessions[n % sessions.len()].begin("TaskWait", &wait_for(&task))).collect();
    // A slow call delays no other.
    for client in &sessions {
        given(&client.call("TaskGet", &json!({ "task_id": task })));
    }
    let batch = json!([
        request("a", "tools/call", &tool("TaskWait", &json!({ "task_id": task, "timeout_s": 0 }))),
        request("b", "ping", &json!({})),
    ]);
    let answers = sessions[1].post(&batch).send().ok(200);
    assert_eq!(given(&answers[0]["result"])["timed_out"], json!(true));
    assert_eq!(answers[1]["id"], "b");
    finish(&d, &task);
    for (id, call) in &mut calls {
        is_wait_answer(&call.answer().json, *id);
    }
}

#[test]
fn only_the_operator_sees_streams_of_calls() {
    let d = Daemon::start();
    let (owner, other) = (d.reader("s-1"), d.reader("s-2"));
    let client = Client::open(&owner, "2025-11-25");
    let task = new_task(&d);
    let (_, mut call) = client.begin("TaskWait", &wait_for(&task));
    let primed = call.next();
    finish(&d, &task);
    call.answer();
    let name = format!("mcp/{}", parts(primed.event_id()).0);
    let events = |caller: &Caller, query: &str| {
        let reply = caller.get(&format!("/v1/events{query}"));
        (reply.status(), String::from_utf8_lossy(&reply.body).into_owned())
    };
    let read = |caller: &Caller, arguments: Value| {
        let body = request(1, "tools/call", &tool("events_read", &arguments));
        result(&post(caller, &body).send()).to_string()
    };
    let of_stream = format!("?stream={name}");
    for caller in [&owner, &other] {
        assert_eq!(events(caller, &of_stream).0, 404);
        let feed = caller.try_follow(&format!("/v1/events{of_stream}"), None).expect("an answer");
        assert_eq!(feed.err().map(|reply| reply.status()), Some(404));
        for query in
            ["", "?stream_prefix=", "?stream_prefix=mcp/", "?stream_prefix=m", "?kind=message"]
        {
            let (status, text) = events(caller, query);
            assert!(status != 200 || !text.contains("mcp/"), "{query}: {status} {text}");
        }
        let mut feed = caller.follow("/v1/events");
        let last =
            crate::expect::page(&d.get("/v1/events?stream_prefix=task/&limit=500"), "events");
        let last = last.last().and_then(|item| item["position"].as_u64());
        loop {
            let event = feed.event();
            let stream = event.data["stream"].as_str().unwrap_or_default().to_owned();
            assert!(!stream.starts_with("mcp/"), "{stream}");
            if event.id >= last {
                break;
            }
        }
        let text = read(caller, json!({ "stream": name }));
        assert!(text.contains("not_found"), "{text}");
        for arguments in [json!({}), json!({ "prefix": "mcp/" }), json!({ "prefix": "" })] {
            let text = read(caller, arguments);
            assert!(!text.contains("mcp/"), "{text}");
        }
    }
    let (status, text) = events(&d, &of_stream);
    assert!(status == 200 && text.contains(&name), "{status} {text}");
    assert!(events(&d, "?limit=500").1.contains(&name));
    // The tool's responses are in such streams themselves: no agent reads them, whoever it works
    // for.
    assert!(read(&d, json!({ "stream": name })).contains("not_found"));
    for arguments in [json!({ "limit": 500 }), json!({ "prefix": "mcp/", "limit": 500 })] {
        let text = read(&d, arguments);
        assert!(!text.contains("mcp/"), "{text}");
    }
    let stored = format!("select count(*) from stream where name = '{name}'");
    assert_eq!(d.home.value(&stored), 1);
}

/// The name of a stream does not decide who may read it: the column that was set at its opening
/// does.
#[test]
fn stream_keeps_the_visibility_of_its_opening() {
    let mut d = Daemon::start();
    let (secret, open) = (new_task(&d), new_task(&d));
    d.stop();
    let name = format!("task/{secret}");
    let hidden = format!(
        "update stream set visibility = 'operator', owner = null, project = null where name = '{name}'"
    );
    assert_eq!(d.home.change(&hidden), 1);
    d.restart();

    let other = d.reader("s-1");
    let mut feed = other.follow("/v1/events?stream_prefix=task/");
    let mut all = d.follow("/v1/events?stream_prefix=task/");
    for task in [&secret, &open] {
        crate::expect::append(&d, task, &json!([crate::expect::frame("a line")]));
    }
    let said = |event: &Value| event["stream"].as_str().unwrap_or_default().to_owned();
    loop {
        let event = feed.event().data;
        assert_ne!(said(&event), name, "in a feed, replayed and live");
        if said(&event) == format!("task/{open}") && event["kind"] == "frame" {
            break;
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        seen.insert(said(&all.event().data));
    }
    assert!(seen.contains(&name), "the operator reads all: {seen:?}");

    let by_name = format!("/v1/events?stream={name}");
    assert_eq!(other.get(&by_name).status(), 404);
    let refused = other.try_follow(&by_name, None).expect("an answer").err();
    assert_eq!(refused.map(|reply| reply.status()), Some(404));
    d.get(&by_name).ok(200);
    let page = other.get("/v1/events?stream_prefix=task/&limit=500").ok(200).to_string();
    assert!(page.contains(&open) && !page.contains(&secret), "{page}");

    let client = Client::open(&other, "2025-11-25");
    let listed = client.ask("resources/list", &json!({})).to_string();
    assert!(listed.contains(&open) && !listed.contains(&secret), "{listed}");
    for caller in [&other, &*d] {
        let client = Client::open(caller, "2025-11-25");
        let uri = format!("svc://stream/{name}");
        let asked = client.post(&request(1, "resources/read", &json!({ "uri": uri })));
        super::refused(&asked.send(), 200, -32002);
        let read = |arguments: &Value| {
            let body = request(1, "tools/call", &tool("events_read", arguments));
            result(&post(caller, &body).send()).to_string()
        };
        assert!(read(&json!({ "stream": name })).contains("not_found"));
        let text = read(&json!({ "prefix": "task/", "limit": 500 }));
        assert!(text.contains(&open) && !text.contains(&secret), "{text}");
    }
}

/// A recorded response is an event. If the next response contained it, the one after would contain
/// both, each time with more backslashes: ten calls were eleven megabytes.
#[test]
fn log_responses_do_not_contain_earlier_responses() {
    let d = Daemon::start();
    let client = Client::open(&d, "2025-06-18");
    let mut sizes = Vec::new();
    for _ in 0..12 {
        let params = json!({ "name": "events_read", "arguments": { "limit": 500 }, "_meta": { "progressToken": "p" } });
        let (_, mut call) = client.begin_with(&params);
        sizes.push(call.answer().json.to_string().len());
    }
    let stored = d.home.value("select count(*) from stream where name like 'mcp/%'");
    assert!(stored.as_i64() > Some(0), "the answers are on record");
    assert!(sizes.iter().all(|size| size.abs_diff(sizes[0]) < 100), "{sizes:?}");
}
