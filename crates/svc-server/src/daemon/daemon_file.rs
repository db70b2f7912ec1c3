//! `daemon.json`: pid, URL and boot id of the running daemon.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use svc_client::DaemonFile;
use svc_model::Timestamp;
use svc_store::DatabaseLock;
use svc_sys::config::Paths;
use svc_sys::private_file;
use svc_sys::process_list::is_running;
use svc_sys::telemetry;

/// The file whose existence keeps the daemon stopped.
const STOPPED: &str = "stopped";
/// How often `daemon.json` is polled for the holder of a lock.
const POLL: Duration = Duration::from_millis(20);

/// The daemon that holds the database's lock, if it writes `daemon.json` within `patience`.
///
/// Of several daemons that start at once, the one with the lock may not be ready yet and has not
/// written the file.
pub fn lock_holder(paths: &Paths, patience: Duration) -> Option<DaemonFile> {
    let deadline = Instant::now() + patience;
    loop {
        let daemon = live_file(paths);
        if daemon.is_some() || Instant::now() >= deadline {
            return daemon;
        }
        std::thread::sleep(POLL);
    }
}

/// The content of the file, if its process holds the lock of the database.
///
/// A daemon that was killed leaves its file, and the system may give its pid to another process.
pub fn live_file(paths: &Paths) -> Option<DaemonFile> {
    let holds = |pid: i32| {
        u32::try_from(pid).is_ok_and(is_running) && DatabaseLock::is_held_by(&paths.lock, pid)
    };
    DaemonFile::read(&paths.daemon_json).filter(|file| holds(file.pid))
}

/// Whether the last daemon was killed: its file exists, and no daemon holds the database. A daemon
/// that ends by itself removes the file.
pub fn was_killed(paths: &Paths) -> bool {
    DaemonFile::read(&paths.daemon_json).is_some() && !DatabaseLock::is_held(&paths.lock)
}

/// Removes the file of a killed daemon, so that no waiter starts the daemon again.
pub fn forget_killed(paths: &Paths) {
    if was_killed(paths) {
        std::fs::remove_file(&paths.daemon_json).ok();
    }
}

/// Whether a person wants the daemon to stay stopped: then only `svc start` starts it, no hook and
/// no client.
pub fn stays_stopped(paths: &Paths) -> bool {
    paths.home.join(STOPPED).exists()
}

/// Keeps the daemon stopped until `forget_stopped`.
pub fn keep_stopped(paths: &Paths) -> io::Result<()> {
    private_file::prepare_home(&paths.home)?;
    private_file::replace(&paths.home.join(STOPPED), b"svc start\n")
}

/// Allows the daemon to be started again, also after it was killed.
pub(super) fn forget_stopped(paths: &Paths) {
    // A missing file means the same.
    std::fs::remove_file(paths.home.join(STOPPED)).ok();
}

/// Writes the file and returns the URL in it.
pub(super) fn write(
    paths: &Paths,
    addresses: &[SocketAddr],
    boot_id: &str,
    started_at: Timestamp,
) -> anyhow::Result<String> {
    let url = addresses.first().map(|address| local_url(*address)).unwrap_or_default();
    let file = DaemonFile {
        pid: std::process::id().try_into()?,
        url: url.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: boot_id.to_owned(),
        started_at: started_at.to_string(),
    };
    forget_stopped(paths);
    // No sync: after a power cut the file is stale in any case.
    private_file::replace_fleeting(&paths.daemon_json, &serde_json::to_vec_pretty(&file)?)?;
    Ok(url)
}

/// Removes the file, unless another daemon has written its own since.
pub(super) fn remove(paths: &Paths, boot_id: &str) {
    let is_ours = DaemonFile::read(&paths.daemon_json).is_some_and(|file| file.boot_id == boot_id);
    if is_ours && let Err(error) = std::fs::remove_file(&paths.daemon_json) {
        tracing::warn!(error = telemetry::chain(&error), "cannot remove daemon.json");
    }
}

/// The URL at which clients on this machine reach an address.
pub(super) fn local_url(address: SocketAddr) -> String {
    let ip = address.ip();
    match (ip.is_unspecified(), ip) {
        (true, IpAddr::V4(_)) => format!("http://127.0.0.1:{}", address.port()),
        (true, IpAddr::V6(_)) => format!("http://[::1]:{}", address.port()),
        (false, _) => format!("http://{address}"),
    }
}
