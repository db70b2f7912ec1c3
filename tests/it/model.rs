//! Any order of operations against a small model. Where they differ, proptest shrinks the
//! operations to the few that show it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::expect::{all_pages, done, each, frame, new_task, page, peer, text};

#[derive(Clone, Debug)]
enum Inbox {
    Send { key: Option<u8> },
    Read { limit: usize },
    Peek,
    Ack { which: Vec<prop::sample::Index> },
}

fn inbox() -> impl Strategy<Value = Inbox> {
    prop_oneof![
        4 => prop::option::weighted(0.3, 0..3u8).prop_map(|key| Inbox::Send { key }),
        2 => (1..5usize).prop_map(|limit| Inbox::Read { limit }),
        1 => Just(Inbox::Peek),
        2 => prop::collection::vec(any::<prop::sample::Index>(), 1..4)
            .prop_map(|which| Inbox::Ack { which }),
    ]
}

#[test]
fn an_inbox_is_a_queue_with_leases() {
    let d = Daemon::start();
    let runs = AtomicU32::new(0);
    let mut runner =
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(inbox(), 1..40), |operations| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        let to = peer(&d, &format!("run-{run}"));
        let path = format!("/v1/peers/{to}/messages");
        // All messages in order: id, whether it is leased, whether it is acknowledged.
        let mut model: Vec<(String, bool, bool)> = Vec::new();
        let mut keys: BTreeMap<u8, String> = BTreeMap::new();
        for operation in operations {
            match operation {
                Inbox::Send { key } => {
                    let mut body = json!({ "text": "a" });
                    if let Some(key) = key {
                        body["idempotency_key"] = json!(format!("run-{run}-{key}"));
                    }
                    let id = text(&d.post(&path, &body).ok(200), "id");
                    let known = key.and_then(|key| keys.get(&key));
                    if let Some(known) = known {
                        prop_assert_eq!(&id, known);
                        continue;
                    }
                    keys.extend(key.map(|key| (key, id.clone())));
                    model.push((id, false, false));
                }
                Inbox::Read { limit } => {
                    let read = page(&d.get(&format!("{path}?limit={limit}")), "messages");
                    let waiting = model.iter_mut().filter(|(_, leased, acked)| !leased && !acked);
                    let mut wanted = Vec::new();
                    for (id, leased, _) in waiting.take(limit) {
                        *leased = true;
                        wanted.push(id.clone());
                    }
                    prop_assert_eq!(each(&read, "id"), wanted);
                }
                Inbox::Peek => {
                    let all =
                        all_pages(&d, &format!("{path}?peek=true&limit=3"), "messages", "cursor");
                    let wanted: Vec<_> =
                        model.iter().filter(|row| !row.2).map(|row| row.0.clone()).collect();
                    prop_assert_eq!(each(&all, "id"), wanted);
                }
                Inbox::Ack { which } => {
                    if model.is_empty() {
                        continue;
                    }
                    let rows: Vec<_> = which.iter().map(|at| at.index(model.len())).collect();
                    let ids: Vec<_> = rows.iter().map(|row| model[*row].0.clone()).collect();
                    d.post(&format!("{path}/ack"), &json!({ "ids": ids })).ok(200);
                    for row in rows {
                        model[row].2 = true;
                    }
                }
            }
        }
        for (id, leased, acked) in &model {
            let state = d.get(&format!("/v1/messages/{id}")).ok(200)["state"].clone();
            let wanted = match (leased, acked) {
                (_, true) => "acked",
                (true, false) => "offered",
                (false, false) => "queued",
            };
            prop_assert_eq!(state, json!(wanted));
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[derive(Clone, Debug)]
enum Log {
    Append { names: Vec<Option<u8>> },
    Page { after: prop::sample::Index, limit: usize },
    End,
}

fn log() -> impl Strategy<Value = Log> {
    prop_oneof![
        8 => prop::collection::vec(prop::option::weighted(0.5, 0..12u8), 1..6)
            .prop_map(|names| Log::Append { names }),
        3 => (any::<prop::sample::Index>(), 1..6usize)
            .prop_map(|(after, limit)| Log::Page { after, limit }),
        1 => Just(Log::End),
    ]
}

#[test]
fn a_task_is_an_append_only_list_with_idempotent_batches() {
    let d = Daemon::start();
    let mut runner =
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(log(), 1..30), |operations| {
        let task = new_task(&d);
        let path = format!("/v1/tasks/{task}/events");
        let stream = format!("/v1/events?stream=task/{task}");
        // The first event is the task's creation.
        let mut model: Vec<String> = vec!["made".to_owned()];
        let mut names_seen: BTreeMap<u8, u64> = BTreeMap::new();
        let mut ended = false;
        for (n, operation) in operations.into_iter().enumerate() {
            match operation {
                Log::Append { names } => {
                    let lines: Vec<_> = (0..names.len()).map(|k| format!("{n}-{k}")).collect();
                    let batch: Vec<Value> = names
                        .iter()
                        .zip(&lines)
                        .map(|(name, line)| {
                            let mut event = frame(line);
                            if let Some(name) = name {
                                event["id"] = json!(name.to_string());
                            }
                            event
                        })
                        .collect();
                    let new =
                        |name: &Option<u8>| name.is_none_or(|name| !names_seen.contains_key(&name));
                    let reply = d.post(&path, &json!(batch));
                    if ended && names.iter().any(new) {
                        prop_assert_eq!(reply.status(), 409);
                        continue;
                    }
                    let answer = reply.ok(200);
                    let mut given = Vec::new();
                    for (name, line) in names.iter().zip(lines) {
                        let next = model.len() as u64 + 1;
                        let id =
                            name.and_then(|name| names_seen.get(&name).copied()).unwrap_or(next);
                        if id == next {
                            names_seen.extend(name.map(|name| (name, id)));
                            model.push(line);
                        }
                        given.push(id);
                    }
                    // If old and new lines are mixed the response may name the batch's ends, or its
                    // span.
                    let ends = (given.first().copied(), given.last().copied());
                    let span = (given.iter().min().copied(), given.iter().max().copied());
                    let told = (answer["first_id"].as_u64(), answer["last_id"].as_u64());
                    prop_assert!(told == ends || told == span, "{:?} for {:?}", told, given);
                }
                Log::Page { after, limit } => {
                    let after = after.index(model.len() + 1);
                    let target = format!("{stream}&after={after}&limit={limit}");
                    let got = page(&d.get(&target), "events");
                    let wanted = model.iter().skip(after).take(limit);
                    prop_assert_eq!(got.len(), wanted.len());
                    for ((item, line), seq) in got.iter().zip(wanted).zip(after + 1..) {
                        prop_assert_eq!(&item["seq"], &json!(seq));
                        if item["kind"] == "frame" {
                            prop_assert_eq!(&item["data"]["line"], &json!(line));
                        }
                    }
                }
                Log::End => {
                    let reply = d.post(&path, &done());
                    if ended {
                        prop_assert_eq!(reply.status(), 409);
                    } else {
                        reply.ok(200);
                        model.push("ended".to_owned());
                        ended = true;
                    }
                }
            }
        }
        let last = d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"].as_u64();
        prop_assert_eq!(last, Some(model.len() as u64));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
