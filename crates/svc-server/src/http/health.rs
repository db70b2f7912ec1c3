//! The daemon's own state: `/health` and `/v1/health`, the findings of `svc doctor` for clients
//! without a terminal, and all metrics in the formats of Prometheus and OpenMetrics.

use std::{borrow::Cow, collections::HashSet, fmt, time::Duration};

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
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
use schemars::JsonSchema;
use serde::Serialize;
use svc_core::service::log::{COMMIT_SECONDS, Growth, LogStatus};
use svc_model::{BudgetKind, Caller, DaemonView, Machine, Timestamp};
use svc_store::StoreTrouble;
use tokio::time::timeout;

use super::{
    App, Code, Problem,
    api::{Api, Operation},
    doctor::DoctorReport,
    request::{Json, JsonResult, PREFIX, may_read_all},
};
use crate::web::Accept;

/// Deadline for the checks of `svc doctor`.
const DOCTOR_DEADLINE: Duration = Duration::from_secs(30);
/// The text format of Prometheus, which every scraper reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4";
/// OpenMetrics 1.0, for scrapers that ask for it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes(api: Api) -> Api {
    let alive = Operation::new("Whether a daemon is here, and which").open().answer::<Alive>(200);
    let metrics = Operation::new(
        "Metrics in the text format of Prometheus; in OpenMetrics where `Accept` names it",
    );
    let metrics = metrics.media(200, PROMETHEUS).media(200, OPEN_METRICS);
    api.get("/health", alive, show_alive)
        .get("/v1/health", "Version, build and state of the store", show_health)
        .get("/v1/doctor", "What is wrong with this installation (operator, read_all)", examine)
        .get("/metrics", metrics, show_metrics)
}

#[derive(Serialize, JsonSchema)]
struct Alive {
    /// `healthy`, or `degraded` while the server of the database takes no writes of this daemon.
    status: &'static str,
    /// Why it is degraded: `away` if that server does not answer, `fenced` if another daemon has
    /// taken the database, `read_only` if the server takes no writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// `svc`: tells a daemon of ours from another server on the same port.
    server: &'static str,
    version: &'static str,
    /// Changes with each start.
    boot_id: String,
    pid: u32,
    started_at: Timestamp,
}

async fn show_alive(app: App) -> Response {
    let identity = &app.identity;
    let trouble = app.services.log.trouble();
    let alive = Alive {
        status: if trouble.is_some() { "degraded" } else { "healthy" },
        reason: trouble.map(StoreTrouble::as_str),
        server: "svc",
        version: env!("CARGO_PKG_VERSION"),
        boot_id: identity.boot_id.clone(),
        pid: identity.pid,
        started_at: identity.started_at,
    };
    let status = if trouble.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(alive)).into_response()
}

#[derive(Serialize, JsonSchema)]
struct Health {
    /// `ok`.
    status: &'static str,
    version: &'static str,
    build: Build,
    store: StoreHealth,
    /// The machine of this daemon.
    machine: Machine,
    /// This daemon.
    daemon_id: String,
    /// The daemons that have not said that they ended.
    daemons: Vec<DaemonView>,
    uptime_seconds: u64,
}

#[derive(Serialize, JsonSchema)]
struct Build {
    name: &'static str,
    version: &'static str,
    /// Operating system and architecture.
    target: String,
    /// `release` or `debug`.
    profile: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct StoreHealth {
    /// `sqlite` or `postgres`.
    engine: &'static str,
    /// The database file, or the address of the server without its password; for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Of `postgres`.
    #[serde(flatten)]
    server: Option<ServerHealth>,
    size_bytes: u64,
    wal_bytes: u64,
    /// What the disk has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    /// How fast the database grows; without it that is not known of a whole day yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<Growth>,
    schema_version: i64,
    /// Position of the last event of the log.
    head: i64,
    /// Position of the last event that retention removed.
    trimmed: i64,
    /// Write jobs that wait.
    queued: usize,
    /// The last `svc backup`; without it none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_backup: Option<Backup>,
}

/// The server of the database.
#[derive(Serialize, JsonSchema)]
struct ServerHealth {
    server_version: String,
    /// Whether it only reads, as a standby does.
    in_recovery: bool,
    /// `sync` if a standby has what is acknowledged, `stalled` if it does not answer, `async` if
    /// there are standbys that nobody waits for, else `none`.
    sync: &'static str,
    /// A statement's way there and back.
    round_trip_ms: f64,
    /// Of a hundred of the last commits, 99 waited no longer for the lock of the writers.
    lock_wait_ms_p99: f64,
    /// How commits of other connections are heard of: `notify`, or `poll`, each second.
    listen: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct Backup {
    at: Timestamp,
    bytes: u64,
    /// The copy, for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

async fn show_health(app: App, caller: Caller) -> JsonResult<Health> {
    let log = app.services.log.status().await?;
    let version = env!("CARGO_PKG_VERSION");
    let server = log.server.as_ref();
    Ok(Json(Health {
        status: "ok",
        version,
        build: Build {
            name: "svc",
            version,
            target: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        },
        store: StoreHealth {
            engine: if server.is_some() { "postgres" } else { "sqlite" },
            path: caller.is_operator().then(|| log.path.display().to_string()),
            server: server.map(|server| ServerHealth {
                server_version: server.version.clone(),
                in_recovery: server.in_recovery,
                sync: server.sync.as_str(),
                round_trip_ms: server.round_trip.as_secs_f64() * 1000.0,
                lock_wait_ms_p99: server.lock_wait.as_secs_f64() * 1000.0,
                listen: if server.is_listening { "notify" } else { "poll" },
            }),
            size_bytes: log.size.database,
            wal_bytes: log.size.wal,
            free_bytes: log.free,
            growth: log.growth,
            schema_version: log.size.schema,
            head: log.head,
            trimmed: log.trimmed,
            queued: log.queued,
            last_backup: log.backup.map(|last| Backup {
                at: last.at,
                bytes: last.bytes,
                path: caller.is_operator().then(|| last.path.display().to_string()),
            }),
        },
        machine: app.services.machines.machine().clone(),
        daemon_id: app.services.machines.daemon_id().to_owned(),
        daemons: app.services.machines.daemons().await?,
        uptime_seconds: app.services.now().since(app.identity.started_at).as_secs(),
    }))
}

async fn examine(app: App, caller: Caller) -> JsonResult<DoctorReport> {
    may_read_all(&caller)?;
    let none = || Problem::new(Code::NotFound, "there is no svc doctor");
    let doctor = app.doctor.as_ref().ok_or_else(none)?;
    let failed = |error: &dyn fmt::Display| {
        Problem::new(Code::Unavailable, format!("svc doctor gave no answer: {error}"))
    };
    match timeout(DOCTOR_DEADLINE, doctor.run()).await {
        Ok(findings) => findings.map(Json).map_err(|error| failed(&error)),
        Err(late) => Err(failed(&late)),
    }
}

async fn show_metrics(app: App, caller: Caller, headers: HeaderMap) -> Result<Response, Problem> {
    // The counts include what other callers do.
    may_read_all(&caller)?;
    let log = app.services.log.status().await?;
    let counts = StoreCounts { log, held: app.services.budget_use().await? };
    let is_open =
        Accept::from_headers(&headers).prefers("application/openmetrics-text", "text/plain");
    let text = open_metrics(&[&app.metrics.registry, &counts.into_registry()], is_open);
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
