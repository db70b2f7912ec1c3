//! Prints a run: the command's bytes or, with `--json`, its events; notices on standard error.
//!
//! The bytes are not sanitised: the command is the person's own, and without svc it would write
//! them to the same terminal.

use serde_json::{Value, json};
use svc_host::runner::{OutputFrame, RunNotice, RunObserver, TaskDocument};
use svc_model::FrameKind;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr, Stdout};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::super::{output, terminal};

/// Prints a run. After an output was closed it is not written to again.
#[derive(Debug)]
pub(super) struct RunPrinter {
    mode: PrintMode,
    stdout: Mutex<Option<Stdout>>,
    stderr: Mutex<Option<Stderr>>,
    muted: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrintMode {
    /// The command's output, and the task's id on standard error.
    Announced,
    /// The command's output.
    Quiet,
    /// Events, one per line.
    Json,
}

impl RunPrinter {
    pub(super) fn new(mode: PrintMode) -> Self {
        Self {
            mode,
            stdout: Mutex::new(Some(tokio::io::stdout())),
            stderr: Mutex::new(Some(tokio::io::stderr())),
            muted: CancellationToken::new(),
        }
    }

    async fn json(&self, kind: &str, data: impl serde::Serialize) {
        if self.mode == PrintMode::Json {
            let line = json!({ "kind": kind, "data": data }).to_string();
            let line = format!("{}\n", terminal::json(&line));
            self.copy(&self.stdout, line.as_bytes()).await;
        }
    }

    /// Writes the bytes unchanged, and waits until they are written.
    async fn copy<W>(&self, output: &Mutex<Option<W>>, bytes: &[u8])
    where
        W: AsyncWrite + Unpin + Send,
    {
        let mut output = output.lock().await;
        let Some(writer) = &mut *output else { return };
        let work = async {
            writer.write_all(bytes).await?;
            writer.flush().await
        };
        let written = tokio::select! {
            written = work => written.is_ok(),
            () = self.muted.cancelled() => false,
        };
        if !written {
            *output = None;
        }
    }
}

impl RunObserver for RunPrinter {
    async fn output(&self, pipe: FrameKind, bytes: &[u8]) {
        if self.mode == PrintMode::Json {
            return;
        }
        match pipe {
            FrameKind::Stdout => self.copy(&self.stdout, bytes).await,
            FrameKind::Stderr => self.copy(&self.stderr, bytes).await,
        }
    }

    async fn task_made(&self, task: &TaskDocument) {
        if self.mode == PrintMode::Announced {
            output::note(&format!("svc: task {}", task.id()));
        }
        self.json("task", &task.0).await;
    }

    async fn frame_recorded(&self, frame: &OutputFrame) {
        self.json("frame", frame).await;
    }

    async fn ended(&self, end: &Value) {
        self.json("terminal", end).await;
    }

    fn mute(&self) {
        self.muted.cancel();
    }

    fn notice(&self, notice: RunNotice) {
        output::note(&format!("svc: {}", sentence(notice)));
    }
}

fn sentence(notice: RunNotice) -> String {
    match notice {
        RunNotice::DaemonAway { problem } => {
            let problem = problem.unwrap_or_else(|| "the daemon is away".to_owned());
            format!("{problem}; the output is kept until the daemon accepts it")
        }
        RunNotice::DaemonBack => "the daemon is back".to_owned(),
        RunNotice::TaskRefused { problem } => {
            format!(
                "the daemon accepts no more output of this task: {problem}; the command keeps running"
            )
        }
        RunNotice::SpoolFailed { problem } => {
            format!("{problem}; the task misses output, but the command keeps running")
        }
        RunNotice::EndNotRecorded { problem } => {
            format!("{problem}; the task's end is not recorded")
        }
        RunNotice::NeedsTerminal => {
            "the command waits for the terminal, which a task does not have; \
             give it its input by a pipe, or </dev/null"
                .to_owned()
        }
    }
}
