//! One call of the client, from the line it wrote to the line that answers it, over as many connections as it takes.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::super::output;
use super::call::{Call, Failure, Kind, Note, Settled};
use super::lines::Output;
use super::link::{Effort, Link, Trouble};
use super::session::{Session, Sessions};
use super::tools::Tools;
use crate::client::mcp::{self, Message, Setting};
use crate::client::{Answer, Streaming, backoff, one_line};
use crate::domain::mcp::SESSION_ID;

/// How often a call is sent again that brings no answer. A call that brings the daemon down must not do so for ever.
const REPEATS: u32 = 3;
/// The error of a server that misses an argument in the headers.
const HEADER_MISMATCH: i64 = -32020;

/// What all exchanges share.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) link: Link,
    pub(super) output: Output,
    pub(super) sessions: Sessions,
    pub(super) tools: Tools,
}

/// What was tried for one call already.
#[derive(Debug, Default)]
struct Tries {
    repeats: u32,
    renewed: bool,
    learned: bool,
}

/// How an answer broke off.
#[derive(Debug)]
enum Broken {
    /// It cannot be resumed, but perhaps be asked for again.
    Cut(String),
    /// The daemon says that there is no more of it.
    Over(String),
}

impl Bridge {
    pub(super) fn new(link: Link, output: Output) -> Self {
        Self { link, output, sessions: Sessions::default(), tools: Tools::default() }
    }

    /// Answers a call, whatever happens.
    pub(super) async fn exchange(&self, mut call: Call) {
        if let Err(failure) = self.attempt(&mut call).await {
            for reply in call.failures(&failure) {
                self.output.send(reply).await;
            }
        }
    }

    /// Delivers what wants no answer. Twice does no harm, so it is sent until it has arrived.
    pub(super) async fn deliver(&self, note: &Note) {
        let (mut repeats, mut renewed) = (0, false);
        loop {
            let session = (!note.modern).then(|| self.sessions.current()).flatten();
            let setting = session.as_deref().map(Session::setting).unwrap_or_default();
            let request = mcp::post(note.line.clone(), setting);
            let problem = match self.link.open(&request, Effort::Demand).await {
                Ok(answer) if answer.status.is_success() => return,
                Ok(answer) if answer.status == StatusCode::NOT_FOUND => {
                    match session.filter(|it| it.id.is_some()) {
                        // A response belongs to a question of the session that is gone.
                        Some(_) if note.method.is_none() => return,
                        Some(session) if !std::mem::replace(&mut renewed, true) => {
                            match self.renew(&session).await {
                                Ok(_) => continue,
                                Err(problem) => problem,
                            }
                        }
                        _ => return self.note_refusal(answer).await,
                    }
                }
                Ok(answer) => return self.note_refusal(answer).await,
                Err(Trouble::Lost(_)) if repeats < REPEATS => {
                    sleep(backoff(repeats, None)).await;
                    repeats += 1;
                    continue;
                }
                Err(trouble) => trouble.to_string(),
            };
            output::note(&format!("svc: a notification was not delivered: {problem}"));
            return;
        }
    }

    /// Asks a question of the bridge's own, outside of any session, and gives the result, with the session that it
    /// grants if it is `initialize`. It must be one that may be asked twice.
    pub(super) async fn ask(
        &self,
        request: &Bytes,
    ) -> Result<(Option<HeaderValue>, Box<RawValue>), String> {
        let outgoing = mcp::post(request.clone(), Setting::default());
        let mut repeats = 0;
        loop {
            let problem = match self.link.open(&outgoing, Effort::Demand).await {
                Ok(stream) if stream.status.is_success() => {
                    let granted = stream.headers.get(SESSION_ID).cloned();
                    match own_answer(Answer::new(stream)).await {
                        Ok(answer) => return answer.map(|result| (granted, result)),
                        Err(problem) => problem,
                    }
                }
                Ok(stream) => {
                    let reply = stream.collect().await.map_err(|error| error.to_string())?;
                    return Err(reply.problem().to_string());
                }
                Err(Trouble::Lost(problem)) => problem,
                Err(Trouble::Away(problem)) => return Err(problem),
            };
            if repeats == REPEATS {
                return Err(problem);
            }
            sleep(backoff(repeats, None)).await;
            repeats += 1;
        }
    }

    /// Passes a message on that belongs to no call.
    pub(super) async fn pass(&self, message: String) {
        if serde_json::from_str::<&RawValue>(&message).is_ok() {
            self.output.send(message).await;
        } else {
            note_garbage();
        }
    }

    /// Says on standard error that the daemon did not want something, where there is no request to answer.
    pub(super) async fn note_refusal(&self, answer: Streaming) {
        let Ok(reply) = answer.collect().await else {
            return;
        };
        let problem = reply.problem();
        if problem.status == StatusCode::UNAUTHORIZED {
            self.link.note_unauthorized(&problem);
        } else {
            output::note(&format!("svc: the daemon refused a message: {problem}"));
        }
    }

    async fn attempt(&self, call: &mut Call) -> Result<(), Failure> {
        let mut tries = Tries::default();
        loop {
            let session = (call.kind == Kind::Legacy).then(|| self.sessions.current()).flatten();
            let tool = call.tools.first().and_then(|name| self.tools.get(name));
            let setting = Setting {
                input_schema: tool.as_ref().map(|tool| &tool.input_schema),
                ..session.as_deref().map(Session::setting).unwrap_or_default()
            };
            let request = mcp::post(call.line.clone(), setting);
            // A subscription that is only to be kept up is no reason to start a daemon.
            let again = call.kind == Kind::Listen && tries.repeats > 0;
            let effort = if again { Effort::Background } else { Effort::Demand };
            let problem = match self.link.open(&request, effort).await {
                Ok(answer) if answer.status.is_success() => {
                    match self.follow(call, answer, session.as_deref(), &mut tries).await {
                        Ok(()) => return Ok(()),
                        Err(Broken::Over(problem)) => return Err(Failure::Unknown(problem)),
                        Err(Broken::Cut(problem)) => problem,
                    }
                }
                Ok(answer) => {
                    self.refused(call, answer, session, &mut tries).await?;
                    if call.is_settled() {
                        return Ok(());
                    }
                    continue;
                }
                Err(Trouble::Lost(problem)) => problem,
                Err(Trouble::Away(problem)) if tries.repeats > 0 => {
                    return Err(Failure::Unknown(problem));
                }
                Err(Trouble::Away(problem)) => return Err(Failure::Unavailable(problem)),
            };
            self.may_repeat(call, &mut tries, problem).await?;
        }
    }

    /// Passes on what is answered until the call has what it waits for.
    async fn follow(
        &self,
        call: &mut Call,
        stream: Streaming,
        session: Option<&Session>,
        tries: &mut Tries,
    ) -> Result<(), Broken> {
        let granted = stream.headers.get(SESSION_ID).cloned();
        let (mut answer, mut last, mut failures) = (Answer::new(stream), None::<String>, 0);
        loop {
            let problem = loop {
                match answer.next().await {
                    Ok(Some(message)) if is_farewell(message.as_bytes()) => {
                        return Err(Broken::Cut("the daemon went down".to_owned()));
                    }
                    Ok(Some(message)) => {
                        failures = 0;
                        if call.kind == Kind::Listen {
                            tries.repeats = 0;
                        }
                        self.pass_answer(call, message, granted.as_ref()).await;
                        if call.is_settled() {
                            return Ok(());
                        }
                    }
                    Ok(None) => break "the answer ended too early".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            last = answer.last_event_id().map(str::to_owned).or(last);
            let (Some(id), Some(session)) = (&last, session.filter(|it| it.id.is_some())) else {
                return Err(Broken::Cut(problem));
            };
            let request = mcp::get(session.setting(), Some(id));
            answer = loop {
                sleep(backoff(failures, answer.retry())).await;
                failures += 1;
                match self.link.open(&request, Effort::Demand).await {
                    Ok(stream) if stream.status == StatusCode::OK && stream.is_event_stream() => {
                        break Answer::new(stream);
                    }
                    Ok(stream) => {
                        return Err(Broken::Over(format!(
                            "{problem}, and the daemon has no more of it ({})",
                            stream.status
                        )));
                    }
                    Err(Trouble::Lost(_)) => {}
                    Err(Trouble::Away(problem)) => return Err(Broken::Over(problem)),
                }
            };
        }
    }

    async fn pass_answer(&self, call: &mut Call, message: String, granted: Option<&HeaderValue>) {
        match call.settle(&message) {
            Settled::Garbage => note_garbage(),
            Settled::Swallow => {}
            Settled::Pass => {
                if call.kind == Kind::Initialize && call.is_settled() {
                    // Before the client can know of it.
                    let session = Session::granted(&call.line, &message, granted.cloned());
                    session.map(|session| self.sessions.begin(session));
                }
                self.output.send(message).await;
            }
        }
    }

    /// Deals with an answer that is none: removes the cause, or passes the refusal on.
    async fn refused(
        &self,
        call: &mut Call,
        answer: Streaming,
        session: Option<Arc<Session>>,
        tries: &mut Tries,
    ) -> Result<(), Failure> {
        if answer.status == StatusCode::NOT_FOUND
            && let Some(session) = session.filter(|it| it.id.is_some())
            && !std::mem::replace(&mut tries.renewed, true)
        {
            return self.renew(&session).await.map(drop).map_err(Failure::Unavailable);
        }
        let reply = answer.collect().await.map_err(|error| Failure::Refused(error.to_string()))?;
        let problem = reply.problem();
        if problem.status == StatusCode::UNAUTHORIZED {
            self.link.note_unauthorized(&problem);
            return Err(Failure::Refused(problem.to_string()));
        }
        if is_farewell(&reply.body) {
            return self.may_repeat(call, tries, "the daemon went down".to_owned()).await;
        }
        let message = Message::parse(&reply.body).ok();
        let Some(error) = message.and_then(|message| message.error).filter(|it| is_error(it))
        else {
            return Err(Failure::Refused(problem.to_string()));
        };
        if code(error) == Some(HEADER_MISMATCH)
            && call.is_modern()
            && !call.tools.is_empty()
            && !std::mem::replace(&mut tries.learned, true)
            && self.learn_tools(call).await.is_ok()
        {
            return Ok(());
        }
        for message in call.errors(error) {
            self.pass_answer(call, one_line(message), None).await;
        }
        Ok(())
    }

    /// Waits until the call may be sent again, or says why it may not.
    async fn may_repeat(
        &self,
        call: &Call,
        tries: &mut Tries,
        problem: String,
    ) -> Result<(), Failure> {
        let for_ever = call.kind == Kind::Listen;
        if !for_ever && (tries.repeats == REPEATS || !self.is_repeatable(call).await) {
            return Err(Failure::Unknown(problem));
        }
        sleep(backoff(tries.repeats, None)).await;
        tries.repeats = tries.repeats.saturating_add(1);
        Ok(())
    }
}

/// The answer to a question of our own; the outer error is one that another try may mend.
async fn own_answer(mut answer: Answer) -> Result<Result<Box<RawValue>, String>, String> {
    while let Some(text) = answer.next().await.map_err(|error| error.to_string())? {
        let Ok(message) = Message::parse(text.as_bytes()) else {
            continue;
        };
        match (message.method, message.result, message.error) {
            (None, Some(result), _) => return Ok(Ok(result.to_owned())),
            (None, None, Some(error)) => return Ok(Err(error.get().to_owned())),
            _ => {}
        }
    }
    Err("the answer ended too early".to_owned())
}

/// Whether this is an error as JSON-RPC has it. Other documents have a member of that name too.
fn is_error(error: &RawValue) -> bool {
    code(error).is_some()
}

/// Whether a daemon that goes down says by this that it will not answer.
fn is_farewell(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Error {
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        retryable: bool,
    }
    let Some(error) = Message::parse(message).ok().and_then(|message| message.error) else {
        return false;
    };
    serde_json::from_str::<Error>(error.get()).is_ok_and(|error| error.data.retryable)
}

fn code(error: &RawValue) -> Option<i64> {
    #[derive(Deserialize)]
    struct Error {
        code: i64,
    }
    serde_json::from_str::<Error>(error.get()).ok().map(|error| error.code)
}

fn note_garbage() {
    output::note("svc: the daemon sent something that is no JSON-RPC message; it was dropped");
}
