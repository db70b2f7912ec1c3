//! Follows an agent on the terminal and sends it input.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use svc_client::{ClientError, FollowItem, Follower, encode, with_query};
use svc_sys::telemetry;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};

use super::events::note;
use super::{Context, ExitResult, output};

/// Most attempts to reach a daemon that restarts, and the delay between two attempts.
const ATTEMPTS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn host(agent: &str, rest: &str) -> String {
    format!("/v1/hosts/{}{rest}", encode(agent))
}

pub(super) async fn watch(context: &Context, agent: &str, after: Option<u64>) -> ExitResult {
    let view: Value = context.client()?.get(&host(agent, "")).await?;
    let mut follower = follower(context, &view, after.unwrap_or(0))?;
    let mut printer = Printer::from_agent(&view);
    while let Some(item) = follower.next().await? {
        let Some(event) = printer.event_of(&item)? else { continue };
        if context.json {
            output::ndjson(&event)?;
        } else {
            printer.show(&event)?;
        }
        if let Some(end) = end_of(&event["data"]) {
            return Ok(end);
        }
    }
    let view: Value = context.client()?.get(&host(&output::cell(&view, "id"), "")).await?;
    Ok(if view["state"] == "done" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends lines of standard input to an agent until the input or the agent ends.
pub(super) async fn attach(context: &Context, agent: &str) -> ExitResult {
    let view: Value = context.client()?.get(&host(agent, "")).await?;
    let id = output::cell(&view, "id");
    if view["ended_at"].is_string() {
        anyhow::bail!(
            "agent {id} has ended: {}; `svc agent history` shows what was said",
            output::cell(&view, "state")
        );
    }
    let history: Value = context.client()?.get(&host(&id, "/history?limit=10")).await?;
    for entry in output::items(&history, "entries") {
        paragraph(&entry_text(entry))?;
    }
    output::note(&format!(
        "svc: attached to {} ({id}); Ctrl-C ends its turn, Ctrl-D detaches",
        output::visible(&output::cell(&view, "session_key"))
    ));
    let after = history["offset"].as_u64().unwrap_or(0);
    let mut follower = follower(context, &view, after)?;
    let mut printer = Printer::from_agent(&view);
    printer.open_requests(context, &id).await;
    let mut lines = typed_lines();
    let mut sent: u64 = 0;
    loop {
        tokio::select! {
            item = follower.next() => {
                let Some(item) = item? else { return Ok(ExitCode::SUCCESS) };
                let Some(event) = printer.event_of(&item)? else { continue };
                printer.show(&event)?;
                if let Some(end) = end_of(&event["data"]) {
                    return Ok(end);
                }
            }
            line = lines.next_line() => {
                let Ok(Some(line)) = line else {
                    output::note("svc: detached; the agent keeps running");
                    return Ok(ExitCode::SUCCESS);
                };
                if line.trim().is_empty() {
                    continue;
                }
                if let Some(question) = printer.confirmation_question(&line) {
                    output::note(&format!("svc: {question}"));
                    continue;
                }
                sent += 1;
                let (path, body) = printer.request_for_line(&id, &line, sent);
                note_failure(post(context, &path, &body).await);
            }
            _ = tokio::signal::ctrl_c() => {
                note_failure(post(context, &host(&id, "/interrupt"), &json!({})).await);
            }
        }
    }
}

pub(super) fn note_failure<T>(done: Result<T, impl std::fmt::Display>) {
    if let Err(error) = done {
        output::note(&format!("svc: {}", output::visible(&error.to_string())));
    }
}

/// Sends a request, with retries while the daemon restarts.
async fn post(context: &Context, path: &str, body: &Value) -> Result<Value, ClientError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (reply, may_pass) = match context.client() {
            Ok(client) => {
                let reply = client.post(path, body).await;
                let is_away = matches!(
                    reply,
                    Err(ClientError::NotRunning { .. } | ClientError::Connection { .. })
                );
                (reply, is_away)
            }
            Err(error) => (Err(ClientError::Foreign(telemetry::chain(&*error))), true),
        };
        if !may_pass || attempt == ATTEMPTS {
            return reply;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn follower(context: &Context, view: &Value, after: u64) -> Result<Follower> {
    let stream = format!("agent/{}", output::cell(view, "id"));
    let path = with_query("/v1/events", &[("stream", Some(stream.as_str()))]);
    Ok(Follower::new(context.discovery()?, path).after(after).patient())
}

pub(super) fn paragraph(text: &str) -> Result<()> {
    output::block(&format!("{}\n", text.strip_suffix('\n').unwrap_or(text)))
}

/// Lines of standard input.
pub(super) fn typed_lines() -> Lines<BufReader<Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

/// Prints the events of an agent, and keeps its last open request.
pub(super) struct Printer {
    /// The backend is a program whose every line of output is an event.
    is_exec: bool,
    asked: Option<Value>,
    /// Number of a permanent option that was typed once and needs a confirmation.
    typed: Option<String>,
    /// The entry whose beginning was printed.
    said: Option<PrintedEntry>,
}

struct PrintedEntry {
    of: String,
    printed: usize,
    /// Whether the last output was this entry, without a line feed.
    is_open: bool,
    /// The next delta repeats the entry from its beginning.
    is_told_again: bool,
}

impl Printer {
    pub(super) fn from_agent(view: &Value) -> Self {
        Self { is_exec: view["backend"] == "exec", asked: None, typed: None, said: None }
    }

    async fn open_requests(&mut self, context: &Context, id: &str) {
        let Ok(client) = context.client() else { return };
        let Ok(page) = client.get::<Value>("/v1/requests?open=true").await else { return };
        for request in output::items(&page, "requests") {
            if request["agent_id"] == id {
                // Items of the list have no type.
                let mut request = request.clone();
                request["type"] = "request".into();
                self.remember(&request);
                self.show_request();
            }
        }
    }

    fn show(&mut self, item: &Value) -> Result<()> {
        if item["kind"] == "delta" { self.speak(&item["data"]) } else { self.print(&item["data"]) }
    }

    /// The event of an item; notes gaps and reconnections.
    fn event_of(&mut self, item: &FollowItem) -> Result<Option<Value>> {
        if let FollowItem::Event { data, .. } = item {
            return Ok(Some(serde_json::from_str(data)?));
        }
        note(item);
        // A stream that resumes repeats an unfinished entry from its beginning.
        if let (FollowItem::Resumed, Some(said)) = (item, &mut self.said) {
            said.is_told_again = true;
        }
        Ok(None)
    }

    pub(super) fn speak(&mut self, delta: &Value) -> Result<()> {
        // Each line of an `exec` program is an event; there are no deltas to join.
        if self.is_exec {
            return Ok(());
        }
        let (of, text) = (output::cell(delta, "of"), delta["text"].as_str().unwrap_or_default());
        match &mut self.said {
            Some(said) if said.of == of => {
                let known = if said.is_told_again { said.printed } else { 0 };
                let news = text.get(known..).unwrap_or_default();
                said.is_told_again = false;
                said.printed += news.len();
                said.is_open = true;
                output::block(news)
            }
            _ => {
                self.end_open_line()?;
                let printed = text.len();
                self.said = Some(PrintedEntry { of, printed, is_open: true, is_told_again: false });
                output::block(&format!("{}: {text}", output::cell(delta, "role")))
            }
        }
    }

    fn end_open_line(&mut self) -> Result<()> {
        let is_open = self.said.as_mut().is_some_and(|said| std::mem::take(&mut said.is_open));
        if is_open { output::block("\n") } else { Ok(()) }
    }

    /// Prints an entry without the text that deltas have printed already.
    fn print_entry(&mut self, entry: &Value) -> Result<()> {
        let content = entry["content"].as_str().filter(|_| entry["role"] == "assistant");
        if let (Some(content), Some(said)) = (content, &self.said) {
            let (rest, is_open) = (content.get(said.printed..), said.is_open);
            if let Some(rest) = rest {
                self.said = None;
                return if rest.is_empty() && !is_open { Ok(()) } else { paragraph(rest) };
            }
        }
        self.end_open_line()?;
        if content.is_some() {
            self.said = None;
        }
        paragraph(&entry_text(entry))
    }

    pub(super) fn print(&mut self, event: &Value) -> Result<()> {
        let kind = event["type"].as_str().unwrap_or_default();
        if matches!(kind, "stderr" | "request" | "answer" | "error" | "exit") {
            self.end_open_line()?;
        }
        match kind {
            // The line of `turn_end` is no word of the agent.
            "output" if self.is_exec && event["ends_turn"] != true => {
                paragraph(event["data"].as_str().unwrap_or_default())?;
            }
            "stderr" => output::notes(event["data"].as_str().unwrap_or_default()),
            "chat_entry" if !self.is_exec => self.print_entry(&event["chat_entry"])?,
            "request" => {
                self.remember(event);
                self.show_request();
            }
            "answer" => {
                output::notes(&self.answered(event));
                self.remember(event);
            }
            "error" => output::notes(&format!("svc: {}\n", output::cell(event, "error"))),
            "exit" => {
                let state = output::visible(&output::cell(event, "final_state"));
                output::note(&format!("svc: the agent ended: {state}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&self, event: &Value) -> String {
        let option = output::cell(event, "option_id");
        let offered = self.options().iter().find(|it| it["option_id"] == *option);
        let name = offered.map(|it| output::cell(it, "name"));
        let said = name.as_deref().unwrap_or(if option.is_empty() { "no option" } else { &option });
        match output::cell(event, "by").as_str() {
            "interrupt" => "svc: the request was withdrawn, as the turn was interrupted\n".into(),
            by => format!("svc: answered by {by}: {said}\n"),
        }
    }

    /// Updates the open request from an event that is not printed.
    pub(super) fn remember(&mut self, event: &Value) {
        match event["type"].as_str() {
            Some("request") => (self.asked, self.typed) = (Some(event.clone()), None),
            Some("answer" | "exit") => self.asked = None,
            _ => {}
        }
    }

    pub(super) fn show_request(&self) {
        let Some(asked) = &self.asked else { return };
        let mut text = format!("svc: it asks: {}\n", output::cell(asked, "title"));
        for (number, option) in self.options().iter().enumerate() {
            let name = output::cell(option, "name");
            text.extend(["  ", &(number + 1).to_string(), ": ", &name, "\n"]);
        }
        output::notes(&text);
    }

    pub(super) const fn has_request(&self) -> bool {
        self.asked.is_some()
    }

    fn options(&self) -> &[Value] {
        self.asked.as_ref().map_or(&[], |asked| output::items(asked, "options"))
    }

    /// The option that a line names by its number.
    pub(super) fn chosen(&self, line: &str) -> Option<&Value> {
        let number: usize = line.trim().parse().ok()?;
        self.options().get(number.checked_sub(1)?)
    }

    /// The question that confirms a permanent option, when a line chooses it for the first time.
    fn confirmation_question(&mut self, line: &str) -> Option<String> {
        let earlier = self.typed.take();
        let option = self.chosen(line)?;
        let number = line.trim();
        if !is_permanent(&output::cell(option, "kind")) || earlier.as_deref() == Some(number) {
            return None;
        }
        let question = confirmation(&output::cell(option, "name"), number);
        self.typed = Some(number.to_owned());
        Some(question)
    }

    /// The path and body for a typed line: a number answers the open request, everything else is
    /// input.
    fn request_for_line(&self, id: &str, line: &str, sent: u64) -> (String, Value) {
        if let (Some(request), Some(option)) = (&self.asked, self.chosen(line)) {
            let body =
                json!({ "request_id": request["request_id"], "option_id": option["option_id"] });
            return (host(id, "/answer"), body);
        }
        let key = format!("attach-{}-{sent}", std::process::id());
        (host(id, "/send"), json!({ "input": line, "idempotency_key": key }))
    }
}

/// Whether an option of this kind ends further questions.
pub(super) fn is_permanent(kind: &str) -> bool {
    kind == "allow_always"
}

pub(super) fn confirmation(name: &str, number: impl std::fmt::Display) -> String {
    format!("{name}: this holds from now on; {number} again answers")
}

pub(super) fn end_of(event: &Value) -> Option<ExitCode> {
    (event["type"] == "exit")
        .then(|| if event["final_state"] == "done" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn entry_text(entry: &Value) -> String {
    let cell = |key| entry.get(key).and_then(Value::as_str);
    let role = cell("role").unwrap_or("?");
    let result = cell("tool_result").unwrap_or_default();
    let text = match (cell("content"), cell("tool_name")) {
        (Some(content), _) => content.to_owned(),
        (None, Some(tool)) if entry.get("tool_result").is_some() => format!("{tool} -> {result}"),
        (None, Some(tool)) => format!("{tool} {}", cell("tool_summary").unwrap_or_default()),
        (None, None) => result.to_owned(),
    };
    format!("{role}: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permanent_option_needs_a_confirmation() {
        let request = json!({ "type": "request", "request_id": "r", "options": [
            { "option_id": "once", "name": "Name of once", "kind": "allow_once" },
            { "option_id": "ever", "name": "Name of ever", "kind": "allow_always" },
        ] });
        let mut printer = Printer::from_agent(&json!({}));
        printer.remember(&request);
        let question = Some("Name of ever: this holds from now on; 2 again answers".to_owned());
        for (line, expected) in [
            ("1", None),
            ("2", question.clone()),
            // A line in between discards the first choice.
            ("3", None),
            ("2", question),
            (" 2 ", None),
        ] {
            assert_eq!(printer.confirmation_question(line), expected, "{line}");
        }
    }
}
