//! Threads that flood a daemon until they are dropped, and the responses to them.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;

use crate::wire;

/// Most characters of a refusal that are shown.
const SAID_CHARS: usize = 120;

/// What a thread repeats.
pub(crate) type Work = Box<dyn FnMut(&Answers) + Send>;

/// Threads that work until they are dropped.
pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The responses to a flood.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    by_status: BTreeMap<u16, u64>,
    /// The first words of a refusal, for each status.
    said: BTreeMap<u16, String>,
}

impl Crowd {
    /// Starts a thread for each of the works. Their responses are added to `answers`.
    pub(crate) fn counting(works: Vec<Work>, answers: &Arc<Answers>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = works.into_iter().map(|mut work| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(answers));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    work(&answers);
                }
            })
        });
        let threads = threads.collect();
        Self { stop, threads }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // The thread returns nothing.
            thread.join().ok();
        }
    }
}

impl Answers {
    /// Counts a response, from its beginning.
    pub(crate) fn add(&self, answer: &[u8]) {
        let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok());
        let Some(status) = status.and_then(|status| status.parse().ok()) else { return };
        let mut seen = self.seen();
        *seen.by_status.entry(status).or_default() += 1;
        if status >= 400 {
            let words = || words_of(wire::body(answer)).chars().take(SAID_CHARS).collect();
            let said = seen.said.entry(status).or_default();
            if said.is_empty() {
                *said = words();
            }
        }
    }

    /// The number of refusals, and of all responses.
    pub(crate) fn refused(&self) -> (u64, u64) {
        let seen = self.seen();
        let sum = |least: u16| seen.by_status.range(least..).map(|(_, count)| count).sum();
        (sum(400), sum(0))
    }

    /// The count of each status, and the texts of the refusals.
    pub(crate) fn summary(&self) -> String {
        let seen = self.seen();
        let mut all: Vec<String> =
            seen.by_status.iter().map(|(status, count)| format!("{count} × {status}")).collect();
        if all.is_empty() {
            all.push("no answer was read".to_owned());
        }
        let said = seen.said.iter().filter(|(_, said)| !said.is_empty());
        all.extend(said.map(|(status, said)| format!("{status} said {said:?}")));
        all.join(", ")
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a refusal, of REST or of MCP.
fn words_of(body: &[u8]) -> String {
    let document: Value = serde_json::from_slice(body).unwrap_or_default();
    let words = [&document["detail"], &document["error"]["message"]];
    let words = words.into_iter().find_map(Value::as_str);
    words.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned)
}

/// Sends a request and returns the beginning of the response; `None` if the connection ended.
pub(crate) fn ask(
    connection: &mut Option<TcpStream>,
    address: SocketAddr,
    request: &[u8],
) -> Option<Vec<u8>> {
    if connection.is_none() {
        let opened = TcpStream::connect(address).ok()?;
        opened.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        opened.set_write_timeout(Some(Duration::from_secs(10))).ok()?;
        *connection = Some(opened);
    }
    let socket = connection.as_mut()?;
    // The daemon may respond to a refused request before it has read all of the body.
    let is_sent = socket.write_all(request).is_ok();
    let mut answer = vec![0; 64 * 1024];
    let got = socket.read(&mut answer).ok().filter(|got| *got >= 12)?;
    if !is_sent || got == answer.len() {
        *connection = None;
    }
    answer.truncate(got);
    Some(answer)
}
