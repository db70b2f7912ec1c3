//! Working folders of servers, and relative paths in their entries.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{SOON, body, call, in_state, of_project, said};
use crate::daemon::{Daemon, Home, until};

/// A folder with the test server below it.
fn with_server(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder.join("mcp")).expect("can be made");
    let folder = folder.canonicalize().expect("is there");
    fs::write(folder.join("mcp/toy.py"), include_str!("toy_server.py")).expect("can be written");
    let start = "#!/bin/sh\nexec python3 \"$(dirname \"$0\")/toy.py\"\n";
    let program = folder.join("mcp/toy");
    fs::write(&program, start).expect("can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("can be set");
    folder
}

/// An entry whose argument is relative.
fn relative(more: &Value) -> Value {
    let mut entry = json!({ "command": "python3", "args": ["./mcp/toy.py"] });
    let more = more.as_object().expect("members").clone();
    entry.as_object_mut().expect("members").extend(more);
    entry
}

fn write(folder: &Path, name: &str, servers: &Value) -> PathBuf {
    let path = folder.join(name);
    let document = json!({ "mcpServers": servers }).to_string();
    fs::write(&path, document).expect("can be written");
    path
}

fn shown(folder: &Path) -> String {
    folder.display().to_string()
}

#[test]
fn relative_paths_start_at_the_entrys_file() {
    let home = Home::new();
    let files = with_server(&home.user().join("files"));
    let work = home.user().canonicalize().expect("is there").join("work");
    fs::create_dir_all(&work).expect("can be made");
    let servers = json!({
        "plain": relative(&json!({})), "all": relative(&json!({ "sharing": "shared" })),
        "each": relative(&json!({ "sharing": "session" })),
        "program": { "command": "./mcp/toy" },
        "below": { "command": "python3", "args": ["toy.py"], "cwd": "mcp" },
        "given": { "command": "python3", "args": [files.join("mcp/toy.py")], "cwd": work },
    });
    let file = write(&files, "servers.json", &servers);
    let config = home.dir();
    fs::create_dir_all(&config).expect("can be made");
    let config = with_server(&config);
    fs::write(
        config.join("config.toml"),
        "[sources.own]\ncommand = \"python3\"\nargs = [\"./mcp/toy.py\"]\n",
    )
    .expect("can be written");
    let d = Daemon::with(|plan| plan.home(&home).flag("--mcp-config").flag(&shown(&file)));
    let cwd = |caller, server: &str| said(&call(caller, &format!("{server}__cwd"), &json!({})));
    for (server, folder) in [
        ("plain", &files),
        ("all", &files),
        ("each", &files),
        ("program", &files),
        ("below", &files.join("mcp")),
        ("given", &work),
        ("own", &config),
    ] {
        in_state(&d, server, "connected");
        assert_eq!(cwd(&d, server), shown(folder), "{server}");
    }
    // For callers of a project it is the project's folder, unless one instance serves all or the
    // entry names another.
    let project = with_server(&home.project());
    let inside = of_project(&d, "s-1", &shown(&project));
    for (server, folder) in [
        ("plain", &project),
        ("each", &project),
        ("all", &files),
        ("below", &files.join("mcp")),
        ("given", &work),
    ] {
        assert_eq!(cwd(&inside, server), shown(folder), "{server}");
    }
}

/// A program of the caller's project runs only if a person approved the project's file.
#[test]
fn relative_program_is_never_one_of_the_callers_project() {
    let home = Home::new();
    let config = home.dir();
    fs::create_dir_all(&config).expect("can be made");
    let config = with_server(&config);
    fs::write(
        config.join("config.toml"),
        "[sources.own]\ncommand = \"./mcp/toy\"\nsharing = \"project\"\n\
         [sources.each]\ncommand = \"./mcp/toy\"\nsharing = \"session\"\n",
    )
    .expect("can be written");
    let project = home.project();
    fs::create_dir_all(project.join("mcp")).expect("can be made");
    let project = project.canonicalize().expect("is there");
    let (mark, program) = (project.join("ran"), project.join("mcp/toy"));
    fs::write(&program, format!("#!/bin/sh\ntouch '{}'\n", mark.display()))
        .expect("can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("can be set");
    let d = Daemon::with(|plan| plan.home(&home));
    in_state(&d, "own", "connected");
    in_state(&d, "each", "connected");
    let inside = of_project(&d, "s-1", &shown(&project));
    for server in ["own", "each"] {
        // The working folder is the project's; the program is that of the folder of `config.toml`.
        let folder = said(&call(&inside, &format!("{server}__cwd"), &json!({})));
        assert_eq!(folder, shown(&project), "{server}");
    }
    assert!(!mark.exists(), "a program of the project ran, which nobody approved");
}

#[test]
fn plugin_changes_apply_without_a_restart() {
    let home = Home::new();
    let d = Daemon::with(|plan| plan.home(&home));
    let plugin = with_server(&home.path("plugins/db"));
    let servers =
        json!({ "db": relative(&json!({})), "program": { "command": "./mcp/toy", "cwd": "mcp" } });
    write(&plugin, "plugin.json", &servers);
    // No request may come before it exists. The stream exists only after its first event.
    let events = || body(&d.get("/v1/events?stream=team&kind=source.state&limit=500"));
    until(SOON, || events().contains(r#""db""#).then_some(()));
    in_state(&d, "db", "connected");
    in_state(&d, "program", "connected");
    let project = with_server(&home.project());
    let inside = of_project(&d, "s-1", &shown(&project));
    for caller in [&*d, &inside] {
        // A plugin's arguments are relative to its own files, whoever calls.
        assert_eq!(said(&call(caller, "db__cwd", &json!({}))), shown(&plugin));
        assert_eq!(said(&call(caller, "program__cwd", &json!({}))), shown(&plugin.join("mcp")));
    }
    fs::remove_dir_all(&plugin).expect("can be removed");
    until(SOON, || (d.get("/v1/sources/db").status() == 404).then_some(()));
    let tools = d.get("/v1/tools?limit=500").ok(200).to_string();
    assert!(!tools.contains("db__cwd"), "{tools}");
}

#[test]
fn document_paths_start_at_the_folder_of_the_command() {
    let home = Home::new();
    let folder = with_server(&home.user().join("here"));
    let document = json!({ "mcpServers": { "toy": relative(&json!({})) } }).to_string();
    let mut start =
        home.command(&["start", "--listen", "127.0.0.1:0", "--mcp-config", &document, "--json"]);
    let started = start.current_dir(&folder).output().expect("it runs");
    assert!(started.status.success(), "{started:?}");
    let row = || {
        let row = crate::daemon::svc(&home, &["mcp", "get", "toy", "--json"]).json();
        Some(row).filter(|row| row["state"] == "connected")
    };
    until(SOON, row);
    let mut call = home.command(&["mcp", "call", "toy", "cwd"]);
    let told = call.current_dir(&folder).output().expect("it runs");
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(text.contains(&shown(&folder)), "{told:?}");
    crate::daemon::svc(&home, &["stop"]).ok();
}
