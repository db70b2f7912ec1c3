//! Files: owners and modes of the files that the daemon and its commands rely on.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use crate::daemon::{Daemon, Home, eventually, svc, svc_with_input};
use crate::expect::problem;
use crate::stored::is_in_file;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("is ours");
}

/// Commands that begin in the data folder. No daemon runs.
const COMMANDS: &[&[&str]] = &[
    &["serve", "--listen", "127.0.0.1:0"],
    &["start", "--listen", "127.0.0.1:0"],
    &["migrate"],
    &["token", "show"],
    &["token", "rotate"],
    &["peer", "list"],
    &["events", "tail"],
    &["stop"],
];

#[test]
fn data_folder_writable_by_others_is_refused() {
    only_if!(is_in_file());
    for (own, above) in [(0o777, 0o700), (0o770, 0o700), (0o702, 0o700), (0o700, 0o777)] {
        let home = Home::new();
        fs::create_dir(home.dir()).expect("makes");
        set_mode(&home.dir(), own);
        set_mode(home.user(), above);
        let (path, remedy) = if above == 0o777 {
            (home.user().to_path_buf(), "chmod o-w ")
        } else {
            (home.dir(), "chmod 700 ")
        };
        for command in COMMANDS {
            let ran = svc(&home, command);
            assert_eq!(ran.code, Some(1), "{own:o} {above:o} {command:?}: {ran:?}");
            let path = path.to_str().expect("UTF-8");
            assert!(ran.stderr.contains(&format!("{remedy}{path}")), "{command:?}: {ran:?}");
        }
        assert_eq!(fs::read_dir(home.dir()).expect("lists").count(), 0, "nothing was made");
        let doctor = svc(&home, &["doctor"]);
        assert_eq!(doctor.code, Some(1), "{doctor:?}");
        set_mode(&home.dir(), 0o700);
        set_mode(home.user(), 0o1777);
        svc(&home, &["migrate"]).ok();
    }
}

#[test]
fn data_folder_that_others_can_read_is_closed_at_the_start() {
    let home = Home::new();
    fs::create_dir(home.dir()).expect("makes");
    set_mode(&home.dir(), 0o755);
    let d = Daemon::with(|plan| plan.home(&home));
    assert_eq!(mode(&home.dir()), 0o700);
    let is_told = || d.stderr().contains("(mode 755): now they cannot");
    eventually(Duration::from_secs(20), is_told);
}

#[test]
fn hook_spools_nothing_in_a_folder_writable_by_others() {
    let home = Home::new();
    fs::create_dir(home.dir()).expect("makes");
    set_mode(&home.dir(), 0o777);
    let event = br#"{"hook_event_name":"SessionStart","session_id":"s","cwd":"/"}"#;
    let ran = svc_with_input(&home, &["hook", "claude-code"], event);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(fs::read_dir(home.dir()).expect("lists").count(), 0, "nothing was made");
}

#[test]
fn settings_owned_or_writable_by_others_are_refused() {
    let home = Home::new();
    home.write("config.toml", "log_level = \"warn\"\n");
    set_mode(&home.dir(), 0o700);
    let config = home.path("config.toml");
    for (mode, passes) in
        [(0o666, false), (0o646, false), (0o664, false), (0o620, false), (0o644, true)]
    {
        set_mode(&config, mode);
        let ran = svc(&home, &["config", "show"]);
        assert_eq!(ran.code, Some(if passes { 0 } else { 2 }), "{mode:o}: {ran:?}");
        let remedy = format!("chmod 644 {}", config.display());
        assert_eq!(ran.stderr.contains(&remedy), !passes, "{mode:o}: {ran:?}");
    }
    // Only root can give files away.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&config, Some(65534), None).expect("root may");
        for command in [&["config", "show"][..], &["serve"], &["start"]] {
            let ran = svc(&home, command);
            assert_eq!(ran.code, Some(2), "{command:?}: {ran:?}");
            let remedy = format!("chown 0 {}", config.display());
            assert!(ran.stderr.contains(&remedy), "{command:?}: {ran:?}");
        }
        std::os::unix::fs::chown(&config, Some(0), None).expect("root may");
    }
    // The record of the installation names the files that are restored.
    set_mode(&home.dir(), 0o777);
    for command in [&["install", "claude-code"][..], &["uninstall"]] {
        let ran = svc(&home, command);
        assert_eq!(ran.code, Some(1), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("chmod 700 "), "{command:?}: {ran:?}");
    }
    let made = fs::read_dir(home.user()).expect("lists").count();
    assert_eq!(made, 1, "no client's file was made");
}

#[test]
fn linked_data_folder_is_judged_by_its_target() {
    only_if!(is_in_file());
    let home = Home::new();
    let target = home.user().join("elsewhere");
    fs::create_dir(&target).expect("makes");
    set_mode(&target, 0o777);
    symlink(&target, home.dir()).expect("links");
    assert_eq!(svc(&home, &["migrate"]).code, Some(1));
    set_mode(&target, 0o700);
    svc(&home, &["migrate"]).ok();
    assert!(target.join("svc.db").exists());
}

#[test]
fn token_that_others_can_read_or_guess_is_refused() {
    let home = Home::new();
    let good = "0123456789abcdef".repeat(2);
    let cases = [
        (good.as_str(), 0o644, "chmod 600 "),
        (&good, 0o620, "chmod 600 "),
        ("0123456789abcdef", 0o600, "128 bits"),
        ("correct horse", 0o600, ""),
        ("letmein", 0o600, "128 bits"),
        (&"0".repeat(64), 0o600, "not random"),
        ("", 0o600, "empty"),
    ];
    for (token, mode, words) in cases {
        home.write("token", token);
        set_mode(&home.path("token"), mode);
        let ran = svc(&home, &["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!(ran.code, Some(1), "{token} {mode:o}: {ran:?}");
        assert!(ran.stderr.contains(words), "{token} {mode:o}: {ran:?}");
        for command in [&["token", "show"][..], &["peer", "list"]] {
            let ran = svc(&home, command);
            assert_eq!(ran.code, Some(1), "{token} {mode:o} {command:?}: {ran:?}");
            assert!(ran.stderr.contains(home.path("token").to_str().expect("UTF-8")), "{ran:?}");
            assert!(token.is_empty() || !ran.stdout.contains(token), "{ran:?}");
        }
    }
    // A link, whatever its target is.
    let other = home.user().join("other");
    fs::rename(home.path("token"), &other).expect("renames");
    fs::write(&other, &good).expect("writes");
    symlink(&other, home.path("token")).expect("links");
    let ran = svc(&home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("symbolic link"), "{ran:?}");
    // A rotation replaces the link by a file, and leaves the target unchanged.
    svc(&home, &["token", "rotate"]).ok();
    assert_eq!(fs::read_to_string(&other).expect("is there"), good);
    assert_eq!(svc(&home, &["token", "show"]).ok().trim().len(), 64);
}

#[test]
fn token_of_128_bits_is_accepted() {
    let home = Home::new();
    let token = "kJ8_zq1LQ0xYw-4vNpR7tA";
    let file = home.user().join("custom");
    fs::write(&file, token).expect("writes");
    set_mode(&file, 0o600);
    let d = Daemon::with(|plan| plan.home(&home).flag("--token-file").flag(file.to_str().unwrap()));
    d.with_token(token).get("/v1/peers").ok(200);
    problem(&d.with_token("kJ8_zq1LQ0xYw-4vNpR7tB").get("/v1/peers"), 401, "unauthorized");
}

#[test]
fn prepared_links_are_not_written_through() {
    let home = Home::new();
    fs::create_dir(home.dir()).expect("makes");
    let victim = home.user().join("victim");
    fs::write(&victim, "theirs").expect("writes");
    for name in ["svc.log", "hooks.spool", "hooks.log", "svc.db.lock", "installed.json"] {
        symlink(&victim, home.path(name)).expect("links");
    }
    let start = svc(&home, &["start", "--listen", "127.0.0.1:0"]);
    assert_eq!(start.code, Some(1), "{start:?}");
    assert!(start.stderr.contains("symbolic link"), "{start:?}");
    let serve = svc(&home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(serve.code, Some(1), "the lock is a link: {serve:?}");
    let event = br#"{"hook_event_name":"SessionStart","session_id":"s","cwd":"/"}"#;
    svc_with_input(&home, &["hook", "claude-code"], event).ok();
    assert_eq!(fs::read_to_string(&victim).expect("is there"), "theirs");
}

#[test]
fn backup_follows_no_link_and_is_created_private() {
    only_if!(is_in_file());
    let mut d = Daemon::start();
    let outer = d.home.user().join("backups");
    fs::create_dir(&outer).expect("makes");
    let backup = |name: &str| svc(&d.home, &["backup", outer.join(name).to_str().expect("UTF-8")]);
    let victim = d.home.user().join("victim");
    // A link to a missing file, and a link to an existing one.
    symlink(&victim, outer.join("link.db")).expect("links");
    for _ in 0..2 {
        let ran = backup("link.db");
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("exists already"), "{ran:?}");
        assert_eq!(fs::read(&victim).unwrap_or_default(), b"");
        fs::write(&victim, "").expect("writes");
    }
    set_mode(&outer, 0o777);
    let open = backup("open.db");
    assert_eq!(open.code, Some(1), "{open:?}");
    assert!(open.stderr.contains("chmod o-w "), "{open:?}");
    set_mode(&outer, 0o755);
    backup("good.db").ok();
    assert_eq!(mode(&outer.join("good.db")), 0o600);
    let names: Vec<_> = fs::read_dir(&outer).expect("lists").collect();
    assert_eq!(names.len(), 2, "nothing is left behind: {names:?}");
    d.stop();
    symlink(&victim, d.home.path("svc.db.before-link")).expect("links");
    fs::rename(d.home.path("svc.db"), d.home.user().join("moved.db")).expect("renames");
    symlink(&victim, d.home.path("svc.db")).expect("links");
    let ran = svc(&d.home, &["restore", outer.join("good.db").to_str().expect("UTF-8")]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("symbolic link"), "{ran:?}");
    assert_eq!(fs::read(&victim).expect("is there"), b"");
}

/// Each data folder has its own lock, so a database with hard links in two folders would have two
/// daemons.
#[test]
fn database_with_a_second_hard_link_is_refused() {
    only_if!(is_in_file());
    let mut d = Daemon::start();
    let second = Home::new();
    fs::create_dir(second.dir()).expect("makes");
    set_mode(&second.dir(), 0o700);
    let commands: [&[&str]; 4] = [
        &["serve", "--listen", "127.0.0.1:0"],
        &["start", "--listen", "127.0.0.1:0"],
        &["migrate"],
        &["backup", "copy.db"],
    ];
    let refuse = |home: &Home, name: &str, words: &str, commands: &[&[&str]]| {
        let path = home.path(name).display().to_string();
        for command in commands {
            let ran = svc(home, command);
            assert_eq!(ran.code, Some(1), "{name} {command:?}: {ran:?}");
            let is_named = ran.stderr.contains(&path) && ran.stderr.contains(words);
            assert!(is_named, "{name} {command:?}: {ran:?}");
        }
    };
    symlink(d.home.path("svc.db"), second.path("svc.db")).expect("links");
    refuse(&second, "svc.db", "is a symbolic link", &commands);
    fs::remove_file(second.path("svc.db")).expect("ours");
    fs::hard_link(d.home.path("svc.db"), second.path("svc.db")).expect("links");
    refuse(&second, "svc.db", "has 2 names", &commands);
    d.get("/v1/health").ok(200);
    d.stop();
    refuse(&d.home, "svc.db", "has 2 names", &commands);
    fs::remove_file(second.path("svc.db")).expect("ours");
    // The side files of the database are checked, too. A backup needs no lock.
    let victim = d.home.user().join("victim");
    for name in ["svc.db-wal", "svc.db-shm", "svc.db-journal", "svc.db.lock"] {
        let commands = if name == "svc.db.lock" { &commands[..3] } else { &commands };
        let own = d.home.path(name);
        let _absent_after_a_clean_end = fs::remove_file(&own);
        symlink(&victim, &own).expect("links");
        refuse(&d.home, name, "is a symbolic link", commands);
        fs::remove_file(&own).expect("ours");
        fs::write(&victim, "").expect("writes");
        fs::hard_link(&victim, &own).expect("links");
        refuse(&d.home, name, "has 2 names", commands);
        fs::remove_file(&own).expect("ours");
        assert_eq!(fs::read(&victim).expect("is there"), b"", "{name}");
        fs::remove_file(&victim).expect("ours");
    }
    d.restart();
}

#[test]
fn restored_file_is_private_and_owned_by_the_user() {
    only_if!(is_in_file());
    let mut d = Daemon::start();
    let copy = d.home.user().join("copy.db");
    let path = copy.to_str().expect("UTF-8");
    svc(&d.home, &["backup", path]).ok();
    d.stop();
    let link = d.home.user().join("link.db");
    symlink(&copy, &link).expect("links");
    let ran = svc(&d.home, &["restore", link.to_str().expect("UTF-8")]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("symbolic link"), "{ran:?}");
    set_mode(&copy, 0o666);
    let ran = svc(&d.home, &["restore", path]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("chmod 600 "), "{ran:?}");
    set_mode(&copy, 0o644);
    // A name that an earlier version used for the copy.
    let victim = d.home.user().join("victim");
    symlink(&victim, d.home.path("svc.db.restoring")).expect("links");
    svc(&d.home, &["restore", path]).ok();
    assert!(!victim.exists());
    assert_eq!(mode(&d.home.path("svc.db")), 0o600);
    d.restart();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("exists").permissions().mode() & 0o777
}
