//! The TOML file: every key optional, unknown keys refused.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use svc_model::BudgetKind;

use super::ConfigError;
use crate::private_file;

/// `config.toml` as written. Keys are the flags' names with underscores.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Addresses to listen on.
    pub listen: Option<Vec<String>>,
    /// Whether to serve without authentication (loopback only).
    pub no_auth: Option<bool>,
    /// Further accepted `Host` names.
    pub allowed_host: Option<Vec<String>>,
    /// Further accepted `Origin` values.
    pub allowed_origin: Option<Vec<String>>,
    /// Users whose programs pass on the requests of others.
    pub proxy_user: Option<Vec<String>>,
    /// The operator token's file; a relative path starts at this file's folder.
    pub token_file: Option<std::path::PathBuf>,
    /// Log filter directives.
    pub log_level: Option<String>,
    /// `auto`, `text` or `json`.
    pub log_format: Option<String>,
    /// `[store]`.
    #[serde(default)]
    pub store: StoreSection,
    /// `[retention]`.
    #[serde(default)]
    pub retention: RetentionSection,
    /// `[hooks]`.
    #[serde(default)]
    pub hooks: HooksSection,
    /// `[sessions]`.
    #[serde(default)]
    pub sessions: SessionsSection,
    /// `[sources]`.
    #[serde(default)]
    pub sources: SourcesSection,
    /// `[budget]`: a bound for each kind, by the last part of its key.
    #[serde(default)]
    pub budget: BTreeMap<String, u64>,
    /// `[agents.<instance>]`: each entry is read alone, so that a wrong one leaves the others as they are.
    #[serde(default)]
    pub agents: BTreeMap<String, toml::Value>,
    /// The instance of a dispatch that names none.
    pub default_agent: Option<String>,
}

/// `[store]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// Largest size of the database, in bytes.
    pub max_bytes: Option<u64>,
}

/// `[retention]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionSection {
    /// Events older than this many days are pruned.
    pub max_age_days: Option<u64>,
    /// The oldest events are pruned once the log holds more than this many bytes.
    pub max_bytes: Option<u64>,
    /// A message that nobody took for this many days expires.
    pub messages_days: Option<u64>,
    /// A task that nobody began for this many days expires.
    pub tasks_days: Option<u64>,
}

/// `[hooks]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HooksSection {
    /// How long a prompt waits for a daemon that is not ready, in seconds.
    pub cold_wait: Option<u64>,
    /// The number of tool calls after which a session is asked to review its record.
    pub check_in: Option<u64>,
    /// Whether prompts are answered with records that fit them.
    pub context: Option<bool>,
    /// Whether both also hold for sub-agents.
    pub sub_agents: Option<bool>,
    /// Which idle sessions a message wakes.
    pub wake: Option<String>,
}

/// `[sessions]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionsSection {
    /// Which sessions a session sees.
    pub visibility: Option<String>,
    /// Who may send to whom.
    pub allow: Option<Vec<String>>,
    /// Most turns in which replies answer replies.
    pub max_ping_pong: Option<u32>,
    /// Scopes of the sessions that a person starts.
    pub scopes: Option<Vec<String>>,
}

/// `[sources]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, serde_json::Value>")]
pub struct SourcesSection {
    /// `search` or `all`: which tools clients are shown.
    pub expose: Option<String>,
    /// Clients whose servers are followed.
    pub import: Option<Vec<String>>,
    /// Bytes above which a result of a tool is kept as a resource.
    pub max_result_bytes: Option<u64>,
    /// Bytes of such results that are kept of one principal.
    pub max_kept_bytes: Option<u64>,
    /// URL of the registry of servers.
    pub registry: Option<String>,
    /// Which tools a session reaches through `ToolCall`, as globs.
    pub tool_call: Option<Vec<String>>,
    /// A table for each child MCP server. One that is wrong leaves the others as they are.
    servers: BTreeMap<String, serde_json::Value>,
}

impl TryFrom<BTreeMap<String, serde_json::Value>> for SourcesSection {
    type Error = String;

    fn try_from(mut keys: BTreeMap<String, serde_json::Value>) -> Result<Self, String> {
        let expose = match keys.remove("expose") {
            None => None,
            Some(serde_json::Value::String(word)) => Some(word),
            Some(_) => return Err("sources.expose: must be search or all".to_owned()),
        };
        let mut registry = None;
        let mut list = |key: &str, of: &str| {
            let wrong = |_| format!("sources.{key}: must be a list of {of}");
            keys.remove(key).map(|value| serde_json::from_value(value).map_err(wrong)).transpose()
        };
        let import = list("import", "clients' names")?;
        let tool_call = list("tool_call", "globs")?;
        let mut bytes = |key: &str| {
            let value = keys.remove(key)?;
            let bytes = value.as_u64().filter(|bytes| *bytes > 0);
            Some(bytes.ok_or_else(|| format!("sources.{key}: must be a number of bytes")))
        };
        let max_result_bytes = bytes("max_result_bytes").transpose()?;
        let max_kept_bytes = bytes("max_kept_bytes").transpose()?;
        match keys.remove("registry") {
            None => {}
            Some(serde_json::Value::String(url)) => registry = Some(url),
            Some(_) => return Err("sources.registry: must be a URL".to_owned()),
        }
        match keys.iter().find(|(_, value)| !value.is_object()) {
            Some((name, _)) => Err(format!("sources.{name}: is no key; a server is a table")),
            None => Ok(Self {
                expose,
                import,
                max_result_bytes,
                max_kept_bytes,
                registry,
                tool_call,
                servers: keys,
            }),
        }
    }
}

impl FileConfig {
    /// Reads a file; one that does not exist is the same as an empty one.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match private_file::read_settings(path) {
            Ok(Some(text)) => Self::parse(&text, path),
            Ok(None) => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path: path.to_path_buf(), source }),
        }
    }

    /// Of a file that cannot be used, the operator token's file alone, as far as it can be read.
    pub fn token_file_of(path: &Path) -> Self {
        let text = private_file::read_settings(path).ok().flatten().unwrap_or_default();
        let table: toml::Table = toml::from_str(&text).unwrap_or_default();
        let token = table.get("token_file").and_then(toml::Value::as_str);
        let token_file = token.and_then(|token| Some(path.parent()?.join(token)));
        Self { token_file, ..Self::default() }
    }

    /// Parses the text of a file; `path` is for the message and for relative paths in it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let bad = |problem: String| ConfigError::File { path: path.to_path_buf(), problem };
        let document = toml::Deserializer::parse(text).map_err(|error| bad(trimmed(&error)))?;
        let mut file: Self = serde_path_to_error::deserialize(document).map_err(|error| {
            let key = error.path().to_string();
            let problem = trimmed(error.inner());
            if key == "." { bad(problem) } else { bad(format!("key `{key}`: {problem}")) }
        })?;
        let is_kind = |name: &String| {
            BudgetKind::ALL.iter().any(|kind| kind.key() == format!("budget.{name}"))
        };
        if let Some(name) = file.budget.keys().find(|name| !is_kind(name)) {
            return Err(bad(format!("key `budget.{name}`: there is no such key")));
        }
        if let (Some(token), Some(folder)) = (&file.token_file, path.parent()) {
            file.token_file = Some(folder.join(token));
        }
        Ok(file)
    }
}

impl FileConfig {
    /// The servers of `[sources]`, as they are written.
    pub(in crate::config) fn source_entries(
        &self,
    ) -> impl Iterator<Item = (&String, &serde_json::Value)> {
        self.sources.servers.iter()
    }
}

fn trimmed(error: &toml::de::Error) -> String {
    error.to_string().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_names_file_and_key() {
        let cases = [
            ("listn = []", "listn"),
            ("no_auth = \"yes\"", "no_auth"),
            ("[store]\nmax_bytes = -1", "store.max_bytes"),
            ("[store]\nmaxbytes = 1", "maxbytes"),
            ("[retention]\nmax_age_days = \"x\"", "retention.max_age_days"),
            ("[hooks]\ncheck_in = \"often\"", "hooks.check_in"),
            ("[sources]\nexpose = true", "sources.expose"),
            ("[sources]\nmax_kept_bytes = 0", "sources.max_kept_bytes"),
            ("[sessions]\nvisible = \"all\"", "sessions.visible"),
            ("[sessions]\nallow = \"a->b\"", "sessions.allow"),
            ("[budget]\nstreams = -1", "budget.streams"),
            ("[budget]\nstream = 1", "budget.stream"),
            ("[sources]\nexpose = {}", "sources.expose"),
            ("[sources]\nfs = \"x\"", "sources.fs"),
            ("listen = [1]", "listen"),
            ("= 3", "line 1"),
        ];
        for (text, expected) in cases {
            let error =
                FileConfig::parse(text, Path::new("/etc/c.toml")).expect_err(text).to_string();
            assert!(error.contains("/etc/c.toml") && error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_relative_token_file_starts_at_the_files_folder() {
        let file = FileConfig::parse("token_file = \"secret\"", Path::new("/etc/svc/config.toml"))
            .expect("parses");
        assert_eq!(file.token_file.as_deref(), Some(Path::new("/etc/svc/secret")));
    }
}
