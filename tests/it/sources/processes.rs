//! Whatever process is killed, no process is left.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{SOON, call, entry, in_state, said, source, with_servers};
use crate::crash::{number, seed};
use crate::daemon::{Daemon, Home, quickly, until};

/// Processes of the test server and its children, by the variable that marks them, and zombies of
/// this process.
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

fn zombies_of(parent: u32) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("there is /proc").flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let is_one = |stat: &String| {
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.starts_with(&format!("Z {parent} "))
    };
    stats.filter(is_one).collect()
}

fn sockets_of(home: &Home) -> Vec<String> {
    let all = fs::read_to_string("/proc/net/unix").expect("there is /proc");
    let home = home.dir().display().to_string();
    all.lines().filter(|line| line.contains(&home)).map(str::to_owned).collect()
}

/// Longest backoff of a server.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Kills the daemon, servers and both, at any moment, with calls under way. `SVC_CRASH_ROUNDS` sets
/// the number.
#[test]
fn kills_of_daemon_and_servers_leave_no_process() {
    let rounds = number("SVC_CRASH_ROUNDS").unwrap_or(12);
    let seed = seed();
    eprintln!("SVC_CRASH_SEED={seed} SVC_CRASH_ROUNDS={rounds}");
    let mut state = seed;
    // xorshift64: good enough to choose what is killed, and repeatable by its seed.
    let mut below = |bound: u64| {
        state = state.max(1);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let home = Home::new();
    let boxed = boxed(&home);
    let entries =
        json!({ "one": entry(&home, &[]), "two": entry(&home, &[]), "boxed": boxed.entry });
    let mut d = with_servers(&home, &entries);
    let names = ["one", "two", "boxed"];
    for _ in 0..rounds {
        let servers = names.map(|name| in_state(&d, name, "connected"));
        // Children in their group and outside it.
        for name in names {
            if below(2) == 0 {
                call(&d, &format!("{name}__leave"), &json!({}));
            }
        }
        let caller = d.with_token(&home.token().expect("a token"));
        let under_way = std::thread::spawn(move || {
            let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
                "name": "one__sleep", "arguments": { "value": "0.2" },
            } });
            // Whatever is killed, the request ends.
            caller.request("POST", "/mcp").json(&call).try_send().ok();
        });
        let victims = below(15) + 1;
        for (bit, server) in servers.iter().enumerate() {
            if victims & (1 << bit) != 0 {
                kill(&server["pid"]);
            }
        }
        if victims & 8 != 0 {
            d.kill_and_restart();
        }
        for (bit, (name, before)) in names.iter().zip(&servers).enumerate() {
            if victims & (8 | 1 << bit) != 0 {
                // A server that dies repeatedly is restarted after up to a minute.
                until(SOON + LONGEST_PAUSE, || {
                    let now = source(&d, name);
                    (now["state"] == "connected" && now["pid"] != before["pid"]).then_some(())
                });
            }
        }
        under_way.join().expect("the call ends");
        let daemon = d.pid();
        until(SOON, || zombies_of(daemon).is_empty().then_some(()));
        until(SOON, || (boxed.running().len() == 1).then_some(()));
    }
    d.kill_and_restart();
    // No earlier process is left.
    until(SOON, || {
        let all = marked(&home);
        let servers = all.iter().filter(|it| it.contains("toy_server")).count();
        ((servers, all.len()) == (3, 3)).then_some(())
    });
    d.stop();
    until(SOON, || marked(&home).is_empty().then_some(()));
    until(SOON, || sockets_of(&home).is_empty().then_some(()));
    let removed = boxed.ids("removed");
    assert!(boxed.ids("started").iter().all(|id| removed.contains(id)), "{removed:?}");
    until(SOON, || boxed.running().is_empty().then_some(()));
}

/// A server's children may take seconds to end; meanwhile it is not reported as working.
#[test]
fn killed_server_is_down_at_once_while_its_children_end() {
    quickly(Duration::from_secs(4), || {
        let home = Home::new();
        let toy = entry(&home, &[])["args"][0].as_str().expect("a file").to_owned();
        // After the first, it starts only when there is a file.
        let line = format!(
            "if [ -e began ]; then until [ -e go ]; do sleep 0.1; done; fi; touch began; \
             trap '' TERM; sleep 600 & exec python3 {toy}"
        );
        let line = format!("cd '{}' && {{ {line}; }}", home.user().display());
        let d = with_servers(&home, &json!({ "one": { "command": "sh", "args": ["-c", line] } }));
        let before = in_state(&d, "one", "connected");
        kill(&before["pid"]);
        let began = Instant::now();
        let now = until(SOON, || {
            let now = source(&d, "one");
            (now["state"] != "connected").then_some(now)
        });
        let took = began.elapsed();
        let failed = super::failed(&call(&d, "one__pid", &json!({})));
        let is_backing_off = source(&d, "one")["state"] == "backing_off";
        fs::write(home.user().join("go"), "").expect("can be written");
        let after = in_state(&d, "one", "connected");
        assert_ne!(after["pid"], before["pid"]);
        if !is_backing_off {
            // The pause of a second was over before the test had looked.
            return Duration::MAX;
        }
        assert_eq!((&now["state"], &now["pid"]), (&json!("backing_off"), &json!(null)), "{now}");
        assert_eq!(now["attempt"], 1, "{now}");
        assert!(now["next_at"].is_string(), "{now}");
        let text = failed["message"].as_str().unwrap_or_default();
        assert!(!text.contains("connected") && text.contains("ended"), "{failed}");
        took
    });
}

#[test]
fn invalid_list_is_reported_as_a_problem() {
    let home = Home::new();
    let odd = home.user().join("odd");
    let mut later = entry(&home, &[]);
    later["env"] = json!({ "ODD_FILE": odd });
    let d = with_servers(&home, &json!({ "odd": entry(&home, &["odd"]), "later": later }));
    let now = until(SOON, || {
        let now = in_state(&d, "odd", "connected");
        now["reason"].is_string().then_some(now)
    });
    let reason = now["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("tools/list") && reason.contains("no list"), "{now}");
    assert_eq!((&now["tools"], &now["resources"]), (&json!(0), &json!(1)), "{now}");
    // A working server keeps its old list, and reports the problem.
    let before = in_state(&d, "later", "connected");
    fs::write(&odd, "").expect("is written");
    call(&d, "later__grow", &json!({}));
    let now = until(SOON, || {
        let now = source(&d, "later");
        now["reason"].is_string().then_some(now)
    });
    assert_eq!((&now["state"], &now["tools"]), (&json!("connected"), &before["tools"]), "{now}");
    assert!(now["reason"].as_str().is_some_and(|why| why.contains("tools/list")), "{now}");
    fs::remove_file(&odd).expect("is there");
    call(&d, "later__grow", &json!({}));
    until(SOON, || source(&d, "later")["reason"].is_null().then_some(()));
}

/// A server that refuses one list, or does not respond to it, still offers its other lists, its
/// tools above all.
#[test]
fn failed_list_does_not_affect_other_lists() {
    let home = Home::new();
    let mut mute = entry(&home, &["mute:prompts/list"]);
    mute["startup_timeout"] = json!(20_000);
    let refuses = entry(&home, &["no:resources/list", "no:prompts/list"]);
    let d = with_servers(&home, &json!({ "mute": mute, "refuses": refuses }));
    let told = |name: &str, methods: &[&str]| {
        let now = until(SOON, || {
            let now = in_state(&d, name, "connected");
            now["reason"].is_string().then_some(now)
        });
        let reason = now["reason"].as_str().unwrap_or_default();
        assert!(methods.iter().all(|method| reason.contains(method)), "{now}");
        assert_eq!((&now["tools"], &now["prompts"]), (&json!(20), &json!(0)), "{now}");
        assert_eq!(said(&call(&d, &format!("{name}__say"), &json!({ "value": "hi" }))), "said");
    };
    told("refuses", &["resources/list", "prompts/list", "-32601"]);
    told("mute", &["prompts/list"]);
}

/// Neither a restart nor a stop waits for a list that the server does not give.
#[test]
fn server_that_hangs_in_a_later_list_ends_at_once() {
    let home = Home::new();
    let mut stuck = entry(&home, &["stuck"]);
    stuck["startup_timeout"] = json!(600_000);
    let mut d = with_servers(&home, &json!({ "toy": stuck }));
    let hang = |d: &Daemon| {
        call(d, "toy__grow", &json!({ "value": "more" }));
        let heard = || said(&call(d, "toy__heard", &json!({})));
        until(SOON, || heard().contains("tools/list").then_some(()));
    };
    let first = in_state(&d, "toy", "connected");
    hang(&d);
    d.post("/v1/sources/toy/reconnect", &json!({})).ok(200);
    until(SOON, || {
        let now = source(&d, "toy");
        (now["state"] == "connected" && now["pid"] != first["pid"]).then_some(())
    });
    hang(&d);
    let took = d.stop();
    assert!(took < SOON, "{took:?}");
    assert_eq!(marked(&home), Vec::<String>::new());
}

#[test]
fn shutdown_ends_all_servers() {
    let home = Home::new();
    let mut d =
        with_servers(&home, &json!({ "toy": entry(&home, &[]), "hangs": entry(&home, &["hang"]) }));
    in_state(&d, "toy", "connected");
    assert!(marked(&home).len() >= 2);
    call(&d, "toy__leave", &json!({}));
    d.stop();
    assert_eq!(marked(&home), Vec::<String>::new());
    // The last known lists exist before the server works, also after `kill -9`.
    d.restart();
    assert_eq!(source(&d, "toy")["tools"], 20);
    in_state(&d, "toy", "connected");
    let pid = said(&call(&d, "toy__pid", &json!({})));
    assert_eq!(source(&d, "toy")["pid"].to_string(), pid);
}

/// A program with the part of a container runtime that a server needs: `run` starts a process that
/// no mark and no process group finds.
const RUNTIME: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
run)
    [ "$2" = --cidfile ] || exit 9
    cidfile=$3
    # As a runtime does: the container is made, its id is written, then it is started. One that nobody starts goes by itself.
    start=$here/start.$$
    setsid env -i PATH="$PATH" seconds=997 sh -c '
        tries=0
        until [ -e "$0" ]; do tries=$((tries + 1)); [ $tries -lt 200 ] || exit; sleep 0.05; done
        exec sleep "$seconds"' "$start" </dev/null >/dev/null 2>&1 &
    echo "c$!" >"$cidfile"
    echo "c$!" >>"$here/started"
    : >"$start"
    shift 3
    exec python3 "$@"
    ;;
stop) kill "${4#c}" ;;
rm) echo "$3" >>"$here/removed" ;;
esac
"#;

/// A server in a container of that runtime.
struct Boxed {
    entry: serde_json::Value,
    folder: std::path::PathBuf,
}

fn boxed(home: &Home) -> Boxed {
    use std::os::unix::fs::PermissionsExt as _;
    let runtime = home.user().join("docker");
    fs::write(&runtime, RUNTIME).expect("can be written");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).expect("can be set");
    let script = entry(home, &[])["args"][0].clone();
    let entry = json!({ "command": runtime, "args": ["run", script] });
    Boxed { entry, folder: home.user().to_owned() }
}

impl Boxed {
    fn ids(&self, fate: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join(fate)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn running(&self) -> Vec<String> {
        let runs = |id: &String| {
            let command = fs::read(format!("/proc/{}/cmdline", &id[1..])).unwrap_or_default();
            command == b"sleep\0997\0"
        };
        // The system may reuse a pid: that is one container, and not two.
        let ids: BTreeSet<String> = self.ids("started").into_iter().collect();
        ids.into_iter().filter(runs).collect()
    }
}

#[test]
fn containers_are_stopped_by_id_after_any_kill() {
    let home = Home::new();
    let boxed = boxed(&home);
    let mut d = with_servers(&home, &json!({ "boxed": boxed.entry }));
    let counts = || (boxed.ids("started").len(), boxed.ids("removed").len());
    let first = in_state(&d, "boxed", "connected");
    kill(&first["pid"]);
    until(SOON, || (counts() == (2, 1)).then_some(()));
    in_state(&d, "boxed", "connected");
    d.kill_and_restart();
    until(SOON, || (counts() == (3, 2)).then_some(()));
    in_state(&d, "boxed", "connected");
    d.stop();
    assert_eq!(boxed.ids("removed"), boxed.ids("started"));
    until(SOON, || boxed.running().is_empty().then_some(()));
    let left = fs::read_dir(home.path("containers")).expect("a folder").count();
    assert_eq!(left, 0);
}
