//! The state of svc's installation in a client, and its problems. Writes nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::allow::ToolApprovals;
use super::apply::{self, InstallRecord};
use super::catalogue::claude_refusal;
use super::client::{
    ClientCommand, ClientLocations, ClientVersion, InstallParts, InstallScope, KnownClient,
};
use super::document::{ConfigDocument, FileFormat};
use super::edit::{self, Edit, EditState};
use super::entries::{self, SERVER};
use super::file::ForeignFile;
use super::probe::{Abilities, version_of};
use super::trust;

/// How long Codex may take to list its hooks. After that its file is read instead.
const TIMEOUT: Duration = Duration::from_millis(900);

/// The expected state with which entries are compared.
#[derive(Debug, Clone)]
pub struct Expectation {
    pub locations: ClientLocations,
    pub command: ClientCommand,
    pub record: InstallRecord,
    /// The address of the daemon, or the address that it would have.
    pub daemon: Option<DaemonAddress>,
    pub token: Option<OperatorToken>,
    /// The version of svc.
    pub version: &'static str,
    pub harmless_tools: Vec<&'static str>,
    /// Tools that models see.
    pub listed_tools: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonAddress {
    pub url: String,
    pub port: u16,
}

/// Prefix of the tokens of sessions.
const SESSION_TOKEN: &str = "svc_";

/// The operator's token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct OperatorToken(pub String);

impl fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperatorToken(…)")
    }
}

#[derive(Debug, Serialize)]
pub struct ClientStatus {
    pub client: KnownClient,
    /// Whether the client is on this machine, or has been.
    pub found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub servers: Vec<InstalledPart>,
    pub hooks: Vec<InstalledPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ToolApprovals>,
    /// What svc can do with this client, if svc is installed in it at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abilities: Option<Abilities>,
    pub problems: Vec<String>,
    #[serde(skip)]
    pub advice: String,
}

/// A server or the hooks of svc in one file.
#[derive(Debug, Serialize)]
pub struct InstalledPart {
    /// `user`, `project`, or `local` for a project's entry in Claude Code's own file.
    pub scope: &'static str,
    pub path: PathBuf,
    /// `ok`, or the fault in one word.
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl ClientStatus {
    pub fn is_absent(&self) -> bool {
        self.servers.is_empty() && self.hooks.is_empty() && self.problems.is_empty()
    }

    /// Adds what svc can do with the client, which depends on the client's version.
    fn with_abilities(mut self) -> Self {
        if !self.is_absent() {
            let version = self.version.as_deref().and_then(ClientVersion::parse);
            self.abilities = Some(Abilities::of_client(self.client, version));
        }
        self
    }

    /// Notes a file that `svc install` would refuse too, so that the person has to repair it.
    fn note_unreadable(&mut self, path: &Path, error: &dyn fmt::Display) {
        let (path, client) = (path.display(), self.client.name());
        self.problems.push(format!("{path} {error}"));
        self.advice = format!("mend {path} by hand, then `svc install {client}`");
    }
}

impl Expectation {
    pub async fn inspect(&self, client: KnownClient) -> ClientStatus {
        // The expected hooks of Claude Code depend on its version.
        let version = version_of(client, &self.locations).await;
        let mut known = self.clone();
        known.locations.claude_version = version.as_deref().and_then(ClientVersion::parse);
        ClientStatus { version, ..known.inspect_files(client).await }.with_abilities()
    }

    async fn inspect_files(&self, client: KnownClient) -> ClientStatus {
        let mut status = ClientStatus {
            client,
            found: client.is_here(&self.locations),
            version: None,
            servers: Vec::new(),
            hooks: Vec::new(),
            approvals: None,
            abilities: None,
            problems: Vec::new(),
            advice: format!("svc install {}", client.name()),
        };
        let mut inspected = Vec::new();
        for scope in [InstallScope::User, InstallScope::Project] {
            for path in apply::files(client, &self.locations, &self.command, scope) {
                // In the home folder, both scopes may have the same files.
                if !inspected.contains(&path) {
                    self.inspect_file(&mut status, scope, &path);
                    inspected.push(path);
                }
            }
        }
        if !status.servers.is_empty() {
            let tools = client.named_in_rules(&self.harmless_tools, &self.listed_tools);
            status.approvals = client.approvals(&self.locations, &tools);
        }
        self.note_missing(&mut status, &inspected);
        note_doubles(&mut status);
        if client == KnownClient::Codex && !status.hooks.is_empty() {
            self.note_untrusted(&mut status).await;
        }
        status
    }

    fn inspect_file(&self, status: &mut ClientStatus, scope: InstallScope, path: &Path) {
        let text = match ForeignFile::read(path) {
            Ok(ForeignFile { text: None, .. }) => return,
            Ok(file) => file.text.unwrap_or_default(),
            Err(error) => return status.note_unreadable(path, &error),
        };
        let format = FileFormat::from_path(path);
        let is_own = apply::is_own_file(path);
        let document = match ConfigDocument::parse(format, &text) {
            Ok(document) => document.value(),
            // A plugin or rules, of which svc writes the whole text.
            Err(_) if is_own => Value::Null,
            Err(error) => return status.note_unreadable(path, &error),
        };
        let changes =
            status.client.changes(&self.locations, &self.command, scope, InstallParts::ALL);
        let is_whole = |edit: &Edit| matches!(edit, Edit::Whole { .. });
        let edits = changes.iter().flat_map(|change| &change.edits);
        for edit in edits.filter(|edit| is_whole(edit) == is_own) {
            let Ok(state) = edit::find(&text, format, edit) else { continue };
            match edit {
                Edit::Server { table, .. } => {
                    let entry = entries::at(&document, &[*table, SERVER]);
                    let is_same = state == EditState::Same;
                    self.add_server(status, scope.name(), path, entry, is_same);
                    if status.client == KnownClient::ClaudeCode && scope == InstallScope::User {
                        let project = self.locations.project.to_string_lossy();
                        let keys = ["projects", &project, "mcpServers", SERVER];
                        let entry = entries::at(&document, &keys);
                        self.add_server(status, "local", path, entry, false);
                    }
                }
                Edit::Hooks { .. } | Edit::Whole { .. } => {
                    let version = self.locations.claude_version;
                    let refused = version
                        .filter(|_| status.client == KnownClient::ClaudeCode)
                        .and_then(|version| claude_refusal(&document, version));
                    let switch = edit::find_switch(&document);
                    add_hooks(status, scope, path, &state, switch, refused);
                }
                Edit::Trust { .. } | Edit::Allow { .. } | Edit::Take { .. } => {}
            }
        }
    }

    fn add_server(
        &self,
        status: &mut ClientStatus,
        scope: &'static str,
        path: &Path,
        entry: Option<&Value>,
        is_same: bool,
    ) {
        let Some(entry) = entry else { return };
        let (state, detail) = self.judge_server(entry, is_same);
        if let Some(detail) = &detail {
            status.problems.push(format!("its server `svc` in {} {detail}", path.display()));
        }
        if state == "foreign" {
            // `svc install` changes no entry of another program.
            let (path, client) = (path.display(), status.client.name());
            status.advice = format!(
                "rename or remove the server `svc` in {path}, which is another program; then `svc install {client}`"
            );
        }
        status.servers.push(InstalledPart { scope, path: path.to_path_buf(), state, detail });
    }

    fn judge_server(&self, entry: &Value, is_same: bool) -> (&'static str, Option<String>) {
        let is_off = entry.get("enabled") == Some(&json!(false))
            || entry.get("disabled") == Some(&json!(true));
        if is_off {
            return ("disabled", Some("is switched off".to_owned()));
        }
        if is_same {
            return ("ok", None);
        }
        if !entries::is_our_server(entry) {
            return ("foreign", Some("is not this program".to_owned()));
        }
        if let (Some(program), _) = entries::command_of(entry) {
            return self.judge_program(program, entry);
        }
        let port = entries::url_of(entry).and_then(port_of);
        if let (Some(port), Some(daemon)) = (port, &self.daemon)
            && port != daemon.port
        {
            let detail = format!("says port {port}, but the daemon is at {}", daemon.url);
            return ("wrong_port", Some(detail));
        }
        self.judge_token(entry)
    }

    fn judge_program(&self, program: &str, entry: &Value) -> (&'static str, Option<String>) {
        let path = if program.contains('/') {
            Some(PathBuf::from(program)).filter(|path| path.exists())
        } else {
            self.locations.find(program)
        };
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let Some(path) = path else {
            return ("missing_program", Some(format!("runs {program}, which does not exist")));
        };
        if real(&path) != real(Path::new(self.command.path())) {
            let detail = format!("runs {}, and not {}", path.display(), self.command.path());
            return ("other_program", Some(detail));
        }
        let (_, arguments) = entries::command_of(entry);
        let home = arguments.iter().position(|word| *word == "--home");
        let home = home.map(|index| arguments.get(index + 1).copied());
        if home.is_some_and(|home| home != self.command.data_folder(InstallScope::User)) {
            return ("other_home", Some("uses another data folder".to_owned()));
        }
        ("ok", None)
    }

    /// Judges the token in an entry. A placeholder that names a variable is not a token.
    fn judge_token(&self, entry: &Value) -> (&'static str, Option<String>) {
        let headers = entry.get("headers").or_else(|| entry.get("http_headers"));
        let headers = headers.and_then(Value::as_object).into_iter().flatten();
        let credential = headers
            .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
            .find_map(|(_, value)| value.as_str()?.strip_prefix("Bearer "));
        match (credential, &self.token) {
            (Some(credential), Some(token)) if credential == token.0 => (
                "operator_token",
                Some(
                    "holds the operator's token: its agent may do everything that you may"
                        .to_owned(),
                ),
            ),
            (Some(credential), Some(_))
                if !credential.contains('$') && !credential.starts_with(SESSION_TOKEN) =>
            {
                ("stale_token", Some("has a token that is no longer good".to_owned()))
            }
            _ => ("ok", None),
        }
    }

    /// Notes recorded installations that are missing from their files.
    fn note_missing(&self, status: &mut ClientStatus, inspected: &[PathBuf]) {
        for entry in self.record.files.iter().filter(|entry| entry.client == status.client) {
            let mut parts = status.servers.iter().chain(&status.hooks);
            let allows = |it: &ToolApprovals| it.allowed > 0 && it.path == entry.path;
            let is_there = parts.any(|part| part.path == entry.path)
                || status.approvals.as_ref().is_some_and(allows);
            if inspected.contains(&entry.path) && !is_there {
                let path = entry.path.display();
                status.problems.push(format!("what was installed in {path} is gone"));
            }
        }
    }

    /// Notes hooks that Codex skips, as it runs only hooks that the person has trusted.
    async fn note_untrusted(&self, status: &mut ClientStatus) {
        // Without an answer the file has the trusted hooks, but does not show whether they have
        // changed since.
        let listed = trust::hooks(&self.locations, self.version, TIMEOUT).await;
        let listed = listed.and_then(Result::ok);
        for scope in [InstallScope::User, InstallScope::Project] {
            let parts = status.hooks.iter_mut();
            let Some(part) =
                parts.into_iter().find(|part| part.scope == scope.name() && part.state == "ok")
            else {
                continue;
            };
            let trusted: Vec<bool> = match &listed {
                Some(hooks) => trust::written(hooks.clone(), &self.locations, &self.command, scope)
                    .iter()
                    .map(|hook| hook.trusted)
                    .collect(),
                None => trust::recorded(&self.locations, &self.command, scope),
            };
            let untrusted = trusted.iter().filter(|trusted| !**trusted).count();
            let (state, detail) = if trusted.is_empty() {
                (
                    "not_listed",
                    "does not list them: it does not trust the project, or is too old".to_owned(),
                )
            } else if untrusted > 0 {
                let all = trusted.len();
                ("untrusted", format!("does not run {untrusted} of {all}, which are not trusted"))
            } else {
                continue;
            };
            let path = part.path.display();
            status.problems.push(format!("its hooks in {path}: codex {detail}"));
            (part.state, part.detail) = (state, Some(format!("codex {detail}")));
            let advice = match state {
                "untrusted" => {
                    "review them with /hooks in codex, or `svc install codex --trust-hooks`"
                }
                _ => "update codex, and say in it that you trust this project",
            };
            advice.clone_into(&mut status.advice);
        }
    }
}

fn add_hooks(
    status: &mut ClientStatus,
    scope: InstallScope,
    path: &Path,
    state: &EditState,
    switch: Option<String>,
    refused: Option<String>,
) {
    let (state, detail) = match state {
        EditState::Missing => return,
        _ if refused.is_some() => ("refused", refused),
        EditState::Same if switch.is_some() => ("disabled", switch),
        EditState::Same => ("ok", None),
        EditState::Differs => ("changed", None),
        EditState::Foreign => ("foreign", None),
    };
    if state == "changed" {
        status.problems.push(format!(
            "its hooks in {} are not those of this version of svc, or of this program",
            path.display()
        ));
    } else if state == "refused"
        && let Some(detail) = &detail
    {
        status.problems.push(format!("its hooks in {} {detail}", path.display()));
        if scope == InstallScope::Project {
            "update Claude Code".clone_into(&mut status.advice);
        }
    } else if let Some(switch) = &detail {
        let path = path.display();
        status.problems.push(format!("its hooks are switched off by {switch} in {path}"));
    }
    status.hooks.push(InstalledPart {
        scope: scope.name(),
        path: path.to_path_buf(),
        state,
        detail,
    });
}

fn port_of(url: &str) -> Option<u16> {
    let authority = url.trim().strip_prefix("http://")?.split('/').next()?;
    authority.rsplit_once(':')?.1.parse().ok()
}

/// Notes hooks in two files: they would run twice for each event, and everything would be counted
/// twice.
fn note_doubles(status: &mut ClientStatus) {
    let client = status.client.name();
    if status.hooks.len() > 1 {
        let paths: Vec<String> =
            status.hooks.iter().map(|part| part.path.display().to_string()).collect();
        status
            .problems
            .push(format!("its hooks run twice: they are in {}", paths.join(" and in ")));
        status.advice = format!("svc uninstall {client} --project");
    }
    if status.servers.len() > 1 {
        let scopes: Vec<&str> = status.servers.iter().map(|part| part.scope).collect();
        status.problems.push(format!("it has two servers `svc`: {}", scopes.join(" and ")));
        status.advice = format!(
            "remove the one that you do not want: the project's by `svc uninstall {client} --project`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_read_from_http_urls() {
        for (url, port) in [
            ("http://127.0.0.1:6334/mcp", Some(6334)),
            ("http://[::1]:7/mcp", Some(7)),
            ("http://localhost:/mcp", None),
            ("http://localhost:99999/mcp", None),
            ("https://localhost:6334/mcp", None),
        ] {
            assert_eq!(port_of(url), port, "{url}");
        }
    }

    #[test]
    fn debug_of_the_token_hides_it() {
        assert_eq!(format!("{:?}", OperatorToken("secret".to_owned())), "OperatorToken(…)");
    }
}
