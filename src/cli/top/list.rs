//! One list of the page.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style as Look};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as TableRow, Table, TableState};

use super::look::{look, when};
use super::model::{Connection, Model, Pane, Row};
use super::team::{OpenTask, TeamMessage, TeamPeer};
use crate::cli::output::{Style, state_style};

/// From this width on there is room for the columns that are good to have.
const WIDE: u16 = 90;

/// Draws a list.
pub(super) fn draw(model: &Model, pane: Pane, area: Rect, frame: &mut Frame<'_>) {
    let is_active = model.pane == pane;
    let rows = model.rows(pane);
    let title = match pane {
        Pane::People => " here ".to_owned(),
        Pane::Requests => format!(" waiting ({}) ", rows.len()),
        Pane::Messages => " last said ".to_owned(),
    };
    let style =
        if is_active { Look::new().add_modifier(Modifier::BOLD) } else { look(model, Style::Dim) };
    let mark = if is_active { "▶" } else { "─" };
    let block =
        Block::new().borders(Borders::TOP).border_style(style).title(format!("{mark}{title}"));
    if rows.is_empty() {
        let hint = Line::styled(format!(" {}", empty(model, pane)), look(model, Style::Dim));
        frame.render_widget(Paragraph::new(hint).block(block), area);
        return;
    }
    let wide = area.width >= WIDE;
    let lines = rows.iter().map(|row| match row {
        Row::Peer(peer) => person(model, peer, wide),
        Row::Question(question) => asked(model, question, wide),
        Row::Task(task) => work(model, task, wide),
        Row::Message(message) => said(model, message, wide),
    });
    let marked = if is_active { Modifier::REVERSED } else { Modifier::empty() };
    let table = Table::new(lines, widths(pane, wide))
        .block(block)
        .column_spacing(2)
        .row_highlight_style(Look::new().add_modifier(marked));
    let mut state = TableState::new().with_selected(model.chosen_index(pane));
    frame.render_stateful_widget(table, area, &mut state);
}

fn widths(pane: Pane, wide: bool) -> Vec<Constraint> {
    match (pane, wide) {
        (Pane::People, true) => vec![
            Constraint::Max(24),
            Constraint::Length(8),
            Constraint::Fill(3),
            Constraint::Fill(2),
            Constraint::Length(12),
        ],
        (Pane::People, false) => {
            vec![Constraint::Max(18), Constraint::Length(8), Constraint::Fill(1)]
        }
        (_, true) => vec![Constraint::Length(12), Constraint::Max(40), Constraint::Fill(1)],
        (_, false) => vec![Constraint::Max(26), Constraint::Fill(1)],
    }
}

fn person<'a>(model: &'a Model, peer: &'a TeamPeer, wide: bool) -> TableRow<'a> {
    let attempt = model.team.attempt_of(peer);
    let tries = attempt.map_or("", |attempt| attempt.goal.as_str());
    let awaited = model.team.awaited_by(peer).join(", ");
    let waits = if awaited.is_empty() { String::new() } else { format!("waits for {awaited}") };
    let name = Cell::from(format!(" {}", peer.display_name));
    let status = Cell::from(peer.status.as_str()).style(look(model, state_style(&peer.status)));
    let mut cells = vec![name, status];
    if wide {
        cells.push(Cell::from(tries));
        cells.push(Cell::from(waits).style(look(model, Style::Waiting)));
        cells.push(Cell::from(when(model, peer.last_seen)).style(look(model, Style::Dim)));
    } else if waits.is_empty() || tries.is_empty() {
        cells.push(Cell::from(format!("{waits}{tries}")));
    } else {
        cells.push(Cell::from(format!("{waits} · {tries}")));
    }
    let row = TableRow::new(cells);
    if peer.status == "offline" { row.style(look(model, Style::Dim)) } else { row }
}

fn asked<'a>(model: &Model, question: &TeamMessage, wide: bool) -> TableRow<'a> {
    let (from, to) = (question.from(), question.to());
    let who = if wide { format!(" {from} waits for {to}") } else { format!(" {from} → {to}?") };
    let at = wide.then(|| when(model, question.timestamp));
    line(model, at, who, Style::Waiting, question.line())
}

fn work<'a>(model: &Model, task: &OpenTask, wide: bool) -> TableRow<'a> {
    let agent = if task.agent.is_empty() { String::new() } else { format!(" for {}", task.agent) };
    let what = format!(" task {}{agent}", task.status);
    let title = if task.title.is_empty() { &task.task_id } else { &task.title };
    let at = wide.then(|| when(model, task.created_at));
    line(model, at, what, state_style(&task.status), title.clone())
}

fn said<'a>(model: &Model, message: &TeamMessage, wide: bool) -> TableRow<'a> {
    let who = format!(" {} → {}", message.from(), message.to());
    let style = if message.is_open() { Style::Waiting } else { Style::Plain };
    let at = wide.then(|| when(model, message.timestamp));
    line(model, at, who, style, message.line())
}

/// When, if there is room for it, who and what.
fn line<'a>(
    model: &Model,
    at: Option<String>,
    who: String,
    style: Style,
    what: String,
) -> TableRow<'a> {
    let mut cells = vec![Cell::from(who).style(look(model, style)), Cell::from(what)];
    if let Some(at) = at {
        cells.insert(0, Cell::from(format!(" {at}")).style(look(model, Style::Dim)));
    }
    TableRow::new(cells)
}

/// What is said where there is nothing, and what to do next.
fn empty(model: &Model, pane: Pane) -> &'static str {
    match (pane, &model.connection) {
        (Pane::People, Connection::Away { .. }) => {
            "no daemon answers; `svc start` in another terminal starts it, and this page goes on"
        }
        (Pane::People, Connection::Opening) => "…",
        (Pane::People, Connection::Live) => {
            "nobody yet; `svc install` tells your coding agents of svc, `svc help` tells the rest"
        }
        (Pane::Requests, _) => "nobody waits for anybody",
        (Pane::Messages, _) => "nothing was said yet",
    }
}
