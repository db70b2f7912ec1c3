//! Who watches a fleet: a page, by its stream of events, and people at `svc top`.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;

use crate::{
    agents::clock_us,
    daemon::Daemon,
    sandbox::{Process, Sandbox},
    wire::Body,
};

/// Terminals with `svc top`.
const TOPS: usize = 3;
const SCREEN: Winsize = Winsize { ws_row: 50, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };

/// When the page had each message, by its id, on the clock of all processes.
type Arrivals = Arc<Mutex<HashMap<String, u64>>>;

/// The page and the terminals. They end on drop.
pub(crate) struct FleetWatch {
    arrivals: Arrivals,
    page: TcpStream,
    tops: Vec<(Process, File)>,
}

impl FleetWatch {
    pub(crate) fn start(sandbox: &Sandbox, daemon: &Daemon) -> anyhow::Result<Self> {
        let request = [("accept", "text/event-stream")].as_slice();
        let request = daemon.target.request_with("GET", "/v1/events?after=latest", request, "");
        let mut page = TcpStream::connect(daemon.target.address)?;
        page.write_all(&request)?;
        let arrivals = Arrivals::default();
        let (reader, noted) = (page.try_clone()?, Arc::clone(&arrivals));
        // It ends with the connection.
        thread::spawn(move || read_page(reader, &noted));
        let tops = (0..TOPS)
            .map(|number| start_top(sandbox, daemon, number))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { arrivals, page, tops })
    }

    /// When the page had the message; `None` if it has not come.
    pub(crate) fn arrival(&self, message: &str) -> Option<u64> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).get(message).copied()
    }

    /// Processor time of the terminals' programs.
    pub(crate) fn cpu(&self) -> Duration {
        self.tops.iter().filter_map(|(top, _)| top.cpu()).sum()
    }

    /// Fails if a terminal's program has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for (top, _) in &mut self.tops {
            anyhow::ensure!(top.is_running(), "svc top has ended: {}", top.complaint());
        }
        Ok(())
    }
}

impl Drop for FleetWatch {
    fn drop(&mut self) {
        // It may have ended before.
        self.page.shutdown(std::net::Shutdown::Both).ok();
    }
}

fn read_page(mut page: TcpStream, arrivals: &Arrivals) -> anyhow::Result<()> {
    let (mut body, mut rest) = (Body::default(), Vec::new());
    let mut block = vec![0; 64 * 1024];
    loop {
        let got = page.read(&mut block)?;
        if got == 0 {
            return Ok(());
        }
        let now = clock_us();
        body.feed(&block[..got], |bytes| rest.extend_from_slice(bytes))?;
        let mut from = 0;
        while let Some(end) = rest[from..].iter().position(|byte| *byte == b'\n') {
            note(&rest[from..from + end], now, arrivals);
            from += end + 1;
        }
        rest.drain(..from);
    }
}

/// Notes the first event of a message.
fn note(line: &[u8], now: u64, arrivals: &Arrivals) {
    const KIND: &[u8] = br#""kind":"message.queued""#;
    let Some(data) = line.strip_prefix(b"data: ") else { return };
    if !data.windows(KIND.len()).any(|bytes| bytes == KIND) {
        return;
    }
    let event: Value = serde_json::from_slice(data).unwrap_or_default();
    if let Some(id) = event["data"]["id"].as_str() {
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.entry(id.to_owned()).or_insert(now);
    }
}

/// `svc top` on a terminal of its own, whose screen is read and thrown away.
fn start_top(sandbox: &Sandbox, daemon: &Daemon, number: usize) -> anyhow::Result<(Process, File)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("no terminal")?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    tcsetwinsize(&ours, SCREEN)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = File::options().read(true).write(true).open(name.to_str()?)?;
    let mut command = Command::new(sandbox.svc());
    command.arg("top").env_clear().env("SVC_HOME", daemon.home()).env("TERM", "xterm-256color");
    command.stdin(Stdio::from(theirs.try_clone()?)).stdout(Stdio::from(theirs));
    let top = sandbox.launch(&format!("top-{number}"), &mut command)?;
    let ours = File::from(ours);
    let mut screen = ours.try_clone()?;
    // Reading ends with an error when the program has ended.
    thread::spawn(move || {
        let mut block = vec![0; 64 * 1024];
        while screen.read(&mut block).is_ok_and(|got| got > 0) {}
    });
    Ok((top, ours))
}
