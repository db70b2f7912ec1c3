//! Passes signals and cancel requests on to the program until it has ended.

use std::io::IsTerminal as _;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, interval, sleep_until};

use super::child::ProcessGroup;
use super::observer::{RunNotice, RunObserver};
use super::signals::Signals;

/// How long a program that was asked to stop may take before it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// How often a program that may read from a terminal is looked at.
const TERMINAL_POLL: Duration = Duration::from_secs(1);

/// Watches over one program.
///
/// The first signal goes to its group as it is; a second one kills the group and mutes the observer. A program that is
/// asked to stop gets SIGTERM, and SIGKILL after [`GRACE`].
#[derive(Debug)]
pub(super) struct Supervision<'a, O> {
    group: ProcessGroup,
    observer: &'a O,
    /// A signal was passed on.
    signalled: bool,
    /// The program was asked to stop.
    stopping: bool,
    kill_at: Option<Instant>,
}

/// The end of what was watched.
#[derive(Debug)]
pub(super) struct Supervised<T> {
    pub(super) output: T,
    /// Someone asked for the task to stop, and so the program was stopped.
    pub(super) cancelled: bool,
}

impl<'a, O: RunObserver> Supervision<'a, O> {
    /// Nothing has happened yet.
    pub(super) fn new(group: ProcessGroup, observer: &'a O) -> Self {
        Self { group, observer, signalled: false, stopping: false, kill_at: None }
    }

    /// Waits for `work`, the program and its output.
    ///
    /// `cancel` ends when someone asks the task to stop, `no_task` when there can be no task.
    pub(super) async fn watch<T>(
        mut self,
        signals: &mut Signals,
        work: impl Future<Output = T>,
        cancel: impl Future<Output = ()>,
        no_task: impl Future<Output = ()>,
    ) -> Supervised<T> {
        tokio::pin!(work, cancel, no_task);
        let mut cancelled = false;
        let mut may_need_terminal = std::io::stdin().is_terminal();
        let mut polls = interval(TERMINAL_POLL);
        let output = loop {
            tokio::select! {
                output = &mut work => break output,
                signal = signals.next() => self.pass_on(signal),
                () = &mut cancel, if !self.stopping => {
                    cancelled = true;
                    self.stop();
                }
                () = &mut no_task, if !self.stopping => self.stop(),
                () = sleep_until(self.kill_at.unwrap_or_else(Instant::now)), if self.kill_at.is_some() => {
                    self.kill_at = None;
                    self.group.signal(Signal::KILL);
                }
                _ = polls.tick(), if may_need_terminal => if self.group.wants_terminal() {
                    may_need_terminal = false;
                    self.observer.notice(RunNotice::NeedsTerminal);
                },
            }
        };
        if self.stopping {
            // Processes of the group that outlived the program were asked to stop too.
            self.group.signal(Signal::KILL);
        }
        Supervised { output, cancelled }
    }

    fn pass_on(&mut self, signal: Signal) {
        if self.signalled {
            self.observer.mute();
            self.group.signal(Signal::KILL);
        } else {
            self.group.signal(signal);
        }
        self.signalled = true;
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.kill_at = Some(Instant::now() + GRACE);
        self.group.signal(Signal::TERM);
    }
}
