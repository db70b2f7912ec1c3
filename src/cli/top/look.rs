//! How styles and times look on the page.

use ratatui::style::{Color, Modifier, Style as Look};
use svc_model::Timestamp;

use super::model::Model;
use crate::cli::output::{Style, relative};

/// A style of the command line as the page draws it: none of it where colours are not wanted.
pub(super) fn look(model: &Model, style: Style) -> Look {
    if !model.screen.color {
        return Look::new();
    }
    match style {
        Style::Plain => Look::new(),
        Style::Good => Look::new().fg(Color::Green),
        Style::Busy => Look::new().fg(Color::Yellow),
        Style::Waiting => Look::new().fg(Color::Cyan),
        Style::Bad => Look::new().fg(Color::Red),
        Style::Dim => Look::new().add_modifier(Modifier::DIM),
    }
}

/// A time as the person wants it.
pub(super) fn when(model: &Model, at: Option<Timestamp>) -> String {
    let shown = |at: Timestamp| {
        if model.screen.utc { at.to_string() } else { relative(at, model.screen.now) }
    };
    at.map(shown).unwrap_or_default()
}
