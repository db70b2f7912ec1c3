//! Where a person's and a project's configuration files are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::client::InstallScope;
use super::version::ClientVersion;

/// The variables that move a client's files, and the one that says where programs are.
const VARIABLES: &[&str] =
    &["CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME", "PATH"];

/// Where a person's and a project's configuration files are.
#[derive(Debug, Clone)]
pub struct ClientLocations {
    /// `$HOME`.
    pub home: PathBuf,
    /// The folder that `--scope project` means.
    pub project: PathBuf,
    /// The version of Claude Code on this machine, if it is known: what its hooks may be depends on it.
    pub claude_version: Option<ClientVersion>,
    variables: BTreeMap<&'static str, OsString>,
}

impl ClientLocations {
    /// The locations for this home and project, moved by what `variable` gives for a name.
    pub fn new(
        home: PathBuf,
        project: PathBuf,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let variables =
            VARIABLES.iter().filter_map(|name| Some((*name, variable(name)?))).collect();
        Self { home, project, claude_version: None, variables }
    }

    /// The folders in which files of this scope are edited: where links lead elsewhere, nothing is changed.
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

    /// The XDG folder of configurations.
    pub fn config(&self) -> PathBuf {
        self.variable("XDG_CONFIG_HOME").unwrap_or_else(|| self.home.join(".config"))
    }

    /// A folder that a variable names; a relative one would mean another folder for every caller.
    pub fn variable(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Where programs of the desktop keep a person's settings.
    pub fn application_data(&self) -> PathBuf {
        if cfg!(target_os = "macos") {
            self.home.join("Library/Application Support")
        } else {
            self.config()
        }
    }

    /// The executable of this name on the PATH.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let paths = self.variables.get("PATH")?;
        std::env::split_paths(paths).map(|folder| folder.join(name)).find(|path| is_program(path))
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
