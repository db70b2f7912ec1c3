//! What a restore accepts and refuses, and what is invalid after it.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::json;

use crate::daemon::{Daemon, svc};
use crate::expect::{new_task, page, peer, problem, text};
use crate::stored::is_in_file;

/// A backup of a stopped daemon with a task, a message and a token.
fn backed_up() -> (Daemon, PathBuf) {
    let mut d = Daemon::start();
    new_task(&d);
    let copy = d.home.user().join("copy.db");
    svc(&d.home, &["backup", copy.to_str().expect("UTF-8")]).ok();
    d.stop();
    (d, copy)
}

#[test]
fn changed_schema_is_refused_by_name() {
    only_if!(is_in_file());
    let (mut d, copy) = backed_up();
    let before = fs::read(d.home.path("svc.db")).expect("reads");
    let writable = "pragma writable_schema = on;";
    let changes = [
        ("create trigger spy after insert on token begin delete from task; end", "trigger spy"),
        ("create view spy as select * from token", "view spy"),
        ("create table spy (a)", "table spy"),
        ("create index spy on task (title)", "index spy"),
        ("create virtual table spy using fts5 (a)", "table spy"),
        ("alter table task add column spy text", "table task"),
        ("drop view tasks_now", "view tasks_now"),
        ("drop trigger term_added", "trigger term_added"),
        ("drop index task_open", "index task_open"),
        (
            "drop view tasks_now; create view tasks_now as select hash as task_id from token",
            "view tasks_now",
        ),
        (
            "drop trigger memory_added;
            create trigger memory_added after insert on memory begin delete from memory; end",
            "trigger memory_added",
        ),
        ("update sqlite_schema set sql = sql || ' ' where name = 'streams'", "view streams"),
        ("pragma application_id = 7", "application_id"),
        ("pragma user_version = 7", "user_version"),
        ("update _sqlx_migrations set checksum = x'00' where version = 56", "migrations"),
        ("update _sqlx_migrations set success = 0 where version = 56", "migrations"),
        (
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
            values (46, 'one more', 1, x'00', 0)",
            "migrations",
        ),
        (
            "pragma foreign_keys = off; insert into message_state (message_id, state, at) values ('x', 'queued', 1)",
            "message_state",
        ),
    ];
    for (change, named) in changes {
        let changed = d.home.user().join("changed.db");
        fs::copy(&copy, &changed).expect("copies");
        let file = Connection::open(&changed).expect("opens");
        file.execute_batch(&format!("{writable} {change}"))
            .unwrap_or_else(|error| panic!("{change}: {error}"));
        drop(file);
        let ran = svc(&d.home, &["restore", changed.to_str().expect("UTF-8")]);
        assert_eq!(ran.code, Some(1), "{change}: {ran:?}");
        assert!(ran.stderr.contains(named), "{change}: {ran:?}");
        assert!(ran.stderr.contains("nothing was changed"), "{change}: {ran:?}");
        assert!(fs::read(d.home.path("svc.db")).expect("reads") == before, "{change}");
    }
    let left: Vec<_> = fs::read_dir(d.home.dir())
        .expect("lists")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .filter(|name| name.contains("tmp") || name.contains("before"))
        .collect();
    assert_eq!(left, [""; 0], "nothing is left behind");
    svc(&d.home, &["restore", copy.to_str().expect("UTF-8")]).ok();
    d.restart();
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 1);
}

#[test]
fn copy_of_a_live_file_with_statistics_is_accepted() {
    only_if!(is_in_file());
    let (mut d, _) = backed_up();
    let copy = d.home.user().join("live.db");
    fs::copy(d.home.path("svc.db"), &copy).expect("copies");
    let file = Connection::open(&copy).expect("opens");
    let mode: String =
        file.query_row("pragma journal_mode", [], |row| row.get(0)).expect("a journal mode");
    assert_eq!(mode, "wal", "as the daemon has it");
    file.execute_batch("analyze").expect("counts");
    drop(file);
    svc(&d.home, &["restore", copy.to_str().expect("UTF-8")]).ok();
    d.restart();
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 1);
}

#[test]
fn restored_session_tokens_and_leases_are_void() {
    only_if!(is_in_file());
    let mut d = Daemon::start();
    let minted = d.post("/v1/tokens", &json!({ "session": "s" })).ok(201);
    let session = d.with_token(&text(&minted, "token"));
    session.get("/v1/peers").ok(200);
    let (from, to) = (peer(&d, "from"), peer(&d, "to"));
    let message = json!({ "text": "for you", "from_peer": from });
    let id = text(&d.post(&format!("/v1/peers/{to}/messages"), &message).ok(200), "id");
    let inbox = format!("/v1/peers/{to}/messages");
    assert_eq!(page(&d.get(&inbox), "messages").len(), 1, "it is leased");
    assert_eq!(page(&d.get(&inbox), "messages").len(), 0, "to that reader alone");
    let opened = d.post(
        "/mcp",
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        } }),
    );
    let mcp = opened.header("mcp-session-id").expect("a session").to_owned();
    let copy = d.home.user().join("copy.db");
    svc(&d.home, &["backup", copy.to_str().expect("UTF-8")]).ok();
    d.stop();
    svc(&d.home, &["restore", copy.to_str().expect("UTF-8")]).ok();
    d.restart();
    problem(&d.with_token(&text(&minted, "token")).get("/v1/peers"), 401, "unauthorized");
    let again = page(&d.get(&inbox), "messages");
    assert_eq!(again.iter().map(|message| text(message, "id")).collect::<Vec<_>>(), [id]);
    let ended = d.request("DELETE", "/mcp").header("Mcp-Session-Id", &mcp).send();
    problem(&ended, 404, "not_found");
    // A new token of the same session is valid.
    let minted = d.post("/v1/tokens", &json!({ "session": "s" })).ok(201);
    d.with_token(&text(&minted, "token")).get("/v1/peers").ok(200);
}

#[test]
fn older_backup_is_compared_with_its_own_version() {
    only_if!(is_in_file());
    // The copy of the database that a start keeps before it migrates.
    let (mut d, _) = backed_up();
    for version in crate::upgrade::earlier_versions() {
        let old = crate::daemon::Home::new();
        crate::upgrade::older_database(&old, version);
        let path = old.path("svc.db");
        svc(&d.home, &["restore", path.to_str().expect("UTF-8")]).ok();
        let file = Connection::open(&path).expect("opens");
        file.execute_batch("create trigger spy after insert on event begin delete from event; end")
            .expect("makes");
        drop(file);
        let ran = svc(&d.home, &["restore", path.to_str().expect("UTF-8")]);
        assert_eq!(ran.code, Some(1), "version {version}: {ran:?}");
        assert!(ran.stderr.contains("trigger spy"), "version {version}: {ran:?}");
        d.restart();
        assert_eq!(page(&d.get("/v1/events?stream=note/old"), "events").len(), 1);
        d.stop();
    }
}

#[test]
fn doctor_reports_foreign_objects_in_the_database() {
    only_if!(is_in_file());
    let (d, _) = backed_up();
    let schema = || {
        let report: serde_json::Value =
            serde_json::from_str(&svc(&d.home, &["doctor", "--json"]).stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("checks").clone();
        checks.into_iter().find(|check| check["check"] == "schema").expect("it is checked")
    };
    assert_eq!(schema()["level"], "ok");
    assert!(!d.home.path("svc.db-wal").exists(), "it leaves nothing beside the database");
    let file = Connection::open(d.home.path("svc.db")).expect("opens");
    file.execute_batch("create trigger spy after insert on event begin select 1; end")
        .expect("makes");
    let told = schema();
    assert_eq!(told["level"], "warn", "{told}");
    assert!(text(&told, "detail").contains("trigger spy"), "{told}");
}

#[test]
fn orphaned_wal_is_not_replayed_into_a_restored_database() {
    only_if!(is_in_file());
    let mut d = Daemon::start();
    new_task(&d);
    let copy = d.home.user().join("copy.db");
    svc(&d.home, &["backup", copy.to_str().expect("UTF-8")]).ok();
    for _ in 0..20 {
        new_task(&d);
    }
    d.kill9();
    assert!(d.home.path("svc.db-wal").metadata().expect("is there").len() > 0);
    fs::remove_file(d.home.path("svc.db")).expect("removes");
    svc(&d.home, &["restore", copy.to_str().expect("UTF-8")]).ok();
    d.restart();
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 1);
    d.stop();
    let file = Connection::open(d.home.path("svc.db")).expect("opens");
    let sound: String =
        file.query_row("pragma integrity_check", [], |row| row.get(0)).expect("an answer");
    assert_eq!(sound, "ok");
}
