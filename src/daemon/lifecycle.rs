//! Going down: the first signal asks, the second insists.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The tasks of the daemon and the two words that end them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Lifecycle {
    /// First signal: take nothing new, end the streams, finish what is under way.
    pub(super) soft: CancellationToken,
    /// Second signal, or the end of patience: drop the rest.
    pub(super) hard: CancellationToken,
    /// Connections, so that the end can wait for them.
    pub(super) connections: TaskTracker,
    /// Background work. It ends by itself only if something is wrong.
    pub(super) background: TaskTracker,
}

impl Lifecycle {
    /// Listens to SIGTERM, SIGINT and, unless whoever started us has it ignored, SIGHUP from now on.
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
                    tracing::warn!("second signal: dropping what is under way");
                    hard.cancel();
                } else {
                    tracing::info!("signal: going down");
                    soft.cancel();
                }
            }
        };
        tokio::spawn(listen);
        Ok(())
    }

    /// Runs `work` until the soft end. If it ends earlier, or panics, the daemon goes down: half a daemon is worse
    /// than none.
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

    /// Waits for the connections to finish, no longer than `patience` and not after the hard end.
    pub(super) async fn drain(&self, patience: Duration) {
        self.connections.close();
        tokio::select! {
            () = self.connections.wait() => {}
            () = self.hard.cancelled() => {}
            () = tokio::time::sleep(patience) => {
                tracing::warn!(open = self.connections.len(), "connections did not end in time");
            }
        }
    }
}

/// The next of these signals; never if there is nothing to listen to.
async fn next(signals: Option<&mut Signal>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether we were started by `nohup` or the like, and are to outlive the terminal. Known on Linux alone.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The first bit is that of signal 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
