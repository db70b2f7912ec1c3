//! A project is named by its remote, wherever its folders are, and a folder's project is decided at
//! its first contact: no line in a repository's configuration changes it afterwards.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::{Daemon, Home, svc};
use crate::expect::{problem, text};
use crate::identity::FakeClient;
use crate::stored::is_in_file;
use crate::wire::Caller;

/// Makes a repository by its files alone. An empty address is no remote.
fn repository(home: &Home, name: &str, address: &str) -> PathBuf {
    let folder = home.user().join(name);
    fs::create_dir_all(folder.join(".git")).expect("a folder");
    configure(&folder, &remote(address));
    folder
}

fn remote(address: &str) -> String {
    if address.is_empty() {
        String::new()
    } else {
        format!("[remote \"origin\"]\n\turl = {address}\n")
    }
}

fn configure(folder: &Path, config: &str) {
    fs::write(folder.join(".git/config"), config).expect("is written");
}

fn shown(folder: &Path) -> &str {
    folder.to_str().expect("UTF-8")
}

/// A session token for a folder, and the project that it has.
fn mint(d: &Daemon, session: &str, folder: &Path) -> (Caller, String) {
    let input = json!({ "session": session, "project": shown(folder) });
    let minted = d.post("/v1/tokens", &input).ok(201);
    (d.with_token(&text(&minted, "token")), text(&minted, "project"))
}

fn project_of(d: &Daemon, folder: &Path) -> String {
    mint(d, "any", folder).1
}

/// Leaves a session with a word of its own in a caller's project.
fn leave(caller: &Caller, session: &str) {
    caller.tool("start_session", &json!({ "session_id": session }));
}

fn sees(caller: &Caller, session: &str) -> bool {
    let page = caller.get("/v1/sessions").ok(200);
    let sessions = page["sessions"].as_array().unwrap_or_else(|| panic!("{page}"));
    sessions.iter().any(|it| it["session_id"] == json!(session))
}

fn listed(home: &Home, project: &str) -> Value {
    let page = svc(home, &["project", "list", "--json"]).json();
    let projects = page["projects"].as_array().unwrap_or_else(|| panic!("{page}")).clone();
    let of_name = projects.into_iter().find(|it| it["project"] == json!(project));
    of_name.unwrap_or_else(|| panic!("no {project} in {page}"))
}

/// What `svc doctor` says of projects.
fn findings(home: &Home) -> Vec<Value> {
    let ran = svc(home, &["doctor", "--json"]);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let checks = found["checks"].as_array().unwrap_or_else(|| panic!("{found}")).clone();
    checks.into_iter().filter(|check| check["check"] == json!("projects")).collect()
}

#[test]
fn checkouts_of_one_remote_are_one_project_and_a_fork_is_another() {
    let home = Home::new();
    let d = Daemon::with(|plan| plan.home(&home));
    let main = repository(&home, "shop", "https://ann:s3cret@Git.Example:443/ann/shop.git");
    let second = repository(&home, "elsewhere/copy", "git@git.example:ann/shop");
    let fork = repository(&home, "fork", "git@git.example:bob/shop.git");
    let (ann, project) = mint(&d, "ann", &main);
    assert_eq!(project, "git.example/ann/shop");
    let (bob, of_second) = mint(&d, "bob", &second.join("src"));
    assert_eq!(of_second, project);
    let (eve, of_fork) = mint(&d, "eve", &fork);
    assert_eq!(of_fork, "git.example/bob/shop");
    leave(&ann, "ann");
    assert!(sees(&bob, "ann"), "it is the same project");
    assert!(!sees(&eve, "ann"), "a fork is another");

    // A filter takes the name and each of the folders.
    for named in [project.as_str(), shown(&main), shown(&second)] {
        let page = svc(&home, &["session", "list", "--project", named, "--json"]).json();
        assert_eq!(page["count"], json!(1), "{named}: {page}");
    }
    let list = listed(&home, &project);
    let mut folders: Vec<String> = list["folders"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|folder| text(folder, "folder"))
        .collect();
    folders.sort();
    let mut expected = vec![shown(&main).to_owned(), shown(&second).to_owned()];
    expected.sort();
    assert_eq!(folders, expected);
    let table = svc(&home, &["project", "list"]);
    assert!(table.ok().contains("git.example/ann/shop"), "{table:?}");
    assert!(!table.ok().contains("MACHINE"), "there is one machine: {table:?}");
    assert!(!list.to_string().contains("s3cret"), "{list}");
    only_if!(is_in_file());
    let file = fs::read(home.path("svc.db")).expect("is read");
    let log = fs::read(home.path("svc.db-wal")).unwrap_or_default();
    let has = |bytes: &[u8]| bytes.windows(6).any(|part| part == b"s3cret");
    assert!(!has(&file) && !has(&log), "no credential is stored");
}

#[test]
fn a_remote_that_changes_later_changes_nothing_until_the_folder_is_moved() {
    let home = Home::new();
    let mut d = Daemon::with(|plan| plan.home(&home));
    let victim = repository(&home, "victim", "h.example:ann/shop");
    let folder = repository(&home, "other", "h.example:eve/toy");
    let (ann, of_victim) = mint(&d, "ann", &victim);
    leave(&ann, "ann");
    assert_eq!(project_of(&d, &folder), "h.example/eve/toy");
    assert_eq!(findings(&home), [json!(null); 0]);

    configure(&folder, &remote("h.example:ann/shop"));
    let (eve, project) = mint(&d, "eve", &folder);
    assert_eq!(project, "h.example/eve/toy");
    assert!(!sees(&eve, "ann"));
    d.restart();
    let (eve, project) = mint(&d, "eve", &folder.join("src"));
    assert_eq!(project, "h.example/eve/toy", "also for another daemon, and below it");
    assert!(!sees(&eve, "ann"));
    problem(&eve.post("/v1/projects/move", &json!({ "folder": shown(&folder) })), 403, "forbidden");

    let list = listed(&home, "h.example/eve/toy");
    assert_eq!(list["folders"][0]["differs"], json!(of_victim), "{list}");
    let found = findings(&home);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["level"], json!("warn"));
    assert!(text(&found[0], "detail").contains(shown(&folder)), "{found:?}");

    let moved = svc(&home, &["project", "move", shown(&folder), "--json"]).json();
    assert_eq!(moved["project"], json!(of_victim), "{moved}");
    assert_eq!(moved["from"], json!("h.example/eve/toy"));
    assert!(sees(&mint(&d, "eve", &folder).0, "ann"), "a person moved it");
    assert_eq!(findings(&home), [json!(null); 0]);
    let again = svc(&home, &["project", "move", shown(&folder)]);
    assert!(again.ok().contains("as before"), "{again:?}");
    let nowhere = svc(&home, &["project", "move", "/nowhere/at/all"]);
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
}

#[test]
fn a_project_that_gets_a_remote_keeps_its_rows() {
    let home = Home::new();
    let d = Daemon::with(|plan| plan.home(&home));
    let folder = repository(&home, "shop", "");
    let (ann, project) = mint(&d, "ann", &folder);
    assert_eq!(project, shown(&folder));
    leave(&ann, "ann");
    configure(&folder, &remote("https://h.example/ann/shop.git"));
    assert_eq!(project_of(&d, &folder), project);
    assert_eq!(findings(&home).len(), 1);
    let moved = svc(&home, &["project", "move", shown(&folder), "--json"]).json();
    assert_eq!(moved["alias"], json!("h.example/ann/shop"), "{moved}");
    assert_eq!(moved["project"], json!(project));
    assert_eq!(listed(&home, &project)["aliases"], json!(["h.example/ann/shop"]));
    assert_eq!(findings(&home), [json!(null); 0]);
    let copy = repository(&home, "copy", "h.example:ann/shop");
    let (bob, of_copy) = mint(&d, "bob", &copy);
    assert_eq!(of_copy, project);
    assert!(sees(&bob, "ann"));
    let by_name = svc(&home, &["session", "list", "--project", "h.example/ann/shop", "--json"]);
    assert_eq!(by_name.json()["count"], json!(1), "{by_name:?}");
    // Its remote changes once more: that is another project, and the rows stay where they are.
    configure(&folder, &remote("https://h.example/bob/shop.git"));
    let moved = svc(&home, &["project", "move", shown(&folder), "--json"]).json();
    assert_eq!(moved["project"], json!("h.example/bob/shop"), "{moved}");
    assert!(!sees(&mint(&d, "ann2", &folder).0, "ann"));
    assert!(sees(&bob, "ann"));
}

#[test]
fn a_clients_session_is_in_the_project_of_its_folder_and_stays_there() {
    let home = Home::new();
    let d = Daemon::with(|plan| plan.home(&home));
    let shop = repository(&home, "shop", "h.example:ann/shop");
    let copy = repository(&home, "copy", "https://h.example/ann/shop.git");
    repository(&home, "toy", "h.example:eve/toy");
    let start = |session: &str, folder: &Path| {
        let event = json!({ "session_id": session, "hook_event_name": "SessionStart", "source": "startup" });
        let mut event = event.as_object().expect("an object").clone();
        event.insert("cwd".to_owned(), json!(folder));
        Value::from(event)
    };
    let project = |session: &str| {
        let shown = d.get(&format!("/v1/sessions/{session}")).ok(200);
        text(&shown, "project")
    };
    let mut one = FakeClient::start(&home, "one", "shop", "");
    one.hook(&start("session-1", &shop));
    let mut two = FakeClient::start(&home, "two", "copy", "");
    two.hook(&start("session-2", &copy));
    assert_eq!(project("session-1"), "h.example/ann/shop");
    assert_eq!(project("session-2"), "h.example/ann/shop");
    let page = d.get("/v1/peers").ok(200);
    let peers = page["peers"].as_array().expect("a list");
    for (session, folder, name) in
        [("session-1", &shop, "claude-code@shop"), ("session-2", &copy, "claude-code@copy")]
    {
        let own = peers.iter().find(|peer| peer["session_id"] == json!(session));
        let own = own.unwrap_or_else(|| panic!("{page}"));
        assert_eq!(own["path"], json!(folder), "its own checkout");
        assert_eq!(own["display_name"], json!(name));
    }
    // Neither a later session of the folder nor this one follows the line.
    configure(&copy, &remote("h.example:eve/toy"));
    let prompt = json!({
        "session_id": "session-2", "hook_event_name": "UserPromptSubmit", "prompt": "go on",
        "cwd": shown(&copy),
    });
    two.hook(&prompt);
    let mut three = FakeClient::start(&home, "three", "copy", "");
    three.hook(&start("session-3", &copy));
    assert_eq!(project("session-2"), "h.example/ann/shop");
    assert_eq!(project("session-3"), "h.example/ann/shop");
    svc(&home, &["project", "move", shown(&copy)]).ok();
    let mut four = FakeClient::start(&home, "four", "copy", "");
    four.hook(&start("session-4", &copy));
    assert_eq!(project("session-4"), "h.example/eve/toy");
    assert_eq!(project("session-2"), "h.example/ann/shop", "what was recorded stays");
}

#[test]
fn a_folder_of_an_earlier_version_keeps_its_project_and_gets_its_name() {
    only_if!(is_in_file());
    let home = Home::new();
    let mut d = Daemon::with(|plan| plan.home(&home));
    let shop = repository(&home, "shop", "");
    let (ann, project) = mint(&d, "ann", &shop);
    leave(&ann, "ann");
    d.stop();
    // As the upgrade leaves it.
    let file = rusqlite::Connection::open(home.path("svc.db")).expect("opens");
    file.execute("update project_folder set decided_at = null", []).expect("is changed");
    drop(file);
    configure(&shop, &remote("h.example:ann/shop"));
    d.restart();
    assert_eq!(findings(&home), [json!(null); 0], "its next contact names it");
    assert_eq!(project_of(&d, &shop), project);
    assert_eq!(listed(&home, &project)["aliases"], json!(["h.example/ann/shop"]));
    let (bob, of_copy) = mint(&d, "bob", &repository(&home, "copy", "h.example:ann/shop"));
    assert_eq!(of_copy, project);
    assert!(sees(&bob, "ann"));
}

#[test]
fn a_hostile_configuration_moves_nobody_and_holds_nobody_up() {
    let home = Home::new();
    let d = Daemon::with(|plan| plan.home(&home));
    let victim = repository(&home, "victim", "h.example:ann/shop");
    let (ann, of_victim) = mint(&d, "ann", &victim);
    leave(&ann, "ann");
    let line = remote("h.example:ann/shop");
    let large = format!("{}{line}", "# note\n".repeat(10 * 1024 * 1024 / 7));
    let include = format!("[include]\n\tpath = {}\n", shown(&victim.join(".git/config")));
    for (name, config) in [
        ("large", large.as_str()),
        ("include", include.as_str()),
        ("control", "[remote \"origin\"]\n\turl = h.example:ann/shop\\n\u{1b}[2J\n"),
        ("torn", "[remote \"origin\n\turl = h.example:ann/shop\n"),
        ("path", "[remote \"origin\"]\n\turl = ../victim\n"),
        (
            "program",
            "[remote \"origin\"]\n\turl = ext::sh -c 'touch made'\n[core]\n\tfsmonitor = touch made\n",
        ),
    ] {
        let folder = repository(&home, name, "");
        configure(&folder, config);
        assert_eq!(project_of(&d, &folder), shown(&folder), "{name}");
        assert!(!folder.join("made").exists(), "{name}");
    }
    let linked = repository(&home, "linked", "");
    fs::remove_file(linked.join(".git/config")).expect("is removed");
    symlink(victim.join(".git/config"), linked.join(".git/config")).expect("is linked");
    assert_eq!(project_of(&d, &linked), shown(&linked));
    let pipe = repository(&home, "pipe", "");
    fs::remove_file(pipe.join(".git/config")).expect("is removed");
    let made = Command::new("mkfifo").arg(pipe.join(".git/config")).status();
    assert!(made.expect("mkfifo runs").success());
    assert_eq!(project_of(&d, &pipe), shown(&pipe));
    // A worktree that the repository does not know.
    let tree = home.user().join("tree");
    fs::create_dir_all(victim.join(".git/worktrees/x")).expect("a folder");
    fs::write(victim.join(".git/worktrees/x/commondir"), "../..\n").expect("is written");
    fs::create_dir_all(&tree).expect("a folder");
    let points = format!("gitdir: {}\n", shown(&victim.join(".git/worktrees/x")));
    fs::write(tree.join(".git"), points).expect("is written");
    let (eve, project) = mint(&d, "eve", &tree);
    assert_eq!(project, shown(&tree));
    assert!(!sees(&eve, "ann"));
    // Now each of them says what it could not say.
    for name in ["large", "include", "control", "linked", "tree"] {
        let folder = home.user().join(name);
        if name != "tree" && name != "linked" {
            configure(&folder, &line);
        }
        assert_ne!(project_of(&d, &folder), of_victim, "{name}");
    }
}

fn git(folder: &Path, args: &[&str]) {
    let ran = Command::new("git")
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-C", shown(folder)])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .expect("git runs");
    assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn repositories_of_git_itself_are_read_like_its_own_commands_read_them() {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("git is not here, so its own repositories are not looked at");
        return;
    }
    let home = Home::new();
    let d = Daemon::with(|plan| plan.home(&home));
    let at = |name: &str| home.user().join(name);
    let made = |name: &str| {
        fs::create_dir_all(at(name)).expect("a folder");
        git(&at(name), &["init", "-q", "."]);
        git(&at(name), &["commit", "-q", "--allow-empty", "-m", "begin"]);
        at(name)
    };
    // Without a remote the first commit is its name, also for a copy.
    let plain = made("plain");
    let log = fs::read_to_string(plain.join(".git/logs/HEAD")).expect("is read");
    let first = log.split(' ').nth(1).expect("a commit").to_owned();
    git(&plain, &["commit", "-q", "--allow-empty", "-m", "go on"]);
    assert_eq!(project_of(&d, &plain), first);
    let copied = Command::new("cp").arg("-r").arg(&plain).arg(at("copied")).status();
    assert!(copied.expect("cp runs").success());
    assert_eq!(project_of(&d, &at("copied")), first);
    // A clone has a path as its remote and not the log of its first commit; a shallow one has not
    // even the commit.
    git(&at(""), &["clone", "-q", "plain", "clone"]);
    assert_eq!(project_of(&d, &at("clone")), shown(&at("clone")));
    let source = format!("file://{}", shown(&plain));
    git(&at(""), &["clone", "-q", "--depth", "1", &source, "shallow"]);
    assert_eq!(project_of(&d, &at("shallow")), shown(&at("shallow")));
    // A worktree is its repository, whether that has a name or not.
    let shop = made("shop");
    git(&shop, &["remote", "add", "origin", "ssh://git@h.example:22/ann/shop.git"]);
    git(&shop, &["worktree", "add", "-q", "../fix", "-b", "fix"]);
    assert_eq!(project_of(&d, &at("fix")), "h.example/ann/shop");
    assert_eq!(project_of(&d, &shop), "h.example/ann/shop");
    fs::create_dir_all(at("nameless")).expect("a folder");
    git(&at(""), &["clone", "-q", "plain", "nameless"]);
    git(&at("nameless"), &["worktree", "add", "-q", "../tree", "-b", "tree"]);
    assert_eq!(project_of(&d, &at("tree")), shown(&at("nameless")));
    // A submodule is a repository of its own.
    git(
        &shop,
        &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &source, "lib"],
    );
    git(&shop.join("lib"), &["remote", "set-url", "origin", "h.example:bob/lib.git"]);
    assert_eq!(project_of(&d, &shop.join("lib")), "h.example/bob/lib");
}

#[test]
fn folders_and_servers_stay_those_of_the_checkout() {
    let d = with_config("[agents.cat]\nbackend = 'exec'\ncommand = ['cat']\n");
    let main = repository(&d.home, "shop", "h.example:ann/shop");
    let second = repository(&d.home, "second", "h.example:ann/shop");
    let elsewhere = repository(&d.home, "elsewhere", "h.example:eve/toy");
    assert_eq!(project_of(&d, &main), "h.example/ann/shop");
    let input = json!({ "session": "ann", "project": shown(&second), "scopes": ["agents"] });
    let minted = d.post("/v1/tokens", &input).ok(201);
    let ann = d.with_token(&text(&minted, "token"));
    // Its own folder is the default, and what is in it needs no leave.
    let agent = ann.post("/v1/hosts", &json!({ "instance": "cat", "name": "one" })).ok(201);
    assert_eq!(agent["worktree"], json!(shown(&second)), "{agent}");
    assert_eq!(agent["project"], json!("h.example/ann/shop"));
    let there = json!({ "instance": "cat", "name": "two", "cwd": shown(&elsewhere) });
    problem(&ann.post("/v1/hosts", &there), 403, "forbidden");
    for named in ["h.example/ann/shop", "shop", shown(&main), shown(&second)] {
        let page =
            svc(&d.home, &["agent", "list", "--hosted", "--project", named, "--json"]).json();
        assert_eq!(page["count"], json!(1), "{named}: {page}");
    }
    let id = text(&agent, "id");
    d.post(&format!("/v1/hosts/{id}/stop"), &json!({ "force": true })).ok(200);
    // A server that one checkout names is that checkout's.
    let servers = json!({ "mcpServers": { "own": { "command": "cat" } } });
    fs::write(main.join(".mcp.json"), servers.to_string()).expect("is written");
    let names = |caller: &Caller| -> Vec<String> {
        let page = caller.get("/v1/sources").ok(200);
        let sources = page["sources"].as_array().unwrap_or_else(|| panic!("{page}"));
        sources.iter().map(|source| text(source, "name")).filter(|name| name == "own").collect()
    };
    assert_eq!(names(&ann), [""; 0]);
    assert_eq!(names(&mint(&d, "bob", &main).0), ["own"]);
}

#[test]
fn the_same_path_on_two_machines_is_two_projects_and_a_remote_is_one() {
    only_if!(is_in_file());
    let first = Home::new();
    first.write("config.toml", "[daemon]\nname = 'first'\n");
    let mut d = Daemon::with(|plan| plan.home(&first));
    let named = repository(&first, "shop", "h.example:ann/shop");
    let plain = repository(&first, "plain", "");
    assert_eq!(project_of(&d, &named), "h.example/ann/shop");
    let (ann, of_plain) = mint(&d, "ann", &plain);
    assert_eq!(of_plain, shown(&plain));
    leave(&ann, "ann");
    d.stop();

    let second = Home::new();
    second.write("config.toml", "[daemon]\nname = 'second'\n");
    fs::copy(first.path("svc.db"), second.path("svc.db")).expect("copies");
    let d = Daemon::with(|plan| plan.home(&second));
    assert_eq!(project_of(&d, &named), "h.example/ann/shop");
    let (bob, there) = mint(&d, "bob", &plain);
    assert!(
        there.starts_with("mach_") && there.ends_with(&format!(":{}", shown(&plain))),
        "{there}"
    );
    assert!(!sees(&bob, "ann"));
    let table = svc(&second, &["project", "list"]);
    assert!(table.ok().contains("MACHINE"), "{table:?}");
    assert!(table.ok().contains("first") && table.ok().contains("second"), "{table:?}");
    assert_eq!(listed(&second, "h.example/ann/shop")["folders"].as_array().map(Vec::len), Some(2));
    // Lists say what is where.
    let peer = json!({ "display_name": "one", "backend": "test", "path": "/one", "pid": d.pid() });
    d.post("/v1/peers/register", &peer).ok(200);
    let page = d.get("/v1/peers").ok(200);
    let one =
        page["peers"].as_array().expect("a list").iter().find(|it| it["display_name"] == "one");
    assert_eq!(one.expect("it is there")["machine"], json!("second"), "{page}");
    for list in ["peer", "agent"] {
        let table = svc(&second, &[list, "list"]);
        assert!(table.ok().contains("MACHINE") && table.ok().contains("second"), "{table:?}");
    }
}

#[test]
fn session_that_begins_with_a_call_is_of_its_tokens_project() {
    let d = Daemon::start();
    let (app, other) = (repository(&d.home, "app", ""), repository(&d.home, "other", ""));
    let ((ann, project), (bob, _)) = (mint(&d, "ann", &app), mint(&d, "bob", &app));
    let (eve, _) = mint(&d, "eve", &other);
    for tool in ["increment_tool_count", "reset_tool_count"] {
        ann.tool(tool, &json!({}));
        assert!(sees(&ann, "ann") && sees(&bob, "ann") && !sees(&eve, "ann"), "{tool}");
    }
    assert_eq!(d.get("/v1/sessions/ann").ok(200)["project"], json!(project));
}
