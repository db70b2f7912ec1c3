//! Overlays: all details of one row, or a message that is being written.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style as Look};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};
use svc_model::{Peer, WaitingKind};

use super::model::{Draft, Model, RequestChoice, Row, look, when};
use super::team::{TeamMessage, TeamRequest, wait_of, wait_words};
use crate::cli::output::Style;

pub(super) fn show(model: &Model, scroll: u16, area: Rect, frame: &mut Frame<'_>) {
    let lines = match model.chosen_row() {
        Some(Row::Peer(peer) | Row::Waiting(peer)) => person(model, peer),
        Some(Row::Request(request)) => request_lines(model, request),
        Some(Row::Question(message) | Row::Message(message)) => message_lines(model, message),
        Some(Row::Task(task)) => {
            let mut lines = vec![
                field("task", &task.task_id),
                field("title", &task.title),
                field("status", &task.status),
                field("agent", &task.agent),
                field("created", &when(model, task.created_at)),
                Line::default(),
            ];
            lines.extend(last_lines(model, &task.task_id, "last lines"));
            let all = format!(" `svc task watch {}` shows all of it", task.task_id);
            lines.extend([Line::default(), Line::raw(all)]);
            lines
        }
        None => vec![Line::raw(" it is gone")],
    };
    let block = Block::new().borders(Borders::TOP).title("─ look ");
    let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(1);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).block(block);
    frame.render_widget(text.scroll((scroll.min(most), 0)), area);
}

pub(super) fn write(model: &Model, draft: &Draft, area: Rect, frame: &mut Frame<'_>) {
    let verb = if draft.answers.is_some() { "answer to" } else { "message to" };
    let bold = Look::new().add_modifier(Modifier::BOLD);
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(bold)
        .title(format!("─ {verb} {} ", draft.name));
    let cursor = Span::styled(" ", Look::new().add_modifier(Modifier::REVERSED));
    let text = Line::from(vec![Span::raw(" "), Span::raw(draft.text.as_str()), cursor]);
    let mut lines = Vec::new();
    if let Some(question) = draft.answers.as_ref().and_then(|id| {
        model.team.questions.iter().chain(&model.team.messages).find(|message| message.id == *id)
    }) {
        lines.push(Line::styled(format!(" > {}", question.line()), look(model, Style::Dim)));
    }
    lines.push(text);
    // Shows the end of a long text, where the cursor is.
    let width = usize::from(area.width.max(1));
    let rows: usize = lines.iter().map(|line| line.width() / width + 1).sum();
    let hidden = rows.saturating_sub(usize::from(area.height.saturating_sub(1)));
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).block(block);
    frame.render_widget(Clear, area);
    frame.render_widget(text.scroll((u16::try_from(hidden).unwrap_or(u16::MAX), 0)), area);
}

/// The sheet that shows a request's call above the options.
pub(super) struct ChoiceSheet {
    /// The call as it will run, wrapped to the width of the sheet.
    rows: Vec<Line<'static>>,
    pub(super) height: u16,
    /// Height in rows of the visible part of the call.
    room: u16,
}

impl ChoiceSheet {
    /// Rows of the page that stay visible above the sheet.
    const ABOVE: u16 = 3;

    pub(super) fn new(choice: &RequestChoice, body: Rect) -> Self {
        let title = format!(" {}", choice.request.title);
        let mut asked = vec![Line::styled(title, Look::new().add_modifier(Modifier::BOLD))];
        asked.extend(call_lines(&choice.request));
        let rows = rows_of(asked, body.width);
        let options = u16::try_from(choice.request.options.len()).unwrap_or(u16::MAX);
        let wanted = u16::try_from(rows.len()).unwrap_or(u16::MAX);
        // One more row, for the border.
        let others = options.saturating_add(1);
        let height = wanted.saturating_add(others).min(body.height.saturating_sub(Self::ABOVE));
        Self { rows, height, room: height.saturating_sub(others) }
    }

    /// How many rows of the call are visible at once.
    pub(super) fn room(&self) -> usize {
        usize::from(self.room)
    }

    /// The largest scroll offset, at which the last row is at the bottom.
    pub(super) fn most_scrolled(&self) -> usize {
        self.rows.len().saturating_sub(self.room())
    }
}

/// Draws a request's call and its options, each with the number that chooses it.
pub(super) fn choose(choice: &RequestChoice, sheet: ChoiceSheet, at: Rect, frame: &mut Frame<'_>) {
    let bold = Look::new().add_modifier(Modifier::BOLD);
    let scrolled = choice.scrolled.min(sheet.most_scrolled());
    let left = sheet.most_scrolled() - scrolled;
    let more = if left > 0 { format!("─ ↓ {left} more ") } else { String::new() };
    let block = Block::new().borders(Borders::TOP).border_style(bold).title(format!(
        "─ {} {} {more}",
        choice.name,
        choice.request.wants()
    ));
    let [above, below] = Layout::vertical([Constraint::Length(sheet.room), Constraint::Min(0)])
        .areas(block.inner(at));
    let options = choice.request.options.iter().enumerate();
    let options = options.map(|(index, option)| format!(" {}  {}", index + 1, option.name));
    let room = sheet.room();
    let rows: Vec<_> = sheet.rows.into_iter().skip(scrolled).take(room).collect();
    frame.render_widget(Clear, at);
    frame.render_widget(block, at);
    frame.render_widget(Paragraph::new(rows), above);
    frame.render_widget(Paragraph::new(options.map(Line::raw).collect::<Vec<_>>()), below);
}

/// Breaks lines into rows of at most this width, at any character.
fn rows_of(lines: Vec<Line<'static>>, width: u16) -> Vec<Line<'static>> {
    let width = usize::from(width.max(1));
    let mut rows = Vec::with_capacity(lines.len());
    for line in lines {
        let (mut row, mut filled) = (Line::default(), 0);
        for span in line.spans {
            let style = line.style.patch(span.style);
            let mut part = String::new();
            for c in span.content.chars() {
                let taken = Span::raw(c.to_string()).width();
                if filled + taken > width && filled > 0 {
                    row.push_span(Span::styled(std::mem::take(&mut part), style));
                    rows.push(std::mem::take(&mut row));
                    filled = 0;
                }
                part.push(c);
                filled += taken;
            }
            row.push_span(Span::styled(part, style));
        }
        rows.push(row);
    }
    rows
}

fn call_lines(request: &TeamRequest) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if !request.cwd.is_empty() {
        lines.push(field("folder", &request.cwd));
    }
    if let Some(tool) = request.tool["name"].as_str() {
        lines.push(field("tool", tool));
    }
    for (name, text) in request.arguments() {
        let mut rows = text.lines();
        lines.push(field(&name, rows.next().unwrap_or_default()));
        lines.extend(rows.map(|row| Line::raw(format!("           {row}"))));
    }
    lines
}

fn request_lines(model: &Model, request: &TeamRequest) -> Vec<Line<'static>> {
    let mut lines = vec![
        field("agent", model.team.asker(request)),
        field("asks", &request.title),
        field("asked", &when(model, request.opened_at)),
        field("id", &request.request_id),
    ];
    lines.extend(call_lines(request));
    lines.push(Line::default());
    let options = request.options.iter().enumerate();
    lines.extend(
        options.map(|(index, option)| Line::raw(format!(" {}  {}", index + 1, option.name))),
    );
    let how = if request.options.is_empty() {
        " its own terminal shows the prompt, and takes the answer"
    } else {
        " `a` answers it"
    };
    lines.extend([Line::default(), Line::raw(how)]);
    lines
}

fn person(model: &Model, peer: &Peer) -> Vec<Line<'static>> {
    let status = format!("{}, by {}", peer.status, peer.evidence);
    let or_none = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut lines = vec![
        field("name", &peer.display_name),
        field("status", &status),
        field("seen", &when(model, peer.last_seen)),
        field("client", &peer.backend),
    ];
    lines.extend(peer.machine.as_ref().map(|machine| field("machine", machine)));
    lines.extend([
        field("folder", &or_none(&peer.path)),
        field("session", &or_none(&peer.session_id)),
        field("id", peer.peer_id.as_str()),
        Line::default(),
    ]);
    if let Some(wait) = wait_of(peer) {
        let words = format!("{} ({})", wait_words(wait), when(model, wait.since));
        lines.push(field("waits", &words));
        let what = match (wait.kind, wait.until) {
            (WaitingKind::Limit, None) => " its vendor does not say when the limit ends".to_owned(),
            (WaitingKind::Limit, Some(until)) => format!(" the limit ends at {until}"),
            _ => " its own terminal shows the prompt, and takes the answer".to_owned(),
        };
        lines.push(Line::raw(what));
        lines.push(Line::default());
    }
    match model.team.attempt_of(peer) {
        Some(attempt) => lines.extend([
            field("goal", &attempt.goal),
            field("believes", &attempt.hypothesis),
            field("does", &attempt.action),
        ]),
        None => lines.push(Line::raw(" it has no open record of what it tries")),
    }
    lines.extend(last_lines(model, peer.peer_id.as_str(), "said last"));
    let id = peer.peer_id.as_str();
    let own = |message: &&TeamMessage| message.from_peer == id || message.to_peer == id;
    lines.push(Line::default());
    for message in model.team.messages.iter().filter(own) {
        let (at, from, to) = (when(model, message.timestamp), message.from(), message.to());
        lines.push(Line::raw(format!(" {at}  {from} → {to}: {}", message.line())));
    }
    lines
}

/// The last lines of the chosen row below a heading; empty if the row has none.
fn last_lines(model: &Model, id: &str, heading: &str) -> Vec<Line<'static>> {
    let lines = model.last_lines_of(id);
    if lines.is_empty() {
        return Vec::new();
    }
    let heading = Line::styled(format!(" {heading}"), Look::new().add_modifier(Modifier::BOLD));
    [Line::default(), heading]
        .into_iter()
        .chain(lines.iter().map(|line| Line::raw(format!("  {line}"))))
        .collect()
}

fn message_lines(model: &Model, message: &TeamMessage) -> Vec<Line<'static>> {
    let state = match message.kind.as_str() {
        "query" if message.answered => format!("{}, answered", message.state),
        "query" => format!("{}, waits for an answer", message.state),
        _ => message.state.clone(),
    };
    let mut lines = vec![
        field("from", message.from()),
        field("to", message.to()),
        field("type", &message.kind),
        field("state", &state),
        field("sent", &when(model, message.timestamp)),
        field("id", &message.id),
        Line::default(),
    ];
    if message.open && model.team.is_away(&message.to_peer) {
        let note = format!(
            " {} is offline and gets it when it is back; a message that was sent cannot be withdrawn",
            message.to()
        );
        lines.extend([Line::styled(note, look(model, Style::Waiting)), Line::default()]);
    }
    lines.extend(message.text.lines().map(|line| Line::raw(format!(" {line}"))));
    lines
}

fn field(label: &str, value: &str) -> Line<'static> {
    let value = if value.is_empty() { "-" } else { value };
    let label = Span::styled(format!(" {label:<9} "), Look::new().add_modifier(Modifier::BOLD));
    Line::from(vec![label, Span::raw(value.to_owned())])
}
