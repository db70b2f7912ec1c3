//! What was asked of the MCP server, counted.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Counters of the MCP side. The composition root registers them where `/metrics` looks.
#[derive(Clone)]
pub struct McpMetrics {
    requests: Family<Labels, Counter>,
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    method: &'static str,
    name: Arc<str>,
    era: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
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
    /// Shows them in `registry`, whose prefix is `svc`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("mcp_requests", "MCP requests answered", self.requests.clone());
        registry.register_with_unit(
            "mcp_request_duration",
            "Time to the answer of an MCP request",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }

    /// Counts an answered request. `name` is one that we know, or nothing: a client's own words would make a series
    /// each.
    pub(super) fn observe(
        &self,
        method: &'static str,
        name: Arc<str>,
        era: &'static str,
        outcome: &'static str,
        elapsed: Duration,
    ) {
        self.seconds.get_or_create(&MethodLabel { method }).observe(elapsed.as_secs_f64());
        let labels = Labels { method, name, era, outcome };
        self.requests.get_or_create(&labels).inc();
    }
}

/// A method as it is counted.
pub(super) fn known(method: &str) -> &'static str {
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
