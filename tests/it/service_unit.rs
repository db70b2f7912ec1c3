//! `svc service`: a unit that systemd parses as intended, and no other file is changed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::daemon::Home;

/// A user's home, and the PATH of its commands.
struct User {
    home: Home,
    /// The PATH, without the systemctl of this machine.
    programs: PathBuf,
    data: PathBuf,
}

impl User {
    /// A user whose data folder's path has all characters with a meaning in a unit, and who has no
    /// service manager.
    fn new() -> Self {
        let home = Home::new();
        let programs = home.user().join("programs");
        fs::create_dir_all(&programs).expect("a folder");
        let data = home.user().join("svc");
        Self { home, programs, data }
    }

    fn unit(&self) -> PathBuf {
        self.home.user().join("config/systemd/user/svc.service")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.unit()).expect("a unit")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command
            .env("PATH", &self.programs)
            .env("XDG_CONFIG_HOME", self.home.user().join("config"))
            .env("SVC_HOME", &self.data);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("it can be run")
    }

    /// Runs `svc service` with `--json`; returns its exit code and its output. On standard error is
    /// at most the error, in JSON.
    fn service(&self, args: &[&str]) -> (i32, Value) {
        let ran = self.run(&[&["service"], args, &["--json"]].concat());
        let said = serde_json::from_slice(&ran.stdout);
        let error = serde_json::from_slice::<Value>(&ran.stderr);
        assert!(ran.stderr.is_empty() || error.is_ok_and(|it| it["error"].is_string()), "{ran:?}");
        (
            ran.status.code().expect("an exit code"),
            said.unwrap_or_else(|error| panic!("{error}: {ran:?}")),
        )
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.programs.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    /// A service manager that knows one service, whose process is the daemon of the unit. It
    /// records its requests.
    fn manager(&self) {
        fs::create_dir_all(&self.data).expect("a folder");
        fs::write(self.data.join("config.toml"), "listen = [\"127.0.0.1:0\"]\n").expect("a file");
        let state = self.home.user().join("manager");
        fs::create_dir_all(&state).expect("a folder");
        let script = r#"
PATH=/usr/bin:/bin
cd "@STATE@"
shift
echo "$*" >> asked
alive() { test -f pid && kill -0 "$(cat pid)" 2> /dev/null; }
case "$1" in
daemon-reload) ;;
enable) touch enabled ;;
start)
    SVC_HOME='@DATA@' '@SVC@' serve --log-file '@DATA@/svc.log' > /dev/null 2>&1 &
    echo $! > pid
    ;;
disable)
    rm -f enabled
    if alive; then
        kill "$(cat pid)"
        while alive; do sleep 0.05; done
    fi
    rm -f pid
    ;;
show)
    if alive; then echo "MainPID=$(cat pid)"; echo ActiveState=active
    else echo MainPID=0; echo ActiveState=inactive; fi
    if test -f enabled; then echo UnitFileState=enabled; else echo UnitFileState=disabled; fi
    ;;
*) echo "Unknown command verb $1." >&2; exit 1 ;;
esac
"#;
        let script = script
            .replace("@STATE@", state.to_str().expect("UTF-8"))
            .replace("@DATA@", self.data.to_str().expect("UTF-8"))
            .replace("@SVC@", env!("CARGO_BIN_EXE_svc"));
        self.program("systemctl", &script);
    }

    /// The requests to the manager, without the queries.
    fn asked(&self) -> Vec<String> {
        let asked = self.home.user().join("manager/asked");
        let text = fs::read_to_string(&asked).unwrap_or_default();
        fs::remove_file(asked).ok();
        text.lines().filter(|line| !line.starts_with("show")).map(str::to_owned).collect()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn without_a_service_manager_the_file_is_written_and_install_fails() {
    let user = User::new();
    let (code, first) = user.service(&["install"]);
    assert_eq!((code, &first["unit"]), (1, &json!("created")), "{first}");
    assert_eq!(first["active"], Value::Null);
    assert!(first["problem"].as_str().unwrap().contains("systemctl --user"), "{first}");
    let text = user.text();
    assert!(text.contains(env!("CARGO_BIN_EXE_svc")), "{text}");
    assert!(text.contains(&format!("Environment=\"SVC_HOME={}\"", user.data.display())), "{text}");
    assert!(text.contains("Restart=on-failure"), "{text}");
    let written = fs::metadata(user.unit()).unwrap();
    assert_eq!(written.permissions().mode() & 0o022, 0, "nobody else writes to it");

    let (code, again) = user.service(&["install"]);
    assert_eq!((code, &again["unit"]), (1, &json!("unchanged")), "{again}");
    assert_eq!(
        fs::metadata(user.unit()).unwrap().modified().unwrap(),
        written.modified().unwrap(),
        "the same file"
    );

    let (code, status) = user.service(&["status"]);
    assert_eq!((code, &status["unit"], &status["active"]), (1, &json!("current"), &Value::Null));
    let plain = user.run(&["service", "install"]);
    assert!(said(&plain).contains("the file stays"), "{plain:?}");

    let (code, removed) = user.service(&["uninstall"]);
    assert_eq!((code, &removed["removed"]), (0, &json!(true)), "{removed}");
    assert!(!user.unit().exists());
    let (code, nothing) = user.service(&["uninstall"]);
    assert_eq!((code, &nothing["removed"]), (0, &json!(false)), "{nothing}");
    let (code, status) = user.service(&["status"]);
    assert_eq!((code, &status["unit"]), (1, &json!("absent")), "{status}");
}

/// The unit outlives this version: after an upgrade a link on the PATH leads to the next version.
#[test]
fn unit_names_the_program_by_its_link_on_the_path() {
    let user = User::new();
    let link = user.programs.join("svc");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_svc"), &link).expect("a link");
    user.service(&["install"]);
    let text = user.text();
    assert!(text.contains(&link.display().to_string()), "{text}");
    assert!(!text.contains(env!("CARGO_BIN_EXE_svc")), "{text}");
    let (_, again) = user.service(&["install"]);
    assert_eq!(again["unit"], "unchanged", "{again}");
}

#[test]
fn foreign_unit_is_left_unchanged() {
    let user = User::new();
    fs::create_dir_all(user.unit().parent().unwrap()).unwrap();
    fs::write(user.unit(), "[Service]\nExecStart=/bin/true\n").unwrap();
    for command in ["install", "uninstall"] {
        let ran = user.run(&["service", command]);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(said(&ran).contains("not written by svc"), "{ran:?}");
    }
    assert_eq!(user.text(), "[Service]\nExecStart=/bin/true\n");
    assert_eq!(user.service(&["status"]).1["unit"], json!("foreign"));
}

#[test]
fn unit_for_another_folder_is_outdated() {
    let mut user = User::new();
    user.service(&["install"]);
    let before = user.text();
    user.data = user.home.user().join("elsewhere");
    assert_eq!(user.service(&["status"]).1["unit"], json!("outdated"));
    assert_eq!(user.service(&["install"]).1["unit"], json!("replaced"));
    assert_ne!(user.text(), before);
    assert_eq!(user.service(&["status"]).1["unit"], json!("current"));
}

#[test]
fn systemd_verify_accepts_the_unit() {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join("systemd-analyze").exists())
    });
    if !found {
        eprintln!("skipped: there is no systemd-analyze here");
        return;
    }
    let mut user = User::new();
    user.data = user.home.user().join("data $HOME 100% %h \"quoted\" back\\slash é");
    // The program as well, since systemd checks that it exists.
    let program = user.home.user().join("my $HOME tools 100% %h/svc");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_svc"), &program)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_svc"), &program).map(drop))
        .unwrap();
    let installed = Command::new(&program)
        .args(["service", "install", "--json"])
        .env_clear()
        .env("HOME", user.home.user())
        .env("XDG_CONFIG_HOME", user.home.user().join("config"))
        .env("SVC_HOME", &user.data)
        .output()
        .unwrap();
    assert_eq!(installed.status.code(), Some(1), "{installed:?}");

    let verify = |unit: &Path| {
        let runtime = user.home.user().join("run");
        fs::create_dir_all(&runtime).unwrap();
        Command::new("systemd-analyze")
            .args(["verify", "--user"])
            .arg(unit)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", user.home.user())
            .env("XDG_RUNTIME_DIR", runtime)
            .output()
            .unwrap()
    };
    let verified = verify(&user.unit());
    assert!(verified.status.success() && said(&verified).is_empty(), "{}", said(&verified));

    // It does check: with one letter less the program does not exist.
    let wrong = user.home.user().join("svc.service");
    fs::write(&wrong, user.text().replace("tools 100%%", "tool 100%%")).unwrap();
    let verified = verify(&wrong);
    assert!(said(&verified).contains("my $HOME tool 100% %h/svc"), "{}", said(&verified));
}

#[test]
fn service_manager_gets_only_needed_requests() {
    let user = User::new();
    user.manager();
    let (code, installed) = user.service(&["install"]);
    assert_eq!(code, 0, "{installed}");
    assert_eq!((&installed["enabled"], &installed["active"]), (&json!(true), &json!(true)));
    assert_eq!(user.asked(), ["daemon-reload", "enable svc.service", "start svc.service"]);
    assert_eq!(user.run(&["status"]).status.code(), Some(0), "the daemon answers");

    let (code, again) = user.service(&["install"]);
    assert_eq!((code, &again["unit"]), (0, &json!("unchanged")), "{again}");
    assert_eq!(user.asked(), [""; 0]);

    let (code, status) = user.service(&["status"]);
    assert_eq!((code, &status["state"]), (0, &json!("active")), "{status}");
    assert_eq!(status["pid"], status["daemon_pid"]);

    let (code, removed) = user.service(&["uninstall"]);
    assert_eq!((code, &removed["removed"]), (0, &json!(true)), "{removed}");
    assert_eq!(user.asked(), ["disable --now svc.service", "daemon-reload"]);
    assert_eq!(removed["daemon_pid"], Value::Null, "it was stopped");
    assert_eq!(user.run(&["status"]).status.code(), Some(1));
}

#[test]
fn background_daemon_is_reported_and_left_running() {
    let user = User::new();
    user.manager();
    let started = user.run(&["start", "--json"]);
    assert!(started.status.success(), "{started:?}");
    let pid = serde_json::from_slice::<Value>(&started.stdout).unwrap()["pid"].clone();

    let (code, installed) = user.service(&["install"]);
    assert_eq!((code, &installed["daemon_pid"]), (0, &pid), "{installed}");
    assert_eq!(user.asked(), ["daemon-reload", "enable svc.service"]);
    let plain = user.run(&["service", "install"]);
    assert!(said(&plain).contains("svc stop"), "{plain:?}");
    let (code, status) = user.service(&["status"]);
    assert_eq!((code, &status["active"], &status["daemon_pid"]), (1, &json!(false), &pid));

    assert!(user.run(&["stop"]).status.success());
    let (code, installed) = user.service(&["install"]);
    assert_eq!((code, &installed["active"]), (0, &json!(true)), "{installed}");
    assert_eq!(user.service(&["uninstall"]).0, 0);
}

#[test]
fn service_that_does_not_start_is_a_failure() {
    let user = User::new();
    user.manager();
    let config = user.data.join("config.toml");
    fs::write(&config, "listen = [\"nowhere\"]\n").unwrap();
    let refused = user.run(&["service", "install"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!user.unit().exists());

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(config, format!("listen = [\"{}\"]\n", taken.local_addr().unwrap())).unwrap();
    let (code, installed) = user.service(&["install"]);
    assert_eq!(code, 1, "{installed}");
    assert!(installed["problem"].as_str().unwrap().contains("svc logs"), "{installed}");
    assert_eq!(user.service(&["uninstall"]).0, 0);
}
