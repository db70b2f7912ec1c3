//! Colours. The text says all that a colour says.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The terminal's default.
    Plain,
    /// Success.
    Good,
    /// Activity.
    Busy,
    Waiting,
    /// Failure.
    Bad,
    /// Ended, or less important.
    Dim,
}

impl Style {
    /// The escape sequence that begins the style.
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

    /// The text in this style. It must be sanitised already (`terminal`).
    pub(crate) fn paint(self, text: &str) -> String {
        match self.code() {
            "" => text.to_owned(),
            code => format!("{code}{text}\u{1b}[0m"),
        }
    }
}

/// The style for a state of a participant, task, message, record or agent.
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
