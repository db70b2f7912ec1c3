//! How a client calls this program: by its absolute path, so that nobody's PATH decides which version runs, and with
//! the data folder if it is not the usual one, since clients hand on only a part of their environment.
//!
//! In a file that a project shares, by its name: another person's path is another one.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Scope;
use crate::cli::Context;

/// This program, as clients call it.
#[derive(Debug, Clone)]
pub(super) struct Program {
    path: String,
    home: Option<String>,
}

impl Program {
    /// The program that runs now, with the data folder that it uses.
    ///
    /// Fails if a path is not UTF-8: no client's file could hold it.
    pub(super) fn current(context: &Context) -> anyhow::Result<Self> {
        let path = std::env::current_exe().context("cannot tell where this program is")?;
        let usual = context.env.os("HOME").map(|home| Path::new(home).join(".local/share/svc"));
        let home = &context.paths.home;
        let unusual = usual.as_deref() != Some(home.as_path());
        Ok(Self { path: text(&path)?, home: unusual.then(|| text(home)).transpose()? })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is a build that the next `cargo clean` takes away.
    pub(super) fn is_in_target(&self) -> bool {
        let path = Path::new(&self.path);
        path.components().any(|part| part.as_os_str() == "target")
            || path.ancestors().any(|folder| folder.join("CACHEDIR.TAG").exists())
    }

    /// The data folder, if a client must be told.
    pub(super) fn data_folder(&self, scope: Scope) -> Option<&str> {
        self.home.as_deref().filter(|_| scope == Scope::User)
    }

    /// The program's name or path, as its first word.
    pub(super) fn command(&self, scope: Scope) -> String {
        match scope {
            Scope::User => self.path.clone(),
            Scope::Project => "svc".to_owned(),
        }
    }

    /// Its arguments, `words` first: `svc hook` is found at once only there.
    pub(super) fn arguments(&self, scope: Scope, words: &[&str]) -> Vec<String> {
        let home = self.data_folder(scope).into_iter().flat_map(|home| ["--home", home]);
        words.iter().copied().chain(home).map(str::to_owned).collect()
    }

    /// Both as a line for the shell. In a shared file it is silent where `svc` is not installed.
    pub(super) fn line(&self, scope: Scope, words: &[&str]) -> String {
        let mut all = vec![self.command(scope)];
        all.extend(self.arguments(scope, words));
        let line = all.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        match scope {
            Scope::User => line,
            Scope::Project => format!("command -v svc >/dev/null 2>&1 || exit 0; exec {line}"),
        }
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    PathBuf::from(path).into_os_string().into_string().map_err(|path| {
        anyhow::anyhow!("{} is not UTF-8, and clients could not be told of it", path.display())
    })
}

/// A word that the shell takes as it is.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
