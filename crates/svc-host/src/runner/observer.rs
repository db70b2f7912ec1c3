//! What the caller of a run sees of it. The runner itself prints nothing.

use serde_json::Value;
use svc_model::FrameKind;

use super::document::TaskDocument;
use super::event::OutputFrame;

/// Something that a person may want to know and that no event of the task shows.
#[derive(Debug)]
pub enum RunNotice {
    /// The daemon takes no events for now. They wait in the spool.
    DaemonAway {
        /// What the daemon says about it, if it answers.
        problem: Option<String>,
    },
    /// The daemon takes events again, after [`RunNotice::DaemonAway`].
    DaemonBack,
    /// The daemon will never take the rest of this task. The program goes on.
    TaskRefused {
        /// Why, in the daemon's words.
        problem: String,
    },
    /// The spool cannot be written, so the task lacks the output from here on. The program goes on.
    SpoolFailed {
        /// The spool file and what the system said.
        problem: String,
    },
    /// The spool cannot be written, so the task lacks its end.
    EndNotRecorded {
        /// The spool file and what the system said.
        problem: String,
    },
    /// The program was stopped because it read from a terminal that its process group does not own.
    NeedsTerminal,
}

/// Watches one run. Every method may be called from several tasks at once.
pub trait RunObserver: Send + Sync + 'static {
    /// Bytes as the program printed them. The program waits while this is pending.
    fn output(&self, pipe: FrameKind, bytes: &[u8]) -> impl Future<Output = ()> + Send;

    /// The daemon has made the task.
    fn task_made(&self, task: &TaskDocument) -> impl Future<Output = ()> + Send;

    /// A line of output is in the spool.
    fn frame_recorded(&self, frame: &OutputFrame) -> impl Future<Output = ()> + Send;

    /// The program has ended, and the daemon has everything or will get no more. `end` is the task's last event.
    fn ended(&self, end: &Value) -> impl Future<Output = ()> + Send;

    /// Shows no more output: a second signal asks for an end, and whoever reads the output may be asleep.
    fn mute(&self);

    /// Something happened that no event shows. It must not block.
    fn notice(&self, notice: RunNotice);
}
