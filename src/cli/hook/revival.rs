//! Starts the daemon again that was killed while all sessions were idle: a waiter is the only one of us that runs then.
//!
//! A daemon that ends by itself removes `daemon.json`: `svc stop`, a signal, a log-out. So the file without its process is the
//! sign that it was killed.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::hook_log::HookLog;
use crate::cli::context::Context;
use crate::cli::daemon;
use crate::daemon::was_killed;
use crate::private_file;

/// How long the daemon is left to others, who may start it again: a service manager, or a person.
const GRACE: Duration = Duration::from_secs(3);
/// Time between two starts, of all waiters together: a daemon that dies at its start is not started all the time.
const BETWEEN_STARTS: Duration = Duration::from_mins(1);

/// What one waiter has seen of a daemon that is away.
#[derive(Debug, Default)]
pub(super) struct DaemonRevival {
    away_since: Option<Instant>,
}

impl DaemonRevival {
    /// Notes that the daemon answered.
    pub(super) fn is_there(&mut self) {
        self.away_since = None;
    }

    /// Notes that no daemon is there, and starts it if it was killed some time ago and nobody else does.
    pub(super) async fn is_away(&mut self, context: &Context, log: &HookLog) {
        // Of a daemon at a URL nobody knows here what became of it.
        let is_local = context.discovery().is_ok_and(|discovery| discovery.fixed().is_none());
        if !is_local || !was_killed(&context.paths) {
            self.away_since = None;
            return;
        }
        if self.away_since.get_or_insert_with(Instant::now).elapsed() < GRACE {
            return;
        }
        let turn = match StartTurn::take(&context.paths.home.join("revival.lock")) {
            Ok(Some(turn)) => turn,
            // Another waiter starts it, or has just tried.
            Ok(None) => return,
            Err(error) => return log.note("wait", &format!("revival.lock: {error}")),
        };
        if was_killed(&context.paths)
            && let Err(error) = daemon::ensure_apart(context).await
        {
            let problem = format!("the daemon was killed and could not be started: {error:#}");
            log.note("wait", &problem);
        }
        drop(turn);
    }
}

/// The right to start the daemon, which one waiter has at a time, once in [`BETWEEN_STARTS`].
#[derive(Debug)]
struct StartTurn(#[expect(dead_code, reason = "its lock is given back when it is closed")] File);

impl StartTurn {
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the time of a file, which is the machine's"
    )]
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut file = private_file::append(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let (now, meta) = (SystemTime::now(), file.metadata()?);
        let since = now.duration_since(meta.modified()?);
        // The file that was made just now is empty.
        if meta.len() > 0 && since.is_ok_and(|since| since < BETWEEN_STARTS) {
            return Ok(None);
        }
        file.set_len(0)?;
        file.write_all(b"a waiter has started the daemon\n")?;
        Ok(Some(Self(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::global_flags::GlobalFlags;

    /// A file of a daemon that was killed is what makes the difference.
    #[tokio::test]
    async fn a_daemon_that_was_stopped_is_not_missed() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = GlobalFlags { home: Some(folder.path().to_owned()), ..GlobalFlags::default() };
        let context = Context::new(flags).expect("a context");
        let log = HookLog::of(&context);
        let mut revival = DaemonRevival::default();
        revival.is_away(&context, &log).await;
        assert_eq!(revival.away_since, None, "there never was one");
        let file =
            r#"{"pid":1,"url":"http://127.0.0.1:1","version":"0","boot_id":"b","started_at":"t"}"#;
        std::fs::write(&context.paths.daemon_json, file).expect("writes");
        revival.is_away(&context, &log).await;
        let since = revival.away_since.expect("it was killed");
        revival.is_away(&context, &log).await;
        assert_eq!(revival.away_since, Some(since), "others have time to start it");
        crate::daemon::forget_killed(&context.paths);
        revival.is_away(&context, &log).await;
        assert_eq!(revival.away_since, None, "somebody stopped it");
        assert!(!folder.path().join("revival.lock").exists(), "nothing was started");
    }

    #[expect(clippy::disallowed_methods, reason = "the time of a file is the machine's")]
    #[test]
    fn one_waiter_starts_the_daemon_once_in_a_while() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("revival.lock");
        let take = || StartTurn::take(&path).expect("a file");
        let first = take().expect("the first");
        assert!(take().is_none(), "it is being started");
        drop(first);
        assert!(take().is_none(), "it was started just now");
        let file = File::options().append(true).open(&path).expect("it is there");
        file.set_modified(SystemTime::now() - BETWEEN_STARTS).expect("its owner");
        assert!(take().is_some());
        assert!(take().is_none());
    }
}
