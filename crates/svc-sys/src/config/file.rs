//! The TOML file: every key is optional, and unknown keys are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use svc_model::BudgetKind;

use super::ConfigError;
use crate::private_file;

// The keys by the form of their values; `Config` documents them.
const TEXTS: &str = "token_file log_level log_format default_agent daemon.name team.away store.url \
    store.password_file store.schema store.listen approvals.attended hooks.wake \
    sessions.visibility sources.expose sources.registry";
const LISTS: &str = "listen allowed_host allowed_origin proxy_user sessions.allow sessions.scopes \
    sources.import sources.tool_call wake.off";
const NUMBERS: &str = "store.max_bytes store.max_connections store.connect_timeout \
    retention.max_age_days retention.max_bytes retention.messages_days retention.tasks_days \
    hooks.cold_wait hooks.check_in sessions.max_ping_pong sources.max_result_bytes \
    sources.max_kept_bytes";
const SWITCHES: &str = "no_auth hooks.context hooks.sub_agents";

/// `config.toml` as written.
#[derive(Debug, Clone, Default)]
pub struct FileConfig {
    /// The settings, by dotted key.
    values: BTreeMap<String, Value>,
    /// `[agents.<instance>]`: each entry is read alone, so that an invalid one leaves the others
    /// valid.
    pub(super) agents: BTreeMap<String, toml::Value>,
    /// One table per child MCP server; an invalid table leaves the others valid.
    servers: BTreeMap<String, Value>,
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
        let values = token.map(|token| ("token_file".to_owned(), json!(token)));
        Self { values: values.into_iter().collect(), ..Self::default() }
    }

    /// `path` is for error messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let bad = |problem: String| ConfigError::File { path: path.to_path_buf(), problem };
        let mut table: toml::Table =
            toml::from_str(text).map_err(|error| bad(error.to_string().trim_end().to_owned()))?;
        let mut file = Self::default();
        match table.remove("agents") {
            None => {}
            Some(toml::Value::Table(agents)) => file.agents = agents.into_iter().collect(),
            Some(_) => return Err(bad("key `agents`: must be a table".to_owned())),
        }
        for (section, value) in table {
            match (section.as_str(), json!(value)) {
                ("sources", Value::Object(members)) => {
                    for (name, value) in members {
                        let key = format!("sources.{name}");
                        if form_of(&key).is_some() {
                            file.take(key, value).map_err(bad)?;
                        } else if value.is_object() {
                            file.servers.insert(name, value);
                        } else {
                            return Err(bad(format!("{key}: is no key; a server is a table")));
                        }
                    }
                }
                (known, Value::Object(members)) if is_section(known) => {
                    for (name, value) in members {
                        file.take(format!("{section}.{name}"), value).map_err(bad)?;
                    }
                }
                (_, value) => file.take(section, value).map_err(bad)?,
            }
        }
        Ok(file)
    }

    fn take(&mut self, key: String, value: Value) -> Result<(), String> {
        let (form, is_right) =
            form_of(&key).ok_or_else(|| format!("key `{key}`: there is no such key"))?;
        if !is_right(&value) {
            return Err(format!("key `{key}`: must be {form}"));
        }
        self.values.insert(key, value);
        Ok(())
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The list at a key; `None` if the key is not in the file.
    pub fn list(&self, key: &str) -> Option<Vec<String>> {
        serde_json::from_value(self.value(key)?.clone()).ok()
    }

    pub(in crate::config) fn source_entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.servers.iter()
    }
}

fn is_section(name: &str) -> bool {
    let keys = [TEXTS, LISTS, NUMBERS, SWITCHES].into_iter().flat_map(|keys| keys.split(' '));
    let mut keys = keys.chain(BudgetKind::ALL.iter().map(|kind| kind.key()));
    keys.any(|key| key.split_once('.').is_some_and(|(section, _)| section == name))
}

/// What a value has to be, in words, and whether a value is that.
type ValueForm = (&'static str, fn(&Value) -> bool);

/// The form of a key's value; `None` if there is no such key.
fn form_of(key: &str) -> Option<ValueForm> {
    let has = |keys: &str| keys.split(' ').any(|known| known == key);
    if has(TEXTS) {
        Some(("a text", Value::is_string))
    } else if has(SWITCHES) {
        Some(("true or false", Value::is_boolean))
    } else if has(NUMBERS) || BudgetKind::ALL.iter().any(|kind| kind.key() == key) {
        Some(("a number, not below 0", Value::is_u64))
    } else if has(LISTS) {
        let is_list = |value: &Value| {
            value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
        };
        Some(("a list of texts", is_list))
    } else {
        None
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
            Ok(file) => file.list("sessions.scopes").unwrap_or_default(),
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

pub fn scope(text: &str) -> Result<String, String> {
    let is_word =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
    if text.is_empty() || !text.bytes().all(is_word) {
        return Err(format!("`{text}` is no scope: a word such as agents, approve or read_all"));
    }
    Ok(text.to_owned())
}

pub(super) fn each<T>(
    items: &[String],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    items.iter().map(|item| parse(item)).collect()
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
            ("[sessions]\nvisible = \"all\"", "sessions.visible"),
            ("[sessions]\nallow = \"a->b\"", "sessions.allow"),
            ("[budget]\nstreams = -1", "budget.streams"),
            ("[budget]\nstream = 1", "budget.stream"),
            ("[sources]\nexpose = {}", "sources.expose"),
            ("[sources]\nfs = \"x\"", "sources.fs"),
            ("listen = [1]", "listen"),
            ("listen = {}", "listen"),
            ("log_level = 2026-01-02", "`log_level`"),
            ("[retentoin]", "retentoin"),
            ("= 3", "line 1"),
        ];
        for (text, expected) in cases {
            let error =
                FileConfig::parse(text, Path::new("/etc/c.toml")).expect_err(text).to_string();
            assert!(error.contains("/etc/c.toml") && error.contains(expected), "{text}: {error}");
        }
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
