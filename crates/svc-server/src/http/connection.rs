//! Connections: listeners on TCP and on the Unix socket in the data folder; the state of a client's
//! connection, and its socket; and the bound on connections whose client has shown no credential.
//!
//! A connection that waits for a client without a valid credential is on a list of at most 64. The
//! next such connection closes the connection on the list that has been idle longest, also if its
//! client has sent half a head. Connections whose credential is being checked wait for the daemon
//! and are not closed. Connections over TCP leave file descriptors for the Unix socket, files and
//! processes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use rustix::{
    net::sockopt,
    process::{Resource, getrlimit},
};
use svc_core::service::process::RequestSender;
use svc_model::{LocalProcess, limits};
use svc_sys::{process_list::ProcessEntry, telemetry};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};
use tokio_util::{
    either::Either,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// The Unix socket in the data folder.
    Local(UnixListener),
}

/// One type for both sockets: hyper's code and ours for a connection exist once in the program.
pub(super) type ClientSocket = Either<TcpStream, UnixStream>;

impl Listener {
    pub(super) async fn next(&self) -> io::Result<(ClientSocket, RequestSender)> {
        match self {
            Self::Tcp(listener) => loop {
                let (stream, from) = listener.accept().await?;
                // A client that has disconnected has no address.
                let Ok(to) = stream.local_addr() else { continue };
                set_options(&stream);
                return Ok((Either::Left(stream), RequestSender::Tcp { from, to }));
            },
            Self::Local(listener) => loop {
                let (stream, _) = listener.accept().await?;
                if let Some(process) = own_process(&stream) {
                    return Ok((Either::Right(stream), RequestSender::Local(process)));
                }
            },
        }
    }
}

fn set_options(stream: &TcpStream) {
    // With Nagle's algorithm a small response would wait for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(error = telemetry::chain(&error), "cannot set TCP_NODELAY");
    }
    // By default the system buffers megabytes, so a stalled client would be noticed late.
    let bytes = limits::SEND_BUFFER_BYTES;
    if let Err(error) = sockopt::set_socket_send_buffer_size(stream, bytes) {
        tracing::debug!(error = telemetry::chain(&error), "cannot set SO_SNDBUF");
    }
}

/// The process at the other end, if it is the daemon's own user's. Connections of others are closed
/// without a response.
fn own_process(stream: &UnixStream) -> Option<LocalProcess> {
    let user = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == user => {
            let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
            // Read now: by the first request the pid may belong to another process.
            let started = pid.and_then(ProcessEntry::read).map(|entry| entry.started);
            return Some(LocalProcess { uid: user, pid, started });
        }
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), "another user's process");
        }
        Err(error) => tracing::warn!(error = telemetry::chain(&error), "an unknown process"),
    }
    None
}

/// The bounds that all listeners share.
#[derive(Debug, Clone)]
pub struct ConnectionBounds(Option<Arc<TcpBounds>>);

#[derive(Debug)]
struct TcpBounds {
    slots: Arc<Semaphore>,
    /// How many connections may wait for a client without a valid credential.
    most_waiting: usize,
    waiting: Mutex<Vec<Arc<ClientConnection>>>,
}

/// The state of a connection that its socket, its requests and the listener share.
#[derive(Debug, Default)]
pub(super) struct ClientConnection {
    bounds: Option<Arc<TcpBounds>>,
    /// The last request that showed a credential had a valid one, or the client is on the Unix
    /// socket.
    is_good: AtomicBool,
    is_listed: AtomicBool,
    checks: TaskTracker,
    /// When the client last sent something, in milliseconds since the first call of `uptime`.
    active_at: AtomicU64,
    /// The connection was chosen to be closed, and its client has sent nothing since.
    is_to_go: AtomicBool,
    closed: Notify,
    under_way: TaskTracker,
    writes: AtomicU64,
    is_stalled: AtomicBool,
    flows: Notify,
}

fn uptime() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl ConnectionBounds {
    /// Bounds for TCP listeners, derived from the limit of file descriptors of this process.
    pub fn of_tcp() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of_descriptors(usize::try_from(descriptors).unwrap_or(usize::MAX))
    }

    /// No bounds, for the Unix socket: it accepts only connections of this user's processes.
    pub fn none() -> Self {
        Self(None)
    }

    fn of_descriptors(descriptors: usize) -> Self {
        let reserve = limits::RESERVED_DESCRIPTORS.max(descriptors / 4);
        let most = descriptors.saturating_sub(reserve);
        let most = most.clamp(limits::LEAST_CONNECTIONS, Semaphore::MAX_PERMITS);
        Self(Some(Arc::new(TcpBounds {
            slots: Arc::new(Semaphore::new(most)),
            most_waiting: limits::UNAUTHENTICATED_CONNECTIONS.min(most / 2),
            waiting: Mutex::default(),
        })))
    }

    /// Waits for a slot. If none is free, the unauthenticated connection that has been idle longest
    /// is closed.
    pub(super) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let bounds = self.0.as_ref()?;
        if let Ok(slot) = Arc::clone(&bounds.slots).try_acquire_owned() {
            return Some(slot);
        }
        TcpBounds::close_longest_idle(&mut bounds.waiting());
        Arc::clone(&bounds.slots).acquire_owned().await.ok()
    }

    pub(super) fn connection(&self) -> Arc<ClientConnection> {
        Arc::new(ClientConnection {
            bounds: self.0.clone(),
            is_good: AtomicBool::new(self.0.is_none()),
            active_at: AtomicU64::new(uptime()),
            ..ClientConnection::default()
        })
    }
}

impl TcpBounds {
    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<ClientConnection>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: &Arc<ClientConnection>) {
        let mut waiting = self.waiting();
        // A connection that is to be closed would push out another that became active with it.
        if client.is_to_go.load(Relaxed) {
            client.is_listed.store(false, Relaxed);
            return;
        }
        waiting.push(Arc::clone(client));
        while waiting.len() > self.most_waiting && Self::close_longest_idle(&mut waiting) {}
    }

    fn remove(&self, client: &ClientConnection) {
        self.waiting().retain(|waiting| !std::ptr::eq(&raw const **waiting, client));
    }

    fn close_longest_idle(waiting: &mut Vec<Arc<ClientConnection>>) -> bool {
        let idle = waiting.iter().enumerate();
        let idle = idle.filter(|(_, client)| client.checks.is_empty());
        let longest = idle.min_by_key(|(_, client)| client.active_at.load(Relaxed));
        let Some(index) = longest.map(|(index, _)| index) else { return false };
        let client = waiting.remove(index);
        client.is_to_go.store(true, Relaxed);
        client.is_listed.store(false, Relaxed);
        client.closed.notify_one();
        true
    }
}

impl ClientConnection {
    /// Marks that all bytes of the client have been read, so the daemon waits for the client.
    pub(super) fn waits_for_client(self: &Arc<Self>) {
        if self.is_good.load(Relaxed) || self.is_listed.swap(true, Relaxed) {
            return;
        }
        if let Some(bounds) = &self.bounds {
            bounds.add(self);
        }
    }

    pub(super) fn note_activity(&self) {
        if !self.is_good.load(Relaxed) {
            self.active_at.store(uptime(), Relaxed);
            self.is_to_go.store(false, Relaxed);
        }
    }

    /// Counts a check of a credential until the token is dropped.
    pub(super) fn check(&self) -> Option<TaskTrackerToken> {
        (!self.is_good.load(Relaxed)).then(|| self.checks.token())
    }

    pub(super) fn is_known(&self) {
        if !self.is_good.swap(true, Relaxed) {
            self.leave();
        }
    }

    /// Counts the connection as unauthenticated again: the credential that it had is over.
    pub(super) fn is_unknown(&self) {
        if self.bounds.is_some() && self.is_good.swap(false, Relaxed) {
            self.note_activity();
        }
    }

    pub(super) fn leave(&self) {
        if self.is_listed.swap(false, Relaxed)
            && let Some(bounds) = &self.bounds
        {
            bounds.remove(self);
        }
    }

    pub(super) fn closed(&self) -> impl Future<Output = ()> {
        self.closed.notified()
    }

    /// Whether the connection is still to be closed, once the bytes that had arrived have been
    /// read.
    pub(super) fn is_to_go(&self) -> bool {
        self.is_to_go.load(Relaxed) && !self.is_good.load(Relaxed)
    }

    /// Counts a request until the token is dropped.
    pub(super) fn begin(&self) -> TaskTrackerToken {
        self.under_way.token()
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.under_way.is_empty()
    }

    pub(super) fn wrote(&self) {
        self.writes.fetch_add(1, Relaxed);
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Relaxed);
        if !is_stalled {
            self.flows.notify_waiters();
        }
    }

    /// Waits while bytes wait for the client: more responses would only queue behind them.
    pub(super) async fn flows(&self) {
        while self.is_stalled.load(Relaxed) {
            // One task polls the socket and the requests, so no wake-up is lost in between.
            self.flows.notified().await;
        }
    }
}

/// The socket of a client, as hyper reads and writes it. The connection ends if the client takes no
/// byte for too long while bytes wait for it.
pub(super) struct ClientIo<S> {
    socket: S,
    client: Arc<ClientConnection>,
    max_wait: Duration,
    /// Runs while the system takes no bytes. When it expires, the connection ends.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> ClientIo<S> {
    pub(super) fn new(socket: S, client: Arc<ClientConnection>, max_wait: Duration) -> Self {
        Self { socket, client, max_wait, stalled: None }
    }

    /// The result of a write, or a timeout if the client has taken nothing for too long.
    fn note(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.client.wrote();
            if self.stalled.take().is_some() {
                self.client.set_stalled(false);
            }
            return written;
        }
        let max_wait = self.max_wait;
        let alarm = self.stalled.get_or_insert_with(|| {
            self.client.set_stalled(true);
            Box::pin(tokio::time::sleep(max_wait))
        });
        ready!(alarm.as_mut().poll(cx));
        tracing::info!(
            seconds = max_wait.as_secs_f32(),
            "closing the connection of a client that reads nothing"
        );
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.socket).poll_read(cx, buffer);
        match &read {
            Poll::Pending => this.client.waits_for_client(),
            Poll::Ready(_) => this.client.note_activity(),
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(cx, bytes);
        this.note(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, slices);
        this.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn is_closed(client: &ClientConnection) -> bool {
        client.closed().now_or_never().is_some()
    }

    fn waiting(bounds: &ConnectionBounds, active_at: u64) -> Arc<ClientConnection> {
        let client = bounds.connection();
        client.active_at.store(active_at, Relaxed);
        client.waits_for_client();
        client
    }

    #[test]
    fn excess_unauthenticated_connection_closes_the_longest_idle() {
        let bounds = ConnectionBounds::of_descriptors(1024);
        let (looked_at, known, oldest) =
            (waiting(&bounds, 1), waiting(&bounds, 2), waiting(&bounds, 3));
        let check = looked_at.check();
        known.is_known();
        let others: Vec<_> = (0..62).map(|n| waiting(&bounds, 10 + n)).collect();
        assert!(!is_closed(&oldest), "64 wait");
        let newest = waiting(&bounds, 100);
        assert!(is_closed(&oldest));
        assert!(!is_closed(&looked_at) && !is_closed(&known) && !is_closed(&newest));
        drop(check);
        others[0].leave();
        let last = waiting(&bounds, 101);
        assert!(!is_closed(&looked_at), "one has left");
        waiting(&bounds, 102);
        assert!(is_closed(&looked_at) && !is_closed(&last));
    }

    #[test]
    fn connection_whose_credential_is_over_counts_again() {
        let bounds = ConnectionBounds::of_descriptors(1024);
        let known: Vec<_> = (0..65)
            .map(|_| {
                let client = waiting(&bounds, 1);
                client.is_known();
                client
            })
            .collect();
        assert!(!known.iter().any(|client| is_closed(client)), "all have shown a good one");
        for (client, active_at) in known.iter().zip(1..) {
            client.is_unknown();
            client.active_at.store(active_at, Relaxed);
            client.waits_for_client();
        }
        assert!(is_closed(&known[0]) && known[0].is_to_go());
        assert!(!known[1..].iter().any(|client| is_closed(client)));
        let local = ConnectionBounds::none().connection();
        local.is_unknown();
        assert!(local.check().is_none(), "the Unix socket has no bound");
    }

    #[test]
    fn connection_that_is_to_be_closed_pushes_nobody_out() {
        let bounds = ConnectionBounds::of_descriptors(1024);
        let all: Vec<_> = (0..65).map(|_| waiting(&bounds, 1)).collect();
        assert!(is_closed(&all[0]));
        // Its task looks once more for bytes that arrived meanwhile.
        all[0].waits_for_client();
        assert!(!all[1..].iter().any(|client| is_closed(client)));
        all[0].note_activity();
        all[0].active_at.store(2, Relaxed);
        all[0].waits_for_client();
        assert!(is_closed(&all[1]), "a connection that sent something stays");
    }

    #[test]
    fn unix_socket_connection_is_never_closed_for_capacity() {
        let client = ConnectionBounds::none().connection();
        client.waits_for_client();
        assert!(client.check().is_none() && !is_closed(&client));
    }

    #[tokio::test]
    async fn tcp_connections_leave_file_descriptors_for_others() {
        for (descriptors, most) in [(64, 16), (256, 160), (1024, 768), (1 << 20, 3 << 18)] {
            let bounds = ConnectionBounds::of_descriptors(descriptors);
            let slots = &bounds.0.as_ref().unwrap().slots;
            assert_eq!(slots.available_permits(), most, "{descriptors}");
        }
        let bounds = ConnectionBounds::of_descriptors(64);
        let mut slots = Vec::new();
        for _ in 0..16 {
            slots.push(bounds.slot().await);
        }
        let idle = waiting(&bounds, 1);
        assert!(bounds.slot().now_or_never().is_none());
        assert!(is_closed(&idle), "it makes room");
        slots.pop();
        assert!(bounds.slot().now_or_never().is_some());
    }

    #[tokio::test]
    async fn write_times_out_for_a_stalled_client_but_not_a_slow_one() {
        let (ours, mut theirs) = duplex(16);
        let mut io = ClientIo::new(ours, Arc::default(), Duration::from_hours(1));
        for _ in 0..64 {
            io.write_all(&[0; 16]).await.unwrap();
            assert!(io.write_all(&[0]).now_or_never().is_none(), "there is no room");
            assert!(io.stalled.is_some());
            theirs.read_exact(&mut [0; 16]).await.unwrap();
            io.write_all(&[0]).await.unwrap();
            // Each byte that is taken ends the timeout.
            assert!(io.stalled.is_none());
            theirs.read_u8().await.unwrap();
        }
        io.max_wait = Duration::from_millis(20);
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
