//! Numbers and words in a line.

use std::path::Path;

/// The number before one of `words`: 3 for `failed` in `3 failed, 42 passed`.
pub(super) fn before(line: &str, words: &[&str]) -> Option<u64> {
    let mut number = None;
    for word in tokens(line) {
        if let (Some(number), true) = (number, words.contains(&word)) {
            return Some(number);
        }
        number = word.parse().ok();
    }
    None
}

/// The number after `label`: 3 for `Failures:` in `Tests run: 5, Failures: 3`.
pub(super) fn after(line: &str, label: &str) -> Option<u64> {
    let rest = line.split_once(label)?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Letters and digits that stand together.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.')
        .filter(|word| !word.is_empty())
}

/// Whether it is nothing but `N WORD`, with at most a time in parentheses behind it.
pub(super) fn is_count(line: &str, word: &str) -> Option<u64> {
    let line = line.trim();
    let (number, rest) = line.split_once(' ')?;
    let number = number.parse().ok()?;
    let rest = rest.strip_prefix(word)?.trim_start();
    (rest.is_empty() || (rest.starts_with('(') && rest.ends_with(')'))).then_some(number)
}

/// Whether it is a line of a shell or a tool that could not begin.
pub(super) fn did_not_start(line: &str) -> bool {
    const SAID: &[&str] = &[
        "command not found",
        "No module named pytest",
        "No module named tox",
        "No module named nox",
        "Missing script:",
        "missing script:",
        "No rule to make target",
        "could not find `Cargo.toml`",
        "error: no such command",
        "error: unexpected argument",
        "error: unrecognized subcommand",
        "error: no test target named",
        "error: no bin target named",
        "error: package ID specification",
        "go.mod file not found",
        "could not determine executable to run",
        "does not contain recipe",
        "No justfile found",
        "is not recognized as",
        "Permission denied",
        "No configuration file found",
        "Nothing to be done for",
        "couldn't find an `eslint.config",
    ];
    SAID.iter().any(|said| line.contains(said))
        || (line.contains("No such file or directory")
            && (line.contains(": cd: ") || line.starts_with("cd: ")))
        || line.contains(": not found") && line.contains("sh: ")
}

/// A line of a compiler: `path:3:5: error: …` and the like. What `marks` stands between location and message.
pub(super) fn is_problem(line: &str, mark: &str) -> bool {
    line.find(mark).is_some_and(|at| {
        let location = &line[..at];
        location.contains(['.', '/'])
            && (location.ends_with(')') || location.ends_with(|c: char| c.is_ascii_digit()))
    })
}

/// Whether a path ends in `.extension`.
pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Whether it is an error as `MSBuild` says it: `Cart.cs(5,20): error CS1002: …`. Those of `tsc` look the same.
pub(super) fn is_of_msbuild(line: &str) -> bool {
    line.split_once("): error ").and_then(|(_, rest)| rest.split_once(':')).is_some_and(
        |(code, _)| {
            code.starts_with(|c: char| c.is_ascii_uppercase())
                && code.ends_with(|c: char| c.is_ascii_digit())
                && code.chars().all(|c| c.is_ascii_alphanumeric())
                && !code.starts_with("TS")
        },
    )
}
