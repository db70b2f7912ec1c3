//! `/metrics`: all metrics in the formats of Prometheus and OpenMetrics.

use std::{borrow::Cow, collections::HashSet, fmt, time::Duration};

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeMetric as _, NoLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use svc_core::service::{
    Error,
    log::{COMMIT_SECONDS, LogStatus},
};
use svc_model::{BudgetKind, Caller, READ_ALL};

use super::{App, Code, Problem, api::Api, metrics::PREFIX, openapi::Operation};
use crate::web::Accept;

/// The text format of Prometheus, which every scraper reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4";
/// OpenMetrics 1.0, for scrapers that ask for it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes(api: Api) -> Api {
    let read = Operation::new(
        "Metrics in the text format of Prometheus; in OpenMetrics where `Accept` names it",
    );
    let read = read.answer_with(200, "Metrics", PROMETHEUS);
    api.get("/metrics", read.answer_with(200, "Metrics", OPEN_METRICS), show)
}

async fn show(app: App, caller: Caller, headers: HeaderMap) -> Result<Response, Problem> {
    // The counts include what other callers do.
    if !caller.has_scope(READ_ALL) {
        return Err(Problem::new(
            Code::Forbidden,
            "metrics are for the operator, or need read_all",
        ));
    }
    let counts = StoreCounts::read(&app).await?;
    let is_open =
        Accept::from_headers(&headers).prefers("application/openmetrics-text", "text/plain");
    let text = open_metrics(&[app.metrics.registry(), &counts.into_registry()], is_open);
    let (media_type, text) =
        if is_open { (OPEN_METRICS, text) } else { (PROMETHEUS, prometheus_text(&text)) };
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(media_type))], text).into_response())
}

/// Registries as OpenMetrics text, with or without the last line.
fn open_metrics(registries: &[&Registry], has_end: bool) -> String {
    let mut text = String::new();
    let encoded = registries.iter().try_for_each(|registry| encode_registry(&mut text, registry));
    let ended = if has_end { encode_eof(&mut text) } else { Ok(()) };
    encoded.and(ended).expect("writing to a string does not fail");
    text
}

/// The counts of the store and the services at the time of a request.
#[derive(Debug)]
struct StoreCounts {
    log: LogStatus,
    held: Vec<(BudgetKind, u64)>,
}

impl StoreCounts {
    async fn read(app: &App) -> Result<Self, Error> {
        let log = app.services.log.status().await?;
        Ok(Self { log, held: app.services.budget_use().await? })
    }

    fn into_registry(self) -> Registry {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        registry
    }
}

impl Collector for StoreCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (log, stats) = (&self.log, &self.log.writer);
        for (name, help, value) in [
            ("store_commits", "Commits.", stats.commits),
            ("store_jobs", "Write jobs that shared them.", stats.jobs),
            ("store_failures", "Commits that failed.", stats.failures),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        for (name, help, value) in [
            ("store_queued_jobs", "Write jobs that wait.", number(log.queued)),
            ("store_database_bytes", "Size of the database file.", log.size.database),
            ("store_wal_bytes", "Size of the write-ahead log.", log.size.wal),
            ("log_head", "Position of the last event.", u64::try_from(log.head).unwrap_or(0)),
            ("subscribers", "Open subscriptions.", number(log.subscribers)),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let (name, help) =
            ("store_commit_seconds", "Time of a commit, with the wait for the disk.");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let bounds = COMMIT_SECONDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(stats.commit_times).collect();
        let seconds = Duration::from_micros(stats.commit_micros).as_secs_f64();
        let count = stats.commit_times.iter().sum();
        metric.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)?;
        let help = "What all principals hold, by kind.";
        let mut metric = encoder.encode_descriptor("budget_used", help, None, MetricType::Gauge)?;
        for (kind, held) in &self.held {
            let labels = [("kind", kind.key().trim_start_matches("budget."))];
            ConstGauge::new(*held).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn number(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Converts OpenMetrics text to the older format: a counter's family has the name of its samples,
/// and there are no lines for units.
fn prometheus_text(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| !line.starts_with("# UNIT ")) {
        text.push_str(&renamed(line, &counters));
        text.push('\n');
    }
    text
}

fn renamed<'a>(line: &'a str, counters: &HashSet<&str>) -> Cow<'a, str> {
    for keyword in ["# HELP ", "# TYPE "] {
        if let Some((name, rest)) = line.strip_prefix(keyword).and_then(|rest| rest.split_once(' '))
            && counters.contains(name)
        {
            return format!("{keyword}{name}_total {rest}").into();
        }
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use svc_core::service::log::WriterStats;
    use svc_store::StoreSize;

    use super::*;

    #[test]
    fn commit_durations_are_a_histogram() {
        let mut writer = WriterStats { commit_micros: 1_500_000, ..WriterStats::default() };
        (writer.commit_times[0], writer.commit_times[9]) = (3, 1);
        let log = LogStatus {
            free: None,
            growth: None,
            path: "svc.db".into(),
            size: StoreSize { database: 1, wal: 0, schema: 1 },
            trimmed: 0,
            head: 7,
            server: None,
            writer,
            queued: 0,
            subscribers: 0,
            backup: None,
        };
        let held = vec![(BudgetKind::Rows, 9)];
        let text = open_metrics(&[&StoreCounts { log, held }.into_registry()], true);
        for line in [
            "svc_store_commit_seconds_bucket{le=\"0.0005\"} 3",
            "svc_store_commit_seconds_bucket{le=\"1.0\"} 3",
            "svc_store_commit_seconds_bucket{le=\"+Inf\"} 4",
            "svc_store_commit_seconds_sum 1.5",
            "svc_store_commit_seconds_count 4",
            "# TYPE svc_store_commits counter",
            "svc_store_commits_total 0",
            "svc_log_head 7",
            "svc_budget_used{kind=\"rows\"} 9",
            "# EOF",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }

    #[test]
    fn open_metrics_converts_to_prometheus_text() {
        let open_metrics = "\
            # HELP svc_requests Requests answered.\n\
            # TYPE svc_requests counter\n\
            svc_requests_total{route=\"/a b\"} 3\n\
            # HELP svc_duration_seconds Time.\n\
            # TYPE svc_duration_seconds histogram\n\
            # UNIT svc_duration_seconds seconds\n\
            svc_duration_seconds_bucket{le=\"+Inf\"} 3\n\
            # HELP svc_requests_open Requests open.\n\
            # TYPE svc_requests_open gauge\n\
            svc_requests_open 1\n";
        let prometheus = "\
            # HELP svc_requests_total Requests answered.\n\
            # TYPE svc_requests_total counter\n\
            svc_requests_total{route=\"/a b\"} 3\n\
            # HELP svc_duration_seconds Time.\n\
            # TYPE svc_duration_seconds histogram\n\
            svc_duration_seconds_bucket{le=\"+Inf\"} 3\n\
            # HELP svc_requests_open Requests open.\n\
            # TYPE svc_requests_open gauge\n\
            svc_requests_open 1\n";
        assert_eq!(prometheus_text(open_metrics), prometheus);
    }
}
