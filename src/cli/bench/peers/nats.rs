//! NATS `JetStream`, over its own protocol: `PUB` with a reply subject that the acknowledgement comes to, and a push
//! consumer for each who follows.

use std::{
    cell::Cell,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{
    super::{
        WindowOf, append_http,
        caller::Caller,
        daemon::DATA_BYTES,
        load::Protocol,
        mixed::{self, Both, Crowd},
        progress,
        report::Goal,
        sandbox::{self, Process, Sandbox},
        stats::Slice,
        subscribers::Decoder,
        wire::BadAnswer,
    },
    Contest, Part, Peer, payload, until_ready,
};

const CONNECT: &str = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n";
const STREAMS: usize = 100;
/// Acknowledgements that a producer of very many events waits for at once.
const AHEAD: usize = 256;

/// A server.
#[derive(Debug)]
pub(super) struct Nats {
    process: Process,
    address: SocketAddr,
    durable: bool,
    /// Inboxes made so far: each has a name of its own.
    inboxes: Cell<usize>,
    filled: u64,
}

impl Nats {
    /// Starts one, which syncs before it acknowledges if it knows how.
    pub(super) fn start(sandbox: &Sandbox) -> anyhow::Result<Self> {
        let address = sandbox::free_address()?;
        let name = format!("nats-{}", address.port());
        let config = sandbox.path(&format!("{name}.conf"));
        let write = |sync: &str| {
            let folder = sandbox.path(&name).display().to_string();
            // A reader that is a little behind is not to be cut off.
            let text = format!(
                "listen: \"{address}\"\nmax_pending: 1GB\njetstream {{ store_dir: \"{folder}\" {sync} }}\n"
            );
            std::fs::write(&config, text)
        };
        write(", sync_interval: always")?;
        // `-t` looks at the configuration and no more. Versions before 2.10 do not know the setting.
        let checked = Command::new("nats-server").arg("-c").arg(&config).arg("-t").output()?;
        let durable = checked.status.success();
        if !durable {
            write("")?;
        }
        let process = sandbox.start(&name, Command::new("nats-server").arg("-c").arg(&config))?;
        let nats = Self { process, address, durable, inboxes: Cell::new(0), filled: 0 };
        until_ready(|| nats.make_stream()).with_context(|| {
            format!("nats-server does not answer: {}", nats.process.complaint())
        })?;
        Ok(nats)
    }

    /// How durable it is.
    pub(super) fn remark(&self) -> &'static str {
        if self.durable {
            "sync_interval always"
        } else {
            "does not know `sync_interval: always`; measured as it comes, which is not durable"
        }
    }

    fn make_stream(&self) -> anyhow::Result<()> {
        let (protocol, inbox) = self.speech();
        let config = r#"{"name":"BENCH","subjects":["bench.>"],"storage":"file","retention":"limits","num_replicas":1}"#;
        let request = publish("$JS.API.STREAM.CREATE.BENCH", &inbox, config);
        Caller::open(self.address, &protocol)?.ask(&request)?;
        Ok(())
    }

    /// A protocol for one connection, and the inbox that its answers come to.
    fn speech(&self) -> (Protocol, String) {
        let number = self.inboxes.get();
        self.inboxes.set(number + 1);
        let inbox = format!("_INBOX.bench.{number}");
        let hello = format!("{CONNECT}SUB {inbox} 1\r\nPING\r\n").into_bytes();
        (Protocol { hello: Some((hello, b"PONG\r\n")), parse: acknowledgement }, inbox)
    }

    fn producer(&self, subject: &str) -> (Protocol, Vec<Vec<u8>>) {
        let (protocol, inbox) = self.speech();
        (protocol, vec![publish(subject, &inbox, &payload())])
    }

    /// What makes a consumer of `subject` that sends to us, and what understands it.
    fn follow(&self, subject: &str, from: &str) -> (Vec<u8>, Messages) {
        let number = self.inboxes.get();
        self.inboxes.set(number + 1);
        let (inbox, deliver) = (format!("_INBOX.bench.{number}"), format!("deliver.{number}"));
        let config = format!(
            r#"{{"stream_name":"BENCH","config":{{"deliver_subject":"{deliver}","ack_policy":"none","deliver_policy":"{from}","replay_policy":"instant","filter_subject":"{subject}"}}}}"#
        );
        let mut request = format!("{CONNECT}SUB {inbox} 1\r\nSUB {deliver} 2\r\n").into_bytes();
        request.extend(publish("$JS.API.CONSUMER.CREATE.BENCH", &inbox, &config));
        (request, Messages::default())
    }
}

impl Peer for Nats {
    fn name(&self) -> &'static str {
        if self.durable { "NATS sync always" } else { "NATS (not durable)" }
    }

    fn part(&self, contest: Contest) -> Part {
        match (self.durable, contest) {
            // With one producer both wait for the same disk.
            (true, Contest::Append { producers: 64 }) => Part::Goal(Goal::ratio(6.0)),
            (true, Contest::Mixed) => Part::Goal(Goal::ratio(4.0)),
            (_, Contest::Batches) => Part::None,
            _ => Part::Beside,
        }
    }

    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        let speeches: Vec<_> = (0..producers)
            .map(|number| self.producer(&format!("bench.append{}", number % STREAMS)))
            .collect();
        append_http::slice(window_of, self.address, &self.process, producers, |number| {
            speeches[number].clone()
        })
    }

    fn mixed(&self, window_of: WindowOf, crowd: Crowd) -> anyhow::Result<Both> {
        let speeches: Vec<_> = (0..crowd.producers).map(|_| self.producer("bench.mixed")).collect();
        mixed::round(
            window_of,
            (self.address, &self.process),
            crowd,
            |_| self.follow("bench.mixed", "new"),
            |number| speeches[number].clone(),
        )
    }

    fn fill(&mut self, events: u64) -> anyhow::Result<()> {
        // Where each waits for the disk, a tenth is work enough.
        let events = if self.durable { events / 10 } else { events };
        let (protocol, requests) = self.producer("bench.replay");
        let mut caller = Caller::open(self.address, &protocol)?;
        for number in 0..events {
            if number.is_multiple_of(1000) {
                progress(&format!("preparing NATS: {number} events"));
            }
            if caller.pending >= AHEAD {
                caller.receive()?;
            }
            caller.send(&requests[0])?;
        }
        while caller.pending > 0 {
            caller.receive()?;
        }
        self.filled = events;
        Ok(())
    }

    fn replay(&self) -> anyhow::Result<Slice> {
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let (request, mut messages) = self.follow("bench.replay", "all");
        let cpu = self.process.cpu();
        let begun = Instant::now();
        socket.write_all(&request)?;
        let mut buffer = vec![0; 256 * 1024];
        while messages.events < self.filled {
            let got = match socket.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                got => got?,
            };
            anyhow::ensure!(got > 0, "the connection ended early");
            if let Some(reply) = messages.feed(&buffer[..got])? {
                socket.write_all(&reply)?;
            }
        }
        let length = begun.elapsed();
        let cpu = self.process.cpu_since(cpu);
        Ok(Slice { cpu, ..Slice::counted(messages.events, length) })
    }
}

fn publish(subject: &str, inbox: &str, payload: &str) -> Vec<u8> {
    format!("PUB {subject} {inbox} {}\r\n{payload}\r\n", payload.len()).into_bytes()
}

/// A message with the server's answer to a request; with the server's ping, if one comes before it. No connection
/// here lives long enough for a missing pong to matter.
fn acknowledgement(bytes: &[u8]) -> Result<Option<usize>, BadAnswer> {
    const PING: &[u8] = b"PING\r\n";
    if let Some(rest) = bytes.strip_prefix(PING) {
        return Ok(acknowledgement(rest)?.map(|end| end + PING.len()));
    }
    let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    let head = &bytes[..line];
    if !head.starts_with(b"MSG ") {
        return Err(BadAnswer::from_bytes(bytes));
    }
    let end = line + 2 + payload_len(head).ok_or_else(|| BadAnswer::from_bytes(bytes))? + 2;
    let Some(message) = bytes.get(line + 2..end) else {
        return Ok(None);
    };
    if message.windows(7).any(|seven| seven == b"\"error\"") {
        return Err(BadAnswer::from_bytes(message));
    }
    Ok(Some(end))
}

/// The last word of a message's head.
fn payload_len(head: &[u8]) -> Option<usize> {
    let word = head.rsplit(|byte| *byte == b' ').next()?;
    std::str::from_utf8(word).ok()?.trim_end().parse().ok()
}

/// What comes to a subscriber, cut anywhere.
#[derive(Debug, Default)]
struct Messages {
    events: u64,
    ready: bool,
    line: Vec<u8>,
    /// What is left of a payload, with its line end.
    left: usize,
}

impl Decoder for Messages {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<Option<Vec<u8>>, BadAnswer> {
        let mut reply = None;
        while !bytes.is_empty() {
            if self.left > 0 {
                let here = self.left.min(bytes.len());
                bytes = &bytes[here..];
                self.left -= here;
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                self.line.extend_from_slice(bytes);
                return Ok(reply);
            };
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if self.line.starts_with(b"MSG ") {
                let len =
                    payload_len(&self.line).ok_or_else(|| BadAnswer::from_bytes(&self.line))?;
                self.left = len + 2;
                if len == DATA_BYTES {
                    self.events += 1;
                } else {
                    // The answer to the request for the consumer.
                    self.ready = true;
                }
            } else if self.line.starts_with(b"PING") {
                reply = Some(b"PONG\r\n".to_vec());
            } else if self.line.starts_with(b"-ERR") {
                return Err(BadAnswer::from_bytes(&self.line));
            }
            self.line.clear();
        }
        Ok(reply)
    }

    fn ready(&self) -> bool {
        self.ready
    }

    fn events(&self) -> u64 {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_understood_however_they_are_cut() {
        let data = payload();
        let text = format!(
            "INFO {{}}\r\nMSG _INBOX.1 1 2\r\n{{}}\r\nMSG deliver.1 2 $JS.ACK.x 200\r\n{data}\r\nPING\r\nMSG deliver.1 2 200\r\n{data}\r\n"
        );
        for step in [1, 2, 5, 64, text.len()] {
            let mut messages = Messages::default();
            let replies = text
                .as_bytes()
                .chunks(step)
                .filter_map(|piece| messages.feed(piece).expect("is fine"))
                .count();
            assert_eq!((messages.events, messages.ready, replies), (2, true, 1), "{step}");
        }
    }

    #[test]
    fn an_acknowledgement_is_whole_or_not_there() {
        let text = b"MSG _INBOX.1 1 9\r\n{\"seq\":1}\r\n";
        assert_eq!(acknowledgement(text).expect("is fine"), Some(text.len()));
        assert_eq!(acknowledgement(&text[..20]).expect("is fine"), None);
        let after_ping = [b"PING\r\n", &text[..]].concat();
        assert_eq!(acknowledgement(&after_ping).expect("is fine"), Some(after_ping.len()));
        acknowledgement(b"MSG _INBOX.1 1 11\r\n{\"error\":1}\r\n").expect_err("is none");
        acknowledgement(b"-ERR 'no'\r\n").expect_err("is none");
    }
}
