//! One run of a program as a task, from its spool to the last event.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use svc_client::Discovery;
use svc_model::FrameKind;
use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::cancel::CancelWatcher;
use super::child::RunnerChild;
use super::document::TaskDocument;
use super::event::{EventNumbering, OutputFrame, active, start_failed, terminal};
use super::exit::RunExit;
use super::observer::{RunNotice, RunObserver};
use super::output::{FrameRecorder, PipeReader, QUEUE};
use super::sender::{EventSender, SendOutcome, SpoolProgress};
use super::signals::Signals;
use super::spool::{Spool, SpoolError, SpoolHeader};
use super::supervise::Supervision;

/// A run whose spool exists, before its program is started.
#[derive(Debug)]
pub struct Run<O> {
    discovery: Discovery,
    /// The body of the request that makes the task.
    create: Value,
    spool: Spool,
    numbering: EventNumbering,
    observer: Arc<O>,
}

/// How a run ended.
#[derive(Debug)]
pub struct RunReport {
    pub exit: RunExit,
    pub outcome: SendOutcome,
    /// The spool file, if it has events that the daemon may still take.
    pub leftover: Option<PathBuf>,
}

/// A run that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// An event cannot be written as JSON.
    #[error(transparent)]
    Event(#[from] serde_json::Error),
    /// The system does not say how the program ended.
    #[error("cannot tell how the command ended")]
    Wait(#[source] io::Error),
    /// A part of the run panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

impl<O: RunObserver> Run<O> {
    /// Creates the spool in `folder`, with the first event in it.
    pub fn prepare(
        folder: &Path,
        header: &SpoolHeader,
        discovery: Discovery,
        observer: Arc<O>,
    ) -> Result<Self, RunError> {
        let mut spool = Spool::create(folder, header)?;
        let mut numbering = EventNumbering::new(header.run.clone());
        spool.append(&numbering.line("task", &active())?)?;
        Ok(Self { discovery, create: header.create.clone(), spool, numbering, observer })
    }

    /// Forgets the run. Its task, if there is one, gets no event.
    pub fn discard(self) {
        self.spool.discard();
    }

    /// Ends the task, which exists already, because the program cannot be started.
    pub async fn record_failed_start(
        mut self,
        error: &io::Error,
        exit_code: u8,
        patience: Duration,
    ) -> Result<SendOutcome, RunError> {
        self.spool.append(&self.numbering.line("terminal", &start_failed(error, exit_code))?)?;
        let written = self.spool.written();
        let (sender, spool, _) = self.into_sender(patience)?;
        let (outcome, _task) = sender.run_to_end(written).await;
        spool.discard();
        Ok(outcome)
    }

    /// Records what the program prints and how it ends, and passes signals and cancel requests on to it.
    ///
    /// Once it has ended, the daemon may be away for `patience`.
    pub async fn attend(
        self,
        mut child: RunnerChild,
        mut signals: Signals,
        patience: Duration,
    ) -> Result<RunReport, RunError> {
        let (discovery, observer) = (self.discovery.clone(), Arc::clone(&self.observer));
        let written = self.spool.written();
        let (sender, spool, numbering) = self.into_sender(patience)?;
        let (progress, progress_seen) =
            watch::channel(SpoolProgress { written, ..SpoolProgress::default() });
        let (task, task_seen) = watch::channel(None);
        let no_task = CancellationToken::new();
        let sending = tokio::spawn(send(sender, task, progress_seen, no_task.clone()));
        let announcing = tokio::spawn(announce(task_seen.clone(), Arc::clone(&observer)));

        let (frames, queue) = mpsc::channel(QUEUE);
        let (ended, end_seen) = watch::channel(false);
        let readers = spawn_readers(child.take_outputs(), frames, &observer, &end_seen);
        let recorder =
            FrameRecorder { spool, numbering, progress, observer: Arc::clone(&observer) };
        let recording = tokio::spawn(recorder.run(queue));

        let supervision = Supervision::new(child.group(), &*observer);
        let work = program_and_output(&mut child, ended, readers);
        let cancel = cancel_requested(discovery, task_seen);
        let supervised = supervision.watch(&mut signals, work, cancel, no_task.cancelled()).await;
        let exit = supervised.output.map_err(RunError::Wait)?;
        let mut recorder = recording.await?;
        let end = terminal(exit, supervised.cancelled);
        if let Err(error) = recorder.spool.append(&recorder.numbering.line("terminal", &end)?) {
            observer.notice(RunNotice::EndNotRecorded { problem: error.to_string() });
        }
        recorder.publish(true);
        let outcome = tokio::select! {
            outcome = sending => outcome?,
            never = abandon(&mut signals, &recorder.progress) => match never {},
        };
        announcing.abort();
        observer.ended(&end).await;
        let leftover = match outcome {
            SendOutcome::Complete | SendOutcome::NoTask(_) | SendOutcome::TaskClosed(_) => {
                recorder.spool.discard();
                None
            }
            SendOutcome::Refused(_) | SendOutcome::GaveUp(_) => {
                // The user is told that the rest is there.
                if let Err(error) = recorder.spool.sync() {
                    observer.notice(RunNotice::EndNotRecorded { problem: error.to_string() });
                }
                Some(recorder.spool.path().to_path_buf())
            }
        };
        Ok(RunReport { exit, outcome, leftover })
    }

    fn into_sender(
        self,
        patience: Duration,
    ) -> Result<(EventSender<O>, Spool, EventNumbering), SpoolError> {
        let Self { discovery, create, spool, numbering, observer } = self;
        let reader = spool.reader()?;
        let sender =
            EventSender { discovery, create, reader, patience, accept_begun: false, observer };
        Ok((sender, spool, numbering))
    }
}

/// Sends, and tells the others at once when the daemon takes no more before the end.
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

async fn announce<O: RunObserver>(
    mut task: watch::Receiver<Option<TaskDocument>>,
    observer: Arc<O>,
) {
    if let Some(task) = made(&mut task).await {
        observer.task_made(&task).await;
    }
}

/// Ends when someone asks for the task, once it is made, to stop.
async fn cancel_requested(discovery: Discovery, mut task: watch::Receiver<Option<TaskDocument>>) {
    match made(&mut task).await {
        Some(task) => CancelWatcher::new(discovery).requested(task.id()).await,
        None => std::future::pending().await,
    }
}

/// The task once it is made; `None` if it never will be.
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

/// A signal after the program has ended means: do not wait for the daemon.
async fn abandon(signals: &mut Signals, progress: &watch::Sender<SpoolProgress>) -> Infallible {
    loop {
        signals.next().await;
        progress.send_modify(|progress| progress.abandoned = true);
    }
}
