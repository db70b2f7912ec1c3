//! The properties of standard output: a person's screen, or a program.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use svc_model::{Clock as _, SystemClock, Timestamp};
use svc_sys::config::Env;
use time::UtcOffset;

use super::relative_time::relative;

/// Width of a terminal that does not report it, in columns.
const USUAL: u16 = 80;
/// Least width, in columns.
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
    /// The time that relative times refer to.
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
    pub(crate) fn of_process(env: &Env, color: ColorChoice, utc: bool) -> Self {
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
        Self { width, color, utc, now: SystemClock.now(), offset }
    }

    /// Whether a person reads the output.
    pub(crate) fn is_for_people(&self) -> bool {
        self.width.is_some()
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
