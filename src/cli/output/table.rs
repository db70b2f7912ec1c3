//! Tables that fit the screen, one line a row, and pages of lists as such tables or as JSON.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use svc_install::client::quoted;

use super::column::{Column, ColumnKind, LEAST, id_digits};
use super::screen::Screen;
use super::screen::Style;
use super::write::{cut, items, json, line, note, plain, styled, width};
use crate::cli::context::Context;
use crate::cli::exit::ExitResult;

const GAP: u16 = 2;
/// Least width of a cell on a screen that is too narrow for the table.
const TINY: u16 = 4;

/// Prints a table, or `empty` if it has no rows. A missing value is `None`.
fn table(
    screen: &Screen,
    columns: &[Column],
    rows: &[Vec<Option<String>>],
    empty: &str,
) -> Result<()> {
    if rows.is_empty() {
        return line(empty);
    }
    let home = std::env::var("HOME").ok();
    styled(&layout(screen, columns, rows, home.as_deref()))
}

pub(super) fn layout(
    screen: &Screen,
    columns: &[Column],
    rows: &[Vec<Option<String>>],
    home: Option<&str>,
) -> String {
    let digits: Vec<usize> = (0..columns.len())
        .map(|index| id_digits(rows.iter().filter_map(|row| row[index].as_deref())))
        .collect();
    let head = columns.iter().map(|column| (column.header.to_owned(), Style::Bold)).collect();
    let mut lines: Vec<Vec<(String, Style)>> = vec![head];
    for values in rows {
        let cells = columns.iter().zip(values).zip(&digits);
        let cells = cells.map(|((column, value), digits)| match value {
            Some(value) => (column.shown(value, *digits, screen, home), column.style(value)),
            None => ("-".to_owned(), Style::Plain),
        });
        lines.push(cells.collect());
    }
    let widest = |index: usize| lines.iter().map(|line| width(&line[index].0)).max().unwrap_or(0);
    let widths: Vec<u16> =
        (0..columns.len()).map(|index| u16::try_from(widest(index)).unwrap_or(u16::MAX)).collect();
    let says_nothing = |index: usize| {
        let usual = columns[index].usual;
        rows.iter().all(|row| row[index].is_none() || row[index].as_deref() == usual)
    };
    let fitted = fitted(screen, columns, &widths, says_nothing);
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (((cell, style), column), room) in line.into_iter().zip(columns).zip(&fitted) {
            let Some(room) = room.map(usize::from) else { continue };
            let cell = cut(cell, room);
            let blank = " ".repeat(room.saturating_sub(width(&cell)));
            let cell = if screen.color { style.paint(&cell) } else { cell };
            let is_right = column.kind == ColumnKind::Number;
            let parts = if is_right { [blank, cell] } else { [cell, blank] };
            text.extend(parts);
            text.push_str(&" ".repeat(usize::from(GAP)));
        }
        out.extend([text.trim_end_matches(' '), "\n"]);
    }
    out
}

/// The width of each column; `None` if it is hidden. A program gets all columns at their natural
/// widths. A screen hides columns with no value or only the usual one; if it is too narrow, also
/// those with the highest rank, and at last those that can be spared. Then the widest column is
/// truncated first, names after all others.
fn fitted(
    screen: &Screen,
    columns: &[Column],
    widths: &[u16],
    says_nothing: impl Fn(usize) -> bool,
) -> Vec<Option<u16>> {
    let mut fitted: Vec<Option<u16>> = widths.iter().copied().map(Some).collect();
    let Some(width) = screen.fit_width() else { return fitted };
    let is_too_wide = |of_shown: &mut dyn Iterator<Item = u16>| {
        let all: usize = of_shown.map(|width| usize::from(width.saturating_add(GAP))).sum();
        all > usize::from(width + GAP)
    };
    let mut shown: Vec<usize> = (0..columns.len())
        .filter(|index| columns[*index].rank == 0 || !says_nothing(*index))
        .collect();
    while is_too_wide(&mut shown.iter().map(|index| columns[*index].needed(widths[*index]))) {
        let narrowest = &mut shown.iter().map(|index| columns[*index].narrowest(widths[*index]));
        let ranked = shown.iter().rev().max_by_key(|index| columns[**index].rank);
        let spare = shown.iter().find(|index| columns[**index].is_spare);
        let next = ranked
            .filter(|index| columns[**index].rank > 0)
            .or_else(|| spare.filter(|_| is_too_wide(narrowest)));
        let Some(&next) = next else { break };
        shown.retain(|index| *index != next);
    }
    (0..columns.len())
        .filter(|index| !shown.contains(index))
        .for_each(|index| fitted[index] = None);
    // A name shrinks below its own least width only if all other columns are truncated, and any
    // column below the usual least width only if that is not enough.
    let passes =
        [(Some(false), None), (Some(true), None), (Some(true), Some(LEAST)), (None, Some(TINY))];
    for (names, floor) in passes {
        while is_too_wide(&mut fitted.iter().copied().flatten()) {
            let may_be_cut = |index: &&usize| {
                let column = columns[**index];
                column.is_flexible()
                    && names.is_none_or(|names| (column.kind == ColumnKind::Name) == names)
                    && fitted[**index] > Some(floor.unwrap_or(column.least))
            };
            let widest = shown.iter().filter(may_be_cut).max_by_key(|index| fitted[**index]);
            let Some(&widest) = widest else { break };
            fitted[widest] = fitted[widest].map(|width| width - 1);
        }
    }
    fitted
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Listing {
    pub(crate) items: &'static str,
    pub(crate) columns: &'static [Column],
    /// The text for an empty list: says that there are no items, and what to do next.
    pub(crate) empty: &'static str,
    /// The flag that takes the page's `next_cursor`, if the list has pages.
    pub(crate) next: Option<&'static str>,
}

/// The text for a list that its filters emptied.
const NONE_MATCHES: &str = "none matches; without its filters the list has all";
/// The text for a page without rows that is not the last: not all of its items are shown.
const NONE_ON_PAGE: &str = "none on this page";

impl Listing {
    /// The same list, of which an empty one says so if a member of `filter` is set.
    pub(crate) fn of_filter(self, filter: &impl Serialize) -> Self {
        let filter = serde_json::to_value(filter).unwrap_or_default();
        let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        let is_filtered = filter.as_object().is_some_and(|it| it.values().any(is_set));
        if is_filtered { Self { empty: NONE_MATCHES, ..self } } else { self }
    }

    /// Prints the page: unchanged with `--json`, else as a table, with the command for the next
    /// page on standard error.
    pub(crate) fn print(&self, context: &Context, page: &Value) -> ExitResult {
        if context.json {
            return json(page).map(|()| ExitCode::SUCCESS);
        }
        self.print_table(&context.screen, page)?;
        if let (Some(flag), Some(cursor)) = (self.next, next_cursor(page)) {
            let arguments = std::env::args_os().skip(1);
            let arguments = arguments.map(|word| word.to_string_lossy().into_owned());
            note(&format!("next page: {}", command_with(arguments, flag, &plain(cursor))));
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(crate) fn print_table(&self, screen: &Screen, page: &Value) -> Result<()> {
        let items = items(page, self.items);
        let is_there = |column: &&Column| {
            !column.is_rare || items.iter().any(|item| column.value(item).is_some())
        };
        let columns: Vec<Column> = self.columns.iter().filter(is_there).copied().collect();
        let rows: Vec<Vec<Option<String>>> = items
            .iter()
            .map(|item| columns.iter().map(|column| column.value(item)).collect())
            .collect();
        table(screen, &columns, &rows, self.text_without_rows(page))
    }

    pub(crate) fn text_without_rows(&self, page: &Value) -> &'static str {
        if next_cursor(page).is_some() { NONE_ON_PAGE } else { self.empty }
    }
}

fn next_cursor(page: &Value) -> Option<&Value> {
    page.get("next_cursor").filter(|cursor| !cursor.is_null())
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

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column::id("PEER", "peer_id"),
        Column::name("NAME", "display_name"),
        Column::state("STATUS", "status"),
        Column::text("CIRCLE", "circle").usual("default").rank(3),
        Column::path("PATH", "path").rank(2),
        Column::time("SEEN", "last_seen").rank(1),
    ];

    fn rows() -> Vec<Vec<Option<String>>> {
        let row = |cells: [&str; 6]| {
            cells.iter().map(|cell| (!cell.is_empty()).then(|| (*cell).to_owned())).collect()
        };
        vec![
            row([
                "peer_01kbpx6v5z7t2a4b6c8d9e0f1g",
                "claude@api 中文 the one who does everything",
                "online",
                "",
                "/home/ann/src/api",
                "2026-03-31T11:57:00Z",
            ]),
            row([
                "peer_01kbpx6v5z7t3a4b6c8d9e0f1g",
                "x\u{1b}[31m\u{202e}\ny",
                "offline",
                "",
                "",
                "2026-03-01T11:57:00.000Z",
            ]),
        ]
    }

    fn text(screen: &Screen) -> String {
        layout(screen, COLUMNS, &rows(), Some("/home/ann"))
    }

    #[test]
    fn a_program_gets_everything() {
        insta::assert_snapshot!(text(&Screen::for_tests(None)));
    }

    #[test]
    fn a_screen_of_100_columns() {
        insta::assert_snapshot!(text(&Screen::for_tests(Some(100))));
    }

    #[test]
    fn a_screen_of_60_columns() {
        insta::assert_snapshot!(text(&Screen::for_tests(Some(60))));
    }

    #[test]
    fn utc_flag_shows_exact_times() {
        let shown = text(&Screen { utc: true, ..Screen::for_tests(Some(120)) });
        assert!(shown.contains("2026-03-31T11:57:00Z") && !shown.contains("ago"), "{shown}");
    }

    #[test]
    fn names_are_truncated_last_and_usual_columns_hidden_first() {
        let row = |name: &str| -> Vec<Option<String>> {
            let id = "peer_01kbpx6v5z7t2a4b6c8d9e0f1g";
            let path = "/home/ann/src/a/project/with/a/long/path";
            [id, name, "online", "default", path, "2026-03-31T11:57:00Z"]
                .map(|cell| Some(cell.to_owned()))
                .into()
        };
        let name = "claude-code@project-of-30-char";
        let rows = [row(name), row("operator (you)")];
        for width in [60, 80, 100] {
            let shown = layout(&Screen::for_tests(Some(width)), COLUMNS, &rows, None);
            assert!(shown.contains(name) && shown.contains("operator (you)"), "{width}: {shown}");
            assert!(!shown.contains("CIRCLE") && !shown.contains("default"), "{width}: {shown}");
        }
        assert!(
            layout(&Screen::for_tests(None), COLUMNS, &rows, None).contains("default"),
            "a program"
        );
        let mut other = rows.to_vec();
        other[0][3] = Some("blue".to_owned());
        assert!(layout(&Screen::for_tests(Some(140)), COLUMNS, &other, None).contains("CIRCLE"));
        let short = [row("ann"), row("operator (you)")];
        let shown = layout(&Screen::for_tests(Some(60)), COLUMNS, &short, None);
        assert!(shown.contains("operator (you)"), "{shown}");
    }

    #[test]
    fn full_flag_shows_all_columns_and_whole_cells() {
        let shown = text(&Screen { full: true, ..Screen::for_tests(Some(40)) });
        let program = text(&Screen::for_tests(None));
        for whole in ["peer_01kbpx6v5z7t2a4b6c8d9e0f1g", "the one who does everything", "CIRCLE"] {
            assert!(shown.contains(whole) && program.contains(whole), "{whole}: {shown}");
        }
        assert!(shown.contains("3 min ago") && !shown.contains('…'), "{shown}");
    }

    #[test]
    fn messages_fit_any_screen_and_lose_their_ids_last() {
        const MESSAGES: &[Column] = &[
            Column::id("MESSAGE", "id").spare(),
            Column::time("TIME", "timestamp").rank(2),
            Column::name("FROM", "from"),
            Column::name("TO", "to"),
            Column::state("STATE", "state"),
            Column::text("TEXT", "text"),
        ];
        let id = "msg_01kbpx6v5z7t2a4b6c8d9e0f1g";
        let name = "claude-code@project-of-30-char";
        let row = [id, "2026-03-31T11:57:00Z", name, name, "undeliverable", "is main green again?"];
        let rows = [row.map(|cell| Some(cell.to_owned())).to_vec()];
        for width in 40..140 {
            let shown = layout(&Screen::for_tests(Some(width)), MESSAGES, &rows, None);
            let fits = |line: &str| line.chars().count() <= usize::from(width);
            assert!(shown.lines().all(fits) && shown.lines().count() == 2, "{width}: {shown}");
            assert!(shown.contains("undeliverable"), "{width}: {shown}");
        }
        for (width, has_id) in [(60, false), (80, true)] {
            let shown = layout(&Screen::for_tests(Some(width)), MESSAGES, &rows, None);
            assert_eq!(shown.contains("msg_01kbpx6v5z7t"), has_id, "{width}: {shown}");
        }
    }

    #[test]
    fn typed_key_stays_whole_before_optional_columns_are_shown() {
        const KEYS: &[Column] = &[
            Column::name("SESSION", "key").least(64),
            Column::state("STATE", "state"),
            Column::text("NAME", "label").rank(1),
            Column::path("FOLDER", "cwd").rank(4),
        ];
        let key = "agent:claude-code:5f0c2d1e-9a6b-4a6b-8f4e-b43996ebb001";
        let row = [key, "idle", "claude-code@web-and-more", "/srv/shop/web"];
        let rows = [row.map(|cell| Some(cell.to_owned())).to_vec()];
        for width in [62, 80, 100] {
            let shown = layout(&Screen::for_tests(Some(width)), KEYS, &rows, None);
            assert!(shown.contains(key), "{width}: {shown}");
        }
        let narrow = layout(&Screen::for_tests(Some(40)), KEYS, &rows, None);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    }

    #[test]
    fn each_row_is_one_line_within_the_screen_width() {
        for width in 20..140 {
            let shown = text(&Screen::for_tests(Some(width)));
            assert_eq!(shown.lines().count(), 3, "{width}: {shown}");
            // A Chinese character takes two columns.
            let columns = |line: &str| {
                line.chars().map(|c| if c > '\u{3000}' { 2 } else { 1 }).sum::<usize>()
            };
            // An id and a state are never truncated.
            let least = "peer_01kbpx6v5z7t3".len() + 2 + 12 + 2 + "offline".len();
            let most = usize::from(width).max(least);
            for line in shown.lines() {
                assert!(columns(line) <= most, "{width}: {line}");
            }
        }
    }

    #[test]
    fn colours_are_optional_and_never_from_data() {
        let shown = text(&Screen { color: true, ..Screen::for_tests(Some(100)) });
        assert!(shown.contains("online") && shown.contains("\u{1b}["), "{shown}");
        assert!(!shown.contains("\u{1b}[31m"), "the one of another: {shown}");
        let plain = text(&Screen::for_tests(Some(100)));
        assert!(!plain.contains('\u{1b}') && plain.contains("x␛[31m\\u{202e}␊y"), "{plain}");
    }

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
