//! `Grep` and `Glob`, and the rules of `.gitignore`. Those files are untrusted, as
//! they belong to the searched tree: one that is no small regular file has no rules.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use globset::GlobBuilder;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use ignore::{
    WalkBuilder,
    gitignore::{Gitignore, GitignoreBuilder},
    overrides::OverrideBuilder,
    types::TypesBuilder,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::tools::ToolError;
use svc_sys::bounded_file;
use tokio_util::sync::CancellationToken;

use super::folder::{BoundPath, FolderBounds};
use crate::lock;

const LONGEST: Duration = Duration::from_secs(30);
/// Longest line that is searched, in bytes of memory. The rest of a file after a longer line is
/// skipped.
const LINE_MEMORY: usize = 16 * 1024 * 1024;
/// Longest text of a line, in characters.
const LINE: usize = 1000;

/// What to search for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrepArguments {
    /// A regular expression, as ripgrep has it.
    #[schemars(length(min = 1, max = 10000))]
    pattern: String,
    /// A file or folder, if not the session's.
    #[schemars(length(max = 4096))]
    path: Option<String>,
    /// Only files of this glob, such as *.rs.
    #[schemars(length(max = 1000))]
    glob: Option<String>,
    /// Only files of this type, such as rust or py.
    #[serde(rename = "type")]
    #[schemars(length(max = 50))]
    kind: Option<String>,
    case_insensitive: Option<bool>,
    /// Lines before and after each match.
    #[schemars(range(max = 50))]
    context: Option<usize>,
    #[serde(default = "two_hundred")]
    #[schemars(range(min = 1, max = 5000))]
    max_matches: usize,
}

fn two_hundred() -> usize {
    200
}

/// Lines that match.
#[derive(Serialize, JsonSchema)]
pub(super) struct GrepResult {
    matches: Vec<GrepMatch>,
    count: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// A line that matches.
#[derive(Debug, Serialize, JsonSchema)]
struct GrepMatch {
    path: String,
    line: u64,
    text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after: Vec<String>,
}

/// Which files.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GlobArguments {
    /// A glob over paths below the folder: * within one part, ** over parts.
    #[schemars(length(min = 1, max = 1000))]
    pattern: String,
    /// The folder, if not the session's.
    #[schemars(length(max = 4096))]
    path: Option<String>,
    #[serde(default = "two_hundred")]
    #[schemars(range(min = 1, max = 10000))]
    limit: usize,
    #[serde(default = "yes")]
    respect_gitignore: bool,
    include_hidden: Option<bool>,
}

fn yes() -> bool {
    true
}

/// Files, by path.
#[derive(Serialize, JsonSchema)]
pub(super) struct GlobResult {
    paths: Vec<String>,
    count: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// When a search ends: at its deadline, or when its caller is gone.
#[derive(Debug, Clone)]
struct SearchEnd {
    latest: Instant,
    gone: CancellationToken,
}

impl SearchEnd {
    fn new(gone: CancellationToken) -> Self {
        Self { latest: Instant::now() + LONGEST, gone }
    }

    fn is_there(&self) -> bool {
        self.gone.is_cancelled() || Instant::now() >= self.latest
    }
}

/// A file that reads as ended when its search ends.
struct SearchedFile<'a> {
    file: &'a File,
    end: &'a SearchEnd,
}

impl Read for SearchedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.end.is_there() { Ok(0) } else { self.file.read(buffer) }
    }
}

/// Walks over files in the order of their paths. Links are not followed, closed folders not
/// entered.
fn walk(
    bounds: &FolderBounds,
    root: &Path,
    respects_gitignore: bool,
    hidden: bool,
    end: &SearchEnd,
) -> WalkBuilder {
    let mut walk = WalkBuilder::new(root);
    let (bounds, end) = (bounds.clone(), end.clone());
    let rules = respects_gitignore.then(IgnoreRules::default);
    // The `ignore` crate would read ignore files of any size and kind.
    walk.standard_filters(false).hidden(!hidden).follow_links(false).sort_by_file_path(Path::cmp);
    walk.filter_entry(move |entry| {
        if end.is_there() || bounds.is_closed(entry.path()) {
            return false;
        }
        let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
        // A path that the caller names is searched even if a rule ignores it.
        if entry.depth() == 0 {
            return true;
        }
        // The repository itself has thousands of files that are no source.
        entry.file_name() != ".git"
            && rules.as_ref().is_none_or(|rules| !rules.leave_out(entry.path(), is_folder))
    });
    walk
}

/// Searches files. `gone` ends the search early.
pub(super) fn grep(
    bounds: &FolderBounds,
    input: &GrepArguments,
    gone: CancellationToken,
) -> Result<GrepResult, ToolError> {
    let found = bounds.find(None, input.path.as_deref().unwrap_or("."), "path")?;
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(input.case_insensitive.unwrap_or(false))
        .line_terminator(Some(b'\n'))
        .build(&input.pattern)
        .map_err(|error| ToolError::invalid("pattern", format!("pattern: {error}")))?;
    let context = input.context.unwrap_or(0);
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(LINE_MEMORY))
        .build();
    let end = SearchEnd::new(gone);
    let mut walk = walk(bounds, &found.path, true, false, &end);
    if let Some(glob) = &input.glob {
        let wrong = |error: ignore::Error| ToolError::invalid("glob", format!("glob: {error}"));
        let mut globs = OverrideBuilder::new(&found.path);
        globs.add(glob).map_err(wrong)?;
        walk.overrides(globs.build().map_err(wrong)?);
    }
    if let Some(kind) = &input.kind {
        let mut types = TypesBuilder::new();
        types.add_defaults().select(kind);
        let types = types.build();
        walk.types(types.map_err(|error| ToolError::invalid("type", format!("type: {error}")))?);
    }
    let mut matches = Matches {
        shown: String::new(),
        all: Vec::new(),
        pending: Vec::new(),
        context,
        most: input.max_matches,
        is_full: false,
        matcher: &matcher,
    };
    for entry in walk.build().flatten() {
        if end.is_there() || matches.is_full {
            break;
        }
        // A link that the caller names was resolved above.
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            let file = found.child(entry.into_path());
            search(&mut searcher, &mut matches, &file, bounds, &end);
        }
    }
    let truncated = matches.is_full || end.is_there();
    Ok(GrepResult { count: matches.all.len(), matches: matches.all, truncated })
}

fn search(
    searcher: &mut Searcher,
    matches: &mut Matches<'_>,
    file: &BoundPath,
    bounds: &FolderBounds,
    end: &SearchEnd,
) {
    // A file that cannot be read, or is gone, has no matches.
    let Ok(open) = bounds.open(file) else { return };
    matches.shown = bounds.shown(&file.path);
    matches.pending.clear();
    let matcher = matches.matcher;
    let file = SearchedFile { file: &open, end };
    if let Err(error) = searcher.search_reader(matcher, file, &mut *matches) {
        tracing::debug!(%error, "a file cannot be searched");
    }
}

struct Matches<'a> {
    shown: String,
    all: Vec<GrepMatch>,
    /// Lines before the next match.
    pending: Vec<String>,
    context: usize,
    most: usize,
    /// A bound was reached: there are more matches.
    is_full: bool,
    matcher: &'a RegexMatcher,
}

fn line_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches(['\n', '\r']).chars().take(LINE).collect()
}

impl Sink for &mut Matches<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        for (at, line) in found.lines().enumerate() {
            if self.all.len() >= self.most {
                self.is_full = true;
                return Ok(false);
            }
            let number = found.line_number().unwrap_or(0) + at as u64;
            let before = std::mem::take(&mut self.pending);
            // A match is context of earlier matches, too.
            self.follow(line, number);
            let (path, text) = (self.shown.clone(), line_of(line));
            self.all.push(GrepMatch { path, line: number, text, before, after: Vec::new() });
            if self.context > 0 {
                self.remember(line);
            }
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> Result<bool, Self::Error> {
        if *found.kind() != SinkContextKind::Other {
            self.follow(found.bytes(), found.line_number().unwrap_or(0));
            self.remember(found.bytes());
        }
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, Self::Error> {
        self.pending.clear();
        Ok(true)
    }
}

impl Matches<'_> {
    /// Adds a line to the matches that it follows.
    fn follow(&mut self, line: &[u8], number: u64) {
        let (context, shown) = (self.context as u64, &self.shown);
        let near = self.all.iter_mut().rev();
        let near = near.take_while(|found| found.path == *shown && found.line + context >= number);
        for found in near.filter(|found| found.line < number) {
            found.after.push(line_of(line));
        }
    }

    fn remember(&mut self, line: &[u8]) {
        self.pending.push(line_of(line));
        if self.pending.len() > self.context {
            self.pending.remove(0);
        }
    }
}

pub(super) fn glob(
    bounds: &FolderBounds,
    input: &GlobArguments,
    gone: CancellationToken,
) -> Result<GlobResult, ToolError> {
    let found = bounds.find(None, input.path.as_deref().unwrap_or("."), "path")?;
    let wrong = |text: String| ToolError::invalid("pattern", format!("pattern: {text}"));
    let pattern = input.pattern.strip_prefix("./").unwrap_or(&input.pattern);
    let pattern = Path::new(pattern)
        .strip_prefix(&found.path)
        .map_or(pattern, |rest| rest.to_str().unwrap_or(pattern));
    if pattern.starts_with('/') || pattern.split('/').any(|part| part == "..") {
        return Err(wrong("must be of paths below the folder: name it in path".to_owned()));
    }
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob.map_err(|error| wrong(error.to_string()))?.compile_matcher();
    let hidden = input.include_hidden.unwrap_or(false);
    let end = SearchEnd::new(gone);
    let walk = walk(bounds, &found.path, input.respect_gitignore, hidden, &end);
    let (mut paths, mut truncated) = (Vec::new(), false);
    for entry in walk.build().flatten() {
        if end.is_there() {
            break;
        }
        let is_folder = entry.file_type().is_none_or(|kind| kind.is_dir());
        let below: PathBuf = entry.path().strip_prefix(&found.path).unwrap_or(entry.path()).into();
        if is_folder || !glob.is_match(&below) {
            continue;
        }
        if paths.len() == input.limit {
            truncated = true;
            break;
        }
        paths.push(bounds.shown(entry.path()));
    }
    truncated |= end.is_there();
    Ok(GlobResult { count: paths.len(), paths, truncated })
}

/// Largest file of rules, in bytes. All of them are compiled before the first is used.
const MAX_RULES: u64 = 128 * 1024;

/// The rules of the folders that a walk has entered.
#[derive(Debug, Default)]
pub(super) struct IgnoreRules {
    by_folder: Mutex<HashMap<PathBuf, Arc<FolderRules>>>,
}

#[derive(Debug)]
struct FolderRules {
    rules: Gitignore,
    /// Rules from above a repository do not apply in it.
    is_repository: bool,
}

fn rules_of(folder: &Path) -> Gitignore {
    let path = folder.join(".gitignore");
    // Links are not followed, as in git: a link may lead anywhere.
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
        if let Some(known) = lock(&self.by_folder).get(folder) {
            return Arc::clone(known);
        }
        let is_repository = folder.join(".git").exists();
        let rules = Arc::new(FolderRules { rules: rules_of(folder), is_repository });
        Arc::clone(lock(&self.by_folder).entry(folder.to_owned()).or_insert(rules))
    }

    /// Whether a path is ignored. The rules of the nearest folder win.
    pub(super) fn leave_out(&self, path: &Path, is_folder: bool) -> bool {
        for folder in path.ancestors().skip(1) {
            let own = self.of_folder(folder);
            let matched = own.rules.matched(path, is_folder);
            if own.is_repository || !matched.is_none() {
                return matched.is_ignore();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use serde_json::{Value, json};

    use super::*;

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("has one")).expect("is made");
        fs::write(path, text).expect("is written");
    }

    /// A folder, `in` below it, and the bounds of that.
    fn tree() -> (tempfile::TempDir, PathBuf, FolderBounds) {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("in");
        for (name, text) in [
            ("a.rs", "fn one() {}\nfn two() {}\n// three\n"),
            ("b.txt", "One\r\n"),
            ("sub/c.rs", "fn one() {}\n"),
            (".gitignore", "ignored\n"),
            ("ignored", "fn one"),
            (".hidden.rs", "fn one"),
            ("binary", "fn one\0"),
        ] {
            put(&inside.join(name), text);
        }
        put(&folder.path().join("out.rs"), "fn one");
        symlink(folder.path().join("out.rs"), inside.join("leak.rs")).expect("is linked");
        symlink(folder.path(), inside.join("up")).expect("is linked");
        let bounds = FolderBounds::new(Some(&inside), &[], &[]).expect("bounds");
        (folder, inside, bounds)
    }

    fn grepped(bounds: &FolderBounds, input: Value) -> Value {
        let input = serde_json::from_value(input).expect("arguments");
        let found = grep(bounds, &input, CancellationToken::new());
        match found {
            Ok(found) => serde_json::to_value(found).expect("JSON"),
            Err(error) => json!(error.field),
        }
    }

    #[test]
    fn matches_by_table() {
        let (_folder, _, bounds) = tree();
        let first = |path: &str| json!({ "path": path, "line": 1, "text": "fn one() {}" });
        for (input, expected) in [
            (json!({ "pattern": "fn one" }), json!([first("a.rs"), first("sub/c.rs")])),
            (json!({ "pattern": "fn one", "path": "sub" }), json!([first("sub/c.rs")])),
            (json!({ "pattern": "fn one", "path": "a.rs" }), json!([first("a.rs")])),
            (json!({ "pattern": "fn one", "glob": "a*" }), json!([first("a.rs")])),
            (json!({ "pattern": "^one$", "case_insensitive": true, "type": "txt" }), json!([])),
            (
                json!({ "pattern": "^one", "case_insensitive": true, "type": "txt" }),
                json!([{ "path": "b.txt", "line": 1, "text": "One" }]),
            ),
            (
                json!({ "pattern": "two", "context": 1 }),
                json!([{ "path": "a.rs", "line": 2, "text": "fn two() {}", "before": ["fn one() {}"], "after": ["// three"] }]),
            ),
        ] {
            let found = grepped(&bounds, input.clone());
            assert_eq!(found["matches"], expected, "{input}");
            assert_eq!(found["truncated"], Value::Null);
        }
        let found = grepped(&bounds, json!({ "pattern": "fn", "max_matches": 2 }));
        assert_eq!((&found["count"], &found["truncated"]), (&json!(2), &json!(true)));
        let found = grepped(&bounds, json!({ "pattern": "fn", "path": "a.rs", "context": 1 }));
        assert_eq!(found["matches"][0]["after"], json!(["fn two() {}"]));
        assert_eq!(found["matches"][1]["before"], json!(["fn one() {}"]));
        for (input, field) in [
            (json!({ "pattern": "(" }), "pattern"),
            (json!({ "pattern": "a", "type": "nonsense" }), "type"),
            (json!({ "pattern": "a", "glob": "[" }), "glob"),
            (json!({ "pattern": "a", "path": ".." }), "path"),
            (json!({ "pattern": "a", "path": "leak.rs" }), "path"),
        ] {
            assert_eq!(grepped(&bounds, input.clone()), json!(field), "{input}");
        }
    }

    fn try_glob(bounds: &FolderBounds, input: Value) -> Result<GlobResult, ToolError> {
        let input = serde_json::from_value(input).expect("arguments");
        glob(bounds, &input, CancellationToken::new())
    }

    fn globbed(bounds: &FolderBounds, input: Value) -> Vec<String> {
        try_glob(bounds, input).expect("is found").paths
    }

    #[test]
    fn ignore_files_by_table() {
        let (folder, inside, bounds) = tree();
        let write = |name: &str, text: &str| put(&inside.join(name), text);
        // Rules from above the repository do not apply.
        put(&folder.path().join(".gitignore"), "*.rs\n");
        write(".git/HEAD", "ref: refs/heads/main\n");
        for name in ["sub/ignored", "sub/build/x", "sub/keep.log", "sub/drop.log", "sub/deep/one"] {
            write(name, "fn one");
        }
        write("sub/.gitignore", "# no rule\n*.log\n!keep.log\nbuild/\n/deep\n!ignored\n");
        let paths = globbed(&bounds, json!({ "pattern": "**" }));
        let expected =
            ["a.rs", "b.txt", "binary", "leak.rs", "sub/c.rs", "sub/ignored", "sub/keep.log", "up"];
        assert_eq!(paths, expected);
        let paths = globbed(&bounds, json!({ "pattern": "**", "path": "sub" }));
        assert_eq!(paths, ["sub/c.rs", "sub/ignored", "sub/keep.log"]);
        let found = grepped(&bounds, json!({ "pattern": "fn one", "path": "sub/drop.log" }));
        assert_eq!(found["count"], 1, "what is named is searched");
    }

    #[test]
    fn file_with_a_hard_link_outside_is_not_searched() {
        let (folder, inside, bounds) = tree();
        put(&folder.path().join("token"), "fn one");
        fs::hard_link(folder.path().join("token"), inside.join("x.rs")).expect("is linked");
        fs::hard_link(inside.join("a.rs"), inside.join("again.rs")).expect("is linked");
        let found = grepped(&bounds, json!({ "pattern": "fn one" }));
        let text = found.to_string();
        assert!(!text.contains("x.rs") && text.contains("again.rs"), "{text}");
    }

    #[test]
    fn irregular_ignore_file_has_no_rules_and_does_not_block() {
        let (_folder, inside, bounds) = tree();
        let pipe = |path: &Path| {
            rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).expect("is made");
        };
        let endless = |path: &Path| symlink("/dev/zero", path).expect("is linked");
        let sparse = |path: &Path| {
            File::create(path).and_then(|file| file.set_len(8 << 30)).expect("is made");
        };
        let kinds: [&dyn Fn(&Path); 3] = [&pipe, &endless, &sparse];
        for make in kinds {
            for name in [".gitignore", "sub/.gitignore"] {
                let path = inside.join(name);
                fs::create_dir_all(path.parent().expect("has one")).expect("is made");
                fs::remove_file(&path).ok();
                make(&path);
            }
            let paths = globbed(&bounds, json!({ "pattern": "**/*.rs" }));
            assert_eq!(paths, ["a.rs", "leak.rs", "sub/c.rs"]);
            assert_eq!(grepped(&bounds, json!({ "pattern": "fn one" }))["count"], 3);
        }
    }

    #[test]
    fn search_of_a_gone_caller_ends_within_a_file() {
        let (_folder, _, bounds) = tree();
        let file = File::open("/dev/zero").expect("is there");
        let gone = CancellationToken::new();
        gone.cancel();
        let end = SearchEnd::new(gone.clone());
        let mut endless = SearchedFile { file: &file, end: &end };
        assert_eq!(io::copy(&mut endless, &mut io::sink()).expect("is read"), 0);
        let input = serde_json::from_value(json!({ "pattern": "**" })).expect("arguments");
        let found = glob(&bounds, &input, gone).expect("is found");
        assert!(found.truncated && found.paths.is_empty());
    }

    #[test]
    fn closed_folder_is_not_searched() {
        let (_folder, inside, _) = tree();
        let closed = [inside.join("sub"), inside.join("a.rs")];
        let bounds = FolderBounds::new(Some(&inside), &[], &closed).expect("bounds");
        assert_eq!(grepped(&bounds, json!({ "pattern": "fn one" }))["matches"], json!([]));
        for pattern in ["sub/*", "**/c.rs", "a*"] {
            let found = globbed(&bounds, json!({ "pattern": pattern, "include_hidden": true }));
            assert_eq!(found, [""; 0], "{pattern}");
        }
    }

    #[test]
    fn globs_by_table() {
        let (_folder, inside, bounds) = tree();
        for (input, expected, truncated) in [
            (json!({ "pattern": "*.rs" }), &["a.rs", "leak.rs"][..], false),
            (json!({ "pattern": "**/*.rs" }), &["a.rs", "leak.rs", "sub/c.rs"], false),
            (json!({ "pattern": "**/c.*", "path": "sub" }), &["sub/c.rs"], false),
            (json!({ "pattern": "ignored" }), &[], false),
            (json!({ "pattern": "ignored", "respect_gitignore": false }), &["ignored"], false),
            (
                json!({ "pattern": "*.rs", "include_hidden": true }),
                &[".hidden.rs", "a.rs", "leak.rs"],
                false,
            ),
            (json!({ "pattern": "**", "limit": 1 }), &["a.rs"], true),
        ] {
            let found = try_glob(&bounds, input.clone()).expect("is found");
            assert_eq!(found.paths, expected, "{input}");
            assert_eq!(found.truncated, truncated, "{input}");
        }
        put(&inside.join(".git/config"), "fn one");
        let everything =
            json!({ "pattern": "**", "include_hidden": true, "respect_gitignore": false });
        let paths = globbed(&bounds, everything);
        assert!(paths.iter().all(|path| !path.starts_with(".git/")), "{paths:?}");
        let named = globbed(&bounds, json!({ "pattern": "*", "path": ".git" }));
        assert_eq!(named, [".git/config"]);
        for pattern in ["../*", "/etc/*", "[", "a/../../*"] {
            assert!(try_glob(&bounds, json!({ "pattern": pattern })).is_err(), "{pattern}");
        }
    }
}
