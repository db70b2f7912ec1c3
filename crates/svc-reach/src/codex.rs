//! The protocol of Codex' app-server, which all terminals of a user share: what it says becomes
//! observations of threads, and what is wanted of a thread becomes frames. No I/O.
//!
//! Frames are JSON-RPC without the field `jsonrpc`, one in each text message of a WebSocket. After
//! `initialize` the loaded threads are listed, read, and resumed, which subscribes to them; what a
//! thread asks of its person is sent again to whoever resumes it. The first answer counts.
//!
//! A thread is a session: its id is the `session_id` of the hooks.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use svc_model::{
    RecordedState, Timestamp, WaitingKind,
    agent::{RequestKind, RequestOption, RequestOptionKind},
};

/// Id of the option that runs a command once.
const ACCEPT: &str = "accept";
/// Id of the option that runs such commands until the session ends.
const ACCEPT_FOR_SESSION: &str = "acceptForSession";
/// Id of the option that writes a rule.
const AMEND: &str = "acceptWithExecpolicyAmendment";
/// Id of the option that refuses, after which the turn goes on.
const DECLINE: &str = "decline";

/// What the app-server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodexCall {
    Initialize,
    LoadedThreads,
    ReadThread(String),
    Resume(String),
    /// `thread/queue/add` with the client id of a message.
    Queue {
        thread: String,
        message: String,
    },
    Steer {
        thread: String,
        message: String,
    },
}

/// A thread that the app-server has loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct CodexThread {
    /// The turn under way.
    turn: Option<String>,
    is_subscribed: bool,
}

/// What a thread asks of its person.
#[derive(Debug, Clone, PartialEq)]
pub struct CodexPrompt {
    pub thread: String,
    /// The id of the request on this connection.
    request: Value,
    /// The item that the request is about; the same on every connection.
    pub item: String,
    pub kind: RequestKind,
    pub title: String,
    pub cwd: Option<String>,
    /// The call: `{name, input}`.
    pub tool: Value,
    pub options: Vec<RequestOption>,
    /// The offered change of rules, for the option that makes it.
    amendment: Option<Value>,
    /// The method, which says what form an answer has.
    method: String,
    /// Ids of questions.
    questions: Vec<String>,
}

/// What the app-server told.
#[derive(Debug, Clone, PartialEq)]
pub enum CodexObservation {
    /// A thread is there, in this folder.
    Thread {
        thread: String,
        cwd: Option<String>,
    },
    State {
        thread: String,
        state: RecordedState,
    },
    /// The turn failed.
    Failed {
        thread: String,
        why: String,
    },
    Asked(Box<CodexPrompt>),
    /// A request is answered, here or at the terminal.
    Closed {
        thread: String,
        request: Value,
    },
    /// The app-server has a message in its queue, or in the turn under way.
    Taken {
        message: String,
    },
    /// The app-server did not take a message.
    Refused {
        message: String,
        why: String,
    },
    /// The model has a message.
    Read {
        thread: String,
        message: String,
    },
    /// The vendor refuses for usage, until this time if it is known.
    Limit {
        thread: String,
        until: Option<Timestamp>,
    },
}

/// One connection to an app-server.
#[derive(Debug, Default)]
pub struct CodexProtocol {
    calls: HashMap<u64, CodexCall>,
    last_call: u64,
    threads: BTreeMap<String, CodexThread>,
    /// When the vendor's limit ends, as the account's state says.
    limit_until: Option<Timestamp>,
}

impl CodexProtocol {
    /// The first frame of a connection.
    pub fn begin(&mut self, version: &str) -> Value {
        let client = json!({ "name": "svc", "title": "svc", "version": version });
        let params = json!({ "clientInfo": client, "capabilities": { "experimentalApi": true } });
        self.call(CodexCall::Initialize, "initialize", &params)
    }

    /// Asks again which threads there are.
    pub fn list_threads(&mut self) -> Value {
        self.call(CodexCall::LoadedThreads, "thread/loaded/list", &json!({}))
    }

    /// Gives a thread a text with a client id: into the turn under way, else as a turn of its own.
    pub fn deliver(&mut self, thread: &str, message: &str, text: &str) -> Value {
        let input = json!([{ "type": "text", "text": text }]);
        let turn = self.threads.get(thread).and_then(|thread| thread.turn.clone());
        let (thread, message) = (thread.to_owned(), message.to_owned());
        match turn {
            Some(turn) => {
                let params = json!({ "threadId": thread, "expectedTurnId": turn, "input": input });
                self.call(CodexCall::Steer { thread, message }, "turn/steer", &params)
            }
            None => self.queue(thread, message, &input),
        }
    }

    /// Puts a text into a thread's queue: it is a turn of its own after the one under way.
    pub fn deliver_at_end(&mut self, thread: &str, message: &str, text: &str) -> Value {
        let input = json!([{ "type": "text", "text": text }]);
        self.queue(thread.to_owned(), message.to_owned(), &input)
    }

    fn queue(&mut self, thread: String, message: String, input: &Value) -> Value {
        let params = json!({ "threadId": thread, "clientUserMessageId": message, "input": input });
        self.call(CodexCall::Queue { thread, message }, "thread/queue/add", &params)
    }

    /// The frame that answers a prompt; `None` if it takes no such answer.
    pub fn answer(prompt: &CodexPrompt, option: Option<&str>, text: Option<&str>) -> Option<Value> {
        let result = match prompt.method.as_str() {
            "item/tool/requestUserInput" => {
                let [question] = &prompt.questions[..] else { return None };
                let label =
                    option.and_then(|id| prompt.options.iter().find(|it| it.option_id == id));
                let words = text.or(label.map(|option| option.name.as_str()))?;
                json!({ "answers": { question: { "answers": [words] } } })
            }
            "mcpServer/elicitation/request" => match option? {
                ACCEPT => json!({ "action": "accept", "content": {} }),
                DECLINE => json!({ "action": "decline" }),
                _ => return None,
            },
            _ => match option? {
                AMEND => {
                    let amendment = prompt.amendment.clone()?;
                    json!({ "decision": { AMEND: { "execpolicy_amendment": amendment } } })
                }
                decision @ (ACCEPT | ACCEPT_FOR_SESSION | DECLINE) => {
                    json!({ "decision": decision })
                }
                _ => return None,
            },
        };
        Some(json!({ "id": prompt.request, "result": result }))
    }

    fn call(&mut self, call: CodexCall, method: &str, params: &Value) -> Value {
        self.last_call += 1;
        self.calls.insert(self.last_call, call);
        json!({ "id": self.last_call, "method": method, "params": params })
    }

    /// Takes in a frame: what it tells, and the frames that follow from it.
    pub fn read(&mut self, frame: &Value) -> (Vec<CodexObservation>, Vec<Value>) {
        let method = frame["method"].as_str();
        match (method, frame.get("id")) {
            (Some(method), Some(id)) => (Self::asked(method, id, &frame["params"]), Vec::new()),
            (Some(method), None) => self.told(method, &frame["params"]),
            (None, Some(id)) => {
                let call = id.as_u64().and_then(|id| self.calls.remove(&id));
                call.map_or_else(Default::default, |call| self.answered(call, frame))
            }
            (None, None) => Default::default(),
        }
    }

    fn answered(&mut self, call: CodexCall, frame: &Value) -> (Vec<CodexObservation>, Vec<Value>) {
        let result = &frame["result"];
        let error = frame["error"]["message"].as_str();
        match call {
            CodexCall::Initialize if error.is_none() => {
                let list = self.list_threads();
                (Vec::new(), vec![json!({ "method": "initialized" }), list])
            }
            CodexCall::LoadedThreads => {
                let loaded: Vec<String> = texts(&result["data"]);
                self.threads.retain(|id, _| loaded.contains(id));
                let frames = loaded.into_iter().map(|id| self.follow(id)).collect();
                (Vec::new(), frames)
            }
            CodexCall::ReadThread(id) => {
                let thread = &result["thread"];
                let cwd = thread["cwd"].as_str().map(str::to_owned);
                let mut told = vec![CodexObservation::Thread { thread: id.clone(), cwd }];
                told.extend(self.state_of(&id, &thread["status"]));
                let is_new = self.threads.get(&id).is_some_and(|thread| !thread.is_subscribed);
                let params = json!({ "threadId": id, "excludeTurns": true });
                let resume =
                    is_new.then(|| self.call(CodexCall::Resume(id), "thread/resume", &params));
                (told, resume.into_iter().collect())
            }
            CodexCall::Resume(id) => {
                if let Some(thread) = self.threads.get_mut(&id) {
                    thread.is_subscribed = error.is_none();
                }
                Default::default()
            }
            CodexCall::Queue { message, .. } | CodexCall::Steer { message, .. } => {
                let told = match error {
                    None => CodexObservation::Taken { message },
                    Some(why) => CodexObservation::Refused { message, why: why.to_owned() },
                };
                (vec![told], Vec::new())
            }
            CodexCall::Initialize => Default::default(),
        }
    }

    /// The frame that reads a thread, to which the connection subscribes then.
    fn follow(&mut self, id: String) -> Value {
        self.threads.entry(id.clone()).or_default();
        let params = json!({ "threadId": id });
        self.call(CodexCall::ReadThread(id), "thread/read", &params)
    }

    fn told(&mut self, method: &str, params: &Value) -> (Vec<CodexObservation>, Vec<Value>) {
        let Some(id) = params["threadId"].as_str().map(str::to_owned) else {
            if method == "account/rateLimits/updated" {
                let at = params["rateLimits"]["primary"]["resetsAt"].as_i64();
                self.limit_until = at.map(|at| Timestamp::from_millis(at.saturating_mul(1000)));
            }
            return Default::default();
        };
        let mut frames = Vec::new();
        if !self.threads.contains_key(&id) && method != "thread/closed" {
            frames.push(self.follow(id.clone()));
        }
        let told = match method {
            "thread/status/changed" => self.state_of(&id, &params["status"]),
            "turn/started" => {
                let turn = params["turn"]["id"].as_str().map(str::to_owned);
                self.thread(&id).turn = turn;
                vec![CodexObservation::State { thread: id, state: RecordedState::Busy }]
            }
            "turn/completed" => {
                self.thread(&id).turn = None;
                vec![CodexObservation::State { thread: id, state: RecordedState::Idle }]
            }
            "item/started" if params["item"]["type"] == "userMessage" => {
                let message = params["item"]["clientId"].as_str().map(str::to_owned);
                let read = message.map(|message| CodexObservation::Read { thread: id, message });
                read.into_iter().collect()
            }
            "serverRequest/resolved" => {
                vec![CodexObservation::Closed { thread: id, request: params["requestId"].clone() }]
            }
            "error" if params["willRetry"] == false => vec![self.failure(id, &params["error"])],
            _ => Vec::new(),
        };
        (told, frames)
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
        vec![CodexObservation::State { thread: id.to_owned(), state }]
    }

    fn asked(method: &str, id: &Value, params: &Value) -> Vec<CodexObservation> {
        let prompt = CodexPrompt::read(method, id, params);
        prompt.map(|prompt| CodexObservation::Asked(Box::new(prompt))).into_iter().collect()
    }
}

impl CodexPrompt {
    /// `None` for a request that no person answers.
    fn read(method: &str, id: &Value, params: &Value) -> Option<Self> {
        let text = |name: &str| params[name].as_str().map(str::to_owned);
        let (kind, name, title, options, questions) = match method {
            "item/commandExecution/requestApproval" => {
                let options = approval_options(params);
                (RequestKind::Permission, "shell", text("command")?, options, Vec::new())
            }
            "item/fileChange/requestApproval" => {
                let title = text("reason").unwrap_or_else(|| "change files".to_owned());
                (
                    RequestKind::Permission,
                    "apply_patch",
                    title,
                    approval_options(params),
                    Vec::new(),
                )
            }
            "item/tool/requestUserInput" => {
                let questions = params["questions"].as_array()?;
                let ids = questions.iter().filter_map(|it| it["id"].as_str()).map(str::to_owned);
                let title = questions.first()?["question"].as_str()?.to_owned();
                let options = question_options(questions);
                (RequestKind::Question, "request_user_input", title, options, ids.collect())
            }
            "mcpServer/elicitation/request"
                if params["_meta"]["codex_approval_kind"] == "mcp_tool_call" =>
            {
                let title = text("message").unwrap_or_else(|| "call a tool".to_owned());
                let options = vec![
                    option(ACCEPT, "Yes", RequestOptionKind::AllowOnce),
                    option(DECLINE, "No", RequestOptionKind::Deny),
                ];
                (RequestKind::Permission, "mcp_tool_call", title, options, Vec::new())
            }
            _ => return None,
        };
        Some(Self {
            thread: text("threadId")?,
            request: id.clone(),
            item: text("itemId").unwrap_or_default(),
            kind,
            title,
            cwd: text("cwd"),
            tool: json!({ "name": name, "input": params }),
            options,
            amendment: params.get("proposedExecpolicyAmendment").cloned(),
            method: method.to_owned(),
            questions,
        })
    }

    pub fn is_request(&self, request: &Value) -> bool {
        self.request == *request
    }
}

/// What an approval offers. Codex takes `decline` though it does not offer it (0.169).
fn approval_options(params: &Value) -> Vec<RequestOption> {
    let offered = params["availableDecisions"].as_array().map_or(&[][..], Vec::as_slice);
    let offers = |name: &str| {
        offered.is_empty() || offered.iter().any(|it| it == name || it.get(name).is_some())
    };
    let mut options = vec![option(ACCEPT, "Yes", RequestOptionKind::AllowOnce)];
    if !offered.is_empty() && offers(ACCEPT_FOR_SESSION) {
        let name = "Yes, and do not ask for this again until the session ends";
        options.push(option(ACCEPT_FOR_SESSION, name, RequestOptionKind::AllowAlways));
    }
    let words = texts(&params["proposedExecpolicyAmendment"]);
    if offers(AMEND) && !words.is_empty() {
        let name = format!("Yes, and always allow commands that start with {:?}", words.join(" "));
        options.push(option(AMEND, &name, RequestOptionKind::AllowAlways));
    }
    options.push(option(DECLINE, "No", RequestOptionKind::Deny));
    options
}

/// The labels of the only question.
fn question_options(questions: &[Value]) -> Vec<RequestOption> {
    let [question] = questions else { return Vec::new() };
    let labels = question["options"].as_array().map_or(&[][..], Vec::as_slice);
    let labels = labels.iter().filter_map(|it| it["label"].as_str()).enumerate();
    labels
        .map(|(number, label)| {
            option(&format!("choice_{}", number + 1), label, RequestOptionKind::Choice)
        })
        .collect()
}

fn option(id: &str, name: &str, kind: RequestOptionKind) -> RequestOption {
    RequestOption { option_id: id.to_owned(), name: name.to_owned(), kind, text: false }
}

fn texts(values: &Value) -> Vec<String> {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
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

    fn asked(frame: &Value) -> CodexPrompt {
        let (told, _) = CodexProtocol::default().read(frame);
        let [CodexObservation::Asked(prompt)] = &told[..] else { panic!("{told:?}") };
        (**prompt).clone()
    }

    #[test]
    fn threads_are_listed_read_and_followed() {
        let mut codex = CodexProtocol::default();
        let hello = codex.begin("1");
        assert_eq!(hello["method"], "initialize");
        let (_, frames) = codex.read(&json!({ "id": hello["id"], "result": {} }));
        assert_eq!(frames[0], json!({ "method": "initialized" }));
        let list = &frames[1];
        let (_, frames) = codex.read(&json!({ "id": list["id"], "result": { "data": [THREAD] } }));
        assert_eq!(frames[0]["method"], "thread/read");
        let status = json!({ "type": "active", "activeFlags": ["waitingOnApproval"] });
        let read = json!({ "thread": { "cwd": "/home/user/work", "status": status } });
        let (told, frames) = codex.read(&json!({ "id": frames[0]["id"], "result": read }));
        let state = RecordedState::Waiting(WaitingKind::Permission);
        assert_eq!(
            told,
            [
                CodexObservation::Thread {
                    thread: THREAD.to_owned(),
                    cwd: Some("/home/user/work".to_owned()),
                },
                CodexObservation::State { thread: THREAD.to_owned(), state },
            ]
        );
        assert_eq!(frames[0]["method"], "thread/resume");
        assert_eq!(frames[0]["params"], json!({ "threadId": THREAD, "excludeTurns": true }));
    }

    #[test]
    fn an_approval_is_answered_in_the_form_that_codex_takes() {
        let prompt = asked(&approval());
        let ids: Vec<_> = prompt.options.iter().map(|option| option.option_id.as_str()).collect();
        assert_eq!(ids, [ACCEPT, AMEND, DECLINE]);
        let answer = |option| CodexProtocol::answer(&prompt, Some(option), None);
        assert_eq!(answer(ACCEPT), Some(json!({ "id": 0, "result": { "decision": "accept" } })));
        let amended = answer(AMEND).unwrap();
        assert_eq!(
            amended["result"]["decision"][AMEND],
            json!({ "execpolicy_amendment": ["touch", "made"] })
        );
        assert_eq!(answer("cancel"), None);
        let closed = json!({ "method": "serverRequest/resolved",
            "params": { "threadId": THREAD, "requestId": 0 } });
        let (told, _) = CodexProtocol::default().read(&closed);
        let [CodexObservation::Closed { request, .. }] = &told[..] else { panic!("{told:?}") };
        assert!(prompt.is_request(request));
    }

    #[test]
    fn a_text_goes_into_the_turn_under_way_or_into_the_queue() {
        let mut codex = CodexProtocol::default();
        let queued = codex.deliver(THREAD, "msg_1", "hello");
        assert_eq!(queued["method"], "thread/queue/add");
        assert_eq!(queued["params"]["clientUserMessageId"], "msg_1");
        let taken = json!({ "id": queued["id"], "result": { "queuedSubmission": { "id": "q" } } });
        let message = || "msg_1".to_owned();
        assert_eq!(codex.read(&taken).0, [CodexObservation::Taken { message: message() }]);
        let item = json!({ "type": "userMessage", "clientId": "msg_1" });
        let read =
            json!({ "method": "item/started", "params": { "threadId": THREAD, "item": item } });
        let expected = CodexObservation::Read { thread: THREAD.to_owned(), message: message() };
        assert_eq!(codex.read(&read).0, [expected]);
        let began = json!({ "method": "turn/started",
            "params": { "threadId": THREAD, "turn": { "id": "turn_1" } } });
        codex.read(&began);
        let steered = codex.deliver(THREAD, "msg_2", "more");
        assert_eq!(steered["method"], "turn/steer");
        assert_eq!(steered["params"]["expectedTurnId"], "turn_1");
        let refused = json!({ "id": steered["id"], "error": { "message": "no active turn" } });
        let expected = CodexObservation::Refused {
            message: "msg_2".to_owned(),
            why: "no active turn".to_owned(),
        };
        assert_eq!(codex.read(&refused).0, [expected]);
    }

    #[test]
    fn a_usage_limit_has_the_time_of_the_account() {
        let mut codex = CodexProtocol::default();
        let account = json!({ "method": "account/rateLimits/updated", "params": { "rateLimits": {
            "primary": { "usedPercent": 100, "resetsAt": 1_795_527_140 } } } });
        codex.read(&account);
        let failed = json!({ "method": "error", "params": { "threadId": THREAD, "willRetry": false,
            "error": { "message": "You’ve hit your usage limit.",
                "codexErrorInfo": "usageLimitExceeded" } } });
        let (told, _) = codex.read(&failed);
        let until = Some(Timestamp::from_millis(1_795_527_140_000));
        assert_eq!(told, [CodexObservation::Limit { thread: THREAD.to_owned(), until }]);
    }

    #[test]
    fn frames_of_other_versions_tell_nothing() {
        for frame in
            [json!({}), json!(7), json!({ "method": "x" }), json!({ "id": 1, "result": 1 })]
        {
            let mut codex = CodexProtocol::default();
            codex.begin("1");
            let (told, _) = codex.read(&frame);
            assert_eq!(told, [], "{frame}");
        }
    }
}
