//! The columns of a table.

use serde_json::Value;
use svc_model::Timestamp;

use super::screen::{Screen, Style, relative, state_style};
use super::write::plain;
use crate::cli::terminal;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(super) header: &'static str,
    /// Name of the member in an item, or a JSON pointer if it begins with `/`.
    pub(super) field: &'static str,
    pub(super) kind: ColumnKind,
    /// 0: always shown. If the screen is too narrow, the columns with the highest rank are hidden
    /// first.
    pub(super) rank: u8,
    /// Least width of a truncated cell, in columns of the screen.
    pub(super) least: u16,
    /// The column is hidden if all rows have this value.
    pub(super) usual: Option<&'static str>,
    /// The column exists only if a row has a value, on a screen and for programs.
    pub(super) is_rare: bool,
    /// The column is hidden if the rows do not fit although all else that can be is cut or hidden.
    pub(super) is_spare: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Text,
    /// Text that a person types again, such as a name: truncated after all others.
    Name,
    /// An id; on a screen shortened to what keeps the ids distinct.
    Id,
    State,
    /// A time in RFC 3339; on a screen relative to now.
    Time,
    /// A folder; on a screen with `~`, and only its end if it is long.
    Path,
    Number,
}

/// Digits of an id after its prefix on a screen. The first ten are its time in milliseconds.
const ID_DIGITS: usize = 12;
/// Longest path on a screen, in characters.
const PATH: usize = 32;
/// Least width of a truncated cell, unless the column has its own.
pub(super) const LEAST: u16 = 12;
/// Width that a name gets before columns with a rank are shown.
const NAME: u16 = 40;

impl Column {
    pub(crate) const fn text(header: &'static str, field: &'static str) -> Self {
        let kind = ColumnKind::Text;
        Self {
            header,
            field,
            kind,
            rank: 0,
            least: LEAST,
            usual: None,
            is_rare: false,
            is_spare: false,
        }
    }

    pub(crate) const fn name(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Name, ..Self::text(header, field) }
    }

    pub(crate) const fn id(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Id, ..Self::text(header, field) }
    }

    pub(crate) const fn state(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::State, ..Self::text(header, field) }
    }

    pub(crate) const fn time(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Time, ..Self::text(header, field) }
    }

    pub(crate) const fn path(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Path, ..Self::text(header, field) }
    }

    pub(crate) const fn number(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Number, ..Self::text(header, field) }
    }

    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    pub(crate) const fn least(self, least: u16) -> Self {
        Self { least, ..self }
    }

    pub(crate) const fn usual(self, usual: &'static str) -> Self {
        Self { usual: Some(usual), ..self }
    }

    pub(crate) const fn rare(self) -> Self {
        Self { is_rare: true, ..self }
    }

    pub(crate) const fn spare(self) -> Self {
        Self { is_spare: true, ..self }
    }

    pub(super) fn value(self, item: &Value) -> Option<String> {
        let value = if self.field.starts_with('/') {
            item.pointer(self.field)
        } else {
            item.get(self.field)
        };
        value.filter(|value| !value.is_null()).map(plain)
    }

    pub(super) const fn is_flexible(self) -> bool {
        matches!(self.kind, ColumnKind::Text | ColumnKind::Path | ColumnKind::Name)
    }

    /// The part of `width` that the column gets before columns with a rank are shown.
    pub(super) fn needed(self, width: u16) -> u16 {
        match self.kind {
            ColumnKind::Name => width.min(if self.least > NAME { self.least } else { NAME }),
            ColumnKind::Text | ColumnKind::Path => width.min(self.least),
            _ => width,
        }
    }

    /// The part of `width` below which the column is not cut while another may be hidden.
    pub(super) fn narrowest(self, width: u16) -> u16 {
        if self.is_flexible() { width.min(LEAST) } else { width }
    }

    /// The value as it is printed: sanitised and on one line.
    pub(super) fn shown(
        self,
        value: &str,
        ids: usize,
        screen: &Screen,
        home: Option<&str>,
    ) -> String {
        if !screen.is_for_people() {
            return terminal::cell(value).into_owned();
        }
        match self.kind {
            ColumnKind::Id if !screen.full => terminal::cell(&short_id(value, ids)).into_owned(),
            ColumnKind::Time if !screen.utc => Timestamp::parse(value)
                .map_or_else(|| terminal::cell(value).into_owned(), |at| relative(at, screen.now)),
            ColumnKind::Path if !screen.full => short_path(&terminal::cell(value), home),
            _ => terminal::cell(value).into_owned(),
        }
    }

    pub(super) fn style(self, value: &str) -> Style {
        match self.kind {
            ColumnKind::State => state_style(value),
            ColumnKind::Time | ColumnKind::Path | ColumnKind::Id => Style::Dim,
            ColumnKind::Text | ColumnKind::Name | ColumnKind::Number => Style::Plain,
        }
    }
}

/// The number of digits after the prefix that keeps these ids distinct; at least [`ID_DIGITS`].
pub(super) fn id_digits<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    let mut ids: Vec<&str> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    let common = |pair: &[&str]| {
        let same = pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
        same.saturating_sub(prefix(pair[0])) + 1
    };
    ids.windows(2).map(common).max().unwrap_or(0).max(ID_DIGITS)
}

/// Length of `peer_` in `peer_01k…`, if this program makes such ids.
fn prefix(id: &str) -> usize {
    let is_ours = |(_, digits): &(&str, &str)| {
        digits.len() == 26 && digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    id.rsplit_once('_').filter(is_ours).map_or(0, |(name, _)| name.len() + 1)
}

/// Shortens an id that this program makes; other ids stay unchanged.
fn short_id(id: &str, digits: usize) -> String {
    match prefix(id) {
        0 => id.to_owned(),
        length => id.chars().take(length + digits).collect(),
    }
}

pub(crate) fn short(screen: &Screen, id: &str) -> String {
    let id = terminal::cell(id);
    if screen.fit_width().is_some() { short_id(&id, ID_DIGITS) } else { id.into_owned() }
}

fn short_path(path: &str, home: Option<&str>) -> String {
    let below_home = home
        .and_then(|home| path.strip_prefix(home))
        .filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let path = below_home.map_or_else(|| path.to_owned(), |rest| format!("~{rest}"));
    let length = path.chars().count();
    if length <= PATH {
        return path;
    }
    let end: String = path.chars().skip(length + 1 - PATH).collect();
    // Keeps whole names of folders, unless the last one alone is too long.
    let end = end.find('/').map_or(end.as_str(), |slash| &end[slash..]);
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shortened_but_distinct() {
        let one = "peer_01kbpx6v5z7t2a4b6c8d9e0f1g";
        let other = "peer_01kbpx6v5z7t2x4b6c8d9e0f1g";
        assert_eq!(id_digits([one].into_iter()), 12);
        assert_eq!(short_id(one, 12), "peer_01kbpx6v5z7t");
        let digits = id_digits([one, other, one].into_iter());
        assert_eq!(short_id(one, digits), "peer_01kbpx6v5z7t2a");
        assert_eq!(short_id("peer_of_another", digits), "peer_of_another");
        assert_eq!(short_id("5f0c2d1e-9a6b-4a6b-8f4e-0c2d1e9a6b4a", 12).len(), 36);
    }

    #[test]
    fn long_path_keeps_its_end() {
        let home = Some("/home/ann");
        assert_eq!(short_path("/home/ann/src/svc", home), "~/src/svc");
        assert_eq!(short_path("/home/ann", home), "~");
        assert_eq!(short_path("/home/anna/src", home), "/home/anna/src");
        assert_eq!(
            short_path("/home/ann/a/very/long/way/down/to/the/project", home),
            "…/long/way/down/to/the/project"
        );
        let name = "x".repeat(40);
        assert_eq!(short_path(&name, None), format!("…{}", "x".repeat(31)));
    }
}
