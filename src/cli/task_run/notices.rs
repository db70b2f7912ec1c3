//! The notices of the runner as sentences for a person.

use super::super::output;
use crate::runner::RunNotice;

/// Says on standard error what the runner has to say.
pub(super) fn notify(notice: RunNotice) {
    let text = match notice {
        RunNotice::DaemonAway { problem } => {
            let problem = problem.unwrap_or_else(|| "the daemon is away".to_owned());
            format!("svc: {problem}; what there is to send is kept until the daemon takes it")
        }
        RunNotice::DaemonBack => "svc: the daemon is back".to_owned(),
        RunNotice::NeedsTerminal => {
            "svc: the command waits for the terminal, which a task does not have; \
            give it its input by a pipe, or </dev/null"
                .to_owned()
        }
    };
    output::note(&text);
}
