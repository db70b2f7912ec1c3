//! The house rules that no compiler checks: which floor may know which, and where SQL may stand.

use std::fs;
use std::path::{Path, PathBuf};

/// Each floor with those above it or beside it, which it must not name.
const FLOORS: [(&str, &[&str]); 11] = [
    (
        "domain",
        &[
            "store",
            "service",
            "tools",
            "web",
            "http",
            "mcp",
            "cli",
            "client",
            "config",
            "runner",
            "daemon",
            "telemetry",
        ],
    ),
    ("store", &["service", "tools", "web", "http", "mcp", "cli", "client", "runner", "daemon"]),
    ("service", &["tools", "web", "http", "mcp", "cli", "client", "runner", "daemon"]),
    ("tools", &["web", "http", "mcp", "cli", "client", "runner", "daemon"]),
    ("web", &["store", "tools", "http", "mcp", "cli", "client", "runner", "daemon"]),
    ("http", &["mcp", "cli", "client", "runner", "daemon"]),
    ("mcp", &["http", "cli", "client", "runner", "daemon"]),
    ("runner", &["store", "service", "tools", "web", "http", "mcp", "cli", "daemon"]),
    ("daemon", &["cli", "runner"]),
    ("client", &["store", "service", "tools", "web", "http", "mcp", "cli", "runner", "daemon"]),
    (
        "config",
        &["store", "service", "tools", "web", "http", "mcp", "cli", "client", "runner", "daemon"],
    ),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every line of code with where it stands, without comments.
fn code() -> Vec<(String, usize, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut lines = Vec::new();
    for path in sources(&src) {
        let text = fs::read_to_string(&path).expect("a source file");
        let name = path.strip_prefix(&src).expect("below src").display().to_string();
        for (n, line) in text.lines().enumerate() {
            if !line.trim_start().starts_with("//") {
                lines.push((name.clone(), n + 1, line.to_owned()));
            }
        }
    }
    assert!(!lines.is_empty(), "there is something to look at");
    lines
}

fn floor(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or_default()
}

/// The modules of this crate that a file names, with where: `crate::x::…`, and the first names of `use crate::{…}`.
fn named() -> Vec<(String, usize, String)> {
    let mut names = Vec::new();
    let (mut depth, mut group) = (0_usize, String::new());
    for (file, n, line) in code() {
        for rest in line.split("crate::").skip(1) {
            if let Some(list) = rest.strip_prefix('{') {
                (depth, group) = (1, file.clone());
                take_names(list, &mut depth, |name| names.push((file.clone(), n, name)));
            } else {
                names.push((file.clone(), n, identifier(rest)));
            }
        }
        if depth > 0 && group == file && !line.contains("crate::{") {
            take_names(&line, &mut depth, |name| {
                names.push((file.clone(), n, name));
            });
        }
    }
    names
}

/// The names at the outer level of a list in braces, as far as this line goes.
fn take_names(list: &str, depth: &mut usize, mut found: impl FnMut(String)) {
    let mut at_start = true;
    for (place, character) in list.char_indices() {
        match character {
            '{' => *depth += 1,
            '}' => *depth -= 1,
            ',' => at_start = true,
            _ if at_start && *depth == 1 && (character.is_alphabetic() || character == '_') => {
                found(identifier(&list[place..]));
                at_start = false;
            }
            _ => {}
        }
        if *depth == 0 {
            return;
        }
    }
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn no_floor_knows_one_above_it() {
    let names = named();
    assert!(
        names.iter().any(|(file, _, name)| file == "service/events.rs" && name == "store"),
        "grouped imports are seen"
    );
    let mut arrows = Vec::new();
    for (file, n, name) in names {
        let above = FLOORS.iter().find(|(floor_name, _)| *floor_name == floor(&file));
        if above.is_some_and(|(_, above)| above.contains(&name.as_str())) {
            arrows.push(format!("src/{file}:{n} names {name}"));
        }
    }
    assert!(arrows.is_empty(), "these point up:\n{}", arrows.join("\n"));
}

#[test]
fn sql_stands_in_the_engine_alone() {
    let mut strays = Vec::new();
    for (file, n, line) in code() {
        // The load generator measures bare SQLite beside us, which is what it is for.
        let own = file.starts_with("store/sqlite/") || file.contains("bench");
        if !own && (line.contains("sqlx::") || line.contains("rusqlite::")) {
            strays.push(format!("src/{file}:{n}: {}", line.trim()));
        }
    }
    assert!(strays.is_empty(), "SQL outside src/store/sqlite:\n{}", strays.join("\n"));
}

#[test]
fn exceptions_from_lints_are_expected_and_not_allowed() {
    let (allow, inner) = (["#", "[allow("].concat(), ["#!", "[allow("].concat());
    let mut strays = Vec::new();
    for (file, n, line) in code() {
        if line.contains(&allow) || line.contains(&inner) {
            strays.push(format!("src/{file}:{n}: {}", line.trim()));
        }
    }
    assert!(strays.is_empty(), "use `expect` with a reason:\n{}", strays.join("\n"));
}
