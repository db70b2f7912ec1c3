//! `svc` without arguments on a terminal: keys in, a screen out. And lists on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

use crate::daemon::{Daemon, Home, eventually, svc};
use crate::expect::{page, register, text};

const SOON: Duration = Duration::from_secs(20);

/// A program on a terminal of its own, and its screen. Dropping it kills the program.
struct Terminal {
    child: Child,
    keyboard: File,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn run(home: &Home, args: &[&str], columns: u16, rows: u16) -> Self {
        Self::of_kind("xterm-256color", home, args, columns, rows)
    }

    fn of_kind(kind: &str, home: &Home, args: &[&str], columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let slave = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
            .expect("its other end");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("a size");
        let end = || Stdio::from(slave.try_clone().expect("another handle"));
        let mut command = home.command(args);
        command.env("TERM", kind).stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("the binary starts");
        drop((command, slave));
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().expect("another handle");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(size_of(rows), size_of(columns), 0)));
        let drawn = Arc::clone(&parser);
        thread::spawn(move || {
            let mut block = [0; 4096];
            // The read fails when the program has closed its end.
            while let Ok(count @ 1..) = screen.read(&mut block) {
                drawn.lock().expect("a screen").process(&block[..count]);
            }
        });
        Self { child, keyboard, parser }
    }

    fn text(&self) -> String {
        self.parser.lock().expect("a screen").screen().contents()
    }

    #[track_caller]
    fn shows(&self, words: &str) {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(SOON, || self.text().contains(words));
        }));
        assert!(shown.is_ok(), "{words:?} is not on the screen:\n{}", self.text());
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("typed");
    }

    /// Its exit code, once it has ended, and whether the screen was restored.
    fn ended(&mut self) -> (Option<i32>, bool) {
        let mut code = None;
        eventually(SOON, || {
            let status = self.child.try_wait().expect("our own child");
            code = status.and_then(|status| status.code());
            status.is_some()
        });
        eventually(SOON, || !self.parser.lock().expect("a screen").screen().alternate_screen());
        let parser = self.parser.lock().expect("a screen");
        (code, !parser.screen().hide_cursor())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only if the process is gone already, which is the goal.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn size_of(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a size")
}

fn member(d: &Daemon, name: &str) -> String {
    let body = json!({ "display_name": name, "backend": "claude", "session_id": name });
    text(&register(d, &body), "peer_id")
}

#[test]
fn svc_without_arguments_shows_and_updates_the_team() {
    let mut d = Daemon::start();
    let (ann, bob) = (member(&d, "ann"), member(&d, "bob"));
    let mut terminal = Terminal::run(&d.home, &[], 100, 30);
    terminal.shows("2 here  live");
    terminal.shows("ann");
    // Changes are shown without a key.
    member(&d, "carl");
    terminal.shows("carl");
    let question = json!({ "text": "is it green?", "type": "query", "from_peer": ann });
    d.post(&format!("/v1/peers/{bob}/messages"), &question).ok(200);
    terminal.shows("ann waits for bob");
    let attempt = json!({
        "session_id": "bob", "domain": "testing", "strategy": "ask-user", "goal": "A build without warnings",
        "hypothesis": "h", "action": "a", "prediction": "p",
    });
    for (tool, arguments) in
        [("start_session", json!({ "session_id": "bob", "cwd": "/work" })), ("start_ghap", attempt)]
    {
        let params = json!({ "name": tool, "arguments": arguments });
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        d.post("/mcp", &call).ok(200);
    }
    terminal.shows("A build without warnings");

    // The second list, the question in it, its text, and an answer.
    terminal.press("\t\r");
    terminal.shows("waits for an answer");
    // Only the participant that was asked may answer it.
    terminal.press("a");
    terminal.shows("only bob may answer that");
    let question = json!({ "text": "and is it for you?", "type": "query", "from_peer": ann });
    d.post("/v1/peers/operator/messages", &question).ok(200);
    terminal.press("\r");
    terminal.shows("ann waits for you");
    terminal.press("ka");
    terminal.shows("answer to ann");
    terminal.press("yes\r");
    terminal.shows("sent");
    let inbox = page(&d.get(&format!("/v1/peers/{ann}/messages?peek=true")), "messages");
    assert_eq!((&inbox[0]["text"], &inbox[0]["type"]), (&json!("yes"), &json!("response")));

    d.kill9();
    terminal.shows("ann");
    d.restart();
    member(&d, "dora");
    terminal.shows("dora");
    terminal.shows("live");
    terminal.press("q");
    assert_eq!(terminal.ended(), (Some(0), true));
}

#[test]
fn team_view_waits_for_a_daemon_and_exits_on_a_signal() {
    let home = Home::new();
    let terminal = Terminal::run(&home, &["top"], 60, 20);
    terminal.shows("svc start");
    let d = Daemon::with(|plan| plan.home(&home));
    let mut terminal = terminal;
    terminal.shows("live");
    member(&d, "ann");
    terminal.shows("ann");
    let pid = rustix::process::Pid::from_child(&terminal.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our own child");
    assert_eq!(terminal.ended(), (Some(0), true), "and the terminal is as it was");
}

#[test]
fn without_a_terminal_there_is_no_team_view() {
    let home = Home::new();
    let alone = svc(&home, &[]);
    assert!(alone.ok().contains("Usage: svc"), "{alone:?}");
    let top = svc(&home, &["top"]);
    assert_eq!(top.code, Some(2), "{top:?}");
    assert!(top.stderr.contains("svc peer list"), "{top:?}");
}

#[test]
fn dumb_terminal_gets_help() {
    let mut terminal = Terminal::of_kind("dumb", &Home::new(), &[], 100, 100);
    terminal.shows("Usage: svc");
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn lists_use_the_terminals_width_and_colours() {
    let d = Daemon::start();
    member(&d, "ann with a name that is longer than a screen of sixty columns has room for");
    let mut terminal = Terminal::run(&d.home, &["peer", "list"], 60, 20);
    terminal.shows("…");
    assert_eq!(terminal.ended().0, Some(0));
    let shown = terminal.text();
    assert!(shown.contains("NAME") && !shown.contains("room for"), "{shown}");
    assert_eq!(shown.lines().count(), 2, "a row is a line: {shown}");
    let parser = terminal.parser.lock().expect("a screen");
    let cells = (0..60).filter_map(|column| parser.screen().cell(1, column));
    let colours = cells.filter(|cell| cell.fgcolor() != vt100::Color::Default).count();
    assert!(colours > 0, "the state has a colour");
}
