//! The load: connections that send a request, wait for the response, and repeat.
//!
//! One thread, raw sockets, prepared requests. Generator and server share the machine, so the
//! generator's CPU time is missing for the server, equally for every contender.

use std::{io, net::SocketAddr, sync::Arc, time::Instant};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
};

use crate::{
    stats::{Slice, Window},
    wire::{self, BadAnswer},
};

/// The length of the response at the start of the bytes, once it is complete.
pub(crate) type Parse = fn(&[u8]) -> Result<Option<usize>, BadAnswer>;

/// A protocol of requests and responses.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    /// The greeting, if there is one, and the end of the server's response to it.
    pub(crate) hello: Option<(Vec<u8>, &'static [u8])>,
    /// Finds the end of a response.
    pub(crate) parse: Parse,
}

impl Protocol {
    pub(crate) const HTTP: Self = Self { hello: None, parse: wire::http_answer };
}

/// A connection that repeats a request.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    parse: Parse,
    requests: Arc<[Vec<u8>]>,
    next: usize,
    buffer: Box<[u8]>,
    filled: usize,
}

impl Connection {
    /// Connects and sends the protocol's greeting.
    pub(crate) async fn open(
        address: SocketAddr,
        protocol: &Protocol,
        requests: Arc<[Vec<u8>]>,
    ) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let mut connection = Self {
            socket,
            parse: protocol.parse,
            requests,
            next: 0,
            buffer: vec![0; 16 * 1024].into(),
            filled: 0,
        };
        if let Some((hello, welcome)) = &protocol.hello {
            connection.greet(hello, welcome).await.context("the server's welcome")?;
        }
        Ok(connection)
    }

    async fn greet(&mut self, hello: &[u8], welcome: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(hello).await?;
        while !self.buffer[..self.filled].ends_with(welcome) {
            self.fill().await?;
        }
        self.filled = 0;
        Ok(())
    }

    /// Sends the next request and waits for its response.
    pub(crate) async fn ask(&mut self) -> anyhow::Result<()> {
        let request = &self.requests[self.next];
        self.socket.write_all(request).await?;
        self.next = (self.next + 1) % self.requests.len();
        loop {
            self.fill().await?;
            if let Some(end) = (self.parse)(&self.buffer[..self.filled])? {
                self.buffer.copy_within(end..self.filled, 0);
                self.filled -= end;
                return Ok(());
            }
        }
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(self.filled < self.buffer.len(), "an answer is too long");
        let got = self.socket.read(&mut self.buffer[self.filled..]).await?;
        if got == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.filled += got;
        Ok(())
    }
}

/// A runtime for load: one thread.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Connections that load a server together.
#[derive(Debug)]
pub(crate) struct Load {
    connections: Vec<Connection>,
}

impl Load {
    /// Connects `count` times; `speech(n)` gives the greeting and the requests of connection `n`.
    pub(crate) async fn open(
        address: SocketAddr,
        count: usize,
        speech: impl Fn(usize) -> (Protocol, Vec<Vec<u8>>) + Send,
    ) -> anyhow::Result<Self> {
        let mut connections = Vec::with_capacity(count);
        for number in 0..count {
            let (protocol, requests) = speech(number);
            let mut connection = Connection::open(address, &protocol, requests.into()).await?;
            if protocol.hello.is_none() {
                // The daemon keeps at most 64 connections that have shown no credential. The first
                // request shows it.
                connection.ask().await?;
            }
            connections.push(connection);
        }
        Ok(Self { connections })
    }

    /// Loads the server on all connections. Counts the responses within the window.
    pub(crate) async fn run(&mut self, window: Window) -> anyhow::Result<Slice> {
        let mut tasks = JoinSet::new();
        for connection in self.connections.drain(..) {
            tasks.spawn(drive(connection, window));
        }
        let mut slice = Slice { length: window.length(), ..Slice::default() };
        while let Some(done) = tasks.join_next().await {
            let (connection, part) = done.context("a producer panicked")??;
            self.connections.push(connection);
            slice.join(part);
        }
        Ok(slice)
    }
}

async fn drive(mut connection: Connection, window: Window) -> anyhow::Result<(Connection, Slice)> {
    let mut slice = Slice::default();
    let mut asked = Instant::now();
    loop {
        connection.ask().await?;
        let now = Instant::now();
        if now >= window.until {
            return Ok((connection, slice));
        }
        if now >= window.from {
            slice.add(now - asked);
        }
        asked = now;
    }
}
