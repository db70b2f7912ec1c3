//! How calls of servers end, and how they are counted.

use std::time::Duration;

use svc_core::tools::{ErrorType, Failure, Output};
use tokio::time::Instant;

/// How a call ended, for its event and its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Ok,
    Error,
    Unavailable,
    Timeout,
    Cancelled,
}

impl CallOutcome {
    /// That of an answer which this daemon has made.
    pub(super) fn of(answer: &Result<Output, Failure>) -> Self {
        match answer {
            Ok(output) if !output.is_error() => Self::Ok,
            Err(Failure::Tool(error)) if error.kind == ErrorType::Unavailable => Self::Unavailable,
            Ok(_) | Err(_) => Self::Error,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The end of a call: how it is counted, and what its caller gets.
pub(super) type ServerCallEnd = (CallOutcome, Result<Output, Failure>);

/// Counts a call when it is over, also one that nobody waits for any more.
#[derive(Debug)]
pub(super) struct CallMeter<F: FnMut(CallOutcome, Duration)> {
    began: Instant,
    outcome: Option<CallOutcome>,
    count: F,
}

impl<F: FnMut(CallOutcome, Duration)> CallMeter<F> {
    pub(super) fn new(count: F) -> Self {
        Self { began: Instant::now(), outcome: Some(CallOutcome::Cancelled), count }
    }

    pub(super) fn end(mut self, outcome: CallOutcome) {
        self.outcome = Some(outcome);
    }

    /// The client is asked, and the call goes on with the answer: it is counted at its end.
    pub(super) fn ask(mut self) {
        self.outcome = None;
    }
}

impl<F: FnMut(CallOutcome, Duration)> Drop for CallMeter<F> {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome {
            (self.count)(outcome, self.began.elapsed());
        }
    }
}
