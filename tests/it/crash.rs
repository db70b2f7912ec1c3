//! The central promise: acknowledged events exist once and in order, after any number of `kill -9`,
//! for every reader and in the file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, until};
use crate::expect::{append, done, new_task, subscribe};
use crate::wire::{Caller, Conn};

const TASKS: usize = 4;
const PRODUCERS: usize = 16;
const SUBSCRIBERS: usize = 8;
const BOUND: Duration = Duration::from_mins(1);

/// All rounds use one data folder: the test remembers what each reader saw.
const BATCH: u64 = 500;
/// Longest life of a daemon, in milliseconds beyond the first 50, and in a long run.
const LIFE: u64 = 900;
const SHORT_LIFE: u64 = 150;

#[test]
fn kill_nine_at_any_moment_loses_and_repeats_nothing() {
    let rounds = number("SVC_CRASH_ROUNDS").unwrap_or(12);
    let seed = seed();
    eprintln!("SVC_CRASH_SEED={seed} SVC_CRASH_ROUNDS={rounds}");
    let mut chance = Chance(seed);
    let life = if rounds > BATCH { SHORT_LIFE } else { LIFE };
    let (mut acknowledged, mut cuts, mut killed) = (0, 0, 0);
    while killed < rounds {
        let batch = BATCH.min(rounds - killed);
        let told = survive(&mut Daemon::start(), batch, life, &mut chance, |d| {
            d.kill_and_restart();
        });
        (acknowledged, cuts, killed) = (acknowledged + told.0, cuts + told.1, killed + batch);
        eprintln!(
            "{killed} kills, {acknowledged} events acknowledged, {cuts} answers lost on the way"
        );
    }
    assert!(cuts > 0, "the crashes hit somebody");
}

/// Appends and follows under so many strikes, after which the daemon serves again, and stops it.
/// Asserts that whatever was acknowledged is there, once. Returns the number of acknowledged events
/// and of lost responses.
pub(crate) fn survive(
    d: &mut Daemon,
    rounds: u64,
    life: u64,
    chance: &mut Chance,
    strike: impl Fn(&mut Daemon),
) -> (usize, usize) {
    let seed = chance.below(u64::MAX);
    let tasks: Vec<String> = (0..TASKS).map(|_| new_task(d)).collect();
    let caller = d.with_token(d.token.as_deref().expect("a token"));
    let stopping = AtomicBool::new(false);

    let (promises, views) = thread::scope(|scope| {
        // If this thread panics, the others must still end.
        let stop_anyway = SetOnDrop(&stopping);
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|n| {
                let (caller, task, stopping) = (&caller, &tasks[n % TASKS], &stopping);
                let chance = Chance(seed.wrapping_add(n as u64 + 1));
                scope.spawn(move || produce(caller, task, n, chance, stopping))
            })
            .collect();
        let subscribers: Vec<_> = (0..SUBSCRIBERS)
            .map(|n| {
                let (caller, task, stopping) = (&caller, &tasks[n % TASKS], &stopping);
                scope.spawn(move || follow(caller, task, stopping))
            })
            .collect();

        for _ in 0..rounds {
            thread::sleep(Duration::from_millis(50 + chance.below(life)));
            strike(d);
        }
        stopping.store(true, Ordering::SeqCst);
        let promises: Vec<_> =
            producers.into_iter().map(|thread| thread.join().expect("a producer")).collect();
        for task in &tasks {
            append(d, task, &done());
        }
        let views: Vec<_> =
            subscribers.into_iter().map(|thread| thread.join().expect("a subscriber")).collect();
        drop(stop_anyway);
        (promises, views)
    });
    d.stop();

    if d.home.store().is_none() {
        assert_eq!(d.home.value("pragma integrity_check"), "ok");
    }

    let mut acknowledged = 0;
    for (n, task) in tasks.iter().enumerate() {
        let stored = stored(d, task);
        // Without gaps, and each line once.
        let mut at: HashMap<&str, u64> = HashMap::new();
        for (position, (seq, kind, line)) in stored.iter().enumerate() {
            assert_eq!(*seq, position as u64 + 1, "{task} has no gap");
            if kind == "frame" {
                assert_eq!(at.insert(line, *seq), None, "{line:?} is there once");
            }
        }
        assert_eq!(stored.last().map(|(_, kind, _)| kind.as_str()), Some("terminal"));
        // Every acknowledged event exists, under the id in its acknowledgement.
        for promise in promises.iter().skip(n).step_by(TASKS) {
            for (line, seq) in &promise.kept {
                assert_eq!(at.get(line.as_str()), Some(seq), "{line:?} was acknowledged");
            }
            acknowledged += promise.kept.len();
            for batch in &promise.unsure {
                let there = batch.iter().filter(|line| at.contains_key(line.as_str())).count();
                assert!(there == 0 || there == batch.len(), "half a batch: {batch:?}");
            }
        }
        // Every reader saw exactly that.
        for view in views.iter().skip(n).step_by(TASKS) {
            assert_eq!(view.len(), stored.len());
            for (seen, stored) in view.iter().zip(&stored) {
                assert_eq!(seen, stored);
            }
        }
    }
    let cuts: usize = promises.iter().map(|promise| promise.cuts).sum();
    assert!(acknowledged > PRODUCERS, "the producers got something done");
    (acknowledged, cuts)
}

/// The acknowledgements of one producer.
#[derive(Default)]
struct Promise {
    /// Lines whose append was acknowledged, with their ids.
    kept: Vec<(String, u64)>,
    /// Batches whose response was lost and which were never sent again.
    unsure: Vec<Vec<String>>,
    cuts: usize,
}

/// Appends until told to stop. An odd producer repeats a batch until it is acknowledged, and an
/// even one goes on with a new one.
fn produce(
    caller: &Caller,
    task: &str,
    producer: usize,
    mut chance: Chance,
    stopping: &AtomicBool,
) -> Promise {
    let path = format!("/v1/tasks/{task}/events");
    let mut promise = Promise::default();
    let mut connection: Option<Conn> = None;
    let mut next = 0;
    while !stopping.load(Ordering::SeqCst) {
        let lines: Vec<String> = (0..=chance.below(4))
            .map(|_| {
                next += 1;
                let filling = "~".repeat(usize::try_from(chance.below(200)).expect("below 200"));
                format!("p{producer} {next} {filling}")
            })
            .collect();
        let events: Vec<Value> = lines
            .iter()
            .map(|line| {
                let id = line.rsplit_once(' ').map(|(id, _)| id);
                json!({ "id": id, "kind": "frame", "data": { "line": line, "kind": "stdout" } })
            })
            .collect();
        let request =
            caller.request("POST", &path).without("Connection").json(&json!(events)).bytes();
        let mut attempt = || {
            let mut conn = match connection.take() {
                Some(conn) => conn,
                None => Conn::open(caller.addr).ok()?,
            };
            conn.write(&request).ok()?;
            let reply = conn.reply().ok()?;
            // A 503 during start and shutdown acknowledges nothing.
            if reply.status() == 503 {
                return None;
            }
            let answer = reply.ok(200);
            connection = Some(conn);
            Some((answer["first_id"].as_u64()?, answer["last_id"].as_u64()?))
        };
        let answered = match attempt() {
            Some(ids) => Some(ids),
            None if producer % 2 == 1 => {
                promise.cuts += 1;
                Some(repeat_until_answered(&mut attempt, stopping))
            }
            None => {
                promise.cuts += 1;
                None
            }
        };
        if let Some((first, last)) = answered {
            assert_eq!(last - first + 1, lines.len() as u64, "a batch has its ids in a row");
            promise.kept.extend(lines.into_iter().zip(first..));
        } else {
            promise.unsure.push(lines);
            // While no daemon listens a retry at once is pointless.
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(chance.below(6)));
    }
    promise
}

/// Repeats an append until the daemon responds. On a busy machine a daemon may be killed many times
/// before it responds, so the bound counts from the last kill.
fn repeat_until_answered<T>(attempt: &mut impl FnMut() -> Option<T>, stopping: &AtomicBool) -> T {
    while !stopping.load(Ordering::SeqCst) {
        if let Some(answer) = attempt() {
            return answer;
        }
        thread::sleep(Duration::from_millis(5));
    }
    until(BOUND, attempt)
}

/// Reads a task to its end, and resumes whenever the stream breaks. A repeated or early event is a
/// failure.
fn follow(caller: &Caller, task: &str, stopping: &AtomicBool) -> Vec<(u64, String, String)> {
    let mut seen: Vec<(u64, String, String)> = Vec::new();
    let mut idle = 0;
    loop {
        let last = seen.len().to_string();
        let stream = caller.try_follow(&subscribe(task), Some(&last));
        let Ok(Ok(mut stream)) = stream else {
            if let Ok(Err(reply)) = stream {
                assert_eq!(reply.status(), 503, "{reply:?}");
            }
            idle += usize::from(stopping.load(Ordering::SeqCst));
            assert!(idle < 1_000, "the daemon never came back");
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        while let Ok(Some(event)) = stream.try_event() {
            let seq = seen.len() as u64 + 1;
            assert_eq!(event.id, Some(seq), "{task}: nothing twice, missing or out of order");
            let line = event.data["line"].as_str().unwrap_or_default().to_owned();
            let end = event.kind == "terminal";
            seen.push((seq, event.kind, line));
            if end {
                assert_eq!(stream.try_event().expect("a clean end"), None);
                return seen;
            }
        }
    }
}

/// The rows of a task: sequence, kind and line.
fn stored(d: &Daemon, task: &str) -> Vec<(u64, String, String)> {
    let sql = format!(
        "select event.seq, event.kind, event.data
        from event join stream on stream.id = event.stream_id
        where stream.name = 'task/{task}'
        order by event.seq"
    );
    let row = |row: Vec<Value>| {
        let data: Value = serde_json::from_str(row[2].as_str().expect("JSON")).expect("JSON");
        let line = data["line"].as_str().unwrap_or_default().to_owned();
        let kind = row[1].as_str().expect("a text").to_owned();
        (row[0].as_u64().expect("a number"), kind, line)
    };
    d.home.rows(&sql).into_iter().map(row).collect()
}

pub(crate) fn seed() -> u64 {
    number("SVC_CRASH_SEED")
        .unwrap_or_else(|| getrandom::u64().expect("the system has chance to give"))
}

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A random generator that is good enough for a test, and repeatable by its seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
