//! Bytes into lines of text that fit into frames.

use svc_sys::lines::{Line, LineSplitter};

/// Longest line of one frame, in bytes of JSON text. A request has room for several.
const MAX_LINE: usize = 256 * 1024;

/// Cuts a stream of bytes into lines of text.
///
/// A carriage return before a line feed is dropped, and what is not UTF-8 becomes U+FFFD. A line over [`MAX_LINE`] comes in several
/// pieces that together are the line.
#[derive(Debug)]
pub(super) struct OutputLines(LineSplitter);

impl Default for OutputLines {
    fn default() -> Self {
        Self(LineSplitter::in_parts(MAX_LINE))
    }
}

impl OutputLines {
    /// Takes the next bytes and appends the lines that they complete.
    pub(super) fn push(&mut self, bytes: &[u8], lines: &mut Vec<String>) {
        self.0.push(bytes, |line| take(line, lines));
    }

    /// The stream is over: an unfinished line is a line too.
    pub(super) fn finish(&mut self, lines: &mut Vec<String>) {
        self.0.finish(|line| take(line, lines));
    }
}

fn take(line: Line<'_>, lines: &mut Vec<String>) {
    let bytes = line.bytes;
    let bytes = if line.has_end { bytes.strip_suffix(b"\r").unwrap_or(bytes) } else { bytes };
    // All of a long line was given in the parts before.
    if !(line.is_cut && bytes.is_empty()) {
        pieces(&String::from_utf8_lossy(bytes), lines);
    }
}

/// Cuts by the length that JSON makes of the text: one control character becomes six.
fn pieces(text: &str, lines: &mut Vec<String>) {
    let (mut start, mut cost) = (0, 0);
    for (at, c) in text.char_indices() {
        let more = json_cost(c);
        if cost + more > MAX_LINE {
            lines.push(text[start..at].to_owned());
            (start, cost) = (at, 0);
        }
        cost += more;
    }
    lines.push(text[start..].to_owned());
}

fn json_cost(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(bytes: &[u8]) -> Vec<String> {
        let (mut splitter, mut lines) = (OutputLines::default(), Vec::new());
        splitter.push(bytes, &mut lines);
        splitter.finish(&mut lines);
        lines
    }

    #[test]
    fn lines_are_what_people_expect() {
        let cases: &[(&[u8], &[&str])] = &[
            (b"", &[]),
            (b"a", &["a"]),
            (b"a\n", &["a"]),
            (b"a\nb", &["a", "b"]),
            (b"\n\n", &["", ""]),
            (b"a\r\nb\r", &["a", "b\r"]),
            (b"50%\r100%\n", &["50%\r100%"]),
            (b"\xFFx\n", &["\u{FFFD}x"]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(split(bytes), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn long_lines_come_in_pieces_that_fit() {
        let texts = [
            "x".repeat(MAX_LINE),
            "x".repeat(MAX_LINE + 1),
            "x".repeat(2 * MAX_LINE),
            "é".repeat(MAX_LINE),
            "\u{1}".repeat(MAX_LINE),
            format!("x{}", "€".repeat(MAX_LINE / 2)),
        ];
        for text in texts {
            let lines = split(format!("{text}\nnext\n").as_bytes());
            assert!(
                lines
                    .iter()
                    .all(|line| serde_json::to_string(line).expect("text").len() <= MAX_LINE + 2)
            );
            let (last, pieces) = lines.split_last().expect("there are lines");
            assert!(last == "next" && pieces.concat() == text, "{} pieces", pieces.len());
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }
}
