//! The root of the project that a folder belongs to, and the identity of the repository there: its
//! remote, its first commit, and whether it is a worktree.
//!
//! Only files are read. `git` is never run, as a repository's configuration names programs that git
//! starts. Links and includes are not followed, and the size of each file is bounded. What cannot
//! be read counts as absent.

use std::fs::{self, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use svc_model::remote_name;

use crate::bounded_file;

/// Largest configuration of a repository that is read, in bytes.
const CONFIG_BYTES: u64 = 1024 * 1024;
/// Largest file that only names a folder, and the part of HEAD's log that is read, in bytes.
const SHORT_BYTES: u64 = 8 * 1024;
/// Mode bit: everybody may write, as in `/tmp`.
const WRITABLE_BY_ALL: u32 = 0o002;

/// The nearest folder from `folder` upwards that has a `.git`, else `folder`.
///
/// A folder that everybody may write is no project: any user can put a `.git` there, and sandboxes
/// of some agents leave an empty one in `/tmp`, which would make everything below it one project.
pub fn project_root(folder: &Path) -> &Path {
    folder.ancestors().find(|up| is_root(up)).unwrap_or(folder)
}

fn is_root(folder: &Path) -> bool {
    folder.join(".git").exists()
        && folder.metadata().is_ok_and(|meta| meta.mode() & WRITABLE_BY_ALL == 0)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryIdentity {
    /// The remote's name, else the id of the first commit; `None` if neither is known.
    pub name: Option<String>,
    /// Folder of the main repository, if `folder` is a worktree.
    pub main: Option<String>,
}

/// The identity of the repository with the root `folder`; empty if another user may change it.
pub fn identity(folder: &Path) -> RepositoryIdentity {
    read_identity(folder).unwrap_or_default()
}

fn read_identity(folder: &Path) -> Option<RepositoryIdentity> {
    let dot_git = folder.join(".git");
    let meta = fs::symlink_metadata(&dot_git).ok()?;
    if !is_trusted(&fs::metadata(folder).ok()?) || !is_trusted(&meta) {
        return None;
    }
    if meta.is_dir() {
        return Some(RepositoryIdentity { name: name_of(&dot_git), main: None });
    }
    let git_dir = folder.join(short_text(&dot_git)?.strip_prefix("gitdir:")?.trim());
    let git_dir = git_dir.canonicalize().ok()?;
    is_trusted(&fs::metadata(&git_dir).ok()?).then_some(())?;
    let Some(common) = short_text(&git_dir.join("commondir")) else {
        // `folder` is a submodule, or its repository is kept in another place.
        return Some(RepositoryIdentity { name: name_of(&git_dir), main: None });
    };
    // The repository lists its worktrees, so a folder cannot claim to be one.
    let back = git_dir.join(short_text(&git_dir.join("gitdir"))?.trim());
    if back.canonicalize().ok()? != dot_git.canonicalize().ok()? {
        return None;
    }
    let common = git_dir.join(common.trim()).canonicalize().ok()?;
    is_trusted(&fs::metadata(&common).ok()?).then_some(())?;
    let main = if common.file_name()? == ".git" { common.parent()? } else { &common };
    Some(RepositoryIdentity { name: name_of(&common), main: main.to_str().map(str::to_owned) })
}

/// Whether only this user and root may change the file or folder.
fn is_trusted(meta: &Metadata) -> bool {
    let is_own = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
    is_own && !meta.is_symlink() && meta.mode() & WRITABLE_BY_ALL == 0
}

fn name_of(git_dir: &Path) -> Option<String> {
    let remote = bounded_text(&git_dir.join("config"), CONFIG_BYTES);
    let remote = remote.and_then(|text| origin(&text)).and_then(|address| remote_name(&address));
    remote.or_else(|| first_commit(git_dir))
}

fn bounded_text(path: &Path, most: u64) -> Option<String> {
    let file = bounded_file::open_regular_itself(path).ok()?;
    bounded_file::text_of(bounded_file::read_open(file, most).ok()?).ok()
}

fn short_text(path: &Path) -> Option<String> {
    bounded_text(path, SHORT_BYTES)
}

/// The id of the first commit, if the log of HEAD begins with it and the history is complete.
fn first_commit(git_dir: &Path) -> Option<String> {
    if git_dir.join("shallow").symlink_metadata().is_ok() {
        return None;
    }
    let log = bounded_file::open_regular_itself(&git_dir.join("logs/HEAD")).ok()?;
    let mut bytes = Vec::new();
    log.take(SHORT_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut entries = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let (before, first, what) = log_entry(entries.next()?)?;
    if !before.bytes().all(|byte| byte == b'0') || !what.starts_with("commit (initial)") {
        return None;
    }
    // An amended first commit replaces the one before it.
    let mut commit = first;
    for (before, after, what) in entries.map_while(log_entry) {
        if before != commit || !what.starts_with("commit (amend)") {
            break;
        }
        commit = after;
    }
    Some(commit.to_owned())
}

/// The ids of the commit before and after an entry, and the description of the entry.
fn log_entry(line: &str) -> Option<(&str, &str, &str)> {
    let (head, what) = line.split_once('\t')?;
    let mut words = head.split(' ');
    let (before, after) = (words.next()?, words.next()?);
    let is_id = |id: &str| {
        matches!(id.len(), 40 | 64)
            && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    (is_id(before) && is_id(after)).then_some((before, after, what))
}

/// The first URL of the remote `origin` in a configuration. `None` if a line before it is invalid:
/// git refuses such a file, too.
fn origin(text: &str) -> Option<String> {
    let mut is_origin = false;
    let mut rest = text.trim_start_matches('\u{feff}');
    loop {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        if matches!(first, '#' | ';') {
            rest = rest.split_once('\n')?.1;
        } else if first == '[' {
            (is_origin, rest) = section(&rest[1..])?;
        } else {
            let (key, value, after) = variable(rest)?;
            if is_origin && key.eq_ignore_ascii_case("url") {
                return value;
            }
            rest = after;
        }
    }
}

/// Whether a section is that of `origin`, and the text after the section's head.
fn section(text: &str) -> Option<(bool, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '.'))?;
    let (name, rest) = text.split_at(end);
    if let Some(rest) = rest.strip_prefix(']') {
        return Some((name.eq_ignore_ascii_case("remote.origin"), rest));
    }
    let rest = rest.trim_start_matches([' ', '\t']).strip_prefix('"')?;
    let (mut part, mut chars) = (String::new(), rest.char_indices());
    loop {
        match chars.next()? {
            (_, '\n') => return None,
            (_, '\\') => part.push(chars.next()?.1),
            (at, '"') => {
                let rest = rest[at + 1..].strip_prefix(']')?;
                return Some((name.eq_ignore_ascii_case("remote") && part == "origin", rest));
            }
            (_, c) => part.push(c),
        }
    }
}

/// The key of a variable, its value if it has one, and the text after it.
fn variable(text: &str) -> Option<(&str, Option<String>, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    if !key.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let rest = rest.trim_start_matches([' ', '\t', '\r']);
    let Some(rest) = rest.strip_prefix('=') else {
        let is_end = rest.is_empty() || rest.starts_with(['\n', '#', ';']);
        return is_end.then(|| (key, None, rest.split_once('\n').map_or("", |(_, next)| next)));
    };
    let (mut value, mut spaces) = (String::new(), String::new());
    let (mut is_quoted, mut is_comment) = (false, false);
    let mut chars = rest.char_indices();
    let mut after = "";
    while let Some((at, c)) = chars.next() {
        match c {
            '\n' if is_quoted => return None,
            '\n' => {
                after = &rest[at + 1..];
                break;
            }
            _ if is_comment => {}
            '#' | ';' if !is_quoted => is_comment = true,
            ' ' | '\t' | '\r' if !is_quoted => spaces.push(c),
            '"' => is_quoted = !is_quoted,
            _ => {
                let c = if c == '\\' {
                    match chars.next()?.1 {
                        '\n' => continue,
                        'n' => '\n',
                        't' => '\t',
                        'b' => '\u{8}',
                        c @ ('\\' | '"') => c,
                        _ => return None,
                    }
                } else {
                    c
                };
                if !value.is_empty() {
                    value.push_str(&spaces);
                }
                spaces.clear();
                value.push(c);
            }
        }
    }
    (!is_quoted).then_some((key, Some(value), after))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const ZERO: &str = "0000000000000000000000000000000000000000";
    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("is made");
        fs::write(path, text).expect("is written");
    }

    fn named(name: &str) -> RepositoryIdentity {
        RepositoryIdentity { name: Some(name.to_owned()), main: None }
    }

    #[test]
    fn the_first_address_of_origin_is_read_as_git_reads_it() {
        for (config, address) in [
            ("[remote \"origin\"]\n\turl = https://h/a.git\n", Some("https://h/a.git")),
            ("[remote \"origin\"] url=x", Some("x")),
            ("[REMOTE \"origin\"]\nURL = x # note\n", Some("x")),
            ("[remote.origin]\nurl = x ; note\n", Some("x")),
            (
                "\u{feff}# note\r\n[core]\r\n\tbare = false\r\n[remote \"origin\"]\r\n url = x\r\n",
                Some("x"),
            ),
            (
                "[remote \"origin\"]\nfetch = +refs/heads/*:refs/remotes/origin/*\nurl = x\nurl = y\n",
                Some("x"),
            ),
            ("[remote \"origin\"]\nurl = \"a b\" c\\\n d\n", Some("a b c d")),
            ("[remote \"origin\"]\nurl = a\\tb\n", Some("a\tb")),
            ("[remote \"o\\rigin\"]\nurl = x\n", Some("x")),
            ("[remote \"Origin\"]\nurl = x\n", None),
            ("[remote \"fork\"]\nurl = x\n[branch \"origin\"]\nurl = y\n", None),
            ("[remote \"origin\"]\npushurl = x\nprune\n", None),
            ("[include]\npath = other\n[url \"https://h/\"]\ninsteadOf = h:\n", None),
            ("[remote \"origin\"]\nurl\n", None),
            ("[remote \"origin\"]\nurl = \"x\n", None),
            ("[remote \"origin\"]\nurl = a\\qb\n", None),
            ("[remote \"origin\nurl = x\n", None),
            ("= x\n[remote \"origin\"]\nurl = x\n", None),
            ("\u{1b}[31m\n[remote \"origin\"]\nurl = x\n", None),
            ("[", None),
            ("[remote \"", None),
            ("", None),
        ] {
            assert_eq!(origin(config).as_deref(), address, "{config:?}");
        }
    }

    #[test]
    fn a_hostile_configuration_says_nothing() {
        let tmp = tempfile::tempdir().expect("a folder");
        let root = tmp.path().join("shop");
        let config = root.join(".git/config");
        let line = "[remote \"origin\"]\nurl = https://ann:s3cret@h/ann/shop.git\n";
        write(&config, line);
        assert_eq!(identity(&root), named("h/ann/shop"));
        write(&config, &format!("{}{line}", "# note\n".repeat(1024 * 1024 / 7)));
        assert_eq!(identity(&root), RepositoryIdentity::default(), "it is too large");
        write(&config, "[remote \"origin\"]\nurl = https://h/a\\n\u{1b}[2J\n");
        assert_eq!(identity(&root), RepositoryIdentity::default());
        fs::remove_file(&config).expect("is removed");
        write(&tmp.path().join("other"), line);
        symlink(tmp.path().join("other"), &config).expect("is linked");
        assert_eq!(identity(&root), RepositoryIdentity::default(), "no link is followed");
        fs::remove_file(&config).expect("is removed");
        write(&config, "[include]\npath = ../../other\n");
        assert_eq!(identity(&root), RepositoryIdentity::default(), "nothing is included");
        fs::remove_file(&config).expect("is removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &config, rustix::fs::Mode::RWXU).expect("is made");
        assert_eq!(identity(&root), RepositoryIdentity::default(), "a pipe holds nobody up");
        fs::remove_file(&config).expect("is removed");
        write(&config, line);
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert_eq!(identity(&root), RepositoryIdentity::default(), "anybody may change it");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let linked = tmp.path().join("linked");
        fs::create_dir(&linked).expect("is made");
        symlink(root.join(".git"), linked.join(".git")).expect("is linked");
        assert_eq!(identity(&linked), RepositoryIdentity::default());
        assert_eq!(identity(&root), named("h/ann/shop"));
    }

    #[test]
    fn without_a_remote_the_first_commit_counts_if_the_history_is_whole() {
        let tmp = tempfile::tempdir().expect("a folder");
        let root = tmp.path().join("shop");
        let log = |lines: &[(&str, &str, &str)]| {
            let line = |(before, after, what): &(&str, &str, &str)| {
                format!("{before} {after} Ann <ann@example.org> 1700000000 +0000\t{what}\n")
            };
            let text: String = lines.iter().map(line).collect();
            write(&root.join(".git/logs/HEAD"), &text);
        };
        assert_eq!(identity(&root), RepositoryIdentity::default());
        write(&root.join(".git/config"), "[remote \"origin\"]\nurl = /srv/git/shop.git\n");
        log(&[(ZERO, ONE, "commit (initial): begin"), (ONE, TWO, "commit: go on")]);
        assert_eq!(identity(&root), named(ONE));
        log(&[(ZERO, ONE, "commit (initial): begin"), (ONE, TWO, "commit (amend): begin")]);
        assert_eq!(identity(&root), named(TWO));
        log(&[(ZERO, ONE, "clone: from /srv/git/shop.git")]);
        assert_eq!(identity(&root), RepositoryIdentity::default());
        log(&[(ONE, TWO, "commit (initial): begin")]);
        assert_eq!(identity(&root), RepositoryIdentity::default(), "the log was cut");
        log(&[(ZERO, "../../etc", "commit (initial): begin")]);
        assert_eq!(identity(&root), RepositoryIdentity::default());
        log(&[(ZERO, ONE, "commit (initial): begin")]);
        write(&root.join(".git/shallow"), ONE);
        assert_eq!(identity(&root), RepositoryIdentity::default(), "it is shallow");
    }

    #[test]
    fn a_worktree_is_its_repository_if_that_knows_it() {
        let tmp = tempfile::tempdir().expect("a folder");
        let base = tmp.path().canonicalize().expect("is there");
        let (main, tree, other) = (base.join("shop"), base.join("fix"), base.join("other"));
        let git_dir = main.join(".git/worktrees/fix");
        write(&main.join(".git/config"), "[remote \"origin\"]\nurl = h:ann/shop\n");
        write(&git_dir.join("commondir"), "../..\n");
        write(&git_dir.join("gitdir"), &format!("{}\n", tree.join(".git").display()));
        let points = format!("gitdir: {}\n", git_dir.display());
        write(&tree.join(".git"), &points);
        write(&other.join(".git"), &points);
        let name = Some("h/ann/shop".to_owned());
        let of_main = main.to_str().map(str::to_owned);
        assert_eq!(identity(&tree), RepositoryIdentity { name, main: of_main });
        assert_eq!(identity(&other), RepositoryIdentity::default(), "it is not that worktree");

        // A submodule is a repository of its own.
        let module = main.join("lib");
        write(&main.join(".git/modules/lib/config"), "[remote \"origin\"]\nurl = h:bob/lib\n");
        write(&module.join(".git"), "gitdir: ../.git/modules/lib\n");
        assert_eq!(identity(&module), named("h/bob/lib"));
        for odd in ["", "gitdir:", "gitdir: /nowhere", "gitdir: \0", "else"] {
            write(&module.join(".git"), odd);
            assert_eq!(identity(&module), RepositoryIdentity::default(), "{odd:?}");
        }
    }

    #[test]
    fn nearest_repository_is_the_project_unless_all_can_write_it() {
        let tmp = tempfile::tempdir().expect("a folder");
        let outer = tmp.path().join("outer");
        let inner = outer.join("inner");
        let deep = inner.join("a/b");
        fs::create_dir_all(&deep).expect("folders");
        fs::create_dir(outer.join(".git")).expect("a folder");
        assert_eq!(project_root(&deep), outer);
        // The `.git` of a worktree is a file.
        fs::write(inner.join(".git"), "gitdir: elsewhere\n").expect("a file");
        assert_eq!(project_root(&deep), inner);
        assert_eq!(project_root(&inner), inner);

        fs::set_permissions(&inner, fs::Permissions::from_mode(0o1777)).expect("it is ours");
        assert_eq!(project_root(&deep), outer);
        fs::set_permissions(&outer, fs::Permissions::from_mode(0o1777)).expect("it is ours");
        fs::create_dir(deep.join(".git")).expect("a folder");
        assert_eq!(project_root(&deep), deep);
    }
}
