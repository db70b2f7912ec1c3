//! Runs a program as a task: its output and its end become events of the daemon's log.
//!
//! A line goes from the program's pipe into the `Spool` file, and from there through
//! [`EventSender`] to the daemon. The spool is the buffer: the program never waits for the daemon,
//! and a line that the daemon has not acknowledged is on the disk. Each event has an id that the
//! runner chose, so the daemon recognises a repeat. Nothing here prints: the caller of a run
//! observes it as a [`RunObserver`].

mod program;
mod spool;

use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::Value;
use svc_client::{Discovery, FollowItem, Follower, with_query};
use svc_model::FrameKind;
use svc_sys::lines::{Line, LineSplitter};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use program::{
    EventNumbering, OutputFrame, ProcessGroup, active, start_failed, terminal, timestamp,
};
use spool::{Spool, SpoolProgress};

pub(crate) use program::RunExit;
pub use program::{RunNotice, RunObserver, RunnerChild, Signals, TaskDocument};
pub use spool::{EventSender, LeftoverSpool, SendOutcome, SpoolHeader};

/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
const TERMINAL_POLL: Duration = Duration::from_secs(1);

/// A run before its program is started.
#[derive(Debug)]
pub struct Run<O> {
    discovery: Discovery,
    /// The body of the request that creates the task.
    create: Value,
    spool: Spool,
    numbering: EventNumbering,
    observer: Arc<O>,
}

#[derive(Debug)]
pub struct RunReport {
    /// The task, if the daemon made it.
    pub task: Option<TaskDocument>,
    pub exit: RunExit,
    pub outcome: SendOutcome,
    /// The spool file, if it has events that the daemon may still take.
    pub leftover: Option<PathBuf>,
}

impl<O: RunObserver> Run<O> {
    /// Creates the spool in `folder`, with its first event.
    pub fn prepare(
        folder: &Path,
        header: &SpoolHeader,
        discovery: Discovery,
        observer: Arc<O>,
    ) -> Result<Self> {
        let mut spool = Spool::create(folder, header)?;
        let mut numbering = EventNumbering::new(header.run.clone());
        spool.append(&numbering.line("task", &active())?)?;
        Ok(Self { discovery, create: header.create.clone(), spool, numbering, observer })
    }

    /// Removes the spool. The task, if it exists, gets no event.
    pub fn discard(self) {
        self.spool.discard();
    }

    /// Ends a task that already exists, because its program could not be started.
    pub async fn record_failed_start(
        mut self,
        error: &io::Error,
        exit_code: u8,
        max_wait: Duration,
    ) -> Result<SendOutcome> {
        self.spool.append(&self.numbering.line("terminal", &start_failed(error, exit_code))?)?;
        let written = self.spool.written;
        let (sender, spool, _) = self.into_sender(max_wait)?;
        let (outcome, _task) = sender.run_to_end(written).await;
        spool.discard();
        Ok(outcome)
    }

    /// Records the output and the end of the program, and forwards signals and cancel requests to
    /// it.
    ///
    /// After the program's end, the daemon may be away for up to `max_wait`; the observer is told
    /// that the run waits for it.
    pub async fn attend(
        self,
        mut child: RunnerChild,
        mut signals: Signals,
        max_wait: Duration,
    ) -> Result<RunReport> {
        let (discovery, observer) = (self.discovery.clone(), Arc::clone(&self.observer));
        let written = self.spool.written;
        let (sender, spool, numbering) = self.into_sender(max_wait)?;
        let (progress, progress_seen) =
            watch::channel(SpoolProgress { written, ..SpoolProgress::default() });
        let (task, task_seen) = watch::channel(None);
        let no_task = CancellationToken::new();
        let sending = tokio::spawn(send(sender, task, progress_seen, no_task.clone()));
        let (mut announced, teller) = (task_seen.clone(), Arc::clone(&observer));
        let announcing = tokio::spawn(async move {
            let task = made(&mut announced).await?;
            teller.task_made(&task);
            Some(task)
        });

        let (frames, queue) = mpsc::channel(QUEUE);
        let (ended, end_seen) = watch::channel(false);
        let readers = spawn_readers(child.take_outputs(), frames, &observer, &end_seen);
        let recorder =
            FrameRecorder { spool, numbering, progress, observer: Arc::clone(&observer) };
        let recording = tokio::spawn(recorder.run(queue));

        let supervision = Supervision::new(child.group, &*observer);
        let work = program_and_output(&mut child, ended, readers);
        let cancel = cancel_requested(discovery, task_seen);
        let (exit, cancelled) =
            supervision.watch(&mut signals, work, cancel, no_task.cancelled()).await;
        let exit = exit.context("cannot tell how the command ended")?;
        let mut recorder = recording.await?;
        let end = terminal(exit, cancelled);
        let appended = recorder.spool.append(&recorder.numbering.line("terminal", &end)?);
        if let Err(error) = &appended {
            observer.notice(RunNotice::EndNotRecorded { problem: format!("{error:#}") });
        }
        recorder.publish(Some(exit));
        let outcome = tokio::select! {
            outcome = sending => outcome?,
            never = abandon(&mut signals, &recorder.progress) => match never {},
        };
        let task = announcing.await?;
        let leftover = match outcome {
            SendOutcome::Complete | SendOutcome::NoTask(_) | SendOutcome::TaskClosed(_) => {
                recorder.spool.discard();
                None
            }
            SendOutcome::Refused(_) | SendOutcome::GaveUp(_) => {
                // The person is told that the rest is in the file, so it must be on the disk.
                if let Err(error) = recorder.spool.sync() {
                    observer.notice(RunNotice::EndNotRecorded { problem: error.to_string() });
                }
                Some(recorder.spool.path.clone())
            }
        };
        Ok(RunReport { task, exit, outcome, leftover })
    }

    fn into_sender(self, max_wait: Duration) -> Result<(EventSender<O>, Spool, EventNumbering)> {
        let Self { discovery, create, spool, numbering, observer } = self;
        let reader = spool.reader()?;
        let sender =
            EventSender { discovery, create, reader, max_wait, accept_begun: false, observer };
        Ok((sender, spool, numbering))
    }
}

/// Sends the events. Reports at once if the daemon stops accepting them before the end.
async fn send<O: RunObserver>(
    sender: EventSender<O>,
    task: watch::Sender<Option<TaskDocument>>,
    progress: watch::Receiver<SpoolProgress>,
    no_task: CancellationToken,
) -> SendOutcome {
    let observer = Arc::clone(&sender.observer);
    let outcome = sender.run(task, progress).await;
    match &outcome {
        SendOutcome::NoTask(_) => no_task.cancel(),
        SendOutcome::TaskClosed(problem) | SendOutcome::Refused(problem) => {
            observer.notice(RunNotice::TaskRefused { problem: problem.clone() });
        }
        SendOutcome::Complete | SendOutcome::GaveUp(_) => {}
    }
    outcome
}

/// Returns when somebody requests the task's cancellation; else never. Waits for the task's
/// creation first.
///
/// Follows the task's own events but not its output, which this process sends.
async fn cancel_requested(discovery: Discovery, mut task: watch::Receiver<Option<TaskDocument>>) {
    if let Some(task) = made(&mut task).await {
        let stream = format!("task/{}", task.id());
        let events = [("stream", Some(stream.as_str())), ("kind", Some("task"))];
        // A caller who may not read the log may still follow the task.
        let frames = [("task_id", Some(task.id()))];
        if follow_to_cancel(&discovery, with_query("/v1/events", &events)).await
            || follow_to_cancel(&discovery, with_query("/v1/biam/subscribe", &frames)).await
        {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Returns `true` after a cancel request, `false` if the stream ends or is refused.
async fn follow_to_cancel(discovery: &Discovery, path: String) -> bool {
    let mut follower = Follower::new(discovery.clone(), path).patient();
    while let Ok(Some(item)) = follower.next().await {
        if let FollowItem::Event { data, .. } = item
            && has_cancel_request(&data)
        {
            return true;
        }
    }
    false
}

/// The task once it is created; `None` if it never will be.
async fn made(task: &mut watch::Receiver<Option<TaskDocument>>) -> Option<TaskDocument> {
    task.wait_for(Option::is_some).await.ok().and_then(|task| task.clone())
}

fn spawn_readers<O: RunObserver>(
    (stdout, stderr): (Option<ChildStdout>, Option<ChildStderr>),
    frames: mpsc::Sender<OutputFrame>,
    observer: &Arc<O>,
    ended: &watch::Receiver<bool>,
) -> [Option<JoinHandle<()>>; 2] {
    let reader = |kind, frames| PipeReader {
        kind,
        frames,
        observer: Arc::clone(observer),
        ended: ended.clone(),
    };
    let stdout_reader = reader(FrameKind::Stdout, frames.clone());
    let stderr_reader = reader(FrameKind::Stderr, frames);
    [
        stdout.map(|pipe| tokio::spawn(stdout_reader.run(pipe))),
        stderr.map(|pipe| tokio::spawn(stderr_reader.run(pipe))),
    ]
}

async fn program_and_output(
    child: &mut RunnerChild,
    ended: watch::Sender<bool>,
    readers: [Option<JoinHandle<()>>; 2],
) -> io::Result<RunExit> {
    let exit = child.wait().await;
    ended.send_replace(true);
    for reader in readers.into_iter().flatten() {
        reader.await.ok();
    }
    exit
}

/// Handles signals after the program's end: they mean that the person does not want to wait for the
/// daemon.
async fn abandon(signals: &mut Signals, progress: &watch::Sender<SpoolProgress>) -> Infallible {
    loop {
        signals.next().await;
        progress.send_modify(|progress| progress.abandoned = true);
    }
}

/// Forwards signals and cancel requests to the program until it has ended.
///
/// The first signal is forwarded to the program's group unchanged; the second one kills the group
/// and mutes the observer. On a cancel request the program gets SIGTERM, and SIGKILL after
/// [`GRACE`].
#[derive(Debug)]
struct Supervision<'a, O> {
    group: ProcessGroup,
    observer: &'a O,
    signalled: bool,
    stopping: bool,
    kill_at: Option<Instant>,
}

impl<'a, O: RunObserver> Supervision<'a, O> {
    fn new(group: ProcessGroup, observer: &'a O) -> Self {
        Self { group, observer, signalled: false, stopping: false, kill_at: None }
    }

    /// Waits for `work`: the program and its output. Returns its value, and whether the task was
    /// cancelled. `cancel` completes when somebody requests the cancellation, `no_task` when the
    /// task cannot be created.
    async fn watch<T>(
        mut self,
        signals: &mut Signals,
        work: impl Future<Output = T>,
        cancel: impl Future<Output = ()>,
        no_task: impl Future<Output = ()>,
    ) -> (T, bool) {
        tokio::pin!(work, cancel, no_task);
        let mut cancelled = false;
        let mut may_need_terminal = io::stdin().is_terminal();
        let mut polls = interval(TERMINAL_POLL);
        let output = loop {
            tokio::select! {
                output = &mut work => break output,
                signal = signals.next() => self.pass_on(signal),
                () = &mut cancel, if !self.stopping => {
                    cancelled = true;
                    self.stop();
                }
                () = &mut no_task, if !self.stopping => self.stop(),
                () = sleep_until(self.kill_at.unwrap_or_else(Instant::now)), if self.kill_at.is_some() => {
                    self.kill_at = None;
                    self.group.signal(Signal::KILL);
                }
                _ = polls.tick(), if may_need_terminal => if self.group.wants_terminal() {
                    may_need_terminal = false;
                    self.observer.notice(RunNotice::NeedsTerminal);
                },
            }
        };
        if self.stopping {
            // Processes of the group that outlived the program got SIGTERM earlier.
            self.group.signal(Signal::KILL);
        }
        (output, cancelled)
    }

    fn pass_on(&mut self, signal: Signal) {
        if self.signalled {
            self.observer.mute();
            self.group.signal(Signal::KILL);
        } else {
            self.group.signal(signal);
        }
        self.signalled = true;
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.kill_at = Some(Instant::now() + GRACE);
        self.group.signal(Signal::TERM);
    }
}

/// Whether the data contains a cancel request: either in a task, or in an event of the log that
/// holds the task.
fn has_cancel_request(data: &str) -> bool {
    let Ok(event) = serde_json::from_str::<Value>(data) else { return false };
    let task = event.get("data").filter(|data| data.is_object()).unwrap_or(&event);
    task.get("cancel_requested_at").is_some_and(|at| !at.is_null())
}

/// How long a pipe may stay open and silent after the program's end: a background process may hold
/// it.
const LINGER: Duration = Duration::from_secs(2);
/// Most lines queued between the pipes and the spool.
const QUEUE: usize = 256;
const BLOCK: usize = 64 * 1024;
/// Longest line of one frame, in bytes; a longer one is split into several. As JSON it may be six
/// times as long, which fits into a request.
const MAX_LINE: usize = 128 * 1024;

#[derive(Debug)]
struct PipeReader<O> {
    kind: FrameKind,
    frames: mpsc::Sender<OutputFrame>,
    observer: Arc<O>,
    ended: watch::Receiver<bool>,
}

impl<O: RunObserver> PipeReader<O> {
    /// Reads to the end of the pipe, or until it is silent after the program's end.
    async fn run(mut self, mut pipe: impl AsyncRead + Unpin + Send) {
        let (mut splitter, mut lines) = (LineSplitter::in_parts(MAX_LINE), Vec::new());
        let mut block = vec![0; BLOCK];
        loop {
            let count = tokio::select! {
                biased;
                count = pipe.read(&mut block) => count.unwrap_or(0),
                () = silence(&mut self.ended) => 0,
            };
            if count == 0 {
                splitter.finish(|line| take(line, &mut lines));
            } else {
                splitter.push(&block[..count], |line| take(line, &mut lines));
            }
            let ts = timestamp();
            for line in lines.drain(..) {
                let frame = OutputFrame { line, kind: self.kind, ts: ts.clone() };
                self.frames.send(frame).await.ok();
            }
            if count == 0 {
                return;
            }
            self.observer.output(self.kind, &block[..count]).await;
        }
    }
}

async fn silence(ended: &mut watch::Receiver<bool>) {
    ended.wait_for(|ended| *ended).await.ok();
    sleep(LINGER).await;
}

#[derive(Debug)]
struct FrameRecorder<O> {
    spool: Spool,
    numbering: EventNumbering,
    progress: watch::Sender<SpoolProgress>,
    observer: Arc<O>,
}

impl<O: RunObserver> FrameRecorder<O> {
    /// Writes until every pipe has ended; all frames that are queued are written at once.
    async fn run(mut self, mut frames: mpsc::Receiver<OutputFrame>) -> Self {
        let mut batch = Vec::with_capacity(QUEUE);
        let mut has_failed = false;
        while frames.recv_many(&mut batch, QUEUE).await > 0 {
            let mut lines = Vec::new();
            for frame in &batch {
                lines.extend(self.numbering.line("frame", frame).unwrap_or_default());
            }
            match self.spool.append(&lines) {
                Ok(()) => self.publish(None),
                // The program continues; one notice is enough.
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    let problem = error.to_string();
                    self.observer.notice(RunNotice::SpoolFailed { problem });
                }
                Err(_) => {}
            }
            batch.clear();
        }
        self
    }

    /// Tells the sender how many bytes of the spool are written, and how the program has ended if
    /// these are all.
    fn publish(&self, exit: Option<RunExit>) {
        self.progress.send_modify(|progress| {
            progress.written = self.spool.written;
            (progress.finished, progress.exit) = (exit.is_some(), exit);
        });
    }
}

/// Converts a line of the program to text for frames. A carriage return before the line feed is
/// dropped, and invalid UTF-8 and U+0000 become U+FFFD.
fn take(line: Line<'_>, lines: &mut Vec<String>) {
    let bytes = line.bytes;
    let bytes = if line.has_end { bytes.strip_suffix(b"\r").unwrap_or(bytes) } else { bytes };
    // An empty last part of a long line adds nothing.
    if !(line.is_cut && bytes.is_empty()) {
        lines.push(String::from_utf8_lossy(bytes).replace('\0', "\u{FFFD}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancel_request_is_read_from_a_task_and_from_an_event() {
        let cases = [
            (r#"{"task_id":"t","cancel_requested_at":"2025-01-01T00:00:00.000Z"}"#, true),
            (r#"{"kind":"task","data":{"cancel_requested_at":"x"}}"#, true),
            (r#"{"task_id":"t","cancel_requested_at":null}"#, false),
            (r#"{"line":"cancel_requested_at","kind":"stdout"}"#, false),
            ("nonsense", false),
        ];
        for (data, expected) in cases {
            assert_eq!(has_cancel_request(data), expected, "{data}");
        }
    }

    fn split(bytes: &[u8]) -> Vec<String> {
        let (mut splitter, mut lines) = (LineSplitter::in_parts(MAX_LINE), Vec::new());
        splitter.push(bytes, |line| take(line, &mut lines));
        splitter.finish(|line| take(line, &mut lines));
        lines
    }

    #[test]
    fn output_is_cut_at_line_feeds() {
        let cases: &[(&[u8], &[&str])] = &[
            (b"", &[]),
            (b"a", &["a"]),
            (b"a\n", &["a"]),
            (b"a\nb", &["a", "b"]),
            (b"\n\n", &["", ""]),
            (b"a\r\nb\r", &["a", "b\r"]),
            (b"50%\r100%\n", &["50%\r100%"]),
            (b"\xFFx\n", &["\u{FFFD}x"]),
            (b"a\0b\n", &["a\u{FFFD}b"]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(split(bytes), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn long_line_comes_in_pieces_that_fit_a_frame() {
        let texts = [
            "x".repeat(MAX_LINE),
            "x".repeat(MAX_LINE + 1),
            "x".repeat(2 * MAX_LINE),
            "é".repeat(MAX_LINE),
            "\u{1}".repeat(MAX_LINE),
            format!("x{}", "€".repeat(MAX_LINE / 2)),
        ];
        for text in texts {
            let lines = split(format!("{text}\nnext\n").as_bytes());
            let fits = |line| serde_json::to_string(line).expect("text").len() <= 6 * MAX_LINE + 2;
            assert!(lines.iter().all(fits));
            let (last, pieces) = lines.split_last().expect("there are lines");
            assert!(last == "next" && pieces.concat() == text, "{} pieces", pieces.len());
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }
}
