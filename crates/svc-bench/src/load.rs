//! The measured server and requests to it: connections that send a request, wait for the response
//! and repeat; and blocking calls, for single requests and for publishers.
//!
//! The load runs on one thread with raw sockets and prepared requests. Generator and server share
//! the machine, so the server lacks the generator's CPU time; this affects every contender equally.

use std::{
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
};

use super::{
    report::{Slice, Window},
    wire::{self, BadAnswer},
};

/// Returns the length of the response at the start of the bytes; `None` if it is incomplete.
pub(crate) type Parse = fn(&[u8]) -> Result<Option<usize>, BadAnswer>;

#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    /// The greeting, if the protocol has one, and the end of the server's response to it.
    pub(crate) hello: Option<(Vec<u8>, &'static [u8])>,
    pub(crate) parse: Parse,
}

impl Protocol {
    pub(crate) const HTTP: Self = Self { hello: None, parse: wire::http_answer };
}

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

/// A runtime of one thread, for load.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

#[derive(Debug)]
pub(crate) struct Load {
    connections: Vec<Connection>,
}

impl Load {
    /// Opens `count` connections; `speech(n)` returns the greeting and the requests of connection
    /// `n`.
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
                // The daemon keeps at most 64 connections without a credential. The first request
                // has the credential.
                connection.ask().await?;
            }
            connections.push(connection);
        }
        Ok(Self { connections })
    }

    /// Sends load on all connections. Counts the responses within the window.
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

#[derive(Debug)]
pub(crate) struct Caller {
    socket: std::net::TcpStream,
    protocol: Protocol,
    buffer: Vec<u8>,
    /// Responses that have not been read yet.
    pub(crate) pending: usize,
}

impl Caller {
    pub(crate) fn open(address: SocketAddr, protocol: &Protocol) -> anyhow::Result<Self> {
        let socket = std::net::TcpStream::connect(address)?;
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

    pub(crate) fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(request)?;
        self.pending += 1;
        Ok(())
    }

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

    pub(crate) fn ask(&mut self, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        self.send(request)?;
        self.receive()
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let mut piece = [0; 16 * 1024];
        self.buffer.extend_from_slice(read_some(&mut self.socket, &mut piece)?);
        Ok(())
    }
}

/// The next bytes of a connection. Fails if the connection ends.
pub(crate) fn read_some<'a>(
    socket: &mut std::net::TcpStream,
    buffer: &'a mut [u8],
) -> anyhow::Result<&'a [u8]> {
    loop {
        match socket.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            got => {
                let got = got?;
                anyhow::ensure!(got > 0, "the connection ended early");
                return Ok(&buffer[..got]);
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The operator's token, if the server needs one.
    pub(crate) token: Option<String>,
}

/// A tool call without a session.
pub(crate) fn tool_call(name: &str, arguments: &Value) -> String {
    let params = json!({ "name": name, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

impl Target {
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        self.request_with(method, path, &[], body)
    }

    pub(crate) fn request_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Vec<u8> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for (name, value) in headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        if let Some(token) = &self.token {
            text.push_str("authorization: Bearer ");
            text.push_str(token);
            text.push_str("\r\n");
        }
        if method == "POST" {
            text.push_str("content-type: application/json\r\ncontent-length: ");
            text.push_str(&body.len().to_string());
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.push_str(body);
        text.into_bytes()
    }

    /// Sends one request on a new connection and waits for the response.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let answer = self.ask(&self.request(method, path, body));
        let answer = answer.with_context(|| format!("{method} {path}"))?;
        Ok(serde_json::from_slice(wire::body(&answer))?)
    }

    /// Sends a request on a new connection; returns the response including its head.
    pub(crate) fn ask(&self, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        Caller::open(self.address, &Protocol::HTTP)?.ask(request)
    }
}
