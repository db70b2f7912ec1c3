//! Standard input and output as lines, one JSON document each.

use svc_sys::lines::LineReader;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::super::output;

/// Longest line that is taken, in bytes: the daemon takes no larger body.
pub(super) const MAX_LINE: usize = 4 * 1024 * 1024;
/// Lines that wait for the client. When the queue is full the exchanges wait, so memory stays
/// bounded.
const QUEUE: usize = 64;
/// Bytes read at once.
const BLOCK: usize = 64 * 1024;

/// The lines of a client.
pub(super) fn of_client<R: AsyncRead + Unpin>(input: R) -> LineReader<R> {
    LineReader::new(input, BLOCK, MAX_LINE)
}

/// Writes lines, each whole. Cheap to clone; the writing ends when the last clone is gone.
#[derive(Debug, Clone)]
pub(super) struct LineWriter(mpsc::Sender<String>);

impl LineWriter {
    /// Standard output, and the task that writes to it. The task ends early if nobody reads.
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

    /// Writes one message, which has no line break in it.
    pub(super) async fn send(&self, message: String) {
        debug_assert!(!message.contains('\n'), "one message is one line");
        // Fails when nobody reads any more, and then the whole bridge ends.
        self.0.send(message).await.ok();
    }
}
