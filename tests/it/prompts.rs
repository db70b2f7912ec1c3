//! Prompts that a client shows the person who started it, answered from elsewhere.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::{Daemon, eventually, svc, until};
use crate::expect::{page, problem, seconds_of, text};
use crate::identity::{FakeClient, PendingHook, event, prompt, start};
use crate::registry::RegistryFile;

const SOON: Duration = Duration::from_secs(30);

/// Claude Code in a turn, with a registry of its sessions as it writes one.
struct AskingClient {
    client: FakeClient,
    registry: RegistryFile,
}

impl AskingClient {
    /// `None` where the system does not show when a process started.
    fn start(d: &Daemon, kind: &str) -> Option<Self> {
        let mut client = FakeClient::start(&d.home, "claude", "web", "");
        let registry = RegistryFile::of_client(&d.home, &client, "s")?;
        client.hook(&start("s"));
        client.hook(&prompt("s"));
        let mut asking = Self { client, registry };
        asking.record(kind, "busy", None);
        Some(asking)
    }

    /// In a dialog, with the hook beside it and its request.
    fn asked(d: &Daemon) -> Option<(Self, PendingHook, Value)> {
        let mut asking = Self::start(d, "interactive")?;
        let hook = asking.ask("interactive");
        Some((asking, hook, held(d)))
    }

    /// Writes the state of the session.
    fn record(&mut self, kind: &str, state: &str, asks: Option<&str>) {
        self.registry.entry["kind"] = json!(kind);
        self.registry.write(state, asks);
    }

    /// Shows a dialog, and calls the hook beside it.
    fn ask(&mut self, kind: &str) -> PendingHook {
        self.record(kind, "waiting", Some("permission prompt"));
        self.client.begin_hook(&event("s", "PermissionRequest", &bash()))
    }
}

fn bash() -> Value {
    json!({
        "tool_name": "Bash", "tool_input": { "command": "touch made", "description": "x" },
        "permission_suggestions": [{
            "type": "addRules", "rules": [{ "toolName": "Bash", "ruleContent": "touch:*" }],
            "behavior": "allow", "destination": "localSettings",
        }],
    })
}

/// The open request of the session.
fn open(d: &Daemon) -> Option<Value> {
    page(&d.get("/v1/requests?open=true"), "requests").first().cloned()
}

/// The request, once it has options.
#[track_caller]
fn held(d: &Daemon) -> Value {
    until(SOON, || open(d).filter(|request| request["options"][0].is_object()))
}

fn answer_path(request: &Value) -> String {
    format!("/v1/requests/{}/answer", request["request_id"].as_str().expect("an id"))
}

/// How the latest request ended.
fn answered(d: &Daemon) -> Option<Value> {
    let requests = page(&d.get("/v1/requests"), "requests");
    requests.first()?.get("answer").cloned()
}

#[test]
fn a_prompt_of_claude_code_is_answered_beside_its_dialog() {
    let d = Daemon::start();
    let Some((_asking, hook, request)) = AskingClient::asked(&d) else { return };
    assert_eq!(
        (&request["session_key"], &request["agent_id"]),
        (&json!("agent:claude:s"), &Value::Null)
    );
    assert_eq!(request["tool"], json!({ "name": "Bash", "input": bash()["tool_input"] }));
    let options: Vec<_> =
        request["options"].as_array().expect("options").iter().map(|it| &it["option_id"]).collect();
    assert_eq!(options, ["allow", "always_1", "deny"]);
    let shown = svc(&d.home, &["inbox"]);
    assert!(shown.ok().contains("touch made") && shown.ok().contains("svc answer"), "{shown:?}");
    let reply = svc(&d.home, &["reply", "latest", "allow"]);
    assert!(reply.stderr.contains("`svc answer`"), "the one that takes a session: {reply:?}");
    assert!(!hook.is_over(), "it holds the prompt");

    // What holds from now on is asked once more.
    let path = answer_path(&request);
    let refused = d.post(&path, &json!({ "option_id": "always_1" }));
    assert_eq!(refused.status(), 409);
    let why = refused.json();
    assert_eq!((&why["code"], &why["reason"]), (&json!("conflict"), &json!("confirm")), "{why}");
    assert!(text(&why, "detail").contains("touch:*"), "{why}");
    assert_eq!(d.post(&path, &json!({ "option_id": "x" })).status(), 422);
    assert_eq!(d.post(&path, &json!({ "option_id": "allow", "text": "why" })).status(), 422);

    let undecided = svc(&d.home, &["answer", "latest"]);
    assert_eq!(undecided.code, Some(2), "{undecided:?}");
    assert!(undecided.stderr.contains("`svc inbox` shows the options"), "{undecided:?}");
    let unconfirmed = svc(&d.home, &["answer", "always_1"]);
    assert!(unconfirmed.stderr.contains("--confirm"), "{unconfirmed:?}");
    let peers = page(&d.get("/v1/peers"), "peers");
    let asker = peers.iter().find(|peer| peer["session_id"] == "s").expect("its peer");
    let taken = svc(&d.home, &["answer", "allow"]);
    let words = format!("answered {}, ", text(asker, "display_name"));
    assert!(
        taken.ok().starts_with(&words) && taken.ok().ends_with("touch made: allow\n"),
        "{taken:?}"
    );
    assert_eq!(answered(&d), Some(json!({ "option_id": "allow", "by": "operator" })));
    let printed: Value = serde_json::from_str(&hook.output()).expect("JSON");
    assert_eq!(printed["hookSpecificOutput"]["decision"], json!({ "behavior": "allow" }));
    assert_eq!(open(&d), None);
    assert_eq!(d.post(&path, &json!({ "option_id": "deny" })).status(), 409);
}

#[test]
fn a_denial_counts_when_the_client_shows_that_it_took_it() {
    let d = Daemon::start();
    let Some((mut asking, hook, request)) = AskingClient::asked(&d) else { return };
    let denial = json!({ "option_id": "deny", "text": "use make" });
    let sent = d.post(&answer_path(&request), &denial).ok(202);
    assert_eq!(sent["state"], "sent");
    let printed: Value = serde_json::from_str(&hook.output()).expect("JSON");
    let decision = &printed["hookSpecificOutput"]["decision"];
    assert_eq!(*decision, json!({ "behavior": "deny", "message": "use make" }));
    assert_eq!(open(&d).expect("it is open")["answering"]["option_id"], "deny");
    asking.client.hook(&event("s", "Stop", &json!({ "last_assistant_message": "so" })));
    let answer = until(SOON, || answered(&d));
    assert_eq!(answer, json!({ "option_id": "deny", "text": "use make", "by": "operator" }));
}

/// The turn goes on, and the record still shows the dialog.
#[test]
fn a_denial_counts_at_the_end_of_the_batch_of_its_call() {
    let d = Daemon::start();
    let Some((mut asking, hook, request)) = AskingClient::asked(&d) else { return };
    d.post(&answer_path(&request), &json!({ "option_id": "deny" })).ok(202);
    assert!(hook.output().contains("deny"));
    let batch = event("s", "PostToolBatch", &json!({ "tool_calls": [] }));
    asking.client.hook(&batch);
    let answer = until(SOON, || answered(&d));
    assert_eq!(answer, json!({ "option_id": "deny", "by": "operator" }));
    // A prompt that nobody answered here may be a sub-agent's.
    let hook = asking.ask("interactive");
    held(&d);
    asking.client.hook(&batch);
    assert!(open(&d).is_some() && !hook.is_over());
}

#[test]
fn an_empty_answer_is_refused_and_its_question_named() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    asking.record("interactive", "waiting", Some("permission prompt"));
    let question = json!({ "question": "Size?", "options": [{ "label": "S" }, { "label": "M" }] });
    let asked =
        json!({ "tool_name": "AskUserQuestion", "tool_input": { "questions": [question] } });
    let hook = asking.client.begin_hook(&event("s", "PermissionRequest", &asked));
    let path = answer_path(&held(&d));
    let refused = d.post(&path, &json!({ "answers": { "Size?": [] } }));
    assert_eq!(refused.status(), 422, "{refused:?}");
    let why = text(&refused.json(), "detail");
    assert!(why.contains("answers") && why.contains("Size?"), "{why}");
    for blank in ["", " \t\n"] {
        let refused = problem(&d.post(&path, &json!({ "text": blank })), 422, "invalid_request");
        assert_eq!(refused["field"], "text", "{refused}");
    }
    assert!(!hook.is_over(), "the prompt is still open");
    d.post(&path, &json!({ "answers": { "Size?": ["S"] } }));
    let printed: Value = serde_json::from_str(&hook.output()).expect("JSON");
    let decision = &printed["hookSpecificOutput"]["decision"];
    assert_eq!(decision["updatedInput"]["answers"], json!({ "Size?": ["S"] }), "{printed}");
}

#[test]
fn what_the_person_answers_first_counts_and_ends_the_hook() {
    let d = Daemon::start();
    let Some((mut asking, hook, _)) = AskingClient::asked(&d) else { return };
    asking.record("interactive", "busy", None);
    let answer = until(SOON, || answered(&d));
    assert_eq!(answer, json!({ "by": "terminal" }));
    assert_eq!(hook.output(), "");
    // The call that ran shows the same, where the record is silent.
    let hook = asking.ask("interactive");
    held(&d);
    let mut ran = bash();
    ran["tool_use_id"] = json!("toolu_1");
    asking.client.hook(&event("s", "PostToolUse", &ran));
    eventually(SOON, || open(&d).is_none());
    assert_eq!(hook.output(), "");
}

/// The person's Yes at the terminal was first, and the client never took the denial.
#[test]
fn a_denial_that_was_not_taken_is_corrected() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    let mut call = bash();
    call["tool_use_id"] = json!("toolu_1");
    asking.client.hook(&event("s", "PreToolUse", &call));
    let hook = asking.ask("interactive");
    let request = held(&d);
    d.post(&answer_path(&request), &json!({ "option_id": "deny" })).ok(202);
    assert!(hook.output().contains("deny"));
    // The record shows no dialog any more, so that the denial counts as taken.
    asking.record("interactive", "busy", None);
    assert_eq!(until(SOON, || answered(&d)), json!({ "option_id": "deny", "by": "operator" }));
    asking.client.hook(&event("s", "PostToolUse", &call));
    assert_eq!(answered(&d), Some(json!({ "by": "terminal" })));
    let told = page(&d.get("/v1/events?stream=team&kind=request.closed&limit=500"), "events");
    let told: Vec<_> = told.iter().map(|it| (&it["data"]["by"], &it["data"]["corrects"])).collect();
    let (by_us, terminal) = (json!("operator"), json!("terminal"));
    assert_eq!(told, [(&by_us, &Value::Null), (&terminal, &json!(true))]);
    // Once, whatever else the turn does.
    asking.client.hook(&event("s", "PostToolUse", &call));
    let told = page(&d.get("/v1/events?stream=team&kind=request.closed&limit=500"), "events");
    assert_eq!(told.len(), 2, "{told:?}");
}

/// The client tells of the end of the first when the second stands already.
#[test]
fn a_dialog_that_follows_another_is_shown_though_the_first_closes_late() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    let mut call = bash();
    call["tool_use_id"] = json!("toolu_1");
    asking.client.hook(&event("s", "PreToolUse", &call));
    let _hook = asking.ask("interactive");
    let first = held(&d);
    let since = seconds_of(&first["opened_at"]) + 3;
    asking.registry.write_since(since * 1000, "waiting", Some("input needed"));
    eventually(SOON, || seconds_of(&d.get("/v1/peers").ok(200)["as_of"]) > since);
    asking.client.hook(&event("s", "PostToolUse", &call));
    let second = until(SOON, || open(&d));
    assert_eq!((&second["title"], &second["options"]), (&json!("input needed"), &json!([])));
}

/// One line of a title does not show that a command has several.
#[test]
fn the_inbox_shows_the_whole_call_and_what_the_options_mean() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    asking.record("interactive", "waiting", Some("permission prompt"));
    let mut call = bash();
    call["tool_input"]["command"] = json!("echo checking:\nrm -rf made");
    let _hook = asking.client.begin_hook(&event("s", "PermissionRequest", &call));
    held(&d);
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    for shown in
        ["\n  Bash\n", "\n    command: echo checking:\n      rm -rf made\n", "\n    deny: "]
    {
        assert!(inbox.contains(shown), "{shown:?}: {inbox}");
    }
}

#[test]
fn the_inbox_says_of_a_question_that_it_is_one() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    asking.record("interactive", "waiting", Some("input needed"));
    let question = json!({
        "question": "Which colour?", "header": "Colour", "multiSelect": false,
        "options": [{ "label": "Blue" }, { "label": "Red" }],
    });
    let call = json!({ "tool_name": "AskUserQuestion", "tool_input": { "questions": [question] } });
    let _hook = asking.client.begin_hook(&event("s", "PermissionRequest", &call));
    held(&d);
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    assert!(inbox.contains(" asks a question: Which colour?"), "{inbox}");
}

/// A client that no person looks at waits for its hook with the dialog, or shows none.
#[test]
fn a_prompt_without_a_dialog_beside_it_is_shown_and_not_held() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "print") else { return };
    assert_eq!(asking.ask("print").output(), "");
    let request = until(SOON, || open(&d));
    assert_eq!(request["options"], json!([]));
    assert_eq!(d.post(&answer_path(&request), &json!({ "option_id": "allow" })).status(), 409);
    // Since 2.1.329 the record of `claude -p` is told from that of a terminal by its entrypoint.
    asking.registry.entry["entrypoint"] = json!("sdk-cli");
    assert_eq!(asking.ask("interactive").output(), "");
    asking.registry.entry["entrypoint"] = json!("cli");
    // A sub-agent's dialog comes after its hook.
    let mut of_sub_agent = bash();
    of_sub_agent["agent_id"] = json!("a-1");
    asking.record("interactive", "waiting", Some("permission prompt"));
    let hook = asking.client.begin_hook(&event("s", "PermissionRequest", &of_sub_agent));
    assert_eq!(hook.output(), "");
}

/// Whatever token it shows.
#[test]
fn a_command_of_the_client_does_not_answer_its_prompts() {
    let d = Daemon::start();
    let Some((mut asking, hook, request)) = AskingClient::asked(&d) else { return };
    let (url, path) = (d.url(), answer_path(&request));
    let token = d.home.token().expect("a token");
    let body = json!({ "option_id": "allow" });
    let told = asking.client.run(&format!(
        "curl -s -X POST -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' -d '{body}' '{url}{path}'"
    ));
    assert!(told.contains("forbidden"), "{told}");
    let told = asking.client.run("\"$SVC\" answer allow");
    assert!(!told.contains("answered"), "{told}");
    // Nor by the tool, over MCP, and not with many processes in between.
    let id = request["request_id"].as_str().expect("an id");
    let by_tool = format!(
        "\"$SVC\" tools call RequestAnswer --arg request_id={id} --arg option_id=allow 2>&1"
    );
    for command in [
        by_tool.clone(),
        format!("f() {{ if [ $1 -gt 0 ]; then ( f $(($1 - 1)); true ); else {by_tool}; fi; }}; f 40"),
        "f() { if [ $1 -gt 0 ]; then ( f $(($1 - 1)); true ); else \"$SVC\" answer allow 2>&1; fi; }; f 40"
            .to_owned(),
    ] {
        let told = asking.client.run(&command);
        assert!(told.contains("does not answer its prompts"), "{command}: {told}");
    }
    assert!(!hook.is_over() && open(&d).is_some());
}

/// Nor does a command that svc runs for a session, with the tool `Bash` of its own.
#[test]
fn a_command_that_svc_runs_does_not_answer_prompts() {
    let d = with_config("[sources.core]\nenabled = true\n");
    let Some((_asking, hook, _)) = AskingClient::asked(&d) else { return };
    let runner = d.mint("runner", d.home.user(), &["exec"]);
    let svc = d.home.command(&[]);
    let (program, home) = (svc.get_program().to_string_lossy(), d.home.path(""));
    let command = format!("SVC_HOME='{}' '{program}' answer allow 2>&1; true", home.display());
    let told = runner.tool("Bash", &json!({ "command": command })).to_string();
    assert!(told.contains("a command that svc runs for a session does not answer"), "{told}");
    assert!(!hook.is_over() && open(&d).is_some());
}

#[test]
fn another_session_neither_sees_nor_holds_nor_answers_a_prompt() {
    let d = Daemon::start();
    let Some((_asking, hook, request)) = AskingClient::asked(&d) else { return };
    let id = request["request_id"].as_str().expect("an id");
    let stranger = d.mint("stranger", "/elsewhere", &["agents"]);
    assert_eq!(page(&stranger.get("/v1/requests"), "requests"), Vec::<Value>::new());
    for path in [format!("/v1/prompts/{id}/hold"), format!("/v1/prompts/{id}/printed")] {
        assert_eq!(stranger.post(&path, &json!({})).status(), 404, "{path}");
    }
    let answer = json!({ "option_id": "allow" });
    assert_eq!(stranger.post(&answer_path(&request), &answer).status(), 404);
    assert!(!hook.is_over() && open(&d).is_some());
}

#[test]
fn a_daemon_that_is_killed_leaves_the_prompt_to_the_terminal() {
    let mut d = Daemon::start();
    let Some((_asking, hook, _)) = AskingClient::asked(&d) else { return };
    d.kill9();
    assert_eq!(hook.output(), "");
    d.restart();
    let request = until(SOON, || open(&d));
    assert_eq!(request["options"], json!([]));
}

#[test]
fn prompts_are_watched_or_left_alone_as_configured() {
    for (word, rows) in [("watch", 1), ("off", 0)] {
        let d = with_config(&format!("[approvals]\nattended = \"{word}\"\n"));
        let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
        assert_eq!(asking.ask("interactive").output(), "");
        let requests = page(&d.get("/v1/requests?open=true"), "requests");
        assert_eq!(requests.len(), rows, "{word}");
        assert!(requests.iter().all(|request| request["options"] == json!([])));
    }
}

/// Of some dialogs no hook tells, and of some it tells late.
/// The end of the first dialog is read up to a second after the client has shown the second.
#[test]
fn a_dialog_right_after_another_is_shown() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    asking.record("interactive", "waiting", Some("input needed"));
    let first = until(SOON, || open(&d));
    let opened = d.home.value("select opened_at from request").as_i64().expect("a time");
    asking.registry.write_since(opened + 1, "busy", None);
    until(SOON, || answered(&d));
    asking.registry.write_since(opened + 2, "waiting", Some("permission prompt"));
    let second = until(SOON, || open(&d));
    assert_ne!(first["request_id"], second["request_id"]);
}

#[test]
fn a_dialog_without_a_hook_is_shown_and_the_hook_fills_it() {
    let d = Daemon::start();
    let Some(mut asking) = AskingClient::start(&d, "interactive") else { return };
    asking.record("interactive", "waiting", Some("input needed"));
    let request = until(SOON, || open(&d));
    assert_eq!(
        (&request["kind"], &request["title"], &request["options"], &request["session_key"]),
        (&json!("question"), &json!("input needed"), &json!([]), &json!("agent:claude:s")),
        "{request}"
    );
    assert_eq!(d.post(&answer_path(&request), &json!({ "text": "yes" })).status(), 409);
    let shown = svc(&d.home, &["inbox"]);
    assert!(shown.ok().contains("waits for an answer, at its terminal"), "{shown:?}");
    asking.record("interactive", "busy", None);
    assert_eq!(until(SOON, || answered(&d)), json!({ "by": "terminal" }));

    asking.record("interactive", "waiting", Some("permission prompt"));
    let shown = until(SOON, || open(&d));
    assert_eq!(shown["title"], "permission prompt");
    let hook = asking.client.begin_hook(&event("s", "PermissionRequest", &bash()));
    let request = held(&d);
    assert_eq!(request["request_id"], shown["request_id"], "it is the same prompt");
    assert_eq!(request["tool"], json!({ "name": "Bash", "input": bash()["tool_input"] }));
    d.post(&answer_path(&request), &json!({ "option_id": "allow" })).ok(200);
    assert!(hook.output().contains("allow"));
    let told = page(&d.get("/v1/events?stream=team&limit=500"), "events");
    let told = |kind: &str| told.iter().filter(|event| event["kind"] == kind).count();
    assert_eq!(
        (told("request.opened"), told("request.described"), told("request.closed")),
        (2, 1, 2)
    );
}
