//! A small blocking HTTP/1.1 and SSE client that sends exactly the given bytes.
//!
//! A client library would repair the requests that these tests must send broken, and would hide
//! when headers arrive, how a body ends, and whether a stream was closed or cut.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a read may stay silent before the test fails: longer than any response on a busy
/// machine whose disk stalls for a while.
pub(crate) const MAX_WAIT: Duration = Duration::from_mins(1);

/// The caller: an address and, usually, a token.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) addr: SocketAddr,
    pub(crate) token: Option<String>,
}

pub(crate) fn tool_call(name: &str, arguments: &Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
}

impl Caller {
    /// The same daemon with another token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { addr: self.addr, token: Some(token.to_owned()) }
    }

    /// The same daemon without a token.
    pub(crate) fn stranger(&self) -> Self {
        Self { addr: self.addr, token: None }
    }

    pub(crate) fn request(&self, method: &str, target: &str) -> Request {
        let request = Request {
            addr: self.addr,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
        .header("Host", &self.addr.to_string())
        .header("Connection", "close");
        match &self.token {
            Some(token) => request.header("Authorization", &format!("Bearer {token}")),
            None => request,
        }
    }

    #[track_caller]
    pub(crate) fn get(&self, target: &str) -> Reply {
        self.request("GET", target).send()
    }

    #[track_caller]
    pub(crate) fn delete(&self, target: &str) -> Reply {
        self.request("DELETE", target).send()
    }

    #[track_caller]
    pub(crate) fn post(&self, target: &str, body: &Value) -> Reply {
        self.request("POST", target).json(body).send()
    }

    /// The result of a bare call of a tool.
    #[track_caller]
    pub(crate) fn tool(&self, name: &str, arguments: &Value) -> Value {
        self.post("/mcp", &tool_call(name, arguments)).answer()["result"].clone()
    }

    /// The structured result of a bare call of a tool, which must succeed.
    #[track_caller]
    pub(crate) fn done(&self, name: &str, arguments: &Value) -> Value {
        let result = self.tool(name, arguments);
        assert_ne!(result["isError"], true, "{name} {arguments}: {result}");
        result["structuredContent"].clone()
    }

    /// Opens a stream that must be granted.
    #[track_caller]
    pub(crate) fn follow(&self, target: &str) -> Sse {
        self.follow_after(target, None)
    }

    /// Opens a stream that must be granted, with a `Last-Event-ID` if there is one.
    #[track_caller]
    pub(crate) fn follow_after(&self, target: &str, last: Option<&str>) -> Sse {
        let opened = self.try_follow(target, last).expect("the stream opens");
        match opened {
            Ok(sse) => sse,
            Err(reply) => panic!("the stream {target} was refused: {reply:?}"),
        }
    }

    /// Opens a stream; the inner error is a response that is no stream.
    pub(crate) fn try_follow(
        &self,
        target: &str,
        last: Option<&str>,
    ) -> io::Result<Result<Sse, Reply>> {
        let mut request = self.request("GET", target).header("Accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        request.follow()
    }
}

/// A request on its own connection. Only the body's length is added to it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    addr: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// Adds a header, also a second one of the same name.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        let length = self.body.len().to_string();
        self.header("Content-Length", &length)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json").body(body.to_string())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    #[track_caller]
    pub(crate) fn send(&self) -> Reply {
        match self.try_send() {
            Ok(reply) => reply,
            Err(error) => panic!("{} {} got no answer: {error}", self.method, self.target),
        }
    }

    pub(crate) fn try_send(&self) -> io::Result<Reply> {
        exchange(self.addr, &self.bytes())
    }

    /// Opens a stream; the inner error is a response that is no stream.
    pub(crate) fn follow(&self) -> io::Result<Result<Sse, Reply>> {
        let mut wire = connect(self.addr)?;
        wire.get_mut().write_all(&self.bytes())?;
        let head = Head::read(&mut wire)?;
        if head.status == 200 {
            Ok(Ok(Sse { lines: BufReader::new(Body::new(&head, wire)), head }))
        } else {
            Reply::read(head, &mut wire).map(Err)
        }
    }
}

/// Sends raw bytes on a connection of their own and reads one response.
pub(crate) fn exchange(addr: SocketAddr, bytes: &[u8]) -> io::Result<Reply> {
    let mut conn = Conn::open(addr)?;
    // A server may respond and close before it has read everything (413): the response counts.
    let sent = conn.write(bytes);
    match conn.reply() {
        Ok(reply) => Ok(reply),
        Err(error) => Err(sent.err().unwrap_or(error)),
    }
}

fn connect(addr: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&addr, MAX_WAIT)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.set_write_timeout(Some(MAX_WAIT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// A connection that stays open between requests, for callers that send many, or half of one.
pub(crate) struct Conn {
    wire: BufReader<TcpStream>,
}

impl Conn {
    pub(crate) fn open(addr: SocketAddr) -> io::Result<Self> {
        connect(addr).map(|wire| Self { wire })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.get_mut().write_all(bytes)
    }

    /// Status and headers only, for responses whose body is not awaited.
    pub(crate) fn head(&mut self) -> io::Result<Head> {
        Head::read(&mut self.wire)
    }

    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        let head = Head::read(&mut self.wire)?;
        Reply::read(head, &mut self.wire)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn read(wire: &mut impl BufRead) -> io::Result<Self> {
        loop {
            let status_line = read_line(wire)?;
            let status = status_line
                .split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok())
                .ok_or_else(|| broken(&format!("not a status line: {status_line:?}")))?;
            let mut headers = Vec::new();
            loop {
                let line = read_line(wire)?;
                if line.is_empty() {
                    break;
                }
                let (name, value) =
                    line.split_once(':').ok_or_else(|| broken(&format!("no header: {line:?}")))?;
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            // 100 Continue and the like precede the response.
            if status >= 200 {
                return Ok(Self { status, headers });
            }
        }
    }

    /// Names in lower case, and values.
    pub(crate) fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "two `{name}` headers in {:?}", self.headers);
        value
    }
}

fn read_line(wire: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    wire.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cut in the middle of a line"));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| broken("a line that is not UTF-8"))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A complete response.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    fn read(head: Head, wire: &mut BufReader<TcpStream>) -> io::Result<Self> {
        let mut body = Vec::new();
        let mut source = Body::new(&head, wire);
        let (mut buffer, end) = ([0; 16 * 1024], Instant::now() + MAX_WAIT * 3);
        loop {
            match source.read(&mut buffer)? {
                0 => return Ok(Self { head, body }),
                count => body.extend_from_slice(&buffer[..count]),
            }
            // An endless body must not keep a test from ending.
            if Instant::now() > end {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a body without an end"));
            }
        }
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {self:?}"),
        }
    }

    /// The JSON body of a response with exactly this status.
    #[track_caller]
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status(), status, "{self:?}");
        self.json()
    }

    /// The JSON-RPC response of a success: its body, or the last event, as a slow response is a
    /// stream, and on a busy machine any may be slow.
    #[track_caller]
    pub(crate) fn answer(&self) -> Value {
        assert_eq!(self.status(), 200, "{self:?}");
        if self.header("content-type") != Some("text/event-stream") {
            return self.json();
        }
        let text = String::from_utf8_lossy(&self.body);
        let last = text.lines().rev().find_map(|line| line.strip_prefix("data: "));
        serde_json::from_str(last.expect("a message")).expect("JSON")
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.body);
        let shown: String = text.chars().take(2_000).collect();
        write!(f, "{} {:?} {shown}", self.head.status, self.head.headers)
    }
}

/// A body as it arrives, in any framing. A cut is an error and an end is an end.
struct Body<R> {
    wire: R,
    left: Left,
}

enum Left {
    Length(u64),
    Chunk { bytes: u64, first: bool },
    UntilClose,
    Nothing,
}

impl<R: BufRead> Body<R> {
    fn new(head: &Head, wire: R) -> Self {
        let chunked = head
            .header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        let length = head.header("content-length").and_then(|value| value.parse().ok());
        let left = match (head.status, chunked, length) {
            (204 | 304, ..) => Left::Nothing,
            (_, true, _) => Left::Chunk { bytes: 0, first: true },
            (_, false, Some(bytes)) => Left::Length(bytes),
            (_, false, None) => Left::UntilClose,
        };
        Self { wire, left }
    }

    fn next_chunk(&mut self, first: bool) -> io::Result<()> {
        if !first {
            if !read_line(&mut self.wire)?.is_empty() {
                return Err(broken("a chunk longer than it says"));
            }
            // A reader that times out within a chunk may try again.
            self.left = Left::Chunk { bytes: 0, first: true };
        }
        let line = read_line(&mut self.wire)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let bytes = u64::from_str_radix(size, 16).map_err(|_| broken("not a chunk size"))?;
        if bytes > 0 {
            self.left = Left::Chunk { bytes, first: false };
            return Ok(());
        }
        while !read_line(&mut self.wire)?.is_empty() {}
        self.left = Left::Nothing;
        Ok(())
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunk { bytes: 0, first } = self.left {
            self.next_chunk(first)?;
        }
        let left = match &mut self.left {
            Left::Nothing | Left::Length(0) => return Ok(0),
            Left::UntilClose => return self.wire.read(buf),
            Left::Length(bytes) | Left::Chunk { bytes, .. } => bytes,
        };
        let wanted = usize::try_from(*left).map_or(buf.len(), |left| left.min(buf.len()));
        let got = self.wire.read(&mut buf[..wanted])?;
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the body was cut"));
        }
        *left -= u64::try_from(got).expect("usize fits u64");
        Ok(got)
    }
}

/// An open event stream. It reads nothing until it is asked to.
pub(crate) struct Sse {
    pub(crate) head: Head,
    lines: BufReader<Body<BufReader<TcpStream>>>,
}

/// One block of a stream, with its own fields only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: Vec<String>,
    pub(crate) retry: Option<String>,
    pub(crate) comment: Option<String>,
}

/// An event in the form of a client library.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<u64>,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

impl Sse {
    /// The next block, `None` at a clean end, an error if the stream broke or stayed silent.
    pub(crate) fn block(&mut self) -> io::Result<Option<Block>> {
        let mut block = Block::default();
        let mut started = false;
        loop {
            let mut line = Vec::new();
            self.lines.read_until(b'\n', &mut line)?;
            if line.is_empty() {
                return if started {
                    Err(broken("the stream ended within a block"))
                } else {
                    Ok(None)
                };
            }
            let line = String::from_utf8(line).map_err(|_| broken("a line that is not UTF-8"))?;
            let line = line.strip_suffix('\n').ok_or_else(|| broken("an unfinished line"))?;
            if line.is_empty() {
                return Ok(Some(block));
            }
            started = true;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" => block.comment = Some(value),
                "id" => block.id = Some(value),
                "event" => block.event = Some(value),
                "retry" => block.retry = Some(value),
                "data" => block.data.push(value),
                other => return Err(broken(&format!("unknown field {other:?}"))),
            }
        }
    }

    /// The next event, skipping `retry` and comments.
    pub(crate) fn try_event(&mut self) -> io::Result<Option<Event>> {
        let end = Instant::now() + MAX_WAIT * 3;
        loop {
            let Some(block) = self.block()? else {
                return Ok(None);
            };
            if block.data.is_empty() {
                // Comments keep a stream from being silent, and would keep a test from ending.
                if Instant::now() > end {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing but comments"));
                }
                continue;
            }
            let [data] = block.data.as_slice() else {
                return Err(broken(&format!("not one data line: {block:?}")));
            };
            let id = match block.id.as_deref().map(str::parse) {
                None => None,
                Some(Ok(id)) => Some(id),
                Some(Err(_)) => return Err(broken(&format!("an id that is no number: {block:?}"))),
            };
            let data = serde_json::from_str(data).map_err(|_| broken("data is not JSON"))?;
            return Ok(Some(Event { id, kind: block.event.unwrap_or_default(), data }));
        }
    }

    #[track_caller]
    pub(crate) fn event(&mut self) -> Event {
        self.try_event().expect("the stream goes on").expect("an event before the stream's end")
    }

    /// The next message of an MCP stream, skipping priming events.
    #[track_caller]
    pub(crate) fn message(&mut self) -> Value {
        let end = Instant::now() + MAX_WAIT * 3;
        loop {
            let block =
                self.block().expect("the stream goes on").expect("a message before its end");
            let data = block.data.concat();
            if !data.is_empty() {
                return serde_json::from_str(&data).expect("data is JSON");
            }
            assert!(Instant::now() < end, "nothing but comments");
        }
    }

    #[track_caller]
    pub(crate) fn events(&mut self, count: usize) -> Vec<Event> {
        (0..count).map(|_| self.event()).collect()
    }

    /// All events up to a clean end.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.try_event().expect("a clean end") {
            events.push(event);
        }
        events
    }

    /// A handle that cuts the stream from another thread.
    pub(crate) fn knife(&self) -> ConnectionCutter {
        let stream = self.lines.get_ref().wire.get_ref().try_clone();
        ConnectionCutter(stream.expect("a socket can be cloned"))
    }

    /// Sets how long a read may stay silent.
    pub(crate) fn set_timeout(&self, bound: Duration) {
        let stream = self.lines.get_ref().wire.get_ref();
        stream.set_read_timeout(Some(bound)).expect("a socket takes a timeout");
    }
}

/// Closes a stream's connection without a shutdown of the protocol.
pub(crate) struct ConnectionCutter(TcpStream);

impl ConnectionCutter {
    pub(crate) fn cut(self) {
        // The peer may have closed first.
        drop(self.0.shutdown(Shutdown::Both));
    }
}
