//! Watches over the command: signals, cancel requests, and its end.

use std::io::IsTerminal as _;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Incoming, SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use super::child::Group;
use super::notice::{Notify, RunNotice};

/// How long a command that was asked to stop may take.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How often a command on a terminal is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Signals to this process.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Incoming,
    terminate: Incoming,
    hangup: Incoming,
}

/// What happened on the way to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Story {
    /// Someone asked for the task to stop, and so we stopped it.
    pub(crate) cancelled: bool,
}

impl Signals {
    /// Takes SIGINT, SIGTERM and SIGHUP from now on.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

/// Waits for `work`, the command and its output, and passes on what happens meanwhile.
///
/// The first signal goes to the group as it is; a second one kills it and turns `quiet`. `cancel` ends when someone
/// asks the task to stop, `refused` when there can be no task: SIGTERM, and after [`GRACE`] SIGKILL.
pub(crate) async fn supervise<T>(
    group: Group,
    signals: &mut Signals,
    quiet: &CancellationToken,
    notify: Notify,
    work: impl Future<Output = T>,
    cancel: impl Future<Output = ()>,
    refused: impl Future<Output = ()>,
) -> (T, Story) {
    tokio::pin!(work, cancel, refused);
    let mut story = Story { cancelled: false };
    let (mut signalled, mut stopping, mut kill_at) = (false, false, None::<Instant>);
    let mut warn = std::io::stdin().is_terminal();
    let mut looks = interval(LOOK);
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            signal = signals.next() => {
                if signalled {
                    quiet.cancel();
                    group.signal(Signal::KILL);
                } else {
                    group.signal(signal);
                }
                signalled = true;
            }
            () = &mut cancel, if !stopping => {
                (stopping, story.cancelled) = (true, true);
                kill_at = Some(Instant::now() + GRACE);
                group.signal(Signal::TERM);
            }
            () = &mut refused, if !stopping => {
                stopping = true;
                kill_at = Some(Instant::now() + GRACE);
                group.signal(Signal::TERM);
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                kill_at = None;
                group.signal(Signal::KILL);
            }
            _ = looks.tick(), if warn => if group.wants_terminal() {
                warn = false;
                notify(RunNotice::NeedsTerminal);
            },
        }
    };
    if stopping {
        // Whoever of the group outlived the command was asked to stop too.
        group.signal(Signal::KILL);
    }
    (result, story)
}
