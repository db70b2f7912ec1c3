//! Redis Streams over RESP: `XADD`, `XREAD BLOCK` for subscribers, `XREAD COUNT` for replay. Or
//! `XADD` with `PUBLISH`, and `SUBSCRIBE` for subscribers.

use std::{
    cell::Cell,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{Contest, Part, Peer, payload, until_ready};
use crate::{
    append,
    bench::WindowOf,
    daemon::DATA_BYTES,
    fanout::{self, Both, Crowd},
    load::{Caller, Protocol, read_some},
    report::{self, Goal, Slice},
    sandbox::{self, Process, Sandbox},
    subscribers::Decoder,
    wire::BadAnswer,
};

const PROTOCOL: Protocol = Protocol { hello: None, parse: simple_reply };
/// The protocol of a request that has two commands.
const PAIRED: Protocol = Protocol { hello: None, parse: two_replies };
const PAGE: usize = 1000;
const STREAMS: usize = 100;

/// The configuration and use of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedisUse {
    /// `appendfsync always`: acknowledged events are on the disk.
    Always,
    /// `appendfsync always`, and each event is also published, so that subscribers need not read
    /// the stream.
    AlwaysPublish,
    /// `appendfsync everysec`: acknowledged events may be lost.
    EverySecond,
}

impl RedisUse {
    /// The request that stores an event and notifies subscribers.
    fn store(self, stream: &str) -> (Protocol, Vec<u8>) {
        let add = Redis::xadd(stream);
        if self != Self::AlwaysPublish {
            return (PROTOCOL, add);
        }
        (PAIRED, [add, command(&["PUBLISH", stream, &payload()])].concat())
    }
}

#[derive(Debug)]
pub(super) struct Redis {
    process: Process,
    address: SocketAddr,
    usage: RedisUse,
    /// Number of streams created so far, so that each round of a mix has its own.
    made: Cell<u32>,
    filled: u64,
}

impl Redis {
    pub(super) fn start(sandbox: &Sandbox, usage: RedisUse) -> anyhow::Result<Self> {
        let address = sandbox::free_address()?;
        let fsync = if usage == RedisUse::EverySecond { "everysec" } else { "always" };
        let folder = sandbox.path(&format!("redis-{fsync}-{}", address.port()));
        std::fs::create_dir(&folder)?;
        let port = address.port().to_string();
        let process = sandbox.start(
            &format!("redis-{fsync}-{port}"),
            Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--dir"])
                .arg(&folder)
                .args(["--appendonly", "yes", "--appendfsync", fsync]),
        )?;
        until_ready(|| Caller::open(address, &PROTOCOL)?.ask(&command(&["PING"])))
            .with_context(|| format!("redis-server does not answer: {}", process.complaint()))?;
        Ok(Self { process, address, usage, made: Cell::new(0), filled: 0 })
    }

    fn xadd(stream: &str) -> Vec<u8> {
        command(&["XADD", stream, "*", "d", &payload()])
    }
}

impl Peer for Redis {
    fn name(&self) -> &'static str {
        match self.usage {
            RedisUse::Always => "Redis always",
            RedisUse::AlwaysPublish => "Redis always, PUBLISH",
            RedisUse::EverySecond => "Redis everysec (not durable)",
        }
    }

    fn part(&self, contest: Contest) -> Part {
        match (self.usage, contest) {
            (RedisUse::Always, Contest::Append { producers: 8 }) => Part::Goal(Goal::ratio(1.0)),
            (RedisUse::Always, Contest::Append { producers: 64 }) => Part::Goal(Goal::ratio(0.8)),
            (RedisUse::Always, Contest::Batches) => Part::Goal(Goal::ratio(4.0)),
            (RedisUse::Always, Contest::Mixed) => Part::Goal(Goal::ratio(1.4)),
            (RedisUse::Always, Contest::Replay) => Part::Goal(Goal::ratio(1.2)),
            (_, Contest::Append { .. }) | (RedisUse::AlwaysPublish, Contest::Mixed) => Part::Beside,
            (RedisUse::AlwaysPublish | RedisUse::EverySecond, _) => Part::None,
        }
    }

    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        let usage = self.usage;
        append::slice(window_of, self.address, &self.process, producers, |number| {
            let (protocol, request) = usage.store(&format!("append{}", number % STREAMS));
            (protocol, vec![request])
        })
    }

    fn mixed(&self, window_of: WindowOf, crowd: Crowd) -> anyhow::Result<Both> {
        self.made.set(self.made.get() + 1);
        let stream = format!("mixed{}", self.made.get());
        let (protocol, add) = self.usage.store(&stream);
        let is_published = self.usage == RedisUse::AlwaysPublish;
        fanout::round(
            window_of,
            (self.address, &self.process),
            crowd,
            |_| if is_published { Follower::subscribed(&stream) } else { Follower::new(&stream) },
            |_| (protocol.clone(), vec![add.clone()]),
        )
    }

    fn fill(&mut self, events: u64) -> anyhow::Result<()> {
        let mut caller = Caller::open(self.address, &PROTOCOL)?;
        let one = Self::xadd("replay");
        let page = one.repeat(PAGE);
        for number in 0..events / PAGE as u64 {
            report::show_step(&format!("preparing Redis: {} events", number * PAGE as u64));
            caller.send(&page)?;
            for _ in 0..PAGE {
                caller.receive()?;
            }
            self.filled += PAGE as u64;
        }
        Ok(())
    }

    fn replay(&self) -> anyhow::Result<Slice> {
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let cpu = self.process.cpu();
        let begun = Instant::now();
        let mut reply = Reply::default();
        let mut buffer = vec![0; 256 * 1024];
        while reply.events < self.filled {
            socket.write_all(&read("replay", &reply.last_id, None))?;
            while reply.feed(read_some(&mut socket, &mut buffer)?)? == 0 {}
        }
        let length = begun.elapsed();
        let cpu = self.process.cpu_since(cpu);
        Ok(Slice { cpu, ..Slice::counted(reply.events, length) })
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    use std::fmt::Write as _;
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        write!(text, "${}\r\n{word}\r\n", word.len()).expect("writing to a string does not fail");
    }
    text.into_bytes()
}

/// `XREAD` after `last`. With `block` it waits for events for that many milliseconds (0: for ever).
fn read(stream: &str, last: &[u8], block: Option<&str>) -> Vec<u8> {
    let last = if last.is_empty() { "0-0".into() } else { String::from_utf8_lossy(last) };
    let page = PAGE.to_string();
    match block {
        Some(block) => {
            command(&["XREAD", "COUNT", &page, "BLOCK", block, "STREAMS", stream, &last])
        }
        None => command(&["XREAD", "COUNT", &page, "STREAMS", stream, &last]),
    }
}

/// Parses a reply that is one line or one short string.
fn simple_reply(bytes: &[u8]) -> Result<Option<usize>, BadAnswer> {
    let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    match bytes[0] {
        b'$' => {
            let len: usize = std::str::from_utf8(&bytes[1..line])
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| BadAnswer::from_bytes(bytes))?;
            let end = line + 2 + len + 2;
            Ok((bytes.len() >= end).then_some(end))
        }
        b'+' | b':' => Ok(Some(line + 2)),
        _ => Err(BadAnswer::from_bytes(bytes)),
    }
}

fn two_replies(bytes: &[u8]) -> Result<Option<usize>, BadAnswer> {
    let Some(first) = simple_reply(bytes)? else { return Ok(None) };
    if bytes.len() == first {
        return Ok(None);
    }
    Ok(simple_reply(&bytes[first..])?.map(|second| first + second))
}

/// A parser for replies to `XREAD` and for published events, in pieces of any size. Keeps the last
/// id and the number of events.
#[derive(Debug, Default)]
struct Reply {
    events: u64,
    last_id: Vec<u8>,
    /// Number of elements that are missing from the reply.
    missing: u64,
    line: Vec<u8>,
    /// The remaining bytes of a string with its line end, and the length of the string.
    string: Option<(usize, usize)>,
    short: Vec<u8>,
}

impl Reply {
    /// Parses the next bytes; returns how many replies were completed.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<u64, BadAnswer> {
        let mut ended = 0;
        while !bytes.is_empty() {
            if let Some((left, len)) = self.string {
                let here = left.min(bytes.len());
                if len < 64 {
                    self.short.extend_from_slice(&bytes[..here]);
                }
                bytes = &bytes[here..];
                self.string = (here < left).then_some((left - here, len));
                if self.string.is_none() {
                    self.end_string(len);
                    ended += self.end_element();
                }
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                self.line.extend_from_slice(bytes);
                return Ok(ended);
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            let number = || -> Option<i64> {
                std::str::from_utf8(line.get(1..)?).ok()?.trim_end().parse().ok()
            };
            match (line.first(), number()) {
                (Some(b'*'), Some(len)) => {
                    self.missing = self.missing.max(1) + u64::try_from(len).unwrap_or(0);
                    ended += self.end_element();
                }
                (Some(b'$'), Some(len)) => {
                    self.missing = self.missing.max(1);
                    let len = usize::try_from(len).unwrap_or(0);
                    self.string = Some((len + 2, len));
                }
                (Some(b'+' | b':'), _) => {
                    self.missing = self.missing.max(1);
                    ended += self.end_element();
                }
                _ => return Err(BadAnswer::from_bytes(&line)),
            }
            self.line = line;
            self.line.clear();
        }
        Ok(ended)
    }

    fn end_string(&mut self, len: usize) {
        if len == DATA_BYTES {
            self.events += 1;
        } else if self.short.contains(&b'-') {
            // An id has a dash; names of svc's streams and fields do not.
            self.last_id.clear();
            self.last_id.extend_from_slice(self.short.trim_ascii_end());
        }
        self.short.clear();
    }

    fn end_element(&mut self) -> u64 {
        self.missing = self.missing.saturating_sub(1);
        u64::from(self.missing == 0)
    }
}

/// A subscriber: `XREAD BLOCK` in a loop, or one `SUBSCRIBE`.
#[derive(Debug)]
struct Follower {
    stream: String,
    is_published: bool,
    reply: Reply,
    ready: bool,
}

impl Follower {
    fn new(stream: &str) -> (Vec<u8>, Self) {
        // The reply to the ping shows that the subscription is active.
        let request = [command(&["PING"]), read(stream, b"", Some("0"))].concat();
        (request, Self::following(stream, false))
    }

    fn subscribed(stream: &str) -> (Vec<u8>, Self) {
        (command(&["SUBSCRIBE", stream]), Self::following(stream, true))
    }

    fn following(stream: &str, is_published: bool) -> Self {
        Self { stream: stream.to_owned(), is_published, reply: Reply::default(), ready: false }
    }
}

impl Decoder for Follower {
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, BadAnswer> {
        let mut ended = self.reply.feed(bytes)?;
        if !self.ready && ended > 0 {
            self.ready = true;
            ended -= 1;
        }
        Ok((ended > 0 && !self.is_published)
            .then(|| read(&self.stream, &self.reply.last_id, Some("0"))))
    }

    fn ready(&self) -> bool {
        self.ready
    }

    fn events(&self) -> u64 {
        self.reply.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_parsing_is_independent_of_chunking() {
        let data = payload();
        let figure = |id: &str| format!("*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nd\r\n$200\r\n{data}\r\n");
        let text = format!(
            "+PONG\r\n*1\r\n*2\r\n$6\r\nreplay\r\n*2\r\n{}{}",
            figure("1-1"),
            figure("1-2")
        );
        for step in [1, 2, 3, 7, 64, text.len()] {
            let mut reply = Reply::default();
            let ended: u64 =
                text.as_bytes().chunks(step).map(|piece| reply.feed(piece).expect("is fine")).sum();
            assert_eq!((ended, reply.events, &*reply.last_id), (2, 2, &b"1-2"[..]), "{step}");
        }
    }

    #[test]
    fn published_events_are_counted_after_one_subscribe() {
        let data = payload();
        let confirmed = "*3\r\n$9\r\nsubscribe\r\n$6\r\nmixed1\r\n:1\r\n";
        let text = format!("{confirmed}*3\r\n$7\r\nmessage\r\n$6\r\nmixed1\r\n$200\r\n{data}\r\n");
        let (_, mut follower) = Follower::subscribed("mixed1");
        assert!(!follower.ready());
        for piece in text.as_bytes().chunks(7) {
            assert_eq!(follower.feed(piece).expect("is fine"), None);
        }
        assert!(follower.ready());
        assert_eq!(follower.events(), 1);
    }

    #[test]
    fn a_request_of_two_commands_has_two_replies() {
        assert_eq!(two_replies(b"$3\r\n1-1\r\n").expect("is fine"), None);
        assert_eq!(two_replies(b"$3\r\n1-1\r\n:0\r\n").expect("is fine"), Some(13));
    }

    #[test]
    fn xadd_reply_is_a_short_string() {
        assert_eq!(simple_reply(b"$3\r\n1-1\r\n").expect("is fine"), Some(9));
        assert_eq!(simple_reply(b"$3\r\n1-1").expect("is fine"), None);
        simple_reply(b"-ERR no\r\n").expect_err("is none");
    }
}
