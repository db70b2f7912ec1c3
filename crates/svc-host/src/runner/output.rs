//! From the program's pipes to the spool.

use std::sync::Arc;
use std::time::Duration;

use svc_model::FrameKind;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::event::{EventNumbering, OutputFrame, timestamp};
use super::lines::OutputLines;
use super::observer::{RunNotice, RunObserver};
use super::sender::SpoolProgress;
use super::spool::Spool;

/// How long a pipe of a program that has ended may stay open in silence: a process in the background holds it.
const LINGER: Duration = Duration::from_secs(2);
/// Lines between the pipes and the spool.
pub(super) const QUEUE: usize = 256;
/// Bytes read from a pipe at once.
const BLOCK: usize = 64 * 1024;

/// Reads one pipe.
#[derive(Debug)]
pub(super) struct PipeReader<O> {
    pub(super) kind: FrameKind,
    pub(super) frames: mpsc::Sender<OutputFrame>,
    pub(super) observer: Arc<O>,
    /// Whether the program has ended.
    pub(super) ended: watch::Receiver<bool>,
}

impl<O: RunObserver> PipeReader<O> {
    /// Reads to the end of the pipe, or until it is silent after the program has ended.
    pub(super) async fn run(mut self, mut pipe: impl AsyncRead + Unpin + Send) {
        let (mut splitter, mut lines) = (OutputLines::default(), Vec::new());
        let mut block = vec![0; BLOCK];
        loop {
            let count = tokio::select! {
                biased;
                count = pipe.read(&mut block) => count.unwrap_or(0),
                () = silence(&mut self.ended) => 0,
            };
            if count == 0 {
                splitter.finish(&mut lines);
            } else {
                splitter.push(&block[..count], &mut lines);
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

/// Writes frames to the spool.
#[derive(Debug)]
pub(super) struct FrameRecorder<O> {
    pub(super) spool: Spool,
    pub(super) numbering: EventNumbering,
    pub(super) progress: watch::Sender<SpoolProgress>,
    pub(super) observer: Arc<O>,
}

impl<O: RunObserver> FrameRecorder<O> {
    /// Writes until every pipe is at its end, as many frames at once as there are.
    pub(super) async fn run(mut self, mut frames: mpsc::Receiver<OutputFrame>) -> Self {
        let mut batch = Vec::with_capacity(QUEUE);
        let mut has_failed = false;
        while frames.recv_many(&mut batch, QUEUE).await > 0 {
            let mut lines = Vec::new();
            for frame in &batch {
                lines.extend(self.numbering.line("frame", frame).unwrap_or_default());
            }
            match self.spool.append(&lines) {
                Ok(()) => self.publish(false),
                // The program goes on, and one notice is enough.
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    let problem = error.to_string();
                    self.observer.notice(RunNotice::SpoolFailed { problem });
                }
                Err(_) => {}
            }
            for frame in batch.drain(..) {
                self.observer.frame_recorded(&frame).await;
            }
        }
        self
    }

    /// Tells the sender how far the spool is.
    pub(super) fn publish(&self, finished: bool) {
        self.progress.send_modify(|progress| {
            (progress.written, progress.finished) = (self.spool.written(), finished);
        });
    }
}
