//! Counters of the requests to the MCP server.

use std::{fmt, sync::Arc, time::Instant};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Counters of the MCP side. The composition root registers them where `/metrics` looks.
#[derive(Clone)]
pub struct McpMetrics {
    requests: Family<RequestLabels, Counter>,
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    name: Arc<str>,
    era: RequestEra,
    outcome: RequestOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

/// The era of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RequestEra {
    Modern,
    Legacy,
    /// Neither a session nor a revision.
    Bare,
    /// Refused before the era was known.
    Unknown,
}

impl RequestEra {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
            Self::Bare => "bare",
            Self::Unknown => "none",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RequestOutcome {
    Result,
    /// With a result that says that the tool failed.
    ToolError,
    /// With questions to the client.
    InputRequired,
    Task,
    /// With a JSON-RPC error.
    Error,
    /// Without an answer, as the client wanted none any more.
    Cancelled,
}

impl RequestOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Result => "ok",
            Self::ToolError => "tool_error",
            Self::InputRequired => "input_required",
            Self::Task => "task",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

impl EncodeLabelValue for RequestEra {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.as_str().encode(encoder)
    }
}

impl EncodeLabelValue for RequestOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.as_str().encode(encoder)
    }
}

impl fmt::Debug for McpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpMetrics").finish_non_exhaustive()
    }
}

impl Default for McpMetrics {
    fn default() -> Self {
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        Self { requests: Family::default(), seconds }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0])
}

impl McpMetrics {
    /// Adds the counters to `registry`, whose prefix is `svc`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("mcp_requests", "MCP requests answered", self.requests.clone());
        registry.register_with_unit(
            "mcp_request_duration",
            "Time to the answer of an MCP request",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }
}

/// A request that will be counted when it is answered.
#[derive(Debug, Clone)]
pub(crate) struct RequestMeter {
    method: &'static str,
    name: Arc<str>,
    pub(crate) era: RequestEra,
    started: Instant,
}

impl RequestMeter {
    /// Starts the clock. `name` is one that the server knows, or empty: each word of a client's own
    /// would make a series.
    pub(crate) fn start(method: &str, name: &str, era: RequestEra) -> Self {
        Self { method: known_method(method), name: name.into(), era, started: Instant::now() }
    }

    /// Names what the request is about, by a name that the server knows.
    pub(crate) fn name(&mut self, name: &str) {
        self.name = name.into();
    }

    /// Counts the request as answered.
    pub(crate) fn count(&self, metrics: &McpMetrics, outcome: RequestOutcome) {
        let Self { method, era, .. } = *self;
        let elapsed = self.started.elapsed().as_secs_f64();
        metrics.seconds.get_or_create(&MethodLabel { method }).observe(elapsed);
        let labels = RequestLabels { method, name: Arc::clone(&self.name), era, outcome };
        metrics.requests.get_or_create(&labels).inc();
    }
}

/// The method as a label: one that the server knows, or `other`.
fn known_method(method: &str) -> &'static str {
    const METHODS: [&str; 20] = [
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/cancel",
        "tasks/get",
        "tasks/update",
        "tools/call",
        "tools/list",
        "notifications/cancelled",
        "notifications/initialized",
    ];
    METHODS.into_iter().find(|known| *known == method).unwrap_or("other")
}
