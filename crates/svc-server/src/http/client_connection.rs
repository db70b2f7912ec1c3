//! The state of a client's connection, and the bound on connections whose client has shown no
//! credential.
//!
//! A connection that waits for a client without a valid credential is on a list of at most 64. One
//! more closes the one that is idle longest, even if that client has sent half a head or nothing at
//! all. Connections whose credential is being checked wait for the daemon and are not closed.
//! Connections over TCP leave file descriptors for the Unix socket, files and processes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use rustix::process::{Resource, getrlimit};
use svc_model::limits;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The bounds that all listeners share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionBounds(Option<Arc<TcpBounds>>);

#[derive(Debug)]
struct TcpBounds {
    /// One permit for each possible connection.
    slots: Arc<Semaphore>,
    newcomers: UnauthenticatedConnections,
}

/// Connections that wait for a client without a valid credential.
#[derive(Debug)]
struct UnauthenticatedConnections {
    most: usize,
    waiting: Mutex<Vec<Arc<ClientConnection>>>,
}

/// The state of a connection that its socket, its requests and the listener share.
#[derive(Debug, Default)]
pub(super) struct ClientConnection {
    bounds: Option<Arc<TcpBounds>>,
    /// A request came with a valid credential, or the Unix socket shows whose process the client
    /// is.
    is_good: AtomicBool,
    is_listed: AtomicBool,
    /// Requests whose credential is being checked.
    checks: AtomicUsize,
    /// When the client last sent something, in milliseconds since the first call of `uptime`.
    heard_at: AtomicU64,
    /// It was chosen to be closed, and its client has sent nothing since.
    is_to_go: AtomicBool,
    closed: Notify,
    /// Requests without a complete response.
    under_way: AtomicUsize,
    /// How often the system took bytes for the client.
    writes: AtomicU64,
    is_stalled: AtomicBool,
    flows: Notify,
}

/// Counts a request until its response is complete.
#[derive(Debug)]
pub(super) struct RequestInProgress(Arc<ClientConnection>);

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// Counts a check of a credential.
#[derive(Debug)]
pub(super) struct CredentialCheck(Arc<ClientConnection>);

impl Drop for CredentialCheck {
    fn drop(&mut self) {
        self.0.checks.fetch_sub(1, Relaxed);
    }
}

/// Milliseconds since the first call.
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
            newcomers: UnauthenticatedConnections {
                most: limits::UNAUTHENTICATED_CONNECTIONS.min(most / 2),
                waiting: Mutex::default(),
            },
        })))
    }

    /// Waits for capacity for one more connection. If there is none, the longest idle client
    /// without a credential is closed.
    pub(super) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let bounds = self.0.as_ref()?;
        if let Ok(slot) = Arc::clone(&bounds.slots).try_acquire_owned() {
            return Some(slot);
        }
        UnauthenticatedConnections::close_longest_idle(&mut bounds.newcomers.lock());
        Arc::clone(&bounds.slots).acquire_owned().await.ok()
    }

    /// The state of a new connection.
    pub(super) fn connection(&self) -> Arc<ClientConnection> {
        Arc::new(ClientConnection {
            bounds: self.0.clone(),
            is_good: AtomicBool::new(self.0.is_none()),
            heard_at: AtomicU64::new(uptime()),
            ..ClientConnection::default()
        })
    }
}

impl UnauthenticatedConnections {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ClientConnection>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: &Arc<ClientConnection>) {
        let mut waiting = self.lock();
        waiting.push(Arc::clone(client));
        while waiting.len() > self.most && Self::close_longest_idle(&mut waiting) {}
    }

    fn remove(&self, client: &ClientConnection) {
        self.lock().retain(|waiting| !std::ptr::eq(&raw const **waiting, client));
    }

    fn close_longest_idle(waiting: &mut Vec<Arc<ClientConnection>>) -> bool {
        let idle = waiting.iter().enumerate();
        let idle = idle.filter(|(_, client)| client.checks.load(Relaxed) == 0);
        let longest = idle.min_by_key(|(_, client)| client.heard_at.load(Relaxed));
        let Some(index) = longest.map(|(index, _)| index) else { return false };
        let client = waiting.remove(index);
        client.is_to_go.store(true, Relaxed);
        client.is_listed.store(false, Relaxed);
        client.closed.notify_one();
        true
    }
}

impl ClientConnection {
    /// Marks that all bytes of the client have been read, and the client has to send more.
    pub(super) fn waits_for_client(self: &Arc<Self>) {
        if self.is_good.load(Relaxed) || self.is_listed.swap(true, Relaxed) {
            return;
        }
        if let Some(bounds) = &self.bounds {
            bounds.newcomers.add(self);
        }
    }

    /// Notes that the client has sent something.
    pub(super) fn heard(&self) {
        if !self.is_good.load(Relaxed) {
            self.heard_at.store(uptime(), Relaxed);
            self.is_to_go.store(false, Relaxed);
        }
    }

    /// Counts a check of a credential until the guard is dropped.
    pub(super) fn check(self: &Arc<Self>) -> Option<CredentialCheck> {
        if self.is_good.load(Relaxed) {
            return None;
        }
        self.checks.fetch_add(1, Relaxed);
        Some(CredentialCheck(Arc::clone(self)))
    }

    /// Marks that a request came with a valid credential.
    pub(super) fn is_known(&self) {
        if !self.is_good.swap(true, Relaxed) {
            self.leave();
        }
    }

    /// Removes the connection from the list when it ends.
    pub(super) fn leave(&self) {
        if self.is_listed.load(Relaxed)
            && let Some(bounds) = &self.bounds
        {
            bounds.newcomers.remove(self);
        }
    }

    /// Waits until the connection is chosen to be closed.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Whether the connection still is to be closed: bytes that the client sent before are read
    /// first.
    pub(super) fn is_to_go(&self) -> bool {
        self.is_to_go.load(Relaxed) && !self.is_good.load(Relaxed)
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> RequestInProgress {
        self.under_way.fetch_add(1, Relaxed);
        RequestInProgress(Arc::clone(self))
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.under_way.load(Relaxed) > 0
    }

    /// Notes that the system has taken bytes.
    pub(super) fn wrote(&self) {
        self.writes.fetch_add(1, Relaxed);
    }

    /// How often the system took bytes.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// Sets whether bytes wait for the client.
    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Relaxed);
        if !is_stalled {
            self.flows.notify_waiters();
        }
    }

    /// Waits while bytes wait for the client: responses to pipelined requests would only queue
    /// behind them.
    pub(super) async fn flows(&self) {
        while self.is_stalled.load(Relaxed) {
            let flows = self.flows.notified();
            // One task polls the socket and the requests of a connection, so no wake-up is lost in
            // between.
            flows.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn is_closed(client: &ClientConnection) -> bool {
        client.closed().now_or_never().is_some()
    }

    fn waiting(bounds: &ConnectionBounds, heard_at: u64) -> Arc<ClientConnection> {
        let client = bounds.connection();
        client.heard_at.store(heard_at, Relaxed);
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
}
