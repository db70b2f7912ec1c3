//! Listeners: TCP, and the Unix socket in the data folder.

use std::{io, net::SocketAddr, sync::Arc};

use http::Extensions;
use rustix::net::sockopt;
use svc_core::service::process::RequestSender;
use svc_model::{LocalProcess, limits};
use svc_sys::{process_list::ProcessEntry, telemetry};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use super::client_connection::ClientConnection;

/// A source of connections.
pub trait Listener: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection and its transport.
    fn next(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Transport)>> + Send;
}

/// How a request reached the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp {
        /// The daemon's address.
        to: SocketAddr,
        /// The client's address.
        from: SocketAddr,
    },
    /// The Unix socket, from this process.
    Local(LocalProcess),
}

/// The daemon's address that a request over TCP reached, as an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalAddress(pub(super) SocketAddr);

/// The client's address of a request over TCP, as an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress(pub(super) SocketAddr);

/// The connection of a request, as an extension of the request.
#[derive(Debug, Clone)]
pub(super) struct Connection(pub(super) Arc<ClientConnection>);

impl Transport {
    /// Adds the extensions for handlers: [`RequestSender`], and [`LocalProcess`], or
    /// [`LocalAddress`] and [`ClientAddress`].
    pub(super) fn describe(self, extensions: &mut Extensions) {
        match self {
            Self::Tcp { to, from } => {
                extensions.insert(RequestSender::Tcp { from, to });
                extensions.insert(LocalAddress(to));
                extensions.insert(ClientAddress(from));
            }
            Self::Local(process) => {
                extensions.insert(RequestSender::Local(process.pid));
                extensions.insert(process);
            }
        }
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&mut self) -> io::Result<(TcpStream, Transport)> {
        loop {
            let (stream, from) = self.accept().await?;
            // A client that has disconnected has no address.
            let Ok(to) = stream.local_addr() else { continue };
            // With Nagle's algorithm a small response would wait for the client's acknowledgement.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(error = telemetry::chain(&error), "cannot set TCP_NODELAY");
            }
            // By default the system buffers megabytes for a client that reads nothing, so a stalled
            // client would be noticed late.
            let bytes = limits::SEND_BUFFER_BYTES;
            if let Err(error) = sockopt::set_socket_send_buffer_size(&stream, bytes) {
                tracing::debug!(error = telemetry::chain(&error), "cannot set SO_SNDBUF");
            }
            return Ok((stream, Transport::Tcp { to, from }));
        }
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    /// The next connection of a process of the daemon's own user. Others are closed without a
    /// response.
    async fn next(&mut self) -> io::Result<(UnixStream, Transport)> {
        let user = rustix::process::geteuid().as_raw();
        loop {
            let (stream, _) = self.accept().await?;
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == user => {
                    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
                    // Read now: by the first request the pid may belong to another process.
                    let started = pid.and_then(ProcessEntry::read).map(|entry| entry.started);
                    let process = LocalProcess { uid: user, pid, started };
                    return Ok((stream, Transport::Local(process)));
                }
                Ok(peer) => {
                    tracing::warn!(uid = peer.uid(), pid = peer.pid(), "another user's process");
                }
                Err(error) => {
                    tracing::warn!(error = telemetry::chain(&error), "an unknown process");
                }
            }
        }
    }
}
