//! Request metrics, and the registry that other adapters share.

use std::{fmt, time::Duration};

use axum::http::{Method, StatusCode};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Prefix of all names.
pub(super) const PREFIX: &str = "svc";

/// Metrics of requests. The metrics of the store are read when they are requested.
pub struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    seconds: Family<Route, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: &'static str,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let requests = Family::default();
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time to the head of the answer",
            Unit::Seconds,
            seconds.clone(),
        );
        Self { registry, requests, seconds }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0])
}

impl Metrics {
    /// For registrations by others, before the first request.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a response. `route` is the pattern and not the path.
    pub(super) fn observe(
        &self,
        method: &Method,
        route: &'static str,
        status: StatusCode,
        elapsed: Duration,
    ) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let status = status.as_u16();
        self.requests.get_or_create(&Request { method, route, status }).inc();
        self.seconds.get_or_create(&Route { route }).observe(elapsed.as_secs_f64());
    }
}
