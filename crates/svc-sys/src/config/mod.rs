//! Configuration: flags over environment over file over defaults, resolved once and validated.
//!
//! Only [`Config::resolve`] knows the precedence; every value keeps its [`Origin`] for `svc config
//! show`. The environment of the process is read once, into an [`Env`]. Nothing here uses the
//! network. The only secret that may be in a value is the password in the address of a database.

mod agents;
mod file;
mod resolve;
mod setting;
pub mod sources;
mod store;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

pub use agents::{AgentsConfig, InstanceProblem, ResolvedInstance};
pub use file::{FileConfig, SessionScopes, scope};
pub use resolve::Config;
pub use setting::{ConfigRow, DEFAULT_LISTEN, LogFormat, Origin, Setting, WakeMode, hook_client};
pub use store::{ListenMode, Password, StoreSettings, StoreUrl};

/// A snapshot of environment variables.
///
/// An empty variable counts as unset, as in the XDG specification.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<OsString, OsString>);

/// Shows only the names, as a value may be a token.
impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Env {
    pub fn from_process() -> Self {
        std::env::vars_os().collect()
    }

    pub fn os(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Fails with [`ConfigError::Invalid`] if the value is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        let Some(value) = self.os(name) else { return Ok(None) };
        value.to_str().map(Some).ok_or_else(|| ConfigError::Invalid {
            source_name: format!("environment variable {name}"),
            problem: "is not valid UTF-8".to_owned(),
            advice: "set it to plain text, or unset it".to_owned(),
        })
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The flags of `svc serve`. An empty list or `None` means that the flag was not given.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Flags {
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
    #[serde(skip_serializing)]
    pub token_file: Option<PathBuf>,
    /// Keep the rows in this database of PostgreSQL, without its password
    /// [default: svc.db in the data folder]
    #[arg(long, value_name = "URL")]
    pub store_url: Option<String>,
    /// The file with the password for --store-url
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing)]
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
    #[serde(skip_serializing)]
    pub log_file: Option<PathBuf>,
}

/// Every message names the source, the key and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "cannot tell where the data lives: neither SVC_HOME nor HOME is set; set SVC_HOME to a folder or use --home"
    )]
    NoHome,
    #[error("cannot read the configuration file {path}; check its owner and mode", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, has an unknown key, or a value of the wrong type.
    #[error("in the configuration file {path}: {problem}\ncorrect the file, then try `svc config check {path}`", path = path.display())]
    File {
        path: PathBuf,
        /// The parser's message with line, column and key.
        problem: String,
    },
    #[error("{source_name} {problem}; {advice}")]
    Invalid {
        /// A flag, a variable, or a key of the file.
        source_name: String,
        problem: String,
        advice: String,
    },
    /// A document of `--mcp-config` is invalid.
    #[error("{0}")]
    Sources(String),
    #[error(
        "no_auth ({origin}) is refused because {address} is not a loopback address: anyone who reaches it would be the operator; \
         listen on 127.0.0.1 or [::1] only, or leave authentication on"
    )]
    NoAuthBeyondLoopback {
        origin: String,
        /// The first address that is not loopback.
        address: std::net::SocketAddr,
    },
}

/// The files of one daemon, as absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The data folder, mode 0700.
    pub home: PathBuf,
    pub db: PathBuf,
    /// `svc.db.lock`, which limits a database to one daemon.
    pub lock: PathBuf,
    /// Default of the setting `token_file`.
    pub token: PathBuf,
    /// File with the random path segment of the page.
    pub page_name: PathBuf,
    /// Pid and URL of the running daemon.
    pub daemon_json: PathBuf,
    /// Unix socket of the running daemon, for commands of this user.
    pub socket: PathBuf,
    /// Log of a background daemon.
    pub log: PathBuf,
    /// Sockets and spools of the hosts of agents.
    pub agents: PathBuf,
    /// Output of `svc task run` that the daemon has not acknowledged yet.
    pub spool: PathBuf,
    /// May not exist.
    pub config_file: PathBuf,
    /// Whether the home is from `--home` or `SVC_HOME`.
    pub explicit_home: bool,
}

impl Paths {
    /// The home is `home_flag`, else `$SVC_HOME`, else `$XDG_DATA_HOME/svc`, else
    /// `~/.local/share/svc`.
    ///
    /// The configuration file is `config.toml` in an explicit home, else
    /// `$XDG_CONFIG_HOME/svc/config.toml`, else `~/.config/svc/config.toml`. Relative XDG variables
    /// are ignored, as the specification requires.
    pub fn resolve(env: &Env, home_flag: Option<&Path>) -> Result<Self, ConfigError> {
        let chosen =
            home_flag.map(Path::to_path_buf).or_else(|| env.os("SVC_HOME").map(PathBuf::from));
        if let Some(home) = chosen {
            let home = absolute(&home)?;
            let config_file = home.join("config.toml");
            return Ok(Self::under(home, config_file, true));
        }
        let xdg = |name: &str, fallback: &str| {
            env.os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .or_else(|| env.os("HOME").map(|home| Path::new(home).join(fallback)))
                .ok_or(ConfigError::NoHome)
        };
        let home = absolute(&xdg("XDG_DATA_HOME", ".local/share")?.join("svc"))?;
        let config_file = absolute(&xdg("XDG_CONFIG_HOME", ".config")?.join("svc/config.toml"))?;
        Ok(Self::under(home, config_file, false))
    }

    fn under(home: PathBuf, config_file: PathBuf, explicit_home: bool) -> Self {
        Self {
            db: home.join("svc.db"),
            lock: home.join("svc.db.lock"),
            token: home.join("token"),
            page_name: home.join("page_name"),
            daemon_json: home.join("daemon.json"),
            socket: home.join("svc.sock"),
            log: home.join("svc.log"),
            agents: home.join("agents"),
            spool: home.join("spool"),
            config_file,
            explicit_home,
            home,
        }
    }
}

/// Paths are made absolute, as a background daemon has another working folder.
fn absolute(path: &Path) -> Result<PathBuf, ConfigError> {
    std::path::absolute(path).map_err(|_| ConfigError::NoHome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_and_config_file_follow_the_documented_order() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>, &'a str, &'a str);
        let cases: &[Case<'_>] = &[
            (&[("HOME", "/u")], None, "/u/.local/share/svc", "/u/.config/svc/config.toml"),
            (
                &[("HOME", "/u"), ("XDG_DATA_HOME", "/d"), ("XDG_CONFIG_HOME", "/c")],
                None,
                "/d/svc",
                "/c/svc/config.toml",
            ),
            (
                &[("HOME", "/u"), ("XDG_DATA_HOME", "rel")],
                None,
                "/u/.local/share/svc",
                "/u/.config/svc/config.toml",
            ),
            (
                &[("HOME", "/u"), ("SVC_HOME", "/s"), ("XDG_CONFIG_HOME", "/c")],
                None,
                "/s",
                "/s/config.toml",
            ),
            (
                &[("HOME", "/u"), ("SVC_HOME", "")],
                None,
                "/u/.local/share/svc",
                "/u/.config/svc/config.toml",
            ),
            (&[("SVC_HOME", "/s")], Some("/flag"), "/flag", "/flag/config.toml"),
        ];
        for (vars, flag, home, config) in cases {
            let env: Env = vars.iter().copied().collect();
            let paths = Paths::resolve(&env, flag.map(Path::new)).expect("resolves");
            assert_eq!(
                (paths.home.as_path(), paths.config_file.as_path()),
                (Path::new(home), Path::new(config)),
                "{vars:?}"
            );
            assert_eq!(paths.db, Path::new(home).join("svc.db"));
        }
    }

    #[test]
    fn error_without_a_home_names_the_variable_to_set() {
        let error = Paths::resolve(&Env::default(), None).expect_err("nothing is set");
        assert!(error.to_string().contains("SVC_HOME"), "{error}");
    }
}
