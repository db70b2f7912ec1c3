//! Databases of every earlier version: backed up, migrated, and nothing in them lost.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::{Connection, OpenFlags};
use serde_json::json;

use crate::daemon::{Daemon, Home, svc};
use crate::expect::{new_task, page, peer, problem};
use crate::migrate::one;
use crate::stored::is_in_file;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The files of a folder of this repository by the number that their names begin with.
fn numbered(name: &str) -> Vec<(i64, PathBuf)> {
    let entries = fs::read_dir(folder(name)).expect("the folder");
    let number = |path: &Path| {
        let name = path.file_stem()?.to_str()?;
        name.split('_').next()?.parse().ok()
    };
    let mut all: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter_map(|path| Some((number(&path)?, path)))
        .collect();
    all.sort();
    all
}

/// The description of the first migration that a database of this version lacks.
fn next_migration(version: i64) -> Option<String> {
    let mut steps = numbered("migrations/upgrade").into_iter().chain(numbered("migrations"));
    let (_, path) = steps.find(|(number, _)| *number > version)?;
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    Some(name.split_once('_').expect("number_description").1.replace('_', " "))
}

/// Versions with a stored database: those from before the baseline.
pub(crate) fn earlier_versions() -> Vec<i64> {
    let versions: Vec<i64> =
        numbered("fixtures/schema").into_iter().map(|(version, _)| version).collect();
    assert_eq!(versions.first(), Some(&36), "{versions:?}");
    versions
}

/// Writes a database of this version into the home, as a daemon of that time left it.
pub(crate) fn older_database(home: &Home, version: i64) {
    home.write("config.toml", "");
    let file = home.path("svc.db");
    fs::copy(folder(&format!("fixtures/schema/{version}.db")), &file).expect("copies");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("is ours");
}

/// The version before the present one.
fn last_but_one() -> i64 {
    let pending = |version: &i64| next_migration(*version).is_some();
    earlier_versions().into_iter().rfind(pending).expect("an earlier version")
}

fn backups(home: &Home) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.dir()).expect("the home");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.retain(|path| path.to_string_lossy().contains("svc.db.bak-"));
    found
}

#[test]
fn every_earlier_database_is_backed_up_and_migrated() {
    only_if!(is_in_file());
    for version in earlier_versions() {
        let Some(next) = next_migration(version) else { continue };
        let home = Home::new();
        older_database(&home, version);
        let pending = svc(&home, &["migrate", "--check"]);
        assert_eq!(pending.code, Some(4), "version {version}: {pending:?}");
        assert!(pending.stdout.contains(next.as_str()), "it lists `{next}`: {pending:?}");
        assert!(backups(&home).is_empty(), "a check changes nothing");

        let mut d = Daemon::with(|plan| plan.home(&home));
        let kept = page(&d.get("/v1/events?stream=note/old"), "events");
        assert_eq!(kept[0]["data"], json!({ "words": "from long ago" }), "version {version}");
        assert_eq!(kept[0]["at"], "2020-01-02T03:04:05.678Z");
        assert_eq!(kept[0]["position"], 5);
        // A thing without a known owner belongs to the operator, and `read_all` reads it.
        problem(&d.session("s-1").get("/v1/events?stream=note/old"), 404, "not_found");
        let session = d.reader("s-2");
        session.get("/v1/events?stream=note/old").ok(200);
        assert_eq!(session.get("/v1/events?stream=mcp/old").status(), 404, "as private as it was");
        let all = page(&session.get("/v1/events?limit=500"), "events").clone();
        assert!(all.iter().all(|event| event["stream"] != "mcp/old"), "{all:?}");
        assert_eq!(page(&d.get("/v1/events?stream=mcp/old"), "events").len(), 1);
        let peers = page(&d.get("/v1/peers?limit=500"), "peers");
        let said: Vec<_> = peers.iter().filter_map(|peer| peer.get("metadata")).collect();
        assert_eq!(said, [&json!({ "a": "1" })], "version {version}");
        let task = new_task(&d);
        let after = page(&d.get(&format!("/v1/events?stream=task/{task}")), "events");
        assert!(after[0]["position"].as_u64() > Some(6), "the log goes on behind it");

        let [backup] = <[PathBuf; 1]>::try_from(backups(&home)).expect("one backup");
        assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
        let file = Connection::open_with_flags(&backup, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        assert_eq!(one::<String>(&file, "pragma integrity_check"), "ok");
        let latest = "select max(version) from _sqlx_migrations";
        assert_eq!(one::<i64>(&file, latest), version, "it is from before");
        let words = "select data ->> 'words' from event where position = 5";
        assert_eq!(one::<String>(&file, words), "from long ago");

        d.restart();
        assert_eq!(backups(&home).len(), 1, "nothing was pending, so nothing is backed up");
        svc(&home, &["migrate", "--check"]).code.expect("an exit code");
        d.stop();
        svc(&home, &["migrate", "--check"]).ok();
        assert_eq!(schema_check(&home)["level"], "ok", "version {version}");
    }
}

/// The finding of `svc doctor` about the schema.
fn schema_check(home: &Home) -> serde_json::Value {
    let report = svc(home, &["doctor", "--json"]).stdout;
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let checks = report["checks"].as_array().expect("checks").clone();
    checks.into_iter().find(|check| check["check"] == "schema").expect("it is checked")
}

#[test]
fn doctor_fails_on_a_database_of_a_later_version() {
    if !is_in_file() {
        return;
    }
    let home = Home::new();
    svc(&home, &["migrate"]).ok();
    let file = Connection::open(home.path("svc.db")).expect("opens");
    let latest = "select max(version) from _sqlx_migrations";
    let known = one::<i64>(&file, latest);
    file.execute_batch(&format!(
        "update _sqlx_migrations set version = 9999 where version = {known}"
    ))
    .expect("changes");
    drop(file);
    let found = schema_check(&home);
    assert_eq!(found["level"], "fail", "the daemon does not start: {found}");
    let detail = found["detail"].as_str().expect("a text");
    assert!(detail.contains("9999") && detail.contains(&known.to_string()), "{detail}");
    assert_eq!(svc(&home, &["doctor"]).code, Some(1));
}

#[test]
fn migrate_command_keeps_every_row() {
    only_if!(is_in_file());
    for version in earlier_versions() {
        let home = Home::new();
        older_database(&home, version);
        svc(&home, &["migrate"]).ok();
        svc(&home, &["migrate", "--check"]).ok();
        assert_eq!(schema_check(&home)["level"], "ok", "version {version}");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let file = Connection::open_with_flags(home.path("svc.db"), flags).expect("the database");
        for (table, rows) in [
            ("event", 6),
            ("session", 1),
            ("peer", 2),
            ("message", 3),
            ("message_state", 6),
            ("task", 1),
            ("token", 1),
            ("outcome", 1),
            ("ghap", 2),
            ("memory", 1),
            ("agent", 1),
            ("request", 1),
            ("assignment", 2),
        ] {
            let count = format!("select count(*) from {table}");
            assert_eq!(one::<i64>(&file, &count), rows, "version {version}: {table}");
        }
        let states = "select group_concat(state || ' ' || coalesce(requirements ->> 'mode', mode)) from assignment";
        assert_eq!(one::<String>(&file, states), "no_reply notify,ok spawn-only");
        let names = "select group_concat(display_name) from peer";
        assert_eq!(one::<String>(&file, names), "old,old", "nobody is put aside");
        // The participant was busy, and waits for a person since that status exists.
        let status = "select status from peers_now where path = '/srv/old' and session_id = 'old'";
        assert_eq!(one::<String>(&file, status), if version < 44 { "busy" } else { "waiting" });
        let since = "select since = last_seen from peer where session_id = 'old'";
        assert!(one::<bool>(&file, since), "version {version}");
        let waiting =
            "select group_concat(id) from (select id from message where waits = 1 order by id)";
        assert_eq!(one::<String>(&file, waiting), "2,3");
        let found = "select memory_id from memory_posting
            where term_id = (select id from memory_term where term = 'redi')";
        assert_eq!(one::<i64>(&file, found), 1);
        assert_eq!(one::<String>(&file, "pragma integrity_check"), "ok");
    }
}

#[test]
fn database_before_the_baseline_is_refused_with_both_versions() {
    only_if!(is_in_file());
    let home = Home::new();
    older_database(&home, 36);
    let file = Connection::open(home.path("svc.db")).expect("the database");
    file.execute_batch("delete from _sqlx_migrations where version = 36").expect("deletes");
    drop(file);
    for args in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"], &["migrate", "--check"]] {
        let ran = svc(&home, args);
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        for version in ["35", "36"] {
            assert!(ran.stderr.contains(version), "{args:?} names {version}: {ran:?}");
        }
    }
    assert!(backups(&home).is_empty(), "and it is left as it was");
}

/// A copy of the same version may have other data, as after a restore.
#[test]
fn existing_backup_counts_only_for_the_same_data() {
    only_if!(is_in_file());
    let version = last_but_one();
    let known = |home: &Home| home.path(&format!("svc.db.bak-{version}"));
    let (home, other) = (Home::new(), Home::new());
    older_database(&home, version);
    let file = Connection::open(home.path("svc.db")).expect("the database");
    file.execute("vacuum into ?1", [known(&home).display().to_string()]).expect("a copy");
    svc(&home, &["migrate"]).ok();
    assert_eq!(backups(&home).len(), 1, "an attempt before has made it");

    older_database(&other, version);
    let file = Connection::open(known(&other)).expect("a copy");
    file.execute_batch("create table event (position integer)").expect("of an empty log");
    drop(file);
    svc(&other, &["migrate"]).ok();
    let copies = backups(&other);
    assert_eq!(copies.len(), 2, "{copies:?}");
    let positions = copies.iter().map(|copy| {
        let copy = Connection::open(copy).expect("a copy");
        let last = "select coalesce(max(position), 0) from event";
        copy.query_row(last, [], |row| row.get(0)).expect("a position")
    });
    let mut positions: Vec<i64> = positions.collect();
    positions.sort_unstable();
    assert_eq!(positions, [0, 6]);
}

#[test]
fn no_migrate_starts_only_without_pending_migrations() {
    only_if!(is_in_file());
    let home = Home::new();
    older_database(&home, last_but_one());
    let refused = svc(&home, &["serve", "--no-migrate", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("svc migrate"), "it says what to do: {refused:?}");
    let line = ["serve", "--no-migrate", "--json", "--listen", "127.0.0.1:0"];
    let refused = svc(&home, &line);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let last = refused.stderr.lines().last().expect("an error");
    let error: serde_json::Value = serde_json::from_str(last).expect("one line of JSON");
    assert!(error["error"].as_str().expect("text").contains("svc migrate"), "{error}");
    svc(&home, &["migrate"]).ok();
    let d = Daemon::with(|plan| plan.home(&home).flag("--no-migrate"));
    d.get("/v1/health").ok(200);
}

#[test]
fn new_database_is_not_backed_up() {
    only_if!(is_in_file());
    let d = Daemon::start();
    assert!(backups(&d.home).is_empty());
}

/// The system's SQLite may be older than the daemon's: for it `json_valid(null)` is 0.
#[test]
fn older_system_sqlite_accepts_the_schema() {
    only_if!(is_in_file());
    let d = Daemon::start();
    new_task(&d);
    peer(&d, "without metadata");
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": "2025-06-18", "capabilities": {} } });
    d.post("/mcp", &hello).ok(200);
    let file = d.home.path("svc.db");
    let database =
        Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("the database");
    let nulls: i64 = database
        .query_row(
            "select (select count(*) from task where metadata is null)
                + (select count(*) from peer where metadata is null)",
            [],
            |row| row.get(0),
        )
        .expect("a count");
    assert!(nulls >= 2, "there are rows that it concerns");
    let mut tables =
        database.prepare("select sql from sqlite_schema where type = 'table'").expect("a query");
    let tables = tables.query_map([], |row| row.get::<_, Option<String>>(0)).expect("the tables");
    for sql in tables.filter_map(|sql| sql.expect("a text")) {
        for line in sql.lines().filter(|line| line.contains("json_valid(")) {
            assert!(line.contains("not null") || line.contains("is null or json_valid("), "{line}");
        }
    }
    match Command::new("sqlite3").arg(&file).arg("pragma integrity_check").output() {
        Ok(said) => assert_eq!(String::from_utf8_lossy(&said.stdout), "ok\n", "{said:?}"),
        Err(_) => println!("skipped: the check by the system's sqlite3 (not installed)"),
    }
}
