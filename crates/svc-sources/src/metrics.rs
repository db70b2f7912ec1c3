//! Metrics of calls to servers, and the outcome of a call.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use svc_core::tools::{ErrorType, Failure, Output};

/// Metrics of calls to servers. The composition registers them for `/metrics`.
#[derive(Clone)]
pub struct SourceMetrics {
    calls: Family<CallLabels, Counter>,
    seconds: Family<SourceLabel, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    source: String,
    tool: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: String,
}

impl fmt::Debug for SourceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceMetrics").finish_non_exhaustive()
    }
}

impl Default for SourceMetrics {
    fn default() -> Self {
        let histogram =
            || Histogram::new([0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 60.0]);
        Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(histogram as fn() -> Histogram),
        }
    }
}

impl SourceMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "source_calls",
            "Calls of tools of child MCP servers",
            self.calls.clone(),
        );
        registry.register_with_unit(
            "source_call",
            "Time that a call of a child MCP server's tool takes",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }

    pub(super) fn count(&self, source: &str, tool: &str, outcome: &'static str, took: Duration) {
        let labels = CallLabels { source: source.to_owned(), tool: tool.to_owned(), outcome };
        self.calls.get_or_create(&labels).inc();
        let source = SourceLabel { source: source.to_owned() };
        self.seconds.get_or_create(&source).observe(took.as_secs_f64());
    }
}

/// How a call ended, for its event and its metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Ok,
    Error,
    Unavailable,
    Timeout,
    Cancelled,
}

impl CallOutcome {
    pub(super) fn from_answer(answer: &Result<Output, Failure>) -> Self {
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

pub(super) type ServerCallEnd = (CallOutcome, Result<Output, Failure>);
