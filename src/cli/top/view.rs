//! Draws the page: a heading, three lists, and a line of keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::style::{Modifier, Style as Look};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as TableRow, Table, TableState};
use svc_model::Peer;

use super::detail::{self, ChoiceSheet};
use super::model::{DaemonConnectionState, Model, Overlay, Pane, Row, look, when};
use super::team::{is_away, wait_of, wait_words};
use crate::cli::output::{Style, cut, state_style};

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
    // A list gets the rows that it needs, at least one; the list of people gets the rest.
    let wanted = |pane: Pane| u16::try_from(model.rows(pane).len().max(1) + 1).unwrap_or(u16::MAX);
    let most = (area.height / 3).max(2);
    let areas: [Rect; 3] = Layout::vertical([
        Constraint::Min(2),
        Constraint::Length(wanted(Pane::Requests).min(most)),
        Constraint::Length(wanted(Pane::Messages).min(most)),
    ])
    .areas(area);
    for (pane, area) in Pane::ALL.into_iter().zip(areas) {
        draw_list(model, pane, area, frame);
    }
}

fn heading(model: &Model, width: u16) -> Line<'static> {
    let (here, away) = model.team.presence();
    let mut text = format!(" svc  {here} here");
    if away > 0 {
        text.extend([", ", &away.to_string(), " away"]);
    }
    let (state, style) = match &model.connection {
        DaemonConnectionState::Opening => ("looking for the daemon".to_owned(), Style::Waiting),
        DaemonConnectionState::Live => ("live".to_owned(), Style::Good),
        DaemonConnectionState::Away { problem } => (problem.clone(), Style::Bad),
    };
    let room = usize::from(width).saturating_sub(text.chars().count() + 3);
    Line::from(vec![
        Span::styled(text, Look::new().add_modifier(Modifier::BOLD)),
        Span::raw("  "),
        Span::styled(cut(state, room), look(model, style)),
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

/// Width from which on optional columns are shown.
const WIDE: u16 = 90;
const GAP: u16 = 2;

/// Index of the machine in a person's cells, if the team has several machines.
const MACHINE: usize = 5;

type CellText = (String, Style);

fn draw_list(model: &Model, pane: Pane, area: Rect, frame: &mut Frame<'_>) {
    let is_active = model.pane == pane;
    let rows = model.rows(pane);
    // An inactive list is not scrolled: it shows its newest rows.
    let chosen = model.chosen_index(pane).filter(|_| is_active);
    let above = scrolled(chosen, area);
    let title = match pane {
        Pane::People if model.shows_away => "here and away".to_owned(),
        Pane::People => "here".to_owned(),
        Pane::Requests if model.folded() > 0 => {
            format!("waiting ({}; {} for who is away: o)", rows.len(), model.folded())
        }
        Pane::Requests => format!("waiting ({})", rows.len()),
        Pane::Messages => "last said".to_owned(),
    };
    let title = match (above, pane) {
        (0, _) => format!(" {title} "),
        (above, Pane::Messages) => format!(" {title}: {above} newer above "),
        (above, _) => format!(" {title}: {above} more above "),
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
    let texts: Vec<Vec<CellText>> = rows.iter().map(|row| cells(model, row, wide)).collect();
    let constraints = widths(pane, wide, area.width, &texts);
    // The same layout as the table's, so that truncated cells can end with a mark.
    let columns =
        Layout::horizontal(constraints.clone()).flex(Flex::Start).spacing(GAP).split(area);
    let lines = rows.iter().zip(texts).map(|(row, texts)| {
        let cells = texts.into_iter().zip(columns.iter()).map(|((text, style), column)| {
            Cell::from(cut(text, usize::from(column.width))).style(look(model, style))
        });
        let line = TableRow::new(cells);
        let is_away = matches!(row, Row::Peer(peer) if is_away(peer));
        if is_away { line.style(look(model, Style::Dim)) } else { line }
    });
    let marked = if is_active { Modifier::REVERSED } else { Modifier::empty() };
    let table = Table::new(lines, constraints)
        .block(block)
        .column_spacing(GAP)
        .row_highlight_style(Look::new().add_modifier(marked));
    let mut state = TableState::new().with_offset(above).with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

/// How many rows are hidden above so that the chosen row is visible. The title takes one line.
fn scrolled(chosen: Option<usize>, area: Rect) -> usize {
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    chosen.map_or(0, |index| (index + 1).saturating_sub(height))
}

/// Widths of the columns. Names and the peers that a person waits for get what they need, as far as
/// that leaves room for the rest.
fn widths(pane: Pane, wide: bool, room: u16, texts: &[Vec<CellText>]) -> Vec<Constraint> {
    let widest = |column: usize| {
        let width = |text: &Vec<CellText>| Span::raw(text[column].0.as_str()).width();
        u16::try_from(texts.iter().map(width).max().unwrap_or(0)).unwrap_or(u16::MAX)
    };
    let longest = |column: usize, most: u16| Constraint::Length(widest(column).min(most));
    match (pane, wide) {
        (Pane::People, true) => {
            let name = widest(0).min(room * 2 / 5);
            let (status, seen) = (8, 12);
            let has_machines = texts.iter().any(|text| text.len() > MACHINE);
            let machine = if has_machines { widest(MACHINE).min(room / 6) + GAP } else { 0 };
            let left = room.saturating_sub(name + status + seen + machine + 4 * GAP);
            // The attempt and the awaited peers share the rest; each gets what the other does not
            // need.
            let waits = widest(3).min(left.saturating_sub(widest(2)).max(left * 2 / 5));
            let mut widths = vec![
                Constraint::Length(name),
                Constraint::Length(status),
                Constraint::Fill(1),
                Constraint::Length(waits),
                Constraint::Length(seen),
            ];
            widths.extend(has_machines.then(|| Constraint::Length(machine - GAP)));
            widths
        }
        (Pane::People, false) => {
            vec![longest(0, room / 2), Constraint::Length(8), Constraint::Fill(1)]
        }
        (_, true) => vec![Constraint::Length(12), longest(1, room * 3 / 5), Constraint::Fill(1)],
        (_, false) => vec![longest(0, room * 3 / 5), Constraint::Fill(1)],
    }
}

/// The cells of a row: the time if the page is wide, who, and what.
fn cells(model: &Model, row: &Row<'_>, wide: bool) -> Vec<CellText> {
    let (at, who, style, what) = match row {
        Row::Peer(peer) => return person(model, peer, wide),
        Row::Request(request) => {
            let name = model.team.asker(request);
            let who = if wide { "needs permission" } else { "→ you?" };
            (request.opened_at, format!("{name} {who}"), Style::Waiting, request.title.clone())
        }
        Row::Waiting(peer) => {
            let wait = wait_of(peer);
            let what = wait.map(wait_words).unwrap_or_default();
            let who = match (peer.is_limited(), wide) {
                // Nobody can answer it.
                (true, _) => "waits",
                (false, true) => "waits at its terminal",
                (false, false) => "→ you?",
            };
            (
                wait.map_or(peer.since, |wait| wait.since),
                format!("{} {who}", peer.display_name),
                Style::Waiting,
                what,
            )
        }
        Row::Question(question) => {
            let (from, to) = (question.from(), question.to());
            let away = model.team.away_mark(&question.to_peer);
            let verb = if question.is_own() { "wait" } else { "waits" };
            let who = if wide {
                format!("{from} {verb} for {to}{away}")
            } else {
                format!("{from} → {to}{away}?")
            };
            let style = if away.is_empty() { Style::Waiting } else { Style::Dim };
            (question.timestamp, who, style, question.line())
        }
        Row::Task(task) => {
            let agent = if task.agent.is_empty() { "" } else { " for " };
            let who = format!("task {}{agent}{}", task.status, task.agent);
            let title = if task.title.is_empty() { &task.task_id } else { &task.title };
            (task.created_at, who, state_style(&task.status), title.clone())
        }
        Row::Message(message) => {
            let who = format!("{} → {}", message.from(), message.to());
            let style = if message.open { Style::Waiting } else { Style::Plain };
            (message.timestamp, who, style, message.line())
        }
    };
    let at = wide.then(|| (format!(" {}", when(model, at)), Style::Dim));
    at.into_iter().chain([(format!(" {who}"), style), (what, Style::Plain)]).collect()
}

fn person(model: &Model, peer: &Peer, wide: bool) -> Vec<CellText> {
    let attempt = model.team.attempt_of(peer);
    let tries = attempt.map_or_else(String::new, |attempt| attempt.goal.clone());
    let request = model.team.request_of(peer);
    // An agent does nothing until it has permission.
    let (tries, doing) = match (request, wait_of(peer)) {
        (Some(request), _) => (format!("{}: {}", request.wants(), request.title), Style::Waiting),
        (None, Some(wait)) => (wait_words(wait), Style::Waiting),
        (None, None) => (tries, Style::Plain),
    };
    let awaited = model.team.awaited_by(peer).join(", ");
    let waits = if awaited.is_empty() { String::new() } else { format!("waits for {awaited}") };
    let mut cells = vec![
        (format!(" {}", peer.display_name), Style::Plain),
        (peer.status.to_string(), state_style(peer.status.as_str())),
    ];
    if wide {
        cells.push((tries, doing));
        cells.push((waits, Style::Waiting));
        cells.push((when(model, peer.last_seen), Style::Dim));
        if model.team.has_machines() {
            cells.push((peer.machine.clone().unwrap_or_default(), Style::Plain));
        }
    } else if waits.is_empty() || tries.is_empty() {
        cells.push((format!("{waits}{tries}"), doing));
    } else {
        cells.push((format!("{waits} · {tries}"), Style::Plain));
    }
    cells
}

/// The text for an empty list, which says what to do next.
fn empty(model: &Model, pane: Pane) -> &'static str {
    match (pane, &model.connection) {
        (Pane::People, DaemonConnectionState::Away { .. }) => {
            "no daemon answers; `svc start` in another terminal starts it, and this view then continues"
        }
        (Pane::People, DaemonConnectionState::Opening) => "…",
        (Pane::People, DaemonConnectionState::Live) if model.team.presence().1 > 0 => {
            "nobody is here; o shows who is offline"
        }
        (Pane::People, DaemonConnectionState::Live) => {
            "nobody yet: open a coding agent; `svc install status` says which of them know svc"
        }
        (Pane::Requests, _) if model.folded() > 0 => "nobody here waits for an answer",
        (Pane::Requests, _) => "nobody waits for an answer",
        (Pane::Messages, _) => "nothing was said yet",
    }
}
