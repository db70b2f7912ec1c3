//! Starts the daemon again that was killed while all sessions were idle: a waiter is the only one
//! of us that runs then.
//!
//! A daemon that ends by itself removes `daemon.json`: `svc stop`, a signal, a log-out. So the file
//! without its process is the sign that it was killed.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use svc_server::daemon::{stays_stopped, was_killed};
use svc_sys::private_file;
use tokio::time::Instant;

use super::hook_log::HookLog;
use crate::cli::context::Context;
use crate::cli::daemon;

/// How long the daemon is left to others, who may start it again: a service manager, or a person.
const GRACE: Duration = Duration::from_secs(3);
/// Most starts of all waiters together within [`STARTS_WINDOW`]: a daemon that dies at its start is
/// not started all the time, and one that is killed again comes back.
const STARTS: usize = 3;
const STARTS_WINDOW: Duration = Duration::from_mins(1);

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

    /// Notes that no daemon is there, and starts it if it was killed some time ago and nobody else
    /// does.
    pub(super) async fn is_away(&mut self, context: &Context, log: &HookLog) {
        // Of a daemon at a URL nobody knows here what became of it.
        let is_local = context.agent_discovery().is_ok_and(|discovery| discovery.fixed().is_none());
        if !is_local || !was_killed(&context.paths) || stays_stopped(&context.paths) {
            self.away_since = None;
            return;
        }
        if self.away_since.get_or_insert_with(Instant::now).elapsed() < GRACE {
            return;
        }
        let mut turn = match StartTurn::take(&context.paths.home.join("revival.lock")) {
            Ok(Some(turn)) => turn,
            // Another waiter starts it, or it was started too often.
            Ok(None) => return,
            Err(error) => return log.note("wait", &format!("revival.lock: {error}")),
        };
        // Another waiter may have started it between.
        if !was_killed(&context.paths) {
            return;
        }
        if let Err(error) = turn.note_start() {
            return log.note("wait", &format!("revival.lock: {error}"));
        }
        if let Err(error) = daemon::ensure_apart(context).await {
            let problem = format!("the daemon was killed and could not be started: {error:#}");
            log.note("wait", &problem);
        }
        // The next time that it is killed others have time again.
        self.away_since = None;
        drop(turn);
    }
}

/// The right to start the daemon, which one waiter has at a time, at most [`STARTS`] times within
/// [`STARTS_WINDOW`].
#[derive(Debug)]
struct StartTurn {
    /// Its lock is given back when it is closed.
    file: File,
    /// When the daemon was started within the window, in milliseconds of the machine's clock.
    starts: Vec<u64>,
}

impl StartTurn {
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = private_file::append(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let now = milliseconds();
        let window = u64::try_from(STARTS_WINDOW.as_millis()).unwrap_or(u64::MAX);
        // Of an earlier version there may be words, and after the clock was set back a time to
        // come.
        let starts: Vec<u64> = std::fs::read_to_string(path)?
            .lines()
            .filter_map(|line| line.parse().ok())
            .filter(|at| now.checked_sub(*at).is_some_and(|since| since < window))
            .collect();
        Ok((starts.len() < STARTS).then_some(Self { file, starts }))
    }

    fn note_start(&mut self) -> io::Result<()> {
        self.starts.push(milliseconds());
        self.file.set_len(0)?;
        let lines: Vec<String> = self.starts.iter().map(u64::to_string).collect();
        self.file.write_all(lines.join("\n").as_bytes())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with what other processes wrote, by the machine's clock"
)]
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
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
        let log = HookLog::new(&context);
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
        svc_server::daemon::forget_killed(&context.paths);
        revival.is_away(&context, &log).await;
        assert_eq!(revival.away_since, None, "somebody stopped it");
        assert!(!folder.path().join("revival.lock").exists(), "nothing was started");
    }

    #[test]
    fn one_waiter_starts_the_daemon_a_few_times_a_minute() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("revival.lock");
        std::fs::write(&path, "a waiter has started the daemon\n").expect("of an earlier version");
        let take = || StartTurn::take(&path).expect("a file");
        let first = take().expect("the first");
        assert!(take().is_none(), "it is being started");
        drop(first);
        for _ in 0..STARTS {
            drop(take().expect("who starts nothing uses up nothing"));
            take().expect("it was killed again").note_start().expect("writes");
        }
        assert!(take().is_none(), "it dies at its start");
        let starts = std::fs::read_to_string(&path).expect("text");
        assert_eq!(starts.lines().count(), STARTS);
        let oldest: u64 = starts.lines().next().expect("one").parse().expect("a time");
        let window = u64::try_from(STARTS_WINDOW.as_millis()).expect("small");
        let earlier = starts.replacen(&oldest.to_string(), &(oldest - window).to_string(), 1);
        std::fs::write(&path, earlier).expect("writes");
        take().expect("the first is long ago").note_start().expect("writes");
        assert!(take().is_none());
    }
}
