//! The few colours. None carries what words do not say.

/// How a text looks where colours are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// As everything.
    Plain,
    /// It is well.
    Good,
    /// It is at work.
    Busy,
    Waiting,
    /// It went wrong.
    Bad,
    /// It is over, or less important.
    Dim,
}

impl Style {
    /// Begins the style on a terminal.
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\u{1b}[32m",
            Self::Busy => "\u{1b}[33m",
            Self::Waiting => "\u{1b}[36m",
            Self::Bad => "\u{1b}[31m",
            Self::Dim => "\u{1b}[2m",
        }
    }

    /// The text in this style. It has to be harmless already (`terminal`).
    pub(crate) fn paint(self, text: &str) -> String {
        match self.code() {
            "" => text.to_owned(),
            code => format!("{code}{text}\u{1b}[0m"),
        }
    }
}

/// The style of a state of a peer, task, message, record or agent.
pub(crate) fn state_style(state: &str) -> Style {
    match state {
        "online" | "done" | "confirmed" | "acked" | "ready" | "callable" | "ok" | "gold"
        | "answered" => Style::Good,
        "busy" | "active" | "working" | "running" | "starting" | "injected" | "silver" => {
            Style::Busy
        }
        "idle" | "pending" | "queued" | "accepted" | "offered" | "waiting" | "query" | "open" => {
            Style::Waiting
        }
        "failed" | "falsified" | "expired" | "refused" | "undeliverable" | "error" | "limited"
        | "lost" => Style::Bad,
        "offline" | "cancelled" | "abandoned" | "ended" | "disabled" | "removed" => Style::Dim,
        _ => Style::Plain,
    }
}
