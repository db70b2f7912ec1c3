//! `svc serve`: the daemon, put together. The only place that makes a store, services and listeners.
//!
//! Start: lock, bind, open, migrate, recover, ready. The port is bound before the database is touched, so that a
//! busy port changes nothing, and answers 503 until all is ready.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::net::TcpListener;

use super::{ALREADY_RUNNING, MIGRATIONS_PENDING, hook, output};
use crate::private_file;
use crate::{
    client::DaemonFile,
    config::{Config, Env, LogFormat, Paths},
    domain::{Clock, Ids, NewEvent, StreamName, SystemClock, Timestamp, limits},
    http::{self, Access, App, Edge, Identity, Metrics, Parts},
    lifecycle::Lifecycle,
    mcp::{self, Mcp, McpMetrics, McpParts, StreamResources},
    service::{Retention, Services, Tokens, Tuning, hooks::HookPolicy},
    store::{DatabaseLock, LockError, MigrateError, OpenOptions, Store, StoreError, Writer},
    telemetry::{self, LogOptions},
    tools,
};

/// How long a daemon that has the lock may take to say who it is, before it is called a process.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// Between two looks for that.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the daemon in the foreground until a signal.
pub fn run(config: &Config, env: &Env) -> anyhow::Result<ExitCode> {
    // Whatever is made from here on is for its owner alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let paths = &config.paths;
    private_file::create_folder(&paths.home)?;
    telemetry::init(&LogOptions {
        filter: config.log_level.value.clone(),
        json: match config.log_format.value {
            LogFormat::Json => true,
            LogFormat::Text => false,
            LogFormat::Auto => config.log_file.is_some(),
        },
        file: config.log_file.clone(),
    })
    .with_context(|| format!("log_level {:?} has no meaning", config.log_level.value))?;
    let _lock = match DatabaseLock::acquire(&paths.lock) {
        Ok(lock) => lock,
        Err(LockError::Held) => return Ok(already_running(paths, INTRODUCTION)),
        Err(error) => return Err(error.into()),
    };
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(config, env));
    // A blocking call that hangs does not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match served {
        Err(error) if matches!(error.downcast_ref(), Some(MigrateError::Pending(_))) => {
            output::note(&format!("error: {error:#}"));
            Ok(ExitCode::from(MIGRATIONS_PENDING))
        }
        served => served,
    }
}

/// One core is left to the writer's thread: where there are two, a second worker costs a fifth of the appends of 256
/// producers, and gains nothing anywhere.
pub(super) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1)).max(1)
}

/// A subscriber is a descriptor, and the usual soft limit is that of a program that has none.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(error = telemetry::chain(&error), "cannot raise the limit of open files");
    }
}

async fn serve(config: &Config, env: &Env) -> anyhow::Result<ExitCode> {
    let lifecycle = Lifecycle::default();
    lifecycle.listen_to_signals()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ids = Ids::random();
    let identity = Identity {
        boot_id: crate::domain::TokenId::new(&ids, clock.now()).as_str()[4..].to_owned(),
        pid: std::process::id(),
        started_at: clock.now(),
    };
    let listeners = bind(&config.listen.value).await?;
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    let access = Access {
        listen: addresses.clone(),
        allowed_hosts: config.allowed_host.value.clone(),
        allowed_origins: config.allowed_origin.value.clone(),
        no_auth: config.no_auth.value,
    };
    let edge = Edge::new(access, &identity.boot_id);
    for listener in listeners {
        let (soft, connections) = (lifecycle.soft.clone(), lifecycle.connections.clone());
        lifecycle.run("listener", http::serve(listener, edge.clone(), soft, connections));
    }
    let options = OpenOptions {
        path: config.paths.db.clone(),
        max_bytes: config.store_max_bytes.value,
        migrate: !config.no_migrate,
    };
    let (store, writer) = Store::open(&options, Arc::clone(&clock))
        .await
        .with_context(|| format!("cannot open {}", options.path.display()))?;
    let tokens = Tokens::open(&config.token_file.value)?;
    let policy = HookPolicy {
        check_in: i64::try_from(config.hooks_check_in.value).unwrap_or(i64::MAX),
        context: config.hooks_context.value,
        sub_agents: config.hooks_sub_agents.value,
    };
    let services = Services::new(store.clone(), clock, ids, tuning(env)?, tokens);
    let services = services.with_hook_policy(policy);
    recover(&services, &identity).await?;
    let tools = tools::catalogue();
    let (boot_id, started_at) = (identity.boot_id.clone(), identity.started_at);
    let (mut metrics, mcp_metrics) = (Metrics::default(), McpMetrics::default());
    mcp_metrics.register(metrics.registry());
    let mcp = Mcp::start(McpParts {
        services: services.clone(),
        catalogue: Arc::clone(&tools),
        resources: vec![Box::new(StreamResources)],
        prompts: mcp::builtin_prompts(),
        metrics: mcp_metrics,
        stop: lifecycle.soft.clone(),
    })
    .await?;
    let app = App::new(Parts {
        services: services.clone(),
        tools,
        metrics,
        identity,
        stop: lifecycle.soft.clone(),
    });
    edge.ready(app, mcp::router(mcp.clone()));
    background(&lifecycle, &services, config);
    announce(config, &addresses, &boot_id, started_at)?;

    lifecycle.soft.cancelled().await;
    edge.drain();
    lifecycle.drain(limits::DRAIN).await;
    mcp.finish().await;
    lifecycle.background.close();
    lifecycle.background.wait().await;
    farewell(&services, &config.paths, &boot_id, store, writer).await?;
    Ok(ExitCode::SUCCESS)
}

/// The first write proves that the database can be written, and dates the start in the log itself.
async fn recover(services: &Services, identity: &Identity) -> Result<(), StoreError> {
    let data = serde_json::json!({
        "boot_id": identity.boot_id, "pid": identity.pid, "version": env!("CARGO_PKG_VERSION"),
    });
    note(services.store(), "daemon.started", data).await
}

async fn note(
    store: &Store,
    kind: &'static str,
    data: serde_json::Value,
) -> Result<(), StoreError> {
    store
        .write(move |tx| {
            Box::pin(async move {
                let stream = StreamName::fixed(StreamName::DAEMON);
                tx.open_stream(&stream).await?;
                tx.append(&stream, vec![NewEvent::new(kind, &data)]).await?;
                Ok(())
            })
        })
        .await
}

/// What goes on by itself: silent peers and tasks, maintenance, retention.
fn background(lifecycle: &Lifecycle, services: &Services, config: &Config) {
    let sweeper = services.clone();
    lifecycle.run("peers", async move {
        loop {
            let pause = sweeper.sweep_peers().await.unwrap_or_else(|error| {
                tracing::error!(error = telemetry::chain(&error), "cannot sweep the peers");
                limits::PID_CHECK
            });
            tokio::time::sleep(pause).await;
        }
    });
    let sweeper = services.clone();
    lifecycle.run("tasks", async move {
        loop {
            if let Err(error) = sweeper.sweep_tasks().await {
                tracing::error!(error = telemetry::chain(&error), "cannot sweep the tasks");
            }
            tokio::time::sleep(limits::PID_CHECK.min(sweeper.tuning().runner_grace)).await;
        }
    });
    let sweeper = services.clone();
    lifecycle.run("mcp sessions", async move {
        loop {
            if let Err(error) = sweeper.sweep_mcp_sessions().await {
                tracing::error!(error = telemetry::chain(&error), "cannot sweep the MCP sessions");
            }
            tokio::time::sleep(limits::MCP_SWEEP).await;
        }
    });
    let (taker, home) = (services.clone(), config.paths.home.clone());
    lifecycle.run("hooks", async move {
        let catalogue = tools::catalogue();
        loop {
            match hook::drain(&taker, &catalogue, &home).await {
                Ok(0) => {}
                Ok(told) => {
                    tracing::info!(told, "took in what hooks told while the daemon was away");
                }
                Err(error) => tracing::error!(%error, "cannot take in what hooks told"),
            }
            if let Err(error) = taker.sweep_hooks().await {
                tracing::error!(
                    error = telemetry::chain(&error),
                    "cannot forget old events of hooks"
                );
            }
            tokio::time::sleep(taker.tuning().maintenance).await;
        }
    });
    let keeper = services.clone();
    let days = config.retention_max_age_days.value;
    let retention = Retention {
        max_age: days.map(|days| Duration::from_secs(days.saturating_mul(24 * 60 * 60))),
        max_bytes: config.retention_max_bytes.value,
    };
    lifecycle.run("maintenance", async move {
        loop {
            tokio::time::sleep(keeper.tuning().maintenance).await;
            if let Err(error) = keeper.apply_retention(retention).await {
                tracing::error!(error = telemetry::chain(&error), "cannot apply the retention");
            }
            if let Err(error) = keeper.store().merge_indexes().await {
                tracing::warn!(error = telemetry::chain(&error), "cannot merge the indexes");
            }
            if let Err(error) = keeper.store().checkpoint().await {
                tracing::warn!(error = telemetry::chain(&error), "cannot checkpoint");
            }
        }
    });
}

fn announce(
    config: &Config,
    addresses: &[SocketAddr],
    boot_id: &str,
    started_at: Timestamp,
) -> anyhow::Result<()> {
    let url = addresses.first().map(|address| url(*address)).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let file = DaemonFile {
        pid: std::process::id().try_into()?,
        url: url.clone(),
        version: version.to_owned(),
        boot_id: boot_id.to_owned(),
        started_at: started_at.to_string(),
    };
    // Stale after a power cut anyway.
    private_file::replace_fleeting(&config.paths.daemon_json, &serde_json::to_vec_pretty(&file)?)?;
    tracing::info!(url, db.path = %config.paths.db.display(), "ready");
    // Whoever started us in a pipe waits for this line.
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "svc {version} ready at {url}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::debug!(error = telemetry::chain(&error), "nobody reads the readiness line");
    }
    Ok(())
}

async fn farewell(
    services: &Services,
    paths: &Paths,
    boot_id: &str,
    store: Store,
    writer: Writer,
) -> anyhow::Result<()> {
    let data = serde_json::json!({ "boot_id": boot_id });
    if let Err(error) = note(services.store(), "daemon.stopped", data).await {
        tracing::warn!(error = telemetry::chain(&error), "cannot log the end");
    }
    let ours = read_daemon_file(paths).is_some_and(|file| file.boot_id == boot_id);
    if ours && let Err(error) = std::fs::remove_file(&paths.daemon_json) {
        tracing::warn!(error = telemetry::chain(&error), "cannot remove daemon.json");
    }
    writer.close(store).await.context("cannot close the database")?;
    tracing::info!("stopped");
    Ok(())
}

async fn bind(addresses: &[SocketAddr]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let port = address.port();
            match error.kind() {
                io::ErrorKind::AddrInUse => anyhow::anyhow!(
                    "port {port} is in use on {}: another program listens there; choose another with \
                     --listen {}:0 (any free port)",
                    address.ip(),
                    address.ip()
                ),
                _ => anyhow::Error::new(error).context(format!("cannot listen on {address}: see --listen")),
            }
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Names the daemon that has the lock. Of several that start at once the one that has it is not ready yet, and so it is
/// given `patience`.
fn already_running(paths: &Paths, patience: Duration) -> ExitCode {
    let deadline = Instant::now() + patience;
    let daemon = loop {
        // One that was killed may have left its file behind.
        let daemon = DaemonFile::read_live(&paths.daemon_json);
        if daemon.is_some() || Instant::now() >= deadline {
            break daemon;
        }
        std::thread::sleep(LOOK);
    };
    let text = match daemon {
        Some(file) => format!(
            "a daemon already runs on {}: pid {}, {}",
            paths.db.display(),
            file.pid,
            file.url
        ),
        None => format!("another svc process is at work on {}", paths.db.display()),
    };
    output::note(&format!("error: {text}"));
    ExitCode::from(ALREADY_RUNNING)
}

/// What `daemon.json` of this home says, if there is one that can be read.
pub fn read_daemon_file(paths: &Paths) -> Option<DaemonFile> {
    let text = std::fs::read(&paths.daemon_json).ok()?;
    serde_json::from_slice(&text).ok()
}

/// An address as clients on this machine reach it.
fn url(address: SocketAddr) -> String {
    let ip = address.ip();
    match (ip.is_unspecified(), ip) {
        (true, std::net::IpAddr::V4(_)) => format!("http://127.0.0.1:{}", address.port()),
        (true, std::net::IpAddr::V6(_)) => format!("http://[::1]:{}", address.port()),
        (false, _) => format!("http://{address}"),
    }
}

/// Times and bounds; tests shorten them through variables that no help text names.
fn tuning(env: &Env) -> anyhow::Result<Tuning> {
    let mut tuning = Tuning::default();
    let number = |name: &str| -> anyhow::Result<Option<u64>> {
        let Some(text) = env.text(name)? else {
            return Ok(None);
        };
        Ok(Some(text.parse().with_context(|| format!("{name} must be a number"))?))
    };
    for (name, value) in [
        ("SVC_PEER_TIMEOUT_MS", &mut tuning.peer_timeout),
        ("SVC_LEASE_MS", &mut tuning.lease),
        ("SVC_RUNNER_GRACE_MS", &mut tuning.runner_grace),
        ("SVC_MAINTENANCE_MS", &mut tuning.maintenance),
        ("SVC_SSE_KEEPALIVE_MS", &mut tuning.sse_keep_alive),
        ("SVC_BODY_TIMEOUT_MS", &mut tuning.body_stall),
        ("SVC_MCP_TASK_AFTER_MS", &mut tuning.mcp_task_after),
        ("SVC_LIST_CHANGED_MS", &mut tuning.list_changed_pause),
    ] {
        if let Some(millis) = number(name)? {
            *value = Duration::from_millis(millis.max(1));
        }
    }
    if let Some(most) = number("SVC_INBOX_MAX")? {
        tuning.inbox_max = u32::try_from(most)?;
    }
    Ok(tuning)
}
