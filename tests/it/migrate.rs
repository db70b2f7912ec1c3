//! The life of a database: created, checked, refused when too new, read by people, backed up and
//! restored.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use serde_json::json;

use crate::daemon::{Daemon, Home, svc};
use crate::expect::{append, done, frame, instant, new_task, peer, subscribe, with_task};
use crate::stored::is_in_file;

fn open(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("a database")
}

#[track_caller]
pub(crate) fn one<T: rusqlite::types::FromSql>(file: &Connection, sql: &str) -> T {
    file.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

#[test]
fn migrating_an_empty_home_makes_the_database_and_then_nothing_is_pending() {
    only_if!(is_in_file());
    let home = Home::new();
    let pending = svc(&home, &["migrate", "--check"]);
    assert_eq!(pending.code, Some(4), "{pending:?}");
    assert!(!pending.stdout.trim().is_empty(), "it lists what is pending: {pending:?}");
    let pending = svc(&home, &["migrate", "--check", "--json"]);
    assert_eq!(pending.code, Some(4), "a check changes nothing: {pending:?}");
    assert!(serde_json::from_str::<serde_json::Value>(&pending.stdout).is_ok(), "{pending:?}");

    svc(&home, &["migrate"]).ok();
    assert!(home.path("svc.db").exists());
    svc(&home, &["migrate", "--check"]).ok();
    svc(&home, &["migrate"]).ok();

    let d = Daemon::with(|plan| plan.home(&home));
    new_task(&d);
}

#[test]
fn migrating_beside_a_running_daemon_is_refused() {
    let d = Daemon::start();
    let ran = svc(&d.home, &["migrate"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let parts = match d.home.store() {
        // It may be on another machine.
        Some(url) => vec![url.to_owned(), "stop it first".to_owned()],
        None => vec![format!("pid {}", d.pid()), d.url(), "svc stop".to_owned()],
    };
    for part in parts {
        assert!(ran.stderr.contains(&part), "it names the daemon and says what to do: {ran:?}");
    }
    new_task(&d);
}

#[test]
fn newer_database_is_refused_with_both_versions() {
    const NEWER: &str = "20991231235959";
    only_if!(is_in_file());
    let (mut d, task) = with_task();
    d.stop();
    let file = Connection::open(d.home.path("svc.db")).unwrap();
    let ours: i64 = one(&file, "select max(version) from _sqlx_migrations");
    let row = format!(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values ({NEWER}, 'from the future', true, x'00', 0)"
    );
    file.execute(&row, []).unwrap();
    drop(file);

    let before = fs::read(d.home.path("svc.db")).unwrap();
    for args in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"], &["migrate", "--check"]] {
        let ran = svc(&d.home, args);
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        for version in [NEWER, &ours.to_string()] {
            assert!(ran.stderr.contains(version), "{args:?} names {version}: {ran:?}");
        }
    }
    assert!(!d.home.path("daemon.json").exists());
    assert!(fs::read(d.home.path("svc.db")).unwrap() == before, "and it is left as it was");

    let file = Connection::open(d.home.path("svc.db")).unwrap();
    let sql = format!("delete from _sqlx_migrations where version = {NEWER}");
    file.execute(&sql, []).unwrap();
    drop(file);
    d.restart();
    d.get(&format!("/v1/tasks/{task}")).ok(200);
}

#[test]
fn file_that_is_no_database_is_refused_and_unchanged() {
    only_if!(is_in_file());
    let home = Home::new();
    let text = "this is a letter and not a database\n".repeat(200);
    home.write("svc.db", &text);
    let ran = svc(&home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("svc.db"), "{ran:?}");
    assert_eq!(ran.stderr.matches("(code: 26)").count(), 1, "{ran:?}");
    assert_eq!(home.read("svc.db"), text.as_bytes());
}

#[test]
fn views_have_names_and_iso_times() {
    let d = Daemon::start();
    let (from, to) = (peer(&d, "s-1"), peer(&d, "s-2"));
    let message = json!({ "text": "hello", "from_peer": from });
    d.post(&format!("/v1/peers/{to}/messages"), &message).ok(200);
    let task = new_task(&d);
    append(&d, &task, &json!([frame("a line"), done()]));

    // While the daemon runs, as people do.
    for view in ["history", "streams", "peers_now", "tasks_now", "messages_now"] {
        let rows = d.home.named_rows(&format!("select * from {view}"));
        let mut times = 0;
        for (name, value) in rows.iter().flatten() {
            let is_time = name == "at" || name.ends_with("_at") || name == "last_seen";
            if is_time && !value.is_null() {
                instant(value);
                times += 1;
            }
        }
        assert!(!rows.is_empty(), "{view} shows something");
        assert!(times >= rows.len(), "{view} shows times in {rows:?}");
    }
    let count = format!("select count(*) from history where stream = 'task/{task}'");
    assert_eq!(d.home.value(&count), 3);
    only_if!(d.home.store().is_none());
    // Tables refuse values of another type, and ids are text.
    let file = open(&d.home.path("svc.db"));
    for view in ["history", "streams", "peers_now", "tasks_now", "messages_now"] {
        let kind = format!("select type from sqlite_schema where name = '{view}'");
        assert_eq!(one::<String>(&file, &kind), "view", "{view}");
    }
    let loose: i64 = one(
        &file,
        "select count(*) from pragma_table_list
         where type = 'table' and not strict and name not like 'sqlite_%' and name not like '_sqlx%'",
    );
    assert_eq!(loose, 0, "every table is strict");
}

#[test]
fn backup_under_load_can_be_restored() {
    only_if!(is_in_file());
    let (mut d, task) = with_task();
    append(&d, &task, &json!([frame("kept 1"), frame("kept 2")]));
    let copy = d.home.user().join("copy.db");
    let path = copy.to_str().unwrap();
    svc(&d.home, &["backup", path]).ok();
    let file = open(&copy);
    assert_eq!(one::<String>(&file, "pragma integrity_check"), "ok");
    drop(file);
    assert_ne!(svc(&d.home, &["backup", path]).code, Some(0), "no file is written over");

    append(&d, &task, &json!([frame("lost"), done()]));
    let refused = svc(&d.home, &["restore", path]);
    assert_eq!(refused.code, Some(3), "not under a running daemon: {refused:?}");
    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"], 5);

    d.stop();
    svc(&d.home, &["restore", path]).ok();
    d.restart();
    let restored = d.get(&format!("/v1/tasks/{task}")).ok(200);
    assert_eq!(restored["last_id"], 3);
    assert_eq!(restored["status"], "pending");
    // A reader beyond the end gets a gap, and everything from the start.
    let mut stream = d.follow_after(&subscribe(&task), Some("5"));
    let gap = stream.event();
    assert_eq!((gap.kind.as_str(), gap.id), ("gap", None));
    assert_eq!(gap.data["reason"], "ahead");
    assert_eq!(stream.event().id, Some(1));
    d.stop();
    assert_eq!(one::<String>(&open(&d.home.path("svc.db")), "pragma integrity_check"), "ok");
}

#[test]
fn invalid_backup_is_not_restored() {
    only_if!(is_in_file());
    let (mut d, task) = with_task();
    d.stop();
    let letter = d.home.user().join("letter.db");
    fs::write(&letter, "this is a letter and not a database\n".repeat(200)).unwrap();
    let empty = d.home.user().join("empty.db");
    fs::write(&empty, "").unwrap();
    let nowhere = d.home.user().join("nowhere.db");
    for wrong in [letter, empty, nowhere] {
        let ran = svc(&d.home, &["restore", wrong.to_str().unwrap()]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
    }
    d.restart();
    d.get(&format!("/v1/tasks/{task}")).ok(200);
}
