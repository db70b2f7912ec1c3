//! Subscribers that only count, many on one thread; and publishers, which use their own threads and
//! blocking sockets, so that the subscribers' work does not delay them.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::{
    io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    daemon::STAMP_DIGITS,
    load::{Caller, Protocol},
    report::{Slice, Window},
    wire::{BadAnswer, Body, FrameSize},
};

/// Most bytes of one read. All subscribers share one buffer, which therefore stays in the cache.
const READ_BYTES: usize = 256 * 1024;

pub(crate) trait Decoder: Send + 'static {
    /// Parses the next bytes. Returns bytes to send to the server, if any.
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, BadAnswer>;

    /// Whether the subscription is active, so that no event from here on is missed.
    fn ready(&self) -> bool;

    fn events(&self) -> u64;
}

/// Subscribers. They end on drop.
#[derive(Debug)]
pub(crate) struct Subscribers {
    tasks: JoinSet<anyhow::Result<()>>,
    counters: Counters,
}

type Counters = Arc<[AtomicU64]>;

impl Subscribers {
    /// Opens `count` subscribers. Each sends its first request and decodes the stream. Waits until
    /// all subscriptions are active.
    pub(crate) async fn open<D: Decoder>(
        address: SocketAddr,
        count: usize,
        mut subscribe: impl FnMut(usize) -> (Vec<u8>, D),
    ) -> anyhow::Result<Self> {
        let counters: Counters = (0..count).map(|_| AtomicU64::new(0)).collect();
        let buffer: Shared = Arc::new(Mutex::new(vec![0; READ_BYTES].into()));
        let mut tasks = JoinSet::new();
        let ready = Arc::new(AtomicU64::new(0));
        for number in 0..count {
            let (request, decoder) = subscribe(number);
            let mut socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            socket.write_all(&request).await?;
            let (buffer, counters) = (Arc::clone(&buffer), Arc::clone(&counters));
            let ready = Arc::clone(&ready);
            tasks.spawn(async move {
                follow(socket, decoder, &buffer, &ready, &counters[number]).await
            });
        }
        let mut subscribers = Self { tasks, counters };
        let end = Instant::now() + Duration::from_mins(1);
        while ready.load(Relaxed) < count as u64 {
            subscribers.check()?;
            anyhow::ensure!(Instant::now() < end, "not all subscriptions were answered");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(subscribers)
    }

    pub(crate) async fn count(&mut self, window: Window) -> anyhow::Result<Slice> {
        tokio::time::sleep_until(window.from.into()).await;
        let (from, before) = (Instant::now(), self.total());
        tokio::time::sleep_until(window.until.into()).await;
        let slice = Slice::counted(self.total() - before, from.elapsed());
        self.check()?;
        Ok(slice)
    }

    pub(crate) async fn received(&mut self, events: u64, max_wait: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + max_wait;
        while self.counters.iter().any(|counter| counter.load(Relaxed) < events) {
            self.check()?;
            anyhow::ensure!(Instant::now() < end, "a subscriber did not receive everything");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        self.counters.iter().map(|counter| counter.load(Relaxed)).sum()
    }

    fn check(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(done) => {
                done.context("a subscriber panicked")??;
                anyhow::bail!("the server ended a subscription");
            }
        }
    }
}

type Shared = Arc<Mutex<Box<[u8]>>>;

async fn follow<D: Decoder>(
    mut socket: TcpStream,
    mut decoder: D,
    buffer: &Shared,
    ready: &AtomicU64,
    counter: &AtomicU64,
) -> anyhow::Result<()> {
    let mut stands = false;
    loop {
        let reply = poll_fn(|context| {
            let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
            let mut read = ReadBuf::new(&mut buffer);
            match Pin::new(&mut socket).poll_read(context, &mut read) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Err(anyhow::Error::from(error))),
                Poll::Ready(Ok(())) if read.filled().is_empty() => Poll::Ready(Ok(None)),
                Poll::Ready(Ok(())) => {
                    Poll::Ready(decoder.feed(read.filled()).map(Some).map_err(Into::into))
                }
            }
        })
        .await?;
        let Some(reply) = reply else { return Ok(()) };
        counter.store(decoder.events(), Relaxed);
        if !stands && decoder.ready() {
            stands = true;
            ready.fetch_add(1, Relaxed);
        }
        if let Some(reply) = reply {
            socket.write_all(&reply).await?;
        }
    }
}

/// Counts frames of equal length by their bytes.
#[derive(Debug)]
pub(crate) struct Frames {
    body: Body,
    preamble: u64,
    first: u64,
    size: FrameSize,
}

impl Frames {
    /// For a stream that begins with `preamble`, followed by the frame with the id `first`.
    pub(crate) fn new(preamble: &str, first: u64, size: FrameSize) -> Self {
        Self { body: Body::default(), preamble: preamble.len() as u64, first, size }
    }
}

impl Decoder for Frames {
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, BadAnswer> {
        self.body.feed(bytes, |_| {})?;
        Ok(None)
    }

    fn ready(&self) -> bool {
        self.body.begun() && self.body.payload >= self.preamble
    }

    fn events(&self) -> u64 {
        self.size.frames_in(self.first, self.body.payload.saturating_sub(self.preamble))
    }
}

/// Measures the latency of stamped events.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    /// Stamps are nanoseconds since this instant.
    pub(crate) epoch: Instant,
    /// Only events that were sent within this window count.
    pub(crate) window: Window,
    pub(crate) slice: Arc<Mutex<Slice>>,
}

impl Timing {
    pub(crate) fn new(window: Window) -> Self {
        let slice = Slice { length: window.length(), ..Slice::default() };
        Self { epoch: Instant::now(), window, slice: Arc::new(Mutex::new(slice)) }
    }

    /// Measures an event by the stamp at the beginning of `line`.
    pub(crate) fn take(&self, line: &[u8]) -> Result<(), BadAnswer> {
        let stamp = line
            .get(..STAMP_DIGITS)
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
            .ok_or_else(|| BadAnswer::from_bytes(line))?;
        let sent = self.epoch + Duration::from_nanos(stamp);
        if (self.window.from..self.window.until).contains(&sent) {
            let mut slice = self.slice.lock().unwrap_or_else(PoisonError::into_inner);
            slice.add(sent.elapsed());
        }
        Ok(())
    }

    pub(crate) fn finish(&self) -> Slice {
        std::mem::take(&mut *self.slice.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Measures each frame, and checks that no frame is missing or repeated.
#[derive(Debug)]
pub(crate) struct StampedFrames {
    body: Body,
    rest: Vec<u8>,
    preamble: usize,
    next: u64,
    events: u64,
    size: FrameSize,
    stamp_from_end: usize,
    timing: Timing,
}

impl StampedFrames {
    pub(crate) fn new(
        preamble: &str,
        first: u64,
        size: FrameSize,
        stamp_from_end: usize,
        timing: Timing,
    ) -> Self {
        Self {
            body: Body::default(),
            rest: Vec::new(),
            preamble: preamble.len(),
            next: first,
            events: 0,
            size,
            stamp_from_end,
            timing,
        }
    }
}

impl Decoder for StampedFrames {
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, BadAnswer> {
        let rest = &mut self.rest;
        self.body.feed(bytes, |bytes| rest.extend_from_slice(bytes))?;
        let mut from = self.preamble.min(rest.len());
        self.preamble -= from;
        loop {
            let len = usize::try_from(self.size.len(self.next)).unwrap_or(usize::MAX);
            let Some(frame) = rest.get(from..from + len) else {
                break;
            };
            if !frame.starts_with(format!("id: {}\n", self.next).as_bytes()) {
                return Err(BadAnswer::from_bytes(frame));
            }
            self.timing.take(&frame[len - self.stamp_from_end..])?;
            from += len;
            self.next += 1;
            self.events += 1;
        }
        rest.drain(..from);
        Ok(None)
    }

    fn ready(&self) -> bool {
        self.body.begun() && self.preamble == 0
    }

    fn events(&self) -> u64 {
        self.events
    }
}

/// Publishers. They end on drop.
#[derive(Debug)]
pub(crate) struct Publisher {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
    published: Arc<AtomicU64>,
}

impl Publisher {
    /// Publishes unthrottled on `connections`, with `events` per request.
    pub(crate) fn saturate(
        address: SocketAddr,
        request: &[u8],
        events: u64,
        connections: usize,
    ) -> anyhow::Result<Self> {
        let mut publisher =
            Self { stop: Arc::default(), threads: Vec::new(), published: Arc::default() };
        for _ in 0..connections {
            let mut caller = Caller::open(address, &Protocol::HTTP)?;
            let request = request.to_vec();
            let (stop, published) = (Arc::clone(&publisher.stop), Arc::clone(&publisher.published));
            publisher.threads.push(std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    published.fetch_add(events, Relaxed);
                    caller.ask(&request)?;
                }
                Ok(())
            }));
        }
        Ok(publisher)
    }

    /// Publishes one event per `period` until `until`, whether or not acknowledgements arrive.
    /// `requests` builds a request from its stamp: the nanoseconds from `epoch` to the time of
    /// sending.
    pub(crate) fn pace(
        address: SocketAddr,
        protocol: &Protocol,
        period: Duration,
        epoch: Instant,
        until: Instant,
        request: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> anyhow::Result<Self> {
        // Enough connections that each has its acknowledgement before its next turn.
        let mut callers = Vec::new();
        for _ in 0..8 {
            callers.push(Caller::open(address, protocol)?);
        }
        let (stop, published) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = {
            let (stop, published) = (Arc::clone(&stop), Arc::clone(&published));
            std::thread::spawn(move || {
                let mut due = Instant::now();
                let turns = callers.len();
                let mut turn = 0;
                while due < until && !stop.load(Relaxed) {
                    let early = due.saturating_duration_since(Instant::now());
                    std::thread::sleep(early);
                    // A late wake-up is a delay of the machine and is excluded; a delay by the
                    // server counts.
                    let sent = if early.is_zero() { due } else { Instant::now() };
                    let stamp = sent.saturating_duration_since(epoch).as_nanos();
                    let request = request(u64::try_from(stamp).unwrap_or(u64::MAX));
                    let caller = &mut callers[turn];
                    while caller.pending > 0 {
                        caller.receive()?;
                    }
                    caller.send(&request)?;
                    published.fetch_add(1, Relaxed);
                    turn = (turn + 1) % turns;
                    due += period;
                }
                for caller in &mut callers {
                    while caller.pending > 0 {
                        caller.receive()?;
                    }
                }
                Ok(())
            })
        };
        Ok(Self { stop, threads: vec![thread], published })
    }

    /// Stops the publisher; returns how many events it published.
    pub(crate) fn finish(mut self) -> anyhow::Result<u64> {
        self.stop.store(true, Relaxed);
        self.join()
    }

    /// Waits until the publisher ends by itself; returns how many events it published.
    pub(crate) fn join(&mut self) -> anyhow::Result<u64> {
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow::anyhow!("a publisher panicked"))??;
        }
        Ok(self.published.load(Relaxed))
    }

    /// Whether the publisher has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.join().ok();
    }
}
