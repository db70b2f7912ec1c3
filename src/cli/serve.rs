//! `svc serve`: runs [`svc_server::daemon`] in the foreground, with flags that `svc start` passes
//! on.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use svc_server::daemon::{self, Ready};
use svc_store::MigrateError;
use svc_sys::config::sources::HandedDocument;
use svc_sys::config::{Config, Env, Flags, LogFormat};
use svc_sys::private_file;
use svc_sys::telemetry::{self, LogOptions};

use super::database::{lock_database, with_advice};
use super::{ExitResult, MIGRATIONS_PENDING, output};

pub(super) const NO_AUTH: &str = "no_auth is on: every program of your user, and root's, is the operator, who reads and changes \
    everything; other users and pages of other web sites are refused";

pub(super) fn run(config: &Config, env: &Env) -> ExitResult {
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

#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct ServeArgs {
    /// Address to listen on; repeatable [default: 127.0.0.1:6334]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<String>,
    /// Treat your own programs as the operator, without a token; loopback addresses only
    #[arg(long)]
    pub no_auth: bool,
    /// Accept this Host header too; repeatable
    #[arg(long, value_name = "HOST")]
    pub allowed_host: Vec<String>,
    /// Accept this Origin header too; repeatable
    #[arg(long, value_name = "ORIGIN")]
    pub allowed_origin: Vec<String>,
    /// Let programs of this user, a reverse proxy, pass on requests of signed-in browsers;
    /// repeatable
    #[arg(long, value_name = "NAME")]
    pub proxy_user: Vec<String>,
    /// The operator token's file [default: token in the data folder]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Keep the rows in this database of PostgreSQL, without its password
    /// [default: svc.db in the data folder]
    #[arg(long, value_name = "URL")]
    pub store_url: Option<String>,
    /// The file with the password for --store-url
    #[arg(long, value_name = "PATH")]
    pub store_password_file: Option<PathBuf>,
    /// The schema of our tables in --store-url [default: svc]
    #[arg(long, value_name = "NAME")]
    pub store_schema: Option<String>,
    /// Connections to --store-url, 3 or more [default: 6]
    #[arg(long, value_name = "NUMBER")]
    pub store_max_connections: Option<u64>,
    /// Seconds that a start waits for --store-url [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub store_connect_timeout: Option<u64>,
    /// How to hear of what other connections to --store-url commit: notify or poll
    /// [default: notify]
    #[arg(long, value_name = "MODE")]
    pub store_listen: Option<String>,
    /// What to log: a level, or a list such as svc=debug,warn [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// auto, text or json [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What this machine is called, and known by where it has no id [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub daemon_name: Option<String>,
    /// Refuse to start when migrations are pending, rather than apply them
    #[arg(long)]
    pub no_migrate: bool,
    /// Start on a history that `svc migrate` moves to another database, or has moved
    #[arg(long)]
    pub force_local: bool,
    /// Start these MCP servers too: a file with mcpServers, the JSON itself, or - for a line of
    /// standard input; repeatable
    #[arg(long, value_name = "FILE|JSON")]
    pub mcp_config: Vec<String>,
    /// Start no MCP servers but those of --mcp-config
    #[arg(long)]
    pub strict_mcp_config: bool,
    /// Write the log to this file, rotated by size
    #[arg(long, value_name = "PATH", hide = true)]
    pub log_file: Option<PathBuf>,
    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl ServeArgs {
    pub fn flags(&self) -> Flags {
        Flags {
            listen: self.listen.clone(),
            no_auth: self.no_auth,
            allowed_host: self.allowed_host.clone(),
            allowed_origin: self.allowed_origin.clone(),
            proxy_user: self.proxy_user.clone(),
            token_file: self.token_file.clone(),
            store_url: self.store_url.clone(),
            store_password_file: self.store_password_file.clone(),
            store_schema: self.store_schema.clone(),
            store_max_connections: self.store_max_connections,
            store_connect_timeout: self.store_connect_timeout,
            store_listen: self.store_listen.clone(),
            log_level: self.log_level.clone(),
            log_format: self.log_format.clone(),
            daemon_name: self.daemon_name.clone(),
            log_file: self.log_file.clone(),
            no_migrate: self.no_migrate,
            force_local: self.force_local,
            mcp_config: self.mcp_config.clone(),
            strict_mcp_config: self.strict_mcp_config,
        }
    }

    /// The documents among the values of `--mcp-config`, one a line, for the standard input of
    /// another `svc serve`. They may hold secrets, and every user of the machine can read the
    /// arguments of a process.
    pub(super) fn to_input(&self) -> String {
        let documents = self.mcp_config.iter().filter(|value| is_document(value));
        documents.map(|document| HandedDocument::line(document)).collect()
    }

    /// The flags as arguments of another `svc serve`, without the hidden ones.
    pub(super) fn to_arguments(&self) -> Vec<OsString> {
        let mut out: Vec<OsString> = Vec::new();
        let lists = [
            ("--listen", &self.listen),
            ("--allowed-host", &self.allowed_host),
            ("--allowed-origin", &self.allowed_origin),
            ("--proxy-user", &self.proxy_user),
        ];
        for (flag, values) in lists {
            for value in values {
                out.extend([flag.into(), value.into()]);
            }
        }
        for value in &self.mcp_config {
            // The background daemon has another working folder, so paths are made absolute.
            // Documents go to its standard input.
            let path = std::path::absolute(value).ok().filter(|_| !is_document(value));
            let value = path.map_or_else(|| "-".into(), PathBuf::into_os_string);
            out.extend(["--mcp-config".into(), value]);
        }
        let text = |value: &Option<String>| value.as_ref().map(OsString::from);
        let number = |value: Option<u64>| value.map(|value| value.to_string().into());
        let path = |value: &Option<PathBuf>| value.as_ref().map(OsString::from);
        for (flag, value) in [
            ("--store-url", text(&self.store_url)),
            ("--store-schema", text(&self.store_schema)),
            ("--store-listen", text(&self.store_listen)),
            ("--log-level", text(&self.log_level)),
            ("--log-format", text(&self.log_format)),
            ("--daemon-name", text(&self.daemon_name)),
            ("--store-max-connections", number(self.store_max_connections)),
            ("--store-connect-timeout", number(self.store_connect_timeout)),
            ("--store-password-file", path(&self.store_password_file)),
            ("--token-file", path(&self.token_file)),
        ] {
            out.extend(value.into_iter().flat_map(|value| [flag.into(), value]));
        }
        for (flag, given) in [
            ("--no-auth", self.no_auth),
            ("--no-migrate", self.no_migrate),
            ("--force-local", self.force_local),
            ("--strict-mcp-config", self.strict_mcp_config),
        ] {
            out.extend(given.then(|| OsString::from(flag)));
        }
        out
    }
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
        assert_eq!(parsed.serve.to_arguments(), passed_on.collect::<Vec<_>>());
        let folder = std::env::current_dir().expect("a folder");
        let line = format!("{}\n", serde_json::json!([folder, { "mcpServers": {} }]));
        assert_eq!(parsed.serve.to_input(), line);
    }
}
