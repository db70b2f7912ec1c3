//! `svc serve`: runs [`svc_server::daemon`] in the foreground.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use svc_server::daemon::{self, Ready};
use svc_store::MigrateError;
use svc_sys::config::{Config, Env, LogFormat};
use svc_sys::private_file;
use svc_sys::telemetry::{self, LogOptions};

use super::database_lock::lock_database;
use super::migrate::with_advice;
use super::{MIGRATIONS_PENDING, output};

/// The warning for `no_auth`.
pub(super) const NO_AUTH: &str = "no_auth is on: every program of your user, and root's, is the operator, who reads and changes \
    everything; other users and pages of other web sites are refused";

/// Runs the daemon until a signal.
pub fn run(config: &Config, env: &Env) -> anyhow::Result<ExitCode> {
    // Every file that is created from here on is readable by its owner only.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let paths = &config.paths;
    private_file::prepare_home(&paths.home)?;
    telemetry::init(&LogOptions {
        // A pool warns of each connection that a server ends; the store says that once.
        filter: format!("sqlx_core::pool=error,{}", config.log_level.value),
        json: match config.log_format.value {
            LogFormat::Json => true,
            LogFormat::Text => false,
            LogFormat::Auto => config.log_file.is_some(),
        },
        file: config.log_file.clone(),
    })?;
    if config.no_auth.value {
        tracing::warn!("{NO_AUTH}");
        output::note(&format!("warning: {NO_AUTH}"));
    }
    let _lock = lock_database(paths, None)?;
    raise_file_limit();
    disable_core_dumps();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(daemon::worker_threads())
        .enable_all()
        .build()?;
    let served = runtime.block_on(daemon::run(config, env, print_ready));
    // A blocking call that hangs must not delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match served {
        Err(error) if matches!(error.downcast_ref(), Some(MigrateError::Pending(_))) => {
            output::note(&format!("error: {:#}", with_advice(error)));
            Ok(ExitCode::from(MIGRATIONS_PENDING))
        }
        Err(error) => Err(with_advice(error)),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// Disables core dumps: the memory of this process has all secrets that it uses.
fn disable_core_dumps() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(0);
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!(%error, "a crash of the daemon may leave a core file with its secrets");
    }
}

/// Raises the soft limit of file descriptors: every subscriber needs one.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(error = telemetry::chain(&error), "cannot raise the limit of open files");
    }
}

/// Prints the readiness line, for which a parent process may wait.
fn print_ready(ready: &Ready<'_>) {
    let mut stdout = io::stdout().lock();
    let (version, url) = (env!("CARGO_PKG_VERSION"), ready.url);
    let why = ready.busy.map(|busy| format!(" ({busy} is in use by another program)"));
    let line = format!("svc {version} ready at {url}{}", why.unwrap_or_default());
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::debug!(error = telemetry::chain(&error), "cannot print the readiness line");
    }
}
