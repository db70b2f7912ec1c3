//! Files that another user may have placed: pipes, and hard links of secrets.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use serde_json::json;

use crate::daemon::{Daemon, Home, svc};

fn home_with_token() -> Home {
    let mut d = Daemon::start();
    d.stop();
    d.home.clone()
}

#[track_caller]
fn pipe(path: &std::path::Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
}

#[test]
fn token_file_with_a_hard_link_is_refused() {
    let home = home_with_token();
    let (token, second) = (home.path("token"), home.user().join("project-token"));
    fs::hard_link(&token, &second).expect("is linked");
    let port = crate::daemon::free_port();
    let listen = format!("127.0.0.1:{port}");
    for args in [&["serve", "--listen", &listen][..], &["token", "show"]] {
        let ran = svc(&home, args);
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("has 2 names (hard links)"), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("token"), "{}", ran.stderr);
    }
    // One that a flag names, too.
    let flag = second.display().to_string();
    let ran = svc(&home, &["serve", "--listen", &listen, "--token-file", &flag]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("has 2 names (hard links)"), "{}", ran.stderr);
    fs::remove_file(&second).expect("is there");
    Daemon::with(|plan| plan.home(&home)).get("/v1/health").ok(200);
}

/// A wrong name must not create a new token, with which no other client would have access.
#[test]
fn configured_token_file_is_never_created() {
    let home = home_with_token();
    let file = home.user().join("named");
    let named = file.display().to_string();
    let run = || svc(&home, &["serve", "--listen", "127.0.0.1:0", "--token-file", &named]);
    let refused = |reason: &str| {
        let ran = run();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(reason) && ran.stderr.contains("svc token init"), "{ran:?}");
    };
    refused("is not there");
    assert!(!file.exists());
    fs::write(&file, "\n").expect("writes");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("is ours");
    refused("is empty");
    fs::write(&file, "a".repeat(64)).expect("writes");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("is ours");
    assert_eq!(run().code, Some(1));
    fs::remove_file(&file).expect("is there");
    svc(&home, &["token", "init", &named]).ok();
    let token = fs::read_to_string(&file).expect("is there");
    let d = Daemon::with(|plan| plan.home(&home).flag("--token-file").flag(&named));
    d.with_token(token.trim()).get("/v1/health").ok(200);
}

#[test]
fn fifo_is_refused_without_blocking() {
    let home = home_with_token();
    let listen = format!("127.0.0.1:{}", crate::daemon::free_port());
    let config = home.path("config.toml");
    let zero = |path: &std::path::Path| symlink("/dev/zero", path).expect("is linked");
    let makes: [&dyn Fn(&std::path::Path); 2] = [&pipe, &zero];
    for make in makes {
        make(&config);
        for args in [&["serve", "--listen", &listen][..], &["config", "show"]] {
            let ran = svc(&home, args);
            // Like any mistake in the configuration.
            assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
            let said = &ran.stderr;
            assert!(said.contains("config.toml") && said.contains("no regular file"), "{said}");
        }
        fs::remove_file(&config).expect("is there");
    }
    let token = home.path("token");
    fs::remove_file(&token).expect("is there");
    pipe(&token);
    let ran = svc(&home, &["serve", "--listen", &listen]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("no regular file"), "{}", ran.stderr);
    fs::remove_file(&token).expect("is there");
    // A file of servers that a flag names.
    let servers = home.user().join("servers.json");
    pipe(&servers);
    let flag = servers.display().to_string();
    let ran = svc(&home, &["serve", "--listen", &listen, "--mcp-config", &flag]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("no regular file"), "{}", ran.stderr);
}

#[test]
fn hard_link_of_the_token_in_a_project_is_not_read() {
    let home = Home::new();
    fs::create_dir_all(home.dir()).expect("a folder");
    fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o700)).expect("is ours");
    let config = "[sources.core]\nenabled = true\n";
    fs::write(home.path("config.toml"), config).expect("is written");
    fs::set_permissions(home.path("config.toml"), fs::Permissions::from_mode(0o600))
        .expect("is ours");
    let d = Daemon::with(|plan| plan.home(&home));
    let project = home.project();
    // After the start: a check of the token at the start alone would not help.
    fs::hard_link(home.path("token"), project.join("notes.txt")).expect("is linked");
    let input = json!({ "session": "s", "project": project, "scopes": ["read", "exec"] });
    let model = d.minted(&input);
    model.done("start_session", &json!({ "cwd": project }));
    let token = home.token().expect("is there");
    for (tool, arguments) in [
        ("Read", json!({ "path": "notes.txt" })),
        ("Grep", json!({ "pattern": "." })),
        ("Write", json!({ "path": "notes.txt", "content": "x" })),
        ("Edit", json!({ "path": "notes.txt", "old_string": "a", "new_string": "b" })),
    ] {
        let answer = model.tool(tool, &arguments)["structuredContent"].take();
        assert!(!answer.to_string().contains(&token), "{tool} gave the token away");
        if tool == "Grep" {
            assert_eq!(answer["count"], 0, "{answer}");
        } else {
            assert_eq!(answer["error"]["type"], "forbidden", "{tool}: {answer}");
        }
    }
    assert_eq!(home.token().as_deref(), Some(&*token));
}
