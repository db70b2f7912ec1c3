//! The precedence, the defaults and the rules across keys.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use svc_model::conversation::{AllowRule, SessionsPolicy, SessionsVisibility};
use svc_model::{BudgetBounds, BudgetKind, ToolExposure};

use super::session_scopes::SessionScopes;
use super::sources::{FlagSources, ImportedClient, SourceFiles};
use super::{
    AgentsConfig, ConfigError, DEFAULT_LISTEN, Env, FileConfig, LogFormat, Paths, WakeMode, value,
};

/// Bytes above which a tool's result is kept as a resource.
const MAX_RESULT_BYTES: u64 = 400_000;

/// Bytes of such results that are kept of one principal.
const MAX_KEPT_BYTES: u64 = 512 * 1024 * 1024;

/// The official registry of MCP servers.
const REGISTRY: &str = "https://registry.modelcontextprotocol.io";

/// Tool calls between two reviews of a session's record.
const CHECK_IN: u64 = 10;
/// Seconds that a prompt waits for a daemon that is not ready.
const COLD_WAIT: u64 = 3;
/// Days after which what nobody took or began expires.
const EXPIRY_DAYS: u64 = 30;

/// The resolved configuration: concrete values, each with its origin.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the files are.
    pub paths: Paths,
    /// Addresses to listen on; at least one.
    pub listen: Setting<Vec<SocketAddr>>,
    /// Whether this user's programs are the operator without a token. Only ever true with loopback addresses.
    pub no_auth: Setting<bool>,
    /// Further accepted `Host` names, lower case, with or without a port.
    pub allowed_host: Setting<Vec<String>>,
    /// Further accepted origins, lower case.
    pub allowed_origin: Setting<Vec<String>>,
    /// Users of this machine, by name or number, whose programs are reverse proxies.
    pub proxy_user: Setting<Vec<String>>,
    /// The operator token's file; absolute.
    pub token_file: Setting<PathBuf>,
    /// Log filter directives.
    pub log_level: Setting<String>,
    /// How the log is written.
    pub log_format: Setting<LogFormat>,
    /// Largest size of the database in bytes, if limited.
    pub store_max_bytes: Setting<Option<u64>>,
    /// Age in days beyond which events are pruned, if limited.
    pub retention_max_age_days: Setting<Option<u64>>,
    /// Bytes of events beyond which the oldest are pruned, if limited.
    pub retention_max_bytes: Setting<Option<u64>>,
    /// Days after which a message that nobody took expires.
    pub retention_messages_days: Setting<u64>,
    /// Days after which a task that nobody began expires.
    pub retention_tasks_days: Setting<u64>,
    /// The number of tool calls after which hooks ask a session to review its record.
    pub hooks_check_in: Setting<u64>,
    /// Seconds that a prompt waits for a daemon that is not ready.
    pub hooks_cold_wait: Setting<u64>,
    /// Whether prompts are answered with records that fit them.
    pub hooks_context: Setting<bool>,
    /// Whether both also hold for sub-agents.
    pub hooks_sub_agents: Setting<bool>,
    /// Which idle sessions a message wakes.
    pub hooks_wake: Setting<WakeMode>,
    /// Which sessions a session sees.
    pub sessions_visibility: Setting<SessionsVisibility>,
    /// Who may send to whom, of the sessions that see each other; empty: all of them.
    pub sessions_allow: Setting<Vec<AllowRule>>,
    /// Most turns in which replies of sessions answer replies.
    pub sessions_max_ping_pong: Setting<u32>,
    /// Scopes of the sessions that a person starts.
    pub sessions_scopes: Setting<Vec<String>>,
    /// Which tools clients are shown; by their credential if this is not set.
    pub sources_expose: Setting<Option<ToolExposure>>,
    /// Clients whose servers are followed.
    pub sources_import: Setting<Vec<ImportedClient>>,
    /// The registry of servers that people search.
    pub sources_registry: Setting<String>,
    /// Which tools a session reaches through `ToolCall`, as globs.
    pub sources_tool_call: Setting<Vec<String>>,
    /// Bytes above which a tool's result is kept as a resource.
    pub sources_max_result_bytes: Setting<u64>,
    /// Bytes of such results that are kept of one principal, and of files of resources as many.
    pub sources_max_kept_bytes: Setting<u64>,
    /// What one principal may hold, by kind, in the order of the documentation.
    pub budget: Vec<(BudgetKind, Setting<u64>)>,
    /// The instance of a dispatch that names none.
    pub default_agent: Setting<Option<String>>,
    /// `[agents.<instance>]`.
    pub agents: AgentsConfig,
    /// Write the log to this file, rotated by size, and not to stderr. A flag only: `svc start` gives it.
    pub log_file: Option<PathBuf>,
    /// Refuse to start if migrations are pending, rather than apply them. A flag only.
    pub no_migrate: bool,
    /// Where child MCP servers are named.
    pub sources: SourceFiles,
}

/// The flags of the command line. Empty lists and `None` mean that a flag was not given.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--listen`, repeatable.
    pub listen: Vec<String>,
    /// `--no-auth`.
    pub no_auth: bool,
    /// `--allowed-host`, repeatable.
    pub allowed_host: Vec<String>,
    /// `--allowed-origin`, repeatable.
    pub allowed_origin: Vec<String>,
    /// `--proxy-user`, repeatable.
    pub proxy_user: Vec<String>,
    /// `--token-file`.
    pub token_file: Option<PathBuf>,
    /// `--log-level`.
    pub log_level: Option<String>,
    /// `--log-format`.
    pub log_format: Option<String>,
    /// `--log-file`.
    pub log_file: Option<PathBuf>,
    /// `--no-migrate`.
    pub no_migrate: bool,
    /// `--mcp-config`, repeatable.
    pub mcp_config: Vec<String>,
    /// `--strict-mcp-config`.
    pub strict_mcp_config: bool,
}

/// A value with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Its origin.
    pub origin: Origin,
}

/// Where a value came from, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The command line.
    Flag,
    /// An `SVC_…` variable.
    Env,
    /// The configuration file.
    File,
    /// Built in.
    Default,
}

/// One line of `svc config show`.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigRow {
    /// The key as written in the file, dotted.
    pub key: &'static str,
    /// The value in use.
    pub value: Value,
    /// Its origin.
    pub origin: Origin,
}

impl Config {
    /// Resolves the configuration, reading the file that `paths` names if it exists.
    ///
    /// Fails if any source has an invalid value, even one that a stronger source overrides: the mistake would show only
    /// when the override goes.
    pub fn resolve(paths: Paths, env: &Env, flags: &Flags) -> Result<Self, ConfigError> {
        let file = FileConfig::load(&paths.config_file)?;
        Self::from_sources(paths, env, flags, &file)
    }

    /// Files and folders that hold secrets, or the rows of all callers. A caller's paths never lead to them.
    pub fn private_paths(&self) -> Vec<PathBuf> {
        let paths = &self.paths;
        let mut private = vec![
            paths.home.clone(),
            self.token_file.value.clone(),
            paths.config_file.clone(),
            paths.agents.clone(),
            paths.spool.clone(),
        ];
        // SQLite's files beside the database are named after it.
        private.extend(["", "-wal", "-shm", "-journal"].map(|suffix| {
            let mut db = paths.db.clone().into_os_string();
            db.push(suffix);
            db.into()
        }));
        private
    }

    /// Resolves the configuration from a file that was read already. Does no I/O.
    pub fn from_sources(
        paths: Paths,
        env: &Env,
        flags: &Flags,
        file: &FileConfig,
    ) -> Result<Self, ConfigError> {
        let sources = SettingSources { env, file: &paths.config_file };
        let list = |items: &[String]| (!items.is_empty()).then(|| items.to_vec());
        let default_token = paths.token.clone();
        let default_agent =
            sources.text("default_agent", None, file.default_agent.clone(), own, Ok)?.optional();
        let policy = SessionsPolicy::default();
        let sources_import: Setting<Vec<ImportedClient>> = sources
            .list("sources.import", None, file.sources.import.clone(), str::parse)?
            .or_default(Vec::new);
        let imports: Vec<_> = sources_import.value.iter().map(|client| client.file(env)).collect();
        let config = Self {
            listen: sources
                .list("listen", list(&flags.listen), file.listen.clone(), value::listen)?
                .or_default(|| {
                    vec![value::listen(DEFAULT_LISTEN).expect("the default address is well formed")]
                }),
            no_auth: sources
                .text("no_auth", flags.no_auth.then_some(true), file.no_auth, value::boolean, Ok)?
                .or_default(|| false),
            allowed_host: sources
                .list(
                    "allowed_host",
                    list(&flags.allowed_host),
                    file.allowed_host.clone(),
                    value::host,
                )?
                .or_default(Vec::new),
            allowed_origin: sources
                .list(
                    "allowed_origin",
                    list(&flags.allowed_origin),
                    file.allowed_origin.clone(),
                    value::origin,
                )?
                .or_default(Vec::new),
            proxy_user: sources
                .list("proxy_user", list(&flags.proxy_user), file.proxy_user.clone(), value::user)?
                .or_default(Vec::new),
            token_file: sources
                .text(
                    "token_file",
                    flags.token_file.clone(),
                    file.token_file.clone(),
                    |text| Ok(PathBuf::from(text)),
                    |path| std::path::absolute(path).map_err(|error| error.to_string()),
                )?
                .or_default(|| default_token),
            log_level: sources
                .text("log_level", flags.log_level.clone(), file.log_level.clone(), own, |text| {
                    value::log_level(&text)
                })?
                .or_default(|| "info".to_owned()),
            log_format: sources
                .text(
                    "log_format",
                    flags.log_format.clone(),
                    file.log_format.clone(),
                    own,
                    |text| text.parse(),
                )?
                .or_default(|| LogFormat::Auto),
            store_max_bytes: sources.number("store.max_bytes", file.store.max_bytes)?.optional(),
            retention_max_age_days: sources
                .number("retention.max_age_days", file.retention.max_age_days)?
                .optional(),
            retention_max_bytes: sources
                .number("retention.max_bytes", file.retention.max_bytes)?
                .optional(),
            retention_messages_days: sources
                .number("retention.messages_days", file.retention.messages_days)?
                .or_default(|| EXPIRY_DAYS),
            retention_tasks_days: sources
                .number("retention.tasks_days", file.retention.tasks_days)?
                .or_default(|| EXPIRY_DAYS),
            hooks_check_in: sources
                .number("hooks.check_in", file.hooks.check_in)?
                .or_default(|| CHECK_IN),
            hooks_cold_wait: sources
                .text(
                    "hooks.cold_wait",
                    None,
                    file.hooks.cold_wait,
                    value::whole_number,
                    value::cold_wait,
                )?
                .or_default(|| COLD_WAIT),
            hooks_context: sources
                .text("hooks.context", None, file.hooks.context, value::boolean, Ok)?
                .or_default(|| true),
            hooks_sub_agents: sources
                .text("hooks.sub_agents", None, file.hooks.sub_agents, value::boolean, Ok)?
                .or_default(|| false),
            hooks_wake: sources
                .text("hooks.wake", None, file.hooks.wake.clone(), own, |text| text.parse())?
                .or_default(|| WakeMode::Terminal),
            sessions_visibility: sources
                .text("sessions.visibility", None, file.sessions.visibility.clone(), own, |text| {
                    text.parse()
                })?
                .or_default(|| policy.visibility),
            sessions_allow: sources
                .list("sessions.allow", None, file.sessions.allow.clone(), str::parse)?
                .or_default(Vec::new),
            sessions_max_ping_pong: sources
                .text(
                    "sessions.max_ping_pong",
                    None,
                    file.sessions.max_ping_pong,
                    |text| {
                        text.trim().parse().map_err(|_| format!("`{text}` is not a whole number"))
                    },
                    value::ping_pong,
                )?
                .or_default(|| policy.max_ping_pong),
            sessions_scopes: sources
                .list("sessions.scopes", None, file.sessions.scopes.clone(), value::scope)?
                .or_default(Vec::new),
            sources_expose: sources
                .text("sources.expose", None, file.sources.expose.clone(), own, |text| {
                    text.parse()
                })?
                .optional(),
            sources_import,
            sources_registry: sources
                .text("sources.registry", None, file.sources.registry.clone(), own, |text| {
                    let url = text.trim_end_matches('/');
                    let is_url = url.starts_with("https://") || url.starts_with("http://");
                    if is_url { Ok(url.to_owned()) } else { Err(format!("`{text}` is not a URL")) }
                })?
                .or_default(|| REGISTRY.to_owned()),
            sources_tool_call: sources
                .list("sources.tool_call", None, file.sources.tool_call.clone(), |glob| {
                    Ok(glob.to_owned())
                })?
                .or_default(|| vec!["*".to_owned()]),
            sources_max_result_bytes: sources
                .number("sources.max_result_bytes", file.sources.max_result_bytes)?
                .or_default(|| MAX_RESULT_BYTES),
            sources_max_kept_bytes: sources
                .number("sources.max_kept_bytes", file.sources.max_kept_bytes)?
                .or_default(|| MAX_KEPT_BYTES),
            budget: BudgetKind::ALL
                .into_iter()
                .map(|kind| {
                    let key = kind.key();
                    let given = file.budget.get(key.trim_start_matches("budget.")).copied();
                    let bound = sources.number(key, given)?.or_default(|| kind.default_bound());
                    Ok((kind, bound))
                })
                .collect::<Result<_, ConfigError>>()?,
            agents: AgentsConfig::read(&file.agents, default_agent.value.clone(), env),
            default_agent,
            log_file: flags.log_file.clone(),
            no_migrate: flags.no_migrate,
            sources: SourceFiles {
                home: paths.home.clone(),
                config_file: paths.config_file.clone(),
                flags: flags
                    .mcp_config
                    .iter()
                    .map(|value| FlagSources::read(value).map_err(ConfigError::Sources))
                    .collect::<Result<_, _>>()?,
                imports,
                strict: flags.strict_mcp_config,
            },
            paths,
        };
        config.check()?;
        Ok(config)
    }

    /// Every key with its value and origin, in the order of the documentation.
    pub fn rows(&self) -> Vec<ConfigRow> {
        let listen: Vec<String> = self.listen.iter().map(ToString::to_string).collect();
        let mut rows = vec![
            row("listen", json!(listen), &self.listen),
            row("no_auth", json!(*self.no_auth), &self.no_auth),
            row("allowed_host", json!(*self.allowed_host), &self.allowed_host),
            row("allowed_origin", json!(*self.allowed_origin), &self.allowed_origin),
            row("proxy_user", json!(*self.proxy_user), &self.proxy_user),
            row("token_file", json!(self.token_file.to_string_lossy()), &self.token_file),
            row("log_level", json!(*self.log_level), &self.log_level),
            row("log_format", json!(*self.log_format), &self.log_format),
            row("store.max_bytes", json!(*self.store_max_bytes), &self.store_max_bytes),
            row(
                "retention.max_age_days",
                json!(*self.retention_max_age_days),
                &self.retention_max_age_days,
            ),
            row("retention.max_bytes", json!(*self.retention_max_bytes), &self.retention_max_bytes),
            row(
                "retention.messages_days",
                json!(*self.retention_messages_days),
                &self.retention_messages_days,
            ),
            row(
                "retention.tasks_days",
                json!(*self.retention_tasks_days),
                &self.retention_tasks_days,
            ),
            row("hooks.check_in", json!(*self.hooks_check_in), &self.hooks_check_in),
            row("hooks.cold_wait", json!(*self.hooks_cold_wait), &self.hooks_cold_wait),
            row("hooks.context", json!(*self.hooks_context), &self.hooks_context),
            row("hooks.sub_agents", json!(*self.hooks_sub_agents), &self.hooks_sub_agents),
            row("hooks.wake", json!(*self.hooks_wake), &self.hooks_wake),
            row(
                "sessions.visibility",
                json!(self.sessions_visibility.as_str()),
                &self.sessions_visibility,
            ),
            row(
                "sessions.allow",
                json!(self.sessions_allow.iter().map(AllowRule::as_text).collect::<Vec<_>>()),
                &self.sessions_allow,
            ),
            row(
                "sessions.max_ping_pong",
                json!(*self.sessions_max_ping_pong),
                &self.sessions_max_ping_pong,
            ),
            row("sessions.scopes", json!(*self.sessions_scopes), &self.sessions_scopes),
            row(
                "sources.expose",
                json!(self.sources_expose.map(ToolExposure::as_str)),
                &self.sources_expose,
            ),
            row(
                "sources.import",
                json!(self.sources_import.iter().map(|it| it.as_str()).collect::<Vec<_>>()),
                &self.sources_import,
            ),
            row("sources.registry", json!(*self.sources_registry), &self.sources_registry),
            row("sources.tool_call", json!(*self.sources_tool_call), &self.sources_tool_call),
            row(
                "sources.max_result_bytes",
                json!(*self.sources_max_result_bytes),
                &self.sources_max_result_bytes,
            ),
            row(
                "sources.max_kept_bytes",
                json!(*self.sources_max_kept_bytes),
                &self.sources_max_kept_bytes,
            ),
            row("default_agent", json!(*self.default_agent), &self.default_agent),
        ];
        rows.extend(self.budget.iter().map(|(kind, bound)| row(kind.key(), json!(**bound), bound)));
        rows
    }

    /// Whom sessions see and send to.
    pub fn sessions_policy(&self) -> SessionsPolicy {
        SessionsPolicy {
            visibility: *self.sessions_visibility,
            allow: self.sessions_allow.value.clone(),
            max_ping_pong: *self.sessions_max_ping_pong,
        }
    }

    /// Scopes of the sessions that a person starts, as the file has them whenever one is started.
    pub fn session_scopes(&self) -> SessionScopes {
        SessionScopes {
            file: self.paths.config_file.clone(),
            fixed: (self.sessions_scopes.origin == Origin::Env)
                .then(|| self.sessions_scopes.value.clone()),
        }
    }

    /// What one principal may hold.
    pub fn budget_bounds(&self) -> BudgetBounds {
        let mut bounds = BudgetBounds::default();
        for (kind, bound) in &self.budget {
            bounds.set(*kind, **bound);
        }
        bounds
    }

    /// Rules across keys.
    fn check(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::Invalid {
                source_name: format!("listen ({})", self.listen.origin),
                problem: "is empty".to_owned(),
                advice: format!("name at least one address, such as {DEFAULT_LISTEN}"),
            });
        }
        let open = self.listen.iter().find(|address| !is_loopback(address.ip()));
        match open {
            Some(address) if *self.no_auth => Err(ConfigError::NoAuthBeyondLoopback {
                origin: self.no_auth.origin.to_string(),
                address: *address,
            }),
            _ => Ok(()),
        }
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Env => "env",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// An IPv4 loopback address mapped into IPv6 counts too.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[expect(clippy::unnecessary_wraps, reason = "stands in for a parser")]
fn own(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn row<T>(key: &'static str, value: Value, setting: &Setting<T>) -> ConfigRow {
    ConfigRow { key, value, origin: setting.origin }
}

/// A value that some source may have given.
struct GivenSetting<T>(Option<Setting<T>>);

impl<T> GivenSetting<T> {
    fn or_default(self, default: impl FnOnce() -> T) -> Setting<T> {
        self.0.unwrap_or_else(|| Setting { value: default(), origin: Origin::Default })
    }

    fn optional(self) -> Setting<Option<T>> {
        match self.0 {
            Some(Setting { value, origin }) => Setting { value: Some(value), origin },
            None => Setting { value: None, origin: Origin::Default },
        }
    }
}

/// Takes the strongest source of a key, and checks all of them.
struct SettingSources<'a> {
    env: &'a Env,
    file: &'a Path,
}

impl SettingSources<'_> {
    fn text<R, T>(
        &self,
        key: &str,
        flag: Option<R>,
        file: Option<R>,
        from_env: impl Fn(&str) -> Result<R, String>,
        check: impl Fn(R) -> Result<T, String>,
    ) -> Result<GivenSetting<T>, ConfigError> {
        let name = env_name(key);
        let env = self.env.text(&name)?;
        let mut strongest = None;
        let given = [
            (Origin::Flag, flag.map(Ok)),
            (Origin::Env, env.map(from_env)),
            (Origin::File, file.map(Ok)),
        ];
        for (origin, raw) in given {
            let Some(raw) = raw else { continue };
            let value =
                raw.and_then(&check).map_err(|problem| self.invalid(key, origin, &problem))?;
            strongest.get_or_insert(Setting { value, origin });
        }
        Ok(GivenSetting(strongest))
    }

    fn list<T>(
        &self,
        key: &str,
        flag: Option<Vec<String>>,
        file: Option<Vec<String>>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<GivenSetting<Vec<T>>, ConfigError> {
        self.text(
            key,
            flag,
            file,
            |text| Ok(value::comma(text)),
            |items| value::each(&items, &parse),
        )
    }

    fn number(&self, key: &str, file: Option<u64>) -> Result<GivenSetting<u64>, ConfigError> {
        self.text(key, None, file, value::whole_number, value::positive)
    }

    fn invalid(&self, key: &str, origin: Origin, problem: &str) -> ConfigError {
        let (source_name, fix) = match origin {
            Origin::Flag => (format!("--{}:", key.replace('_', "-")), "correct the flag"),
            Origin::Env => {
                (format!("environment variable {}:", env_name(key)), "correct the variable")
            }
            Origin::File | Origin::Default => {
                (format!("{}, key `{key}`:", self.file.display()), "correct the file")
            }
        };
        ConfigError::Invalid { source_name, problem: problem.to_owned(), advice: fix.to_owned() }
    }
}

fn env_name(key: &str) -> String {
    format!("SVC_{}", key.replace('.', "_").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(env: &[(&str, &str)], flags: &Flags, file: &str) -> Result<Config, ConfigError> {
        let env: Env = env.iter().copied().collect();
        let paths = Paths::resolve(&env, Some(Path::new("/h"))).expect("a home is given");
        let file = FileConfig::parse(file, &paths.config_file)?;
        Config::from_sources(paths, &env, flags, &file)
    }

    fn listening(address: &str) -> Flags {
        Flags { listen: vec![address.to_owned()], ..Flags::default() }
    }

    #[test]
    fn stronger_sources_win() {
        let file = "listen = [\"127.0.0.1:3\"]";
        let env = [("SVC_LISTEN", "127.0.0.1:2,[::1]:2")];
        let cases = [
            (resolve(&env, &listening("localhost:1"), file), Origin::Flag, "127.0.0.1:1"),
            (resolve(&env, &Flags::default(), file), Origin::Env, "127.0.0.1:2"),
            (resolve(&[], &Flags::default(), file), Origin::File, "127.0.0.1:3"),
            (resolve(&[], &Flags::default(), ""), Origin::Default, "127.0.0.1:6334"),
        ];
        for (config, origin, first) in cases {
            let config = config.expect("is valid");
            assert_eq!(
                (config.listen.origin, config.listen[0].to_string().as_str()),
                (origin, first)
            );
        }
    }

    #[test]
    fn no_auth_is_for_loopback_only() {
        let cases = [
            ("127.0.0.1:0", true),
            ("[::1]:0", true),
            ("127.9.9.9:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.168.1.4:1", false),
        ];
        for (address, is_allowed) in cases {
            let flags = Flags { no_auth: true, ..listening(address) };
            assert_eq!(resolve(&[], &flags, "").is_ok(), is_allowed, "{address}");
            let alone = Flags { no_auth: false, ..flags };
            assert!(resolve(&[], &alone, "").is_ok(), "{address} without no_auth");
        }
    }

    #[test]
    fn a_bad_value_names_its_source() {
        let bad_flag = listening("6334");
        let cases = [
            (resolve(&[], &bad_flag, ""), "--listen:"),
            (resolve(&[("SVC_NO_AUTH", "maybe")], &Flags::default(), ""), "SVC_NO_AUTH"),
            (
                resolve(&[("SVC_STORE_MAX_BYTES", "1GB")], &Flags::default(), ""),
                "SVC_STORE_MAX_BYTES",
            ),
            (
                resolve(&[], &Flags::default(), "log_format = \"xml\""),
                "/h/config.toml, key `log_format`",
            ),
            (
                resolve(&[], &Flags::default(), "allowed_origin = [\"x.org\"]"),
                "key `allowed_origin`",
            ),
            (
                resolve(&[], &Flags::default(), "[retention]\nmax_bytes = 0"),
                "key `retention.max_bytes`",
            ),
            (
                resolve(&[], &Flags::default(), "[sessions]\nvisibility = \"agent\""),
                "key `sessions.visibility`",
            ),
            (
                resolve(&[], &Flags::default(), "[sessions]\nallow = [\"a->b\", \"c\"]"),
                "key `sessions.allow`",
            ),
            (
                resolve(&[("SVC_SESSIONS_MAX_PING_PONG", "6")], &Flags::default(), ""),
                "SVC_SESSIONS_MAX_PING_PONG",
            ),
            (
                resolve(&[], &Flags::default(), "[sessions]\nscopes = [\"a gents\"]"),
                "key `sessions.scopes`",
            ),
            (resolve(&[], &Flags::default(), "listen = []"), "listen (file) is empty"),
            (resolve(&[], &listening("127.0.0.1:1"), "listen = [\"x\"]"), "key `listen`"),
        ];
        for (result, expected) in cases {
            let error = result.expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn rows_show_value_and_origin() {
        let config =
            resolve(&[("SVC_LOG_LEVEL", "debug")], &Flags::default(), "[store]\nmax_bytes = 5")
                .expect("is valid");
        let rows: Vec<String> = config
            .rows()
            .iter()
            .map(|row| format!("{}={} {}", row.key, row.value, row.origin))
            .collect();
        assert!(rows.contains(&"log_level=\"debug\" env".to_owned()), "{rows:?}");
        assert!(rows.contains(&"store.max_bytes=5 file".to_owned()), "{rows:?}");
        assert!(rows.contains(&"token_file=\"/h/token\" default".to_owned()), "{rows:?}");
        assert!(rows.contains(&"retention.max_bytes=null default".to_owned()), "{rows:?}");
    }
}
