//! How a client runs this program: by its absolute path, so that no PATH decides which program runs, and with the data
//! folder if it is not the default, since clients pass on only a part of their environment.
//!
//! A file that a project shares has the program's name alone: its path differs from person to person.

use std::path::{Path, PathBuf};

use super::client::InstallScope;

/// A path that no client's file could hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not UTF-8, and clients could not be told of it", .0.display())]
pub struct NotUtf8(PathBuf);

/// This program, as clients run it.
#[derive(Debug, Clone)]
pub struct ClientCommand {
    path: String,
    home: Option<String>,
}

impl ClientCommand {
    /// The program at `path` with the data folder `home`, which clients are told if it is not `default_home`.
    ///
    /// Fails if a path is not UTF-8: no client's file could hold it.
    pub fn new(path: &Path, home: &Path, default_home: Option<&Path>) -> Result<Self, NotUtf8> {
        let is_default = default_home == Some(home);
        let home = if is_default { None } else { Some(text(home)?) };
        Ok(Self { path: text(path)?, home })
    }

    /// The program's absolute path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether it, or what it is a link to, is in a build folder, which `cargo clean` removes.
    pub fn is_in_target(&self) -> bool {
        let is_built = |path: &Path| {
            path.components().any(|part| part.as_os_str() == "target")
                || path.ancestors().any(|folder| folder.join("CACHEDIR.TAG").exists())
        };
        let path = Path::new(&self.path);
        is_built(path) || std::fs::canonicalize(path).is_ok_and(|target| is_built(&target))
    }

    /// The data folder, if the client's file must name it.
    pub fn data_folder(&self, scope: InstallScope) -> Option<&str> {
        self.home.as_deref().filter(|_| scope == InstallScope::User)
    }

    /// The program's path, or its name in a shared file.
    pub fn executable(&self, scope: InstallScope) -> String {
        match scope {
            InstallScope::User => self.path.clone(),
            InstallScope::Project => "svc".to_owned(),
        }
    }

    /// Its arguments, `words` first: `svc` recognises `hook` without parsing only as the first argument.
    pub fn arguments(&self, scope: InstallScope, words: &[&str]) -> Vec<String> {
        let home = self.data_folder(scope).into_iter().flat_map(|home| ["--home", home]);
        words.iter().copied().chain(home).map(str::to_owned).collect()
    }

    /// Program and arguments as a line for the shell, which does nothing where the program is not installed, or no more.
    /// `exec` leaves no shell between the client and the program.
    pub fn shell_line(&self, scope: InstallScope, words: &[&str]) -> String {
        let mut all = vec![self.executable(scope)];
        all.extend(self.arguments(scope, words));
        let line = all.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        match scope {
            InstallScope::User => format!("test -x {} || exit 0; exec {line}", quoted(&self.path)),
            InstallScope::Project => {
                format!("command -v svc >/dev/null 2>&1 || exit 0; exec {line}")
            }
        }
    }
}

fn text(path: &Path) -> Result<String, NotUtf8> {
    path.to_str().map(str::to_owned).ok_or_else(|| NotUtf8(path.to_owned()))
}

/// A word in quotes where the shell would change it.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
