//! `/health` and `/v1/health`: whether the daemon is well, and its version and state.

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::Serialize;
use svc_core::service::log::Growth;
use svc_model::{Caller, DaemonView, Machine, Timestamp};

use super::{App, Problem, api::Api, body::Json, openapi::Operation};

pub(super) fn routes(api: Api) -> Api {
    let alive = Operation::new("Whether a daemon is here, and which").open();
    let alive = alive
        .answer::<Alive>(200, "It is well; 503 while it starts or stops, or its database is away");
    let health = Operation::new("Version, build and state of the store");
    api.get("/health", alive, show_alive).get(
        "/v1/health",
        health.answer::<Health>(200, "The daemon's health"),
        show_health,
    )
}

#[derive(Serialize, JsonSchema)]
struct Alive {
    /// `healthy`, or `degraded` while the server of the database does not answer.
    status: &'static str,
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
    let is_away = app.services.log.is_away();
    let alive = Alive {
        status: if is_away { "degraded" } else { "healthy" },
        server: "svc",
        version: env!("CARGO_PKG_VERSION"),
        boot_id: identity.boot_id.clone(),
        pid: identity.pid,
        started_at: identity.started_at,
    };
    let status = if is_away { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
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
    /// Of a server, as are the next five.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<String>,
    /// Whether it only reads, as a standby does.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_recovery: Option<bool>,
    /// `sync` if a standby has what is acknowledged, `stalled` if it does not answer, `async` if there
    /// are standbys that nobody waits for, else `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sync: Option<&'static str>,
    /// A statement's way there and back.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    /// Of a hundred of the last commits, 99 waited no longer for the lock of the writers.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_wait_ms_p99: Option<f64>,
    /// How commits of other connections are heard of: `notify`, or `poll`, each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<&'static str>,
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

#[derive(Serialize, JsonSchema)]
struct Backup {
    at: Timestamp,
    bytes: u64,
    /// The copy, for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

async fn show_health(app: App, caller: Caller) -> Result<Json<Health>, Problem> {
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
            server_version: server.map(|server| server.version.clone()),
            in_recovery: server.map(|server| server.in_recovery),
            sync: server.map(|server| server.sync.as_str()),
            round_trip_ms: server.map(|server| server.round_trip.as_secs_f64() * 1000.0),
            lock_wait_ms_p99: server.map(|server| server.lock_wait.as_secs_f64() * 1000.0),
            listen: server.map(|server| if server.is_listening { "notify" } else { "poll" }),
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
