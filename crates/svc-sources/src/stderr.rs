//! Error output of servers as events: a server has a rate, and what is beyond it is counted.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use svc_model::limits::SOURCE_STDERR_BYTES;
use tokio::{sync::mpsc, time::Instant};

use super::spec::SourceSpec;

/// What a row costs beside its text, in bytes: short lines fill a disk, too.
const ROW: usize = 64;
/// Length of a window.
const WINDOW: Duration = Duration::from_mins(1);
/// After so long a time without another one the lines that were dropped are told of.
const QUIET: Duration = Duration::from_secs(1);

/// How much of one server's error output is kept, of all its instances together.
#[derive(Debug, Default)]
pub(super) struct StderrQuota(Mutex<StderrWindow>);

#[derive(Debug, Default)]
struct StderrWindow {
    began: Option<Instant>,
    kept: usize,
    dropped: DroppedLines,
    /// When the last one was dropped.
    dropped_at: Option<Instant>,
    /// Dropped lines of this window were told of once. The next time is its end.
    is_told: bool,
}

/// Lines of error output that are not kept.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct DroppedLines {
    lines: u64,
    bytes: u64,
}

impl DroppedLines {
    /// The event that tells of them.
    pub(super) fn event(self) -> Value {
        let Self { lines, bytes } = self;
        let kept = SOURCE_STDERR_BYTES / 1024;
        let text = format!(
            "svc: {lines} lines with {bytes} bytes are not kept: of a server {kept} KiB a minute are"
        );
        json!({ "data": text, "dropped_lines": lines, "dropped_bytes": bytes })
    }
}

impl StderrQuota {
    /// Whether a line is kept. One that is not is counted.
    fn take(&self, bytes: usize, now: Instant) -> bool {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.is_none_or(|began| now >= began + WINDOW) {
            (window.began, window.kept, window.is_told) = (Some(now), 0, false);
        }
        let kept = window.kept + bytes + ROW;
        if kept > SOURCE_STDERR_BYTES {
            window.drop_line(bytes, now);
            return false;
        }
        window.kept = kept;
        true
    }

    /// Counts a line that nobody took in time.
    fn refuse(&self, bytes: usize, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drop_line(bytes, now);
    }

    /// What was dropped and not told yet, once it is time to tell: when the flood pauses, and at the end of a minute.
    pub(super) fn report(&self, now: Instant) -> Option<DroppedLines> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = window.began.is_none_or(|began| now >= began + WINDOW);
        let is_quiet = window.dropped_at.is_some_and(|dropped| now >= dropped + QUIET);
        if window.dropped.lines == 0 || !(is_over || (is_quiet && !window.is_told)) {
            return None;
        }
        window.is_told = true;
        Some(std::mem::take(&mut window.dropped))
    }
}

impl StderrWindow {
    fn drop_line(&mut self, bytes: usize, now: Instant) {
        self.dropped.lines += 1;
        self.dropped.bytes += bytes as u64;
        self.dropped_at = Some(now);
    }
}

/// Takes lines of a server's error output for its stream.
#[derive(Debug, Clone)]
pub(super) struct StderrLines {
    pub(super) spec: Arc<SourceSpec>,
    pub(super) lines: mpsc::Sender<(Arc<SourceSpec>, String)>,
    pub(super) quota: Arc<StderrQuota>,
}

impl StderrLines {
    /// Takes a line, as far as the server has room for it.
    pub(super) fn say(&self, line: &str) {
        let now = Instant::now();
        if !self.quota.take(line.len(), now) {
            return;
        }
        if self.lines.try_send((Arc::clone(&self.spec), line.to_owned())).is_err() {
            self.quota.refuse(line.len(), now);
        }
    }
}

/// The event of a line of error output.
pub(super) fn stderr_event(line: &str) -> Value {
    json!({ "data": line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_its_bound_and_the_rest_is_counted() {
        let (quota, start) = (StderrQuota::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let flood = |now| (0..10_000).filter(|_| quota.take(100, now)).count();
        let kept = flood(start);
        assert!(kept * 100 <= SOURCE_STDERR_BYTES && kept > 300, "{kept}");
        let dropped =
            DroppedLines { lines: 10_000 - kept as u64, bytes: (10_000 - kept as u64) * 100 };
        assert_eq!(quota.report(start), None, "the flood goes on");
        assert_eq!(quota.report(at(2)), Some(dropped));
        assert_eq!(quota.report(at(3)), None);
        // The same minute: nothing more is kept, and the rest is told of at its end.
        assert_eq!(flood(at(30)), 0);
        assert_eq!(quota.report(at(40)), None);
        assert_eq!(quota.report(at(61)), Some(DroppedLines { lines: 10_000, bytes: 1_000_000 }));
        assert_eq!(flood(at(61)), kept, "a new minute");
        // Short lines cost a row each.
        let quota = StderrQuota::default();
        assert!((0..100_000).filter(|_| quota.take(1, start)).count() < 1100);
    }
}
