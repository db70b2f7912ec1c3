//! `/metrics`: all counts, as Prometheus reads them.

use std::{borrow::Cow, collections::HashSet, fmt::Write as _, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use svc_core::service::{
    Error,
    log::{COMMIT_SECONDS, WriterStats},
};
use svc_model::{Caller, READ_ALL};

use super::{App, Code, Problem, api::Api, metrics::OPEN_METRICS_END, openapi::Operation};
use crate::web::Accept;

/// The text format of Prometheus, which every scraper reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4";
/// OpenMetrics 1.0, for those who ask for it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes(api: Api) -> Api {
    let read = Operation::new(
        "Metrics in the text format of Prometheus; in OpenMetrics where `Accept` names it",
    );
    let read = read.answer_with(200, "Metrics", PROMETHEUS);
    api.get("/metrics", read.answer_with(200, "Metrics", OPEN_METRICS), show)
}

async fn show(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // Counts of what everybody does.
    if !caller.has_scope(READ_ALL) {
        return Err(Problem::new(
            Code::Forbidden,
            "metrics are for the operator, or need read_all",
        ));
    }
    let mut text = app.metrics.open_metrics();
    push_store_metrics(&app, &mut text).await?;
    let is_open = Accept::of(&headers).prefers("application/openmetrics-text", "text/plain");
    let media_type = if is_open {
        text.push_str(OPEN_METRICS_END);
        OPEN_METRICS
    } else {
        text = prometheus_text(&text);
        PROMETHEUS
    };
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(media_type))], text).into_response())
}

/// What the store counts itself, read when somebody asks.
async fn push_store_metrics(app: &App, text: &mut String) -> Result<(), Error> {
    let log = app.services.log.status().await?;
    let (size, stats) = (log.size, log.writer);
    let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    for (name, kind, help, value) in [
        ("store_commits_total", "counter", "Commits", stats.commits),
        ("store_jobs_total", "counter", "Write jobs that shared them", stats.jobs),
        ("store_failures_total", "counter", "Commits that failed", stats.failures),
        ("store_queued_jobs", "gauge", "Write jobs that wait", number(log.queued)),
        ("store_database_bytes", "gauge", "Size of the database file", size.database),
        ("store_wal_bytes", "gauge", "Size of the write-ahead log", size.wal),
        ("log_head", "gauge", "Position of the last event", u64::try_from(log.head).unwrap_or(0)),
        ("subscribers", "gauge", "Open subscriptions", number(log.subscribers)),
    ] {
        let family = name.strip_suffix("_total").unwrap_or(name);
        write!(
            text,
            "# HELP svc_{family} {help}.\n# TYPE svc_{family} {kind}\nsvc_{name} {value}\n"
        )
        .expect("writing to a string does not fail");
    }
    push_commit_times(text, &stats);
    text.push_str("# HELP svc_budget_used What all principals hold, by kind.\n");
    text.push_str("# TYPE svc_budget_used gauge\n");
    for (kind, held) in app.services.budget_use().await? {
        let kind = kind.key().trim_start_matches("budget.");
        writeln!(text, "svc_budget_used{{kind=\"{kind}\"}} {held}")
            .expect("writing to a string does not fail");
    }
    Ok(())
}

/// How long commits took, as a histogram.
fn push_commit_times(text: &mut String, stats: &WriterStats) {
    let name = "svc_store_commit_seconds";
    let bounds = COMMIT_SECONDS.iter().map(|bound| format!("{bound:?}"));
    let mut total = 0;
    let mut lines = format!(
        "# HELP {name} Time of a commit, with the wait for the disk.\n# TYPE {name} histogram\n"
    );
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(stats.commit_times) {
        total += count;
        writeln!(lines, "{name}_bucket{{le=\"{bound}\"}} {total}")
            .expect("writing to a string does not fail");
    }
    let seconds = Duration::from_micros(stats.commit_micros).as_secs_f64();
    writeln!(lines, "{name}_sum {seconds}\n{name}_count {total}")
        .expect("writing to a string does not fail");
    text.push_str(&lines);
}

/// OpenMetrics text in the older format: a counter's family has the name of its samples, and a unit is no line.
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
    use super::*;

    #[test]
    fn commits_are_counted_by_their_time() {
        let mut stats = WriterStats { commit_micros: 1_500_000, ..WriterStats::default() };
        (stats.commit_times[0], stats.commit_times[9]) = (3, 1);
        let mut text = String::new();
        push_commit_times(&mut text, &stats);
        for line in [
            "svc_store_commit_seconds_bucket{le=\"0.0005\"} 3",
            "svc_store_commit_seconds_bucket{le=\"1.0\"} 3",
            "svc_store_commit_seconds_bucket{le=\"+Inf\"} 4",
            "svc_store_commit_seconds_sum 1.5",
            "svc_store_commit_seconds_count 4",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }

    #[test]
    fn open_metrics_becomes_prometheus_text() {
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
