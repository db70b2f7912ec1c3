//! `/metrics`: what was counted, for Prometheus.

use std::{
    fmt::{self, Write as _},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::{App, Problem, openapi::Operation, routes::Api};

/// OpenMetrics 1.0, which Prometheus reads as its own format.
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes(api: Api) -> Api {
    let read = Operation::new("Metrics as Prometheus reads them, in the OpenMetrics text format");
    api.get("/metrics", read.answer_with(200, "Metrics", MEDIA_TYPE), show)
}

/// Counters of the HTTP side. What the store counts is read from there when somebody asks.
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
        let mut registry = Registry::with_prefix("svc");
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
    /// Where others put theirs, before the first request.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Counts an answered request. `route` is the pattern and not the path.
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

async fn show(State(app): State<App>) -> Result<Response, Problem> {
    let mut body = String::new();
    text::encode(&mut body, &app.metrics.registry).expect("writing to a string does not fail");
    // What the registry ends with, and what follows goes before.
    let end = "# EOF\n";
    body.truncate(body.strip_suffix(end).map_or(body.len(), str::len));
    let store = app.services.store();
    let size = store.size().await.map_err(crate::service::Error::from)?;
    let (_, head) = store.log_bounds().await.map_err(crate::service::Error::from)?;
    let stats = store.stats();
    let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    for (name, kind, help, value) in [
        ("store_commits_total", "counter", "Commits", stats.commits.load(Relaxed)),
        ("store_jobs_total", "counter", "Write jobs that shared them", stats.jobs.load(Relaxed)),
        ("store_failures_total", "counter", "Commits that failed", stats.failures.load(Relaxed)),
        ("store_queued_jobs", "gauge", "Write jobs that wait", number(store.queued())),
        ("store_database_bytes", "gauge", "Size of the database file", size.database),
        ("store_wal_bytes", "gauge", "Size of the write-ahead log", size.wal),
        ("log_head", "gauge", "Position of the last event", u64::try_from(head).unwrap_or(0)),
        ("subscribers", "gauge", "Open subscriptions", number(store.bus().listeners())),
    ] {
        let family = name.strip_suffix("_total").unwrap_or(name);
        write!(
            body,
            "# HELP svc_{family} {help}.\n# TYPE svc_{family} {kind}\nsvc_{name} {value}\n"
        )
        .expect("writing to a string does not fail");
    }
    body.push_str(end);
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE))], body).into_response())
}
