//! `svc serve`: runs [`svc_server::daemon`] in the foreground, with flags that `svc start` passes
//! on.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use svc_server::daemon::{self, DaemonEnd, Ready, StopSignals};
use svc_store::MigrateError;
use svc_sys::config::sources::HandedDocument;
use svc_sys::config::{Config, Env, Flags, LogFormat, Origin, Paths, Setting};
use svc_sys::private_file;
use svc_sys::telemetry::{self, LogOptions};

use super::database::{lock_database, with_advice};
use super::{ExitResult, MIGRATIONS_PENDING, exit, output};

pub(super) const NO_AUTH: &str = "no_auth is on: every program of your user, and root's, is the operator, who reads and changes \
    everything; other users and pages of other web sites are refused";

/// How long the end of the process waits for a blocking call.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// How long another run of the daemon waits for the blocking calls of the former one: longer than
/// those for the lock of the hooks' spool take.
const FENCED_PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn run(config: &Config, env: &Env, json: bool) -> ExitResult {
    // Every file that is created from here on is readable only by its owner.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let paths = &config.paths;
    private_file::prepare_home(&paths.home)?;
    telemetry::init(&LogOptions {
        // The pool warns about each connection that the server closes; the store reports that once.
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
    close_home(paths);
    raise_file_limit();
    disable_core_dumps();
    let signals = StopSignals::listen()?;
    let (mut config, mut is_again) = (config.clone(), false);
    let served = loop {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(daemon::worker_threads())
            .enable_all()
            .build()?;
        let ready = |ready: &Ready<'_>| {
            // A parent process waits for the first line only.
            if !is_again {
                print_ready(ready, json);
            }
        };
        let served = runtime.block_on(daemon::run(&config, env, &signals, is_again, ready));
        // A blocking call that hangs must not delay the exit. What a fenced run has left ends here,
        // before another run does the same.
        let is_over = !matches!(served, Ok(DaemonEnd::Fenced(_)));
        runtime.shutdown_timeout(if is_over { EXIT_PATIENCE } else { FENCED_PATIENCE });
        match served {
            Ok(DaemonEnd::Fenced(addresses)) => {
                // Never at other addresses: while another program has one, the start is repeated.
                config.listen = Setting { value: addresses, origin: Origin::Flag };
                is_again = true;
            }
            Ok(DaemonEnd::Stopped) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    match served {
        Err(error) if matches!(error.downcast_ref(), Some(MigrateError::Pending(_))) => {
            exit::code(Err(with_advice(error)), json);
            Ok(ExitCode::from(MIGRATIONS_PENDING))
        }
        Err(error) => Err(with_advice(error)),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// Makes the data folder private. Some file systems have one mode for all: the files in it are
/// private without it, so the daemon starts all the same.
fn close_home(paths: &Paths) {
    let home = paths.home.display();
    match private_file::close_folder(&paths.home) {
        Ok(None) => {}
        Ok(Some(mode)) => {
            tracing::warn!("others could look into {home} (mode {mode:o}): now they cannot");
        }
        Err(error) => {
            tracing::warn!(error = telemetry::chain(&error), "others may look into {home}");
        }
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
fn print_ready(ready: &Ready<'_>, json: bool) {
    let mut stdout = io::stdout().lock();
    let (version, url) = (env!("CARGO_PKG_VERSION"), ready.url);
    let line = if json {
        let pid = std::process::id();
        let mut told = json!({ "running": true, "pid": pid, "url": url, "version": version });
        if let Some(busy) = ready.busy {
            told["busy"] = busy.to_string().into();
        }
        told.to_string()
    } else {
        let why = ready.busy.map(|busy| format!(" ({busy} is in use by another program)"));
        format!("svc {version} ready at {url}{}", why.unwrap_or_default())
    };
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::debug!(error = telemetry::chain(&error), "cannot print the readiness line");
    }
}

#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub flags: Flags,
    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// The documents among the values of `--mcp-config`, one a line, for the standard input of
/// another `svc serve`. They may hold secrets, and every user of the machine can read the
/// arguments of a process.
pub(super) fn input_of(flags: &Flags) -> String {
    let documents = flags.mcp_config.iter().filter(|value| is_document(value));
    documents.map(|document| HandedDocument::line(document)).collect()
}

/// The flags as arguments of another `svc serve`, without the hidden ones.
pub(super) fn arguments_of(flags: &Flags) -> Vec<OsString> {
    // The background daemon has another working folder, so paths are made absolute. Documents go to
    // its standard input.
    let file = |value: &String| match std::path::absolute(value) {
        Ok(path) if !is_document(value) => path.to_string_lossy().into_owned(),
        _ => "-".to_owned(),
    };
    let mcp_config = flags.mcp_config.iter().map(file).collect();
    let others = Flags { mcp_config, ..flags.clone() };
    let given = json!(others);
    let mut out: Vec<OsString> = Vec::new();
    for (name, value) in given.as_object().into_iter().flatten() {
        let flag = format!("--{}", name.replace('_', "-"));
        let with = |value: &Value| [&flag, &output::plain(value)].map(OsString::from);
        match value {
            Value::Null | Value::Bool(false) => {}
            Value::Bool(true) => out.push(flag.into()),
            Value::Array(values) => out.extend(values.iter().flat_map(with)),
            value => out.extend(with(value)),
        }
    }
    // A path need not be UTF-8, so the paths are not among these.
    for (flag, path) in
        [("--token-file", &flags.token_file), ("--store-password-file", &flags.store_password_file)]
    {
        out.extend(path.iter().flat_map(|path| [OsString::from(flag), OsString::from(path)]));
    }
    out
}

fn is_document(value: &str) -> bool {
    value.trim_start().starts_with('{')
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }

    #[test]
    fn every_visible_flag_is_passed_on() {
        let given: Vec<&str> = "--listen 127.0.0.1:1 --listen [::1]:1 --allowed-host h --allowed-origin http://o \
            --proxy-user www-data --mcp-config {\"mcpServers\":{}} --store-url postgres://db/svc --store-schema team \
            --log-level debug --log-format json --daemon-name box --store-max-connections 9 --store-connect-timeout 5 \
            --store-password-file /p --token-file /t --no-auth --no-migrate --strict-mcp-config"
            .split(' ')
            .collect();
        let parsed = Program::try_parse_from(std::iter::once("svc").chain(given.iter().copied()))
            .expect("is valid");
        let passed_on =
            given.into_iter().map(|word| if word.starts_with('{') { "-" } else { word });
        let mut passed_on: Vec<OsString> = passed_on.map(OsString::from).collect();
        let mut arguments = arguments_of(&parsed.serve.flags);
        passed_on.sort();
        arguments.sort();
        assert_eq!(arguments, passed_on);
        let folder = std::env::current_dir().expect("a folder");
        let line = format!("{}\n", serde_json::json!([folder, { "mcpServers": {} }]));
        assert_eq!(input_of(&parsed.serve.flags), line);
    }
}
