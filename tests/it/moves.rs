//! `svc migrate --to` and `--from`: a history moves to a server and back, whole, or not at all.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::json;

use crate::daemon::{Daemon, Home, Running, svc};
use crate::expect::{append, frame, task_events, with_task};
use crate::stored::{has_server, is_in_file, psql};

const WITHIN: Duration = Duration::from_mins(2);
/// Enough that a move takes a while.
const EVENTS: i64 = 30_000;

fn database() -> String {
    svc_store::scratch_server::new_database()
}

#[test]
fn a_history_moves_to_a_server_and_back() {
    only_if!(is_in_file() && has_server());
    let url = database();
    let (mut d, task) = with_task();
    append(&d, &task, &json!([frame("first\t\\N\n"), frame("second é 🦀")]));
    let before = task_events(&d, &task);
    let beside = svc(&d.home, &["migrate", "--to", &url]);
    assert_eq!(beside.code, Some(3), "{beside:?}");
    d.stop();

    let trial = svc(&d.home, &["migrate", "--to", &url, "--dry-run"]);
    assert!(trial.ok().contains("would be moved"), "{trial:?}");
    assert_eq!(
        psql(&url, "select to_regclass('svc.event') is null"),
        "t",
        "a trial leaves nothing"
    );
    let moved = svc(&d.home, &["migrate", "--to", &url]);
    let line = format!("url = {url:?}");
    assert!(moved.ok().contains("[store]") && moved.stdout.contains(&line), "{moved:?}");
    let again = svc(&d.home, &["migrate", "--to", &url, "--json"]);
    assert_eq!(again.json()["is_repeat"], true, "{again:?}");
    let refused = svc(&d.home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in [&url, "--force-local", "[store] url"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    let looked = svc(&d.home, &["doctor", "--json"]).stdout;
    assert!(looked.contains("it moves to") && looked.contains(&url), "{looked}");
    let forced = Daemon::with(|plan| plan.home(&d.home).flag("--force-local"));
    assert_eq!(task_events(&forced, &task), before);
    append(&forced, &task, &json!([frame("here alone")]));
    drop(forced);
    let late = svc(&d.home, &["migrate", "--to", &url]);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(late.stderr.contains("was written to after it was moved"), "{late:?}");

    d.restart_with(|plan| plan.env("SVC_STORE_URL", &url));
    assert_eq!(task_events(&d, &task), before, "ids, times and texts");
    append(&d, &task, &json!([frame("third")]));
    let after = task_events(&d, &task);
    let back = d.home.path("back.db");
    let from = ["migrate", "--from", &url, "--to", back.to_str().expect("a plain name")];
    let beside = svc(&d.home, &from);
    assert_eq!(beside.code, Some(3), "{beside:?}");
    d.stop();
    let trial = svc(&d.home, &[&from[..], &["--dry-run"]].concat());
    assert!(trial.ok().contains("would be moved") && !back.exists(), "{trial:?}");
    let came = svc(&d.home, &from);
    assert!(came.ok().contains("compared"), "{came:?}");
    d.home.write("config.toml", &format!("[store]\nurl = {url:?}\n"));
    let refused = svc(&d.home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in ["back.db", "names no store.url"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }

    let home = Home::new();
    fs::create_dir_all(home.path("")).expect("a data folder");
    fs::copy(&back, home.path("svc.db")).expect("a copy");
    let d = Daemon::with(|plan| plan.home(&home));
    assert_eq!(task_events(&d, &task), after);
}

#[test]
fn a_refused_move_names_its_flag_and_leaves_nothing() {
    let home = Home::new();
    let file = home.user().join("back.db");
    let to = file.to_str().expect("a plain name");
    let nowhere = "postgres://u@127.0.0.1:1/svc";
    for (args, code, says) in [
        (&["migrate", "--to", "elsewhere"][..], 2, "--to: is not an address"),
        (&["migrate", "--from", "elsewhere", "--to", to], 2, "--from: is not an address"),
        (&["migrate", "--from", "postgres://u:p@db/svc", "--to", to], 2, "--from: has a password"),
        (&["migrate", "--to", nowhere], 1, "there is no history"),
        (&["migrate", "--from", nowhere, "--to", to], 1, nowhere),
    ] {
        let mut command = home.command(args);
        command.env_remove("SVC_STORE_URL").env("SVC_STORE_CONNECT_TIMEOUT", "1");
        let ran = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(says) && !text.contains("--store-url"), "{args:?}: {text}");
        assert!(!file.with_file_name("back.db.lock").exists(), "{args:?}");
        assert!(!home.path("svc.db.lock").exists(), "{args:?}");
    }
}

#[test]
fn a_schema_without_a_history_is_not_moved_and_not_made() {
    only_if!(is_in_file() && has_server());
    let (url, home) = (database(), Home::new());
    let file = home.user().join("back.db");
    for more in [&[][..], &["--dry-run"]] {
        let args = ["migrate", "--from", &url, "--to", file.to_str().expect("a plain name")];
        let moved = svc(&home, &[&args[..], more].concat());
        assert_eq!(moved.code, Some(1), "{moved:?}");
        assert!(moved.stderr.contains("there is no history in schema svc of"), "{moved:?}");
        assert!(!file.exists(), "{more:?}");
        assert_eq!(psql(&url, "select to_regnamespace('svc') is null"), "t", "{more:?}");
    }
}

fn long_history() -> (Home, String) {
    let (mut d, task) = with_task();
    d.stop();
    let home = d.home.clone();
    let file = Connection::open(home.path("svc.db")).expect("a database");
    let insert = "with recursive n(i) as (select 1 union all select i + 1 from n where i < ?1)
        insert into event (position, stream_id, seq, kind, data, at)
        select (select max(position) from event) + i, s.id, (select max(seq) from event where stream_id = s.id) + i,
            'frame', '{\"line\":\"' || hex(randomblob(100)) || '\"}', i
        from n cross join stream s on s.name = 'task/' || ?2";
    file.execute(insert, rusqlite::params![EVENTS, task]).expect("rows");
    drop(file);
    (home, task)
}

fn log(file: &Path) -> Vec<(i64, i64, String)> {
    let file = Connection::open(file).expect("a database");
    let mut select =
        file.prepare("select position, seq, data from event order by position").expect("a log");
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

#[test]
fn a_move_that_is_killed_at_any_point_is_finished_by_the_same_command() {
    only_if!(is_in_file() && has_server());
    let (home, _) = long_history();
    let before = log(&home.path("svc.db"));
    let url = database();
    let command = |args: &[&str]| -> Command { home.command(args) };
    let mut killed = 0;
    for pause in [20, 60, 120, 200, 300, 450, 700, 1_000] {
        let mut moving = Running::spawn(command(&["migrate", "--to", &url]));
        thread::sleep(Duration::from_millis(pause));
        if !moving.has_ended() {
            moving.signal(Signal::KILL);
            killed += 1;
        }
        moving.wait(WITHIN);
    }
    assert!(killed > 0, "some were killed under way");
    svc(&home, &["migrate", "--to", &url]).ok();
    assert!(svc(&home, &["migrate", "--to", &url, "--json"]).json()["is_repeat"] == true);

    let back = home.path("back.db");
    let from = ["migrate", "--from", &url, "--to", back.to_str().expect("a plain name")];
    for pause in [30, 100, 250, 500] {
        let mut moving = Running::spawn(command(&from));
        thread::sleep(Duration::from_millis(pause));
        if !moving.has_ended() {
            moving.signal(Signal::KILL);
        }
        moving.wait(WITHIN);
    }
    svc(&home, &from).ok();
    assert!(log(&back) == before, "every event is there once");
}
