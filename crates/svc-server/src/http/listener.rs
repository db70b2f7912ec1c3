//! Where connections come from: TCP, and the Unix socket in the data folder.

use std::{io, net::SocketAddr, sync::Arc};

use http::Extensions;
use rustix::net::sockopt;
use svc_model::{LocalProcess, limits};
use svc_sys::{process_list::ProcessEntry, telemetry};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use super::client_connection::ClientConnection;

/// Something that accepts connections.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and by which way it came.
    fn next(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Transport)>> + Send;
}

/// By which way a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp {
        /// The address of ours.
        to: SocketAddr,
        /// The client's.
        from: SocketAddr,
    },
    /// The Unix socket, from this process.
    Local(LocalProcess),
}

/// The address of ours that a request over TCP was sent to: an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalAddress(pub(super) SocketAddr);

/// The address that a request over TCP came from: an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress(pub(super) SocketAddr);

/// The connection that a request came by: an extension of the request.
#[derive(Debug, Clone)]
pub(super) struct Connection(pub(super) Arc<ClientConnection>);

impl Transport {
    /// Adds what handlers may ask for: [`LocalProcess`], or [`LocalAddress`] and [`ClientAddress`].
    pub(super) fn describe(self, extensions: &mut Extensions) {
        match self {
            Self::Tcp { to, from } => {
                extensions.insert(LocalAddress(to));
                extensions.insert(ClientAddress(from));
            }
            Self::Local(process) => drop(extensions.insert(process)),
        }
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&mut self) -> io::Result<(TcpStream, Transport)> {
        loop {
            let (stream, from) = self.accept().await?;
            // A client that is gone already has no address.
            let Ok(to) = stream.local_addr() else { continue };
            // An answer is written at once: with Nagle's algorithm a small one waits for the
            // client's acknowledgement.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(error = telemetry::chain(&error), "cannot set TCP_NODELAY");
            }
            // The system would keep megabytes for a reader that takes nothing, and would say for
            // long that it took something.
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

    /// The next connection of a process of the daemon's own user. Others are closed unanswered.
    async fn next(&mut self) -> io::Result<(UnixStream, Transport)> {
        let user = rustix::process::geteuid().as_raw();
        loop {
            let (stream, _) = self.accept().await?;
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == user => {
                    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
                    // Now, as its id may be another's by the first request.
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
