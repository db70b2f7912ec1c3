//! The socket of a client, as hyper reads and writes it. The connection ends if the client takes no
//! byte for too long while bytes wait for it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::client_connection::ClientConnection;

/// A socket with the write timeout of its client.
#[derive(Debug)]
pub(super) struct ClientIo<S> {
    socket: S,
    client: Arc<ClientConnection>,
    patience: Duration,
    /// Runs while the system takes no bytes. When it expires, the connection ends.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> ClientIo<S> {
    pub(super) fn new(socket: S, client: Arc<ClientConnection>, patience: Duration) -> Self {
        Self { socket, client, patience, stalled: None }
    }

    /// The result of a write, or a timeout if the client has taken nothing for too long.
    fn note(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.client.wrote();
            if self.stalled.take().is_some() {
                self.client.set_stalled(false);
            }
            return written;
        }
        let patience = self.patience;
        let alarm = self.stalled.get_or_insert_with(|| {
            self.client.set_stalled(true);
            Box::pin(tokio::time::sleep(patience))
        });
        ready!(alarm.as_mut().poll(cx));
        tracing::info!(
            seconds = patience.as_secs_f32(),
            "closing the connection of a client that reads nothing"
        );
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.socket).poll_read(cx, buffer);
        match &read {
            Poll::Pending => this.client.waits_for_client(),
            Poll::Ready(_) => this.client.heard(),
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(cx, bytes);
        this.note(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, slices);
        this.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn write_times_out_for_a_stalled_client_but_not_a_slow_one() {
        let (ours, mut theirs) = duplex(16);
        let mut io = ClientIo::new(ours, Arc::default(), Duration::from_hours(1));
        for _ in 0..64 {
            io.write_all(&[0; 16]).await.unwrap();
            assert!(io.write_all(&[0]).now_or_never().is_none(), "there is no room");
            assert!(io.stalled.is_some());
            theirs.read_exact(&mut [0; 16]).await.unwrap();
            io.write_all(&[0]).await.unwrap();
            // Each byte that is taken restarts the timeout, and with nothing to write there is no
            // timeout.
            assert!(io.stalled.is_none());
            theirs.read_u8().await.unwrap();
        }
        io.patience = Duration::from_millis(20);
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
