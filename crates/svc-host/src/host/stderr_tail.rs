//! What an agent said last on standard error: an error of it tells that.

use std::collections::VecDeque;

use super::ansi::without_ansi;

/// Lines that are kept.
const LINES: usize = 20;
/// Longest line that is kept, in characters.
const WIDTH: usize = 500;

/// The last lines of standard error, without colours.
#[derive(Debug, Default)]
pub(super) struct StderrTail {
    lines: VecDeque<String>,
}

impl StderrTail {
    pub(super) fn push(&mut self, line: &[u8]) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * WIDTH)]);
        self.lines.push_back(without_ansi(&text).chars().take(WIDTH).collect());
    }

    /// An error, and behind it what the agent said, if it did.
    pub(super) fn explain(&self, error: String) -> String {
        let lines: Vec<_> = self.lines.iter().map(String::as_str).collect();
        let text = lines.join("\n");
        let text = text.trim();
        if text.is_empty() { error } else { format!("{error}; it said:\n{text}") }
    }
}
