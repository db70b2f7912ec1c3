//! The daemon: composition, recovery, sweeps, drains and shutdown, that is, all that runs in the
//! daemon and serves no request.
//!
//! Start: bind, open, migrate, recover, ready. The port is bound before the database is opened, so
//! that a busy port changes nothing. Until the daemon is ready, requests get 503. Only [`run`]
//! makes a store, services and listeners. It prints nothing: the command line reports that the
//! daemon is ready.

mod background;
mod daemon_file;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use svc_core::service::{
    ServiceSettings, Services, SessionSettings, Tokens, Tuning, agents::AgentSettings,
};
use svc_core::tools;
use svc_model::{
    Clock, Ids, Retention, SystemClock, TokenId,
    hook::{HookClient, HookPolicy},
    limits,
};
use svc_sources::{ResultBounds, SourceManager, SourceManagerParts, SourceMetrics, resource_tools};
use svc_store::{MigrateError, NewDaemon, OpenOptions, PostgresOptions, Store, Writer};
use svc_sys::config::{Config, Env, Origin, Paths, WakeMode};
use svc_sys::{
    local_socket::{self, SocketFile},
    machine::{HostIdentity, ThisMachine},
    session_secret::SessionSecrets,
    telemetry,
};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};

use self::background::{Lifecycle, start_sweeps};
use crate::http::{
    self, App, AppState, ConnectionBounds, Doctor, Edge, EntryRules, Identity, Listener, Metrics,
};
use crate::mcp::{self, McpMetrics, McpServer, McpServerParts, StreamResources};

pub use background::StopSignals;
pub use daemon_file::{
    forget_killed, keep_stopped, live_file, lock_holder, page_host, stays_stopped, was_killed,
};

/// The pause after a start that failed, in a process that was fenced.
const START_PAUSE: Duration = Duration::from_secs(1);

/// How long the end of a fenced run waits for the database's connections, after the drain.
const FENCED_CLOSE: Duration = Duration::from_secs(5);

/// The number of worker threads of the daemon's runtime. One core is left to the writer's thread:
/// on two cores a second worker costs 20 % of the appends of 256 producers, and gains nothing in
/// any benchmark.
pub fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1)).max(1)
}

/// What the caller of [`run`] prints when the daemon is ready.
#[derive(Debug, Clone, Copy)]
pub struct Ready<'a> {
    pub url: &'a str,
    /// The default address, if another program has it and the daemon took a free port.
    pub busy: Option<SocketAddr>,
}

struct ServingDaemon {
    url: String,
    addresses: Vec<SocketAddr>,
    /// The default address, if another program listens there.
    busy: Option<SocketAddr>,
    boot_id: String,
    edge: Edge,
    mcp: McpServer,
    services: Services,
    sources: SourceManager,
    store: Store,
    writer: Writer,
    socket: SocketFile,
}

/// How [`run`] ended.
#[derive(Debug)]
pub enum DaemonEnd {
    /// A signal ended it.
    Stopped,
    /// Another daemon had taken the database, and has left it. The caller runs the daemon again at
    /// these addresses, in a new runtime: nothing of this run may go on.
    Fenced(Vec<SocketAddr>),
}

/// Runs the daemon until a signal or another daemon ends it, and calls `ready` as soon as it takes
/// requests. The caller holds the database's lock. With `is_again`, this process was fenced: a
/// start that fails and may succeed later is repeated then, because nobody else starts this daemon.
pub async fn run(
    config: &Config,
    env: &Env,
    signals: &StopSignals,
    is_again: bool,
    ready: impl FnOnce(&Ready<'_>),
) -> anyhow::Result<DaemonEnd> {
    svc_heap::keep_bounds();
    // `svc stop --stay` came between two runs.
    if is_again && stays_stopped(&config.paths) {
        return Ok(DaemonEnd::Stopped);
    }
    let lifecycle = Lifecycle::default();
    lifecycle.follow(signals.clone());
    let daemon = match Box::pin(ServingDaemon::start(&lifecycle, config, env)).await {
        Ok(daemon) => daemon,
        Err(_) if is_again && signals.has_come() => return Ok(DaemonEnd::Stopped),
        Err(error) if is_again && may_succeed_later(&error) => {
            tracing::error!(error = telemetry::chain(&*error), "cannot start anew yet");
            tokio::select! {
                () = lifecycle.soft.cancelled() => return Ok(DaemonEnd::Stopped),
                () = sleep(START_PAUSE) => {
                    return Ok(DaemonEnd::Fenced(config.listen.value.clone()));
                }
            }
        }
        Err(error) => return Err(error),
    };
    ready(&Ready { url: &daemon.url, busy: daemon.busy });
    tokio::select! {
        biased;
        () = lifecycle.soft.cancelled() => {
            daemon.stop(&lifecycle, &config.paths).await?;
            return Ok(DaemonEnd::Stopped);
        }
        () = daemon.store.released() => {}
    }
    tracing::warn!("the other daemon has left the database: starting anew");
    lifecycle.soft.cancel();
    let addresses = daemon.addresses.clone();
    // Connections that a broken network left behind may answer nothing for many minutes. They end
    // with this run's runtime.
    match timeout(limits::DRAIN + FENCED_CLOSE, daemon.stop(&lifecycle, &config.paths)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = telemetry::chain(&*error), "the former run did not end well");
        }
        Err(_) => tracing::warn!("the former run did not end in time"),
    }
    Ok(if signals.has_come() { DaemonEnd::Stopped } else { DaemonEnd::Fenced(addresses) })
}

/// Whether a start that failed may succeed without a person or another version of svc.
fn may_succeed_later(error: &anyhow::Error) -> bool {
    !error.is::<HistoryGone>()
        && !matches!(
            error.downcast_ref(),
            Some(
                MigrateError::Newer { .. }
                    | MigrateError::Older { .. }
                    | MigrateError::Pending(_)
                    | MigrateError::Failed(_)
            )
        )
}

/// The rows of the configured database have moved. Its text names the place.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HistoryGone(String);

/// Opens the configured database. Fails if its rows are being moved to another database, or were,
/// unless `force_local` is set.
async fn open_store(config: &Config, clock: Arc<dyn Clock>) -> anyhow::Result<(Store, Writer)> {
    let (store, writer) = open_database(config, clock).await?;
    let gone = if config.force_local { None } else { store.settings().gone_to().await? };
    let Some(place) = gone else { return Ok((store, writer)) };
    writer.close(store).await.context("cannot close the database")?;
    let advice = if place.contains("://") {
        "name that in [store] url of config.toml"
    } else {
        "that is svc.db of a data folder whose config.toml names no store.url"
    };
    Err(anyhow::Error::new(HistoryGone(format!(
        "this history moves to {place}, or has moved there: {advice}, repeat \
         `svc migrate` if it did not end, or start with --force-local"
    ))))
}

async fn open_database(config: &Config, clock: Arc<dyn Clock>) -> anyhow::Result<(Store, Writer)> {
    let host = HostIdentity::of_this(config.daemon_name.as_deref());
    let machine = ThisMachine::open(&config.paths.home, &host).with_context(|| {
        format!("cannot identify the machine of {}", config.paths.home.display())
    })?;
    let Some(options) = PostgresOptions::configured(config)? else {
        let options = OpenOptions {
            machine,
            path: config.paths.db.clone(),
            max_bytes: config.store_max_bytes.value,
            migrate: !config.no_migrate,
        };
        let opened = Store::open(&options, clock).await;
        return opened.with_context(|| format!("cannot open {}", options.path.display()));
    };
    let opened = Store::open_postgres(&options, &machine, clock).await;
    opened.with_context(|| format!("cannot open {}", options.url.shown()))
}

/// The token file that this start makes. It is removed if the daemon does not come to own the
/// store: nobody else would know that token.
struct NewTokenFile(Option<PathBuf>);

impl NewTokenFile {
    /// Holds the token file if it is not there yet and this start makes it.
    fn expected(config: &Config) -> Self {
        let file = &config.token_file.value;
        let is_made =
            config.token_file.origin == Origin::Default && matches!(file.try_exists(), Ok(false));
        Self(is_made.then(|| file.clone()))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewTokenFile {
    fn drop(&mut self) {
        if let Some(file) = &self.0
            && let Err(error) = std::fs::remove_file(file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, file = %file.display(), "cannot remove the new token file");
        }
    }
}

impl ServingDaemon {
    async fn start(lifecycle: &Lifecycle, config: &Config, env: &Env) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let ids = Ids::random();
        let identity = Identity {
            boot_id: TokenId::new(&ids, clock.now()).as_str()[4..].to_owned(),
            pid: std::process::id(),
            started_at: clock.now(),
        };
        let (edge, addresses, busy) = listen(lifecycle, config, &identity.boot_id).await?;
        // Before the socket is bound: a client that connects to it reads the token first.
        let file = &config.token_file.value;
        let made = NewTokenFile::expected(config);
        let tokens = match config.token_file.origin {
            Origin::Default => Tokens::open_or_make(file)?,
            // A wrong name in the configuration must not create a token.
            Origin::File | Origin::Env | Origin::Flag => Tokens::open(file)?,
        };
        let socket = listen_local(lifecycle, config, &edge)?;
        let (store, writer) = open_store(config, Arc::clone(&clock)).await?;
        let policy = HookPolicy {
            check_in: i64::try_from(config.hooks_check_in.value).unwrap_or(i64::MAX),
            context: config.hooks_context.value,
            sub_agents: config.hooks_sub_agents.value,
            attended: config.approvals_attended.value,
        };
        let tuning = tuning(config, env)?;
        let program = std::env::current_exe().unwrap_or_default();
        let home = config.paths.explicit_home.then(|| config.paths.home.clone());
        // Clients whose sessions a message does not wake.
        let mut wake_off = config.wake_off.value.clone();
        if config.hooks_wake.value == WakeMode::Never {
            wake_off.push(HookClient::ClaudeCode);
        }
        let settings = ServiceSettings {
            sessions: SessionSettings {
                policy: config.sessions_policy(),
                scopes: Some(config.session_scopes()),
                secrets: Some(SessionSecrets::in_home(&config.paths.home)),
            },
            hooks: policy,
            wake_off,
            agents: AgentSettings {
                config: config.agents.clone(),
                env: env.clone(),
                folder: config.paths.agents.clone(),
                program: program.clone(),
                home: config.paths.home.clone(),
            },
        };
        let services = Services::new(store.clone(), clock, ids, tuning, tokens, settings);
        let (id, pid, version) = (&identity.boot_id, identity.pid, env!("CARGO_PKG_VERSION"));
        let data = json!({ "boot_id": id, "pid": pid, "version": version });
        let daemon = NewDaemon { daemon_id: id.clone(), pid, version: version.to_owned() };
        // The first write proves that the database is writable. Both writes can share a commit, so
        // that a start waits for one sync only.
        let started = services.log.append_daemon_event("daemon.started", &data);
        tokio::try_join!(started, services.machines.join(daemon))?;
        made.keep();
        services.prompts.begin().await?;
        let tools = tools::catalogue();
        tools.bound_tool_call(config.sources_tool_call.value.clone());
        let (boot_id, started_at) = (identity.boot_id.clone(), identity.started_at);
        let (mut metrics, mcp_metrics) = (Metrics::default(), McpMetrics::default());
        mcp_metrics.register(&mut metrics.registry);
        let source_metrics = SourceMetrics::default();
        source_metrics.register(&mut metrics.registry);
        let sources = SourceManager::start(SourceManagerParts {
            services: services.clone(),
            files: config.sources.clone(),
            env: env.clone(),
            catalogue: Arc::downgrade(&tools),
            metrics: source_metrics,
            results: ResultBounds {
                result_bytes: usize::try_from(config.sources_max_result_bytes.value)
                    .unwrap_or(usize::MAX),
                kept_bytes: config.sources_max_kept_bytes.value,
            },
            private: config.private_paths(),
        })
        .await?;
        tools.join(Arc::new(sources.clone()));
        for tool in resource_tools(&sources) {
            tools.add(tool);
        }
        let mcp = McpServer::start(McpServerParts {
            services: services.clone(),
            catalogue: Arc::clone(&tools),
            resources: vec![Box::new(StreamResources)],
            prompts: vec![mcp::servers_prompt(sources.clone())],
            sources: Some(sources.clone()),
            metrics: mcp_metrics,
            stop: lifecycle.soft.clone(),
            exposure: config.sources_expose.value,
        })
        .await?;
        let app = App::new(AppState {
            services: services.clone(),
            tools: Arc::clone(&tools),
            sources: Some(sources.clone()),
            doctor: Some(Doctor::new(program, home, &config.store)),
            metrics,
            identity,
            stop: lifecycle.soft.clone(),
        });
        // Before the first response: a client may read the URL as soon as it gets one.
        let url =
            daemon_file::write(&config.paths, &addresses, &boot_id, started_at, store.path())?;
        edge.ready(app, mcp::routes(mcp.clone()));
        start_sweeps(lifecycle, &services, &tools, config);
        tracing::info!(url, db.path = %store.path().display(), "ready");
        Ok(Self {
            url,
            addresses,
            busy,
            boot_id,
            edge,
            mcp,
            services,
            sources,
            store,
            writer,
            socket,
        })
    }

    /// Ends the streams, drains the requests under way, and closes the database.
    async fn stop(self, lifecycle: &Lifecycle, paths: &Paths) -> anyhow::Result<()> {
        self.edge.drain();
        lifecycle.drain(limits::DRAIN).await;
        self.sources.finish().await;
        self.mcp.finish().await;
        lifecycle.background.close();
        lifecycle.background.wait().await;
        if let Err(error) = self.services.machines.leave().await {
            tracing::warn!(error = telemetry::chain(&error), "cannot give the lease back");
        }
        let data = json!({ "boot_id": self.boot_id });
        let log = &self.services.log;
        if let Err(error) = log.append_daemon_event("daemon.stopped", &data).await {
            tracing::warn!(error = telemetry::chain(&error), "cannot log the end");
        }
        daemon_file::remove(paths, &self.boot_id);
        drop(self.socket);
        self.writer.close(self.store).await.context("cannot close the database")?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Binds the port and responds with 503 until the daemon is ready. Returns the actual addresses,
/// since the system may choose the port, and the default address if it is busy.
async fn listen(
    lifecycle: &Lifecycle,
    config: &Config,
    boot_id: &str,
) -> anyhow::Result<(Edge, Vec<SocketAddr>, Option<SocketAddr>)> {
    let proxy_users = user_ids(&config.proxy_user.value)?;
    let page_host = page_host(&config.paths)
        .with_context(|| format!("cannot use {}", config.paths.page_name.display()))?;
    let (listeners, busy) = match bind(&config.listen.value).await {
        // Any user of this machine can take the default port, and commands need only the socket.
        Err(BindError::Busy(address)) if config.listen.origin == Origin::Default => {
            tracing::warn!(%address, "the default address is in use: a free port is taken in its place");
            let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            (bind(&[free]).await?, Some(address))
        }
        bound => (bound?, None),
    };
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    let access = EntryRules {
        listen: addresses.clone(),
        allowed_hosts: config.allowed_host.value.clone(),
        allowed_origins: config.allowed_origin.value.clone(),
        no_auth: config.no_auth.value,
        page_host: Some(page_host),
        proxy_users,
    };
    let edge = Edge::new(access, boot_id);
    let bounds = ConnectionBounds::of_tcp();
    for listener in listeners {
        let (soft, connections) = (lifecycle.soft.clone(), lifecycle.connections.clone());
        let listener = Listener::Tcp(listener);
        let serve = http::serve(listener, bounds.clone(), edge.clone(), soft, connections);
        lifecycle.run("listener", serve);
    }
    Ok((edge, addresses, busy))
}

/// Resolves users that are given by name or by number.
fn user_ids(names: &[String]) -> anyhow::Result<Vec<u32>> {
    let id = |name: &String| {
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let user = nix::unistd::User::from_name(name)
            .with_context(|| format!("proxy_user: cannot look up `{name}`"))?;
        user.map(|user| user.uid.as_raw())
            .with_context(|| format!("proxy_user: this machine has no user `{name}`"))
    };
    names.iter().map(id).collect()
}

/// Like `listen`, on the Unix socket in the data folder, for this user's processes.
fn listen_local(lifecycle: &Lifecycle, config: &Config, edge: &Edge) -> anyhow::Result<SocketFile> {
    let path = &config.paths.socket;
    let (listener, socket) = local_socket::listen(path)
        .with_context(|| format!("cannot listen on {}", path.display()))?;
    let (soft, connections) = (lifecycle.soft.clone(), lifecycle.connections.clone());
    let (listener, bounds) = (Listener::Local(listener), ConnectionBounds::none());
    lifecycle.run("socket", http::serve(listener, bounds, edge.clone(), soft, connections));
    Ok(socket)
}

#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error(
        "port {port} is in use on {ip}: another program listens there; choose another with --listen {ip}:0 (any free port)",
        port = .0.port(), ip = .0.ip()
    )]
    Busy(SocketAddr),
    #[error("cannot listen on {address}: see --listen")]
    Io {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

async fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = match TcpListener::bind(address).await {
            // The wildcard address on a machine without IPv6.
            Err(error)
                if error.kind() != io::ErrorKind::AddrInUse
                    && address.ip() == Ipv6Addr::UNSPECIFIED =>
            {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
            }
            bound => bound,
        };
        listeners.push(listener.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::Busy(*address),
            _ => BindError::Io { address: *address, source },
        })?);
    }
    Ok(listeners)
}

/// The configured bounds. Tests shorten them by undocumented variables.
fn tuning(config: &Config, env: &Env) -> anyhow::Result<Tuning> {
    let days = config.retention_max_age_days.value;
    let mut tuning = Tuning {
        budget: config.budget_bounds(),
        retention: Retention {
            max_age: Some(Duration::from_secs(days.saturating_mul(24 * 60 * 60))),
            max_bytes: config.retention_max_bytes.value,
        },
        store_max_bytes: config.store_max_bytes.value,
        away: config.team_away.value,
        ..Tuning::default()
    };
    let number = |name: &str| -> anyhow::Result<Option<u64>> {
        let Some(text) = env.text(name)? else { return Ok(None) };
        Ok(Some(text.parse().with_context(|| format!("{name} must be a number"))?))
    };
    for (name, value) in [
        ("SVC_PEER_TIMEOUT_MS", &mut tuning.peer_timeout),
        ("SVC_LEASE_MS", &mut tuning.lease),
        ("SVC_RUNNER_GRACE_MS", &mut tuning.runner_grace),
        ("SVC_MAINTENANCE_MS", &mut tuning.maintenance),
        ("SVC_QUIET_MS", &mut tuning.quiet),
        ("SVC_SSE_KEEPALIVE_MS", &mut tuning.sse_keep_alive),
        ("SVC_BODY_TIMEOUT_MS", &mut tuning.body_stall),
        ("SVC_MCP_TASK_AFTER_MS", &mut tuning.mcp_task_after),
        ("SVC_LIST_CHANGED_MS", &mut tuning.list_changed_pause),
        ("SVC_FIRST_HOOK_MS", &mut tuning.first_hook),
    ] {
        if let Some(millis) = number(name)? {
            *value = Duration::from_millis(millis.max(1));
        }
    }
    for (name, bound) in [
        ("SVC_INBOX_MAX", &mut tuning.inbox_max),
        ("SVC_SESSION_SENDS", &mut tuning.session_sends),
        ("SVC_WAKES", &mut tuning.wakes),
    ] {
        if let Some(most) = number(name)? {
            *bound = u32::try_from(most)?;
        }
    }
    Ok(tuning)
}

#[cfg(test)]
mod tests {
    use svc_store::StoreError;

    use super::*;

    #[test]
    fn only_a_start_that_may_succeed_is_repeated_after_fencing() {
        let in_use = MigrateError::InUse("another daemon has it".to_owned());
        let away = MigrateError::Store(StoreError::Stopped);
        for (error, may_succeed) in [
            (anyhow::Error::new(in_use), true),
            (anyhow::Error::new(away), true),
            (anyhow::Error::new(io::Error::from(io::ErrorKind::AddrInUse)), true),
            (anyhow::Error::new(MigrateError::Newer { found: 99, known: 59 }), false),
            (anyhow::Error::new(MigrateError::Older { found: 1, oldest: 36 }), false),
            (anyhow::Error::new(MigrateError::Pending(1)), false),
            (anyhow::Error::new(HistoryGone("it moved".to_owned())), false),
        ] {
            let error = error.context("cannot open the database");
            assert_eq!(may_succeed_later(&error), may_succeed, "{error:#}");
        }
    }
}
