//! What is shown.

use ratatui::layout::Rect;

use super::team::{
    OpenTask, TeamCall, TeamMessage, TeamPeer, TeamRequest, TeamRequestOption, TeamSnapshot,
};
use crate::cli::output::Screen;

/// One of the lists on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    /// Who is here.
    People,
    /// What waits: requests of agents, questions, and tasks that are not over.
    Requests,
    /// What was said last.
    Messages,
}

impl Pane {
    /// From the top of the page.
    pub(super) const ALL: [Self; 3] = [Self::People, Self::Requests, Self::Messages];

    /// Its number from the top.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::People => 0,
            Self::Requests => 1,
            Self::Messages => 2,
        }
    }
}

/// Whether the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaemonConnectionState {
    /// Nothing was heard yet.
    Opening,
    /// What is shown is what is.
    Live,
    /// What is shown is what was.
    Away {
        /// Why, for people.
        problem: String,
    },
}

/// A row of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Row<'a> {
    Peer(&'a TeamPeer),
    Request(&'a TeamRequest),
    /// Somebody who waits at a prompt of its own client.
    Waiting(&'a TeamPeer),
    Question(&'a TeamMessage),
    Task(&'a OpenTask),
    Message(&'a TeamMessage),
}

impl<'a> Row<'a> {
    /// What tells it apart from the others of its list.
    pub(super) fn id(self) -> &'a str {
        match self {
            Self::Peer(peer) | Self::Waiting(peer) => &peer.peer_id,
            Self::Request(request) => &request.request_id,
            Self::Question(message) | Self::Message(message) => &message.id,
            Self::Task(task) => &task.task_id,
        }
    }

    /// Id and name of the peer to write to.
    pub(super) fn correspondent(self) -> Option<(&'a str, &'a str)> {
        match self {
            Self::Peer(peer) | Self::Waiting(peer) => Some((&peer.peer_id, &peer.display_name)),
            Self::Question(message) | Self::Message(message) => {
                Some((&message.from_peer, message.from()))
            }
            Self::Request(_) | Self::Task(_) => None,
        }
    }
}

/// What is being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    /// The receiver's id.
    pub(super) to: String,
    /// The receiver's name.
    pub(super) name: String,
    /// The question that it answers.
    pub(super) answers: Option<String>,
    pub(super) text: String,
}

/// A request that is being answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestChoice {
    pub(super) request_id: String,
    /// Who asks.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) cwd: String,
    pub(super) tool: Option<TeamCall>,
    /// A number chooses one.
    pub(super) options: Vec<TeamRequestOption>,
    /// Index of a permanent option that was chosen once and waits for its confirmation.
    pub(super) chosen: Option<usize>,
    /// Rows of what is asked that are scrolled away above.
    pub(super) scrolled: usize,
    /// How many of those rows were on the screen, from the first on.
    pub(super) read: usize,
}

/// What lies on top of the lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Overlay {
    /// All about the chosen row, from this line on.
    Detail { scroll: u16 },
    /// A message that is being written.
    Write(Draft),
    /// A request whose options are shown.
    Choose(RequestChoice),
}

/// The page: a function of this is what is on the screen.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) team: TeamSnapshot,
    pub(super) connection: DaemonConnectionState,
    pub(super) pane: Pane,
    /// The chosen row of each list, by its id: lists move under it.
    pub(super) chosen: [Option<String>; 3],
    pub(super) overlay: Option<Overlay>,
    /// Whether those that are offline are listed, too, and questions to them.
    pub(super) shows_away: bool,
    /// The last lines of the peer or task that is looked at, with its id.
    pub(super) last_lines: Option<(String, Vec<String>)>,
    /// What came of the last thing that was done.
    pub(super) notice: Option<String>,
    /// How many ticks the notice is still shown; `None`: until a key is pressed.
    pub(super) notice_ticks: Option<u8>,
    /// Time, colours.
    pub(super) screen: Screen,
    /// What was drawn on last.
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

    /// The rows of a list.
    pub(super) fn rows(&self, pane: Pane) -> Vec<Row<'_>> {
        match pane {
            Pane::People => {
                let others = self.team.peers.iter().filter(|peer| !peer.is_own());
                let mut others: Vec<_> = others
                    .filter(|peer| !peer.is_of_task() && (self.shows_away || !peer.is_away()))
                    .collect();
                // Who waits needs somebody.
                others.sort_by_key(|peer| peer.status != "waiting");
                others.into_iter().map(Row::Peer).collect()
            }
            Pane::Requests => {
                let (far, near): (Vec<_>, Vec<_>) =
                    self.team.questions.iter().partition(|question| self.is_far(question));
                let requests = self.team.requests.iter().map(Row::Request);
                let asks = |peer: &&TeamPeer| {
                    peer.wait().is_some() && self.team.request_of(peer).is_none()
                };
                let waiting = self.team.peers.iter().filter(asks).map(Row::Waiting);
                let tasks = self.team.tasks.iter().map(Row::Task);
                let far = far.into_iter().filter(|_| self.shows_away).map(Row::Question);
                requests
                    .chain(waiting)
                    .chain(near.into_iter().map(Row::Question))
                    .chain(tasks)
                    .chain(far)
                    .collect()
            }
            Pane::Messages => self.team.messages.iter().map(Row::Message).collect(),
        }
    }

    /// Whether a question is to somebody who is away: nobody answers it before that one is back.
    fn is_far(&self, question: &TeamMessage) -> bool {
        self.team.is_away(&question.to_peer)
    }

    /// How many questions to those who are away are not listed.
    pub(super) fn folded(&self) -> usize {
        let far = self.team.questions.iter().filter(|question| self.is_far(question)).count();
        if self.shows_away { 0 } else { far }
    }

    /// Number of the chosen row: the first if none was chosen, or if the one that was is gone.
    pub(super) fn chosen_index(&self, pane: Pane) -> Option<usize> {
        let rows = self.rows(pane);
        let id = self.chosen[pane.index()].as_deref();
        let known = rows.iter().position(|row| Some(row.id()) == id);
        known.or((!rows.is_empty()).then_some(0))
    }

    /// The last lines of what has this id, as far as they were fetched.
    pub(super) fn last_lines_of(&self, id: &str) -> &[String] {
        self.last_lines.as_ref().filter(|(known, _)| known == id).map_or(&[], |(_, lines)| lines)
    }

    /// The chosen row of the list that the keys are for.
    pub(super) fn chosen_row(&self) -> Option<Row<'_>> {
        let index = self.chosen_index(self.pane)?;
        self.rows(self.pane).get(index).copied()
    }
}
