//! The precedence of the sources, the defaults, and the rules across keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use svc_model::conversation::{AllowRule, SessionsPolicy, SessionsVisibility};
use svc_model::hook::{AttendedPrompts, HookClient};
use svc_model::{BudgetBounds, BudgetKind, ToolExposure};

use super::agents::AgentsConfig;
use super::file::{FileConfig, SessionScopes, scope};
use super::setting::{
    self, ConfigRow, DEFAULT_LISTEN, LogFormat, Origin, Setting, SettingSources, WakeMode, within,
};
use super::sources::{FlagSources, ImportFile, SourceFiles};
use super::store::StoreSettings;
use super::{ConfigError, Env, Flags, Paths};

// Defaults; the fields of `Config` explain them.
const MAX_RESULT_BYTES: u64 = 400_000;
const MAX_KEPT_BYTES: u64 = 512 * 1024 * 1024;
const REGISTRY: &str = "https://registry.modelcontextprotocol.io";
const CHECK_IN: u64 = 10;
const COLD_WAIT: u64 = 3;
const TEAM_AWAY: Duration = Duration::from_hours(24);
/// Events of a year are kept.
const EVENT_DAYS: u64 = 365;
const EXPIRY_DAYS: u64 = 30;

#[derive(Debug, Clone)]
pub struct Config {
    pub paths: Paths,
    /// Addresses to listen on; at least one.
    pub listen: Setting<Vec<SocketAddr>>,
    /// Programs of this user are the operator without a token. Only allowed with loopback
    /// addresses.
    pub no_auth: Setting<bool>,
    /// Further accepted `Host` names, lower case, with or without a port.
    pub allowed_host: Setting<Vec<String>>,
    /// Further accepted origins, lower case.
    pub allowed_origin: Setting<Vec<String>>,
    /// Users of this machine, by name or number, whose programs are reverse proxies.
    pub proxy_user: Setting<Vec<String>>,
    /// File of the operator token, as an absolute path.
    pub token_file: Setting<PathBuf>,
    pub log_level: Setting<String>,
    pub log_format: Setting<LogFormat>,
    /// Name of this machine; by default the host's name.
    pub daemon_name: Setting<Option<String>>,
    /// How long a machine may be away before its tasks fail, its agents are lost and its tokens
    /// expire.
    pub team_away: Setting<Duration>,
    /// Largest size of the database in bytes, if limited.
    pub store_max_bytes: Setting<Option<u64>>,
    pub store: StoreSettings,
    /// Age in days beyond which events are pruned.
    pub retention_max_age_days: Setting<u64>,
    /// Bytes of events beyond which the oldest are pruned, if limited.
    pub retention_max_bytes: Setting<Option<u64>>,
    /// Days after which an undelivered message expires.
    pub retention_messages_days: Setting<u64>,
    /// Days after which a pending task expires.
    pub retention_tasks_days: Setting<u64>,
    /// How prompts of attended sessions are handled.
    pub approvals_attended: Setting<AttendedPrompts>,
    /// Tool calls after which hooks ask a session to review its record.
    pub hooks_check_in: Setting<u64>,
    /// Seconds that a prompt waits for a daemon that is not ready.
    pub hooks_cold_wait: Setting<u64>,
    /// Whether hooks add matching records to prompts.
    pub hooks_context: Setting<bool>,
    /// Whether sub-agents, too, get reviews and records.
    pub hooks_sub_agents: Setting<bool>,
    /// Which idle sessions a message may wake.
    pub hooks_wake: Setting<WakeMode>,
    pub sessions_visibility: Setting<SessionsVisibility>,
    /// Which sessions that see each other may send messages to each other; all if empty.
    pub sessions_allow: Setting<Vec<AllowRule>>,
    /// Most turns in which two sessions answer each other's replies.
    pub sessions_max_ping_pong: Setting<u32>,
    pub sessions_scopes: Setting<Vec<String>>,
    /// Tools that clients see; depends on their credential if not set.
    pub sources_expose: Setting<Option<ToolExposure>>,
    pub sources_import: Setting<Vec<HookClient>>,
    /// The registry that `svc mcp search` uses.
    pub sources_registry: Setting<String>,
    /// Globs of tools that a session may call through `ToolCall`.
    pub sources_tool_call: Setting<Vec<String>>,
    /// Largest result of a tool in bytes; a larger one is stored as a resource.
    pub sources_max_result_bytes: Setting<u64>,
    /// Most bytes of such results per principal, and as many again of files of resources.
    pub sources_max_kept_bytes: Setting<u64>,
    /// Clients whose sessions are never woken by a message.
    pub wake_off: Setting<Vec<HookClient>>,
    /// Limits per principal, in the order of the documentation.
    pub budget: Vec<(BudgetKind, Setting<u64>)>,
    /// The instance of an assignment that names none.
    pub default_agent: Setting<Option<String>>,
    pub agents: AgentsConfig,
    /// Log to this file, rotated by size, instead of stderr. Only a flag, which `svc start` sets.
    pub log_file: Option<PathBuf>,
    /// Fail if migrations are pending. Only a flag.
    pub no_migrate: bool,
    /// Start although the history was moved to another database. Only a flag.
    pub force_local: bool,
    /// Files that name child MCP servers.
    pub sources: SourceFiles,
    /// The rows of `svc config show`: the fields above that are settings, in this order.
    pub rows: Vec<ConfigRow>,
}

impl Config {
    /// Reads the file that `paths` names, if it exists.
    ///
    /// Fails if any source has an invalid value, even an overridden one: else the mistake would
    /// show only when the override is removed.
    pub fn resolve(paths: Paths, env: &Env, flags: &Flags) -> Result<Self, ConfigError> {
        let file = FileConfig::load(&paths.config_file)?;
        Self::from_sources(paths, env, flags, &file)
    }

    /// Files and folders that hold secrets or the rows of all callers. A path from a caller must
    /// not lead there.
    pub fn private_paths(&self) -> Vec<PathBuf> {
        let paths = &self.paths;
        let mut private = vec![
            paths.home.clone(),
            self.token_file.value.clone(),
            paths.config_file.clone(),
            paths.agents.clone(),
            paths.spool.clone(),
        ];
        private.extend(self.store.password_file.value.clone());
        private.extend(["", "-wal", "-shm", "-journal"].map(|suffix| {
            let mut db = paths.db.clone().into_os_string();
            db.push(suffix);
            db.into()
        }));
        private
    }

    /// As [`Self::resolve`], but without I/O.
    pub fn from_sources(
        paths: Paths,
        env: &Env,
        flags: &Flags,
        file: &FileConfig,
    ) -> Result<Self, ConfigError> {
        let given = SettingSources::new(env, &paths.config_file, flags, file);
        let policy = SessionsPolicy::default();
        let mut config = Self {
            listen: given.list("listen", setting::listen)?.or(vec![setting::default_listen()]),
            no_auth: given.boolean("no_auth")?.or(false),
            allowed_host: given.list("allowed_host", setting::host)?.or_default(),
            allowed_origin: given.list("allowed_origin", setting::origin)?.or_default(),
            proxy_user: given.list("proxy_user", setting::user)?.or_default(),
            token_file: given
                .path("token_file", flags.token_file.as_ref())?
                .or_shown_as(paths.token.clone(), |file| json!(file.to_string_lossy())),
            log_level: given.text("log_level", setting::log_level)?.or("info".to_owned()),
            log_format: given
                .text("log_format", setting::word("auto, text or json"))?
                .or(LogFormat::Auto),
            daemon_name: given.text("daemon.name", setting::machine_name)?.optional(),
            team_away: given
                .text("team.away", setting::duration)?
                .or_shown_as(TEAM_AWAY, |away| json!(setting::shown_duration(*away))),
            store_max_bytes: given.number("store.max_bytes")?.optional(),
            store: StoreSettings::resolve(&given, flags)?,
            retention_max_age_days: given.number("retention.max_age_days")?.or(EVENT_DAYS),
            retention_max_bytes: given.number("retention.max_bytes")?.optional(),
            retention_messages_days: given.number("retention.messages_days")?.or(EXPIRY_DAYS),
            retention_tasks_days: given.number("retention.tasks_days")?.or(EXPIRY_DAYS),
            approvals_attended: given
                .text("approvals.attended", str::parse)?
                .or(AttendedPrompts::Answer),
            hooks_check_in: given.number("hooks.check_in")?.or(CHECK_IN),
            // Clients kill a hook after 10 s.
            hooks_cold_wait: given.checked("hooks.cold_wait", within(0..=8))?.or(COLD_WAIT),
            hooks_context: given.boolean("hooks.context")?.or(true),
            hooks_sub_agents: given.boolean("hooks.sub_agents")?.or(false),
            hooks_wake: given
                .text("hooks.wake", setting::word("terminal, always or never"))?
                .or(WakeMode::Terminal),
            sessions_visibility: given
                .text("sessions.visibility", str::parse)?
                .or(policy.visibility),
            sessions_allow: given
                .list("sessions.allow", str::parse::<AllowRule>)?
                .or_shown_as(Vec::new(), |rules| rules.iter().map(AllowRule::as_text).collect()),
            sessions_max_ping_pong: given
                .checked("sessions.max_ping_pong", within(0..=5))?
                .or(policy.max_ping_pong),
            sessions_scopes: given.list("sessions.scopes", scope)?.or_default(),
            sources_expose: given.text("sources.expose", str::parse::<ToolExposure>)?.optional(),
            sources_import: given.list("sources.import", setting::hook_client)?.or_default(),
            sources_registry: given.text("sources.registry", setting::url)?.or(REGISTRY.to_owned()),
            sources_tool_call: given.list("sources.tool_call", own)?.or(vec!["*".to_owned()]),
            sources_max_result_bytes: given
                .number("sources.max_result_bytes")?
                .or(MAX_RESULT_BYTES),
            sources_max_kept_bytes: given.number("sources.max_kept_bytes")?.or(MAX_KEPT_BYTES),
            wake_off: given.list("wake.off", setting::hook_client)?.or_default(),
            default_agent: given.text("default_agent", own)?.optional(),
            budget: BudgetKind::ALL
                .into_iter()
                .map(|kind| Ok((kind, given.number(kind.key())?.or(kind.default_bound()))))
                .collect::<Result<_, ConfigError>>()?,
            agents: AgentsConfig::default(),
            log_file: flags.log_file.clone(),
            no_migrate: flags.no_migrate,
            force_local: flags.force_local,
            sources: SourceFiles {
                home: paths.home.clone(),
                config_file: paths.config_file.clone(),
                flags: flags
                    .mcp_config
                    .iter()
                    .map(|value| FlagSources::read(value).map_err(ConfigError::Sources))
                    .collect::<Result<_, _>>()?,
                imports: Vec::new(),
                strict: flags.strict_mcp_config,
            },
            rows: given.rows.into_inner(),
            paths,
        };
        let default_agent = config.default_agent.value.clone();
        config.agents = AgentsConfig::read(&file.agents, default_agent, env);
        config.sources.imports =
            config.sources_import.iter().map(|it| ImportFile::new(*it, env)).collect();
        config.check()?;
        Ok(config)
    }

    pub fn sessions_policy(&self) -> SessionsPolicy {
        SessionsPolicy {
            visibility: *self.sessions_visibility,
            allow: self.sessions_allow.value.clone(),
            max_ping_pong: *self.sessions_max_ping_pong,
        }
    }

    pub fn session_scopes(&self) -> SessionScopes {
        SessionScopes {
            file: self.paths.config_file.clone(),
            fixed: (self.sessions_scopes.origin == Origin::Env)
                .then(|| self.sessions_scopes.value.clone()),
        }
    }

    pub fn budget_bounds(&self) -> BudgetBounds {
        let mut bounds = BudgetBounds::default();
        for (kind, bound) in &self.budget {
            bounds.set(*kind, **bound);
        }
        bounds
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::Invalid {
                source_name: format!("listen ({})", self.listen.origin),
                problem: "is empty".to_owned(),
                advice: format!("name at least one address, such as {DEFAULT_LISTEN}"),
            });
        }
        // An IPv4 loopback address that is mapped into IPv6 counts as loopback.
        let is_open = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        match self.listen.iter().find(is_open) {
            Some(address) if *self.no_auth => Err(ConfigError::NoAuthBeyondLoopback {
                origin: self.no_auth.origin.to_string(),
                address: *address,
            }),
            _ => Ok(()),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "takes the place of a parser")]
fn own(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
    fn flag_of_a_setting_has_the_name_of_its_key() {
        let text = |text: &str| Some(text.to_owned());
        let flags = Flags {
            allowed_host: vec!["x.org".to_owned()],
            daemon_name: text("box"),
            log_format: text("json"),
            log_level: text("debug"),
            no_auth: true,
            store_connect_timeout: Some(3),
            store_listen: text("poll"),
            store_max_connections: Some(5),
            store_schema: text("team"),
            token_file: Some("/t".into()),
            ..listening("127.0.0.1:1")
        };
        let config = resolve(&[], &flags, "").expect("is valid");
        let rows = config.rows.iter().filter(|row| row.origin == Origin::Flag);
        let mut keys: Vec<&str> = rows.map(|row| row.key).collect();
        keys.sort_unstable();
        let flagged = "allowed_host daemon.name listen log_format log_level no_auth \
            store.connect_timeout store.listen store.max_connections store.schema token_file";
        assert_eq!(keys, flagged.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn relative_token_file_starts_at_the_folder_of_the_file() {
        let config = resolve(&[], &Flags::default(), "token_file = \"secret\"");
        assert_eq!(config.expect("is valid").token_file.value, Path::new("/h/secret"));
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

    /// Environment, flags, file, and the text that the error must contain.
    type RefusedValue<'a> = (&'a [(&'a str, &'a str)], &'a Flags, &'a str, &'a str);

    #[test]
    fn error_of_a_value_names_its_source() {
        let (none, bad) = (Flags::default(), listening("6334"));
        let good = listening("127.0.0.1:1");
        let cases: [RefusedValue<'_>; 12] = [
            (&[], &bad, "", "--listen:"),
            (&[("SVC_NO_AUTH", "maybe")], &none, "", "SVC_NO_AUTH"),
            (&[("SVC_STORE_MAX_BYTES", "1GB")], &none, "", "SVC_STORE_MAX_BYTES"),
            (&[], &none, "log_format = \"xml\"", "/h/config.toml, key `log_format`"),
            (&[], &none, "allowed_origin = [\"x.org\"]", "key `allowed_origin`"),
            (&[], &none, "[sources]\nmax_kept_bytes = 0", "key `sources.max_kept_bytes`"),
            (&[], &none, "[sessions]\nvisibility = \"agent\"", "key `sessions.visibility`"),
            (&[], &none, "[sessions]\nallow = [\"a->b\", \"c\"]", "key `sessions.allow`"),
            (&[("SVC_SESSIONS_MAX_PING_PONG", "6")], &none, "", "SVC_SESSIONS_MAX_PING_PONG"),
            (&[], &none, "[sessions]\nscopes = [\"a gents\"]", "key `sessions.scopes`"),
            (&[], &none, "listen = []", "listen (file) is empty"),
            (&[], &good, "listen = [\"x\"]", "key `listen`"),
        ];
        for (env, flags, file, expected) in cases {
            let error = resolve(env, flags, file).expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn rows_show_value_and_origin() {
        let config =
            resolve(&[("SVC_LOG_LEVEL", "debug")], &Flags::default(), "[store]\nmax_bytes = 5")
                .expect("is valid");
        let rows: Vec<String> = config
            .rows
            .iter()
            .map(|row| format!("{}={} {}", row.key, row.value, row.origin))
            .collect();
        assert!(rows.contains(&"log_level=\"debug\" env".to_owned()), "{rows:?}");
        assert!(rows.contains(&"store.max_bytes=5 file".to_owned()), "{rows:?}");
        assert!(rows.contains(&"token_file=\"/h/token\" default".to_owned()), "{rows:?}");
        assert!(rows.contains(&"retention.max_bytes=null default".to_owned()), "{rows:?}");
        assert!(rows.contains(&"retention.max_age_days=365 default".to_owned()), "{rows:?}");
    }
}
