//! A blocking connection, for single requests and for publishers, which have threads of their own
//! so that the subscribers' work does not delay them.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::Context as _;

use crate::load::Protocol;

#[derive(Debug)]
pub(crate) struct Caller {
    socket: TcpStream,
    protocol: Protocol,
    buffer: Vec<u8>,
    /// Responses that were not read yet.
    pub(crate) pending: usize,
}

impl Caller {
    /// Connects and sends the protocol's greeting.
    pub(crate) fn open(address: SocketAddr, protocol: &Protocol) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut caller =
            Self { socket, protocol: protocol.clone(), buffer: Vec::new(), pending: 0 };
        if let Some((hello, welcome)) = protocol.hello.clone() {
            caller.socket.write_all(&hello)?;
            while !caller.buffer.ends_with(welcome) {
                caller.fill().context("the server's welcome")?;
            }
            caller.buffer.clear();
        }
        Ok(caller)
    }

    /// Sends a request without waiting for its response.
    pub(crate) fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(request)?;
        self.pending += 1;
        Ok(())
    }

    /// Waits for a response to an earlier request.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            if let Some(end) = (self.protocol.parse)(&self.buffer)? {
                self.pending = self.pending.saturating_sub(1);
                let rest = self.buffer.split_off(end);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            self.fill()?;
        }
    }

    /// Sends a request and waits for its response.
    pub(crate) fn ask(&mut self, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        self.send(request)?;
        self.receive()
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let mut piece = [0; 16 * 1024];
        let got = loop {
            match self.socket.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => break got?,
            }
        };
        anyhow::ensure!(got > 0, "the connection ended early");
        self.buffer.extend_from_slice(&piece[..got]);
        Ok(())
    }
}
