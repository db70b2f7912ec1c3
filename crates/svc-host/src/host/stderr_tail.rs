//! What an agent said last on standard error: an error of it tells that.

use std::collections::VecDeque;

use anstream::adapter::strip_str;

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
        let plain = strip_str(&text).to_string();
        self.lines.push_back(plain.chars().take(WIDTH).collect());
    }

    /// An error, and behind it what the agent said, if it did.
    pub(super) fn explain(&self, error: String) -> String {
        let lines: Vec<_> = self.lines.iter().map(String::as_str).collect();
        let text = lines.join("\n");
        let text = text.trim();
        if text.is_empty() { error } else { format!("{error}; it said:\n{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_removed_and_words_stay() {
        for (text, is) in [
            ("\u{1b}[2m2026-03-31\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m lost", "2026-03-31 ERROR lost"),
            ("\u{1b}]0;title\u{7}words", "words"),
            ("\u{1b}]0;title\u{1b}\\words", "words"),
            ("\u{1b}7words", "words"),
            ("[31m is no sequence", "[31m is no sequence"),
            ("cut \u{1b}[3", "cut "),
            ("größer \u{9b}", "größer \u{9b}"),
            ("", ""),
        ] {
            let mut tail = StderrTail::default();
            tail.push(text.as_bytes());
            assert_eq!(tail.lines, [is], "{text:?}");
        }
    }
}
