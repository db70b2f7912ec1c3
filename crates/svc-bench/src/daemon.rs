//! The daemon under test: a process with a data folder in the sandbox.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use svc_model::{Event, Frame, FrameKind, Framing, StreamName, TaskId, Timestamp};
use svc_wire::sse;

use super::{
    load::{Caller, Protocol, Target},
    report,
    sandbox::{self, Process, Sandbox},
    wire::FrameSize,
};

/// Bytes of data of each event.
pub(crate) const DATA_BYTES: usize = 200;
/// Digits at the beginning of each line, into which a measurement may write a time.
pub(crate) const STAMP_DIGITS: usize = 16;
/// The bytes with which svc begins an event stream.
pub(crate) const PREAMBLE: &str = "retry: 1000\n\n";

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) target: Target,
    home: PathBuf,
}

impl Daemon {
    /// Starts a daemon and waits until it is ready. `name` is the name of its data folder, which
    /// may exist already.
    pub(crate) fn start(sandbox: &Sandbox, name: &str) -> anyhow::Result<Self> {
        Self::start_with(sandbox, name, &[])
    }

    pub(crate) fn start_with(
        sandbox: &Sandbox,
        name: &str,
        env: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let mut command = command(sandbox, name, "127.0.0.1:0");
        command.envs(env.iter().copied());
        Self::begin(sandbox, name, command)
    }

    fn begin(sandbox: &Sandbox, name: &str, mut command: Command) -> anyhow::Result<Self> {
        let home = sandbox.path(name);
        let mut process = sandbox.start(name, &mut command)?;
        let line = process.first_line().context("the daemon")?;
        let address = line.trim().rsplit_once("http://");
        let address = address.and_then(|(_, address)| address.parse().ok());
        let address = address.with_context(|| format!("the daemon said {line:?}"))?;
        let token = std::fs::read_to_string(home.join("token"))?.trim().to_owned();
        Ok(Self { process, target: Target { address, token: Some(token) }, home })
    }

    /// As `start_with`, with a limit of open files if `files` is given.
    pub(crate) fn start_limited(
        sandbox: &Sandbox,
        name: &str,
        files: Option<u32>,
    ) -> anyhow::Result<Self> {
        let plain = command(sandbox, name, "127.0.0.1:0");
        let Some(files) = files else { return Self::begin(sandbox, name, plain) };
        let mut limited = Command::new("sh");
        limited.arg("-c").arg(format!("ulimit -n {files} && exec \"$0\" \"$@\""));
        limited.arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        Self::begin(sandbox, name, limited)
    }

    /// Starts a daemon, measures the time to its first healthy response, and stops it.
    pub(crate) fn time_start(sandbox: &Sandbox, name: &str) -> anyhow::Result<Duration> {
        let address = sandbox::free_address()?;
        let mut command = command(sandbox, name, &address.to_string());
        let request = Target { address, token: None }.request("GET", "/health", "");
        let begun = Instant::now();
        let process = sandbox.start(name, &mut command)?;
        while !is_healthy(address, &request) {
            let waited = begun.elapsed();
            anyhow::ensure!(waited < Duration::from_secs(30), "{}", process.complaint());
            std::thread::sleep(Duration::from_micros(100));
        }
        let elapsed = begun.elapsed();
        process.stop()?;
        Ok(elapsed)
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.home.join("svc.db")
    }

    pub(crate) fn make_task(&self) -> anyhow::Result<String> {
        let task = self.target.call("POST", "/v1/tasks", r#"{"title":"bench"}"#)?;
        Ok(task["task_id"].as_str().context("a task has an id")?.to_owned())
    }

    pub(crate) fn append_request(&self, task: &str, events: usize) -> Vec<u8> {
        self.target.request("POST", &format!("/v1/tasks/{task}/events"), &body(events))
    }

    pub(crate) fn follow_request(&self, task: &str, after: u64) -> Vec<u8> {
        let path = format!("/v1/biam/subscribe?task_id={task}&last_event_id={after}");
        self.target.request("GET", &path, "")
    }
}

pub(crate) fn body(events: usize) -> String {
    let one = event_body(0);
    if events == 1 { one } else { format!("[{}]", vec![one; events].join(",")) }
}

/// A frame as a producer sends it; its line begins with `stamp`.
pub(crate) fn event_body(stamp: u64) -> String {
    format!(r#"{{"kind":"frame","data":{{"line":"{}","kind":"stdout"}}}}"#, line(stamp))
}

fn line(stamp: u64) -> String {
    let others = frame_data("").len();
    format!("{stamp:0STAMP_DIGITS$}{}", "x".repeat(DATA_BYTES - others - STAMP_DIGITS))
}

pub(crate) fn frame_size() -> FrameSize {
    FrameSize::measure(rendered().len(), 1)
}

/// The position of the stamp in a frame, counted from the frame's end.
pub(crate) fn stamp_from_end() -> usize {
    let frame = rendered();
    let at = frame.find(&line(0)).expect("the frame has the line in it");
    frame.len() - at
}

fn rendered() -> String {
    let event = Event {
        position: 1,
        stream: StreamName::new("task", "x"),
        seq: 1,
        kind: "frame".into(),
        data: frame_data(&line(0)).into(),
        at: Timestamp::from_millis(0),
    };
    let mut frame = String::new();
    sse::push_frame(&mut frame, &event, Framing::Data);
    frame
}

/// A frame's data as the daemon stores it.
fn frame_data(line: &str) -> String {
    // An id of the length of all ids of svc.
    let task_id = TaskId::from(format!("{}{}", TaskId::PREFIX, "0".repeat(26)));
    let ts = Timestamp::from_millis(0);
    let (kind, truncated, partial) = (FrameKind::Stdout, false, false);
    let frame = Frame { task_id: &task_id, line, kind, ts, truncated, partial };
    serde_json::to_string(&frame).expect("a frame has a JSON form")
}

fn command(sandbox: &Sandbox, name: &str, listen: &str) -> Command {
    let mut command = Command::new(sandbox.svc());
    for (name, _) in std::env::vars_os() {
        // The user's own settings must not influence the measurement.
        if name.as_encoded_bytes().starts_with(b"SVC_") {
            command.env_remove(name);
        }
    }
    command.env("SVC_HOME", sandbox.path(name)).args(["serve", "--listen", listen]);
    command
}

fn is_healthy(address: SocketAddr, request: &[u8]) -> bool {
    let Ok(mut socket) = TcpStream::connect(address) else {
        return false;
    };
    let mut answer = [0; 12];
    socket.write_all(request).is_ok()
        && socket.read_exact(&mut answer).is_ok()
        && answer == *b"HTTP/1.1 200"
}

const PRODUCERS: u64 = 2;
const BATCH: u64 = 1000;

/// A data folder with one task of very many events.
#[derive(Debug, Clone)]
pub(crate) struct BigHome {
    pub(crate) name: &'static str,
    pub(crate) task: String,
    pub(crate) frames: u64,
}

impl BigHome {
    pub(crate) fn make(sandbox: &Sandbox, name: &'static str, events: u64) -> anyhow::Result<Self> {
        let daemon = Daemon::start(sandbox, name)?;
        let task = daemon.make_task()?;
        let request = daemon.append_request(&task, usize::try_from(BATCH)?);
        let each = events / BATCH / PRODUCERS;
        let produce = || {
            let mut caller = Caller::open(daemon.target.address, &Protocol::HTTP)?;
            for number in 0..each {
                report::show_step(&format!("preparing {events} events: {} %", number * 100 / each));
                caller.ask(&request)?;
            }
            anyhow::Ok(())
        };
        std::thread::scope(|scope| {
            let producers: Vec<_> = (0..PRODUCERS).map(|_| scope.spawn(produce)).collect();
            producers.into_iter().try_for_each(|producer| {
                producer.join().map_err(|_| anyhow::anyhow!("a producer panicked"))?
            })
        })
        .context("cannot prepare the events")?;
        daemon.process.stop()?;
        Ok(Self { name, task, frames: each * PRODUCERS * BATCH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_data_has_the_declared_length() {
        assert_eq!(frame_data(&line(12)).len(), DATA_BYTES);
        let size = frame_size();
        assert_eq!(size.len(1), rendered().len() as u64);
        assert_eq!(size.len(10), size.len(1) + 1);
        let frame = rendered();
        let stamp = &frame[frame.len() - stamp_from_end()..][..STAMP_DIGITS];
        assert_eq!(stamp, "0".repeat(STAMP_DIGITS));
    }
}
