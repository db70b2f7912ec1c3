//! The protocol of Codex' app-server, which all terminals of a user share: its frames become
//! observations of threads, and calls become frames. No I/O.
//!
//! Frames are JSON-RPC without the field `jsonrpc`, one in each text message of a WebSocket. After
//! `initialize` the loaded threads are listed and read. The app-server sends the state of threads
//! to every connection. It sends requests of a turn to subscribed connections, and again to a
//! connection that subscribes by resuming the thread. The first answer counts.
//!
//! A thread is resumed while it is in a turn, and left after that: the app-server unloads a thread
//! without subscribers, which is how the session of a closed terminal ends.
//!
//! A thread is a session: its id is the `session_id` of the hooks.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};
use svc_model::{RecordedState, Timestamp, WaitingKind, hook::CodexPrompt};

/// Versions that are known to accept `decline` even where they do not offer it.
const TAKES_DECLINE: [&str; 1] = ["0.169."];
/// Notifications during an item, which nothing here reads.
const DELTAS: [&str; 8] = [
    "command/exec/outputDelta",
    "item/agentMessage/delta",
    "item/commandExecution/outputDelta",
    "item/fileChange/outputDelta",
    "item/plan/delta",
    "item/reasoning/summaryPartAdded",
    "item/reasoning/summaryTextDelta",
    "item/reasoning/textDelta",
];
/// Last turns that are searched for a message.
const LAST_TURNS: u32 = 50;

/// A request to the app-server whose answer is awaited. `message` is the client id of a message.
#[rustfmt::skip]
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodexCall {
    Initialize,
    LoadedThreads,
    ReadThread(String),
    Resume(String),
    Leave(String),
    Deliver(String),
    /// A message into the current turn. If it is refused, it goes into the queue.
    Steer { thread: String, message: String, text: String },
    /// A search of a thread's queue.
    Queue { thread: String, message: String },
    /// A search of a thread's last turns.
    Turns { message: String },
}

/// Where a message is that was given to the app-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessagePlace {
    /// It waits for the end of a turn.
    Queue,
    Conversation,
    Nowhere,
}

/// Whether the connection is subscribed to a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ThreadSubscription {
    #[default]
    No,
    /// A request to subscribe or to unsubscribe is not answered yet.
    Changing,
    Yes,
}

/// A thread that the app-server has loaded.
#[derive(Debug, Clone, PartialEq, Default)]
struct CodexThread {
    /// The current turn, once the app-server has named it.
    turn: Option<String>,
    subscription: ThreadSubscription,
    is_active: bool,
    /// Whether a person can see it; `None` if it was not read yet.
    is_seen: Option<bool>,
    /// The items of the turn that began during this connection, with the changes of files that they
    /// would make.
    items: HashMap<String, Vec<Value>>,
}

/// What a frame of the app-server says.
#[rustfmt::skip]
#[derive(Debug, Clone, PartialEq)]
pub enum CodexObservation {
    /// A person's thread is loaded; it works in this folder. It may have had no prompt yet.
    Opened { thread: String, folder: String },
    State { thread: String, state: RecordedState },
    /// The person ended the turn, so the thread's queue waits for the person's next prompt.
    Interrupted { thread: String },
    Failed { thread: String, why: String },
    /// A thread asks its person something. The request's id is valid on this connection. `item` is
    /// the item whose end will be reported.
    Asked { thread: String, request: Value, prompt: Box<CodexPrompt>, item: Option<String> },
    /// A request is answered, here or at the terminal.
    Resolved { request: Value },
    /// An item is over, with or without its person's permission.
    ItemOver { thread: String, item: String, is_declined: bool },
    /// A thread has no open request except those that this connection got.
    Settled { thread: String },
    /// The app-server has a message in its queue, or in the current turn.
    Taken { message: String },
    Refused { message: String, why: String },
    /// The model has a message.
    Read { thread: String, message: String },
    /// Where a message is; `None` if the app-server does not report it.
    Found { message: String, place: Option<MessagePlace> },
    /// The vendor refuses because of a usage limit, until this time if it is known.
    Limit { thread: String, until: Option<Timestamp> },
}

#[derive(Debug, Default)]
pub struct AppServerProtocol {
    calls: HashMap<u64, CodexCall>,
    last_call: u64,
    threads: BTreeMap<String, CodexThread>,
    /// When the vendor's limit ends, according to the account's state.
    limit_until: Option<Timestamp>,
    takes_decline: bool,
    is_ready: bool,
}

/// The observations of a frame, and the frames to send after it.
type Reading = (Vec<CodexObservation>, Vec<Value>);

impl AppServerProtocol {
    /// The first frame of a connection.
    pub fn begin(&mut self, version: &str) -> Value {
        let client = json!({ "name": "svc", "title": "svc", "version": version });
        let capabilities = json!({ "experimentalApi": true, "optOutNotificationMethods": DELTAS });
        let params = json!({ "clientInfo": client, "capabilities": capabilities });
        self.call(CodexCall::Initialize, "initialize", &params)
    }

    /// Requests the list of threads again, and with it their states.
    pub fn list_threads(&mut self) -> Value {
        self.call(CodexCall::LoadedThreads, "thread/loaded/list", &json!({}))
    }

    /// Whether the handshake is done, so that the app-server takes requests.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether a thread is in a turn to which the connection is not subscribed. A thread in its
    /// first turn may have no record yet, and then it cannot be resumed.
    pub fn has_missing(&self) -> bool {
        let is_missing = |thread: &CodexThread| {
            thread.is_active
                && thread.is_seen != Some(false)
                && thread.subscription != ThreadSubscription::Yes
        };
        self.threads.values().any(is_missing)
    }

    /// Gives a thread a text with a client id: into the current turn, else into the queue.
    pub fn deliver(&mut self, thread: &str, message: &str, text: &str) -> Value {
        let turn = self.threads.get(thread).and_then(|thread| thread.turn.clone());
        let Some(turn) = turn else { return self.deliver_at_end(thread, message, text) };
        let params = json!({
            "threadId": thread, "expectedTurnId": turn, "clientUserMessageId": message,
            "input": [{ "type": "text", "text": text }],
        });
        let [thread, message, text] = [thread, message, text].map(str::to_owned);
        self.call(CodexCall::Steer { thread, message, text }, "turn/steer", &params)
    }

    /// Puts a text into a thread's queue, as a turn of its own after the current one.
    pub fn deliver_at_end(&mut self, thread: &str, message: &str, text: &str) -> Value {
        let params = json!({
            "threadId": thread, "clientUserMessageId": message,
            "input": [{ "type": "text", "text": text }],
        });
        self.call(CodexCall::Deliver(message.to_owned()), "thread/queue/add", &params)
    }

    /// Searches for a message. A message moves from the queue into a turn, so the queue is searched
    /// first.
    pub fn find(&mut self, thread: &str, message: &str) -> Value {
        let params = json!({ "threadId": thread });
        let (thread, message) = (thread.to_owned(), message.to_owned());
        self.call(CodexCall::Queue { thread, message }, "thread/queue/list", &params)
    }

    fn call(&mut self, call: CodexCall, method: &str, params: &Value) -> Value {
        self.last_call += 1;
        self.calls.insert(self.last_call, call);
        json!({ "id": self.last_call, "method": method, "params": params })
    }

    pub fn read(&mut self, frame: &Value) -> Reading {
        let method = frame["method"].as_str();
        match (method, frame.get("id")) {
            (Some(method), Some(id)) => (self.asked(method, id, &frame["params"]), Vec::new()),
            (Some(method), None) => self.told(method, &frame["params"]),
            (None, Some(id)) => {
                let call = id.as_u64().and_then(|id| self.calls.remove(&id));
                call.map_or_else(Default::default, |call| self.answered(call, frame))
            }
            (None, None) => Default::default(),
        }
    }

    fn answered(&mut self, call: CodexCall, frame: &Value) -> Reading {
        let result = &frame["result"];
        let error = frame["error"]["message"].as_str();
        match call {
            CodexCall::Initialize if error.is_none() => {
                let version = version_of(result["userAgent"].as_str().unwrap_or_default());
                self.is_ready = true;
                self.takes_decline = TAKES_DECLINE.iter().any(|known| version.starts_with(known));
                let list = self.list_threads();
                (Vec::new(), vec![json!({ "method": "initialized" }), list])
            }
            CodexCall::LoadedThreads if error.is_none() => {
                let loaded: HashSet<String> = texts(&result["data"]).into_iter().collect();
                self.threads.retain(|id, _| loaded.contains(id));
                let frames = loaded.into_iter().map(|id| self.read_thread(id)).collect();
                (Vec::new(), frames)
            }
            CodexCall::ReadThread(id) if error.is_none() => self.thread_read(id, &result["thread"]),
            CodexCall::Resume(id) => {
                let Some(thread) = self.threads.get_mut(&id) else { return Default::default() };
                let is_subscribed = error.is_none();
                thread.subscription =
                    if is_subscribed { ThreadSubscription::Yes } else { ThreadSubscription::No };
                // Shows whether the thread has an open request: the app-server repeats its requests
                // now.
                let read = is_subscribed.then(|| self.read_thread(id));
                (Vec::new(), read.into_iter().collect())
            }
            CodexCall::Leave(id) => {
                if let Some(thread) = self.threads.get_mut(&id) {
                    thread.subscription = ThreadSubscription::No;
                }
                (Vec::new(), self.subscribe(&id).into_iter().collect())
            }
            // The turn is over, or accepts no more texts.
            CodexCall::Steer { thread, message, text } if error.is_some() => {
                (Vec::new(), vec![self.deliver_at_end(&thread, &message, &text)])
            }
            CodexCall::Deliver(message) | CodexCall::Steer { message, .. } => {
                let told = match error {
                    None => CodexObservation::Taken { message },
                    Some(why) => CodexObservation::Refused { message, why: why.to_owned() },
                };
                (vec![told], Vec::new())
            }
            CodexCall::Queue { thread, message } => {
                let has_it = |queued: &Value| queued["clientUserMessageId"] == *message;
                let place = match result["data"].as_array() {
                    Some(queue) if queue.iter().any(has_it) => Some(MessagePlace::Queue),
                    Some(_) => {
                        let params = json!({ "threadId": thread, "limit": LAST_TURNS });
                        let call = CodexCall::Turns { message };
                        return (Vec::new(), vec![self.call(call, "thread/turns/list", &params)]);
                    }
                    None => None,
                };
                (vec![CodexObservation::Found { message, place }], Vec::new())
            }
            CodexCall::Turns { message } => {
                let has_it = |item: &Value| item["clientId"] == *message;
                let is_in = |turn: &Value| {
                    turn["items"].as_array().is_some_and(|items| items.iter().any(has_it))
                };
                let place = result["data"].as_array().map(|turns| {
                    let is_there = turns.iter().any(is_in);
                    if is_there { MessagePlace::Conversation } else { MessagePlace::Nowhere }
                });
                (vec![CodexObservation::Found { message, place }], Vec::new())
            }
            CodexCall::Initialize | CodexCall::LoadedThreads | CodexCall::ReadThread(_) => {
                Default::default()
            }
        }
    }

    /// Requests the state of a thread. The connection then subscribes to the thread if it is in a
    /// turn.
    fn read_thread(&mut self, id: String) -> Value {
        self.threads.entry(id.clone()).or_default();
        let params = json!({ "threadId": id });
        self.call(CodexCall::ReadThread(id), "thread/read", &params)
    }

    fn thread_read(&mut self, id: String, read: &Value) -> Reading {
        self.thread(&id).is_seen = Some(read["ephemeral"] != true);
        let status = &read["status"];
        let mut told: Vec<_> = opened(&id, read).into_iter().collect();
        told.extend(self.state_of(&id, status));
        let thread = self.thread(&id);
        let is_told = !thread.is_active || thread.subscription == ThreadSubscription::Yes;
        let frame = if thread.is_active { self.subscribe(&id) } else { self.leave(&id) };
        if is_told && texts(&status["activeFlags"]).is_empty() {
            told.push(CodexObservation::Settled { thread: id });
        }
        (told, frame.into_iter().collect())
    }

    /// Subscribes to a thread if it is in a turn.
    fn subscribe(&mut self, id: &str) -> Option<Value> {
        let thread = self.threads.get_mut(id)?;
        let is_due = thread.is_active && thread.is_seen == Some(true);
        if !is_due || thread.subscription != ThreadSubscription::No {
            return None;
        }
        thread.subscription = ThreadSubscription::Changing;
        let params = json!({ "threadId": id, "excludeTurns": true });
        Some(self.call(CodexCall::Resume(id.to_owned()), "thread/resume", &params))
    }

    fn leave(&mut self, id: &str) -> Option<Value> {
        let thread = self.threads.get_mut(id)?;
        if thread.subscription != ThreadSubscription::Yes {
            return None;
        }
        thread.subscription = ThreadSubscription::Changing;
        let params = json!({ "threadId": id });
        Some(self.call(CodexCall::Leave(id.to_owned()), "thread/unsubscribe", &params))
    }

    fn told(&mut self, method: &str, params: &Value) -> Reading {
        if method == "thread/started"
            && let Some(id) = params["thread"]["id"].as_str()
        {
            return (Vec::new(), vec![self.read_thread(id.to_owned())]);
        }
        let Some(id) = params["threadId"].as_str().map(str::to_owned) else {
            if method == "account/rateLimits/updated" {
                let at = params["rateLimits"]["primary"]["resetsAt"].as_i64();
                self.limit_until = at.map(|at| Timestamp::from_millis(at.saturating_mul(1000)));
            }
            return Default::default();
        };
        if method == "thread/closed" {
            self.threads.remove(&id);
            return Default::default();
        }
        let mut frames = Vec::new();
        if !self.threads.contains_key(&id) {
            frames.push(self.read_thread(id.clone()));
        }
        if let (true, Some(turn)) = (method.starts_with("item/"), params["turnId"].as_str()) {
            self.thread(&id).turn = Some(turn.to_owned());
        }
        let told = match method {
            "thread/status/changed" => {
                let mut told = self.state_of(&id, &params["status"]);
                frames.extend(self.subscribe(&id));
                let is_over = !told.is_empty() && !self.thread(&id).is_active;
                match self.thread(&id).subscription {
                    // `turn/completed` follows, and says how the turn ended.
                    ThreadSubscription::Yes if is_over => told.clear(),
                    _ if is_over => told.push(CodexObservation::Settled { thread: id }),
                    _ => {}
                }
                told
            }
            "turn/started" => {
                self.thread(&id).turn = params["turn"]["id"].as_str().map(str::to_owned);
                vec![CodexObservation::State { thread: id, state: RecordedState::Busy }]
            }
            "turn/completed" => {
                frames.extend(self.leave(&id));
                self.turn_over(id, &params["turn"])
            }
            "item/started" => self.item_started(id, &params["item"]),
            "item/completed" => item_over(id, &params["item"]).into_iter().collect(),
            "serverRequest/resolved" => {
                vec![CodexObservation::Resolved { request: params["requestId"].clone() }]
            }
            "error" if params["willRetry"] == false => vec![self.failure(id, &params["error"])],
            _ => Vec::new(),
        };
        (told, frames)
    }

    fn turn_over(&mut self, thread: String, turn: &Value) -> Vec<CodexObservation> {
        let known = self.thread(&thread);
        (known.turn, known.is_active) = (None, false);
        known.items.clear();
        let state = CodexObservation::State { thread: thread.clone(), state: RecordedState::Idle };
        let settled = CodexObservation::Settled { thread: thread.clone() };
        let error =
            turn.get("error").filter(|error| turn["status"] == "failed" && error.is_object());
        match error {
            Some(error) => vec![state, self.failure(thread, error), settled],
            // Reported before the session counts as idle.
            None if turn["status"] == "interrupted" => {
                vec![CodexObservation::Interrupted { thread }, state, settled]
            }
            None => vec![state, settled],
        }
    }

    fn item_started(&mut self, thread: String, item: &Value) -> Vec<CodexObservation> {
        match (item["type"].as_str(), item["clientId"].as_str(), item["id"].as_str()) {
            (Some("userMessage"), Some(message), _) => {
                vec![CodexObservation::Read { thread, message: message.to_owned() }]
            }
            (Some("commandExecution" | "fileChange"), _, Some(id)) => {
                let changes = item["changes"].as_array().cloned().unwrap_or_default();
                self.thread(&thread).items.insert(id.to_owned(), changes);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn failure(&self, thread: String, error: &Value) -> CodexObservation {
        if error["codexErrorInfo"] == "usageLimitExceeded" {
            return CodexObservation::Limit { thread, until: self.limit_until };
        }
        let why = error["message"].as_str().unwrap_or("the turn failed").to_owned();
        CodexObservation::Failed { thread, why }
    }

    fn thread(&mut self, id: &str) -> &mut CodexThread {
        self.threads.entry(id.to_owned()).or_default()
    }

    fn state_of(&mut self, id: &str, status: &Value) -> Vec<CodexObservation> {
        let flags = texts(&status["activeFlags"]);
        let waits = |flag: &str| flags.iter().any(|it| it == flag);
        let state = match status["type"].as_str() {
            Some("active") if waits("waitingOnApproval") => {
                RecordedState::Waiting(WaitingKind::Permission)
            }
            Some("active") if waits("waitingOnUserInput") => {
                RecordedState::Waiting(WaitingKind::Question)
            }
            Some("active") => RecordedState::Busy,
            Some("idle" | "systemError") => {
                self.thread(id).turn = None;
                RecordedState::Idle
            }
            _ => return Vec::new(),
        };
        self.thread(id).is_active = state != RecordedState::Idle;
        vec![CodexObservation::State { thread: id.to_owned(), state }]
    }

    fn asked(&self, method: &str, id: &Value, params: &Value) -> Vec<CodexObservation> {
        let Some(thread) = params["threadId"].as_str() else { return Vec::new() };
        let Some(prompt) = CodexPrompt::read(method, params, self.takes_decline) else {
            return Vec::new();
        };
        let known = self.threads.get(thread);
        let item = prompt.item().and_then(|item| known?.items.get_key_value(item));
        let changes = item.map(|(_, changes)| changes.clone()).unwrap_or_default();
        let item = item.map(|(item, _)| item.clone());
        let (thread, request) = (thread.to_owned(), id.clone());
        let prompt = Box::new(prompt.with_changes(changes));
        vec![CodexObservation::Asked { thread, request, prompt, item }]
    }
}

/// A thread that a person has opened, and not a sub-agent or Codex itself.
fn opened(id: &str, read: &Value) -> Option<CodexObservation> {
    let is_persons = read["threadSource"] == "user"
        && read["ephemeral"] == false
        && read["parentThreadId"].is_null();
    let folder = read["cwd"].as_str().filter(|_| is_persons)?.to_owned();
    Some(CodexObservation::Opened { thread: id.to_owned(), folder })
}

/// The end of an item that may have needed permission.
fn item_over(thread: String, item: &Value) -> Option<CodexObservation> {
    let is_asking = matches!(item["type"].as_str(), Some("commandExecution" | "fileChange"));
    let id = item["id"].as_str().filter(|_| is_asking)?.to_owned();
    let is_declined = item["status"] == "declined";
    Some(CodexObservation::ItemOver { thread, item: id, is_declined })
}

/// The version in `<client>/<version> (<system>) …`.
fn version_of(user_agent: &str) -> &str {
    let version = user_agent.split_once('/').map_or("", |(_, rest)| rest);
    version.split(' ').next().unwrap_or_default()
}

fn texts(values: &Value) -> Vec<String> {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The frame that answers a request of the app-server.
pub fn answer(request: &Value, result: &Value) -> Value {
    json!({ "id": request, "result": result })
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: &str = "01a20d52-346b-7852-bcf7-dc42a786c0e6";

    fn approval() -> Value {
        json!({ "method": "item/commandExecution/requestApproval", "id": 0, "params": {
            "kind": "command", "threadId": THREAD, "turnId": "t", "itemId": "call_1",
            "reason": "May I?", "command": "/bin/bash -lc 'touch made'", "cwd": "/home/user/work",
            "proposedExecpolicyAmendment": ["touch", "made"],
            "availableDecisions": ["accept",
                { "acceptWithExecpolicyAmendment": { "execpolicy_amendment": ["touch", "made"] } },
                "cancel"],
        } })
    }

    fn notice(method: &str, mut params: Value) -> Value {
        params["threadId"] = json!(THREAD);
        json!({ "method": method, "params": params })
    }

    fn state(state: RecordedState) -> CodexObservation {
        CodexObservation::State { thread: THREAD.to_owned(), state }
    }

    /// A connection that knows the thread.
    fn connected(user_agent: &str) -> AppServerProtocol {
        let mut codex = AppServerProtocol::default();
        let hello = codex.begin("1");
        assert_eq!(hello["method"], "initialize");
        let hello = json!({ "id": hello["id"], "result": { "userAgent": user_agent } });
        let (_, frames) = codex.read(&hello);
        assert_eq!(frames[0], json!({ "method": "initialized" }));
        let list = json!({ "id": frames[1]["id"], "result": { "data": [THREAD] } });
        let (_, frames) = codex.read(&list);
        assert_eq!(frames[0]["method"], "thread/read");
        let status = json!({ "type": "active", "activeFlags": ["waitingOnApproval"] });
        let read = json!({ "id": frames[0]["id"], "result": { "thread": { "status": status } } });
        let (told, frames) = codex.read(&read);
        assert_eq!(told, [state(RecordedState::Waiting(WaitingKind::Permission))]);
        assert_eq!(frames[0]["method"], "thread/resume");
        assert_eq!(frames[0]["params"], json!({ "threadId": THREAD, "excludeTurns": true }));
        let (told, frames) = codex.read(&json!({ "id": frames[0]["id"], "result": {} }));
        assert_eq!(told, []);
        assert_eq!(frames[0]["method"], "thread/read");
        codex
    }

    #[test]
    fn threads_are_listed_read_and_followed() {
        let mut codex = connected("svc/0.169.0 (Debian 12)");
        let list = codex.list_threads();
        let (_, frames) = codex.read(&json!({ "id": list["id"], "result": { "data": [THREAD] } }));
        let status = json!({ "type": "idle" });
        let read = json!({ "id": frames[0]["id"], "result": { "thread": { "status": status } } });
        let (told, frames) = codex.read(&read);
        let settled = CodexObservation::Settled { thread: THREAD.to_owned() };
        assert_eq!(told, [state(RecordedState::Idle), settled]);
        assert_eq!(frames[0]["method"], "thread/unsubscribe");
        let started =
            json!({ "method": "thread/started", "params": { "thread": { "id": "new" } } });
        let (_, frames) = codex.read(&started);
        assert_eq!(frames[0]["params"], json!({ "threadId": "new" }));
    }

    /// What 0.169.0 reports of a terminal before its first prompt, and of threads that no person
    /// sees.
    #[test]
    fn a_thread_is_opened_by_its_person() {
        let idle = json!({ "type": "idle" });
        let user = json!({
            "ephemeral": false, "parentThreadId": null, "threadSource": "user", "source": "vscode",
            "originator": "codex-tui", "cwd": "/home/user/web", "preview": "", "status": idle,
        });
        let with = |name: &str, value: Value| {
            let mut thread = user.clone();
            thread[name] = value;
            thread
        };
        let opened = || CodexObservation::Opened {
            thread: "new".to_owned(),
            folder: "/home/user/web".to_owned(),
        };
        for (thread, expected) in [
            (user.clone(), Some(opened())),
            (with("threadSource", json!("thread_title")), None),
            (with("ephemeral", json!(true)), None),
            (with("parentThreadId", json!(THREAD)), None),
            (with("cwd", Value::Null), None),
        ] {
            let mut codex = connected("");
            let started = json!({ "thread": { "id": "new" } });
            let started = json!({ "method": "thread/started", "params": started });
            let (_, frames) = codex.read(&started);
            let read = json!({ "id": frames[0]["id"], "result": { "thread": thread } });
            let (told, _) = codex.read(&read);
            let is = told.into_iter().find(|it| matches!(it, CodexObservation::Opened { .. }));
            assert_eq!(is, expected, "{thread}");
        }
    }

    /// A thread to which somebody is subscribed is not unloaded.
    #[test]
    fn a_thread_is_followed_while_it_is_in_a_turn() {
        let mut codex = connected("");
        let turn = json!({ "id": "turn_1", "status": "completed", "error": null });
        let over = notice("turn/completed", json!({ "turn": turn }));
        let (_, left) = codex.read(&over);
        assert_eq!(left[0]["method"], "thread/unsubscribe");
        // The next turn begins before the request to unsubscribe is answered.
        let active = json!({ "status": { "type": "active", "activeFlags": [] } });
        let active = notice("thread/status/changed", active);
        assert_eq!(codex.read(&active).1, Vec::<Value>::new());
        let (_, frames) = codex.read(&json!({ "id": left[0]["id"], "result": {} }));
        assert_eq!(frames[0]["method"], "thread/resume");
        // A thread in its first turn has no record yet.
        let refused = json!({ "id": frames[0]["id"], "error": { "message": "no rollout found" } });
        assert_eq!(codex.read(&refused).1, Vec::<Value>::new());
        assert!(codex.has_missing());
        let (_, frames) = codex.read(&active);
        assert_eq!(frames[0]["method"], "thread/resume");
        codex.read(&json!({ "id": frames[0]["id"], "result": {} }));
        assert!(!codex.has_missing());
        // No person sees this thread: the client uses it to make titles.
        let hidden = json!({ "id": "hidden", "ephemeral": true });
        let (_, frames) =
            codex.read(&json!({ "method": "thread/started", "params": { "thread": hidden } }));
        let status = json!({ "type": "active", "activeFlags": [] });
        let read = json!({ "thread": { "ephemeral": true, "status": status } });
        let (_, frames) = codex.read(&json!({ "id": frames[0]["id"], "result": read }));
        assert_eq!((frames, codex.has_missing()), (Vec::new(), false));
    }

    #[test]
    fn what_a_thread_asks_is_read_by_the_version_of_the_client() {
        for (user_agent, denial) in [
            ("svc/0.169.0 (Debian 12)", "decline"),
            ("svc/0.170.0 (Debian 12)", "cancel"),
            ("", "cancel"),
        ] {
            let mut codex = connected(user_agent);
            let (told, _) = codex.read(&approval());
            let [CodexObservation::Asked { thread, request, prompt, item }] = &told[..] else {
                panic!("{told:?}")
            };
            assert_eq!((thread.as_str(), request), (THREAD, &json!(0)));
            assert_eq!(*item, None, "it began before this connection");
            assert_eq!(prompt.options().pop().unwrap().option_id, denial, "{user_agent}");
        }
        let mut codex = connected("");
        let resolved = notice("serverRequest/resolved", json!({ "requestId": 0 }));
        assert_eq!(codex.read(&resolved).0, [CodexObservation::Resolved { request: json!(0) }]);
        let item = json!({ "type": "commandExecution", "id": "call_1", "status": "declined" });
        let over = CodexObservation::ItemOver {
            thread: THREAD.to_owned(),
            item: "call_1".to_owned(),
            is_declined: true,
        };
        assert_eq!(codex.read(&notice("item/completed", json!({ "item": item }))).0, [over]);
        let answered = answer(&json!(0), &json!({ "decision": "accept" }));
        assert_eq!(answered, json!({ "id": 0, "result": { "decision": "accept" } }));
    }

    #[test]
    fn changes_of_files_are_those_of_the_item() {
        let mut codex = connected("");
        let changes = json!([{ "path": "a.txt", "kind": { "type": "add" }, "diff": "one\n" }]);
        let item = json!({ "type": "fileChange", "id": "call_1", "changes": changes });
        codex.read(&notice("item/started", json!({ "item": item })));
        let mut request = notice("item/fileChange/requestApproval", json!({ "itemId": "call_1" }));
        request["id"] = json!(1);
        let (told, _) = codex.read(&request);
        let [CodexObservation::Asked { prompt, item, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(prompt.tool()["input"]["changes"], changes);
        assert_eq!(item.as_deref(), Some("call_1"));
    }

    #[test]
    fn turns_begin_and_end_and_fail() {
        let mut codex = connected("");
        let began = notice("turn/started", json!({ "turn": { "id": "turn_1" } }));
        assert_eq!(codex.read(&began).0, [state(RecordedState::Busy)]);
        for (status, expected) in [
            (json!({ "type": "active", "activeFlags": [] }), RecordedState::Busy),
            (
                json!({ "type": "active", "activeFlags": ["waitingOnUserInput"] }),
                RecordedState::Waiting(WaitingKind::Question),
            ),
        ] {
            let changed = notice("thread/status/changed", json!({ "status": status }));
            assert_eq!(codex.read(&changed).0, [state(expected)]);
        }
        // How the turn ended is reported after that.
        let idle = json!({ "status": { "type": "idle" } });
        let idle = notice("thread/status/changed", idle);
        assert_eq!(codex.read(&idle).0, []);
        let settled = || CodexObservation::Settled { thread: THREAD.to_owned() };
        let turn = json!({ "id": "turn_1", "status": "failed", "error": { "message": "why" } });
        let failed = CodexObservation::Failed { thread: THREAD.to_owned(), why: "why".to_owned() };
        let over = notice("turn/completed", json!({ "turn": turn }));
        assert_eq!(codex.read(&over).0, [state(RecordedState::Idle), failed, settled()]);
        let turn = json!({ "id": "turn_2", "status": "interrupted", "error": null });
        let over = notice("turn/completed", json!({ "turn": turn }));
        let interrupted = CodexObservation::Interrupted { thread: THREAD.to_owned() };
        assert_eq!(codex.read(&over).0, [interrupted, state(RecordedState::Idle), settled()]);
    }

    #[test]
    fn a_text_goes_into_the_turn_under_way_or_into_the_queue() {
        let mut codex = connected("");
        let queued = codex.deliver(THREAD, "msg_1", "hello");
        assert_eq!(queued["method"], "thread/queue/add");
        assert_eq!(queued["params"]["clientUserMessageId"], "msg_1");
        let taken = json!({ "id": queued["id"], "result": { "queuedSubmission": { "id": "q" } } });
        let message = || "msg_1".to_owned();
        assert_eq!(codex.read(&taken).0, [CodexObservation::Taken { message: message() }]);
        let item = json!({ "type": "userMessage", "clientId": "msg_1" });
        let read = notice("item/started", json!({ "item": item }));
        let expected = CodexObservation::Read { thread: THREAD.to_owned(), message: message() };
        assert_eq!(codex.read(&read).0, [expected]);
        let item = json!({ "type": "reasoning", "id": "r" });
        codex.read(&notice("item/started", json!({ "turnId": "turn_1", "item": item })));
        let steered = codex.deliver(THREAD, "msg_2", "more");
        assert_eq!(steered["method"], "turn/steer");
        assert_eq!(steered["params"]["expectedTurnId"], "turn_1");
        assert_eq!(steered["params"]["clientUserMessageId"], "msg_2");
        let at_end = codex.deliver_at_end(THREAD, "msg_2", "more");
        assert_eq!(at_end["method"], "thread/queue/add");
        let refused = json!({ "error": { "message": "no active turn" } });
        let refused = |id: &Value| {
            let mut refused = refused.clone();
            refused["id"] = id.clone();
            refused
        };
        // If the turn accepts no more texts, the message begins a turn of its own.
        let (told, frames) = codex.read(&refused(&steered["id"]));
        assert_eq!((told, &frames[0]["params"]), (Vec::new(), &at_end["params"]));
        assert_eq!(frames[0]["method"], "thread/queue/add");
        let expected = CodexObservation::Refused {
            message: "msg_2".to_owned(),
            why: "no active turn".to_owned(),
        };
        assert_eq!(codex.read(&refused(&frames[0]["id"])).0, [expected]);
    }

    #[test]
    fn a_text_is_in_the_queue_or_in_a_turn_or_nowhere() {
        let found = |place| CodexObservation::Found { message: "hand_1".to_owned(), place };
        let queued = json!({ "data": [{ "id": "q", "clientUserMessageId": "hand_1" }] });
        let other = json!({ "data": [{ "id": "q", "clientUserMessageId": "hand_2" }] });
        let turns = |id: &str| {
            let item = json!({ "type": "userMessage", "clientId": id });
            json!({ "data": [{ "id": "t", "items": [item] }] })
        };
        for (queue, turns, place) in [
            (queued, None, MessagePlace::Queue),
            (other.clone(), Some(turns("hand_1")), MessagePlace::Conversation),
            (other, Some(turns("hand_2")), MessagePlace::Nowhere),
        ] {
            let mut codex = connected("");
            let asked = codex.find(THREAD, "hand_1");
            assert_eq!(asked["method"], "thread/queue/list");
            let (mut told, frames) = codex.read(&json!({ "id": asked["id"], "result": queue }));
            if let Some(turns) = turns {
                assert_eq!(frames[0]["method"], "thread/turns/list");
                (told, _) = codex.read(&json!({ "id": frames[0]["id"], "result": turns }));
            }
            assert_eq!(told, [found(Some(place))]);
        }
        let mut codex = connected("");
        let asked = codex.find(THREAD, "hand_1");
        let failed = json!({ "id": asked["id"], "error": { "message": "no such thread" } });
        assert_eq!(codex.read(&failed).0, [found(None)]);
    }

    #[test]
    fn a_usage_limit_has_the_time_of_the_account() {
        let mut codex = connected("");
        let account = json!({ "method": "account/rateLimits/updated", "params": { "rateLimits": {
            "primary": { "usedPercent": 100, "resetsAt": 1_795_527_140 } } } });
        codex.read(&account);
        let error = json!({ "message": "You’ve hit your usage limit.",
            "codexErrorInfo": "usageLimitExceeded" });
        let failed = notice("error", json!({ "willRetry": false, "error": error }));
        let until = Some(Timestamp::from_millis(1_795_527_140_000));
        let limit = CodexObservation::Limit { thread: THREAD.to_owned(), until };
        assert_eq!(codex.read(&failed).0, [limit]);
    }

    #[test]
    fn frames_of_other_versions_tell_nothing() {
        for frame in [
            json!({}),
            json!(7),
            json!({ "method": "x" }),
            json!({ "id": 1, "result": 1 }),
            json!({ "id": 1, "error": { "message": "no" } }),
            notice("thread/status/changed", json!({ "status": { "type": "of a later version" } })),
            json!({ "id": 1, "method": "item/tool/call", "params": { "threadId": THREAD } }),
        ] {
            let mut codex = AppServerProtocol::default();
            codex.begin("1");
            let (told, _) = codex.read(&frame);
            assert_eq!(told, [], "{frame}");
        }
    }
}
