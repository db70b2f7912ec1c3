//! `PostgreSQL` over its protocol 3.0 in text: a row per event, `COPY` for replay, and `NOTIFY`
//! with the event for clients that `LISTEN`. `synchronous_commit` and `fsync` are on, as by
//! default, so acknowledged events are on the disk.

use std::{
    cell::Cell,
    fs,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{Contest, Part, Peer, payload, until_ready};
use crate::{
    append,
    bench::WindowOf,
    fanout::{self, Both, Crowd},
    load::{Caller, Protocol, read_some},
    report::{self, Slice},
    sandbox::{self, Process, Sandbox},
    subscribers::Decoder,
    wire::BadAnswer,
};

/// The user that runs the server if this process is root: the server refuses to run as root.
const USER: &str = "postgres";
/// The end of the response to a `prepare`: the statement is prepared, and the server is ready.
const PREPARED: &[u8] = b"C\0\0\0\x0cPREPARE\0Z\0\0\0\x05I";
/// The database of the rows that are measured without svc.
const DATABASE: &str = "postgres";
const STREAMS: usize = 100;

/// The server's programs, and the user that runs them.
#[derive(Debug)]
pub(super) struct Installation {
    folder: PathBuf,
    /// User and group id, if this process is root.
    user: Option<(u32, u32)>,
}

impl Installation {
    /// The installation on `PATH`, else the newest one in Debian's folders.
    ///
    /// # Errors
    /// Why no installation can be used, for the report.
    pub(super) fn find() -> Result<Self, String> {
        let mut folders: Vec<PathBuf> = std::env::var_os("PATH")
            .map(|path| std::env::split_paths(&path).collect())
            .unwrap_or_default();
        let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut debian: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
        debian.sort();
        folders.extend(debian.into_iter().rev());
        let has_all = |folder: &&PathBuf| {
            ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file())
        };
        let folder = folders.iter().find(has_all).ok_or("not installed")?.clone();
        let user = match id("-u", None) {
            Some(0) => {
                let user = id("-u", Some(USER)).zip(id("-g", Some(USER)));
                Some(user.ok_or_else(|| format!("does not run as root, and there is no {USER}"))?)
            }
            _ => None,
        };
        Ok(Self { folder, user })
    }

    pub(super) fn version(&self) -> Option<String> {
        let output = Command::new(self.folder.join("postgres")).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn command(&self, program: &str, data: &Path) -> Command {
        let mut command = Command::new(self.folder.join(program));
        command.arg("-D").arg(data).current_dir(data);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }
}

/// The id of a user or of the user's group, from the program `id`.
fn id(option: &str, user: Option<&str>) -> Option<u32> {
    let output = Command::new("id").arg(option).args(user).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

#[derive(Debug)]
pub(super) struct Postgres {
    /// `None` once the server was told to stop.
    process: Option<Process>,
    address: SocketAddr,
    /// Number of channels created so far, so that each round of a mix has its own.
    made: Cell<u32>,
    filled: u64,
}

impl Postgres {
    pub(super) fn start(sandbox: &Sandbox, from: &Installation) -> anyhow::Result<Self> {
        let address = sandbox::free_address()?;
        let port = address.port().to_string();
        let data = sandbox.path(&format!("postgres-{port}"));
        fs::create_dir(&data)?;
        if let Some((user, group)) = from.user {
            chown(&data, Some(user), Some(group))?;
            sandbox.let_pass()?;
        }
        let made = from
            .command("initdb", &data)
            .args(["--auth=trust", "--username=svc", "--no-sync", "--no-locale", "--encoding=UTF8"])
            .output()?;
        anyhow::ensure!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        );
        let mut command = from.command("postgres", &data);
        for setting in
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300"]
        {
            command.args(["-c", setting]);
        }
        command.args(["-p", &port]);
        let process = sandbox.start(&format!("postgres-{port}"), &mut command)?;
        let mut ready = until_ready(|| Caller::open(address, &protocol("select 1")))
            .with_context(|| format!("postgres does not answer: {}", process.complaint()))?;
        let server = Self { process: Some(process), address, made: Cell::new(0), filled: 0 };
        ready.ask(&query(
            "create table event (stream text, id bigserial, data text not null, primary key (stream, id))",
        ))?;
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a database; returns its URL for a client at `address`.
    pub(super) fn database(&self, name: &str) -> anyhow::Result<String> {
        let mut socket = connect(self.address, DATABASE)?;
        ask(&mut socket, &format!("create database {name} template template0"))?;
        Ok(url(self.address, name))
    }

    fn process(&self) -> anyhow::Result<&Process> {
        self.process.as_ref().context("it was told to stop")
    }
}

impl Drop for Postgres {
    /// Stops the server with its own signal: if it were killed, it would leave a segment of shared
    /// memory.
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.stop().ok();
        }
    }
}

/// Removes the CPU time, as each connection is a process of its own.
fn without_cpu(slice: Slice) -> Slice {
    Slice { cpu: None, ..slice }
}

impl Peer for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn part(&self, contest: Contest) -> Part {
        match contest {
            Contest::Append { .. } | Contest::Mixed | Contest::Replay => Part::Beside,
            Contest::Batches => Part::None,
        }
    }

    fn append(&self, window_of: WindowOf, producers: usize) -> anyhow::Result<Slice> {
        let slice = append::slice(window_of, self.address, self.process()?, producers, |number| {
            let stream = format!("append{}", number % STREAMS);
            let insert =
                format!("insert into event (stream, data) values ('{stream}', '{}')", payload());
            (protocol(&insert), vec![query("execute a")])
        })?;
        Ok(without_cpu(slice))
    }

    fn mixed(&self, window_of: WindowOf, crowd: Crowd) -> anyhow::Result<Both> {
        self.made.set(self.made.get() + 1);
        let channel = format!("mixed{}", self.made.get());
        let data = payload();
        let insert = format!(
            "with stored as (insert into event (stream, data) values ('{channel}', '{data}')) \
            select pg_notify('{channel}', '{data}')"
        );
        let listen = [startup(DATABASE), query(&format!("listen {channel}"))].concat();
        let both = fanout::round(
            window_of,
            (self.address, self.process()?),
            crowd,
            |_| (listen.clone(), Listener::default()),
            |_| (protocol(&insert), vec![query("execute a")]),
        )?;
        let Both { acks, deliveries } = both;
        Ok(Both { acks: without_cpu(acks), deliveries: without_cpu(deliveries) })
    }

    fn fill(&mut self, events: u64) -> anyhow::Result<()> {
        report::show_step(&format!("preparing PostgreSQL: {events} events"));
        let mut socket = connect(self.address, DATABASE)?;
        let data = payload();
        let fill = format!(
            "insert into event (stream, data) select 'replay', '{data}' from generate_series(1, {events})"
        );
        ask(&mut socket, &fill)?;
        ask(&mut socket, "vacuum analyze event")?;
        self.filled = events;
        Ok(())
    }

    fn replay(&self) -> anyhow::Result<Slice> {
        let mut socket = connect(self.address, DATABASE)?;
        let begun = Instant::now();
        let read =
            "copy (select id, data from event where stream = 'replay' order by id) to stdout";
        let rows = ask(&mut socket, read)?;
        anyhow::ensure!(rows == self.filled, "{rows} of {} events", self.filled);
        Ok(Slice::counted(rows, begun.elapsed()))
    }
}

pub(super) fn url(address: SocketAddr, database: &str) -> String {
    format!("postgres://svc@{address}/{database}")
}

/// A connection on which a statement is prepared under the name `a`.
fn protocol(statement: &str) -> Protocol {
    let hello = [startup(DATABASE), query(&format!("prepare a as {statement}"))].concat();
    Protocol { hello: Some((hello, PREPARED)), parse: answer }
}

/// A connection on which the startup is done.
pub(super) fn connect(address: SocketAddr, database: &str) -> anyhow::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_mins(5)))?;
    socket.write_all(&startup(database))?;
    rows_until_ready(&mut socket)?;
    Ok(socket)
}

/// Runs a statement; returns the number of rows of a `copy`.
pub(super) fn ask(socket: &mut TcpStream, statement: &str) -> anyhow::Result<u64> {
    socket.write_all(&query(statement))?;
    rows_until_ready(socket)
}

fn rows_until_ready(socket: &mut TcpStream) -> anyhow::Result<u64> {
    let mut messages = Messages::default();
    let mut buffer = vec![0; 256 * 1024];
    while messages.ready == 0 {
        messages.feed(read_some(socket, &mut buffer)?)?;
    }
    Ok(messages.rows)
}

/// The startup message: version 3.0, user and database.
fn startup(database: &str) -> Vec<u8> {
    let parameters = format!("user\0svc\0database\0{database}\0\0");
    let mut message = length(8 + parameters.len()).to_vec();
    message.extend_from_slice(&196_608_u32.to_be_bytes());
    message.extend_from_slice(parameters.as_bytes());
    message
}

fn query(text: &str) -> Vec<u8> {
    let mut message = vec![b'Q'];
    message.extend_from_slice(&length(4 + text.len() + 1));
    message.extend_from_slice(text.as_bytes());
    message.push(0);
    message
}

/// The length field of a message: it counts itself and everything after it, but not the kind.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// The length of the response to a query, once the server is ready for the next query.
fn answer(bytes: &[u8]) -> Result<Option<usize>, BadAnswer> {
    let mut at = 0;
    loop {
        let Some(head) = bytes.get(at..at + 5) else { return Ok(None) };
        let end = at + 1 + body_length([head[1], head[2], head[3], head[4]]);
        if bytes.len() < end {
            return Ok(None);
        }
        match head[0] {
            b'E' => return Err(BadAnswer::from_bytes(&bytes[at..end])),
            b'Z' => return Ok(Some(end)),
            _ => at = end,
        }
    }
}

fn body_length(bytes: [u8; 4]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX)
}

/// A parser for the server's messages, in pieces of any size, that only counts them.
#[derive(Debug, Default)]
struct Messages {
    /// The bytes of the next head so far: kind and length.
    head: Vec<u8>,
    /// Number of bytes that are missing from the body.
    missing: usize,
    /// An error message, as much as has arrived.
    error: Option<Vec<u8>>,
    /// How often the server reported that it is ready for a query.
    ready: u64,
    rows: u64,
    notified: u64,
}

impl Messages {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BadAnswer> {
        while !bytes.is_empty() {
            if self.missing > 0 {
                let here = self.missing.min(bytes.len());
                if let Some(error) = &mut self.error {
                    error.extend_from_slice(&bytes[..here]);
                }
                self.missing -= here;
                bytes = &bytes[here..];
            } else {
                let here = (5 - self.head.len()).min(bytes.len());
                self.head.extend_from_slice(&bytes[..here]);
                bytes = &bytes[here..];
                let [kind, a, b, c, d] = self.head[..] else { continue };
                self.head.clear();
                self.missing = body_length([a, b, c, d]).saturating_sub(4);
                match kind {
                    b'E' => self.error = Some(Vec::new()),
                    b'Z' => self.ready += 1,
                    b'd' => self.rows += 1,
                    b'A' => self.notified += 1,
                    _ => {}
                }
            }
            if let (0, Some(error)) = (self.missing, &self.error) {
                return Err(BadAnswer::from_bytes(error));
            }
        }
        Ok(())
    }
}

/// A subscriber: one `listen`.
#[derive(Debug, Default)]
struct Listener {
    messages: Messages,
}

impl Decoder for Listener {
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, BadAnswer> {
        self.messages.feed(bytes).map(|()| None)
    }

    fn ready(&self) -> bool {
        // Once after the startup, and once after the `listen`.
        self.messages.ready >= 2
    }

    fn events(&self) -> u64 {
        self.messages.notified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &length(4 + body.len()), body].concat()
    }

    #[test]
    fn message_count_is_independent_of_chunking() {
        let all = [
            message(b'R', &[0; 4]),
            message(b'Z', b"I"),
            message(b'C', b"LISTEN\0"),
            message(b'Z', b"I"),
            message(b'A', &[b'x'; 210]),
            message(b'A', &[b'Z'; 210]),
        ]
        .concat();
        for step in [1, 2, 3, 5, 7, 64, all.len()] {
            let mut listener = Listener::default();
            for piece in all.chunks(step) {
                assert_eq!(listener.feed(piece).expect("is fine"), None);
            }
            assert!(listener.ready());
            assert_eq!(listener.events(), 2, "{step}");
        }
    }

    #[test]
    fn response_ends_at_ready_for_query() {
        let whole = [message(b'C', b"INSERT 0 1\0"), message(b'Z', b"I")].concat();
        assert_eq!(answer(&whole).expect("is fine"), Some(whole.len()));
        assert_eq!(answer(&whole[..whole.len() - 1]).expect("is fine"), None);
        assert_eq!(answer(&[]).expect("is fine"), None);
        let refused = [message(b'E', b"SERROR\0Mno such table\0\0"), message(b'Z', b"I")].concat();
        assert!(answer(&refused).expect_err("is none").to_string().contains("no such table"));
        let mut messages = Messages::default();
        let error = messages.feed(&refused).expect_err("is none");
        assert!(error.to_string().contains("no such table"));
    }

    #[test]
    fn prepare_response_ends_with_its_marker() {
        let whole = [message(b'C', b"PREPARE\0"), message(b'Z', b"I")].concat();
        assert_eq!(whole, PREPARED);
    }
}
