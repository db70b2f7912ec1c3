//! Shutdown: the first signal drains, the second drops.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The tasks of the daemon and the two tokens that end them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Lifecycle {
    /// First signal: take no new requests, end the streams, finish the requests under way.
    pub(super) soft: CancellationToken,
    /// Second signal: drop the rest.
    pub(super) hard: CancellationToken,
    /// Connections. The drain waits for them.
    pub(super) connections: TaskTracker,
    /// Background work. It ends before shutdown only after a fault.
    pub(super) background: TaskTracker,
}

impl Lifecycle {
    /// Handles SIGTERM, SIGINT and, unless this process was started with it ignored, SIGHUP.
    pub(super) fn listen_to_signals(&self) -> std::io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        let (soft, hard) = (self.soft.clone(), self.hard.clone());
        let listen = async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = next(hangup.as_mut()) => {}
                }
                if soft.is_cancelled() {
                    tracing::warn!("second signal: dropping requests under way");
                    hard.cancel();
                } else {
                    tracing::info!("signal: shutting down");
                    soft.cancel();
                }
            }
        };
        tokio::spawn(listen);
        Ok(())
    }

    /// Runs `work` until the drain. If `work` ends earlier or panics, the daemon shuts down:
    /// clients detect a stopped daemon, but not one that lacks a part.
    pub(super) fn run(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let soft = self.soft.clone();
        self.background.spawn(async move {
            let worker = tokio::spawn(work);
            let abort = worker.abort_handle();
            tokio::select! {
                () = soft.cancelled() => abort.abort(),
                _ = worker => {
                    if !soft.is_cancelled() {
                        tracing::error!(name, "a background task ended by itself");
                        soft.cancel();
                    }
                }
            }
        });
    }

    /// Waits for the connections to finish, until `timeout` or the second signal.
    pub(super) async fn drain(&self, timeout: Duration) {
        self.connections.close();
        tokio::select! {
            () = self.connections.wait() => {}
            () = self.hard.cancelled() => {}
            () = tokio::time::sleep(timeout) => {
                tracing::warn!(open = self.connections.len(), "connections did not end in time");
            }
        }
    }
}

/// The next signal; pending for ever without a stream.
async fn next(signals: Option<&mut Signal>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether this process was started by `nohup` or the like and should outlive the terminal. Known
/// on Linux only.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
