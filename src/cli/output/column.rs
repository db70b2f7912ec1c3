//! What stands in a column of a table.

use serde_json::Value;
use svc_model::Timestamp;

use super::relative_time::relative;
use super::screen::Screen;
use super::style::{Style, state_style};
use super::write::plain;
use crate::cli::terminal;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(super) header: &'static str,
    /// Name of the field in an item. With a `/` at its beginning a JSON pointer.
    pub(super) field: &'static str,
    pub(super) kind: ColumnKind,
    /// 0 is always shown; where the screen is too narrow, the column of the highest rank goes
    /// first.
    pub(super) rank: u8,
    /// Fewest columns of the screen for a cell that is cut.
    pub(super) least: u16,
    /// Where all rows have this value, it tells nobody anything.
    pub(super) usual: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// Words; cut with `…` where the screen is too narrow.
    Text,
    /// Words that a person types again, such as a name: cut after all others.
    Name,
    /// An id; on a screen only as much of it as tells it apart.
    Id,
    /// A word with a colour.
    State,
    /// A time in RFC 3339; on a screen seen from now.
    Time,
    /// A folder; on a screen with `~`, and only its end if it is long.
    Path,
    /// A number, at the right.
    Number,
}

/// Digits of an id behind its prefix on a screen: ten are its time in milliseconds.
const ID_DIGITS: usize = 12;
/// Longest path on a screen, in characters.
const PATH: usize = 32;
/// Fewest columns of the screen for a cell that is cut, unless the column says otherwise.
pub(super) const LEAST: u16 = 12;
/// What a name gets before columns of a rank are shown beside it.
const NAME: u16 = 40;

impl Column {
    /// Words.
    pub(crate) const fn text(header: &'static str, field: &'static str) -> Self {
        Self { header, field, kind: ColumnKind::Text, rank: 0, least: LEAST, usual: None }
    }

    /// What a person types again to name the thing of this row.
    pub(crate) const fn name(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Name, ..Self::text(header, field) }
    }

    pub(crate) const fn id(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Id, ..Self::text(header, field) }
    }

    /// A state, with its colour.
    pub(crate) const fn state(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::State, ..Self::text(header, field) }
    }

    pub(crate) const fn time(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Time, ..Self::text(header, field) }
    }

    /// A folder or file.
    pub(crate) const fn path(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Path, ..Self::text(header, field) }
    }

    pub(crate) const fn number(header: &'static str, field: &'static str) -> Self {
        Self { kind: ColumnKind::Number, ..Self::text(header, field) }
    }

    /// The same, to be left out where the screen is too narrow: the highest rank first.
    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// The same, to be cut down to as few columns of the screen as these.
    pub(crate) const fn least(self, least: u16) -> Self {
        Self { least, ..self }
    }

    /// The same, to be left out on a screen if no row has another value than this one.
    pub(crate) const fn usual(self, usual: &'static str) -> Self {
        Self { usual: Some(usual), ..self }
    }

    /// Its value in an item. `None` where there is none.
    pub(super) fn value(self, item: &Value) -> Option<String> {
        let value = if self.field.starts_with('/') {
            item.pointer(self.field)
        } else {
            item.get(self.field)
        };
        value.filter(|value| !value.is_null()).map(plain)
    }

    /// Whether its cells may be cut.
    pub(super) const fn is_flexible(self) -> bool {
        matches!(self.kind, ColumnKind::Text | ColumnKind::Path | ColumnKind::Name)
    }

    /// How much of `width` it needs before a column of a rank is shown beside it.
    pub(super) fn needed(self, width: u16) -> u16 {
        match self.kind {
            ColumnKind::Name => width.min(if self.least > NAME { self.least } else { NAME }),
            ColumnKind::Text | ColumnKind::Path => width.min(self.least),
            _ => width,
        }
    }

    /// The value as it is shown, on one line and harmless.
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
            ColumnKind::Id => terminal::cell(&short_id(value, ids)).into_owned(),
            ColumnKind::Time if !screen.utc => Timestamp::parse(value)
                .map_or_else(|| terminal::cell(value).into_owned(), |at| relative(at, screen.now)),
            ColumnKind::Path => short_path(&terminal::cell(value), home),
            _ => terminal::cell(value).into_owned(),
        }
    }

    /// The style of a value.
    pub(super) fn style(self, value: &str) -> Style {
        match self.kind {
            ColumnKind::State => state_style(value),
            ColumnKind::Time | ColumnKind::Path | ColumnKind::Id => Style::Dim,
            ColumnKind::Text | ColumnKind::Name | ColumnKind::Number => Style::Plain,
        }
    }
}

/// How many digits behind the prefix tell all of these ids apart; at least [`ID_DIGITS`].
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

/// Length of `peer_` in `peer_01k…`, if it is an id that this program makes.
fn prefix(id: &str) -> usize {
    let is_ours = |(_, digits): &(&str, &str)| {
        digits.len() == 26 && digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    id.rsplit_once('_').filter(is_ours).map_or(0, |(name, _)| name.len() + 1)
}

/// An id of ours by its first digits; any other as it is.
fn short_id(id: &str, digits: usize) -> String {
    match prefix(id) {
        0 => id.to_owned(),
        length => id.chars().take(length + digits).collect(),
    }
}

/// An id for a sentence on this screen.
pub(crate) fn short(screen: &Screen, id: &str) -> String {
    let id = terminal::cell(id);
    if screen.is_for_people() { short_id(&id, ID_DIGITS) } else { id.into_owned() }
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
    // Whole names, unless the last one alone is too long.
    let end = end.find('/').map_or(end.as_str(), |slash| &end[slash..]);
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_as_long_as_it_has_to_be() {
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
    fn a_path_keeps_its_end() {
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
