//! Standard input and output as lines, one JSON document each.

use svc_sys::lines::LineReader;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::super::output;

/// Longest line, in bytes: the largest body that the daemon accepts.
pub(super) const MAX_LINE: usize = 4 * 1024 * 1024;
/// Capacity of the queue of lines for the client. Exchanges wait while it is full, so memory stays
/// bounded.
const QUEUE: usize = 64;
/// Bytes for one read.
const BLOCK: usize = 64 * 1024;

pub(super) fn of_client<R: AsyncRead + Unpin>(input: R) -> LineReader<R> {
    LineReader::new(input, BLOCK, MAX_LINE)
}

/// Writes whole lines. Cheap to clone; the writer ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct LineWriter(mpsc::Sender<String>);

impl LineWriter {
    /// Standard output, and the task that writes to it. The task ends early if standard output is
    /// closed.
    pub(super) fn stdout() -> (Self, JoinHandle<anyhow::Result<()>>) {
        let (sender, mut lines) = mpsc::channel::<String>(QUEUE);
        let writing = spawn_blocking(move || {
            while let Some(line) = lines.blocking_recv() {
                output::exact(format!("{line}\n").as_bytes())?;
            }
            Ok(())
        });
        (Self(sender), writing)
    }

    /// Writes one message, which contains no line break.
    pub(super) async fn send(&self, message: String) {
        debug_assert!(!message.contains('\n'), "one message is one line");
        // Fails if standard output is closed, which ends the bridge.
        self.0.send(message).await.ok();
    }
}
