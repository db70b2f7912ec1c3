//! Files of a daemon in its data folder: `daemon.json`, with pid, URL and boot id of the running
//! daemon; the mark that keeps it stopped; and the host name of the page.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use svc_client::{DaemonFile, Url};
use svc_model::{Timestamp, new_secret};
use svc_store::DatabaseLock;
use svc_sys::config::Paths;
use svc_sys::private_file;
use svc_sys::process_list::is_running;
use svc_sys::telemetry;

/// The file whose existence keeps the daemon stopped.
const STOPPED: &str = "stopped";
/// How often `daemon.json` is polled for the holder of a lock.
const POLL: Duration = Duration::from_millis(20);
/// Characters of the random part of the page's host name.
const PAGE_NAME_LENGTH: usize = 16;

/// The daemon that holds the database's lock, if it writes `daemon.json` within `max_wait`.
///
/// When several daemons start at once, the one that got the lock may not have written the file yet.
pub fn lock_holder(paths: &Paths, max_wait: Duration) -> Option<DaemonFile> {
    let deadline = Instant::now() + max_wait;
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

/// Whether a person stopped the daemon for good: then only `svc start` starts it.
pub fn stays_stopped(paths: &Paths) -> bool {
    paths.home.join(STOPPED).exists()
}

/// Keeps the daemon stopped until the next start by a person.
pub fn keep_stopped(paths: &Paths) -> io::Result<()> {
    private_file::prepare_home(&paths.home)?;
    private_file::replace(&paths.home.join(STOPPED), b"svc start\n")
}

/// Writes the file and returns the URL in it.
pub(super) fn write(
    paths: &Paths,
    addresses: &[SocketAddr],
    boot_id: &str,
    started_at: Timestamp,
    db: &Path,
) -> anyhow::Result<String> {
    let url = addresses.first().map(|address| Url::from_listener(*address).to_string());
    let url = url.unwrap_or_default();
    let file = DaemonFile {
        pid: std::process::id().try_into()?,
        url: url.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: boot_id.to_owned(),
        started_at: started_at.to_string(),
        db: Some(db.display().to_string()),
    };
    // Every start clears the mark, so that later starts are allowed. The mark may be missing.
    std::fs::remove_file(paths.home.join(STOPPED)).ok();
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

/// The host name of the page, `svc-<random>.localhost`. The first call for a data folder creates
/// it.
///
/// A browser keeps cookies by host and not by port. Under `localhost` or `127.0.0.1` it would send
/// the page's cookie to every server of this machine; under a name that no other server knows it
/// sends the cookie to the daemon alone. So no unauthenticated response contains the name.
pub fn page_host(paths: &Paths) -> io::Result<String> {
    if let Some(host) = read_page_host(paths)? {
        return Ok(host);
    }
    let name = &new_secret()[..PAGE_NAME_LENGTH];
    match private_file::create_new(&paths.page_name, format!("{name}\n").as_bytes()) {
        Ok(()) => Ok(host_of(name)),
        // A concurrent call created the file.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            read_page_host(paths)?.ok_or_else(|| ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}

fn read_page_host(paths: &Paths) -> io::Result<Option<String>> {
    let Some(text) = private_file::read_secret(&paths.page_name)? else { return Ok(None) };
    let name = text.trim();
    let is_name = (8..=32).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if !is_name {
        let why = "it has no name of 8 to 32 of 0-9 and a-z: remove it, and the next start makes a new one";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(Some(host_of(name)))
}

fn host_of(name: &str) -> String {
    format!("svc-{name}.localhost")
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use svc_sys::config::Env;

    use super::*;

    #[test]
    fn page_host_is_kept_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::resolve(&Env::default(), Some(folder.path())).unwrap();
        let host = page_host(&paths).unwrap();
        let name = host.strip_prefix("svc-").unwrap().strip_suffix(".localhost").unwrap();
        assert_eq!(name.len(), PAGE_NAME_LENGTH);
        assert_eq!(page_host(&paths).unwrap(), host);
        let mode = fs::metadata(&paths.page_name).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for broken in ["", "short", "With-Capitals", "a.b.c.d.e.f", "evil.example/aaaa"] {
            fs::write(&paths.page_name, broken).unwrap();
            assert!(page_host(&paths).is_err(), "{broken}");
        }
    }
}
