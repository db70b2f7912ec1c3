//! Names and descriptions that every client takes.

use sha2::{Digest as _, Sha256};

use super::SourceProblem;
use crate::quote::is_invisible;

/// Longest name of a server.
const SOURCE_NAME: usize = 32;
/// Longest name of a tool, less the prefix that clients put before it (`mcp__svc__`).
const TOOL_NAME: usize = 64 - 10;
/// Longest description of a tool, in bytes.
const DESCRIPTION: usize = 2048;

fn normal(text: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    text.chars().map(|c| if keep(c) { c } else { '_' }).collect()
}

/// The name of a server in the form that tools' names have.
pub fn source_name(text: &str) -> Result<String, SourceProblem> {
    let name = normal(text);
    let problem = if name.is_empty() {
        "the name is empty"
    } else if name.len() > SOURCE_NAME {
        "the name is longer than 32 characters"
    } else if name.contains("__") {
        "the name has `__`, which parts a server's name from its tool's"
    } else {
        return Ok(name);
    };
    Err(SourceProblem::new("", problem))
}

/// The name of a tool as clients see it. `is_taken` says that another has the plain one.
pub fn child_tool_name(source: &str, tool: &str, is_taken: &dyn Fn(&str) -> bool) -> String {
    let whole = format!("{source}__{tool}");
    let plain = normal(&whole.replace(is_invisible, ""));
    if plain.len() <= TOOL_NAME && !is_taken(&plain) {
        return plain;
    }
    let hash = hex::encode(&Sha256::digest(&whole)[..4]);
    let head: String = plain.chars().take(TOOL_NAME - 9).collect();
    format!("{head}_{hash}")
}

/// A description that is not too long, cut at a word.
pub fn cut_description(text: &str) -> Option<String> {
    if text.len() <= DESCRIPTION {
        return None;
    }
    let mut end = DESCRIPTION - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let head = &text[..end];
    let cut = head.rfind(char::is_whitespace).filter(|at| *at > end / 2).unwrap_or(end);
    Some(format!("{}…", head[..cut].trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers() {
        for (text, expected) in [
            ("github", Some("github")),
            ("a.b c", Some("a_b_c")),
            ("", None),
            ("a__b", None),
            ("é__", None),
            (&"x".repeat(32), Some(&*"x".repeat(32))),
            (&"x".repeat(33), None),
        ] {
            assert_eq!(source_name(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn names_of_tools_fit_and_are_stable() {
        let free = |_: &str| false;
        assert_eq!(child_tool_name("fs", "read_file", &free), "fs__read_file");
        assert_eq!(child_tool_name("fs", "a.b/c", &free), "fs__a_b_c");
        let fits = "x".repeat(50);
        assert_eq!(child_tool_name("fs", &fits, &free).len(), 54);
        let long = "x".repeat(51);
        let name = child_tool_name("fs", &long, &free);
        let hash = hex::encode(&Sha256::digest(format!("fs__{long}"))[..4]);
        assert_eq!(name.len(), 54);
        assert!(name.ends_with(&format!("_{hash}")), "{name}");
        let other = child_tool_name("fs", "a_b", &|name| name == "fs__a_b");
        assert!(other.starts_with("fs__a_b_") && other.len() == 16, "{other}");
    }

    #[test]
    fn descriptions_are_cut_at_a_word() {
        assert_eq!(cut_description("short"), None);
        let cut = cut_description(&"word ".repeat(600)).expect("is long");
        assert!(cut.len() <= 2048 && cut.ends_with("word…"), "{}", cut.len());
        let cut = cut_description(&"é".repeat(2000)).expect("is long");
        assert!(cut.len() <= 2048 && cut.ends_with('…'));
    }
}
