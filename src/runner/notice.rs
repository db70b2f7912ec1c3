//! What a person may want to know while a program runs.

/// Something that no event of the task shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunNotice {
    /// The daemon does not take events for now. They wait in the spool.
    DaemonAway {
        /// What the daemon says about it, if it answers.
        problem: Option<String>,
    },
    /// The daemon takes events again, after [`RunNotice::DaemonAway`].
    DaemonBack,
    /// The program was stopped because it read from a terminal that its process group does not own.
    NeedsTerminal,
}

/// Takes each notice as it comes. It must not block.
pub(crate) type Notify = fn(RunNotice);
