//! Writes a stream of events to its socket.
//!
//! Hyper keeps the buffers of a connection for whatever request comes next, and copies what it is about to write. A
//! subscriber may be idle for days, and there are many: it holds a socket and a cursor. So the connection is taken from
//! hyper for as long as it carries a stream. What is ready goes out in one system call.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{body::Body, response::Response};
use bytes::{Buf as _, Bytes};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    client_socket::ClientSocket,
    response_head::{BodyLength, response_head},
};
use crate::domain::Timestamp;

/// Bytes that are gathered for one system call.
const GATHER_BYTES: usize = 64 * 1024;
/// Pieces that one system call takes.
const SLICES: usize = 48;
/// A chunk up to this length is copied into one piece with its length and its end.
const SMALL_CHUNK: usize = 4 * 1024;

/// A response whose body goes on, as it is written.
#[derive(Debug)]
pub(super) struct StreamWriter<S> {
    socket: ClientSocket<S>,
    body: Body,
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
    /// The body has ended, and its end is pending or written.
    is_over: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamWriter<S> {
    /// For a response to a request of HTTP/1.1. `closes` is whether the connection ends with it.
    pub(super) fn new(
        socket: ClientSocket<S>,
        response: Response,
        now: Timestamp,
        closes: bool,
    ) -> Self {
        let (parts, body) = response.into_parts();
        let head = Bytes::from(response_head(&parts, now, BodyLength::Chunked, closes));
        let pending_bytes = head.len();
        Self { socket, body, pending: VecDeque::from([head]), pending_bytes, is_over: false }
    }

    /// Writes to the end of the body and gives the socket back. An error says that the client is gone, or that the body
    /// broke off, which the client sees by the missing end.
    pub(super) async fn run(mut self) -> io::Result<ClientSocket<S>> {
        poll_fn(|cx| self.poll(cx)).await?;
        Ok(self.socket)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.gather(cx)?;
            if !self.pending.is_empty() {
                ready!(self.poll_write(cx))?;
            } else if self.is_over {
                return Pin::new(&mut self.socket).poll_flush(cx);
            } else {
                return self.socket.poll_gone(cx).map(Err);
            }
        }
    }

    /// Takes from the body what is ready.
    fn gather(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.is_over
            && self.pending_bytes < GATHER_BYTES
            && self.pending.len() + 3 <= SLICES
            && let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx)
        {
            match frame.transpose().map_err(io::Error::other)? {
                None => {
                    self.is_over = true;
                    self.push(Bytes::from_static(b"0\r\n\r\n"));
                }
                Some(frame) => {
                    // Trailers there are none.
                    let Ok(data) = frame.into_data() else { continue };
                    self.push_chunk(data);
                }
            }
        }
        Ok(())
    }

    fn push_chunk(&mut self, data: Bytes) {
        if data.is_empty() {
            // Would be the end.
            return;
        }
        let head = format!("{:x}\r\n", data.len());
        if data.len() <= SMALL_CHUNK {
            self.push(Bytes::from([head.as_bytes(), &data, b"\r\n"].concat()));
        } else {
            self.push(Bytes::from(head));
            self.push(data);
            self.push(Bytes::from_static(b"\r\n"));
        }
    }

    fn push(&mut self, piece: Bytes) {
        self.pending_bytes += piece.len();
        self.pending.push_back(piece);
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pending) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let socket = Pin::new(&mut self.socket);
        let mut written = match count {
            1 => ready!(socket.poll_write(cx, &self.pending[0]))?,
            _ => ready!(socket.poll_write_vectored(cx, &slices[..count]))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.pending_bytes -= written;
        while written > 0
            && let Some(piece) = self.pending.front_mut()
        {
            let taken = piece.len().min(written);
            piece.advance(taken);
            written -= taken;
            if piece.is_empty() {
                self.pending.pop_front();
            }
        }
        if self.pending.is_empty() && self.pending.capacity() > 4 {
            // What a burst took is not kept by who is idle.
            self.pending = VecDeque::new();
        }
        Poll::Ready(Ok(()))
    }
}
