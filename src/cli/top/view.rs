//! Draws the page: a line above, three lists, a line of keys below.

use std::fmt::Write as _;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style as Look};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::detail::{self, ChoiceSheet};
use super::list;
use super::look::look;
use super::model::{DaemonConnectionState, Model, Overlay, Pane};
use crate::cli::output::Style;

/// The heading, what is below it, and the line of keys.
pub(super) fn parts_of(page: Rect) -> [Rect; 3] {
    Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)]).areas(page)
}

pub(super) fn draw(model: &Model, frame: &mut Frame<'_>) {
    let [head, body, foot] = parts_of(frame.area());
    frame.render_widget(Paragraph::new(heading(model, head.width)), head);
    match &model.overlay {
        Some(Overlay::Detail { scroll }) => detail::show(model, *scroll, body, frame),
        Some(Overlay::Write(draft)) => {
            let [lists, sheet] =
                Layout::vertical([Constraint::Min(3), Constraint::Length(6)]).areas(body);
            lists_of(model, lists, frame);
            detail::write(model, draft, sheet, frame);
        }
        Some(Overlay::Choose(choice)) => {
            let sheet = ChoiceSheet::new(choice, body);
            let [lists, below] =
                Layout::vertical([Constraint::Min(0), Constraint::Length(sheet.height)])
                    .areas(body);
            lists_of(model, lists, frame);
            detail::choose(choice, sheet, below, frame);
        }
        None => lists_of(model, body, frame),
    }
    frame.render_widget(Paragraph::new(keys(model, foot.width)), foot);
}

fn lists_of(model: &Model, area: Rect, frame: &mut Frame<'_>) {
    // A list takes what it has to show, at least a row; the people get what is left.
    let wanted = |pane: Pane| u16::try_from(model.rows(pane).len().max(1) + 1).unwrap_or(u16::MAX);
    let most = (area.height / 3).max(2);
    let areas: [Rect; 3] = Layout::vertical([
        Constraint::Min(2),
        Constraint::Length(wanted(Pane::Requests).min(most)),
        Constraint::Length(wanted(Pane::Messages).min(most)),
    ])
    .areas(area);
    for (pane, area) in Pane::ALL.into_iter().zip(areas) {
        list::draw(model, pane, area, frame);
    }
}

fn heading(model: &Model, width: u16) -> Line<'static> {
    let (here, away) = model.team.presence();
    let mut text = format!(" svc  {here} here");
    if away > 0 {
        write!(text, ", {away} away").expect("writing to a string does not fail");
    }
    let (state, style) = match &model.connection {
        DaemonConnectionState::Opening => ("looking for the daemon".to_owned(), Style::Waiting),
        DaemonConnectionState::Live => ("live".to_owned(), Style::Good),
        DaemonConnectionState::Away { problem } => (problem.clone(), Style::Bad),
    };
    let room = usize::from(width).saturating_sub(text.chars().count() + 3);
    let state: String = if state.chars().count() > room {
        state.chars().take(room.saturating_sub(1)).chain(['…']).collect()
    } else {
        state
    };
    Line::from(vec![
        Span::styled(text, Look::new().add_modifier(Modifier::BOLD)),
        Span::raw("  "),
        Span::styled(state, look(model, style)),
    ])
}

fn keys(model: &Model, width: u16) -> Line<'static> {
    if let Some(notice) = &model.notice {
        return Line::styled(format!(" {notice}"), look(model, Style::Waiting));
    }
    let text = match &model.overlay {
        None if width < 66 => " tab list  enter look  a answer  m write  o away  q leave",
        None => " ↑↓ walk  tab list  enter look  a answer  m write  o away  q leave",
        Some(Overlay::Detail { .. }) => " ↑↓ read  a answer  m write  esc back",
        Some(Overlay::Choose(_)) => " number answer  ↑↓ read  space further  esc back",
        Some(Overlay::Write(_)) => " enter send  esc back",
    };
    Line::styled(text, look(model, Style::Dim))
}
