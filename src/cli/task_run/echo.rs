//! What the command prints, on our own outputs too.

use tokio::io::{AsyncWriteExt as _, Stderr, Stdout};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::runner::Pipe;

/// Our outputs. One that is closed, or whose reader sleeps when we are told to end, is not written to again.
#[derive(Debug)]
pub(super) struct Echo {
    out: Mutex<Option<Stdout>>,
    err: Mutex<Option<Stderr>>,
    off: CancellationToken,
}

impl Echo {
    /// Both outputs, until `off`.
    pub(super) fn new(off: CancellationToken) -> Self {
        Self {
            out: Mutex::new(Some(tokio::io::stdout())),
            err: Mutex::new(Some(tokio::io::stderr())),
            off,
        }
    }

    /// Writes the bytes as they are, and waits until they are written.
    pub(super) async fn write(&self, pipe: Pipe, bytes: &[u8]) {
        match pipe {
            Pipe::Stdout => self.copy(&mut *self.out.lock().await, bytes).await,
            Pipe::Stderr => self.copy(&mut *self.err.lock().await, bytes).await,
        }
    }

    async fn copy<W: tokio::io::AsyncWrite + Unpin + Send>(
        &self,
        output: &mut Option<W>,
        bytes: &[u8],
    ) {
        let Some(writer) = output else { return };
        let work = async {
            writer.write_all(bytes).await?;
            writer.flush().await
        };
        let written = tokio::select! {
            written = work => written.is_ok(),
            () = self.off.cancelled() => false,
        };
        if !written {
            *output = None;
        }
    }
}
