//! Trust between agents: what a session with the scope `agents` may set and control, who answers an
//! agent's requests, and that an agent is identified by its process and holds no secret.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent_requests::{CONFIG as REQUESTS, asked, send, start};
use crate::agents::{agent, ask_host, ended, over, with_config};
use crate::daemon::{Daemon, Home, Running, eventually, svc, svc_with_input, until};
use crate::expect::{events, problem, text};
use crate::hosted::{self, Obedient};
use crate::wire::Caller;

const BOUND: Duration = Duration::from_secs(20);

/// A daemon whose user has the folders `own`, `other` and `lib`, the first two of them projects,
/// and a link from the first into the second.
fn folders() -> Daemon {
    let home = Home::new();
    let user = home.user().to_owned();
    for name in ["own/.git", "own/sub", "other/.git", "lib/sub"] {
        fs::create_dir_all(user.join(name)).expect("a folder");
    }
    symlink(user.join("other"), user.join("own/link")).expect("a link");
    symlink(user.join("own/sub"), user.join("lib/into")).expect("a link");
    symlink("/no/such/folder", user.join("own/dangling")).expect("a link");
    let config = format!(
        r#"
[agents.cat]
backend = "exec"
command = ["cat"]
[agents.open]
backend = "exec"
command = ["sh", "-c", "echo it has $REVIEW $0 $*; pwd; exec cat"]
allow_env = ["REVIEW"]
allow_args = ["--model=*", "word"]
allow_cwd = ["{}"]
[agents.single]
backend = "exec"
command = ["cat"]
max_concurrent = 1
[agents.bad]
backend = "exec"
command = ["cat"]
allow_env = ["REVIEW", "LD_PRELOAD"]
{REQUESTS}"#,
        user.join("lib").display()
    );
    home.write("config.toml", &config);
    Daemon::with(|plan| plan.home(&home))
}

/// A session of the project `own`.
fn own(d: &Daemon, session: &str, scopes: &[&str]) -> Caller {
    d.mint(session, &d.home.user().join("own"), scopes)
}

fn hosts(d: &Caller) -> u64 {
    d.get("/v1/hosts").ok(200)["count"].as_u64().expect("a count")
}

fn refusal(d: &Caller, name: &str, arguments: &Value) -> String {
    let answer = d.tool(name, arguments);
    text(&answer["structuredContent"]["error"], "type")
}

#[test]
fn requests_cannot_set_options_that_run_code() {
    let d = folders();
    let script = d.home.user().join("own/payload");
    let ran = d.home.user().join("own/ran");
    fs::write(&script, format!("touch '{}'\n", ran.display())).expect("a file");
    let session = own(&d, "s", &["agents"]);
    let payload = script.display().to_string();
    for (name, value) in [
        ("BASH_FUNC_read%%", format!("() {{ touch '{}'; }}", ran.display())),
        ("BASH_ENV", payload.clone()),
        ("ENV", payload.clone()),
        ("LD_PRELOAD", payload.clone()),
        ("DYLD_INSERT_LIBRARIES", payload.clone()),
        ("NODE_OPTIONS", format!("--require={payload}")),
        ("PATH", d.home.user().join("own").display().to_string()),
        ("HOME", d.home.user().join("own").display().to_string()),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:1".to_owned()),
    ] {
        for caller in [&session, &*d] {
            for instance in ["cat", "open"] {
                let body = json!({ "instance": instance, "cwd": d.home.user().join("own"), "env": { name: value } });
                let refused = problem(&caller.post("/v1/hosts", &body), 422, "invalid_request");
                assert_eq!(refused["field"], format!("env.{name}"), "{refused}");
            }
        }
    }
    assert_eq!(hosts(&d), 0);
    assert!(!ran.exists());
    // An entry that would let it through is invalid.
    let all = d.get("/v1/agents").ok(200);
    let bad = all["agents"].as_array().expect("agents").iter().find(|it| it["instance"] == "bad");
    let bad = bad.expect("it is listed");
    assert_eq!(bad["status"], "misconfigured", "{bad}");
    let reason = text(bad, "reason");
    assert!(reason.contains("allow_env") && reason.contains("LD_PRELOAD"), "{reason}");
    let checked = svc(&d.home, &["config", "check"]);
    assert!(checked.stderr.contains("agents.bad.allow_env"), "{checked:?}");
}

#[test]
fn session_sets_only_allowed_options_within_its_project() {
    let d = folders();
    let session = own(&d, "s", &["agents"]);
    let at = |name: &str| d.home.user().join(name).display().to_string();
    let folder = at("own");
    for (body, named) in [
        (json!({ "env": { "REVIEW": "1" } }), "REVIEW"),
        (json!({ "env": { "SVC_TOKEN": "1" } }), "SVC_TOKEN"),
        (json!({ "args": ["-c"] }), "-c"),
        (json!({ "args": ["word"] }), "word"),
        (json!({ "cwd": at("other") }), "other"),
        (json!({ "cwd": at("lib") }), "lib"),
        (json!({ "cwd": at("own/link") }), "other"),
        (json!({ "cwd": at("own/sub/../../other") }), "other"),
        (json!({ "cwd": at("own/dangling") }), "dangling"),
        (json!({ "cwd": at("own/none/../../other/none") }), "none"),
        (json!({ "cwd": at("other/none") }), "none"),
        (json!({ "cwd": "/" }), "/"),
        (json!({ "default_cwd": at("other") }), "other"),
    ] {
        let mut body = body;
        body["instance"] = json!("cat");
        if body["cwd"].is_null() && body["default_cwd"].is_null() {
            body["cwd"] = json!(folder);
        }
        let refused = problem(&session.post("/v1/hosts", &body), 403, "forbidden");
        assert!(text(&refused, "detail").contains(named), "{body}: {refused}");
    }
    for (args, cwd) in [(json!(["--model=a", "-c"]), at("lib")), (json!([]), at("other"))] {
        let body = json!({ "instance": "open", "args": args, "cwd": cwd });
        problem(&session.post("/v1/hosts", &body), 403, "forbidden");
    }
    // The other ways to start one have the same rule.
    for cwd in [at("other"), at("own/link"), at("lib")] {
        let opts = json!({ "cwd": cwd, "async": true });
        let body = json!({ "instance": "cat", "prompt": "x", "opts": opts });
        problem(&session.post("/v1/send_message", &body), 403, "forbidden");
        let opts = json!({ "default_cwd": cwd, "async": true });
        let body = json!({ "instance": "cat", "prompt": "x", "opts": opts });
        problem(&session.post("/v1/send_message", &body), 403, "forbidden");
        let input = json!({ "agent": "cat", "prompt": "x", "cwd": cwd });
        assert_eq!(refusal(&session, "SendMessage", &input), "forbidden");
        let input = json!({ "agentId": "cat", "task": "x", "cwd": cwd });
        assert_eq!(refusal(&session, "sessions_spawn", &input), "forbidden");
    }
    assert_eq!(hosts(&d), 0);

    let real = |name: &str| {
        d.home.user().join(name).canonicalize().expect("it is there").display().to_string()
    };
    let started = [
        (json!({ "instance": "cat", "name": "a" }), real("own")),
        (json!({ "instance": "cat", "name": "b", "cwd": at("own/sub") }), real("own/sub")),
        (json!({ "instance": "cat", "name": "c", "cwd": at("lib/into") }), real("own/sub")),
        (
            json!({ "instance": "open", "cwd": at("lib/sub"), "env": { "REVIEW": "7" }, "args": ["word", "--model=x"] }),
            real("lib/sub"),
        ),
    ];
    for (body, folder) in started {
        let view = session.post("/v1/hosts", &body).ok(201);
        assert_eq!(
            (&view["worktree"], &view["project"]),
            (&json!(folder), &json!(real("own"))),
            "{view}"
        );
    }
    eventually(BOUND, || {
        let said = d.get("/v1/hosts/agent:open:main/history").ok(200).to_string();
        said.contains("it has 7 word --model=x") && said.contains(&real("lib/sub"))
    });
}

#[test]
fn folder_moved_while_its_task_waited_is_not_used() {
    let d = folders();
    let session = own(&d, "s", &["agents"]);
    let first = start(&d, "single", "first");
    let late = d.home.user().join("own/late");
    fs::create_dir(&late).expect("a folder");
    let opts = json!({ "cwd": late, "async": true });
    let body = json!({ "instance": "single", "prompt": "x", "opts": opts });
    let task = text(&session.post("/v1/send_message", &body).ok(202), "task_id");
    fs::remove_dir(&late).expect("it is empty");
    symlink(d.home.user().join("other"), &late).expect("a link");
    d.post(&format!("/v1/hosts/{first}/stop"), &json!({ "force": true })).ok(200);
    let task = over(&d, &task);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(text(&task, "error").contains("is a link by now"), "{task}");
    assert_eq!(hosts(&d), 1, "nobody was started there");
}

#[test]
fn session_controls_only_agents_of_its_project() {
    let d = folders();
    let other = json!({ "instance": "cat", "name": "far", "cwd": d.home.user().join("other") });
    let far = text(&d.post("/v1/hosts", &other).ok(201), "session_key");
    let near = json!({ "instance": "cat", "name": "near", "cwd": d.home.user().join("own") });
    let near = text(&d.post("/v1/hosts", &near).ok(201), "session_key");
    let session = own(&d, "s", &["agents"]);
    let reader = own(&d, "r", &["agents", "read_all"]);
    for (way, body) in [
        ("send", json!({ "input": "x" })),
        ("interrupt", json!({})),
        ("stop", json!({ "force": true })),
    ] {
        let path = format!("/v1/hosts/{far}/{way}");
        problem(&session.post(&path, &body), 404, "not_found");
        // Reading all does not include controlling all.
        problem(&reader.post(&path, &body), 403, "forbidden");
        // Nor does it include answering.
        let approver = own(&d, "a", &["approve", "read_all", "exec"]);
        problem(&approver.post(&format!("/v1/hosts/{near}/{way}"), &body), 403, "forbidden");
    }
    assert_eq!(
        refusal(&reader, "SendMessage", &json!({ "agent": far, "prompt": "x" })),
        "forbidden"
    );
    assert_eq!(reader.get(&format!("/v1/hosts/{far}")).status(), 200);
    session.post(&format!("/v1/hosts/{near}/send"), &json!({ "input": "hello" })).ok(200);
    // Work for any agent of an instance goes to no agent of another project.
    d.post(&format!("/v1/hosts/{near}/stop"), &json!({ "force": true })).ok(200);
    ended(&d, &near);
    let body =
        json!({ "instance": "cat", "prompt": "x", "opts": { "mode": "peer-only", "async": true } });
    problem(&session.post("/v1/send_message", &body), 503, "unavailable");
    d.post("/v1/send_message", &body).ok(202);
    // A conversation is continued by a caller that may control its agent. An option of the program
    // is no conversation.
    let going_on = |caller: &Caller, session: &str| {
        let opts = json!({ "session": session, "async": true });
        caller
            .post("/v1/send_message", &json!({ "instance": "asker", "prompt": "x", "opts": opts }))
    };
    problem(&going_on(&session, "0a8f-of-somebody"), 403, "forbidden");
    for caller in [&session, &*d] {
        problem(&going_on(caller, "--dangerously-skip-permissions"), 422, "invalid_request");
    }
    assert!(agent(&d, &far)["ended_at"].is_null(), "nobody stopped it");
}

#[test]
fn session_cannot_answer_for_itself_or_its_children() {
    let d = folders();
    let boss = own(&d, "chief", &["agents", "approve"]);
    let body = json!({ "instance": "asker", "name": "child", "prompt": "go" });
    let child = text(&boss.post("/v1/hosts", &body).ok(201), "session_key");
    let refused = |caller: &Caller, request: &Value| {
        let id = text(request, "request_id");
        let allow = json!({ "option_id": "allow" });
        problem(&caller.post(&format!("/v1/requests/{id}/answer"), &allow), 403, "forbidden");
        let input = json!({ "request_id": id, "option_id": "allow" });
        let path = format!("/v1/hosts/{}/answer", text(request, "session_key"));
        problem(&caller.post(&path, &input), 403, "forbidden");
        assert_eq!(refusal(caller, "RequestAnswer", &input), "forbidden");
    };
    let request = asked(&d);
    refused(&boss, &request);
    let path = format!("/v1/requests/{}/answer", text(&request, "request_id"));
    let refusal_of = |caller: &Caller| {
        let answer = caller.post(&path, &json!({ "option_id": "allow" }));
        text(&problem(&answer, 403, "forbidden"), "detail")
    };
    let started = "a session does not answer requests of what it started";
    assert!(refusal_of(&boss).contains(started));
    let itself = own(&d, &child, &["approve"]);
    assert!(refusal_of(&itself).contains("an agent does not answer its own request"));
    // Starting agents does not include answering for them.
    let starter = own(&d, "starter", &["agents"]);
    let id = text(&request, "request_id");
    let input = json!({ "request_id": id, "option_id": "allow" });
    problem(&starter.post(&format!("/v1/hosts/{child}/answer"), &input), 403, "forbidden");
    let allow = json!({ "option_id": "allow" });
    problem(&starter.post(&format!("/v1/requests/{id}/answer"), &allow), 403, "forbidden");
    // A session that sees it from another project cannot answer it.
    let project = d.home.user().join("other").display().to_string();
    refused(&d.mint("far", &project, &["approve", "read_all"]), &request);
    own(&d, "peer", &["approve"]).post(&format!("/v1/requests/{id}/answer"), &allow).ok(200);

    // An agent that its own agent started counts as started by it.
    let body = json!({ "instance": "cat", "name": "middle" });
    let middle = text(&boss.post("/v1/hosts", &body).ok(201), "session_key");
    let middle = own(&d, &middle, &["agents", "approve"]);
    let body = json!({ "instance": "asker", "name": "grandchild", "prompt": "go" });
    middle.post("/v1/hosts", &body).ok(201);
    let request = asked(&d);
    refused(&boss, &request);
    refused(&middle, &request);
    // The end of its parent changes nothing.
    d.post("/v1/hosts/agent:cat:middle/stop", &json!({ "force": true })).ok(200);
    ended(&d, "agent:cat:middle");
    refused(&boss, &request);
    let id = text(&request, "request_id");
    let answered =
        own(&d, "peer", &["approve"]).post(&format!("/v1/requests/{id}/answer"), &allow).ok(200);
    assert_eq!(answered["answer"]["by"], "session:peer", "{answered}");
}

/// The key with which a host accepts answers, from the daemon's own table.
fn answer_key(d: &Daemon, id: &str) -> String {
    key_in_row(d, id).expect("a key")
}

fn key_in_row(d: &Daemon, id: &str) -> Option<String> {
    let key = d.home.value(&format!("select answer_key from agent where agent_id = '{id}'"));
    key.as_str().map(str::to_owned)
}

fn of_process(pid: u64, name: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).expect("it runs")).into_owned()
}

#[test]
fn host_accepts_answers_only_from_the_daemon() {
    let mut d = folders();
    let key = start(&d, "asker", "main");
    send(&d, &key, "go");
    let request = text(&asked(&d), "request_id");
    let view = agent(&d, &key);
    let (id, socket) = (text(&view, "id"), text(&view, "socket_path"));
    let secret = answer_key(&d, &id);
    assert_eq!(secret.len(), 64);
    for process in ["pid", "host_pid"] {
        let pid = view[process].as_u64().expect("a pid");
        for file in ["environ", "cmdline"] {
            assert!(!of_process(pid, file).contains(&secret), "{process} {file}");
        }
    }
    let answer = |key: Value| {
        let payload =
            json!({ "request_id": request, "option_id": "allow", "by": "operator", "key": key });
        ask_host(&socket, &json!({ "type": "host.answer", "payload": payload }))
    };
    for wrong in [json!(null), json!(""), json!("0".repeat(64)), json!(secret[..63])] {
        let refused = answer(wrong);
        assert_eq!(refused["success"], false, "{refused}");
        assert!(text(&refused, "error").starts_with("forbidden"), "{refused}");
    }
    assert_eq!(asked(&d)["request_id"], json!(request), "it is still open");
    // A later daemon has the key.
    d.kill_and_restart();
    svc(&d.home, &["agent", "answer", &key, &request, "deny"]).ok();
    let answers = || {
        let mut log = events(&d, &format!("agent/{id}"));
        log.retain(|event| event["kind"] == "answer");
        log
    };
    // The host tells of it.
    let answers = until(BOUND, || Some(answers()).filter(|answers| !answers.is_empty()));
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["data"]["by"], "operator");
    assert_eq!(answers[0]["data"]["option_id"], "deny");
    let again = answer(json!(secret));
    assert_eq!(again["error"], "already answered", "{again}");
    d.post(&format!("/v1/hosts/{key}/stop"), &json!({ "force": true })).ok(200);
    ended(&d, &key);
    let left = key_in_row(&d, &id);
    assert_eq!(left, None, "it goes with the agent");
}

#[test]
fn without_a_daemon_a_request_is_shown_but_not_answerable() {
    let mut d = folders();
    let key = start(&d, "asker", "main");
    send(&d, &key, "go");
    let request = text(&asked(&d), "request_id");
    d.kill9();
    let mut command = d.home.command(&["agent", "attach", &key]);
    command.stdin(std::process::Stdio::piped());
    let mut attached = Running::spawn(command);
    let mut typed = attached.stdin();
    writeln!(typed, "1").expect("it reads");
    drop(typed);
    let ran = attached.wait(BOUND);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in ["it asks: Write: /etc/x", "  1: ", "answering needs a daemon", "detached"] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let none = svc(&d.home, &["agent", "attach", "agent:asker:none"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    d.restart();
    assert_eq!(asked(&d)["request_id"], json!(request), "nobody answered it");
}

/// A stand-in for Claude Code that records its arguments and environment.
const SEER: &str = r#"
[agents.seer]
backend = "claude"
command = ["sh", "-c", '''
for word in "$@"; do printf '%s\n' "$word"; done >args.new
env >env.new
mv args.new args; mv env.new env
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
while read -r prompt; do :; done
''', "seer"]
"#;

#[test]
fn agent_environment_has_no_secret() {
    let d = with_config(SEER);
    let folder = d.home.user().join("work");
    fs::create_dir_all(&folder).expect("a folder");
    let body = json!({ "instance": "seer", "cwd": folder });
    let started = d.post("/v1/hosts", &body).ok(201);
    let (args, env) = until(BOUND, || {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        Some((read("args")?, read("env")?))
    });
    let line = args.lines().find(|line| line.contains("mcpServers")).expect("our server");
    let config: Value = serde_json::from_str(line).expect("JSON");
    let server = &config["mcpServers"]["svc"];
    assert_eq!(server["args"], json!(["stdio"]), "{config}");
    assert_eq!(server["env"]["SVC_HOME"], json!(d.home.dir()), "{config}");
    let pid = started["pid"].as_u64().expect("a pid");
    let host = started["host_pid"].as_u64().expect("a pid");
    let known = [
        args,
        env,
        of_process(pid, "cmdline"),
        of_process(pid, "environ"),
        of_process(host, "cmdline"),
        of_process(host, "environ"),
    ];
    let operator = d.home.token().expect("a token");
    for text in known {
        let is_token = |word: &str| {
            let digits = word.strip_prefix("svc_").unwrap_or(word);
            digits.len() >= 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let found: Vec<&str> = words.filter(|word| is_token(word)).collect();
        assert!(found.is_empty() && !text.contains("Bearer"), "{text}");
        assert!(!text.contains(&operator), "{text}");
    }
}

/// A `svc stdio` that an agent keeps.
struct KeptServer {
    input: fs::File,
    said: std::path::PathBuf,
    errors: std::path::PathBuf,
}

impl KeptServer {
    fn start(d: &Caller, coder: &mut Obedient) -> Self {
        let path = |name: &str| coder.folder.join(name);
        let (pipe, said, errors) = (path("pipe"), path("said"), path("errors"));
        let line = format!(
            "{{ mkfifo '{0}'; \"$SVC\" stdio <>'{0}' >'{1}' 2>'{2}' & true; }}",
            pipe.display(),
            said.display(),
            errors.display()
        );
        coder.run(d, &line, "");
        // Both ends are open in the program, so the open does not block.
        let input = fs::File::options().write(true).open(pipe).expect("a pipe");
        Self { input, said, errors }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("it reads");
    }

    fn answer(&self, id: u64) -> Value {
        until(BOUND, || {
            let said = fs::read_to_string(&self.said).unwrap_or_default();
            let mut lines =
                said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find(|line| line["id"] == id)
        })
    }
}

#[test]
fn agents_stdio_survives_the_daemon_and_leaks_nothing() {
    let mut d = hosted::world();
    let mut coder = Obedient::start(&d, "main");
    let own = text(&d.get("/v1/peers/agent:coder:main").ok(200), "peer_id");
    let mut server = KeptServer::start(&d, &mut coder);
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "coder", "version": "1" } });
    let call = |id: u64, text: &str| {
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "peer_send",
            "arguments": { "to": "operator", "text": text } } })
    };
    server.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }));
    server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    server.send(&call(2, "before"));
    let sent = server.answer(2)["result"]["structuredContent"].clone();
    assert_eq!(sent["from_peer"], json!(own), "{sent}");

    let port = d.port();
    d.kill9();
    let stranger = until(BOUND, || TcpListener::bind(("127.0.0.1", port)).ok());
    stranger.set_nonblocking(true).expect("can be set");
    server.send(&call(3, "after"));
    // It has made all its attempts: it asks for a daemon, and starts none.
    eventually(BOUND, || {
        fs::read_to_string(&server.errors).unwrap_or_default().contains("cannot start the daemon")
    });
    match stranger.accept() {
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        Ok((mut stream, _)) => {
            let mut heard = String::new();
            stream.read_to_string(&mut heard).ok();
            panic!("it spoke to who holds the port: {heard}");
        }
    }
    drop(stranger);
    d.restart();
    let sent = server.answer(3)["result"]["structuredContent"].clone();
    assert_eq!(sent["from_peer"], json!(own), "the same agent: {sent}");
}

#[test]
fn client_document_names_a_file_and_no_token() {
    let d = Daemon::start();
    let folder = d.home.user().display().to_string();
    let args = ["mcp-config", "--session", "reviewer", "--cwd", &folder, "--scope", "agents"];
    let document = svc(&d.home, &args).json();
    let server = &document["mcpServers"]["svc"];
    let words: Vec<String> = server["args"]
        .as_array()
        .expect("arguments")
        .iter()
        .map(|word| word.as_str().expect("a word").to_owned())
        .collect();
    assert_eq!(words[..2], ["stdio", "--token-file"], "{document}");
    assert_eq!(server["env"]["SVC_HOME"], json!(d.home.dir()), "{document}");
    let token = fs::read_to_string(&words[2]).expect("a file");
    let mode = fs::metadata(&words[2]).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(token.starts_with("svc_") && !document.to_string().contains(token.trim()));
    let caller = d.with_token(token.trim());
    let own = json!({ "display_name": "reviewer", "backend": "claude" });
    let own = text(&caller.post("/v1/peers/register", &own).ok(200), "peer_id");

    // The client starts the named program, which acts for the session.
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "peer_send",
        "arguments": { "to": "operator", "text": "here" } } });
    let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut running = Running::spawn({
        let mut command = d.home.command(&arguments);
        command.stdin(std::process::Stdio::piped());
        command
    });
    let mut input = running.stdin();
    writeln!(input, "{message}").expect("it reads");
    let answer: Value = serde_json::from_str(&running.line().expect("an answer")).expect("JSON");
    assert_eq!(answer["result"]["structuredContent"]["from_peer"], json!(own), "{answer}");
    drop(input);
    assert_eq!(running.wait(BOUND).code, Some(0));

    // A file that others may read is refused, and so is a missing one.
    fs::set_permissions(&words[2], fs::Permissions::from_mode(0o644)).expect("it is ours");
    for file in [words[2].as_str(), "/no/such/file"] {
        let ran = svc_with_input(&d.home, &["stdio", "--token-file", file], b"");
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(file), "{ran:?}");
    }

    // The other form says who could read it.
    let ran = svc(&d.home, &["mcp-config", "--session", "ci", "--http", "--env", "CI_TOKEN"]);
    let document = ran.json();
    let header = text(&document["mcpServers"]["svc"]["headers"], "Authorization");
    assert_eq!(header, "Bearer ${CI_TOKEN}");
    assert!(
        ran.stderr.contains("CI_TOKEN=svc_") && ran.stderr.contains("the environment"),
        "{ran:?}"
    );
    let ran = svc(&d.home, &["mcp-config", "--session", "ci", "--http"]);
    assert!(ran.stdout.contains("Bearer svc_"), "{ran:?}");
    assert!(ran.stderr.contains("any program that listens at the URL"), "{ran:?}");
    assert_eq!(svc(&d.home, &["mcp-config", "--session", "ci", "--env", "X"]).code, Some(2));
}
