//! Databases of every earlier level: backed up, brought up to date, and nothing in them lost.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::{Connection, OpenFlags, params};
use serde_json::json;
use sha2::{Digest as _, Sha384};

use crate::daemon::{Daemon, Home, svc};
use crate::expect::{new_task, page, peer, problem};

/// The migrations in their order: number, description and text.
fn migrations() -> Vec<(i64, String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let entries = fs::read_dir(folder).expect("the migrations");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let (number, description) = name.split_once('_').expect("number_description");
        let sql = fs::read_to_string(&path).expect("a migration");
        all.push((number.parse().expect("a number"), description.replace('_', " "), sql));
    }
    all
}

/// Makes a database as a daemon with only the first so many migrations had made it, with an event.
pub(crate) fn older_database(home: &Home, level: usize) {
    home.write("config.toml", "");
    let file = Connection::open(home.path("svc.db")).expect("a new database");
    file.execute_batch(
        "pragma journal_mode = wal;
         create table _sqlx_migrations (
             version bigint primary key,
             description text not null,
             installed_on timestamp not null default current_timestamp,
             success boolean not null,
             checksum blob not null,
             execution_time bigint not null
         );",
    )
    .expect("the table of migrations");
    for (number, description, sql) in &migrations()[..level] {
        file.execute_batch(sql).expect("a migration applies");
        let checksum = Sha384::digest(sql.as_bytes()).to_vec();
        file.execute(
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values (?1, ?2, true, ?3, 1)",
            params![number, description, checksum],
        )
        .expect("a row for it");
    }
    file.execute_batch(
        "insert into stream (id, name, created_at) values (77, 'note/old', 1577934245678);
         insert into event (position, stream_id, seq, kind, data, at)
         values (5, 77, 1, 'note.made', '{\"words\":\"from long ago\"}', 1577934245678);
         insert into stream (id, name, created_at) values (76, 'mcp/old', 1577934245678);
         insert into event (position, stream_id, seq, kind, data, at)
         values (4, 76, 1, 'message', '{\"for\":\"one session\"}', 1577934245678);",
    )
    .expect("the log is in the first migration");
    if level >= 14 {
        let as_opened = "update stream set visibility = 'operator' where name = 'mcp/old'";
        file.execute_batch(as_opened).expect("the column is in this migration");
    }
    if level >= 16 {
        let as_opened =
            "update stream set visibility = 'operator', project = '' where name = 'note/old'";
        file.execute_batch(as_opened).expect("the columns are in this migration");
    }
}

fn backups(home: &Home) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.dir()).expect("the home");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.retain(|path| path.to_string_lossy().contains("svc.db.bak-"));
    found
}

#[test]
fn every_earlier_database_is_backed_up_and_brought_up_to_date() {
    let newest = migrations().len();
    for level in 1..newest {
        let home = Home::new();
        older_database(&home, level);
        let pending = svc(&home, &["migrate", "--check"]);
        assert_eq!(pending.code, Some(4), "level {level}: {pending:?}");
        let (_, next, _) = &migrations()[level];
        assert!(pending.stdout.contains(next.as_str()), "it lists `{next}`: {pending:?}");
        assert!(backups(&home).is_empty(), "a check changes nothing");

        let mut d = Daemon::with(|plan| plan.home(&home));
        let kept = page(&d.get("/v1/events?stream=note/old"), "events");
        assert_eq!(kept[0]["data"], json!({ "words": "from long ago" }), "level {level}");
        assert_eq!(kept[0]["at"], "2020-01-02T03:04:05.678Z");
        assert_eq!(kept[0]["position"], 5);
        // What nobody is known to own stays the operator's, and who reads all reads it.
        problem(&d.session("s-1").get("/v1/events?stream=note/old"), 404, "not_found");
        let session = d.reader("s-2");
        session.get("/v1/events?stream=note/old").ok(200);
        assert_eq!(session.get("/v1/events?stream=mcp/old").status(), 404, "as private as it was");
        let all = page(&session.get("/v1/events?limit=500"), "events").clone();
        assert!(all.iter().all(|event| event["stream"] != "mcp/old"), "{all:?}");
        assert_eq!(page(&d.get("/v1/events?stream=mcp/old"), "events").len(), 1);
        new_task(&d);
        let after = page(&d.get("/v1/events?stream_prefix=task/"), "events");
        assert!(after[0]["position"].as_u64() > Some(5), "the log goes on behind it");

        let [backup] = <[PathBuf; 1]>::try_from(backups(&home)).expect("one backup");
        assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
        let file = Connection::open_with_flags(&backup, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let check: String = file.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        let rows: i64 =
            file.query_row("select count(*) from _sqlx_migrations", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, i64::try_from(level).unwrap(), "it is from before");
        let words: String = file
            .query_row("select data ->> 'words' from event where position = 5", [], |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!(words, "from long ago");

        d.restart();
        assert_eq!(backups(&home).len(), 1, "nothing was pending, so nothing is backed up");
        svc(&home, &["migrate", "--check"]).code.expect("an exit code");
        d.stop();
        svc(&home, &["migrate", "--check"]).ok();
    }
}

#[test]
fn migrating_by_hand_does_the_same() {
    let home = Home::new();
    older_database(&home, migrations().len() - 1);
    svc(&home, &["migrate"]).ok();
    svc(&home, &["migrate", "--check"]).ok();
    let d = Daemon::with(|plan| plan.home(&home));
    assert_eq!(page(&d.get("/v1/events?stream=note/old"), "events").len(), 1);
}

/// A copy of the same version may be of other data, as after a backup was restored.
#[test]
fn only_a_copy_of_the_same_data_stands_for_another() {
    let level = migrations().len() - 1;
    let known = |home: &Home| home.path(&format!("svc.db.bak-{}", migrations()[level - 1].0));
    let (home, other) = (Home::new(), Home::new());
    older_database(&home, level);
    let file = Connection::open(home.path("svc.db")).expect("the database");
    file.execute("vacuum into ?1", [known(&home).display().to_string()]).expect("a copy");
    svc(&home, &["migrate"]).ok();
    assert_eq!(backups(&home).len(), 1, "an attempt before has made it");

    older_database(&other, level);
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
    assert_eq!(positions, [0, 5]);
}

#[test]
fn a_daemon_told_not_to_migrate_starts_only_where_nothing_is_pending() {
    let home = Home::new();
    older_database(&home, migrations().len() - 1);
    let refused = svc(&home, &["serve", "--no-migrate", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("svc migrate"), "it says what to do: {refused:?}");
    svc(&home, &["migrate"]).ok();
    let d = Daemon::with(|plan| plan.home(&home).flag("--no-migrate"));
    d.get("/v1/health").ok(200);
}

#[test]
fn a_fresh_database_is_not_backed_up() {
    let d = Daemon::start();
    assert!(backups(&d.home).is_empty());
}

/// What the SQLite of the system says, which may be older than the one that the daemon has built in: to it
/// `json_valid(null)` is 0.
#[test]
fn an_older_sqlite_finds_nothing_wrong() {
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
