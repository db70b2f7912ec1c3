//! The state of the page, and the rendering of styles and times.

use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style as Look};
use svc_model::{Peer, PeerStatus, Timestamp};

use super::team::{
    OpenTask, TeamMessage, TeamRequest, TeamSnapshot, is_agent_of_task, is_away, wait_of,
};
use crate::cli::output::{Screen, Style, relative};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    People,
    /// Open items: requests of agents, questions, and tasks that are not over.
    Requests,
    Messages,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::People, Self::Requests, Self::Messages];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaemonConnectionState {
    Opening,
    Live,
    /// The page shows the last known state.
    Away {
        problem: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Row<'a> {
    Peer(&'a Peer),
    Request(&'a TeamRequest),
    /// A peer that waits at a prompt in its own client.
    Waiting(&'a Peer),
    Question(&'a TeamMessage),
    Task(&'a OpenTask),
    Message(&'a TeamMessage),
}

impl<'a> Row<'a> {
    /// Unique in its list.
    pub(super) fn id(self) -> &'a str {
        match self {
            Self::Peer(peer) | Self::Waiting(peer) => peer.peer_id.as_str(),
            Self::Request(request) => &request.request_id,
            Self::Question(message) | Self::Message(message) => &message.id,
            Self::Task(task) => &task.task_id,
        }
    }

    /// Id and name of the peer to write to.
    pub(super) fn correspondent(self) -> Option<(&'a str, &'a str)> {
        match self {
            Self::Peer(peer) | Self::Waiting(peer) => {
                Some((peer.peer_id.as_str(), &peer.display_name))
            }
            Self::Question(message) | Self::Message(message) => {
                Some((&message.from_peer, message.from()))
            }
            Self::Request(_) | Self::Task(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) to: String,
    pub(super) name: String,
    /// The id of the question that the draft answers.
    pub(super) answers: Option<String>,
    pub(super) text: String,
}

/// A request that is being answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RequestChoice {
    pub(super) request: TeamRequest,
    /// The agent that asks.
    pub(super) name: String,
    /// Index of a permanent option that was chosen once and waits for its confirmation.
    pub(super) chosen: Option<usize>,
    /// Rows of the call above the visible ones.
    pub(super) scrolled: usize,
    /// Number of rows of the call, from the first, that have been visible so far.
    pub(super) read: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Overlay {
    /// Details of the chosen row, from line `scroll` on.
    Detail {
        scroll: u16,
    },
    Write(Draft),
    Choose(RequestChoice),
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) team: TeamSnapshot,
    pub(super) connection: DaemonConnectionState,
    pub(super) pane: Pane,
    /// The id of the chosen row of each list; its index may change.
    pub(super) chosen: [Option<String>; 3],
    pub(super) overlay: Option<Overlay>,
    /// Whether offline peers, and questions to them, are listed.
    pub(super) shows_away: bool,
    /// The last lines of a peer or task, with its id.
    pub(super) last_lines: Option<(String, Vec<String>)>,
    /// The result of the last action.
    pub(super) notice: Option<String>,
    /// Ticks until the notice disappears; `None`: shown until a key is pressed.
    pub(super) notice_ticks: Option<u8>,
    pub(super) screen: Screen,
    /// The area of the last frame.
    pub(super) page: Rect,
}

impl Model {
    pub(super) fn new(screen: Screen) -> Self {
        Self {
            team: TeamSnapshot::default(),
            connection: DaemonConnectionState::Opening,
            pane: Pane::People,
            chosen: [None, None, None],
            overlay: None,
            shows_away: false,
            last_lines: None,
            notice: None,
            notice_ticks: None,
            screen,
            page: Rect::default(),
        }
    }

    pub(super) fn rows(&self, pane: Pane) -> Vec<Row<'_>> {
        match pane {
            Pane::People => {
                let others = self.team.peers.iter().filter(|peer| !peer.peer_id.is_operator());
                let mut others: Vec<_> = others
                    .filter(|peer| !is_agent_of_task(peer) && (self.shows_away || !is_away(peer)))
                    .collect();
                // Peers that wait come first.
                others.sort_by_key(|peer| peer.status != PeerStatus::Waiting);
                others.into_iter().map(Row::Peer).collect()
            }
            Pane::Requests => {
                let (away, present): (Vec<_>, Vec<_>) = self
                    .team
                    .questions
                    .iter()
                    .partition(|question| self.is_receiver_away(question));
                let requests = self.team.requests.iter().map(Row::Request);
                let asks =
                    |peer: &&Peer| wait_of(peer).is_some() && self.team.request_of(peer).is_none();
                let waiting = self.team.peers.iter().filter(asks).map(Row::Waiting);
                let tasks = self.team.tasks.iter().map(Row::Task);
                let away = away.into_iter().filter(|_| self.shows_away).map(Row::Question);
                requests
                    .chain(waiting)
                    .chain(present.into_iter().map(Row::Question))
                    .chain(tasks)
                    .chain(away)
                    .collect()
            }
            Pane::Messages => self.team.messages.iter().map(Row::Message).collect(),
        }
    }

    /// Whether the receiver of a question is offline.
    fn is_receiver_away(&self, question: &TeamMessage) -> bool {
        self.team.is_away(&question.to_peer)
    }

    /// The number of questions to offline peers that are not listed.
    pub(super) fn folded(&self) -> usize {
        let away =
            self.team.questions.iter().filter(|question| self.is_receiver_away(question)).count();
        if self.shows_away { 0 } else { away }
    }

    /// Index of the chosen row; 0 if none was chosen or if the chosen row is gone.
    pub(super) fn chosen_index(&self, pane: Pane) -> Option<usize> {
        let rows = self.rows(pane);
        let id = self.chosen[pane.index()].as_deref();
        let known = rows.iter().position(|row| Some(row.id()) == id);
        known.or((!rows.is_empty()).then_some(0))
    }

    pub(super) fn last_lines_of(&self, id: &str) -> &[String] {
        self.last_lines.as_ref().filter(|(known, _)| known == id).map_or(&[], |(_, lines)| lines)
    }

    /// The chosen row of the active list.
    pub(super) fn chosen_row(&self) -> Option<Row<'_>> {
        let index = self.chosen_index(self.pane)?;
        self.rows(self.pane).get(index).copied()
    }
}

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
        Style::Bold => Look::new().add_modifier(Modifier::BOLD),
    }
}

pub(super) fn when(model: &Model, at: Timestamp) -> String {
    if model.screen.utc { at.to_string() } else { relative(at, model.screen.now) }
}
