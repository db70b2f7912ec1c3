//! Who reads standard output, a person's screen or a program, and how times and states look there.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use svc_model::{Clock as _, SystemClock, Timestamp};
use svc_sys::config::Env;
use time::{OffsetDateTime, UtcOffset};

/// Width of a terminal that does not report it, in columns.
const USUAL: u16 = 80;
const LEAST: u16 = 20;

/// When colours are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set or the terminal is dumb
    #[default]
    Auto,
    /// Always, also into a pipe
    Always,
    /// Never
    Never,
}

/// The properties of standard output, read once at the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// Width of the screen. `None` for a program, which gets whole rows, whole ids and exact times.
    pub(crate) width: Option<u16>,
    pub(crate) color: bool,
    pub(crate) utc: bool,
    /// Tables keep all columns, whole ids and whole cells, and texts whole lines, wider than the
    /// screen if need be.
    pub(crate) full: bool,
    pub(crate) now: Timestamp,
    /// Offset of the local time from UTC. Zero if the system does not report it, which it does only
    /// before threads start.
    pub(crate) offset: UtcOffset,
}

impl Screen {
    /// Standard output of this process, given the flags.
    ///
    /// A terminal reports its width. `COLUMNS` is the width where no terminal reports one, so a
    /// pipe with it is laid out as a screen: `watch` sets it for the command that it shows.
    pub(crate) fn of_process(env: &Env, color: ColorChoice, utc: bool, full: bool) -> Self {
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        let told = || rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col);
        let columns = || env.os("COLUMNS")?.to_str()?.parse::<u16>().ok();
        let width = is_terminal
            .then(told)
            .flatten()
            .filter(|width| *width > 0)
            .or_else(|| columns().filter(|width| *width > 0))
            .or(is_terminal.then_some(USUAL))
            .map(|width| width.max(LEAST));
        let is_plain =
            env.os("NO_COLOR").is_some() || env.os("TERM").is_some_and(|term| term == "dumb");
        let color = match color {
            ColorChoice::Auto => is_terminal && !is_plain,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        let offset = UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC);
        Self { width, color, utc, full, now: SystemClock.now(), offset }
    }

    pub(crate) fn is_for_people(&self) -> bool {
        self.width.is_some()
    }

    /// The width that tables and texts have to fit: they are cut and wrapped at it. `None` for a
    /// program, and with `--full`.
    pub(crate) fn fit_width(&self) -> Option<u16> {
        self.width.filter(|_| !self.full)
    }

    /// A relative time for people, the exact time for a program.
    pub(crate) fn time(&self, exact: &str) -> String {
        match Timestamp::parse(exact).filter(|_| self.is_for_people() && !self.utc) {
            Some(at) => relative(at, self.now),
            None => exact.to_owned(),
        }
    }

    /// The screen with the current time, for output that goes on.
    pub(crate) fn at_present(self) -> Self {
        Self { now: SystemClock.now(), ..self }
    }
}

#[cfg(test)]
impl Screen {
    /// Without colours, at noon of 31 March 2026 UTC.
    pub(crate) fn for_tests(width: Option<u16>) -> Self {
        let now = Timestamp::from_millis(1_774_958_400_000);
        Self { width, color: false, utc: false, full: false, now, offset: UtcOffset::UTC }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Good,
    Busy,
    Waiting,
    Bad,
    /// Ended, or less important.
    Dim,
    Bold,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\u{1b}[32m",
            Self::Busy => "\u{1b}[33m",
            Self::Waiting => "\u{1b}[36m",
            Self::Bad => "\u{1b}[31m",
            Self::Dim => "\u{1b}[2m",
            Self::Bold => "\u{1b}[1m",
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

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// `at` relative to `now`: "3 min ago", "in 2 h"; the date beyond 30 days.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    let millis = now.as_millis().saturating_sub(at.as_millis());
    let seconds = (millis / 1000).abs();
    let length = match seconds {
        0..5 => return "now".to_owned(),
        5..MINUTE => format!("{seconds} s"),
        MINUTE..HOUR => format!("{} min", seconds / MINUTE),
        HOUR..DAY => format!("{} h", seconds / HOUR),
        _ if seconds < 2 * DAY => "1 day".to_owned(),
        _ if seconds <= 30 * DAY => format!("{} days", seconds / DAY),
        _ => return at.to_string().chars().take(10).collect(),
    };
    if millis < 0 { format!("in {length}") } else { format!("{length} ago") }
}

/// Formats `at` (RFC 3339) for the beginning of a line: on a screen the local time, with the day if
/// it is not today; unchanged for a program and with `--utc`.
pub(crate) fn clock(screen: &Screen, at: &str) -> String {
    let local = |at: Timestamp| {
        let seconds = at.as_millis().div_euclid(1000);
        Some(OffsetDateTime::from_unix_timestamp(seconds).ok()?.to_offset(screen.offset))
    };
    if !screen.is_for_people() || screen.utc {
        return at.to_owned();
    }
    let Some((at, now)) = Timestamp::parse(at).and_then(local).zip(local(screen.now)) else {
        return at.to_owned();
    };
    let (hour, minute, second) = at.to_hms();
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    let day = (at.date() != now.date()).then(|| format!("{} ", at.date()));
    let text = format!("{}{time}", day.unwrap_or_default());
    if screen.color { Style::Dim.paint(&text) } else { text }
}

#[cfg(test)]
mod tests {
    use time::UtcOffset;

    use super::*;

    #[test]
    fn relative_times_by_table() {
        let now = Timestamp::parse("2026-03-31T12:00:00Z").expect("a time");
        for (at, is) in [
            ("2026-03-31T12:00:00Z", "now"),
            ("2026-03-31T11:59:56Z", "now"),
            ("2026-03-31T11:59:55Z", "5 s ago"),
            ("2026-03-31T11:59:01Z", "59 s ago"),
            ("2026-03-31T11:59:00Z", "1 min ago"),
            ("2026-03-31T11:00:01Z", "59 min ago"),
            ("2026-03-31T11:00:00Z", "1 h ago"),
            ("2026-03-30T12:00:01Z", "23 h ago"),
            ("2026-03-30T12:00:00Z", "1 day ago"),
            ("2026-03-29T12:00:00Z", "2 days ago"),
            ("2026-03-01T12:00:00Z", "30 days ago"),
            ("2026-03-01T11:59:00Z", "2026-03-01"),
            ("2026-03-31T12:03:00Z", "in 3 min"),
            ("2027-03-31T12:03:00Z", "2027-03-31"),
        ] {
            assert_eq!(relative(Timestamp::parse(at).expect("a time"), now), is, "{at}");
        }
    }

    #[test]
    fn clock_shows_local_time() {
        let now = Timestamp::parse("2026-03-31T23:30:00Z").expect("a time");
        let offset = UtcOffset::from_hms(2, 0, 0).expect("an offset");
        let screen = Screen { now, offset, ..Screen::for_tests(Some(80)) };
        assert_eq!(clock(&screen, "2026-03-31T23:29:58.123Z"), "01:29:58");
        assert_eq!(clock(&screen, "2026-03-31T11:29:58.123Z"), "2026-03-31 13:29:58");
        assert_eq!(clock(&screen, "no time"), "no time");
        let at = "2026-03-31T11:29:58.123Z";
        assert_eq!(clock(&Screen { utc: true, ..screen }, at), at);
        assert_eq!(clock(&Screen { width: None, ..screen }, at), at);
    }
}
