//! Updates of the page: a function of the model and an input, without I/O.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use svc_model::agent::RequestOptionKind;
use svc_model::{PeerId, Timestamp};

use super::detail::ChoiceSheet;
use super::model::{DaemonConnectionState, Draft, Model, Overlay, Pane, RequestChoice, Row};
use super::team::TeamSnapshot;
use super::view::parts_of;
use crate::cli::agent_attach::confirmation;

pub(super) enum ScreenInput {
    Key(KeyEvent),
    Fetched(Box<TeamSnapshot>),
    Away(String),
    /// A message was stored, with a sentence that says when its receiver gets it; or why it was not
    /// sent.
    Sent(Result<String, String>),
    /// A request was answered, or why that failed.
    Answered(Result<(), String>),
    /// The last lines of a peer or task, by its id.
    LastLines(String, Vec<String>),
    Tick(Timestamp),
    Resized,
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScreenEffect {
    Quit,
    Send(Draft),
    FetchLastLines {
        id: String,
        is_task: bool,
    },
    Answer {
        request_id: String,
        option_id: String,
        /// Whether the person was warned that the option is permanent.
        confirm: bool,
    },
}

const NOTICE_TICKS: u8 = 2;

pub(super) fn update(model: &mut Model, input: ScreenInput) -> Option<ScreenEffect> {
    match input {
        ScreenInput::Key(key) => {
            let effect = press(model, key);
            model.notice_ticks = Some(NOTICE_TICKS);
            return effect;
        }
        ScreenInput::Fetched(team) => {
            model.team = *team;
            model.connection = DaemonConnectionState::Live;
            close_ended(model);
            // Refreshes the last lines of an open detail view.
            return matches!(model.overlay, Some(Overlay::Detail { .. }))
                .then(|| last_lines(model))
                .flatten();
        }
        ScreenInput::LastLines(id, lines) => model.last_lines = Some((id, lines)),
        ScreenInput::Away(problem) => model.connection = DaemonConnectionState::Away { problem },
        ScreenInput::Sent(Ok(when)) if when.is_empty() => say(model, "sent".to_owned(), true),
        ScreenInput::Sent(Ok(when)) => say(model, format!("sent: {when}"), true),
        ScreenInput::Sent(Err(problem)) => say(model, format!("not sent: {problem}"), false),
        ScreenInput::Answered(Ok(())) => say(model, "answered".to_owned(), true),
        ScreenInput::Answered(Err(problem)) => {
            say(model, format!("not answered: {problem}"), false);
        }
        ScreenInput::Tick(now) => {
            model.screen.now = now;
            // A notice covers the help for keys, so it goes when its ticks are over.
            match model.notice_ticks {
                Some(0) => model.notice = None,
                Some(left) => model.notice_ticks = Some(left - 1),
                None => {}
            }
        }
        ScreenInput::Resized => {
            if let Some(Overlay::Choose(choice)) = &mut model.overlay {
                // Another width wraps the rows differently.
                (choice.scrolled, choice.read) = (0, 0);
            }
        }
    }
    None
}

/// Shows the result of an action. A failure stays until a key is pressed.
fn say(model: &mut Model, words: String, fades: bool) {
    (model.notice, model.notice_ticks) = (Some(words), fades.then_some(NOTICE_TICKS));
}

/// Closes the options of a request that was answered, or that can now be answered only in the
/// agent's terminal.
fn close_ended(model: &mut Model) {
    let Some(Overlay::Choose(choice)) = &model.overlay else { return };
    let open = model.team.requests.iter().find(|open| open.request_id == choice.request.request_id);
    let words = match open {
        None => format!("the request of {} was answered elsewhere", choice.name),
        Some(open) if open.options.is_empty() => {
            format!("the terminal of {} takes the answer", choice.name)
        }
        Some(_) => return,
    };
    model.overlay = None;
    say(model, words, false);
}

fn press(model: &mut Model, key: KeyEvent) -> Option<ScreenEffect> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(ScreenEffect::Quit);
    }
    let key = key.code;
    model.notice = None;
    match model.overlay.take() {
        Some(Overlay::Write(draft)) => write(model, draft, key),
        Some(Overlay::Choose(choice)) => choose(model, choice, key),
        Some(Overlay::Detail { scroll }) => look(model, scroll, key),
        None => walk(model, key),
    }
}

fn walk(model: &mut Model, key: KeyCode) -> Option<ScreenEffect> {
    match key {
        KeyCode::Char('q') => return Some(ScreenEffect::Quit),
        // Escape only goes back: pressing it once too often must not quit.
        KeyCode::Esc => model.notice = Some("this is the first page; q leaves it".to_owned()),
        KeyCode::Char('o') => model.shows_away = !model.shows_away,
        KeyCode::Up | KeyCode::Char('k') => step(model, -1),
        KeyCode::Down | KeyCode::Char('j') => step(model, 1),
        KeyCode::Tab | KeyCode::Right => turn(model, 1),
        KeyCode::BackTab | KeyCode::Left => turn(model, Pane::ALL.len() - 1),
        KeyCode::Enter if model.chosen_row().is_some() => {
            // Pins the row, so that it stays chosen when rows above it change.
            step(model, 0);
            model.overlay = Some(Overlay::Detail { scroll: 0 });
            return last_lines(model);
        }
        key => start(model, key),
    }
    None
}

/// Fetches the last lines of the chosen row, if it is a peer or a task.
fn last_lines(model: &Model) -> Option<ScreenEffect> {
    let row = model.chosen_row()?;
    let is_task = match row {
        Row::Peer(_) | Row::Waiting(_) => false,
        Row::Task(_) => true,
        Row::Request(_) | Row::Question(_) | Row::Message(_) => return None,
    };
    Some(ScreenEffect::FetchLastLines { id: row.id().to_owned(), is_task })
}

fn look(model: &mut Model, scroll: u16, key: KeyCode) -> Option<ScreenEffect> {
    let scroll = match key {
        KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => return None,
        KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => scroll.saturating_add(1),
        _ => scroll,
    };
    model.overlay = Some(Overlay::Detail { scroll });
    start(model, key);
    None
}

/// Chooses an option by its number. Permission is given only for a call that was shown to its end.
fn choose(model: &mut Model, mut choice: RequestChoice, key: KeyCode) -> Option<ScreenEffect> {
    let [_, body, _] = parts_of(model.page);
    let sheet = ChoiceSheet::new(&choice, body);
    let (room, most) = (sheet.room(), sheet.most_scrolled());
    choice.read = choice.read.max(choice.scrolled + room);
    let scrolled = match key {
        KeyCode::Up | KeyCode::Char('k') => choice.scrolled.checked_sub(1),
        KeyCode::Down | KeyCode::Char('j') => Some(choice.scrolled + 1),
        KeyCode::Char(' ') => Some(choice.scrolled + room),
        _ => None,
    };
    if let Some(scrolled) = scrolled {
        choice.scrolled = scrolled.min(most);
    } else {
        let number = match key {
            KeyCode::Esc | KeyCode::Char('q') => return None,
            KeyCode::Char(c) => c.to_digit(10),
            _ => None,
        };
        let index = number.and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
        let notice = match index.and_then(|index| choice.request.options.get(index)) {
            None => format!("a number from 1 to {} answers", choice.request.options.len()),
            Some(option)
                if option.kind != RequestOptionKind::Deny
                    && (room == 0 || choice.read < room + most) =>
            {
                let words =
                    if room == 0 { "enlarge the terminal" } else { "↓ or space shows the rest" };
                format!("{words}, and then {} can be answered", option.name)
            }
            Some(option)
                if option.kind == RequestOptionKind::AllowAlways && choice.chosen != index =>
            {
                choice.chosen = index;
                confirmation(&option.name, number.unwrap_or_default())
            }
            Some(option) => {
                model.notice = Some("answering…".to_owned());
                return Some(ScreenEffect::Answer {
                    option_id: option.option_id.clone(),
                    confirm: option.kind == RequestOptionKind::AllowAlways,
                    request_id: choice.request.request_id,
                });
            }
        };
        model.notice = Some(notice);
    }
    model.overlay = Some(Overlay::Choose(choice));
    None
}

/// The options of a row's request, or of the request of the row's peer.
fn choice_of(model: &Model, row: Row<'_>) -> Option<RequestChoice> {
    let request = match row {
        Row::Request(request) => request,
        Row::Peer(peer) => model.team.request_of(peer)?,
        Row::Waiting(_) | Row::Question(_) | Row::Task(_) | Row::Message(_) => return None,
    };
    // A request without options can be answered only in the agent's own terminal.
    let (name, request) = (model.team.asker(request).to_owned(), request.clone());
    let choice = RequestChoice { request, name, chosen: None, scrolled: 0, read: 0 };
    Some(choice).filter(|choice| !choice.request.options.is_empty())
}

fn start(model: &mut Model, key: KeyCode) {
    let row = model.chosen_row();
    if key == KeyCode::Char('a')
        && let Some(choice) = row.and_then(|row| choice_of(model, row))
    {
        step(model, 0);
        model.overlay = Some(Overlay::Choose(choice));
        return;
    }
    let draft = |to: &str, name: &str, answers: Option<&String>| Draft {
        to: to.to_owned(),
        name: name.to_owned(),
        answers: answers.cloned(),
        text: String::new(),
    };
    let begun = match (key, row) {
        (KeyCode::Char('a'), Some(Row::Question(message) | Row::Message(message)))
            if message.open =>
        {
            let (from, to) = (message.from(), message.to());
            // Only the receiver may answer.
            if message.to_peer == PeerId::OPERATOR {
                Ok(draft(&message.from_peer, from, Some(&message.id)))
            } else if message.is_own() {
                Err(format!("that is your own question: {to} answers it"))
            } else {
                Err(format!("only {to} may answer that; m writes to {from}"))
            }
        }
        (KeyCode::Char('a'), Some(Row::Request(request))) => {
            Err(format!("the terminal of {} takes the answer", model.team.asker(request)))
        }
        (KeyCode::Char('a'), _) => {
            Err("choose a question to answer: `tab` goes to the next list".to_owned())
        }
        (KeyCode::Char('m'), Some(row)) => match row.correspondent() {
            Some((to, name)) if to != PeerId::OPERATOR => Ok(draft(to, name, None)),
            Some(_) => Err("that is from you".to_owned()),
            None => Err("choose a receiver".to_owned()),
        },
        (KeyCode::Char('m'), None) => Err("there is no receiver".to_owned()),
        _ => return,
    };
    match begun {
        Ok(draft) => {
            step(model, 0);
            model.overlay = Some(Overlay::Write(draft));
        }
        Err(why) => model.notice = Some(why),
    }
}

fn write(model: &mut Model, mut draft: Draft, key: KeyCode) -> Option<ScreenEffect> {
    match key {
        KeyCode::Esc => return None,
        KeyCode::Enter if draft.text.trim().is_empty() => {
            model.notice = Some("write something first; `esc` goes back".to_owned());
        }
        KeyCode::Enter => {
            model.notice = Some("sending…".to_owned());
            return Some(ScreenEffect::Send(draft));
        }
        KeyCode::Backspace => {
            draft.text.pop();
        }
        KeyCode::Char(c) => draft.text.push(c),
        _ => {}
    }
    model.overlay = Some(Overlay::Write(draft));
    None
}

/// Moves the selection. 0 pins the current row, which stays chosen when the list changes.
fn step(model: &mut Model, by: isize) {
    let Some(index) = model.chosen_index(model.pane) else { return };
    let rows = model.rows(model.pane);
    let next = index.saturating_add_signed(by).min(rows.len() - 1);
    let id = rows[next].id().to_owned();
    model.chosen[model.pane.index()] = Some(id);
}

fn turn(model: &mut Model, by: usize) {
    model.pane = Pane::ALL[(model.pane.index() + by) % Pane::ALL.len()];
}
