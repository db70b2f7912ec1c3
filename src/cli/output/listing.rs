//! A page of a list: a table for people, JSON for programs.

use serde_json::Value;

use super::column::Column;
use super::screen::Screen;
use super::table::table;
use super::write::{items, json, note, plain};
use crate::cli::context::Context;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Listing {
    /// Member of the page that has the items.
    pub(crate) items: &'static str,
    /// The columns, from the left.
    pub(crate) columns: &'static [Column],
    /// The text for an empty list: there are no items, and what to do next.
    pub(crate) empty: &'static str,
    /// The flag that takes the page's `next_cursor`, if the list has pages.
    pub(crate) next: Option<&'static str>,
}

impl Listing {
    /// Prints the page: unchanged with `--json`, else as a table, with the command for the next
    /// page on standard error.
    pub(crate) fn print(&self, context: &Context, page: &Value) -> anyhow::Result<()> {
        if context.json {
            return json(page);
        }
        self.print_table(&context.screen, page)?;
        let cursor = page.get("next_cursor").filter(|cursor| !cursor.is_null());
        if let (Some(flag), Some(cursor)) = (self.next, cursor) {
            let arguments = std::env::args_os().skip(1);
            let arguments = arguments.map(|word| word.to_string_lossy().into_owned());
            note(&format!("next page: {}", command_with(arguments, flag, &plain(cursor))));
        }
        Ok(())
    }

    pub(crate) fn print_table(&self, screen: &Screen, page: &Value) -> anyhow::Result<()> {
        let items = items(page, self.items);
        let is_there = |column: &&Column| {
            !column.is_rare || items.iter().any(|item| column.value(item).is_some())
        };
        let columns: Vec<Column> = self.columns.iter().filter(is_there).copied().collect();
        let rows: Vec<Vec<Option<String>>> = items
            .iter()
            .map(|item| columns.iter().map(|column| column.value(item)).collect())
            .collect();
        table(screen, &columns, &rows, self.empty)
    }
}

/// The command line with another value of a flag, quoted for a shell.
fn command_with(arguments: impl Iterator<Item = String>, flag: &str, value: &str) -> String {
    let mut words = vec!["svc".to_owned()];
    let mut skips = false;
    for argument in arguments {
        let is_flag = argument == flag;
        let has_value = argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
        if !skips && !is_flag && !has_value {
            words.push(quoted(&argument));
        }
        skips = is_flag;
    }
    words.extend([flag.to_owned(), quoted(value)]);
    words.join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%~".contains(c);
    if !word.is_empty() && word.chars().all(is_safe) && !word.starts_with('~') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_is_a_complete_command() {
        let next = |arguments: &[&str]| {
            command_with(arguments.iter().map(|word| (*word).to_owned()), "--cursor", "b")
        };
        assert_eq!(next(&["task", "list"]), "svc task list --cursor b");
        assert_eq!(
            next(&["task", "list", "--cursor", "a", "--agent", "it's me"]),
            r"svc task list --agent 'it'\''s me' --cursor b"
        );
        assert_eq!(
            next(&["task", "list", "--cursor=a", "--from", ""]),
            "svc task list --from '' --cursor b"
        );
        assert_eq!(
            next(&["task", "list", "--agent", "~/a"]),
            "svc task list --agent '~/a' --cursor b"
        );
    }
}
