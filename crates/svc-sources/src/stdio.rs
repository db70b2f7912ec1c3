//! A server that is a process: one message a line on its pipes, its error output, which becomes
//! events of its stream, and its container.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_model::limits::SOURCE_STDERR_BYTES;
use svc_sys::{lines::LineReader, private_file};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{connection::SourceConnection, lock, message::ChildMessage, spec::SourceSpec};

/// Longest message of a server, in bytes.
pub(super) const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// How much of a server's error output is kept, in bytes.
const LOG_BYTES: usize = 64 * 1024;
/// Longest line of error output in one event, in bytes.
const LOG_LINE: usize = 4096;
/// Error output that is read in one second, in bytes. Beyond it the server blocks.
const LOG_RATE: usize = 4 * 1024 * 1024;
const LOG_WINDOW: Duration = Duration::from_secs(1);

/// The end of a server's error output.
#[derive(Debug, Default)]
pub(super) struct ServerLog(Mutex<VecDeque<u8>>);

impl ServerLog {
    fn add(&self, text: &str) {
        let mut kept = lock(&self.0);
        kept.extend(text.as_bytes());
        let excess = kept.len().saturating_sub(LOG_BYTES);
        kept.drain(..excess);
    }

    pub(super) fn text(&self) -> String {
        let kept = lock(&self.0);
        String::from_utf8_lossy(&kept.iter().copied().collect::<Vec<u8>>()).into_owned()
    }

    /// The last line that is not blank, for the reason of an end.
    pub(super) fn last_line(&self) -> Option<String> {
        let text = self.text();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(300).collect())
    }
}

/// Queued messages are written in one write up to this size, in bytes: a busy server is woken once
/// for many calls.
const AT_ONCE: usize = 64 * 1024;

/// Writes outgoing messages until the connection or the server ends. Dropping the pipe ends the
/// server's input.
pub(super) async fn write(
    connection: Arc<SourceConnection>,
    mut messages: mpsc::Receiver<ChildMessage>,
    mut stdin: ChildStdin,
) {
    loop {
        let message = tokio::select! {
            biased;
            () = connection.closed.cancelled() => return,
            message = messages.recv() => message,
        };
        let Some(message) = message else { return };
        let mark_sent = |message: &ChildMessage| {
            if let ChildMessage::Request(request) = message {
                connection.mark_sent(request.id, true);
            }
        };
        mark_sent(&message);
        let mut text = message.into_text();
        text.push('\n');
        while text.len() < AT_ONCE {
            let Ok(more) = messages.try_recv() else { break };
            mark_sent(&more);
            text.push_str(&more.into_text());
            text.push('\n');
        }
        let written = tokio::select! {
            biased;
            () = connection.closed.cancelled() => return,
            written = stdin.write_all(text.as_bytes()) => written,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Reads messages until the server ends; the error says what the server did wrong.
pub(super) async fn read(
    connection: Arc<SourceConnection>,
    stdout: ChildStdout,
) -> Result<(), String> {
    let mut lines = LineReader::new(stdout, 64 * 1024, MAX_MESSAGE);
    while let Ok(Some(line)) = lines.next().await {
        if line.is_cut {
            return Err("it sent a message of more than 16 MiB".to_owned());
        }
        match std::str::from_utf8(line.bytes) {
            Ok(text) if !text.trim().is_empty() => connection.take(text.trim()).await,
            _ => connection.skip(line.bytes.len()).await,
        }
    }
    Ok(())
}

/// Reads the error output until the server ends, and removes secrets.
pub(super) async fn read_log(
    connection: Arc<SourceConnection>,
    mut stderr: ChildStderr,
    log: Arc<ServerLog>,
    lines: StderrLines,
) {
    let (mut buffer, mut rest) = (vec![0; 8192], Vec::new());
    let (mut window_end, mut in_window) = (Instant::now() + LOG_WINDOW, 0);
    while let Ok(read) = stderr.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        in_window += read;
        if Instant::now() >= window_end || in_window > LOG_RATE {
            // The window has ended, or the rate is exceeded and the window's end is waited for.
            sleep_until(window_end).await;
            (window_end, in_window) = (Instant::now() + LOG_WINDOW, read);
        }
        rest.extend_from_slice(&buffer[..read]);
        // Only whole lines: a secret might be cut in two.
        let end = rest.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        if let Some(end) = end {
            let whole: Vec<u8> = rest.drain(..end).collect();
            keep(&connection, &whole, &log, &lines);
        }
        if rest.len() > LOG_BYTES {
            let text = String::from_utf8_lossy(&rest);
            let text = connection.hide(&text);
            let (whole, begun) = split_unfinished(&text);
            keep(&connection, whole.as_bytes(), &log, &lines);
            rest = begun.as_bytes().to_vec();
        }
    }
    if !rest.is_empty() {
        keep(&connection, &rest, &log, &lines);
    }
}

/// Splits the beginning of a line, without its secrets, into what is kept now and what waits for
/// the rest of the line: a secret may have begun there. Secrets may have been most of the text.
fn split_unfinished(text: &str) -> (&str, &str) {
    text.split_at(text.floor_char_boundary(text.len().saturating_sub(LOG_LINE)))
}

fn keep(connection: &SourceConnection, bytes: &[u8], log: &ServerLog, lines: &StderrLines) {
    let text = String::from_utf8_lossy(bytes);
    let text = connection.hide(&text);
    log.add(&text);
    for line in text.lines().filter(|line| !line.is_empty()) {
        lines.say(&line[..line.floor_char_boundary(LOG_LINE)]);
    }
}

/// Overhead of a row beside its text, in bytes: short lines fill a disk, too.
const ROW: usize = 64;
const WINDOW: Duration = Duration::from_mins(1);
/// Dropped lines are reported when none was dropped for this long.
const QUIET: Duration = Duration::from_secs(1);

/// The quota of one server's error output, for all its instances together.
#[derive(Debug, Default)]
pub(super) struct StderrQuota(Mutex<StderrWindow>);

#[derive(Debug, Default)]
struct StderrWindow {
    began: Option<Instant>,
    kept: usize,
    dropped: DroppedLines,
    /// When the last line was dropped.
    dropped_at: Option<Instant>,
    /// Dropped lines of this window were reported once. The next report is at its end.
    is_told: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct DroppedLines {
    lines: u64,
    bytes: u64,
}

impl DroppedLines {
    pub(super) fn event(self) -> Value {
        let Self { lines, bytes } = self;
        let kept = SOURCE_STDERR_BYTES / 1024;
        let text = format!(
            "svc: {lines} lines with {bytes} bytes are not kept: of a server {kept} KiB a minute are"
        );
        json!({ "data": text, "dropped_lines": lines, "dropped_bytes": bytes })
    }
}

impl StderrQuota {
    /// Whether a line is within the quota. A dropped line is counted.
    fn take(&self, bytes: usize, now: Instant) -> bool {
        let mut window = lock(&self.0);
        if window.began.is_none_or(|began| now >= began + WINDOW) {
            (window.began, window.kept, window.is_told) = (Some(now), 0, false);
        }
        let kept = window.kept + bytes + ROW;
        if kept > SOURCE_STDERR_BYTES {
            window.drop_line(bytes, now);
            return false;
        }
        window.kept = kept;
        true
    }

    /// Counts a line that was dropped because the queue was full.
    fn refuse(&self, bytes: usize, now: Instant) {
        lock(&self.0).drop_line(bytes, now);
    }

    /// The dropped lines that were not reported yet, once a report is due: when the flood pauses,
    /// and at the end of a minute.
    pub(super) fn report(&self, now: Instant) -> Option<DroppedLines> {
        let mut window = lock(&self.0);
        let is_over = window.began.is_none_or(|began| now >= began + WINDOW);
        let is_quiet = window.dropped_at.is_some_and(|dropped| now >= dropped + QUIET);
        if window.dropped.lines == 0 || !(is_over || (is_quiet && !window.is_told)) {
            return None;
        }
        window.is_told = true;
        Some(std::mem::take(&mut window.dropped))
    }
}

impl StderrWindow {
    fn drop_line(&mut self, bytes: usize, now: Instant) {
        self.dropped.lines += 1;
        self.dropped.bytes += bytes as u64;
        self.dropped_at = Some(now);
    }
}

#[derive(Debug, Clone)]
pub(super) struct StderrLines {
    pub(super) spec: Arc<SourceSpec>,
    pub(super) lines: mpsc::Sender<(Arc<SourceSpec>, String)>,
    pub(super) quota: Arc<StderrQuota>,
}

impl StderrLines {
    pub(super) fn say(&self, line: &str) {
        let now = Instant::now();
        if !self.quota.take(line.len(), now) {
            return;
        }
        if self.lines.try_send((Arc::clone(&self.spec), line.to_owned())).is_err() {
            self.quota.refuse(line.len(), now);
        }
    }
}

/// Deadline for a runtime to stop a container.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds between SIGTERM and SIGKILL in a container.
const GRACE: &str = "5";
/// Variables that select the runtime's daemon. No other variable of the server is kept.
const OF_RUNTIME: [&str; 8] = [
    "PATH",
    "HOME",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "CONTAINER_HOST",
];

/// The folder of the files with containers' ids. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Containers(Arc<Path>);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ContainerNote {
    program: String,
    env: Vec<(String, String)>,
    cidfile: PathBuf,
}

impl Containers {
    pub(super) fn new(home: &Path) -> Self {
        Self(home.join("containers").into())
    }

    fn note_file(&self, mark: &str) -> PathBuf {
        self.0.join(format!("{mark}.json"))
    }

    /// The arguments of a program, with a file for the container's id if the program starts a
    /// container.
    pub(super) fn prepare(
        &self,
        program: &str,
        mut args: Vec<String>,
        env: &[(String, String)],
        mark: &str,
    ) -> io::Result<Vec<String>> {
        let Some(at) = run_command(program, &args) else { return Ok(args) };
        private_file::create_folder(&self.0)?;
        let cidfile = if let Some(own) = own_cidfile(&args[at..]) {
            own
        } else {
            let cidfile = self.0.join(format!("{mark}.cid"));
            let option = ["--cidfile".to_owned(), cidfile.display().to_string()];
            args.splice(at..at, option);
            cidfile
        };
        let env = env.iter().filter(|(name, _)| OF_RUNTIME.contains(&name.as_str())).cloned();
        let note = ContainerNote { program: program.to_owned(), env: env.collect(), cidfile };
        let text = serde_json::to_vec(&note).map_err(io::Error::other)?;
        private_file::create_new(&self.note_file(mark), &text)?;
        Ok(args)
    }

    pub(super) async fn end(&self, mark: &str) {
        let file = self.note_file(mark);
        let Ok(text) = fs::read(&file) else { return };
        if let Ok(note) = serde_json::from_slice::<ContainerNote>(&text) {
            let id = fs::read_to_string(&note.cidfile).unwrap_or_default();
            if is_id(id.trim()) {
                note.run(&["stop", "-t", GRACE, id.trim()]).await;
                note.run(&["rm", "-f", id.trim()]).await;
            }
            fs::remove_file(&note.cidfile).ok();
        }
        fs::remove_file(file).ok();
    }
}

impl ContainerNote {
    /// Ignores failures: the container may be gone already, which the runtime reports as an error.
    async fn run(&self, args: &[&str]) {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(args).env_clear().envs(self.env.iter().cloned()).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match tokio::time::timeout(TIMEOUT, command.status()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a container cannot be stopped"),
            Err(_) => tracing::warn!("a container is not stopped in time"),
        }
    }
}

/// The index at which the options of `docker run` begin; `None` for every other program.
fn run_command(program: &str, args: &[String]) -> Option<usize> {
    let name = Path::new(program).file_name()?.to_str()?;
    if !matches!(name, "docker" | "podman") {
        return None;
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["run", ..] => Some(1),
        ["container", "run", ..] => Some(2),
        _ => None,
    }
}

fn own_cidfile(args: &[String]) -> Option<PathBuf> {
    let at = args.iter().position(|arg| arg == "--cidfile" || arg.starts_with("--cidfile="))?;
    let path = args[at].strip_prefix("--cidfile=").or_else(|| args.get(at + 1).map(String::as_str));
    path.map(PathBuf::from)
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_an_unfinished_line_waits_for_its_rest() {
        let long = format!("{}{}", "a".repeat(10), "ü".repeat(LOG_LINE / 2));
        assert_eq!(split_unfinished(&long).0, "a".repeat(10));
        assert_eq!(split_unfinished("***"), ("", "***"));
    }

    #[test]
    fn stderr_quota_per_minute_counts_dropped_lines() {
        let (quota, start) = (StderrQuota::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let flood = |now| (0..10_000).filter(|_| quota.take(100, now)).count();
        let kept = flood(start);
        assert!(kept * 100 <= SOURCE_STDERR_BYTES && kept > 300, "{kept}");
        let dropped =
            DroppedLines { lines: 10_000 - kept as u64, bytes: (10_000 - kept as u64) * 100 };
        assert_eq!(quota.report(start), None, "the flood goes on");
        assert_eq!(quota.report(at(2)), Some(dropped));
        assert_eq!(quota.report(at(3)), None);
        // The same minute: nothing more is kept, and the rest is reported at its end.
        assert_eq!(flood(at(30)), 0);
        assert_eq!(quota.report(at(40)), None);
        assert_eq!(quota.report(at(61)), Some(DroppedLines { lines: 10_000, bytes: 1_000_000 }));
        assert_eq!(flood(at(61)), kept, "a new minute");
        // Short lines cost a row each.
        let quota = StderrQuota::default();
        assert!((0..100_000).filter(|_| quota.take(1, start)).count() < 1100);
    }

    #[test]
    fn only_container_runs_get_an_id_file() {
        let home = tempfile::tempdir().expect("a folder");
        let containers = Containers::new(home.path());
        let env = [("PATH".to_owned(), "/bin".to_owned()), ("TOKEN".to_owned(), "hush".to_owned())];
        for (mark, program, args, expected) in [
            ("a", "docker", "run -i --rm x", "run --cidfile HERE/a.cid -i --rm x"),
            ("b", "/usr/bin/podman", "container run x", "container run --cidfile HERE/b.cid x"),
            ("c", "docker", "run --cidfile=/own x", "run --cidfile=/own x"),
            ("d", "docker", "compose run x", "compose run x"),
            ("e", "npx", "run x", "run x"),
        ] {
            let args = args.split(' ').map(str::to_owned).collect();
            let args = containers.prepare(program, args, &env, mark).expect("is written");
            let here = home.path().join("containers").display().to_string();
            assert_eq!(args.join(" ").replace(&here, "HERE"), expected);
            let note = fs::read_to_string(containers.note_file(mark)).unwrap_or_default();
            assert_eq!(!note.is_empty(), matches!(mark, "a" | "b" | "c"), "{mark}");
            assert!(!note.contains("hush"), "{note}");
        }
        assert!(!is_id("-a b") && !is_id("") && is_id("0123abc"));
    }
}
