//! PostgreSQL as the store: what the configuration refuses, what a daemon answers while the server
//! is away, that each answer about a write is true, wherever the connection breaks, and that
//! commits of other connections are heard of.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::crash::{Chance, SetOnDrop, number, seed, survive};
use crate::daemon::{Daemon, Home, eventually, quickly, svc, svc_with_input};
use crate::expect::{
    all_pages, append, done, frame, new_task, page, peer, problem, subscribe, text,
};
use crate::stored::{has_server, psql};

/// A new database's address.
fn database() -> String {
    svc_store::scratch_server::new_database()
}

fn on(url: &str) -> Daemon {
    Daemon::with(|plan| plan.home(&Home::in_store(url)))
}

#[track_caller]
fn lines(d: &Daemon, task: &str) -> Vec<String> {
    let target = format!("/v1/events?stream=task/{task}&kind=frame&limit=100");
    let frames = all_pages(d, &target, "events", "after");
    let line =
        |event: &serde_json::Value| event["data"]["line"].as_str().unwrap_or_default().to_owned();
    frames.iter().map(line).collect()
}

#[test]
fn history_outlives_a_killed_daemon() {
    only_if!(has_server());
    let url = database();
    let mut d = on(&url);
    let (task, peer) = (new_task(&d), peer(&d, "one"));
    append(&d, &task, &json!([frame("first"), frame("second")]));
    d.kill_and_restart();
    assert_eq!(lines(&d, &task), ["first", "second"]);
    let (first, _) = append(&d, &task, &json!([frame("third")]));
    assert_eq!(first, 4, "ids go on where they were");
    assert_eq!(d.follow(&subscribe(&task)).events(4).len(), 4);
    let peers = page(&d.get("/v1/peers"), "peers");
    assert!(peers.iter().any(|known| known["peer_id"] == peer.as_str()), "{peers:?}");
    d.stop();
    d.restart();
    assert_eq!(lines(&d, &task).len(), 3);
}

#[test]
fn a_second_daemon_is_refused() {
    only_if!(has_server());
    let url = database();
    let d = on(&url);
    let home = Home::new();
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0", "--store-url", &url]);
    command.env_remove("SVC_STORE_URL");
    let second = command.output().expect("it runs");
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(text.contains("another daemon runs on") && text.contains(", process "), "{text}");
    assert!(!home.path("token").exists(), "it is no token of the team");
    new_task(&d);
}

#[test]
fn a_server_that_cannot_keep_the_promises_is_refused() {
    only_if!(has_server());
    let home = Home::new();
    let refuses = |url: &str, why: &str| {
        for args in [["serve", "--listen", "127.0.0.1:0"].as_slice(), &["doctor", "--json"]] {
            let ran = home.command(args).env("SVC_STORE_URL", url).output().expect("it runs");
            let text = [ran.stdout, ran.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert_eq!(ran.status.code(), Some(1), "{args:?}: {text}");
            assert!(text.contains(why), "{args:?}: {text}");
        }
    };
    let server = svc_store::scratch_server::OwnServer::start();
    let url = server.url();
    psql(&url, "create database latin template template0 encoding 'LATIN1'");
    refuses(&url.replace("/postgres?", "/latin?"), "svc needs UTF8");

    psql(&url, "create role other login");
    let other = url.replace("//svc@", "//other@");
    refuses(&other, "may not create tables in the schema svc");
    psql(&url, "grant create on database postgres to other");
    psql(&url, "alter role other set default_transaction_read_only = on");
    refuses(&other, "the role only reads");

    let warning = "full_page_writes is off";
    let doctor = || {
        let mut command = home.command(&["doctor", "--json"]);
        let ran = command.env("SVC_STORE_URL", &url).output().expect("it runs");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    assert!(!doctor().contains(warning), "{}", doctor());
    psql(&url, "alter system set full_page_writes = off; select pg_reload_conf()");
    eventually(Duration::from_secs(10), || psql(&url, "show full_page_writes") == "off");
    assert!(doctor().contains(warning), "{}", doctor());

    psql(&url, "alter system set fsync = off; select pg_reload_conf()");
    eventually(Duration::from_secs(10), || psql(&url, "show fsync") == "off");
    refuses(&url, "not on its disk");

    server.stop_at_once();
    server.start_as_standby();
    refuses(&url, "it is a standby");
    assert_eq!(psql(&url, "select to_regclass('svc.event') is null"), "t", "nothing was written");
}

#[test]
fn a_password_is_shown_nowhere() {
    let home = Home::new();
    let secret = "postgres://svc:s3cr3t@localhost:1/svc";
    let flag = svc(&home, &["serve", "--store-url", secret]);
    assert_eq!(flag.code, Some(2), "{flag:?}");
    assert!(flag.stderr.contains("store.password_file") && !flag.stderr.contains("s3cr3t"));

    home.write("config.toml", &format!("[store]\nurl = \"{secret}\"\nconnect_timeout = 0\n"));
    let start = |args: &[&str]| {
        let mut command = home.command(args);
        command.env_remove("SVC_STORE_URL");
        command.output().expect("it runs")
    };
    for (args, code) in [
        (["config", "show", "--json"].as_slice(), 0),
        (&["serve", "--listen", "127.0.0.1:0"], 1),
        (&["migrate", "--check"], 1),
        (&["backup", "copy.db"], 2),
        (&["restore", "copy.db"], 2),
        (&["doctor", "--json"], 1),
    ] {
        let ran = start(args);
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr)
        );
        assert_eq!(ran.status.code(), Some(code), "{args:?}: {text}");
        assert!(!text.contains("s3cr3t"), "{args:?}: {text}");
        assert!(text.contains("postgres://svc@localhost:1/svc"), "{args:?}: {text}");
        if code == 2 {
            let named = "docs/guide/several-machines.md#back-up-and-restore";
            assert!(text.contains("pg_dump") && text.contains(named), "{text}");
        }
    }
}

#[test]
fn a_backup_is_of_the_database_that_the_daemon_uses() {
    only_if!(has_server());
    let home = Home::in_file();
    let mut d = Daemon::with(|plan| plan.home(&home));
    d.stop();
    assert!(home.path("svc.db").exists(), "it has an old history");
    let url = database();
    let _d = Daemon::with(|plan| plan.home(&home).flag("--store-url").flag(&url));
    for command in ["backup", "restore"] {
        let ran = svc(&home, &[command, "copy.db"]);
        assert_eq!(ran.code, Some(2), "{command}: {ran:?}");
        let is_named = ran.stderr.contains("pg_dump") && ran.stderr.contains("postgres");
        assert!(is_named, "{command}: {ran:?}");
    }
    assert!(!home.user().join("copy.db").exists());
}

#[test]
fn a_daemon_that_waits_for_its_server_has_no_backup() {
    let home = Home::in_file();
    let mut d = Daemon::with(|plan| plan.home(&home));
    d.stop();
    let nobody = "postgres://svc@127.0.0.1:1/svc";
    let mut waiting = home.command(&["serve", "--listen", "127.0.0.1:0", "--store-url", nobody]);
    let mut waiting = waiting.spawn().expect("it runs");
    let is_held = || svc_store::DatabaseLock::is_held(&home.path("svc.db.lock"));
    eventually(Duration::from_secs(10), is_held);
    let ran = svc(&home, &["backup", "copy.db"]);
    waiting.kill().expect("it ran until now");
    waiting.wait().expect("it ends");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("another svc process is at work on"), "{ran:?}");
    assert!(!home.user().join("copy.db").exists());
}

#[test]
fn a_schema_is_migrated_or_not_by_command() {
    only_if!(has_server());
    let url = database();
    let home = Home::new();
    home.write("config.toml", &format!("[store]\nurl = \"{url}\"\nschema = \"team\"\n"));
    let svc = |args: &[&str]| {
        let mut command = home.command(args);
        command.env_remove("SVC_STORE_URL");
        let ran = command.output().expect("it runs");
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    assert_eq!(svc(&["migrate", "--check"]).0, Some(4));
    assert_eq!(svc(&["migrate"]).0, Some(0));
    let (code, text) = svc(&["migrate", "--check"]);
    assert_eq!(code, Some(0), "{text}");
    let (_, text) = svc(&["doctor", "--json"]);
    assert!(text.contains("PostgreSQL"), "{text}");
}

/// What becomes of the next write of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The server gets it, and its answer is lost.
    LoseAnswer,
    /// The server never gets it.
    LoseRequest,
    /// The daemon loses its connection, and the server gets the write later.
    Delay,
    /// Its answer is lost, and the server does not answer any more.
    LoseAnswerAndServer,
    /// The server does not get it, and the connection stays.
    HoldRequest,
}

/// Stands between the daemon and the server, on a socket in a folder of its own.
struct Proxy {
    folder: TempDir,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    server: PathBuf,
    next: Mutex<Option<Fault>>,
    is_away: AtomicBool,
    live: Mutex<Vec<UnixStream>>,
}

impl Proxy {
    /// The proxy, and the address by which the daemon goes through it.
    fn before(url: &str) -> (Self, String) {
        let (front, socket) = url.split_once("?host=").expect("a socket's folder");
        let folder = TempDir::new().expect("a folder");
        let name = ".s.PGSQL.5432";
        let listener = UnixListener::bind(folder.path().join(name)).expect("a socket");
        let server = Path::new(socket).join(name);
        let faults = Arc::new(Faults { server, ..Faults::default() });
        let shared = Arc::clone(&faults);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if !shared.is_away.load(SeqCst) {
                    shared.serve(client);
                }
            }
        });
        let url = format!("{front}?host={}", folder.path().display());
        (Self { folder, faults }, url)
    }

    fn fail_next_write(&self, fault: Fault) {
        *self.faults.next.lock().expect("no holder panics") = Some(fault);
    }

    fn has_failed(&self) -> bool {
        self.faults.next.lock().expect("no holder panics").is_none()
    }

    fn go_away(&self) {
        self.faults.go_away();
    }

    fn come_back(&self) {
        self.faults.is_away.store(false, SeqCst);
        assert!(self.folder.path().is_dir());
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

impl Faults {
    /// Cuts all connections and takes none.
    fn go_away(&self) {
        self.is_away.store(true, SeqCst);
        for stream in self.live.lock().expect("no holder panics").drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    /// Passes on what both ends send, and the fault that is due once the writer's connection is
    /// about to commit.
    fn serve(self: &Arc<Self>, client: UnixStream) {
        let Ok(server) = UnixStream::connect(&self.server) else { return };
        let copies = [&client, &server].map(|stream| stream.try_clone().expect("a second handle"));
        self.live.lock().expect("no holder panics").extend(copies);
        let is_cut = Arc::new(AtomicBool::new(false));
        let (shared, cut) = (Arc::clone(self), Arc::clone(&is_cut));
        let ends = [&client, &server].map(|stream| stream.try_clone().expect("a second handle"));
        thread::spawn(move || shared.pass_requests(ends, &cut));
        thread::spawn(move || pass_answers(server, client, &is_cut));
    }

    fn pass_requests(&self, [mut client, mut server]: [UnixStream; 2], cut: &AtomicBool) {
        let mut bytes = vec![0; 256 * 1024];
        let (mut is_writer, mut in_transaction, mut is_marked) = (false, false, false);
        while let Ok(count @ 1..) = client.read(&mut bytes) {
            let request = &bytes[..count];
            is_writer |= contains(request, b"svc_decide");
            if contains(request, b"begin\0") {
                (in_transaction, is_marked) = (true, false);
            }
            is_marked |= contains(request, b"marked");
            let is_commit = contains(request, b"commit\0");
            // An append is one statement with the text of its events; a job ends with its commit.
            let due = is_writer && is_marked && (is_commit || !in_transaction);
            if is_commit {
                in_transaction = false;
            }
            is_marked &= in_transaction;
            let fault = self.next.lock().expect("no holder panics").take_if(|_| due);
            let Some(fault) = fault else {
                if server.write_all(request).is_err() {
                    break;
                }
                continue;
            };
            cut.store(true, SeqCst);
            match fault {
                Fault::LoseRequest => {}
                Fault::LoseAnswer => drop(server.write_all(request)),
                Fault::LoseAnswerAndServer => {
                    self.is_away.store(true, SeqCst);
                    drop(server.write_all(request));
                    thread::sleep(Duration::from_millis(300));
                    self.go_away();
                }
                // Until the daemon gives it up.
                Fault::HoldRequest => drop(client.read(&mut bytes)),
                Fault::Delay => {
                    drop(client.shutdown(Shutdown::Both));
                    thread::sleep(Duration::from_millis(700));
                    drop(server.write_all(request));
                }
            }
            if fault == Fault::LoseAnswer {
                // Until the server has done it.
                thread::sleep(Duration::from_millis(300));
            }
            break;
        }
        drop(client.shutdown(Shutdown::Both));
        drop(server.shutdown(Shutdown::Write));
    }
}

fn pass_answers(mut server: UnixStream, mut client: UnixStream, cut: &AtomicBool) {
    let mut bytes = vec![0; 256 * 1024];
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        if cut.load(SeqCst) || client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    drop(client.shutdown(Shutdown::Both));
}

fn behind_a_proxy() -> (Proxy, Daemon) {
    let (proxy, url) = Proxy::before(&database());
    let d = on(&url);
    (proxy, d)
}

/// A daemon that is told of commits, and its database.
fn listening() -> (String, Daemon) {
    let url = database();
    let d = on(&url);
    eventually(Duration::from_secs(10), || state_of_store(&d)["listen"] == "notify");
    (url, d)
}

/// Each answer says what happened, for appends and for jobs.
#[test]
fn answers_are_true_wherever_a_commit_is_cut() {
    only_if!(has_server());
    let (proxy, d) = behind_a_proxy();
    let task = new_task(&d);
    append(&d, &task, &json!([frame("marked 0")]));
    let path = format!("/v1/tasks/{task}/events");
    let mut written = vec!["marked 0".to_owned()];
    let faults = [Fault::LoseAnswer, Fault::LoseRequest, Fault::Delay];
    // Two in five cut a job.
    let cuts =
        number("SVC_STORE_CUTS").map_or(15, |cuts| usize::try_from(cuts).expect("not that many"));
    for (number, fault) in faults.into_iter().cycle().take(cuts * 3 / 5).enumerate() {
        let line = format!("marked {}", number + 1);
        proxy.fail_next_write(fault);
        let reply = d.post(&path, &frame(&line));
        assert!(proxy.has_failed(), "{fault:?}");
        if reply.status() == 200 {
            written.push(line);
        } else {
            problem(&reply, 503, "store_unavailable");
        }
        // A late one is there if a job of the daemon's own was in its commit: that is waited for.
        if fault != Fault::Delay {
            assert_eq!(reply.status() == 200, fault == Fault::LoseAnswer, "{reply:?}");
        }
        assert_eq!(lines(&d, &task), written, "{fault:?}");
    }
    // Jobs: the last statement of a transaction is its commit. The server waits for a late one.
    let count = || d.home.value("select count(*) from task").as_u64().expect("a number");
    let mut tasks = count();
    for fault in faults.into_iter().cycle().take(cuts * 2 / 5) {
        proxy.fail_next_write(fault);
        let reply = d.post("/v1/tasks", &json!({ "title": format!("marked {fault:?}") }));
        assert!(proxy.has_failed(), "{fault:?}");
        if reply.status() < 300 {
            tasks += 1;
        } else {
            problem(&reply, 503, "store_unavailable");
        }
        assert_eq!(reply.status() < 300, fault != Fault::LoseRequest, "{reply:?}");
        assert_eq!(count(), tasks, "{fault:?}");
    }
    // What came late stays away.
    thread::sleep(Duration::from_secs(1));
    append(&d, &task, &json!([frame("last")]));
    written.push("last".to_owned());
    assert_eq!(lines(&d, &task), written);
    assert_eq!(count(), tasks);
}

#[test]
fn requests_fail_soon_while_the_database_is_away() {
    only_if!(has_server());
    let (proxy, d) = behind_a_proxy();
    let task = new_task(&d);
    append(&d, &task, &json!([frame("before")]));
    let mut stream = d.follow(&subscribe(&task));
    stream.events(2);
    proxy.go_away();
    for target in [format!("/v1/events?stream=task/{task}"), "/v1/peers".to_owned()] {
        quickly(Duration::from_secs(6), || {
            let began = Instant::now();
            problem(&d.get(&target), 503, "store_unavailable");
            began.elapsed()
        });
    }
    // Nobody waits for those before.
    quickly(Duration::from_secs(6), || {
        let began = Instant::now();
        thread::scope(|threads| {
            for _ in 0..20 {
                threads.spawn(|| problem(&d.get("/v1/peers"), 503, "store_unavailable"));
            }
        });
        began.elapsed()
    });
    // The first write meets a connection that was cut, and nobody can know whether it went through.
    let path = format!("/v1/tasks/{task}/events");
    for (bound, codes) in
        [(16, ["outcome_unknown", "store_unavailable"]), (6, ["store_unavailable"; 2])]
    {
        let began = Instant::now();
        let reply = d.post(&path, &frame("lost"));
        assert_eq!(reply.status(), 503, "{reply:?}");
        let code = reply.json()["code"].as_str().unwrap_or_default().to_owned();
        assert!(codes.contains(&&*code), "{reply:?}");
        assert!(began.elapsed() < Duration::from_secs(bound), "{:?}", began.elapsed());
    }
    eventually(Duration::from_secs(10), || d.get("/health").status() == 503);
    assert_eq!(d.get("/health").json()["status"], "degraded");
    commands_say_that_the_database_is_away(&d.home);
    proxy.come_back();
    eventually(Duration::from_secs(20), || d.get("/health").status() == 200);
    eventually(Duration::from_secs(20), || d.get("/v1/peers").status() == 200);
    append(&d, &task, &json!([frame("after")]));
    assert_eq!(stream.events(1)[0].id, Some(3), "the stream went on");
    assert_eq!(lines(&d, &task), ["before", "after"]);
}

#[test]
fn a_server_that_takes_no_writes_is_told_until_it_takes_them_again() {
    only_if!(has_server());
    let url = database();
    let d = on(&url);
    let task = new_task(&d);
    let path = format!("/v1/tasks/{task}/events");
    // A session has the setting of its beginning.
    let set = |state: &str| {
        let sql = format!(
            "begin read write;
            do $$ begin
                execute format('alter database %I set default_transaction_read_only = {state}', current_database());
            end $$;
            commit;
            select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()"
        );
        psql(&url, &sql);
    };
    set("on");
    eventually(Duration::from_secs(20), || {
        d.post(&path, &frame("refused")).status();
        d.get("/health").json()["reason"] == "read_only"
    });
    let told = problem(&d.post(&path, &frame("refused")), 503, "store_unavailable");
    let detail = told["detail"].as_str().unwrap_or_default();
    assert!(told["retryable"] == true && detail.contains("takes no writes"), "{told}");
    assert_eq!(d.get("/health").status(), 503);
    let said = d.stderr();
    assert!(said.contains("the server of the database takes no writes"), "{said}");
    assert!(!said.contains("permissions of its folder"), "{said}");
    set("off");
    append_until_taken(&d, &path);
    eventually(Duration::from_secs(20), || d.get("/health").status() == 200);
    assert_eq!(lines(&d, &task), ["after"]);
}

/// A daemon from which another took the database takes nothing until that one has ended, and then
/// goes on as a new one at the same address.
#[test]
fn a_daemon_that_was_displaced_starts_anew_when_the_other_has_ended() {
    only_if!(has_server());
    let url = database();
    let (proxy, through) = Proxy::before(&url);
    let first = on(&through);
    let task = new_task(&first);
    append(&first, &task, &json!([frame("before")]));
    let boot_id = first.get("/health").ok(200)["boot_id"].clone();
    proxy.go_away();
    let mut second = on(&url);
    append(&second, &task, &json!([frame("of the second")]));
    proxy.come_back();

    let path = format!("/v1/tasks/{task}/events");
    eventually(Duration::from_secs(20), || first.get("/health").json()["reason"] == "fenced");
    let health = first.get("/health");
    assert_eq!((health.status(), health.json()["status"].clone()), (503, json!("degraded")));
    let told = problem(&first.post(&path, &frame("refused")), 503, "fenced");
    assert_eq!(told["retryable"], true, "{told}");
    let status = svc(&first.home, &["status"]);
    assert!(status.stderr.contains("another daemon has taken the database"), "{status:?}");
    append(&second, &task, &json!([frame("also of the second")]));
    second.stop();

    goes_on_anew(&first, &boot_id, &path);
    let written = ["before", "of the second", "also of the second", "after"];
    assert_eq!(lines(&first, &task), written);
    let said = first.stderr();
    assert!(said.contains("another daemon has taken the database"), "{said}");
}

#[test]
fn a_daemon_that_stood_still_while_another_came_and_went_starts_anew() {
    only_if!(has_server());
    let url = database();
    let first = on(&url);
    let task = new_task(&first);
    let boot_id = first.get("/health").ok(200)["boot_id"].clone();
    first.signal(Signal::STOP);
    psql(
        &url,
        "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()",
    );
    on(&url).stop();
    first.signal(Signal::CONT);
    goes_on_anew(&first, &boot_id, &format!("/v1/tasks/{task}/events"));
    assert_eq!(lines(&first, &task), ["after"]);
}

/// Waits until a daemon has started anew in its process, at its address.
#[track_caller]
fn goes_on_anew(d: &Daemon, boot_id: &serde_json::Value, path: &str) {
    eventually(Duration::from_secs(30), || {
        // Between its two runs nobody listens.
        let health = d.request("GET", "/health").try_send();
        health.is_ok_and(|health| health.status() == 200 && health.json()["boot_id"] != *boot_id)
    });
    assert_eq!(d.get("/health").ok(200)["pid"], d.pid());
    d.post(path, &frame("after")).ok(200);
}

#[track_caller]
fn commands_say_that_the_database_is_away(home: &Home) {
    let away = "the server of the database does not answer; the daemon tries again by itself";
    let health = svc(home, &["health"]);
    assert_eq!((health.code, health.stdout.as_str()), (Some(1), ""), "{health:?}");
    assert_eq!(health.stderr.trim_end(), format!("not healthy: {away}"));
    let health = svc(home, &["health", "--json"]);
    assert!(health.code == Some(1) && health.stdout.contains(away), "{health:?}");
    // The daemon runs, and its process, address and database are told.
    let status = svc(home, &["status"]);
    assert_eq!((status.code, status.stderr.trim_end()), (Some(0), away), "{status:?}");
    assert!(status.stdout.starts_with("svc ") && status.stdout.contains(" runs"), "{status:?}");
    assert!(status.stdout.contains("\n  database: postgres"), "{status:?}");
    assert_eq!(svc(home, &["status", "--json"]).json()["running"], true);
    let doctor = svc(home, &["doctor", "--json"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    let report: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("a report");
    let checks = report["checks"].as_array().expect("checks");
    let of = |check: &str| -> Vec<String> {
        let own = checks.iter().filter(|finding| finding["check"] == check);
        own.map(|found| format!("{}: {}", text(found, "level"), text(found, "detail"))).collect()
    };
    assert_eq!(of("daemon"), [format!("warn: {away}")], "{report}");
    let database = of("database").join("; ");
    assert!(database.starts_with("fail: ") && database.contains("cannot connect to"), "{database}");
    assert!(of("access").is_empty(), "nobody knows whether the token is good: {report}");
}

/// What a flag said of the database is known to the commands that find the daemon, and to the
/// daemon's own doctor.
#[test]
fn a_database_that_a_flag_named_is_told_while_it_is_away() {
    only_if!(has_server());
    let (proxy, url) = Proxy::before(&database());
    let home = Home::in_file();
    let d = Daemon::with(|plan| plan.home(&home).flag("--store-url").flag(&url));
    let report = d.get("/v1/doctor").ok(200);
    let of_database = |report: &serde_json::Value| -> Vec<String> {
        let checks = report["checks"].as_array().expect("checks").iter();
        let own = checks.filter(|finding| finding["check"] == "database");
        own.map(|finding| text(finding, "level").clone()).collect()
    };
    assert_eq!(of_database(&report).first().map(String::as_str), Some("ok"), "{report}");
    proxy.go_away();
    eventually(Duration::from_secs(20), || d.get("/health").status() == 503);
    let status = svc(&home, &["status", "--json"]).json();
    assert_eq!(status["db"], url.as_str(), "{status}");
    let report = d.get("/v1/doctor").ok(200);
    assert_eq!((&report["ok"], of_database(&report)), (&json!(false), vec!["fail".to_owned()]));
    proxy.come_back();
}

#[test]
fn a_start_waits_for_the_database_and_then_says_why() {
    only_if!(has_server());
    let (proxy, url) = Proxy::before(&database());
    proxy.go_away();
    let home = Home::new();
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("SVC_STORE_URL", &url).env("SVC_STORE_CONNECT_TIMEOUT", "1");
    let ran = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot connect to"), "{text}");

    let waiting = thread::spawn(move || on(&url));
    thread::sleep(Duration::from_millis(500));
    proxy.come_back();
    new_task(&waiting.join().expect("it started"));
}

/// Appends a frame to a task as another daemon does: by the same function, on a connection of its
/// own. The time at which it was committed.
fn append_beside(url: &str, task: &str, line: &str) -> Instant {
    let append = format!(
        "insert into svc_group (daemon_id, number) values ('other', 0) on conflict do nothing;
        begin;
        select svc_lock();
        select svc_append('other',
            (select number + 1 from svc_group where daemon_id = 'other'),
            (select number from svc_commit), 1,
            array[(select id from stream where name = 'task/{task}')],
            array[(select max(seq) + 1 from event join stream s on s.id = stream_id where s.name = 'task/{task}')],
            array['frame'], array['{{\"line\":\"{line}\",\"kind\":\"stdout\"}}'], array[null]::text[]);
        commit"
    );
    psql(url, &append);
    Instant::now()
}

fn state_of_store(d: &Daemon) -> serde_json::Value {
    svc(&d.home, &["status", "--json"]).json()["store"].clone()
}

/// Each event of another connection reaches a subscriber, of the task and of all streams, within
/// the bound. What this daemon appends meanwhile follows on it.
fn hears_of_others(d: &Daemon, url: &str, bound: Duration) {
    let task = new_task(d);
    let mut stream = d.follow(&subscribe(&task));
    let mut feed = d.follow("/v1/events?stream_prefix=task/");
    stream.events(1);
    let mut number = 0;
    quickly(bound, || {
        number += 1;
        let line = format!("other {number}");
        let committed = append_beside(url, &task, &line);
        let event = stream.event();
        let took = committed.elapsed();
        assert_eq!(event.data["line"], line.as_str());
        append(d, &task, &json!([frame(&format!("own {number}"))]));
        assert_eq!(stream.event().data["line"], format!("own {number}"));
        took
    });
    let wanted: Vec<String> =
        (1..=number).flat_map(|n| [format!("other {n}"), format!("own {n}")]).collect();
    let mut told = Vec::new();
    while told.len() < wanted.len() {
        let event = feed.event().data;
        if event["stream"] == format!("task/{task}") && event["kind"] == "frame" {
            told.push(event["data"]["line"].as_str().expect("a line").to_owned());
        }
    }
    assert_eq!(told, wanted, "in the feed over several streams");
    assert_eq!(lines(d, &task), wanted);
}

#[test]
fn a_commit_of_another_connection_wakes_subscribers_at_once() {
    only_if!(has_server());
    let (url, d) = listening();
    hears_of_others(&d, &url, Duration::from_millis(50));
}

#[test]
fn a_commit_of_another_connection_is_found_by_polling() {
    only_if!(has_server());
    let url = database();
    let home = Home::in_store(&url);
    let d = Daemon::with(|plan| plan.home(&home).flag("--store-listen").flag("poll"));
    assert_eq!(state_of_store(&d)["listen"], "poll");
    hears_of_others(&d, &url, Duration::from_millis(1_100));
}

/// Lists are answered from memory until a commit, also one of another connection.
#[test]
fn a_commit_of_another_connection_ends_what_lists_remember() {
    only_if!(has_server());
    let (url, d) = listening();
    let task = new_task(&d);
    let title = || d.get("/v1/tasks").ok(200)["tasks"][0]["title"].clone();
    let before = title();
    psql(
        &url,
        &format!(
            "update task set title = 'renamed' where task_id = '{task}';
            select pg_notify('svc_svc', 'other:1:0')"
        ),
    );
    assert_ne!(before, "renamed");
    eventually(Duration::from_secs(2), || title() == "renamed");
}

#[test]
fn nothing_is_missed_while_the_listening_connection_is_ended() {
    only_if!(has_server());
    let (url, d) = listening();
    let task = new_task(&d);
    let mut stream = d.follow(&subscribe(&task));
    stream.events(1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop_anyway = SetOnDrop(&is_over);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                psql(
                    &url,
                    // It has the lock of a daemon.
                    "select pg_terminate_backend(pid) from pg_locks l join pg_database d on d.oid = l.database
                    where locktype = 'advisory' and classid = 1937138532 and datname = current_database()",
                );
            }
        });
        for number in 0..20 {
            let line = format!("other {number}");
            append_beside(&url, &task, &line);
            let event = stream.event();
            assert_eq!(event.data["line"], line.as_str());
        }
    });
    eventually(Duration::from_secs(10), || state_of_store(&d)["listen"] == "notify");
    assert_eq!(d.get("/health").status(), 200);
}

/// A job that is refused leaves no trace in what the writer knows of the log.
#[test]
fn an_append_after_a_refused_job_goes_through() {
    only_if!(has_server());
    let d = on(&database());
    let (over, open) = (new_task(&d), new_task(&d));
    append(&d, &over, &done());
    for n in 0..5 {
        problem(&d.post(&format!("/v1/tasks/{over}/events"), &done()), 409, "conflict");
        let (first, _) = append(&d, &open, &json!([frame(&format!("{n}"))]));
        assert_eq!(first, n + 2);
    }
}

/// A client that sends a key or ids may send it again.
#[test]
fn an_unknown_outcome_says_whether_a_repeat_is_harmless() {
    only_if!(has_server());
    let (proxy, d) = behind_a_proxy();
    let task = new_task(&d);
    let path = format!("/v1/tasks/{task}/events");
    let other = format!("/v1/tasks/{}/events", new_task(&d));
    let with_id = |line: &str| {
        let mut event = frame(line);
        // Without the mark: the daemon looks for ids before it writes.
        event["id"] = json!("id");
        event
    };
    for (event, may_repeat) in [(frame("marked 1"), false), (with_id("marked 2"), true)] {
        proxy.fail_next_write(Fault::LoseAnswerAndServer);
        let reply = d.post(&path, &event);
        let told = problem(&reply, 503, "outcome_unknown");
        assert_eq!(told["retryable"], may_repeat, "{told}");
        let detail = told["detail"].as_str().unwrap_or_default();
        assert_eq!(detail.contains("look before you repeat"), !may_repeat, "{told}");
        proxy.come_back();
        append_until_taken(&d, &other);
        if may_repeat {
            d.post(&path, &event).ok(200);
        }
    }
    assert_eq!(lines(&d, &task), ["marked 1", "marked 2"], "each is there once");
}

#[test]
fn hooks_end_in_time_and_spool_while_the_database_is_away() {
    only_if!(has_server());
    let (proxy, d) = behind_a_proxy();
    new_task(&d);
    let before = d.stderr().lines().count();
    proxy.go_away();
    for n in 0..5 {
        let event = json!({
            "session_id": format!("away-{n}"), "cwd": d.home.user(),
            "hook_event_name": "SessionStart", "source": "startup",
        });
        let began = Instant::now();
        svc_with_input(&d.home, &["hook", "claude-code"], event.to_string().as_bytes()).ok();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    assert!(d.home.path("hooks.spool").exists());
    eventually(Duration::from_secs(20), || d.get("/health").status() == 503);
    proxy.come_back();
    for n in 0..5 {
        let session = format!("/v1/sessions/away-{n}");
        eventually(Duration::from_secs(30), || d.get(&session).status() == 200);
    }
    let said = d.stderr();
    let said: Vec<&str> = said.lines().skip(before).collect();
    assert!(said.iter().any(|line| line.contains("the database does not answer")), "{said:?}");
    assert!(said.iter().any(|line| line.contains("the database answers again")), "{said:?}");
    // The spool waits for the database, and is read as soon as it is back.
    assert!(!said.iter().any(|line| line.contains("cannot drain the hooks' spool")), "{said:?}");
    let loud = said.iter().filter(|line| line.contains("ERROR") || line.contains("WARN")).count();
    assert!(loud < 5, "{said:#?}");
}

/// A standby that does not answer holds the commit, and no other write waits for it for long.
#[test]
fn a_commit_that_is_not_answered_holds_up_nobody() {
    only_if!(has_server());
    let (proxy, d) = behind_a_proxy();
    let task = new_task(&d);
    let path = format!("/v1/tasks/{task}/events");
    append(&d, &task, &json!([frame("before")]));
    let mut is_other_written = false;
    thread::scope(|scope| {
        proxy.fail_next_write(Fault::HoldRequest);
        let held =
            scope.spawn(|| (Instant::now(), d.post(&path, &frame("marked")), Instant::now()));
        eventually(Duration::from_secs(5), || proxy.has_failed());
        let began = Instant::now();
        let other = d.post(&path, &frame("other"));
        assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
        // If it began late, the held commit was given up in its time.
        is_other_written = other.status() == 200;
        if !is_other_written {
            problem(&other, 503, "store_unavailable");
        }
        let (began, reply, ended) = held.join().expect("it ends");
        problem(&reply, 503, "outcome_unknown");
        assert!(ended - began < Duration::from_secs(14), "{:?}", ended - began);
    });
    // Until the next write knows what became of it.
    append_until_taken(&d, &path);
    assert_eq!(state_of_store(&d)["sync"], "none");
    let expected = ["before", "other", "after"];
    let expected: Vec<_> =
        expected.into_iter().filter(|it| *it != "other" || is_other_written).collect();
    assert_eq!(lines(&d, &task), expected);
}

fn append_until_taken(d: &Daemon, path: &str) {
    eventually(Duration::from_secs(20), || d.post(path, &frame("after")).status() == 200);
}

/// `SVC_STORE_STOPS` is the number of stops; `SVC_CRASH_SEED` repeats a run.
#[test]
fn immediate_stops_of_the_server_lose_and_repeat_nothing() {
    only_if!(has_server());
    let stops = number("SVC_STORE_STOPS").unwrap_or(3);
    let seed = seed();
    let server = svc_store::scratch_server::OwnServer::start();
    let mut d = on(&server.url());
    let told = survive(&mut d, stops, 600, &mut Chance(seed), |d| {
        server.stop_at_once();
        server.start_again();
        eventually(Duration::from_secs(30), || d.get("/health").status() == 200);
    });
    eprintln!(
        "{stops} stops, {} events acknowledged, {} answers lost (seed {seed})",
        told.0, told.1
    );
    assert!(told.1 > 0, "the stops hit somebody");
}
