//! The socket of a connection, as hyper and the writer of streams hand it to each other.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a client may send ahead while it gets a stream, in bytes. More stays in the kernel.
const EARLY_BYTES: usize = 8 * 1024;

/// A socket, and what was read from it too early.
#[derive(Debug)]
pub(super) struct ClientSocket<S> {
    socket: S,
    early: BytesMut,
    /// Whether everything that was written to this has been flushed.
    is_flushed: Arc<AtomicBool>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientSocket<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, early: BytesMut::new(), is_flushed: Arc::new(AtomicBool::new(true)) }
    }

    /// Tells whether hyper has written all that it had: it flushes its socket when its own buffer is empty.
    pub(super) fn flushed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_flushed)
    }

    /// Puts back what was read and not used.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut all = BytesMut::from(bytes);
            all.extend_from_slice(&self.early);
            self.early = all;
        }
    }

    /// Looks whether the client is still there: an error if it is gone. What it says ahead is kept.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut space = [0; 512];
        while self.early.len() < EARLY_BYTES {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer)) {
                Ok(()) if buffer.filled().is_empty() => {
                    return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(()) => self.early.extend_from_slice(buffer.filled()),
                Err(error) => return Poll::Ready(error),
            }
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientSocket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, buffer);
        }
        let len = this.early.len().min(buffer.remaining());
        buffer.put_slice(&this.early[..len]);
        this.early.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientSocket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_flushed.store(false, Relaxed);
        Pin::new(&mut this.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_flushed.store(false, Relaxed);
        Pin::new(&mut this.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.socket).poll_flush(cx))?;
        this.is_flushed.store(true, Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
