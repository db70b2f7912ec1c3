//! Whatever is killed, nothing is left.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{SOON, call, entry, in_state, said, source, with_servers};
use crate::daemon::{Home, until};

/// Processes of the small server and of what it has started, by the variable that marks them, and zombies of ours.
fn marked(home: &Home) -> Vec<String> {
    let wanted = format!("HOME={}", home.user().display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("there is /proc").flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
        let is_ours = variables.contains(&wanted.as_bytes())
            && variables.iter().any(|variable| variable.starts_with(b"SVC_SERVER_MARK="));
        if is_ours {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            found.push(format!("{} {command}", entry.file_name().display()));
        }
    }
    found
}

fn kill(pid: &serde_json::Value) {
    let pid = i32::try_from(pid.as_i64().expect("a pid")).expect("fits");
    kill_process(Pid::from_raw(pid).expect("is one"), Signal::KILL).expect("it runs");
}

#[test]
fn kills_of_daemon_and_servers_leave_nothing() {
    let home = Home::new();
    let mut d = with_servers(&home, &json!({ "one": entry(&home, &[]), "two": entry(&home, &[]) }));
    let rounds = std::env::var("SVC_CRASH_ROUNDS").ok().and_then(|it| it.parse().ok());
    for round in 0..rounds.unwrap_or(12) {
        let one = in_state(&d, "one", "connected");
        in_state(&d, "two", "connected");
        call(&d, "one__leave", &json!({}));
        if round % 3 == 0 {
            call(&d, "two__leave", &json!({}));
        }
        if round % 2 == 0 {
            // The server: what it has left goes, also what left its group, and a new one comes.
            kill(&one["pid"]);
            until(SOON, || {
                let now = source(&d, "one");
                (now["state"] == "connected" && now["pid"] != one["pid"]).then_some(())
            });
            until(SOON, || {
                let left = marked(&home).iter().filter(|it| it.contains("sleep")).count();
                (left <= if round % 3 == 0 { 2 } else { 0 }).then_some(())
            });
        } else {
            d.kill9();
            d.restart();
        }
    }
    in_state(&d, "one", "connected");
    in_state(&d, "two", "connected");
    // Of earlier rounds nothing is left but the two that run and what the last round left in the second.
    until(SOON, || {
        let all = marked(&home);
        let servers = all.iter().filter(|it| it.contains("toy_server")).count();
        (servers == 2).then_some(())
    });
    d.stop();
    until(SOON, || marked(&home).is_empty().then_some(()));
}

#[test]
fn a_daemon_that_stops_takes_its_servers_along() {
    let home = Home::new();
    let mut d =
        with_servers(&home, &json!({ "toy": entry(&home, &[]), "hangs": entry(&home, &["hang"]) }));
    in_state(&d, "toy", "connected");
    assert!(marked(&home).len() >= 2);
    call(&d, "toy__leave", &json!({}));
    d.stop();
    assert_eq!(marked(&home), Vec::<String>::new());
    // The lists of the last time are there before the server is, also after `kill -9`.
    d.restart();
    assert_eq!(source(&d, "toy")["tools"], 18);
    in_state(&d, "toy", "connected");
    let pid = said(&call(&d, "toy__pid", &json!({})));
    assert_eq!(source(&d, "toy")["pid"].to_string(), pid);
}

/// A program that does of a runtime of containers what a server needs: `run` starts a process that no mark and no group finds.
const RUNTIME: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
run)
    [ "$2" = --cidfile ] || exit 9
    cidfile=$3
    setsid env -i sleep 997 </dev/null >/dev/null 2>&1 &
    echo "c$!" >"$cidfile"
    echo "c$!" >>"$here/started"
    shift 3
    exec python3 "$@"
    ;;
stop) kill "${4#c}" ;;
rm) echo "$3" >>"$here/removed" ;;
esac
"#;

#[test]
fn containers_are_stopped_by_their_ids_whoever_dies() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let runtime = home.user().join("docker");
    fs::write(&runtime, RUNTIME).expect("can be written");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).expect("can be set");
    let script = entry(&home, &[])["args"][0].clone();
    let boxed = json!({ "command": runtime, "args": ["run", script] });
    let mut d = with_servers(&home, &json!({ "boxed": boxed }));
    let ids = |name: &str| {
        let text = fs::read_to_string(home.user().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let runs = |id: &String| fs::metadata(format!("/proc/{}", &id[1..])).is_ok();
    let first = in_state(&d, "boxed", "connected");
    kill(&first["pid"]);
    until(SOON, || (ids("started").len() == 2 && ids("removed").len() == 1).then_some(()));
    in_state(&d, "boxed", "connected");
    d.kill9();
    d.restart();
    until(SOON, || (ids("started").len() == 3 && ids("removed").len() == 2).then_some(()));
    in_state(&d, "boxed", "connected");
    d.stop();
    assert_eq!(ids("removed"), ids("started"));
    until(SOON, || (!ids("started").iter().any(runs)).then_some(()));
    let left = fs::read_dir(home.path("containers")).expect("a folder").count();
    assert_eq!(left, 0);
}
