//! Streams: replay, follow, resume and end, with nothing twice, missing or out of order.

use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::daemon::{Daemon, quickly};
use crate::expect::{
    all_pages, append, dense, done, each, frame, instant, new_task, page, peer, problem, subscribe,
    text,
};
use crate::wire::{Block, Caller, Conn, Event, Sse};

/// A task that ended: its making, `frames` lines and its end. Returns its id and last event id.
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
fn headers_come_at_once_and_a_retry_comes_first() {
    let d = Daemon::start();
    let task = new_task(&d);
    // At its head nothing is left to send, and still the headers must come.
    for target in
        [format!("{}&last_event_id=1", subscribe(&task)), "/v1/events?after=latest".into()]
    {
        let asked = Instant::now();
        let mut stream = d.follow(&target);
        assert!(asked.elapsed() < Duration::from_secs(5), "headers at once");
        let head = stream.head.clone();
        assert_eq!(head.header("content-type"), Some("text/event-stream"), "{head:?}");
        assert_eq!(head.header("cache-control"), Some("no-cache"), "{head:?}");
        assert_eq!(head.header("x-accel-buffering"), Some("no"), "{head:?}");
        assert_eq!(head.header("content-encoding"), None);
        assert_eq!(head.header("access-control-allow-origin"), None);
        let first = stream.block().unwrap().unwrap();
        assert_eq!(first, Block { retry: Some("1000".to_owned()), ..Block::default() });
        assert!(asked.elapsed() < Duration::from_secs(5), "and the first block with them");
    }
}

#[test]
fn a_subscriber_gets_what_was_then_what_comes_then_the_end() {
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
fn a_resume_from_any_id_gets_exactly_what_is_greater() {
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
        // The same after a crash: the ids are not counted anew.
        if round == 0 {
            d.kill9();
            d.restart();
        }
    }
}

#[test]
fn a_resume_at_the_head_of_an_open_task_waits_for_more() {
    let d = Daemon::start();
    let task = new_task(&d);
    append(&d, &task, &frame("one"));
    let mut stream = d.follow_after(&subscribe(&task), Some("2"));
    append(&d, &task, &json!([frame("two"), done()]));
    let rest = stream.rest();
    dense(&rest, 3);
    assert_eq!(kinds(&rest), ["frame", "terminal"]);
}

#[test]
fn the_header_wins_over_the_query_and_an_empty_one_is_none() {
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
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
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
    // What a client says that it accepts was never asked.
    let plain = d.request("GET", &subscribe(&task)).header("Accept", "application/json").send();
    assert_eq!(plain.header("content-type"), Some("text/event-stream"));
}

#[test]
fn a_cursor_beyond_the_head_is_told_so_and_gets_everything() {
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
    // And on a task that is still open, it follows.
    let open = new_task(&d);
    let mut stream = d.follow_after(&subscribe(&open), Some("7"));
    assert_eq!(stream.event().kind, "gap");
    assert_eq!(stream.event().id, Some(1));
    append(&d, &open, &done());
    assert_eq!(kinds(&stream.rest()), ["terminal"]);
}

#[test]
fn a_cursor_below_what_retention_left_is_told_what_is_gone() {
    let mut d = Daemon::start();
    let (task, last) = ended(&d, 8);
    let keep = new_task(&d);
    d.stop();
    // As retention does it: a prefix of the stream goes, and the mark says up to where.
    let file = Connection::open(d.home.path("svc.db")).unwrap();
    let name = format!("task/{task}");
    file.execute(
        "insert or replace into meta (name, value)
         select 'trimmed', max(position) from event join stream on stream.id = stream_id
         where name = ?1 and seq <= 4",
        [&name],
    )
    .unwrap();
    let gone = file.execute(
        "delete from event where seq <= 4 and stream_id = (select id from stream where name = ?1)",
        [&name],
    );
    assert_eq!(gone.unwrap(), 4);
    drop(file);
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
fn silence_is_filled_with_comments() {
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
fn a_task_that_ended_before_a_restart_replays_and_closes() {
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
fn data_is_one_line_whatever_a_frame_holds() {
    let d = Daemon::start();
    let task = new_task(&d);
    let hostile = [
        "a\nb\r\nc\rd",
        "\n\nid: 99\nevent: terminal\ndata: {}\n\n",
        "\u{2028}\u{2029}\u{85}\0\u{feff}",
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
fn a_subscriber_that_does_not_read_holds_up_no_stop() {
    let line = "x".repeat(9000);
    let batch: Vec<_> = (0..60).map(|_| frame(&line)).collect();
    // Others are given up after ten seconds.
    quickly(Duration::from_secs(8), || {
        let mut d = Daemon::start();
        let task = new_task(&d);
        // More than the system keeps for a socket at both ends.
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
fn two_hundred_subscribers_all_get_all() {
    let d = Daemon::start();
    let task = new_task(&d);
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
    let d = Daemon::start();
    let task = new_task(&d);
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
fn a_terminal_event_is_never_missed_however_close_it_comes() {
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
fn a_stalled_reader_holds_up_nobody_and_loses_nothing() {
    const BATCHES: usize = 25;
    const PER_BATCH: usize = 40;
    // It takes nothing until all is there, and on a busy machine that takes its time.
    let d = Daemon::with(|plan| plan.env("SVC_BODY_TIMEOUT_MS", "600000"));
    let task = new_task(&d);
    // Twenty megabytes: more than the sockets between us will hold.
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
    // Whoever kept reading has everything while the other has read nothing yet.
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
fn readers_that_vanish_are_forgotten() {
    quickly(Duration::from_secs(8), || {
        let mut d = Daemon::start();
        let task = new_task(&d);
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
fn events_are_pages_with_a_cursor_to_go_on_from() {
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
fn several_streams_are_read_by_position() {
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
fn a_feed_of_one_stream_counts_by_its_sequence() {
    let d = Daemon::start();
    let task = new_task(&d);
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
    // A feed ends with its listener and not with a task.
    append(&d, &task, &done());
    assert_eq!(frames_until(&mut feed, "terminal"), 7);
    feed.patience(Duration::from_millis(300));
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
fn a_feed_of_many_streams_counts_by_position_and_resumes() {
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
fn the_daemon_writes_down_its_own_coming_and_going() {
    let mut d = Daemon::start();
    d.restart();
    d.kill9();
    d.restart();
    let kinds = each(&page(&d.get("/v1/events?stream=daemon"), "events"), "kind");
    let wanted = ["daemon.started", "daemon.stopped", "daemon.started", "daemon.started"];
    assert_eq!(kinds, wanted);
}

#[test]
fn a_feed_follows_over_a_crash_without_a_gap() {
    let mut d = Daemon::start();
    let task = new_task(&d);
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

/// Streams and other answers on one connection, in turn and all asked for at once: a stream's end
/// leaves it as it was.
#[test]
fn a_connection_goes_on_after_a_stream() {
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

/// A client that wants the connection to end with the stream is told that it does, and one that
/// knows no chunks gets none.
#[test]
fn a_stream_ends_its_connection_where_the_client_wants_it() {
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
