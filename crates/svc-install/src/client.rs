//! The clients, the locations of their files, and the command with which they run this program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownClient {
    /// Claude Code
    #[value(alias = "claude")]
    ClaudeCode,
    /// Codex CLI
    Codex,
    /// Gemini CLI
    Gemini,
    /// opencode
    Opencode,
    /// Cursor
    Cursor,
    /// Visual Studio Code
    #[value(alias = "code")]
    Vscode,
    /// Windsurf
    Windsurf,
    /// Zed
    Zed,
    /// GitHub Copilot CLI
    #[value(alias = "copilot")]
    CopilotCli,
    /// Kiro
    Kiro,
    /// Factory Droid
    #[value(alias = "factory")]
    Droid,
}

/// Whose configuration is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstallScope {
    /// Yours, for all projects
    User,
    /// That of the project in this folder, for everybody who works on it
    Project,
}

impl InstallScope {
    pub fn name(self) -> &'static str {
        self.choose("user", "project")
    }

    pub(crate) fn choose<T>(self, user: T, project: T) -> T {
        match self {
            Self::User => user,
            Self::Project => project,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstallParts {
    pub server: bool,
    pub hooks: bool,
}

impl InstallParts {
    pub const ALL: Self = Self { server: true, hooks: true };
}

impl KnownClient {
    /// The best supported first.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Windsurf => "windsurf",
            Self::Zed => "zed",
            Self::CopilotCli => "copilot-cli",
            Self::Kiro => "kiro",
            Self::Droid => "droid",
        }
    }

    /// Its executable, if svc asks it for its version.
    pub fn executable(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some("claude"),
            Self::Codex => Some("codex"),
            Self::Gemini => Some("gemini"),
            Self::Opencode => Some("opencode"),
            _ => None,
        }
    }

    pub fn has_hooks(self) -> bool {
        self.executable().is_some()
    }
}

/// Major, minor and patch version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientVersion(pub [u32; 3]);

impl ClientVersion {
    /// Reads `2.1.100`; a suffix such as `-beta.1` is ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Self([number()?, number()?, number()?]))
    }
}

impl fmt::Display for ClientVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Variables that move clients' files, and the one with the folders of programs.
const VARIABLES: &[&str] =
    &["CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME", "PATH"];

/// Where a person's and a project's configuration files are.
#[derive(Debug, Clone)]
pub struct ClientLocations {
    pub home: PathBuf,
    /// The folder that `--scope project` means.
    pub project: PathBuf,
    /// If known: the hooks depend on it.
    pub claude_version: Option<ClientVersion>,
    variables: BTreeMap<&'static str, OsString>,
}

impl ClientLocations {
    /// `variable` reads an environment variable.
    pub fn new(
        home: PathBuf,
        project: PathBuf,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let variables =
            VARIABLES.iter().filter_map(|name| Some((*name, variable(name)?))).collect();
        Self { home, project, claude_version: None, variables }
    }

    /// Files of this scope are edited in these folders; links out of them are not followed.
    pub fn folders(&self, scope: InstallScope) -> Vec<PathBuf> {
        match scope {
            InstallScope::Project => vec![self.project.clone()],
            InstallScope::User => {
                let moved = VARIABLES.iter().filter(|name| **name != "PATH");
                let moved = moved.filter_map(|name| self.variable(name));
                [self.home.clone()].into_iter().chain(moved).collect()
            }
        }
    }

    pub fn config(&self) -> PathBuf {
        self.variable("XDG_CONFIG_HOME").unwrap_or_else(|| self.home.join(".config"))
    }

    /// A relative folder is ignored: it would depend on the working folder.
    pub fn variable(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Where desktop programs keep their settings.
    pub fn application_data(&self) -> PathBuf {
        if cfg!(target_os = "macos") {
            self.home.join("Library/Application Support")
        } else {
            self.config()
        }
    }

    /// The executable of this name on the PATH.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        program_in(self.variables.get("PATH")?, name)
    }
}

/// The executable of this name in the folders of a PATH.
pub fn program_in(paths: &OsStr, name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(paths).map(|folder| folder.join(name)).find(is_program)
}

/// How clients run this program.
#[derive(Debug, Clone)]
pub struct ClientCommand {
    path: String,
    home: Option<String>,
}

impl ClientCommand {
    /// Clients run it by its absolute path, so that no PATH decides, and with the data folder if it
    /// is not the default: they pass on only a part of the environment. A shared file has the name
    /// alone.
    pub fn new(path: &Path, home: &Path, default_home: Option<&Path>) -> anyhow::Result<Self> {
        let is_default = default_home == Some(home);
        let home = if is_default { None } else { Some(text(home)?) };
        Ok(Self { path: text(path)?, home })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// The data folder, if the client's file must name it.
    pub fn data_folder(&self, scope: InstallScope) -> Option<&str> {
        self.home.as_deref().filter(|_| scope == InstallScope::User)
    }

    /// The program's path, or its name in a shared file.
    pub fn executable(&self, scope: InstallScope) -> String {
        scope.choose(&*self.path, "svc").to_owned()
    }

    /// `words` first: `svc` recognises `hook` without parsing only as the first argument.
    pub fn arguments(&self, scope: InstallScope, words: &[&str]) -> Vec<String> {
        let home = self.data_folder(scope).into_iter().flat_map(|home| ["--home", home]);
        words.iter().copied().chain(home).map(str::to_owned).collect()
    }

    /// A line for the shell that does nothing where the program is not installed.
    /// `exec` leaves no shell between the client and the program.
    pub fn shell_line(&self, scope: InstallScope, words: &[&str]) -> String {
        let mut all = vec![self.executable(scope)];
        all.extend(self.arguments(scope, words));
        let line = all.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let own = format!("test -x {}", quoted(&self.path));
        let check = scope.choose(&*own, "command -v svc >/dev/null 2>&1");
        format!("{check} || exit 0; exec {line}")
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let told = || format!("{} is not UTF-8, and clients could not be told of it", path.display());
    path.to_str().map(str::to_owned).with_context(told)
}

/// A word of a shell's command line.
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (text, version) in [
            ("2.1.100", Some([2, 1, 100])),
            ("2.1.139 (Claude Code)", Some([2, 1, 139])),
            ("0.60.0-nightly.20260908", Some([0, 60, 0])),
            ("2.1", None),
            ("latest", None),
            ("", None),
        ] {
            assert_eq!(ClientVersion::parse(text), version.map(ClientVersion), "{text}");
        }
        assert!(ClientVersion([2, 1, 100]) > ClientVersion([2, 1, 99]));
        assert_eq!(ClientVersion([2, 0, 60]).to_string(), "2.0.60");
    }
}
