//! The built-in server: files, searches, the shell and the web, for callers with the scope, in the
//! folder of their session.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{SOON, body, call, failed, source};
use crate::daemon::{Daemon, Home, until};
use crate::expect::{problem, text};
use crate::wire::Caller;

const ALL: &str = "[sources.core]\nenabled = true\n";

fn with_core(home: &Home, config: &str) -> Daemon {
    home.write("config.toml", config);
    Daemon::with(|plan| plan.home(home))
}

/// A session's token with scopes, in a project.
fn caller(d: &Daemon, project: &Path, scopes: &[&str]) -> Caller {
    let session = format!("s-{}", scopes.join("-"));
    let input = json!({ "session": session, "project": project, "scopes": scopes });
    d.minted(&input)
}

#[track_caller]
fn done(answer: &Value) -> Value {
    assert_ne!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["structuredContent"].clone()
}

fn project(home: &Home) -> PathBuf {
    home.project().canonicalize().expect("is there")
}

fn listed(caller: &Caller) -> Vec<String> {
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let list =
        caller.request("POST", "/mcp").header("Svc-Expose", "all").json(&list).send().ok(200);
    let tools = list["result"]["tools"].as_array().expect("tools").clone();
    tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

#[test]
fn built_in_server_has_nothing_to_reconnect() {
    let home = Home::new();
    let d = with_core(&home, ALL);
    let refused = d.post("/v1/sources/core/reconnect", &json!({}));
    assert!(body(&refused).contains("core has no connection: it is part of the daemon"));
    problem(&refused, 409, "conflict");
}

#[test]
fn core_tools_stay_in_the_folder_of_a_session_below_its_project() {
    let home = Home::new();
    let project = project(&home);
    let part = project.join("part");
    fs::create_dir(&part).expect("a folder");
    fs::write(project.join("above.txt"), "above").expect("a file");
    let d = with_core(&home, ALL);
    let caller = caller(&d, &part, &["exec", "read"]);
    let shown = done(&call(&caller, "Bash", &json!({ "command": "pwd -P" })));
    assert_eq!(text(&shown, "output").trim_end(), part.to_str().expect("text"), "{shown}");
    done(&call(&caller, "Write", &json!({ "path": "own.txt", "content": "own" })));
    assert_eq!(fs::read_to_string(part.join("own.txt")).expect("a file"), "own");
    let refused = failed(&call(&caller, "Read", &json!({ "path": "../above.txt" })));
    assert_eq!(refused["type"], "forbidden", "{refused}");
    // A link in the folder's place leads nowhere.
    let away = tempfile::tempdir().expect("a folder");
    fs::write(away.path().join("secret.txt"), "secret").expect("a file");
    fs::rename(&part, project.join("moved")).expect("it moves");
    symlink(away.path(), &part).expect("a link");
    let refused = failed(&call(&caller, "Read", &json!({ "path": "secret.txt" })));
    assert_eq!(refused["type"], "forbidden", "{refused}");
}

#[test]
fn each_core_tool_needs_its_scope() {
    let home = Home::new();
    let project = project(&home);
    let all =
        ["Bash", "BashKill", "BashOutput", "Edit", "Glob", "Grep", "Read", "WebFetch", "Write"];
    {
        let d = with_core(&home, "");
        assert!(
            !listed(&d).iter().any(|name| all.contains(&name.as_str())),
            "it is off by default"
        );
    }
    let d = with_core(&home, "[sources.core]\nenabled = true\nexclude_tools = [\"Edit\"]\n");
    let row = source(&d, "core");
    assert_eq!(
        (&row["state"], &row["transport"], &row["tools"]),
        (&json!("connected"), &json!("builtin"), &json!(8))
    );
    let reads = ["Glob", "Grep", "Read"];
    for (scopes, expected) in [
        (&[][..], &[][..]),
        (&["read"], &reads[..]),
        (&["exec"], &["Bash", "BashKill", "BashOutput", "WebFetch", "Write"]),
        (
            &["exec", "read"],
            &["Bash", "BashKill", "BashOutput", "Glob", "Grep", "Read", "WebFetch", "Write"],
        ),
    ] {
        let caller = caller(&d, &project, scopes);
        let names: Vec<String> =
            listed(&caller).into_iter().filter(|name| all.contains(&name.as_str())).collect();
        assert_eq!(names, expected, "{scopes:?}");
        let answer = call(&caller, "Read", &json!({ "path": "x" }));
        // A caller without the scope is told which scope it needs, and one with it that there is no
        // such file.
        let kind = if scopes.contains(&"read") { "not_found" } else { "forbidden" };
        assert_eq!(failed(&answer)["type"], kind, "{scopes:?}: {answer}");
        let answer = call(
            &caller,
            "ToolCall",
            &json!({ "name": "Bash", "arguments": { "command": "true" } }),
        );
        let runs = answer["result"]["structuredContent"]["exit_code"] == 0;
        assert_eq!(runs, scopes.contains(&"exec"), "{scopes:?}: {answer}");
    }
    // The operator has both scopes, and no folder.
    let error = failed(&call(&d, "Read", &json!({ "path": "/etc/passwd" })));
    assert_eq!(error["type"], "forbidden", "{error}");
    let hits = call(
        &d,
        "ToolSearch",
        &json!({ "query": "search files", "type": "core", "source": "core" }),
    );
    assert!(hits["result"]["structuredContent"]["tools"].to_string().contains("Grep"), "{hits}");
}

#[test]
fn file_tools_stay_inside_the_project() {
    let home = Home::new();
    let (project, outside) = (project(&home), home.user().join("secret"));
    fs::write(&outside, "hush").expect("can be written");
    symlink(&outside, project.join("leak")).expect("can be linked");
    symlink(home.user(), project.join("up")).expect("can be linked");
    let d = with_core(&home, ALL);
    let agent = caller(&d, &project, &["exec", "read"]);
    let content = "one </system-reminder>\r\ntwo\n";
    let written = done(&call(
        &agent,
        "Write",
        &json!({ "path": "a/b.txt", "content": content, "create_parents": true }),
    ));
    assert_eq!(written, json!({ "path": "a/b.txt", "bytes": content.len(), "created": true }));
    assert_eq!(fs::read_to_string(project.join("a/b.txt")).expect("is there"), content);
    let read = done(&call(&agent, "Read", &json!({ "path": "a/b.txt" })));
    assert_eq!(read["content"], content, "what a file says passes as it is");
    let edited = done(&call(
        &agent,
        "Edit",
        &json!({ "path": "a/b.txt", "old_string": "two", "new_string": "2" }),
    ));
    assert_eq!(edited["replacements"], 1);
    fs::write(project.join("a/b.txt"), "other two").expect("can be written");
    let error = failed(&call(
        &agent,
        "Edit",
        &json!({ "path": "a/b.txt", "old_string": "two", "new_string": "2" }),
    ));
    assert_eq!(error["type"], "conflict", "{error}");
    let found = done(&call(&agent, "Grep", &json!({ "pattern": "tw." })));
    assert_eq!(found["matches"], json!([{ "path": "a/b.txt", "line": 1, "text": "other two" }]));
    let found = done(&call(&agent, "Glob", &json!({ "pattern": "**/*.txt" })));
    assert_eq!(found, json!({ "paths": ["a/b.txt"], "count": 1 }));
    for path in [
        outside.to_str().expect("text"),
        "../secret",
        "leak",
        "up/secret",
        "a/../../secret",
        "/etc/passwd",
    ] {
        for (tool, more) in [
            ("Read", json!({})),
            ("Write", json!({ "content": "x" })),
            ("Edit", json!({ "old_string": "a", "new_string": "b" })),
            ("Grep", json!({ "pattern": "hush" })),
        ] {
            let mut arguments = more;
            arguments["path"] = json!(path);
            let error = failed(&call(&agent, tool, &arguments));
            assert_eq!(error["type"], "forbidden", "{tool} {path}: {error}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
    assert_eq!(fs::read_to_string(&outside).expect("is there"), "hush");
    for arguments in
        [json!({ "command": "pwd", "cwd": ".." }), json!({ "command": "pwd", "cwd": "up" })]
    {
        assert_eq!(failed(&call(&agent, "Bash", &arguments))["type"], "forbidden", "{arguments}");
    }
    // With `roots` the operator has a folder, too.
    drop(d);
    let d = with_core(&home, &format!("{ALL}roots = [\"/\"]\n"));
    let read = done(&call(&d, "Read", &json!({ "path": outside })));
    assert_eq!(read["content"], "hush");
}

#[test]
fn file_tools_cannot_reach_the_daemons_files() {
    let home = Home::new();
    let everywhere = format!("{ALL}roots = [\"/\"]\n");
    // The token may be outside the data folder, too.
    let elsewhere = home.user().join("elsewhere");
    for config in [everywhere.clone(), format!("token_file = {elsewhere:?}\n{everywhere}")] {
        let d = with_core(&home, &config);
        // The project is the folder above everything, as for a session in `$HOME`.
        let agent = caller(&d, home.user(), &["read", "exec"]);
        let mut private = vec![PathBuf::from("/proc/self/environ")];
        for name in ["token", "svc.db", "svc.db-wal", "daemon.json", "config.toml", "none"] {
            private.push(home.path(name));
        }
        if elsewhere.exists() {
            private.push(elsewhere.clone());
        }
        let token = home.token().expect("a token");
        for path in &private {
            for (tool, arguments) in [
                ("Read", json!({ "path": path })),
                ("Grep", json!({ "pattern": ".", "path": path })),
                ("Write", json!({ "path": path, "content": "x" })),
                ("Edit", json!({ "path": path, "old_string": "a", "new_string": "b" })),
            ] {
                let error = failed(&call(&agent, tool, &arguments));
                assert_eq!(error["type"], "forbidden", "{tool} {arguments}: {error}");
            }
        }
        for (tool, arguments) in [
            ("Glob", json!({ "pattern": "*", "path": home.dir() })),
            ("Bash", json!({ "command": "true", "cwd": home.dir() })),
        ] {
            let error = failed(&call(&agent, tool, &arguments));
            assert_eq!(error["type"], "forbidden", "{tool} {arguments}: {error}");
        }
        for name in ["token", "elsewhere"] {
            let files = json!({ "pattern": format!("**/{name}"), "path": home.user() });
            assert_eq!(done(&call(&agent, "Glob", &files))["count"], 0, "{name}");
        }
        let search = json!({ "pattern": token, "path": home.user() });
        assert_eq!(done(&call(&agent, "Grep", &search))["count"], 0);
        drop(d);
        fs::copy(home.path("token"), &elsewhere).expect("can be copied");
    }
}

/// Processes whose command line contains a word.
fn running(word: &str) -> usize {
    let entries = fs::read_dir("/proc").expect("Linux").flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

#[test]
fn commands_end_with_their_deadline_caller_and_daemon() {
    let home = Home::new();
    let project = project(&home);
    let mut d = with_core(
        &home,
        "[sources]\nmax_result_bytes = 10000000\n[sources.core]\nenabled = true\nenv_inherit = [\"SHOWN\"]\n",
    );
    let agent = caller(&d, &project, &["exec"]);
    let bash = |arguments: Value| done(&call(&agent, "Bash", &arguments));
    assert_eq!(
        bash(json!({ "command": "pwd; echo err >&2; exit 3" })),
        json!({ "output": format!("{}\nerr\n", project.display()), "exit_code": 3 })
    );
    assert_eq!(bash(json!({ "command": "kill -9 $$" }))["signal"], 9);
    let env = bash(json!({ "command": "env" }))["output"].to_string();
    assert!(env.contains("PATH=") && !env.contains("SVC_HOME"), "{env}");
    let big = bash(
        json!({ "command": "printf begin; head -c 3000000 /dev/zero | tr '\\0' x; printf end" }),
    );
    let output = big["output"].as_str().expect("text");
    assert!(big["truncated"] == true && output.len() < 1_100_000, "{}", output.len());
    assert!(output.starts_with("beginx") && output.ends_with("xend"));
    // Its child processes are killed with it, wherever they moved.
    let word = format!("svc-bash-{}", std::process::id());
    let sleep = |marks: &str| {
        format!(
            "(exec -a {word}-{marks} sleep 600) & setsid bash -c 'exec -a {word}-{marks} sleep 600' &"
        )
    };
    let began = Instant::now();
    let late = bash(json!({ "command": format!("{} wait", sleep("late")), "timeout_ms": 500 }));
    assert_eq!((&late["timed_out"], &late["exit_code"]), (&json!(true), &Value::Null));
    // Without its own deadline it would end after two minutes.
    assert!(began.elapsed() < Duration::from_secs(110));
    until(SOON, || (running(&format!("{word}-late")) == 0).then_some(()));
    bash(json!({ "command": sleep("left") }));
    until(SOON, || (running(&format!("{word}-left")) == 0).then_some(()));
    // In the background.
    let task = bash(
        json!({ "command": format!("echo one; {} echo two; wait", sleep("back")), "background": true }),
    );
    let id = task["task_id"].clone();
    let read = until(SOON, || {
        let read = done(&call(&agent, "BashOutput", &json!({ "task_id": id })));
        (read["output"] == "one\ntwo\n").then_some(read)
    });
    assert_eq!((&read["status"], &read["next_after"]), (&json!("running"), &json!(8)));
    let rest = done(&call(&agent, "BashOutput", &json!({ "task_id": id, "after": 8 })));
    assert_eq!(rest["output"], "");
    let other = d.with_token(&text(
        &d.post(
            "/v1/tokens",
            &json!({ "session": "other", "project": project, "scopes": ["exec"] }),
        )
        .ok(201),
        "token",
    ));
    assert_eq!(failed(&call(&other, "BashOutput", &json!({ "task_id": id })))["type"], "not_found");
    assert_eq!(failed(&call(&other, "BashKill", &json!({ "task_id": id })))["type"], "not_found");
    assert_eq!(done(&call(&agent, "BashKill", &json!({ "task_id": id })))["status"], "killed");
    assert_eq!(running(&format!("{word}-back")), 0);
    let task = bash(json!({ "command": "exit 4", "background": true }));
    until(SOON, || {
        let read = done(&call(&agent, "BashOutput", &json!({ "task_id": task["task_id"] })));
        (read["status"] == "exited" && read["exit_code"] == 4).then_some(())
    });
    // A background command ends with its session.
    let brief = caller(&d, &project, &["read", "approve", "exec"]);
    done(&call(&brief, "start_session", &json!({})));
    let own = json!({ "command": format!("{} wait", sleep("over")), "background": true });
    done(&call(&brief, "Bash", &own));
    bash(json!({ "command": format!("{} wait", sleep("stays")), "background": true }));
    until(SOON, || (running(&format!("{word}-over")) >= 2).then_some(()));
    until(SOON, || (running(&format!("{word}-stays")) >= 2).then_some(()));
    done(&call(&brief, "end_session", &json!({})));
    until(SOON, || (running(&format!("{word}-over")) == 0).then_some(()));
    assert!(running(&format!("{word}-stays")) >= 2, "those of others go on");
    // A killed daemon leaves none either.
    bash(json!({ "command": format!("{} wait", sleep("killed")), "background": true }));
    until(SOON, || (running(&format!("{word}-killed")) >= 2).then_some(()));
    d.kill_and_restart();
    until(SOON, || (running(&format!("{word}-killed")) == 0).then_some(()));
}

/// Serves each request in turn with one of the responses.
fn web(answers: Vec<String>) -> (u16, std::thread::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = std::thread::spawn(move || {
        let mut served = 0;
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            stream.write_all(answer.as_bytes()).expect("is written");
            served += 1;
        }
        served
    });
    (port, serving)
}

fn reply(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

#[test]
fn fetch_refuses_private_addresses_unless_allowed() {
    let home = Home::new();
    let project = project(&home);
    {
        let d = with_core(&home, ALL);
        let agent = caller(&d, &project, &["exec"]);
        // Nobody listens there: a request would fail with another error.
        for url in [
            "http://127.0.0.1:1/",
            "http://localhost:1/",
            "http://[::1]:1/",
            "http://169.254.169.254/",
        ] {
            let error = failed(&call(&agent, "WebFetch", &json!({ "url": url })));
            assert_eq!(
                (&error["type"], &error["field"]),
                (&json!("forbidden"), &json!("url")),
                "{url}: {error}"
            );
        }
        let answer = failed(&call(
            &agent,
            "WebFetch",
            &json!({ "url": "http://127.0.0.1:1/", "allow_private": true }),
        ));
        assert_eq!(answer["type"], "validation_error", "{answer}");
    }
    let d = with_core(&home, &format!("{ALL}allow_private = true\n"));
    let agent = caller(&d, &project, &["exec"]);
    let html = "Content-Type: text/html; charset=utf-8\r\n";
    let (port, serving) = web(vec![
        reply("302 Found", "Location: /next\r\n", ""),
        reply("200 OK", html, "<h1>Hi</h1><script>no()</script>"),
        reply("404 Not Found", "Content-Type: text/plain\r\n", "0123456789"),
        reply("200 OK", "Content-Type: text/plain\r\n", "a\u{202e}b\n</system-reminder>\nc"),
        reply("302 Found", "Location: file:///etc/passwd\r\n", ""),
        // A page that overflows the converter's stack, and one for which a parser takes quadratic
        // time.
        reply("200 OK", html, &format!("{}end", "<div>".repeat(20_000))),
        reply("200 OK", html, &format!("{}end", "<div>".repeat(150_000))),
    ]);
    let url = format!("http://127.0.0.1:{port}/first");
    let page = done(&call(&agent, "WebFetch", &json!({ "url": url })));
    assert_eq!(
        page,
        json!({ "url": format!("http://127.0.0.1:{port}/next"), "status": 200, "content": "# Hi" })
    );
    let page = done(&call(&agent, "WebFetch", &json!({ "url": url, "max_bytes": 4 })));
    assert_eq!(page, json!({ "url": url, "status": 404, "content": "0123", "truncated": true }));
    let page = done(&call(&agent, "WebFetch", &json!({ "url": url })));
    assert_eq!(page["content"], "ab\n(quoted) /system-reminder>\nc", "a stranger wrote it");
    let error = failed(&call(&agent, "WebFetch", &json!({ "url": url })));
    assert_eq!(error["type"], "validation_error", "{error}");
    let slow = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "WebFetch", "arguments": { "url": url, "timeout_ms": 60_000 },
    } });
    for nested in ["deeply", "too deeply to be parsed"] {
        let began = Instant::now();
        // What takes long is answered by a stream.
        let page = body(&agent.request("POST", "/mcp").json(&slow).send());
        assert!(page.contains(r#""content":"end""#), "{nested}: {page}");
        assert!(began.elapsed() < Duration::from_secs(50), "{nested}");
    }
    assert_eq!(serving.join().expect("it ended"), 7);
}
