//! An accepted call has exactly one response, whatever happens to the daemon.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Client, LEGACY, Message, Stream, given, request, tool, wait_for};
use crate::crash::{Chance, SetOnDrop, number, seed};
use crate::daemon::{Daemon, Home, until};
use crate::expect::{done, text};
use crate::wire::Caller;

const WORKERS: usize = 8;
const BOUND: Duration = Duration::from_mins(1);

#[test]
fn every_accepted_call_has_one_response_after_any_number_of_crashes() {
    let rounds = number("SVC_CRASH_ROUNDS").unwrap_or(10);
    let seed = seed();
    eprintln!("SVC_CRASH_SEED={seed} SVC_CRASH_ROUNDS={rounds}");
    let mut chance = Chance(seed);

    let mut d = Daemon::start();
    let caller = d.with_token(d.token.as_deref().expect("a token"));
    // Two workers for each session.
    let clients: Vec<Client> = (0..WORKERS / 2)
        .map(|n| Client::open(&d.reader(&format!("s-{n}")), LEGACY[n % LEGACY.len()]))
        .collect();
    let stopping = AtomicBool::new(false);
    let calls = thread::scope(|scope| {
        // If this thread panics, the others must still end.
        let stop_anyway = SetOnDrop(&stopping);
        let (tasks, ends) = mpsc::channel::<String>();
        let ender = scope.spawn({
            let (caller, chance) = (&caller, Chance(seed ^ 1));
            move || end_all(caller, &ends, chance)
        });
        let workers: Vec<_> = (0..WORKERS)
            .map(|n| {
                let (client, caller) = (&clients[n / 2], &caller);
                let (tasks, stopping) = (tasks.clone(), &stopping);
                scope.spawn(move || work(client, caller, n, &tasks, stopping))
            })
            .collect();
        drop(tasks);
        for _ in 0..rounds {
            thread::sleep(Duration::from_millis(50 + chance.below(700)));
            d.kill_and_restart();
        }
        stopping.store(true, Ordering::SeqCst);
        let calls: Vec<_> =
            workers.into_iter().map(|thread| thread.join().expect("a worker")).collect();
        ender.join().expect("the ender");
        drop(stop_anyway);
        calls
    });

    let mut resumed = 0;
    for (n, done) in calls.iter().enumerate() {
        for call in done {
            let all = clients[n / 2].listen(Some(&format!("{}.0", call.stream))).rest();
            let answers: Vec<_> = all.iter().filter(|message| message.is_answer()).collect();
            assert_eq!(answers.len(), 1, "{}: {all:?}", call.stream);
            assert_eq!(answers[0].json["id"], call.id);
            assert_eq!(all.last(), Some(answers[0]), "an answer is the end");
            assert_eq!(answers[0].json, call.answer, "and it is the one that was given");
            resumed += call.cuts;
        }
    }
    let accepted: usize = calls.iter().map(Vec::len).sum();
    eprintln!("{accepted} calls accepted and answered, {resumed} resumed streams");
    assert!(accepted > WORKERS, "the workers got something done");
    assert!(resumed > 0, "the crashes hit somebody");
    d.stop();
    nothing_is_left_open(&d.home);
}

/// An accepted call, and its response.
struct Done {
    id: Value,
    stream: String,
    answer: Value,
    cuts: usize,
}

/// Calls one tool after the other until told to stop, and waits for each response.
fn work(
    client: &Client,
    caller: &Caller,
    worker: usize,
    tasks: &mpsc::Sender<String>,
    stopping: &AtomicBool,
) -> Vec<Done> {
    let mut all = Vec::new();
    while !stopping.load(Ordering::SeqCst) {
        let key = json!({ "idempotency_key": format!("{worker} {}", all.len()) });
        let task = until(BOUND, || {
            let reply = caller.request("POST", "/v1/tasks").json(&key).try_send().ok()?;
            (reply.status() < 300).then(|| text(&reply.json(), "task_id"))
        });
        tasks.send(task.clone()).expect("the ender listens");
        let id = json!(format!("{worker}-{}", all.len()));
        all.push(call(client, id, &task));
    }
    all
}

/// Makes a call, and resumes its stream until the response has come.
fn call(client: &Client, id: Value, task: &str) -> Done {
    let body = request(id.clone(), "tools/call", &tool("TaskWait", &wait_for(task)));
    let mut seen: Vec<Message> = Vec::new();
    let (mut cuts, end) = (0, Instant::now() + BOUND);
    loop {
        assert!(Instant::now() < end, "{id} never got its answer: {seen:?}");
        // Without an id the request is sent again unchanged.
        let last = seen.iter().rev().find_map(|message| message.id.clone());
        let asked = match &last {
            None => client.post(&body),
            Some(last) => client.listen_request(Some(last)),
        };
        let mut stream = match asked.follow() {
            Ok(Ok(sse)) => Stream(sse),
            Ok(Err(reply)) => {
                // A daemon that starts or shuts down responds with 503.
                assert_eq!(reply.status(), 503, "{reply:?}");
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(_) => {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
        };
        cuts += usize::from(last.is_some());
        while let Ok(Some(message)) = stream.try_next() {
            let primes = message.json.is_null();
            let known = seen.iter().any(|known| known.id == message.id && !known.json.is_null());
            assert!(primes || !known, "{message:?} came twice");
            let answered = message.is_answer();
            seen.push(message);
            if answered {
                assert!(matches!(stream.try_next(), Ok(None) | Err(_)), "an answer is the end");
                let answer = seen.pop().expect("it was just put there");
                assert_eq!(answer.json["id"], id);
                let waited = given(&answer.json["result"]);
                assert_eq!(
                    (&waited["task"]["task_id"], &waited["timed_out"]),
                    (&json!(task), &json!(false))
                );
                let (stream, _) = answer.event_id().rsplit_once('.').expect("a stream");
                return Done { id, stream: stream.to_owned(), answer: answer.json, cuts };
            }
        }
    }
}

/// Ends every task, a while after it was created.
fn end_all(caller: &Caller, tasks: &mpsc::Receiver<String>, mut chance: Chance) {
    while let Ok(task) = tasks.recv() {
        thread::sleep(Duration::from_millis(chance.below(40)));
        let path = format!("/v1/tasks/{task}/events");
        until(BOUND, || {
            let reply = caller.request("POST", &path).json(&done()).try_send().ok()?;
            matches!(reply.status(), 200 | 409).then_some(())
        });
    }
}

/// In the database every call has ended, and every stream of a call has one response, at its end.
fn nothing_is_left_open(home: &Home) {
    if home.store().is_none() {
        assert_eq!(home.value("pragma integrity_check"), "ok");
    }
    let open = home.value(
        "select count(*) from mcp_call join stream on stream.name = 'mcp/' || call_id
        where state in ('working', 'input_required') or stream.closed_at is null",
    );
    assert_eq!(open, 0, "calls without an end");
    let rows = home.rows(
        "select stream.name, event.data
        from event join stream on stream.id = event.stream_id
        where stream.name like 'mcp/call%'
        order by stream.id, event.seq",
    );
    let mut streams: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    for row in rows {
        let [stream, data] = [0, 1].map(|n| row[n].as_str().expect("a text").to_owned());
        let data: Value = serde_json::from_str(&data).expect("JSON");
        streams.entry(stream).or_default().push(data.get("result").is_some());
    }
    for (stream, events) in streams {
        let answers = events.iter().filter(|answer| **answer).count();
        assert_eq!((answers, events.last()), (1, Some(&true)), "{stream}");
    }
}
