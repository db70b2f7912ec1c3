//! `svc mcp`: changes files, and a running daemon reads them again.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::{SOON, entry, in_state, project_file, source, toy};
use crate::daemon::{Daemon, Home, svc, svc_with_input, until};

/// Runs `svc mcp …` in a folder.
pub(crate) fn mcp(home: &Home, folder: &Path, args: &[&str]) -> Output {
    let mut command = home.command(&["mcp"]);
    command.args(args).current_dir(folder).output().expect("it runs")
}

#[track_caller]
pub(crate) fn ok(home: &Home, folder: &Path, args: &[&str]) -> String {
    let output = mcp(home, folder, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
pub(crate) fn fails(home: &Home, folder: &Path, args: &[&str], code: i32) -> String {
    let output = mcp(home, folder, args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn server_changes_need_no_restart() {
    let home = Home::new();
    home.write("config.toml", "# mine\nlog_level = \"info\" # so\n");
    let d = Daemon::with(|plan| plan.home(&home));
    let (here, script) = (home.user().to_owned(), toy(&home).display().to_string());
    ok(&home, &here, &["add", "toy", "-e", "TOKEN=hush-hush", "--", "python3", &script]);
    in_state(&d, "toy", "connected");
    let text = fs::read_to_string(home.path("config.toml")).expect("is there");
    assert!(text.starts_with("# mine\nlog_level = \"info\" # so\n"), "{text}");
    fails(&home, &here, &["add", "toy", "--", "python3"], 1);
    fails(&home, &here, &["add", "a__b", "--", "python3"], 2);
    fails(&home, &here, &["add", "core", "--", "python3"], 2);
    let said = fails(&home, &here, &["add", "-t", "http", "other", "python3"], 2);
    assert!(said.contains("\"python3\" is no URL"), "{said}");
    fails(&home, &here, &["add-json", "other", "{\"url\":\"ftp://h\"}"], 2);
    fails(&home, &here, &["add-json", "other", "{"], 2);
    fails(&home, &here, &["add-json", "other", "{\"args\":[]}"], 2);
    let list: Value = serde_json::from_str(&ok(&home, &here, &["list", "--json"])).expect("JSON");
    assert_eq!((&list["count"], &list["sources"][0]["name"]), (&json!(1), &json!("toy")));
    let shown = ok(&home, &here, &["get", "toy", "--json"]);
    assert!(shown.contains("connected") && !shown.contains("hush-hush"), "{shown}");
    let tools = ok(&home, &here, &["tools", "toy"]);
    assert!(tools.contains("toy__odd") && tools.contains("Toy say"), "{tools}");
    assert!(!tools.contains("Its second line."), "{tools}");
    assert!(ok(&home, &here, &["tools", "toy", "--json"]).contains("Its second line."));
    let said = ok(&home, &here, &["call", "toy", "say", "--arg", "value=hello", "--json"]);
    assert!(said.contains("said"), "{said}");
    until(SOON, || ok(&home, &here, &["logs", "toy"]).contains("hello").then_some(()));
    fails(&home, &here, &["call", "toy", "nothing"], 1);
    fails(&home, &here, &["reconnect", "nobody"], 1);
    let first = source(&d, "toy")["pid"].clone();
    ok(&home, &here, &["reconnect", "toy"]);
    until(SOON, || {
        let now = source(&d, "toy");
        (now["state"] == "connected" && now["pid"] != first).then_some(())
    });
    ok(&home, &here, &["disable", "toy"]);
    assert_eq!(source(&d, "toy")["state"], "disabled");
    let failed = super::failed(&super::call(&d, "toy__say", &json!({ "value": "x" })));
    assert_eq!(
        (&failed["type"], &failed["allowed"]["state"], &failed["retryable"]),
        (&json!("unavailable"), &json!("disabled"), &json!(false))
    );
    let why = failed["message"].as_str().unwrap_or_default();
    assert!(why.contains("turned off") && why.contains("svc mcp enable toy"), "{failed}");
    ok(&home, &here, &["enable", "toy"]);
    in_state(&d, "toy", "connected");
    ok(&home, &here, &["remove", "toy"]);
    assert_eq!(d.get("/v1/sources").ok(200)["count"], 0);
    for action in ["remove", "enable", "disable"] {
        let said = fails(&home, &here, &[action, "toy"], 1);
        assert!(!said.contains("/v1/"), "{said}");
    }
}

#[test]
fn json_behind_a_url_counts_and_other_schemes_are_refused() {
    let home = Home::new();
    let here = home.user().to_owned();
    let url = "https://h.example/mcp";
    let said = ok(&home, &here, &["add", "wiki", url, "--json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["name"], "wiki");
    for wrong in [&["add", "x", url, "more", "--json"][..], &["add", "x", "ftp://h/x", "--json"]] {
        let said = fails(&home, &here, wrong, 2);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["code"], "usage", "{wrong:?}: {said}");
    }
    let said = fails(&home, &here, &["add", "x", "--", "ftp://h/x"], 2);
    assert!(said.contains("https://"), "{said}");
    ok(&home, &here, &["add", "files", "--", "python3", "--json"]);
    let written = fs::read_to_string(home.path("config.toml")).expect("is there");
    assert!(written.contains("args = [\"--json\"]") && !written.contains("ftp"), "{written}");

    let stored = svc_with_input(&home, &["mcp", "secret", "set", "nope", "KEY"], b"hush");
    assert!(stored.ok().contains("of your own configuration"), "{stored:?}");
    let stored = svc_with_input(&home, &["mcp", "secret", "set", "wiki", "KEY"], b"hush");
    assert!(!stored.ok().contains("no such server"), "{stored:?}");
}

#[test]
fn options_precede_a_program_and_surround_a_url() {
    let home = Home::new();
    let here = home.user().to_owned();
    let url = "https://h.example/mcp";
    ok(&home, &here, &["add", "wiki", url, "-H", "X-Key: a b", "--transport", "sse"]);
    ok(&home, &here, &["add", "-H", "A: 1", "both", url, "-H", "B: 2"]);
    ok(&home, &here, &["add", "files", "--", "python3", "-e", "print()"]);
    let written = fs::read_to_string(home.path("config.toml")).expect("is there");
    for entry in [
        "type = \"sse\"\n",
        "headers = { X-Key = \"a b\" }\n",
        "headers = { A = \"1\", B = \"2\" }\n",
        "args = [\"-e\", \"print()\"]\n",
    ] {
        assert!(written.contains(entry), "{entry}: {written}");
    }
    // An option in the wrong place is refused with the place for it.
    let said = fails(&home, &here, &["add", "x", "python3", "-e", "TOKEN=1"], 2);
    assert!(said.contains("before x") && said.contains("`--` before python3"), "{said}");
    let said = fails(&home, &here, &["add", "x", url, "more"], 2);
    assert!(said.contains("'more'") && said.contains("takes no arguments"), "{said}");
    let after = fs::read_to_string(home.path("config.toml")).expect("is there");
    assert_eq!(after, written);
}

#[test]
fn list_tools_shows_offers_of_each_server() {
    let home = Home::new();
    let d = super::with_servers(
        &home,
        &json!({ "toy": entry(&home, &[]), "off": { "command": "x", "enabled": false } }),
    );
    in_state(&d, "toy", "connected");
    let here = home.user().to_owned();
    // Without a command it is the list.
    assert_eq!(ok(&home, &here, &[]), ok(&home, &here, &["list"]));
    let shown = ok(&home, &here, &["list", "--tools"]);
    for line in [
        "\ntoy\n",
        "  tool      toy__odd  Toy odd\n",
        "  resource  toy://one\n",
        "  prompt    toy__greet\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let list: Value =
        serde_json::from_str(&ok(&home, &here, &["list", "--tools", "--json"])).expect("JSON");
    let of = |name: &str| {
        let rows = list["sources"].as_array().expect("rows").iter();
        rows.clone().find(|row| row["name"] == name).expect("is listed")["offers"].clone()
    };
    let counts =
        ["tools", "resources", "prompts"].map(|kind| of("toy")[kind].as_array().map(Vec::len));
    assert_eq!(counts, [Some(20), Some(1), Some(1)]);
    assert_eq!(of("off")["tools"], json!([]));
}

#[test]
fn entry_omits_defaults_and_is_removed_by_its_listed_name() {
    let home = Home::new();
    let here = home.user().to_owned();
    let open = r#"{"command":"x","timeout":null,"env":{"A":"b"},"headers":null}"#;
    ok(&home, &here, &["add-json", "open", open]);
    let written = fs::read_to_string(home.path("config.toml")).expect("is there");
    assert_eq!(written, "[sources.open]\ncommand = \"x\"\nenv = { A = \"b\" }\n");
    home.write("config.toml", "[sources.\"my tool\"]\ncommand = \"x\"\nenabled = false\n");
    let d = Daemon::with(|plan| plan.home(&home));
    assert_eq!(source(&d, "my_tool")["state"], "disabled");
    ok(&home, &here, &["remove", "my_tool"]);
    assert_eq!(d.get("/v1/sources").ok(200)["count"], 0);
}

#[test]
fn files_can_be_changed_and_approved_without_a_daemon() {
    let home = Home::new();
    let project = home.project();
    let script = toy(&home).display().to_string();
    ok(&home, &project, &["add", "own", "--scope", "project", "--", "python3", &script]);
    let file = project.join(".mcp.json");
    let written: Value = serde_json::from_slice(&fs::read(&file).expect("is there")).expect("JSON");
    assert_eq!(written["mcpServers"]["own"], json!({ "command": "python3", "args": [script] }));
    fails(&home, &project, &["reconnect", "own"], 1);
    for action in ["disable", "enable"] {
        let said = fails(&home, &project, &[action, "nosuch"], 1);
        assert!(said.contains("no file names a server nosuch"), "{said}");
        ok(&home, &project, &[action, "own"]);
    }
    let d = Daemon::with(|plan| plan.home(&home));
    let list = || -> Value {
        serde_json::from_str(&ok(&home, &project, &["list", "--json"])).expect("JSON")
    };
    until(SOON, || (list()["sources"][0]["state"] == "connected").then_some(()));
    assert_eq!(d.get("/v1/sources").ok(200)["count"], 0);
    project_file(&project, &json!({ "own": entry(&home, &[]), "more": entry(&home, &[]) }));
    assert_eq!(list()["sources"][0]["state"], "pending_approval");
    let approved = ok(&home, &project, &["approve"]);
    assert!(approved.contains("more") && approved.contains("own"), "{approved}");
    until(SOON, || {
        let list = list();
        (0..2).all(|n| list["sources"][n]["state"] == "connected").then_some(())
    });
    // The removal of an entry needs no new approval.
    ok(&home, &project, &["remove", "more"]);
    let rest = list();
    assert_eq!(rest["count"], 1);
    assert_ne!(rest["sources"][0]["state"], "pending_approval");
    until(SOON, || (list()["sources"][0]["state"] == "connected").then_some(()));
    fails(&home, &project, &["approve", "/no/such/file"], 1);
}

#[test]
fn approval_says_what_will_run() {
    let home = Home::new();
    let project = home.project();
    let both = r#"{"mcpServers":{
        "a.b":{"command":"sh","args":["-c","first"],"url":"https://a.example/mcp"},"a_b":{"command":"second"},
        "twice":{"command":"third"},"twice":{"command":"fourth"}}}"#;
    fs::write(project.join(".mcp.json"), both).expect("is written");
    let said = ok(&home, &project, &["approve"]);
    let lines: Vec<&str> = said.lines().skip(1).collect();
    let unused = |name: &str| {
        format!("  {name}: not used: is the same name as another's in this file: {name}")
    };
    let wanted = ["  a_b: sh -c first", &unused("a_b"), "  twice: third", &unused("twice")];
    assert_eq!(lines, wanted, "{said}");
    let said: Value =
        serde_json::from_str(&ok(&home, &project, &["approve", "--json"])).expect("JSON");
    assert_eq!(said["entries"][0]["target"], "sh -c first", "{said}");
}

#[test]
fn approval_by_any_path_to_the_file_counts() {
    let home = Home::new();
    let project = home.project();
    let sub = project.join("sub");
    fs::create_dir(&sub).expect("is made");
    let link = home.user().join("link");
    std::os::unix::fs::symlink(&project, &link).expect("links");
    let _d = Daemon::with(|plan| plan.home(&home));
    let through_link = link.join(".mcp.json").display().to_string();
    for (name, path) in [("one", "../.mcp.json"), ("two", through_link.as_str())] {
        let file = project_file(&project, &json!({ name: { "command": "/no/such" } }));
        let state = || {
            let list = ok(&home, &project, &["list", "--json"]);
            let list: Value = serde_json::from_str(&list).expect("JSON");
            list["sources"][0]["state"].clone()
        };
        assert_eq!(state(), "pending_approval", "{path}");
        let said = ok(&home, &sub, &["approve", path, "--json"]);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["file"], file.display().to_string());
        assert_ne!(state(), "pending_approval", "{path}");
    }
    // A session under the link finds the file by that path.
    let choices = fs::read_to_string(home.path("sources.json")).expect("it is written");
    assert!(choices.contains(&through_link), "{choices}");
}

#[test]
fn switch_counts_for_the_server_that_the_name_means() {
    let home = Home::new();
    let [one, other] = ["one", "other"].map(|name| home.user().join(name));
    for project in [&one, &other] {
        fs::create_dir_all(project.join(".git")).expect("is made");
        project_file(project, &json!({ "toy": { "command": "/no/such" } }));
        ok(&home, project, &["approve"]);
    }
    home.write("config.toml", "[sources.toy]\ncommand = \"/no/such\"\n");
    // Without a daemon, and with one.
    ok(&home, &one, &["disable", "toy"]);
    let d = Daemon::with(|plan| plan.home(&home));
    let off = || {
        [&one, &other, &home.user().to_owned()].map(|folder| {
            let shown = ok(&home, folder, &["get", "toy", "--json"]);
            let shown: Value = serde_json::from_str(&shown).expect("JSON");
            shown["state"] == "disabled"
        })
    };
    assert_eq!(off(), [true, false, false]);
    ok(&home, &one, &["enable", "toy"]);
    ok(&home, &other, &["disable", "toy"]);
    assert_eq!(off(), [false, true, false]);
    let target = |act: &str| format!("/v1/sources/toy/{act}?project={}", other.display());
    d.post(&target("enable"), &json!({})).ok(200);
    d.post("/v1/sources/toy/disable", &json!({})).ok(200);
    assert_eq!(off(), [false, false, true]);
}

#[test]
fn adding_a_project_server_approves_no_other() {
    let home = Home::new();
    let project = home.project();
    let mut other = entry(&home, &[]);
    other["enabled"] = json!(true);
    let file = project_file(&project, &json!({ "other": other }));
    let _d = Daemon::with(|plan| plan.home(&home));
    let add = |name: &str| {
        let script = toy(&home).display().to_string();
        let output =
            mcp(&home, &project, &["add", name, "--scope", "project", "--", "python3", &script]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let list = || -> Value {
        serde_json::from_str(&ok(&home, &project, &["list", "--json"])).expect("JSON")
    };
    let told = add("own");
    assert!(told.contains("svc mcp approve"), "{told}");
    for row in list()["sources"].as_array().expect("rows") {
        assert_eq!(row["state"], "pending_approval", "{row}");
    }
    // A person who has approved the others need not approve them again.
    ok(&home, &project, &["approve"]);
    assert!(!add("more").contains("approve"));
    until(SOON, || {
        let list = list();
        (0..3).all(|n| list["sources"][n]["state"] == "connected").then_some(())
    });
    // The error names a file that cannot be changed.
    fs::write(&file, "{ // mine\n}").expect("is written");
    let told = fails(&home, &project, &["add", "n", "--scope", "project", "--", "x"], 1);
    assert!(told.contains(".mcp.json"), "{told}");
}

#[test]
fn doctor_and_config_check_report_bad_entries() {
    let home = Home::new();
    home.write("config.toml", "[sources.bad]\nargs = [\"x\"]\n[sources.fine]\ncommand = \"x\"\n");
    let checked = home
        .command(&["config", "check", &home.path("config.toml").display().to_string()])
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.code() == Some(2) && told.contains("sources.bad"), "{told}");
    let project = home.project();
    project_file(&project, &json!({ "fine": { "command": "y" } }));
    let doctor =
        home.command(&["doctor", "--json"]).current_dir(&project).output().expect("it runs");
    let report: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("checks");
    let told = |name: &str| -> Vec<(&Value, &str)> {
        let of_name = checks.iter().filter(|check| check["check"] == name);
        of_name.map(|it| (&it["level"], it["detail"].as_str().unwrap_or_default())).collect()
    };
    let (of_file, of_servers) = (told("configuration"), told("MCP servers"));
    assert!(of_file.len() == 1 && of_file[0].0 == "warn", "{of_file:?}");
    assert!(of_file[0].1.contains("sources.bad"), "as config check says it: {of_file:?}");
    assert!(
        of_servers.len() == 1 && of_servers[0].1.contains("waits for approval"),
        "{of_servers:?}"
    );
}

#[test]
fn states_of_entries_that_do_not_run_are_events() {
    let home = Home::new();
    let server = entry(&home, &[]);
    home.write("config.toml", "[sources.twice]\ncommand = \"cat\"\n");
    let d = super::with_servers(&home, &json!({ "toy": server, "twice": server }));
    in_state(&d, "toy", "connected");
    let states = |name: &str| -> Vec<Value> {
        let page = d.get("/v1/events?stream=team&kind=source.state&limit=500").ok(200);
        let all = page["events"].as_array().expect("events").iter().map(|event| &event["data"]);
        all.filter(|data| data["name"] == name).cloned().collect()
    };
    let last = |name: &str, state: &str| {
        until(SOON, || states(name).pop().filter(|data| data["state"] == state))
    };
    let hidden = states("twice").into_iter().find(|data| data["state"] == "hidden");
    assert!(hidden.expect("an event")["reason"].is_string());
    svc(&home, &["mcp", "disable", "toy"]).ok();
    assert_eq!(last("toy", "disabled")["next_action"], "svc mcp enable toy");
    svc(&home, &["mcp", "enable", "toy"]).ok();
    last("toy", "connected");
    let count = states("toy").iter().filter(|data| data["state"] == "disabled").count();
    assert_eq!(count, 1, "an event for each change");
    let project = home.project();
    project_file(&project, &json!({ "own": server }));
    let inside = super::of_project(&d, "s-1", &project.display().to_string());
    in_state(&inside, "own", "pending_approval");
    let told = last("own", "pending_approval");
    assert!(told["project"].is_string() && told.get("reason").is_none(), "{told}");
}

#[test]
fn search_prints_the_found_tools_as_a_table() {
    let d = Daemon::start();
    let found = svc(&d.home, &["mcp", "search", "message"]);
    let lines: Vec<&str> = found.ok().lines().collect();
    assert!(lines[0].starts_with("TOOL"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("peer_send ")), "{lines:?}");
    let none = svc(&d.home, &["mcp", "search", "zzqqj"]);
    assert!(none.ok().contains("no tool fits"), "{none:?}");
}

#[test]
fn project_server_is_callable_from_its_folder() {
    let home = Home::new();
    let project = home.project();
    let script = toy(&home).display().to_string();
    ok(&home, &project, &["add", "own", "--scope", "project", "--", "python3", &script]);
    let d = Daemon::with(|plan| plan.home(&home));
    let called = until(SOON, || {
        let output = mcp(&home, &project, &["call", "own", "cwd"]);
        output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
    });
    let project = project.canonicalize().expect("is there");
    assert!(called.contains(&project.display().to_string()), "{called}");
    assert!(ok(&home, &project, &["tools", "own"]).contains("own__cwd"));
    assert!(ok(&home, &project, &["search", "toy cwd"]).contains("own__cwd"));
    fails(&home, home.user(), &["call", "own", "cwd"], 1);
    // The tokens are revoked.
    let tokens = d.get("/v1/tokens").ok(200);
    let live =
        tokens["tokens"].as_array().expect("tokens").iter().filter(|it| it["revoked_at"].is_null());
    assert_eq!(
        live.filter(|it| it["session"].to_string().contains("svc-mcp")).count(),
        0,
        "{tokens}"
    );
}

#[test]
fn import_copies_servers_once_or_follows_the_client() {
    let home = Home::new();
    let here = home.user().to_owned();
    let script = toy(&home).display().to_string();
    let servers = json!({ "numStartups": 1, "mcpServers": {
        "toy": { "command": "python3", "args": [script] },
        "known": { "command": "theirs" },
        "bad": { "args": [] },
        "svc": { "command": "svc", "args": ["stdio"] },
    } });
    fs::write(here.join(".claude.json"), servers.to_string()).expect("can be written");
    home.write("config.toml", "# mine\n[sources.known]\ncommand = \"ours\"\nenabled = false\n");
    let d = Daemon::with(|plan| plan.home(&home));
    fails(&home, &here, &["import", "vim"], 2);
    fails(&home, &here, &["import", "codex"], 1);
    let told = ok(&home, &here, &["import", "claude-code"]);
    assert!(told.contains("+[sources.toy]") && !told.contains("theirs"), "{told}");
    in_state(&d, "toy", "connected");
    let text = fs::read_to_string(home.path("config.toml")).expect("is there");
    assert!(
        text.starts_with("# mine\n") && !text.contains("theirs") && !text.contains("sources.svc"),
        "{text}"
    );
    assert!(ok(&home, &here, &["import", "claude"]).contains("nothing"));
    drop(d);
    home.write("config.toml", "[sources]\nimport = [\"claude-code\"]\n[sources.known]\ncommand = \"ours\"\nenabled = false\n");
    let d = Daemon::with(|plan| plan.home(&home));
    in_state(&d, "toy", "connected");
    let all = d.get("/v1/sources").ok(200);
    let of = |name: &str| {
        let rows = all["sources"].as_array().expect("rows").iter();
        rows.filter(|row| row["name"] == name).map(|row| row["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (of("known"), of("bad"), of("svc")),
        (vec![json!("disabled"), json!("hidden")], vec![json!("misconfigured")], vec![])
    );
    let fewer = json!({ "mcpServers": {} });
    fs::write(here.join(".claude.json"), fewer.to_string()).expect("can be written");
    until(SOON, || (d.get("/v1/sources").ok(200)["count"] == 1).then_some(()));
}

/// Serves pages of a registry, and counts the requests.
fn registry() -> (String, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            let first = lines.next().expect("a request").expect("text");
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let server = |name: &str, what: &str| {
                json!({ "server": {
                "name": name, "description": what, "version": "1.0.0",
                "packages": [{ "registryType": "npm", "identifier": "pack", "version": "1.0.0" }],
            } })
            };
            let page = if first.contains("cursor=") {
                json!({ "servers": [server("io.b/two", "Reads Mail")], "metadata": { "nextCursor": "more" } })
            } else {
                json!({ "servers": [server("io.a/one", "reads files")], "metadata": { "nextCursor": "more" } })
            };
            let body = page.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).expect("is written");
        }
    });
    (url, asked)
}

#[test]
fn registry_is_read_completely_and_cached_for_a_day() {
    let home = Home::new();
    let here = home.user().to_owned();
    let (url, asked) = registry();
    home.write("config.toml", &format!("[sources]\nregistry = \"{url}\"\n"));
    let found = ok(&home, &here, &["search", "--registry", "READS mail", "--json"]);
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!((&found["count"], &found["servers"][0]["name"]), (&json!(1), &json!("io.b/two")));
    assert_eq!(found["servers"][0]["start"], "npx -y pack@1.0.0");
    let found = ok(&home, &here, &["search", "--registry", "reads"]);
    assert!(found.contains("io.a/one") && found.contains("io.b/two"), "{found}");
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2, "the second search asks nobody");
    home.write("config.toml", "[sources]\nregistry = \"http://127.0.0.1:1\"\n");
    let told = fails(&home, &here, &["search", "--registry", "reads"], 1);
    assert!(told.contains("127.0.0.1:1"), "{told}");
}
