//! `daemon.json`: how others find this daemon.

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

/// The file that says that the daemon is to stay stopped.
const STOPPED: &str = "stopped";
/// How often a lock's holder is looked for in `daemon.json`.
const POLL: Duration = Duration::from_millis(20);

/// The daemon that holds the database's lock, if it says who it is within `patience`.
///
/// Of several daemons that start at once, the one that has the lock is not ready yet and has
/// written no file.
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

/// What the file says, if the process that it names holds the lock of the database.
///
/// A daemon that was killed leaves its file behind, and its pid goes to any other process.
pub fn live_file(paths: &Paths) -> Option<DaemonFile> {
    let holds = |pid: i32| {
        u32::try_from(pid).is_ok_and(is_running) && DatabaseLock::is_held_by(&paths.lock, pid)
    };
    DaemonFile::read(&paths.daemon_json).filter(|file| holds(file.pid))
}

/// Whether the last daemon was killed: it left its file behind, and no daemon holds the database.
/// One that ends by itself removes the file.
pub fn was_killed(paths: &Paths) -> bool {
    DaemonFile::read(&paths.daemon_json).is_some() && !DatabaseLock::is_held(&paths.lock)
}

/// Removes what a daemon that was killed left behind, so that nobody takes it for one that should
/// run.
pub fn forget_killed(paths: &Paths) {
    if was_killed(paths) {
        std::fs::remove_file(&paths.daemon_json).ok();
    }
}

/// Whether a person wants the daemon to stay stopped: no hook and no client starts it before
/// `svc start`.
pub fn stays_stopped(paths: &Paths) -> bool {
    paths.home.join(STOPPED).exists()
}

/// Notes that the daemon is to stay stopped.
pub fn keep_stopped(paths: &Paths) -> io::Result<()> {
    private_file::prepare_home(&paths.home)?;
    private_file::replace(&paths.home.join(STOPPED), b"svc start\n")
}

/// Forgets that. A daemon that runs is not to stay stopped, and is started again if it is killed.
pub(super) fn forget_stopped(paths: &Paths) {
    // Without the file nobody wants it to stay stopped.
    std::fs::remove_file(paths.home.join(STOPPED)).ok();
}

/// Writes the file and answers the URL in it.
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
    // After a power cut the file is stale in any case, so no disk is waited for.
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

/// An address as clients on this machine reach it.
pub(super) fn local_url(address: SocketAddr) -> String {
    let ip = address.ip();
    match (ip.is_unspecified(), ip) {
        (true, IpAddr::V4(_)) => format!("http://127.0.0.1:{}", address.port()),
        (true, IpAddr::V6(_)) => format!("http://[::1]:{}", address.port()),
        (false, _) => format!("http://{address}"),
    }
}
