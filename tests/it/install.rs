//! Files of other programs: what is added to them, what stays, what is removed again.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Ran, Running, eventually, free_port, until, write_program};
use crate::expect::{each, text};

const SOON: Duration = Duration::from_secs(30);

const CLAUDE: &str = ".claude/settings.json";
const GEMINI: &str = ".gemini/settings.json";
const OPENCODE: &str = ".config/opencode/opencode.jsonc";

/// A person whose folders have a space in their names and whose clients are known by their files
/// only.
struct Person {
    folder: TempDir,
}

impl Person {
    fn new() -> Self {
        let person = Self { folder: TempDir::with_prefix("a person ").expect("a folder") };
        fs::create_dir(person.project()).expect("a project");
        person
    }

    /// With typical files: comments, servers, hooks, and styles of all kinds.
    fn with_clients() -> Self {
        let person = Self::new();
        let files = [
            (
                ".claude.json",
                "{\n  \"numStartups\": 12,\n  \"projects\": {},\n  \"mcpServers\": {\"a\": {\"command\": \"x\"}}\n}",
            ),
            (
                CLAUDE,
                "{\n    \"model\": \"opus\",\n    \"hooks\": {\n        \"Stop\": [\n            {\"hooks\": [{\"type\": \"command\", \"command\": \"say done\"}]}\n        ]\n    }\n}\n",
            ),
            (
                ".codex/config.toml",
                "# mine\nmodel = \"gpt-5\" # the good one\n\n[mcp_servers.a]\ncommand = \"x\"\n\n[projects.\"/x\"]\ntrust_level = \"trusted\"\n",
            ),
            (GEMINI, "{\"security\":{\"auth\":{\"selectedType\":\"gemini-api-key\"}}}"),
            (OPENCODE, "{\n\t// the small one\n\t\"model\": \"mock/mock-1\",\n\t\"mcp\": {},\n}\n"),
            (".cursor/mcp.json", "{\r\n  \"mcpServers\": {}\r\n}\r\n"),
        ];
        for (name, text) in files {
            person.write(name, text);
        }
        person
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("home").join(name)
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    #[track_caller]
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[track_caller]
    fn json(&self, name: &str) -> Value {
        let text = self.read(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"))
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders can be made");
        fs::write(path, text).expect("the file can be written");
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders can be made");
        write_program(&path, text);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_svc"));
        command
            .args(args)
            // Tests start and stop a daemon explicitly.
            .args(match args {
                ["install", word, ..] if *word != "status" => &["--no-start"][..],
                ["install"] => &["--no-start"],
                ["uninstall", ..] => &["--no-stop"],
                _ => &[],
            })
            .env_clear()
            // No client of this machine is on the PATH.
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .env("HOME", self.path(""))
            .current_dir(self.project());
        command
    }

    #[track_caller]
    fn svc(&self, args: &[&str]) -> Ran {
        Running::spawn(self.command(args)).wait(SOON)
    }

    /// Every file below the folder, with its text and mode.
    fn files(&self) -> BTreeMap<PathBuf, (String, u32)> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.is_file() {
                    let mode = fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
                    let text =
                        String::from_utf8_lossy(&fs::read(&path).expect("reads")).into_owned();
                    found.insert(path, (text, mode));
                }
            }
        }
        found
    }

    /// A daemon of this person, until the guard is dropped.
    fn daemon(&self) -> Started<'_> {
        let port = free_port();
        self.svc(&["start", "--listen", &format!("127.0.0.1:{port}")]).ok();
        Started { person: self, port }
    }

    #[track_caller]
    fn status(&self, client: &str) -> Value {
        let ran = self.svc(&["install", "status", client, "--json"]);
        let status: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
        let fine = status["ok"] == json!(true);
        assert_eq!(ran.code, Some(i32::from(!fine)), "{ran:?}");
        status["clients"][0].clone()
    }

    /// Waits until the hooks of Codex, which on a busy machine may not list them in time, are so.
    #[track_caller]
    fn hooks_of_codex(&self, state: &str) {
        until(SOON, || (self.status("codex")["hooks"][0]["state"] == state).then_some(()));
    }
}

struct Started<'a> {
    person: &'a Person,
    port: u16,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.person.svc(&["stop"]);
    }
}

/// The commands of all handlers in a file; asserts that none has arguments beside it.
#[track_caller]
fn lines(settings: &Value) -> Vec<String> {
    let events = settings["hooks"].as_object().expect("hooks").values();
    let groups = events.flat_map(|groups| groups.as_array().expect("groups"));
    let handlers = groups.flat_map(|group| group["hooks"].as_array().expect("handlers"));
    let line = |handler: &Value| {
        assert_eq!(handler.get("args"), None, "{handler}");
        text(handler, "command")
    };
    handlers.map(line).collect()
}

/// The program and the arguments at the end of a line, split by a shell.
#[track_caller]
fn words(line: &str) -> Vec<String> {
    let line = line.split_once("; exec ").expect("the shell becomes the program").1;
    let script = format!("set -- {line}\nprintf '%s\\n' \"$@\"");
    let ran = Command::new("/bin/sh").args(["-c", &script]).output().expect("a shell");
    String::from_utf8(ran.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn install_is_idempotent_and_uninstall_restores_every_file() {
    let person = Person::with_clients();
    let before = person.files();
    let installed = person.svc(&["install", "--json"]).json();
    assert_eq!(installed["changed"], json!(true));
    let clients = installed["clients"].as_array().expect("a list");
    assert_eq!(each(clients, "client"), ["claude-code", "codex", "gemini", "opencode", "cursor"]);

    let program = env!("CARGO_BIN_EXE_svc");
    let claude = &person.json(".claude.json")["mcpServers"];
    assert_eq!(claude["svc"], json!({ "type": "stdio", "command": program, "args": ["stdio"] }));
    assert_eq!(claude["a"], json!({ "command": "x" }));
    let hooks = &person.json(CLAUDE)["hooks"];
    assert_eq!(hooks["Stop"][0]["hooks"][0]["command"], "say done");
    let line = text(&hooks["Stop"][1]["hooks"][0], "command");
    assert_eq!(line, format!("test -x {program} || exit 0; exec {program} hook claude-code"));
    assert_eq!(hooks["Stop"][1]["hooks"][1]["asyncRewake"], json!(true));
    assert!(person.read(".codex/config.toml").contains("model = \"gpt-5\" # the good one\n"));
    assert!(person.read(".codex/config.toml").contains("[mcp_servers.svc]\n"));
    let line = text(&person.json(".codex/hooks.json")["hooks"]["Stop"][0]["hooks"][0], "command");
    assert_eq!(words(&line), [program, "hook", "codex"]);
    for name in [CLAUDE, GEMINI, ".codex/hooks.json"] {
        let lines = lines(&person.json(name));
        assert!(lines.len() >= 5, "{name}: {lines:?}");
        for line in lines.iter().filter(|line| *line != "say done") {
            assert!(line.starts_with(&format!("test -x {program} || exit 0; exec ")), "{line}");
        }
    }
    assert_eq!(person.json(GEMINI)["hooks"]["AfterTool"][0]["hooks"][0]["timeout"], json!(5000));
    assert!(person.read(OPENCODE).contains("\t// the small one\n"));
    assert!(person.read(".config/opencode/plugin/svc.js").contains("hook_event"));
    assert!(person.read(".cursor/mcp.json").contains("\"svc\": {\r\n"));
    assert!(person.read(".claude.json.svc-backup").contains("numStartups"));

    let between = person.files();
    let again = person.svc(&["install", "--json"]).json();
    assert_eq!(again["changed"], json!(false));
    assert_eq!(person.files(), between, "the second time changes nothing");

    assert!(!person.svc(&["uninstall", "--dry-run"]).ok().is_empty());
    assert_eq!(person.files(), between, "a dry run changes nothing");
    person.svc(&["uninstall"]).ok();
    assert_eq!(person.files(), before, "byte for byte, and nothing left behind");
    assert!(person.svc(&["uninstall"]).ok().contains("nothing to do"));
}

#[test]
fn dry_run_prints_a_diff_and_writes_nothing() {
    let person = Person::with_clients();
    let before = person.files();
    let ran = person.svc(&["install", "--dry-run"]);
    let diff = ran.ok();
    assert!(diff.contains("+++ ") && diff.contains("@@ "), "{diff}");
    assert!(diff.contains("+[mcp_servers.svc]\n"), "{diff}");
    assert!(diff.contains("--- /dev/null\n"), "{diff}");
    assert_eq!(person.files(), before);
    assert!(!person.path(".local").exists(), "not even the data folder");
}

#[test]
fn file_of_claude_code_without_its_folder_is_found() {
    let person = Person::new();
    person.write(".claude.json", "{}");
    person.svc(&["install"]).ok();
    assert!(person.json(".claude.json")["mcpServers"].get("svc").is_some());
    let status = person.svc(&["install", "status", "--json"]).json();
    assert_eq!(status["clients"][0]["client"], "claude-code", "{status}");
}

#[test]
fn uninstall_leaves_an_empty_home_empty() {
    let person = Person::new();
    fs::create_dir(person.path("")).expect("a home");
    let nobody = person.svc(&["install"]);
    assert!(nobody.ok().contains("no client was found here"), "{nobody:?}");
    assert!(nobody.stdout.contains("claude-code") && !nobody.stdout.contains("already installed"));
    assert_eq!(person.svc(&["install", "--json"]).json()["changed"], false);
    assert_eq!(person.files(), BTreeMap::new());
    person.svc(&["install", "claude", "codex", "gemini", "opencode", "zed"]).ok();
    let modes: Vec<u32> = person.files().values().map(|(_, mode)| *mode).collect();
    assert!(modes.iter().all(|mode| *mode == 0o600), "{modes:?}");
    let mode = fs::metadata(person.path(".codex")).expect("a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    person.svc(&["uninstall"]).ok();
    assert_eq!(person.files(), BTreeMap::new());
    for folder in [".claude", ".codex", ".gemini", ".config"] {
        assert!(!person.path(folder).exists(), "{folder}");
    }
}

/// The data folder was removed first, or is another one.
#[test]
fn uninstall_without_the_record_removes_only_entries_of_svc() {
    let person = Person::with_clients();
    person.svc(&["install", "--allow-tools"]).ok();
    assert!(person.read(CLAUDE).contains("mcp__svc__peer_list"), "it is allowed");
    fs::remove_dir_all(person.path(".local/share/svc")).expect("is there");
    person.write(CLAUDE, &person.read(CLAUDE).replace("\"opus\"", "\"sonnet\""));
    person.svc(&["uninstall"]).ok();
    for folder in [".config/opencode/plugin", ".gemini/policies"] {
        assert!(!person.path(folder).exists(), "{folder}");
    }
    let say = json!([{ "hooks": [{ "type": "command", "command": "say done" }] }]);
    assert_eq!(person.json(CLAUDE), json!({ "model": "sonnet", "hooks": { "Stop": say } }));
    let auth = json!({ "auth": { "selectedType": "gemini-api-key" } });
    assert_eq!(person.json(GEMINI), json!({ "security": auth }));
    assert!(person.svc(&["uninstall"]).ok().contains("nothing to do"));
}

#[test]
fn scope_that_nothing_asks_for_is_refused() {
    let person = Person::with_clients();
    let before = person.files();
    let wrong = person.svc(&["install", "claude-code", "--scope", "deploy"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("deploy") && wrong.stderr.contains("approve"), "{wrong:?}");
    assert_eq!(person.files(), before);
    let server = "[sources.ship]\ncommand = \"ship-mcp\"\nscope = \"deploy\"\n";
    person.write(".config/svc/config.toml", server);
    person.svc(&["install", "claude-code", "--scope", "deploy", "--dry-run"]).ok();
}

/// `svc install` refuses a server `svc` that is another program, so it cannot be the advice.
#[test]
fn another_program_by_our_name_has_advice_that_helps() {
    let person = Person::with_clients();
    person.svc(&["install", "claude-code"]).ok();
    let mut config = person.json(".claude.json");
    config["mcpServers"]["svc"] = json!({ "command": "another", "args": [] });
    person.write(".claude.json", &config.to_string());
    assert_eq!(person.status("claude-code")["servers"][0]["state"], "foreign");
    let shown = person.svc(&["install", "status", "claude-code"]);
    let advice = shown.stdout.lines().find(|line| line.contains("-> ")).expect("advice");
    assert!(advice.contains("rename or remove") && advice.contains(".claude.json"), "{advice}");
}

#[test]
fn servers_or_hooks_can_be_left_out() {
    let person = Person::with_clients();
    let before = person.files();
    person.svc(&["install", "claude-code", "--no-hooks"]).ok();
    assert_eq!(person.read(CLAUDE), before[&person.path(CLAUDE)].0);
    assert!(person.read(".claude.json").contains("\"svc\""));
    person.svc(&["install", "gemini", "--no-mcp"]).ok();
    assert_eq!(person.json(GEMINI).get("mcpServers"), None);
    assert!(person.json(GEMINI)["hooks"].is_object());
    assert_eq!(person.svc(&["install", "--no-mcp", "--no-hooks"]).code, Some(2));
    assert_eq!(person.svc(&["install", "emacs"]).code, Some(2));
    assert_eq!(person.status("claude-code")["problems"], json!([]));
    person.svc(&["uninstall", "gemini"]).ok();
    assert!(person.read(".claude.json").contains("\"svc\""), "the other one stays");
    person.svc(&["uninstall"]).ok();
    assert_eq!(person.files(), before);
}

#[test]
fn uneditable_file_is_skipped_and_others_are_changed() {
    let person = Person::with_clients();
    person.write(CLAUDE, "{ \"hooks\": ");
    person.write(GEMINI, "{\"mcpServers\": {\"svc\": {\"command\": \"/opt/another\"}}}");
    person.write(".cursor/mcp.json", "[]");
    fs::remove_file(person.path(OPENCODE)).expect("is there");
    fs::create_dir(person.path(OPENCODE)).expect("a folder in its place");
    let before = person.files();
    let ran = person.svc(&["install"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for (name, what) in [
        (CLAUDE, "is not valid JSON"),
        (GEMINI, "has a server named `svc` that is not this program's"),
        (".cursor/mcp.json", "has something else than an object"),
        (OPENCODE, "is no regular file"),
    ] {
        let line = ran.stderr.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains(what)), "{name}: {ran:?}");
    }
    for name in [CLAUDE, GEMINI, ".cursor/mcp.json"] {
        assert_eq!(person.read(name), before[&person.path(name)].0);
    }
    assert!(person.read(".codex/config.toml").contains("[mcp_servers.svc]"));
    // A file that the installer refuses needs other advice: the person corrects the file first.
    let mend = format!("mend {} by hand", person.path(CLAUDE).display());
    for args in [&["install", "status", "claude-code"][..], &["doctor"]] {
        let ran = person.svc(args);
        let place = ran.stdout.lines().find(|line| line.contains("is not valid JSON"));
        assert!(place.is_some_and(|line| line.contains("line 1")), "{args:?}: {ran:?}");
        assert!(ran.stdout.contains(&mend), "{args:?}: {ran:?}");
        assert!(!ran.stdout.contains("-> svc install claude-code\n"), "{args:?}: {ran:?}");
    }
    person.svc(&["uninstall"]).ok();
    assert_eq!(person.files(), before);
}

#[test]
fn concurrently_rewritten_file_loses_neither_edit() {
    let person = Person::with_clients();
    let path = person.path(".claude.json");
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            // As Claude Code does it: writes the whole file, from what it read.
            for n in 0..200 {
                let text = fs::read_to_string(&path).expect("reads");
                let mut config: Value = serde_json::from_str(&text).expect("is whole");
                config["numStartups"] = json!(n);
                let next = path.with_extension("next");
                fs::write(&next, serde_json::to_string_pretty(&config).expect("is JSON"))
                    .expect("writes");
                fs::rename(&next, &path).expect("renames");
                if config["mcpServers"].get("svc").is_some() {
                    return n;
                }
            }
            200
        }
    });
    person.svc(&["install", "claude-code"]).ok();
    let seen = writer.join().expect("the other program");
    let config = person.json(".claude.json");
    assert_eq!(config["mcpServers"]["a"], json!({ "command": "x" }));
    // Only the other program could close the window between svc's read and its rename, so its last
    // write counts; a second installation adds svc's entries.
    if seen == 200 {
        person.svc(&["install", "claude-code"]).ok();
    }
    assert!(person.json(".claude.json")["mcpServers"].get("svc").is_some());
}

#[test]
fn project_files_have_neither_paths_nor_secrets() {
    let person = Person::with_clients();
    let daemon = person.daemon();
    let clients = ["claude-code", "codex", "gemini", "opencode", "cursor", "vscode"];
    person.svc(&[&["install", "--project"][..], &clients[..]].concat()).ok();
    let token = person.svc(&["token", "show"]).ok().trim().to_owned();
    let below = person.project();
    let files: Vec<_> =
        person.files().into_iter().filter(|(path, _)| path.starts_with(&below)).collect();
    assert!(files.len() >= 8, "{files:?}");
    for (path, (text, _)) in &files {
        assert!(!text.contains(&token) && !text.contains("Bearer \""), "{}", path.display());
        assert!(!text.contains(env!("CARGO_BIN_EXE_svc")), "{}", path.display());
        assert!(!text.contains(&*person.path("").to_string_lossy()), "{}: {text}", path.display());
    }
    let shared = fs::read_to_string(below.join(".mcp.json")).expect("is there");
    let shared: Value = serde_json::from_str(&shared).expect("is JSON");
    assert_eq!(shared["mcpServers"]["svc"]["command"], "svc");

    // A person without svc on the PATH sees nothing of it.
    let settings = fs::read_to_string(below.join(CLAUDE)).expect("is there");
    let settings: Value = serde_json::from_str(&settings).expect("is JSON");
    let line = text(&settings["hooks"]["PreToolUse"][0]["hooks"][0], "command");
    let ran = Command::new("/bin/sh").args(["-c", &line]).env("PATH", "/nowhere").output();
    let ran = ran.expect("a shell");
    assert!(ran.status.success() && ran.stdout.is_empty() && ran.stderr.is_empty(), "{ran:?}");

    person.svc(&["install", "claude-code"]).ok();
    let problems = person.status("claude-code")["problems"].to_string();
    assert!(problems.contains("two servers") && problems.contains("run twice"), "{problems}");
    person.svc(&["uninstall", "claude-code", "--project"]).ok();
    assert!(!below.join(".mcp.json").exists());
    assert!(person.json(".claude.json")["mcpServers"].get("svc").is_some(), "yours stays");
    person.svc(&["uninstall"]).ok();
    let left = person.files().into_keys().filter(|path| path.starts_with(&below)).count();
    assert_eq!(left, 0);
    drop(daemon);
}

#[test]
fn custom_data_folder_is_written_for_every_client() {
    let person = Person::with_clients();
    let home = person.path("the data");
    let mut command = person.command(&["install", "claude-code", "codex", "opencode"]);
    command.env("SVC_HOME", &home);
    Running::spawn(command).wait(SOON).ok();
    let home = home.to_str().expect("text");
    let claude = &person.json(".claude.json")["mcpServers"]["svc"];
    assert_eq!(claude["args"], json!(["stdio", "--home", home]));
    let line = text(&person.json(".codex/hooks.json")["hooks"]["Stop"][0]["hooks"][0], "command");
    assert_eq!(words(&line)[1..], ["hook", "codex", "--home", home]);
    assert!(person.read(".config/opencode/plugin/svc.js").contains(&json!(home).to_string()));
    // Without the variable this is another installation.
    assert_eq!(person.status("claude-code")["servers"][0]["state"], "other_home");
}

#[test]
fn status_and_doctor_report_drift() {
    let person = Person::with_clients();
    person.svc(&["install", "claude-code", "gemini"]).ok();
    let daemon = person.daemon();
    assert_eq!(person.status("claude-code")["problems"], json!([]));
    let fine = person.svc(&["doctor"]);
    assert!(fine.stdout.contains("clients: 2 know svc"), "{fine:?}");

    let token = person.svc(&["token", "show"]).ok().trim().to_owned();
    let port = daemon.port;
    let entry = |url: String, token: &str| {
        let headers = json!({ "Authorization": format!("Bearer {token}") });
        json!({ "type": "http", "url": url, "headers": headers })
    };
    let url = format!("http://127.0.0.1:{port}/mcp");
    let program = env!("CARGO_BIN_EXE_svc");
    let cases = [
        (entry(url.clone(), "svc_of-a-session"), "ok"),
        (entry(url.clone(), &token), "operator_token"),
        (entry(url.clone(), "${SVC_TOKEN}"), "ok"),
        (entry(url, "stale"), "stale_token"),
        (entry(format!("http://127.0.0.1:{}/mcp", port - 1), &token), "wrong_port"),
        (entry("https://elsewhere.example/mcp".to_owned(), &token), "foreign"),
        (json!({ "command": "/gone/svc", "args": ["stdio"] }), "missing_program"),
        (json!({ "command": program, "args": ["--home", "/x", "stdio"] }), "other_home"),
    ];
    for (entry, state) in cases {
        let mut config = person.json(".claude.json");
        config["mcpServers"]["svc"] = entry;
        person.write(".claude.json", &config.to_string());
        let status = person.status("claude-code");
        assert_eq!(status["servers"][0]["state"], state, "{status}");
        assert_eq!(status["problems"] == json!([]), state == "ok", "{status}");
    }

    let mut settings = person.json(CLAUDE);
    settings["disableAllHooks"] = json!(true);
    person.write(CLAUDE, &settings.to_string());
    assert_eq!(person.status("claude-code")["hooks"][0]["state"], "disabled");
    settings["disableAllHooks"] = json!(false);
    settings["hooks"]["Stop"] = json!([]);
    person.write(CLAUDE, &settings.to_string());
    assert_eq!(person.status("claude-code")["hooks"][0]["state"], "changed");
    fs::remove_file(person.path(GEMINI)).expect("is there");
    assert!(person.status("gemini")["problems"].to_string().contains("is gone"));

    let doctor = person.svc(&["doctor"]);
    assert!(doctor.stdout.contains("warn  clients: claude-code: its server `svc`"), "{doctor:?}");
    assert!(doctor.stdout.contains("warn  clients: gemini: what was installed"), "{doctor:?}");
    let mut config = person.json(".claude.json");
    config["mcpServers"]["svc"] = json!({ "command": "/gone/svc", "args": ["stdio"] });
    person.write(".claude.json", &config.to_string());
    person.svc(&["install", "claude-code", "gemini"]).ok();
    assert_eq!(person.status("claude-code")["problems"], json!([]));
    assert_eq!(person.status("gemini")["problems"], json!([]));
}

#[test]
fn rotated_token_causes_no_drift() {
    let person = Person::with_clients();
    let daemon = person.daemon();
    let ran = person.svc(&["install", "claude-code"]);
    assert!(ran.ok().contains("the daemon runs"), "{ran:?}");
    person.svc(&["token", "rotate"]).ok();
    let ran = person.svc(&["install", "claude-code"]);
    assert!(ran.ok().contains("the daemon runs"), "{ran:?}");
    assert_eq!(person.status("claude-code")["problems"], json!([]));
    drop(daemon);
}

#[test]
fn codex_hooks_are_trusted_only_with_consent() {
    let person = Person::with_clients();
    let done = json!({ "hooks": [{ "type": "command", "command": "say done" }] });
    person.write(".codex/hooks.json", &json!({ "hooks": { "Stop": [done] } }).to_string());
    // Codex's list of hooks, all untrusted until config.toml says otherwise.
    let script = r#"#!/bin/sh
[ "$1" = app-server ] || { echo "codex-cli 0.169.0"; exit 0; }
while read -r line; do
    case $line in
    *'"initialize"'*) echo '{"id":1,"result":{}}' ;;
    *'"hooks/list"'*)
        trust=untrusted
        grep -q 'sha256:ours' "$HOME/.codex/config.toml" && trust=trusted
        echo '{"method":"noise"}'
        sed "s/TRUST/$trust/" "$HOME/hooks-list"
        ;;
    esac
done
"#;
    person.program("bin/codex", script);
    // It does not have to print its version in time.
    let package = json!({ "bin": { "codex": "codex" }, "version": "0.169.0" });
    person.write("bin/package.json", &package.to_string());
    person.write("hooks-list", "");
    let before = person.files();
    person.svc(&["install", "codex", "--no-mcp"]).ok();
    let stop = person.json(".codex/hooks.json")["hooks"]["Stop"].clone();
    let ours = text(&stop[1]["hooks"][0], "command");
    let file = person.path(".codex/hooks.json").display().to_string();
    let other = person.path("other/hooks.json").display().to_string();
    person.write("other/hooks.json", &person.read(".codex/hooks.json"));
    let key = |file: &str, rest: &str| format!("{file}:{rest}");
    let hook = |key: String, command: &str, name: &str, trust: &str| json!({ "key": key, "command": command, "currentHash": format!("sha256:{name}"), "trustStatus": trust });
    // All but the first differ from what was written, in text or place.
    let list = [
        hook(key(&file, "stop:1:0"), &ours, "ours", "TRUST"),
        hook(key(&file, "stop:0:0"), "say done", "theirs", "untrusted"),
        hook(key(&file, "stop:1:0"), "/opt/svc hook codex", "other-program", "untrusted"),
        hook(key(&file, "stop:1:0"), &format!("{ours} ; true"), "more-text", "untrusted"),
        hook(key(&file, "stop:0:0"), &ours, "other-group", "untrusted"),
        hook(key(&file, "stop:1:1"), &ours, "other-handler", "untrusted"),
        hook(key(&file, "post_tool_use:1:0"), &ours, "other-event", "untrusted"),
        hook(key(&other, "stop:1:0"), &ours, "other-file", "untrusted"),
        hook("K".to_owned(), &ours, "no-file", "untrusted"),
    ];
    let answer = json!({ "id": 2, "result": { "data": [{ "hooks": list }] } });
    person.write("hooks-list", &format!("{answer}\n"));
    let ran = person.svc(&["install", "codex"]);
    assert!(ran.ok().contains("--trust-hooks"), "a file has changed: {ran:?}");
    assert!(!person.read(".codex/config.toml").contains("sha256"));
    person.hooks_of_codex("untrusted");
    assert_eq!(person.status("codex")["version"], "0.169.0");
    let told = person.svc(&["install", "codex", "--trust-hooks"]);
    assert!(!told.ok().contains("nothing to do"), "{told:?}");
    assert!(told.ok().matches("config.toml").count() <= 1, "a file is told of once: {told:?}");
    let config = person.read(".codex/config.toml");
    let trusted = format!("[hooks.state.\"{file}:stop:1:0\"]\ntrusted_hash = \"sha256:ours\"");
    assert!(config.contains(&trusted), "{config}");
    assert_eq!(config.matches("sha256:").count(), 1, "{config}");
    eventually(SOON, || person.status("codex")["problems"] == json!([]));
    // Another program changes an entry: it loses its trust.
    person.write(".codex/config.toml", &config.replace(&trusted, ""));
    let changed = person.read(".codex/hooks.json").replacen("\"timeout\"", "\"timeOut\"", 99);
    person.write(".codex/hooks.json", &changed);
    person.hooks_of_codex("changed");
    // The text of an earlier version is recognised and replaced. It gains no trust by that.
    let former = hook(key(&file, "stop:1:0"), "/opt/svc hook codex", "former", "untrusted");
    let answer = json!({ "id": 2, "result": { "data": [{ "hooks": [former] }] } });
    person.write("hooks-list", &format!("{answer}\n"));
    let quoted = serde_json::to_string(&ours).expect("is JSON");
    let changed = person.read(".codex/hooks.json").replace(&quoted, "\"/opt/svc hook codex\"");
    person.write(".codex/hooks.json", &changed);
    person.hooks_of_codex("changed");
    let refused = person.svc(&["install", "codex", "--trust-hooks"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("codex does not list them"), "{refused:?}");
    assert!(!person.read(".codex/hooks.json").contains("\"/opt/svc hook codex\""));
    assert!(!person.read(".codex/config.toml").contains("sha256:former"));
    person.hooks_of_codex("not_listed");
    person.svc(&["uninstall"]).ok();
    person.write("hooks-list", "");
    fs::remove_dir_all(person.path("other")).expect("is there");
    assert_eq!(person.files().len(), before.len());
}

#[test]
fn project_link_does_not_change_a_users_file() {
    let person = Person::with_clients();
    let target = person.path(CLAUDE);
    let before = person.files();
    fs::create_dir(person.project().join(".claude")).expect("makes");
    std::os::unix::fs::symlink(&target, person.project().join(".claude/settings.json"))
        .expect("links");
    let ran = person.svc(&["install", "claude-code", "--project"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("outside of "), "{ran:?}");
    assert!(ran.stderr.contains(".claude/settings.json leads by a link to "), "{ran:?}");
    let after = person.files();
    assert!(before.iter().all(|(path, text)| after.get(path) == Some(text)), "{after:?}");
    // A person's own link within the home, as programs for dotfiles make it, is respected.
    fs::remove_dir_all(person.project().join(".claude")).expect("is there");
    let kept = person.path("dotfiles/claude.json");
    fs::create_dir(person.path("dotfiles")).expect("makes");
    fs::rename(&target, &kept).expect("renames");
    std::os::unix::fs::symlink(&kept, &target).expect("links");
    person.svc(&["install", "claude-code"]).ok();
    assert!(fs::symlink_metadata(&target).expect("is there").is_symlink());
    assert!(fs::read_to_string(&kept).expect("reads").contains("hook claude-code\""));
}

#[test]
fn doctor_names_another_listener_at_the_address() {
    let person = Person::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stranger = std::thread::spawn(move || {
        for connection in listener.incoming().take(1) {
            let mut connection = connection.expect("a connection");
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            connection.write_all(answer.as_bytes()).expect("answers");
        }
    });
    person.write(".config/svc/config.toml", &format!("listen = [\"127.0.0.1:{port}\"]\n"));
    let doctor = person.svc(&["doctor"]);
    assert!(doctor.stdout.contains("is not svc"), "{doctor:?}");
    stranger.join().expect("the stranger");

    let first = person.daemon();
    let port = first.port;
    person.write("second/config.toml", &format!("listen = [\"127.0.0.1:{port}\"]\n"));
    let second = person.path("second");
    let second = second.to_str().expect("text");
    let doctor = person.svc(&["doctor", "--home", second]);
    assert!(doctor.stdout.contains("a daemon of another data folder"), "{doctor:?}");
    let other = format!("127.0.0.1:{}", free_port());
    person.svc(&["start", "--home", second, "--listen", &other]).ok();
    let doctor = person.svc(&["doctor", "--home", second]);
    person.svc(&["stop", "--home", second]).ok();
    let address = doctor.stdout.lines().find(|line| line.contains("there are two daemons"));
    let address = address.unwrap_or_else(|| panic!("{doctor:?}"));
    assert!(address.starts_with("ok ") && address.contains("each at an address of its own"));
    assert!(!doctor.stdout.contains("give each an address"), "{doctor:?}");
}

/// Files outside the person's folders are not touched.
#[test]
fn client_variables_move_the_files() {
    let person = Person::new();
    let (claude, codex) = (person.path("c"), person.path("x"));
    for folder in [&claude, &codex] {
        fs::create_dir_all(folder).expect("a folder");
    }
    let mut command = person.command(&["install"]);
    command.env("CLAUDE_CONFIG_DIR", &claude).env("CODEX_HOME", &codex);
    Running::spawn(command).wait(SOON).ok();
    let there = |path: &Path, name: &str| assert!(path.join(name).exists(), "{name}");
    there(&claude, ".claude.json");
    there(&claude, "settings.json");
    there(&codex, "config.toml");
    there(&codex, "hooks.json");
    assert!(!person.path(".claude").exists() && !person.path(".codex").exists());
}

/// If Codex cannot be told, trust fails, with advice other than the command that was just run.
#[test]
fn trust_without_codex_fails_with_advice() {
    let person = Person::with_clients();
    for _ in 0..2 {
        let ran = person.svc(&["install", "codex", "--trust-hooks"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("there is no codex on the PATH"), "{ran:?}");
        assert!(!ran.stdout.contains("nothing to do"), "{ran:?}");
        assert!(!format!("{}{}", ran.stdout, ran.stderr).contains("--trust-hooks"), "{ran:?}");
        let status = person.status("codex");
        assert_eq!(status["hooks"][0]["state"], "untrusted", "{status}");
        assert!(status["problems"].to_string().contains("not trusted"), "{status}");
    }
    let ran = person.svc(&["install", "codex", "--trust-hooks", "--json"]);
    let report: Value = serde_json::from_str(&ran.stdout).expect("is JSON");
    assert_eq!((ran.code, &report["ok"]), (Some(1), &json!(false)), "{ran:?}");
    assert!(report["failures"][0].as_str().is_some_and(|it| it.contains("no codex")), "{ran:?}");
    let doctor = person.svc(&["doctor"]);
    assert!(doctor.stdout.contains("warn  clients: codex: its hooks in "), "{doctor:?}");
    // Trusted by hand, as its file says.
    let hooks = person.json(".codex/hooks.json");
    let file = person.path(".codex/hooks.json").display().to_string();
    let mut config = person.read(".codex/config.toml");
    for event in hooks["hooks"].as_object().expect("hooks").keys() {
        let mut name = String::new();
        for c in event.chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        assert_eq!(person.status("codex")["hooks"][0]["state"], "untrusted", "{config}");
        let state = format!("\n[hooks.state.\"{file}:{name}:0:0\"]\ntrusted_hash = \"sha256:x\"\n");
        config.push_str(&state);
        person.write(".codex/config.toml", &config);
    }
    assert_eq!(person.status("codex")["problems"], json!([]));
    let before = person.files();
    let other = person.svc(&["install", "gemini", "--trust-hooks"]);
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(other.stderr.contains("codex, which is not named"), "{other:?}");
    assert_eq!(person.files(), before, "it is said before anything is written");
    assert!(other.stderr.contains("--trust-hooks is for codex"), "{other:?}");
}

/// A Claude Code of this version, where its own installer has it: its file says the version, and
/// does not have to print it in time.
fn claude_code(person: &Person, version: &str) {
    let file = format!("versions/{version}");
    person.write(&file, "");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(person.path(&file), executable).expect("ours");
    let link = person.path("bin/claude");
    fs::create_dir_all(person.path("bin")).expect("a folder");
    let _absent_at_first = fs::remove_file(&link);
    std::os::unix::fs::symlink(person.path(&file), &link).expect("links");
}

#[test]
fn status_says_what_each_version_allows() {
    let person = Person::with_clients();
    claude_code(&person, "2.1.330");
    person.svc(&["install"]).ok();
    let abilities = person.status("claude-code")["abilities"].clone();
    assert_eq!(
        abilities,
        json!({
            "state": "registry", "messages": "wakes-and-joins", "answering": "here",
            "limits": "seen-with-end", "proven": true,
        })
    );
    let shown = person.svc(&["install", "status", "claude-code"]);
    let line = "  limits   seen, with their end where it tells that";
    assert!(shown.ok().contains(line) && !shown.ok().contains("not proven"), "{shown:?}");
    claude_code(&person, "9.9.9");
    assert_eq!(person.status("claude-code")["abilities"]["proven"], false);
    let shown = person.svc(&["install", "status", "claude-code"]);
    assert!(shown.ok().contains("not proven: no test has run 9.9.9"), "{shown:?}");
    let others = |client: &str| person.status(client)["abilities"].clone();
    assert_eq!(others("gemini")["answering"], "seen");
    assert_eq!(others("opencode")["state"], "plugin");
    assert_eq!(others("cursor")["messages"], "next-call");
}

#[test]
fn hooks_suit_every_version_of_claude_code() {
    let person = Person::with_clients();
    person.svc(&["install", "claude-code"]).ok();
    let ours = person.json(CLAUDE);
    for (version, lacks, has) in [
        ("2.0.60", Some("StopFailure"), None),
        ("2.1.138", None, None),
        ("2.1.330", None, Some("PostToolBatch")),
    ] {
        claude_code(&person, version);
        assert_eq!(person.status("claude-code")["version"], version);
        person.svc(&["install", "claude-code"]).ok();
        let mut known = ours.clone();
        if let Some(event) = lacks {
            known["hooks"].as_object_mut().expect("hooks").remove(event);
        }
        if let Some(event) = has {
            known["hooks"][event] = ours["hooks"]["PostToolUse"].clone();
        }
        assert_eq!(person.json(CLAUDE), known, "{version}");
        assert_eq!(person.status("claude-code")["problems"], json!([]), "{version}");
    }
    // A client ignores a file with an event that it does not know.
    claude_code(&person, "2.0.0");
    let status = person.status("claude-code");
    assert_eq!(status["hooks"][0]["state"], "refused", "{status}");
    assert!(status["problems"].to_string().contains("PostToolUseFailure"), "{status}");
    person.svc(&["install", "claude-code"]).ok();
    assert_eq!(person.status("claude-code")["problems"], json!([]));
    assert_eq!(person.json(CLAUDE)["hooks"].get("PostToolUseFailure"), None);
    assert_eq!(lines(&person.json(CLAUDE)).len(), lines(&ours).len() - 4);
}

/// The installed commands, in a shell: with the program present, with another version behind the
/// link, and without the program.
#[test]
fn hook_runs_svc_from_the_path_and_is_silent_without_it() {
    let person = Person::with_clients();
    let folder = person.path("it's $HOME \"quoted\" `x`");
    fs::create_dir_all(&folder).expect("makes");
    let link = folder.join("svc");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_svc"), &link).expect("links");
    let run = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env_clear().env("HOME", person.path("")).current_dir(person.project());
        command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        Running::spawn(command).wait(SOON)
    };
    // Also when it was started by the link's target.
    let install = ["install", "claude-code", "codex", "gemini", "--no-start"];
    run(Path::new(env!("CARGO_BIN_EXE_svc")), &install).ok();
    let again = run(&link, &install);
    assert!(again.ok().contains("nothing to do"), "{again:?}");
    let server = &person.json(".claude.json")["mcpServers"]["svc"];
    assert_eq!(server["command"], json!(link), "the link, and not what it leads to");
    let shell = |line: &str| {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", line])
            .env_clear()
            .env("HOME", person.path(""))
            .env("PATH", "/usr/bin:/bin");
        Running::spawn(command).wait(SOON)
    };
    let files = [(CLAUDE, "claude-code"), (".codex/hooks.json", "codex"), (GEMINI, "gemini")];
    let all: Vec<(String, &str)> = files
        .into_iter()
        .flat_map(|(name, client)| {
            let lines = lines(&person.json(name)).into_iter().filter(|line| line != "say done");
            lines.map(move |line| (line, client))
        })
        .collect();
    assert!(all.len() >= 20, "{all:?}");
    // An upgrade puts another program behind the link.
    fs::remove_file(&link).expect("is there");
    let next = person.path("opt/svc-9.9");
    person.program("opt/svc-9.9", "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 3\n");
    std::os::unix::fs::symlink(&next, &link).expect("links");
    for (line, client) in &all {
        let ran = shell(line);
        assert_eq!(ran.code, Some(3), "{line}: {ran:?}");
        let expected = [format!("hook\n{client}\n"), "hook\nwait\n".to_owned()];
        assert!(expected.contains(&ran.stdout), "{line}: {ran:?}");
    }
    // A dangling link, and no link at all.
    for path in [&next, &link] {
        fs::remove_file(path).expect("is there");
        for (line, _) in &all {
            let ran = shell(line);
            assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(0), "", ""), "{line}");
        }
    }
}

/// The tools that each client's file allows without a question.
fn granted(person: &Person) -> [Value; 4] {
    let config: toml::Table = person.read(".codex/config.toml").parse().expect("it is TOML");
    let codex = json!(config)["mcp_servers"]["svc"]["tools"].clone();
    let opencode: Value =
        serde_json::from_str(&person.read(OPENCODE).replace("// the small one", ""))
            .expect("it is JSON but for its comment");
    [
        person.json(CLAUDE)["permissions"]["allow"].clone(),
        codex,
        json!(person.read(".gemini/policies/svc.toml")),
        opencode["permission"].clone(),
    ]
}

#[test]
fn harmless_tools_are_allowed_in_each_clients_format() {
    let person = Person::with_clients();
    // A person with own rules in opencode is asked by "*".
    person.write(
        OPENCODE,
        "{\n\t// the small one\n\t\"permission\": {\"*\": \"ask\"},\n\t\"mcp\": {}\n}\n",
    );
    let before = person.files();
    let plain = person.svc(&["install"]);
    let plain = plain.ok();
    assert!(
        plain.contains("before a model calls tools of svc: claude-code, gemini, opencode;"),
        "codex does not: {plain}"
    );
    let without = person.files();
    let status = person.status("claude-code");
    assert_eq!(status["problems"], json!([]), "it is the person's decision");
    assert_eq!(status["approvals"]["allowed"], 0);
    let missing = status["approvals"]["missing"].as_array().expect("a list").clone();
    assert!(missing.contains(&json!("peer_send")) && missing.contains(&json!("peer_inbox")));
    let shown = person.svc(&["install", "status", "claude-code"]);
    let shown = shown.ok();
    assert!(shown.contains("harmless ones: ToolSearch, "), "{shown}");
    assert!(shown.contains("svc install claude-code --allow-tools"), "{shown}");
    assert!(shown.contains("peer_inbox"), "{shown}");

    let diff = person.svc(&["install", "--allow-tools", "--dry-run"]);
    let diff = diff.ok();
    for line in [
        "mcp__svc__peer_send",
        "+[mcp_servers.svc.tools.peer_send]",
        "+mcpName = \"svc\"",
        "svc_peer_send",
    ] {
        assert!(diff.contains(line), "{line}: {diff}");
    }
    assert_eq!(person.files(), without, "a dry run changes nothing");
    let installed = person.svc(&["install", "--allow-tools"]);
    let installed = installed.ok();
    assert!(!installed.contains("these clients ask you"), "{installed}");
    let [claude, codex, gemini, opencode] = granted(&person);
    assert!(claude.as_array().expect("a list").contains(&json!("mcp__svc__peer_send")), "{claude}");
    assert_eq!(codex["peer_send"]["approval_mode"], "approve");
    assert!(gemini.as_str().expect("rules").contains("  \"peer_send\",\n"), "{gemini}");
    assert_eq!((&opencode["*"], &opencode["svc_peer_send"]), (&json!("ask"), &json!("allow")));
    for grants in [&claude, &codex, &gemini, &opencode] {
        // A tool that calls other tools, or removes something, needs a question as before.
        for name in ["ToolCall", "TaskCancel", "delete_memory", "SendMessage", "RequestAnswer"] {
            assert!(!grants.to_string().contains(name), "{name}: {grants}");
        }
    }
    for client in ["claude-code", "codex", "gemini", "opencode"] {
        let status = person.status(client);
        assert_eq!(status["approvals"]["missing"], json!([]), "{status}");
    }
    let again = person.svc(&["install", "--allow-tools", "--json"]).json();
    assert_eq!(again["changed"], json!(false), "{again}");
    person.svc(&["uninstall"]).ok();
    assert_eq!(person.files(), before, "byte for byte, and nothing left behind");
}

#[test]
fn other_forms_of_permission_count() {
    let person = Person::with_clients();
    person.svc(&["install"]).ok();
    let mut settings = person.json(CLAUDE);
    settings["permissions"] = json!({ "allow": ["mcp__svc"] });
    person.write(CLAUDE, &settings.to_string());
    let config = person.read(".codex/config.toml");
    let all = "[mcp_servers.svc]\ndefault_tools_approval_mode = \"approve\"\n";
    person.write(".codex/config.toml", &config.replace("[mcp_servers.svc]\n", all));
    let mut settings = person.json(GEMINI);
    settings["mcpServers"]["svc"]["trust"] = json!(true);
    person.write(GEMINI, &settings.to_string());
    // Without rules opencode asks for none of svc's tools, and Codex for no harmless one.
    let asked = |mode: &str| {
        let mode = format!("[mcp_servers.svc]\ndefault_tools_approval_mode = \"{mode}\"\n");
        person.write(".codex/config.toml", &config.replace("[mcp_servers.svc]\n", &mode));
        person.status("codex")["approvals"]["missing"] != json!([])
    };
    assert_eq!(["auto", "prompt", "writes"].map(asked), [false, true, true]);
    person.write(".codex/config.toml", &config);
    for client in ["claude-code", "codex", "gemini", "opencode"] {
        let status = person.status(client);
        assert_eq!(status["approvals"]["missing"], json!([]), "{status}");
    }
    assert_eq!(person.status("cursor").get("approvals"), None, "nobody knows how it keeps them");
}

#[test]
fn client_versions_are_requested_concurrently() {
    let person = Person::with_clients();
    let log = person.path("asked");
    // Each waits for another to be inspected, and records how many were.
    let script = format!(
        "#!/bin/sh\nlog='{}'\n[ \"$1\" = --version ] || exit 1\necho start >> \"$log\"\nn=0\n\
         while [ \"$(grep -c start \"$log\")\" -lt 4 ] && [ $n -lt 40 ]; do sleep 0.01; n=$((n+1)); done\n\
         echo \"end $(grep -c start \"$log\")\" >> \"$log\"\necho 1.2.3\n",
        log.display()
    );
    for name in ["claude", "codex", "gemini", "opencode"] {
        person.program(&format!("bin/{name}"), &script);
    }
    // On a busy machine one may be over, or out of time, before another has begun.
    let mut asked = String::new();
    let are_concurrent = (0..10).any(|_| {
        let _absent_at_first = fs::remove_file(&log);
        let status = person.svc(&["install", "status", "--json"]);
        assert!(status.stdout.contains("\"claude-code\""), "{status:?}");
        asked = fs::read_to_string(&log).unwrap_or_default();
        asked.matches("start").count() == 4 && !asked.contains("end 1\n")
    });
    assert!(are_concurrent, "one waited for another: {asked}");
}
