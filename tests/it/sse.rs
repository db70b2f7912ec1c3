//! Streams: replay, follow, resume and end, with no event repeated, missing or out of order.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{Daemon, quickly};
use crate::expect::{
    all_pages, append, dense, done, each, frame, instant, new_task, page, peer, problem, subscribe,
    text, with_task,
};
use crate::wire::{Block, Caller, Conn, Event, Sse};

/// Creates an ended task: its creation, `frames` lines and its end. Returns its id and last event
/// id.
#[track_caller]
fn ended(caller: &Caller, frames: u64) -> (String, u64) {
    let task = new_task(caller);
    let mut batch: Vec<_> = (0..frames).map(|n| frame(&format!("line {n}"))).collect();
    batch.push(done());
    let (_, last) = append(caller, &task, &json!(batch));
    (task, last)
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

fn lines(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(|event| event.data["line"].as_str()).collect()
}

#[test]
fn stream_sends_its_head_at_once_and_retry_first() {
    let (d, task) = with_task();
    // At its head nothing is left to send, but the response's head must come.
    for target in
        [format!("{}&last_event_id=1", subscribe(&task)), "/v1/events?after=latest".into()]
    {
        let follow = || {
            let mut stream = d.follow(&target);
            let first = stream.block().unwrap().unwrap();
            (stream, first)
        };
        quickly(Duration::from_secs(5), || {
            let asked = Instant::now();
            follow();
            asked.elapsed()
        });
        let (stream, first) = follow();
        let head = stream.head.clone();
        assert_eq!(head.header("content-type"), Some("text/event-stream"), "{head:?}");
        assert_eq!(head.header("cache-control"), Some("no-cache"), "{head:?}");
        assert_eq!(head.header("x-accel-buffering"), Some("no"), "{head:?}");
        assert_eq!(head.header("content-encoding"), None);
        assert_eq!(head.header("access-control-allow-origin"), None);
        assert_eq!(first, Block { retry: Some("1000".to_owned()), ..Block::default() });
    }
}

#[test]
fn subscriber_gets_replay_then_live_events_then_the_end() {
    let d = Daemon::start();
    let made = d.post("/v1/tasks", &json!({ "title": "t" })).ok(201);
    let task = text(&made, "task_id");
    append(&d, &task, &json!([frame("before \"1\""), frame("before\n2")]));
    let mut stream = d.follow(&subscribe(&task));
    let before = stream.events(3);
    dense(&before, 1);
    assert_eq!(kinds(&before), ["task", "frame", "frame"]);
    assert_eq!(before[0].data, made, "a task event is the task");
    assert_eq!(before[1].data["task_id"], json!(task));
    assert_eq!(before[1].data["kind"], "stdout");
    instant(&before[1].data["ts"]);

    append(&d, &task, &frame("after 3"));
    let after = stream.event();
    assert_eq!((after.id, after.data["line"].as_str()), (Some(4), Some("after 3")));
    assert_eq!(lines(&before), ["before \"1\"", "before\n2"]);

    append(&d, &task, &json!({ "kind": "task", "data": { "status": "active" } }));
    let active = stream.event();
    assert_eq!((active.id, active.kind.as_str()), (Some(5), "task"));
    assert_eq!(active.data["status"], "active");

    append(&d, &task, &json!([frame("bye"), done()]));
    let rest = stream.rest();
    dense(&rest, 6);
    assert_eq!(kinds(&rest), ["frame", "terminal"]);
    let mut end = d.get(&format!("/v1/tasks/{task}")).ok(200);
    assert_eq!(rest[1].data["status"], "done");
    end["last_id"] = rest[1].data["last_id"].clone();
    assert_eq!(rest[1].data, end, "a terminal event is the task as it ended");
}

#[test]
fn resume_from_any_id_gets_exactly_the_later_events() {
    let mut d = Daemon::start();
    let (task, last) = ended(&d, 9);
    let whole = d.follow(&subscribe(&task)).rest();
    dense(&whole, 1);
    assert_eq!(whole.len(), usize::try_from(last).unwrap());
    for round in 0..2 {
        for from in 0..last {
            let wanted = &whole[usize::try_from(from).unwrap()..];
            let header = d.follow_after(&subscribe(&task), Some(&from.to_string())).rest();
            assert_eq!(header, wanted, "by header from {from}, round {round}");
            let target = format!("{}&last_event_id={from}", subscribe(&task));
            assert_eq!(d.follow(&target).rest(), wanted, "by query from {from}, round {round}");
        }
        for reply in [
            d.try_follow(&subscribe(&task), Some(&last.to_string())).unwrap(),
            d.try_follow(&format!("{}&last_event_id={last}", subscribe(&task)), None).unwrap(),
        ] {
            let reply = reply.err().expect("nothing is left to send and nothing will come");
            assert_eq!(reply.status(), 204, "{reply:?}");
            assert!(reply.body.is_empty());
        }
        // The same after a crash: the ids go on.
        if round == 0 {
            d.kill_and_restart();
        }
    }
}

#[test]
fn resume_at_the_head_of_an_open_task_waits() {
    let (d, task) = with_task();
    append(&d, &task, &frame("one"));
    let mut stream = d.follow_after(&subscribe(&task), Some("2"));
    append(&d, &task, &json!([frame("two"), done()]));
    let rest = stream.rest();
    dense(&rest, 3);
    assert_eq!(kinds(&rest), ["frame", "terminal"]);
}

#[test]
fn cursor_header_overrides_the_query_and_empty_counts_as_absent() {
    let d = Daemon::start();
    let (task, last) = ended(&d, 3);
    let with = |query: &str, header: Option<&str>| {
        let target = format!("{}{query}", subscribe(&task));
        d.follow_after(&target, header).rest().first().and_then(|event| event.id)
    };
    assert_eq!(with("&last_event_id=1", Some("3")), Some(4));
    assert_eq!(with("&last_event_id=3", Some("1")), Some(2));
    assert_eq!(with("&last_event_id=3", Some("")), Some(4), "an empty header is none");
    assert_eq!(with("", Some("")), Some(1));
    assert_eq!(with("&last_event_id=", None), Some(1), "an empty query is none");
    assert_eq!(with("&last_event_id=abc", Some("1")), Some(2), "the query is not even looked at");
    assert_eq!(last, 5);
    for after in ["4", "latest", "abc"] {
        let feed = format!("/v1/events?stream=task/{task}&after={after}");
        assert_eq!(d.follow_after(&feed, Some("1")).event().id, Some(2), "{after}");
    }
    let feed = format!("/v1/events?stream=task/{task}&after=3");
    assert_eq!(d.follow_after(&feed, Some("")).event().id, Some(4), "an empty header is none");
}

#[test]
fn invalid_cursor_is_refused_with_the_reason() {
    let d = Daemon::start();
    let (task, _) = ended(&d, 1);
    for malformed in ["abc", "-1", "+1", "1.5", "18446744073709551616", "1 2", "0x1", "1,2", "ü"] {
        let refused = d.try_follow(&subscribe(&task), Some(malformed)).unwrap();
        let refused = refused.err().unwrap_or_else(|| panic!("{malformed:?} was accepted"));
        problem(&refused, 400, "invalid_request");
        if !malformed.contains([' ', 'ü']) {
            let malformed = malformed.replace('+', "%2B");
            let target = format!("{}&last_event_id={malformed}", subscribe(&task));
            problem(&d.get(&target), 400, "invalid_request");
        }
    }
    for blank in ["", "?task_id=", "?task_id=%20%09", "?taskid=x"] {
        problem(&d.get(&format!("/v1/biam/subscribe{blank}")), 400, "invalid_request");
    }
    problem(&d.get(&subscribe("task_unknown")), 404, "not_found");
    for method in ["POST", "PUT", "DELETE"] {
        let reply = d.request(method, &subscribe(&task)).send();
        problem(&reply, 405, "method_not_allowed");
        assert!(reply.header("allow").is_some_and(|allow| allow.contains("GET")));
    }
    // The client's `Accept` is ignored.
    let plain = d.request("GET", &subscribe(&task)).header("Accept", "application/json").send();
    assert_eq!(plain.header("content-type"), Some("text/event-stream"));
}

#[test]
fn cursor_beyond_the_head_gets_a_gap_and_everything() {
    let d = Daemon::start();
    let (task, last) = ended(&d, 2);
    for ahead in [last + 1, 1_000, i64::MAX.unsigned_abs(), u64::MAX] {
        let got = d.follow_after(&subscribe(&task), Some(&ahead.to_string())).rest();
        let (gap, rest) = got.split_first().expect("a gap first");
        assert_eq!((gap.kind.as_str(), gap.id), ("gap", None), "{gap:?}");
        let wanted = json!({
            "requested": ahead, "oldest": 1, "latest": last, "reason": "ahead",
        });
        assert_eq!(gap.data, wanted);
        dense(rest, 1);
        assert_eq!(kinds(rest), ["task", "frame", "frame", "terminal"]);
    }
    // On a task that is still open, it follows.
    let open = new_task(&d);
    let mut stream = d.follow_after(&subscribe(&open), Some("7"));
    assert_eq!(stream.event().kind, "gap");
    assert_eq!(stream.event().id, Some(1));
    append(&d, &open, &done());
    assert_eq!(kinds(&stream.rest()), ["terminal"]);
}

#[test]
fn cursor_below_the_retained_events_gets_a_gap() {
    let mut d = Daemon::start();
    let (task, last) = ended(&d, 8);
    let keep = new_task(&d);
    d.stop();
    // As retention does it: removes a prefix of the stream, and sets the mark.
    d.home.change("delete from meta where name = 'trimmed'");
    d.home.change(&format!(
        "insert into meta (name, value)
         select 'trimmed', max(position) from event join stream on stream.id = stream_id
         where stream.name = 'task/{task}' and seq <= 4"
    ));
    let gone = d.home.change(&format!(
        "delete from event where seq <= 4
        and stream_id = (select id from stream where name = 'task/{task}')"
    ));
    assert_eq!(gone, 4);
    d.restart();

    for from in 0..last {
        let got = d.follow_after(&subscribe(&task), Some(&from.to_string())).rest();
        let rest = if from < 4 {
            let (gap, rest) = got.split_first().expect("a gap first");
            assert_eq!((gap.kind.as_str(), gap.id), ("gap", None), "from {from}");
            let wanted = json!({
                "requested": from, "oldest": 5, "latest": last, "reason": "pruned",
            });
            assert_eq!(gap.data, wanted);
            rest
        } else {
            &got
        };
        let first = from.max(4) + 1;
        dense(rest, first);
        assert_eq!(rest.len() as u64, last + 1 - first, "from {from}");
        assert_eq!(kinds(rest).last(), Some(&"terminal"));
    }
    let mut feed = d.follow_after("/v1/events?stream_prefix=task/", Some("1"));
    let gap = feed.event();
    assert_eq!((gap.kind.as_str(), gap.id), ("gap", None));
    assert_eq!(gap.data["reason"], "pruned");
    assert_eq!(feed.event().data["seq"], 5);
    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"], json!(last));
    assert_eq!(append(&d, &keep, &done()), (2, 2), "ids go on as if nothing had happened");
}

#[test]
fn idle_stream_sends_comments() {
    let d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "200"));
    let task = new_task(&d);
    for target in [subscribe(&task), "/v1/events?stream=daemon".to_owned()] {
        let mut stream = d.follow(&target);
        let mut comments = 0;
        while comments < 3 {
            let block = stream.block().unwrap().unwrap();
            if block.comment.is_some() {
                let only = Block { comment: block.comment.clone(), ..Block::default() };
                assert_eq!(block, only, "a comment is nothing but a comment");
                comments += 1;
            }
        }
    }
    let mut stream = d.follow(&subscribe(&task));
    stream.events(1);
    append(&d, &task, &json!([frame("a"), done()]));
    assert_eq!(kinds(&stream.rest()), ["frame", "terminal"], "and disturb nothing");
}

#[test]
fn ended_task_replays_and_closes_after_a_restart() {
    let mut d = Daemon::start();
    let (task, _) = ended(&d, 3);
    let open = new_task(&d);
    append(&d, &open, &frame("before"));
    let whole = d.follow(&subscribe(&task)).rest();
    for crash in [true, false] {
        if crash {
            d.kill9();
        }
        d.restart();
        assert_eq!(d.follow(&subscribe(&task)).rest(), whole);
    }
    let mut stream = d.follow_after(&subscribe(&open), Some("1"));
    let (first, _) = append(&d, &open, &json!([frame("after"), done()]));
    assert_eq!(first, 3, "the ids go on where they were");
    let rest = stream.rest();
    dense(&rest, 2);
    assert_eq!(lines(&rest), ["before", "after"]);
}

#[test]
fn event_data_is_always_one_line() {
    let (d, task) = with_task();
    let hostile = [
        "a\nb\r\nc\rd",
        "\n\nid: 99\nevent: terminal\ndata: {}\n\n",
        "\u{2028}\u{2029}\u{85}\u{1}\u{feff}",
        "",
        "🦀\u{10ffff}",
    ];
    let mut batch: Vec<_> = hostile.iter().map(|line| frame(line)).collect();
    batch.push(done());
    let mut live = d.follow(&subscribe(&task));
    append(&d, &task, &json!(batch));
    let live = live.rest();
    dense(&live, 1);
    assert_eq!(lines(&live), hostile);
    assert_eq!(d.follow(&subscribe(&task)).rest(), live, "live and replayed are the same");
}

#[test]
fn stalled_subscriber_does_not_delay_shutdown() {
    let line = "x".repeat(9000);
    let batch: Vec<_> = (0..60).map(|_| frame(&line)).collect();
    // Other requests get ten seconds.
    quickly(Duration::from_secs(8), || {
        let (mut d, task) = with_task();
        // More than the sockets' buffers at both ends hold.
        for _ in 0..40 {
            append(&d, &task, &json!(batch));
        }
        let stalled = d.follow(&subscribe(&task));
        let took = d.stop();
        drop(stalled);
        took
    });
}

#[test]
fn two_hundred_subscribers_get_every_event() {
    let (d, task) = with_task();
    let mut streams: Vec<Sse> = (0..200).map(|_| d.follow(&subscribe(&task))).collect();
    thread::scope(|scope| {
        for producer in 0..4 {
            let (d, task) = (&d, &task);
            scope.spawn(move || {
                for n in 0..25 {
                    append(d, task, &frame(&format!("{producer}-{n}")));
                }
            });
        }
    });
    append(&d, &task, &done());
    let first = streams[0].rest();
    assert_eq!(first.len(), 102);
    dense(&first, 1);
    for stream in &mut streams[1..] {
        assert!(stream.rest() == first, "every subscriber sees the same");
    }
}

#[test]
fn subscribing_in_the_middle_of_a_burst_misses_nothing() {
    let (d, task) = with_task();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..16)
            .map(|n: u64| {
                let (d, task) = (&d, &task);
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(n * 10));
                    d.follow(&subscribe(task)).rest()
                })
            })
            .collect();
        for n in 0..40 {
            let batch: Vec<_> = (0..10).map(|k| frame(&format!("{n}-{k}"))).collect();
            append(&d, &task, &json!(batch));
        }
        append(&d, &task, &done());
        for reader in readers {
            let got = reader.join().unwrap();
            dense(&got, 1);
            assert_eq!(got.len(), 402);
        }
    });
}

#[test]
fn concurrent_terminal_event_is_never_missed() {
    let d = Daemon::start();
    for round in 0..40 {
        let task = new_task(&d);
        thread::scope(|scope| {
            let reader = scope.spawn(|| d.follow(&subscribe(&task)).rest());
            append(&d, &task, &json!([frame("only"), done()]));
            let got = reader.join().unwrap();
            assert_eq!(kinds(&got), ["task", "frame", "terminal"], "round {round}");
        });
    }
}

#[test]
fn stalled_subscriber_delays_no_other_and_loses_nothing() {
    const BATCHES: usize = 25;
    const PER_BATCH: usize = 40;
    // It reads nothing until all is sent, which takes long on a busy machine.
    let d = Daemon::with(|plan| plan.env("SVC_BODY_TIMEOUT_MS", "600000"));
    let task = new_task(&d);
    // Twenty megabytes: more than the sockets' buffers hold.
    let filling = "x".repeat(20_000);
    let mut stalled = d.follow(&subscribe(&task));
    let other = thread::scope(|scope| {
        let other = scope.spawn(|| d.follow(&subscribe(&task)).rest());
        for n in 0..BATCHES {
            let batch: Vec<_> = (0..PER_BATCH)
                .map(|k| frame(&format!("{} {filling}", n * PER_BATCH + k)))
                .collect();
            append(&d, &task, &json!(batch));
        }
        append(&d, &task, &done());
        other.join().unwrap()
    });
    // A subscriber that keeps reading has everything while the other has read nothing.
    dense(&other, 1);
    assert_eq!(other.len(), BATCHES * PER_BATCH + 2);
    let mut got = 0;
    while let Some(event) = stalled.try_event().unwrap() {
        assert!(event == other[got], "event {got} is what the other got");
        got += 1;
    }
    assert_eq!(got, other.len());
}

#[test]
fn vanished_subscribers_are_removed() {
    quickly(Duration::from_secs(8), || {
        let (mut d, task) = with_task();
        for _ in 0..50 {
            let stream = d.follow(&subscribe(&task));
            stream.knife().cut();
        }
        append(&d, &task, &json!([frame("a"), done()]));
        assert_eq!(d.follow(&subscribe(&task)).rest().len(), 3);
        d.stop()
    });
}

#[test]
fn event_pages_have_a_cursor() {
    let d = Daemon::start();
    let (task, _) = ended(&d, 20);
    let stream = format!("/v1/events?stream=task/{task}");
    let body = d.get(&stream).ok(200);
    let items = body["events"].as_array().unwrap();
    assert_eq!(items.len(), 22);
    for (n, item) in items.iter().enumerate() {
        assert_eq!(item["stream"], json!(format!("task/{task}")));
        assert_eq!(item["seq"], json!(n + 1));
        assert!(item["position"].is_u64(), "{item}");
        instant(&item["at"]);
    }
    assert_eq!(items[1]["kind"], "frame");
    assert_eq!(items[1]["data"]["line"], "line 0");
    for limit in [1, 5, 21, 22, 23] {
        let paged = all_pages(&d, &format!("{stream}&limit={limit}"), "events", "after");
        assert_eq!(&paged, items, "limit {limit}");
    }
    let after = page(&d.get(&format!("{stream}&after=20")), "events");
    assert_eq!(each(&after, "seq"), ["21", "22"]);
    assert!(page(&d.get(&format!("{stream}&after=22")), "events").is_empty());
    let terminal = page(&d.get(&format!("{stream}&kind=terminal")), "events");
    assert_eq!(each(&terminal, "seq"), ["22"]);
    let frames = all_pages(&d, &format!("{stream}&kind=frame&limit=3"), "events", "after");
    assert_eq!(frames.len(), 20, "a filter does not end the pages early");
    assert!(page(&d.get(&format!("{stream}&kind=nothing")), "events").is_empty());
}

#[test]
fn events_of_several_streams_are_ordered_by_position() {
    let d = Daemon::start();
    let (one, _) = ended(&d, 2);
    let id = peer(&d, "s-1");
    let (two, _) = ended(&d, 2);
    let prefix = "/v1/events?stream_prefix=task/";
    let items = all_pages(&d, &format!("{prefix}&limit=3"), "events", "after");
    let streams = each(&items, "stream");
    let (one, two) = (format!("task/{one}"), format!("task/{two}"));
    let wanted = [&one, &one, &one, &one, &two, &two, &two, &two];
    assert_eq!(streams.iter().collect::<Vec<_>>(), wanted);
    let positions: Vec<_> = items.iter().map(|item| item["position"].as_u64().unwrap()).collect();
    assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
    let after = format!("{prefix}&after={}", positions[5]);
    assert_eq!(each(&page(&d.get(&after), "events"), "seq"), ["3", "4"]);

    let everything = all_pages(&d, "/v1/events?limit=500", "events", "after");
    let streams = each(&everything, "stream");
    for stream in ["daemon", "team", &one, &two] {
        assert!(streams.iter().any(|known| known == stream), "{stream} in {streams:?}");
    }
    let kind = page(&d.get("/v1/events?kind=peer.registered"), "events");
    assert_eq!(kind.len(), 1);
    assert_eq!(kind[0]["data"]["peer_id"], json!(id));

    problem(&d.get("/v1/events?stream=task/unknown"), 404, "not_found");
    problem(&d.get("/v1/events?stream=task/"), 404, "not_found");
    assert!(page(&d.get("/v1/events?stream_prefix=nothing/"), "events").is_empty());
    assert!(page(&d.get("/v1/events?stream_prefix=task/%25"), "events").is_empty(), "no pattern");
    assert!(page(&d.get("/v1/events?stream_prefix=t_sk/"), "events").is_empty(), "no pattern");
    assert_eq!(d.get("/v1/events?stream=team&stream_prefix=task/").status(), 422);
    let to_come = page(&d.get("/v1/events?after=latest"), "events");
    assert!(to_come.is_empty(), "a page holds what was, and the latest is to come");
}

#[test]
fn page_after_the_latest_says_where_to_go_on() {
    let (d, task) = with_task();
    append(&d, &task, &frame("before"));
    for selected in [format!("stream=task/{task}"), "stream_prefix=task/".to_owned()] {
        let latest = d.get(&format!("/v1/events?{selected}&after=latest"));
        assert!(page(&latest, "events").is_empty(), "{selected}");
        let end = latest.json()["next_cursor"].as_str().expect("the end").to_owned();
        append(&d, &task, &frame(&selected));
        let came = page(&d.get(&format!("/v1/events?{selected}&after={end}")), "events");
        assert_eq!(came.len(), 1, "{selected} after {end}: {came:?}");
        assert_eq!(came[0]["data"]["line"], json!(selected));
    }
}

#[test]
fn feed_of_one_stream_has_its_seq_as_id() {
    let (d, task) = with_task();
    append(&d, &task, &json!([frame("a"), frame("b")]));
    let target = format!("/v1/events?stream=task/{task}");
    let items = page(&d.get(&target), "events");
    let mut feed = d.follow(&target);
    let got = feed.events(3);
    dense(&got, 1);
    assert_eq!(kinds(&got), ["task", "frame", "frame"]);
    for (event, item) in got.iter().zip(&items) {
        assert_eq!(&event.data, item, "a feed's data is the page's item");
    }
    assert_eq!(d.follow(&format!("{target}&after=1")).event().id, Some(2));
    assert_eq!(d.follow_after(&target, Some("2")).event().id, Some(3));
    assert_eq!(d.follow_after(&format!("{target}&after=0"), Some("2")).event().id, Some(3));
    let mut latest = d.follow(&format!("{target}&after=latest"));
    append(&d, &task, &frame("c"));
    assert_eq!(feed.event().id, Some(4));
    assert_eq!(latest.event().data["data"]["line"], "c");
    let mut frames = d.follow(&format!("{target}&kind=frame&after=2"));
    append(&d, &task, &json!({ "kind": "task", "data": { "status": "active" } }));
    append(&d, &task, &frame("d"));
    assert_eq!(
        frames.events(3).iter().map(|event| event.id).collect::<Vec<_>>(),
        [Some(3), Some(4), Some(6)]
    );
    // A feed ends with its subscriber and not with a task.
    append(&d, &task, &done());
    assert_eq!(frames_until(&mut feed, "terminal"), 7);
    feed.set_timeout(Duration::from_millis(300));
    assert!(feed.block().is_err(), "it stays open");
    let refused = d.try_follow("/v1/events?stream=task/unknown", None).unwrap();
    problem(&refused.err().unwrap(), 404, "not_found");
}

/// Reads until an event of this kind and returns its id.
#[track_caller]
fn frames_until(feed: &mut Sse, kind: &str) -> u64 {
    loop {
        let event = feed.event();
        if event.kind == kind {
            return event.id.expect("an id");
        }
    }
}

#[test]
fn feed_of_many_streams_has_positions_as_ids_and_resumes() {
    let d = Daemon::start();
    let mut feed = d.follow("/v1/events?stream_prefix=task/&after=latest");
    let mut whole = d.follow("/v1/events?after=latest");
    let tasks: Vec<_> = thread::scope(|scope| {
        let makers: Vec<_> = (0..6).map(|_| scope.spawn(|| ended(&d, 5).0)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    peer(&d, "s-1");
    let got = feed.events(tasks.len() * 7);
    let ids: Vec<_> = got.iter().map(|event| event.id.unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for event in &got {
        assert_eq!(event.id, event.data["position"].as_u64());
    }
    for task in &tasks {
        let seqs: Vec<_> = got
            .iter()
            .filter(|event| event.data["stream"] == json!(format!("task/{task}")))
            .map(|event| event.data["seq"].clone())
            .collect();
        assert_eq!(json!(seqs), json!((1..=7).collect::<Vec<_>>()));
    }
    let all = whole.events(got.len() + 1);
    assert_eq!(all.last().map(|event| event.data["stream"].clone()), Some(json!("team")));

    let half = ids[ids.len() / 2].to_string();
    let mut resumed = d.follow_after("/v1/events?stream_prefix=task/", Some(&half));
    assert_eq!(resumed.events(got.len() / 2 - 1), got[got.len() / 2 + 1..]);
}

#[test]
fn daemon_logs_its_start_and_stop() {
    let mut d = Daemon::start();
    d.restart();
    d.kill_and_restart();
    let mut kinds = each(&page(&d.get("/v1/events?stream=daemon"), "events"), "kind");
    kinds.retain(|kind| ["daemon.started", "daemon.stopped"].contains(&kind.as_str()));
    let wanted = ["daemon.started", "daemon.stopped", "daemon.started", "daemon.started"];
    assert_eq!(kinds, wanted);
}

#[test]
fn feed_continues_across_a_crash_without_a_gap() {
    let (mut d, task) = with_task();
    let target = format!("/v1/events?stream=task/{task}");
    let mut seen: Vec<Value> = Vec::new();
    for round in 0..3 {
        let last = seen.len().to_string();
        let mut feed = d.follow_after(&target, Some(&last));
        append(&d, &task, &json!([frame(&format!("{round} a")), frame(&format!("{round} b"))]));
        let new = if round == 0 { 3 } else { 2 };
        seen.extend(feed.events(new).into_iter().map(|event| event.data));
        d.kill9();
        assert!(feed.try_event().is_err(), "a killed daemon cuts the stream");
        d.restart();
    }
    assert_eq!(page(&d.get(&target), "events"), seen);
}

/// Streams and other responses on one connection, in turn and pipelined: the end of a stream keeps
/// the connection.
#[test]
fn connection_is_reusable_after_a_stream() {
    let d = Daemon::start();
    let (task, last) = ended(&d, 3);
    let kept = |target: &str| d.request("GET", target).without("Connection").bytes();
    let (health, stream) = (kept("/health"), kept(&subscribe(&task)));
    let asked = [&health, &stream, &health, &stream, &stream, &health];
    for at_once in [false, true] {
        let mut conn = Conn::open(d.addr).expect("a connection");
        if at_once {
            conn.write(&asked.map(Vec::as_slice).concat()).expect("it takes all");
        }
        for request in asked {
            if !at_once {
                conn.write(request).expect("it is still open");
            }
            let reply = conn.reply().expect("an answer");
            assert_eq!(reply.status(), 200, "{reply:?}");
            assert_eq!(reply.header("connection"), None, "{reply:?}");
            assert!(reply.header("date").is_some_and(|date| date.ends_with(" GMT")), "{reply:?}");
            let body = String::from_utf8_lossy(&reply.body);
            if request == &stream {
                assert_eq!(reply.header("transfer-encoding"), Some("chunked"), "{reply:?}");
                assert!(body.contains(&format!("id: {last}\nevent: terminal\n")), "{body}");
            } else {
                assert!(body.starts_with('{'), "{body}");
            }
        }
    }
}

/// A client that asks for `Connection: close` gets it, and one of HTTP/1.0 gets no chunks.
#[test]
fn stream_closes_its_connection_on_request() {
    let d = Daemon::start();
    let (task, last) = ended(&d, 3);
    let target = subscribe(&task);
    let closing = d.request("GET", &target).bytes();
    let old = String::from_utf8(d.request("GET", &target).without("Connection").bytes());
    let old = old.expect("text").replacen("HTTP/1.1", "HTTP/1.0", 1).into_bytes();
    for (request, encoding) in [(closing, Some("chunked")), (old, None)] {
        let mut conn = Conn::open(d.addr).expect("a connection");
        conn.write(&request).expect("it is written");
        let reply = conn.reply().expect("an answer");
        assert_eq!(reply.header("transfer-encoding"), encoding, "{reply:?}");
        if encoding.is_some() {
            assert_eq!(reply.header("connection"), Some("close"), "{reply:?}");
        }
        let body = String::from_utf8_lossy(&reply.body);
        assert!(body.contains(&format!("id: {last}\nevent: terminal\n")), "{body}");
        assert!(conn.reply().is_err(), "nothing follows");
    }
}
