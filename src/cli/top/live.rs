//! The page on a terminal: reads keys, draws frames, and follows the daemon's feeds, whose events
//! trigger a fetch.
//!
//! Nothing is polled while nothing happens. The person counts as present for as long as the page is
//! open. An event of a feed triggers one fetch of the lists after a short delay, so a hundred
//! events cost one fetch. The followers reconnect after a restart of the daemon.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use serde_json::{Value, json};
use svc_client::{ClientError, FollowItem, Follower, encode, with_object, with_query};
use svc_model::{Clock as _, SystemClock};
use svc_sys::telemetry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::time::{interval, sleep};

use super::model::{Draft, Model};
use super::team::{TeamSnapshot, items, without_copies};
use super::update::{ScreenEffect, ScreenInput, update};
use super::view::draw;
use crate::cli::people::OperatorPresence;
use crate::cli::{Context, ExitResult, UsageError, message, terminal};

/// Delay from an event to the fetch of the lists, which coalesces further events.
const GATHER: Duration = Duration::from_millis(80);
/// Delay between two attempts to reach the daemon.
const RETRY: Duration = Duration::from_secs(1);
const WAITING: &str = "the daemon is away; this view waits for it";
const LAST_LINES: u64 = 20;
/// How often relative times are redrawn.
const TICK: Duration = Duration::from_secs(5);
/// Feeds whose events may change the page, by prefix and kind. Output of tasks is not among them.
const FEEDS: [(&str, Option<&str>); 5] = [
    ("team", None),
    ("peer/", None),
    ("session/", None),
    ("task/", Some("task")),
    ("task/", Some("terminal")),
];

/// Whether standard input and output are a terminal on which a page can be drawn.
pub(crate) fn is_wanted() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb
}

pub(crate) async fn run(context: &Context) -> ExitResult {
    if !is_wanted() {
        return Err(UsageError(
            "this view needs a terminal; `svc peer list` and the other lists do not".to_owned(),
        )
        .into());
    }
    let (inputs, mut input) = mpsc::channel(64);
    read_keys(inputs.clone());
    tokio::spawn(follow(context.clone(), inputs.clone()));
    let mut close_response = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut tick = interval(TICK);
    let _presence = OperatorPresence::keep(context);
    let mut model = Model::new(context.screen);
    let mut page = OpenPage::open()?;
    loop {
        model.page = page.terminal.draw(|frame| draw(&model, frame))?.area;
        let input = tokio::select! {
            input = input.recv() => input,
            _ = tick.tick() => Some(ScreenInput::Tick(SystemClock.now())),
            _ = close_response.recv() => None,
            _ = terminate.recv() => None,
        };
        let Some(input) = input else { break };
        match update(&mut model, input) {
            Some(ScreenEffect::Quit) => break,
            Some(effect) => {
                let (context, inputs) = (context.clone(), inputs.clone());
                tokio::spawn(async move {
                    if let Some(input) = carry_out(&context, effect).await {
                        inputs.send(input).await.ok();
                    }
                });
            }
            None => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn carry_out(context: &Context, effect: ScreenEffect) -> Option<ScreenInput> {
    Some(match effect {
        ScreenEffect::Quit => return None,
        ScreenEffect::Send(draft) => {
            ScreenInput::Sent(send(context, draft).await.map_err(|error| harmless(&error)))
        }
        ScreenEffect::Answer { request_id, option_id, confirm } => {
            let path = format!("/v1/requests/{}/answer", encode(&request_id));
            let body = json!({ "option_id": option_id, "confirm": confirm });
            let answered: Result<Value> =
                async { Ok(context.client()?.post(&path, &body).await?) }.await;
            ScreenInput::Answered(answered.map(drop).map_err(|error| harmless(&error)))
        }
        ScreenEffect::FetchLastLines { id, is_task } => {
            let lines = if is_task {
                task_lines(context, &id).await
            } else {
                session_lines(context, &id).await
            };
            // A failed request shows no lines.
            ScreenInput::LastLines(id, lines.unwrap_or_default())
        }
    })
}

async fn task_lines(context: &Context, id: &str) -> Result<Vec<String>> {
    let client = context.client()?;
    let task: Value = client.get(&format!("/v1/tasks/{}", encode(id))).await?;
    let after = task["last_id"].as_u64().unwrap_or(0).saturating_sub(LAST_LINES);
    let stream = format!("task/{id}");
    let query = json!({ "stream": stream, "kind": "frame", "after": after, "limit": LAST_LINES });
    let page: Value = client.get(&with_object("/v1/events", &query)).await?;
    let events = page["items"].as_array().or(page["events"].as_array());
    let lines = events.into_iter().flatten().filter_map(|event| event["data"]["line"].as_str());
    Ok(lines.map(|line| terminal::line(line).into_owned()).collect())
}

/// The last texts of a session, each with its role and its first lines.
async fn session_lines(context: &Context, peer: &str) -> Result<Vec<String>> {
    let path = format!("/v1/sessions/{}/history?limit={LAST_LINES}", encode(peer));
    let history: Value = context.client()?.get(&path).await?;
    let texts = history["messages"].as_array().into_iter().flatten();
    let lines = texts.flat_map(|text| {
        let role = text["role"].as_str().unwrap_or_default();
        let said = text["text"].as_str().unwrap_or_default().lines().take(4);
        said.map(move |line| terminal::line(&format!("{role}: {line}")).into_owned())
    });
    let lines: Vec<String> = lines.collect();
    let most = usize::try_from(LAST_LINES).unwrap_or(usize::MAX);
    Ok(lines[lines.len().saturating_sub(most)..].to_vec())
}

/// The terminal in raw mode. Restored when it is dropped, also after a panic.
struct OpenPage {
    terminal: DefaultTerminal,
}

impl OpenPage {
    fn open() -> io::Result<Self> {
        let page = ratatui::try_init().map(|terminal| Self { terminal });
        page.inspect_err(|_| drop(ratatui::try_restore()))
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        // A failure is ignored, as the terminal is gone then.
        ratatui::try_restore().ok();
    }
}

/// Reads keys on a thread of its own that lives as long as the process: a blocking read cannot be
/// cancelled.
fn read_keys(inputs: mpsc::Sender<ScreenInput>) {
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let input = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => Some(ScreenInput::Key(key)),
                Event::Resize(..) => Some(ScreenInput::Resized),
                _ => None,
            };
            if input.is_some_and(|input| inputs.blocking_send(input).is_err()) {
                return;
            }
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        inputs.blocking_send(ScreenInput::Key(interrupt)).ok();
    });
}

async fn follow(context: Context, inputs: mpsc::Sender<ScreenInput>) {
    let changed = Arc::new(Notify::new());
    for (prefix, kind) in FEEDS {
        let query = [("stream_prefix", Some(prefix)), ("kind", kind), ("after", Some("latest"))];
        let path = with_query("/v1/events", &query);
        tokio::spawn(follow_feed(context.clone(), path, inputs.clone(), Arc::clone(&changed)));
    }
    loop {
        let input = match fetch(&context).await {
            Ok(team) => ScreenInput::Fetched(Box::new(team)),
            Err(error) => {
                // The feeds report that the daemon is back, unless it was back before they noticed
                // the outage.
                let (sent, ()) =
                    tokio::join!(inputs.send(ScreenInput::Away(away(&error))), sleep(RETRY));
                if sent.is_err() {
                    return;
                }
                continue;
            }
        };
        if inputs.send(input).await.is_err() {
            return;
        }
        changed.notified().await;
        sleep(GATHER).await;
    }
}

/// Sends a notice to `changed` for each event of a feed.
async fn follow_feed(
    context: Context,
    path: String,
    inputs: mpsc::Sender<ScreenInput>,
    changed: Arc<Notify>,
) {
    loop {
        let Ok(discovery) = context.discovery() else { return };
        let mut follower = Follower::new(discovery, path.clone()).patient();
        let followed = async {
            follower.open().await?;
            // Lists that are fetched from now on include all events before the feed's first.
            changed.notify_one();
            while let Some(item) = follower.next().await? {
                if let FollowItem::Disconnected { .. } = item {
                    inputs.send(ScreenInput::Away(WAITING.to_owned())).await.ok();
                } else {
                    changed.notify_one();
                }
            }
            Ok::<_, ClientError>(())
        };
        let Err(error) = followed.await else { return };
        inputs.send(ScreenInput::Away(away(&error.into()))).await.ok();
        sleep(RETRY).await;
        changed.notify_one();
    }
}

async fn fetch(context: &Context) -> Result<TeamSnapshot> {
    let client = context.client()?;
    let (peers, ghap, requests, questions, messages, active, pending) = tokio::try_join!(
        client.get("/v1/peers?limit=500"),
        client.get("/v1/ghap?status=active&limit=500"),
        client.get("/v1/requests?open=true&limit=50"),
        client.get("/v1/messages?open=true&limit=50"),
        // A broadcast is one row here but has one message per receiver.
        client.get("/v1/messages?limit=200"),
        client.get("/v1/tasks?status=active&limit=50"),
        client.get("/v1/tasks?status=pending&limit=50"),
    )?;
    let mut tasks = items(&active, "tasks");
    tasks.extend(items(&pending, "tasks"));
    Ok(TeamSnapshot {
        peers: items(&peers, "peers"),
        attempts: items(&ghap, "ghap"),
        requests: items(&requests, "requests"),
        questions: items(&questions, "messages"),
        tasks,
        messages: without_copies(items(&messages, "messages")),
    })
}

/// Sends a draft. Returns a sentence that says when the receiver gets it.
async fn send(context: &Context, draft: Draft) -> Result<String> {
    let kind = if draft.answers.is_some() { "response" } else { "notification" };
    let mut body = json!({ "text": draft.text, "type": kind });
    if let Some(question) = draft.answers {
        body["correlation_id"] = json!(question);
    }
    let client = context.client()?;
    let peer = format!("/v1/peers/{}", encode(&draft.to));
    let sent: Value = client.post(&format!("{peer}/messages"), &body).await?;
    // The message is stored; a failed request for its receiver is no failure.
    let receiver: Value = client.get(&peer).await.unwrap_or_default();
    Ok(terminal::line(message::when(&sent, &receiver)).into_owned())
}

/// Why the daemon does not answer, if a person can do something about it. A daemon that is merely
/// away is waited for.
fn away(error: &anyhow::Error) -> String {
    let is_away = error.chain().filter_map(|cause| cause.downcast_ref::<ClientError>());
    if is_away.into_iter().any(ClientError::is_transient) {
        return WAITING.to_owned();
    }
    harmless(error)
}

fn harmless(error: &anyhow::Error) -> String {
    terminal::line(&telemetry::chain(&**error)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_away_is_waited_for_and_a_refusal_is_told() {
        let absent = ClientError::NotRunning { url: "http://127.0.0.1:1".to_owned() };
        assert_eq!(away(&absent.into()), WAITING);
        let folder = ClientError::DataFolder("others can write /srv".to_owned());
        assert_eq!(away(&folder.into()), "others can write /srv");
    }
}
