//! Rules of `.gitignore` and `.ignore`. These files are untrusted, as they belong to the searched
//! tree: each is opened under the same bounds as other files, and one that is no small regular file
//! has no rules.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use svc_sys::bounded_file;

/// Largest file of rules, in bytes. All of them are compiled before the first is used.
const MAX_RULES: u64 = 128 * 1024;

/// The rules of the folders that a walk has entered.
#[derive(Debug, Default)]
pub(super) struct IgnoreRules {
    by_folder: Mutex<HashMap<PathBuf, Arc<FolderRules>>>,
}

#[derive(Debug)]
struct FolderRules {
    /// From `.ignore`. They override the others.
    of_ignore: Gitignore,
    of_git: Gitignore,
    /// From `.git/info/exclude`. The others override them.
    of_exclude: Gitignore,
    /// Git's rules from above a repository do not apply in it.
    is_repository: bool,
}

impl FolderRules {
    fn read(folder: &Path) -> Self {
        Self {
            of_ignore: rules_of(folder, ".ignore"),
            of_git: rules_of(folder, ".gitignore"),
            of_exclude: rules_of(folder, ".git/info/exclude"),
            is_repository: folder.join(".git").exists(),
        }
    }
}

fn rules_of(folder: &Path, name: &str) -> Gitignore {
    let path = folder.join(name);
    // As git does: a link may lead anywhere.
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
    if !is_file {
        return Gitignore::empty();
    }
    let text = match bounded_file::read_text(&path, MAX_RULES) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => {
            tracing::debug!(%error, "the rules of an ignore file do not count");
            return Gitignore::empty();
        }
    };
    let mut rules = GitignoreBuilder::new(folder);
    for line in text.trim_start_matches('\u{feff}').lines() {
        // A line that is no rule is ignored, as by git.
        rules.add_line(None, line).ok();
    }
    rules.build().unwrap_or_else(|_| Gitignore::empty())
}

impl IgnoreRules {
    fn of_folder(&self, folder: &Path) -> Arc<FolderRules> {
        let known = |this: &Self| {
            let known = this.by_folder.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(folder).cloned()
        };
        known(self).unwrap_or_else(|| {
            let rules = Arc::new(FolderRules::read(folder));
            let mut known = self.by_folder.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(folder.to_owned()).or_insert(rules))
        })
    }

    /// Whether a path is ignored. For each kind of file the rules of the nearest folder win.
    pub(super) fn leave_out(&self, path: &Path, is_folder: bool) -> bool {
        let (mut of_ignore, mut of_git, mut of_exclude) = (Match::None, Match::None, Match::None);
        let mut is_inside = true;
        for folder in path.ancestors().skip(1) {
            let rules = self.of_folder(folder);
            let matched = |rules: &Gitignore| rules.matched(path, is_folder).map(|_| ());
            if of_ignore.is_none() {
                of_ignore = matched(&rules.of_ignore);
            }
            if is_inside && of_git.is_none() {
                of_git = matched(&rules.of_git);
            }
            if is_inside && of_exclude.is_none() {
                of_exclude = matched(&rules.of_exclude);
            }
            is_inside &= !rules.is_repository;
        }
        of_ignore.or(of_git).or(of_exclude).is_ignore()
    }
}
