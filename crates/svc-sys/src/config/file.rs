//! The TOML file: every key is optional, and unknown keys are refused.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use svc_model::BudgetKind;

use super::ConfigError;
use super::setting::{each, scope};
use crate::private_file;

/// `config.toml` as written; [`Config`](super::Config) documents the keys.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    pub listen: Option<Vec<String>>,
    pub no_auth: Option<bool>,
    pub allowed_host: Option<Vec<String>>,
    pub allowed_origin: Option<Vec<String>>,
    pub proxy_user: Option<Vec<String>>,
    /// A relative path is relative to this file's folder.
    pub token_file: Option<PathBuf>,
    pub log_level: Option<String>,
    pub log_format: Option<String>,
    pub daemon: DaemonSection,
    pub team: TeamSection,
    pub store: StoreSection,
    pub retention: RetentionSection,
    pub approvals: ApprovalsSection,
    pub hooks: HooksSection,
    pub sessions: SessionsSection,
    pub sources: SourcesSection,
    pub wake: WakeSection,
    /// Keyed by the last part of the budget kind's key.
    pub budget: BTreeMap<String, u64>,
    /// `[agents.<instance>]`: each entry is read alone, so that an invalid one leaves the others
    /// valid.
    pub agents: BTreeMap<String, toml::Value>,
    pub default_agent: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DaemonSection {
    pub name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TeamSection {
    pub away: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    pub max_bytes: Option<u64>,
    pub url: Option<String>,
    /// A relative path is relative to this file's folder.
    pub password_file: Option<PathBuf>,
    pub schema: Option<String>,
    pub max_connections: Option<u64>,
    pub connect_timeout: Option<u64>,
    pub listen: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionSection {
    pub max_age_days: Option<u64>,
    pub max_bytes: Option<u64>,
    pub messages_days: Option<u64>,
    pub tasks_days: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HooksSection {
    pub cold_wait: Option<u64>,
    pub check_in: Option<u64>,
    pub context: Option<bool>,
    pub sub_agents: Option<bool>,
    pub wake: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WakeSection {
    pub off: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalsSection {
    pub attended: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SessionsSection {
    pub visibility: Option<String>,
    pub allow: Option<Vec<String>>,
    pub max_ping_pong: Option<u32>,
    pub scopes: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(try_from = "BTreeMap<String, serde_json::Value>")]
pub struct SourcesSection {
    pub expose: Option<String>,
    pub import: Option<Vec<String>>,
    pub max_result_bytes: Option<u64>,
    pub max_kept_bytes: Option<u64>,
    pub registry: Option<String>,
    pub tool_call: Option<Vec<String>>,
    /// One table per child MCP server; an invalid table leaves the others valid.
    servers: BTreeMap<String, serde_json::Value>,
}

impl TryFrom<BTreeMap<String, serde_json::Value>> for SourcesSection {
    type Error = String;

    fn try_from(mut keys: BTreeMap<String, serde_json::Value>) -> Result<Self, String> {
        fn take<T: DeserializeOwned>(
            keys: &mut BTreeMap<String, serde_json::Value>,
            key: &str,
            rule: &str,
        ) -> Result<Option<T>, String> {
            let wrong = |_| format!("sources.{key}: must be {rule}");
            keys.remove(key).map(|value| serde_json::from_value(value).map_err(wrong)).transpose()
        }
        const BYTES: &str = "a number of bytes";
        let expose = take(&mut keys, "expose", "search or all")?;
        let import = take(&mut keys, "import", "a list of clients' names")?;
        let tool_call = take(&mut keys, "tool_call", "a list of globs")?;
        let result_bytes: Option<NonZeroU64> = take(&mut keys, "max_result_bytes", BYTES)?;
        let kept_bytes: Option<NonZeroU64> = take(&mut keys, "max_kept_bytes", BYTES)?;
        let registry = take(&mut keys, "registry", "a URL")?;
        if let Some((name, _)) = keys.iter().find(|(_, value)| !value.is_object()) {
            return Err(format!("sources.{name}: is no key; a server is a table"));
        }
        Ok(Self {
            expose,
            import,
            max_result_bytes: result_bytes.map(NonZeroU64::get),
            max_kept_bytes: kept_bytes.map(NonZeroU64::get),
            registry,
            tool_call,
            servers: keys,
        })
    }
}

impl FileConfig {
    /// A missing file counts as an empty one.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match private_file::read_settings(path) {
            Ok(Some(text)) => Self::parse(&text, path),
            Ok(None) => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path: path.to_path_buf(), source }),
        }
    }

    /// The `token_file` of a file that may otherwise be invalid, if that key can be read.
    pub fn only_token_file(path: &Path) -> Self {
        let text = private_file::read_settings(path).ok().flatten().unwrap_or_default();
        let table: toml::Table = toml::from_str(&text).unwrap_or_default();
        let token = table.get("token_file").and_then(toml::Value::as_str);
        let token_file = token.and_then(|token| Some(path.parent()?.join(token)));
        Self { token_file, ..Self::default() }
    }

    /// `path` is for error messages and for relative paths in the file.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let bad = |problem: String| ConfigError::File { path: path.to_path_buf(), problem };
        let trimmed = |error: &toml::de::Error| error.to_string().trim_end().to_owned();
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
        if let Some(folder) = path.parent() {
            for named in [&mut file.token_file, &mut file.store.password_file] {
                *named = named.take().map(|named| folder.join(named));
            }
        }
        Ok(file)
    }

    pub(in crate::config) fn source_entries(
        &self,
    ) -> impl Iterator<Item = (&String, &serde_json::Value)> {
        self.sources.servers.iter()
    }
}

/// Scopes of attended sessions. The file is read for each new client, so a grant applies to the
/// next session without a restart of the daemon.
#[derive(Debug, Clone)]
pub struct SessionScopes {
    pub(super) file: PathBuf,
    /// The value in the environment, which overrides the file.
    pub(super) fixed: Option<Vec<String>>,
}

impl SessionScopes {
    /// The current scopes; none if the file cannot be read.
    pub fn now(&self) -> Vec<String> {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let written = match FileConfig::load(&self.file) {
            Ok(file) => file.sessions.scopes.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "a new session gets no scopes");
                return Vec::new();
            }
        };
        each(&written, scope).unwrap_or_else(|problem| {
            tracing::warn!(problem, "a new session gets no scopes: sessions.scopes");
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_file_names_file_and_key() {
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
    fn relative_token_file_starts_at_the_folder_of_the_file() {
        let file = FileConfig::parse("token_file = \"secret\"", Path::new("/etc/svc/config.toml"))
            .expect("parses");
        assert_eq!(file.token_file.as_deref(), Some(Path::new("/etc/svc/secret")));
    }

    #[test]
    fn scopes_are_read_from_the_file_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let scopes = SessionScopes { file: file.clone(), fixed: None };
        assert!(scopes.now().is_empty(), "no file");
        for (text, expected) in [
            ("[sessions]\nscopes = [\"agents\"]", vec!["agents"]),
            ("[sessions]\nscopes = [\"agents\", \"read_all\"]", vec!["agents", "read_all"]),
            ("[sessions]\nscopes = [\"a b\"]", vec![]),
            ("[sessions]\nscopes = [\"agents\"]\nno such key", vec![]),
            ("", vec![]),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(scopes.now(), expected, "{text}");
        }
        std::fs::write(&file, "[sessions]\nscopes = [\"agents\"]").unwrap();
        let fixed = SessionScopes { fixed: Some(vec!["approve".to_owned()]), ..scopes };
        assert_eq!(fixed.now(), ["approve"], "the environment is stronger");
    }
}
