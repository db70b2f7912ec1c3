//! Bytes into lines.

/// Longest line of one frame, in bytes of JSON text. A request has room for several.
const MAX_LINE: usize = 256 * 1024;

/// Cuts a stream of bytes into lines, wherever the pieces begin and end.
///
/// A line ends at a line feed, a carriage return before it is dropped, and the last line needs neither. What is not
/// UTF-8 becomes U+FFFD. A line over [`MAX_LINE`] comes in several pieces that together are the line.
#[derive(Debug, Default)]
pub(super) struct OutputLines {
    rest: Vec<u8>,
    /// Whether a piece of the present line was given out already, so that an empty rest is no line of its own.
    continued: bool,
}

impl OutputLines {
    /// Takes the next bytes and appends the lines that they complete.
    pub(super) fn push(&mut self, bytes: &[u8], lines: &mut Vec<String>) {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end], lines);
            if self.rest.last() == Some(&b'\r') {
                self.rest.pop();
            }
            self.end(lines);
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes, lines);
    }

    /// The stream is over: an unfinished line is a line too.
    pub(super) fn finish(&mut self, lines: &mut Vec<String>) {
        if !self.rest.is_empty() {
            self.end(lines);
        }
    }

    fn extend(&mut self, bytes: &[u8], lines: &mut Vec<String>) {
        self.rest.extend_from_slice(bytes);
        while self.rest.len() > MAX_LINE {
            let cut = char_start(&self.rest, MAX_LINE);
            let piece: Vec<u8> = self.rest.drain(..cut).collect();
            pieces(&String::from_utf8_lossy(&piece), lines);
            self.continued = true;
        }
    }

    fn end(&mut self, lines: &mut Vec<String>) {
        let continued = std::mem::take(&mut self.continued);
        if !(continued && self.rest.is_empty()) {
            pieces(&String::from_utf8_lossy(&self.rest), lines);
        }
        self.rest.clear();
    }
}

/// The last index at or before `at` where a character may begin.
fn char_start(bytes: &[u8], at: usize) -> usize {
    (at.saturating_sub(3)..=at).rev().find(|at| bytes[*at] & 0xC0 != 0x80).unwrap_or(at)
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
    use proptest::prelude::*;

    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut lines) = (OutputLines::default(), Vec::new());
        for chunk in chunks {
            splitter.push(chunk, &mut lines);
        }
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
            assert_eq!(split(&[bytes]), *expected, "{bytes:?}");
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
            let lines = split(&[text.as_bytes(), b"\nnext\n"]);
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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_chunking_gives_the_same_lines(
            text in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(0xC3), any::<u8>()], 0..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let cut = cut.index(text.len() + 1);
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            prop_assert_eq!(split(&[&text[..cut], &text[cut..]]), split(&[&text]));
            prop_assert_eq!(split(&bytes), split(&[&text]));
        }
    }
}
