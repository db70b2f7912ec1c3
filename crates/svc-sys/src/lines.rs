//! Splits bytes into lines of bounded length, whatever the chunks of input.
//!
//! A line ends at a line feed, which is not part of it; the last line needs none. [`LineSplitter`]
//! takes bytes that its caller has read, [`LineReader`] reads them itself. Neither treats a
//! carriage return as an end.

use std::io;

use memchr::memchr;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// Capacity of the buffer that is kept after a long line.
const KEPT_CAPACITY: usize = 64 * 1024;

/// A line without its line feed, or a part of a line that exceeds the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// At most `bound` bytes.
    pub bytes: &'a [u8],
    /// The line exceeds the bound, so these are not all of its bytes.
    pub is_cut: bool,
    /// Whether a line feed follows. False for every part but the last; may be false for the last
    /// line.
    pub has_end: bool,
}

/// What happens to the bytes of a line beyond the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excess {
    Dropped,
    NextPart,
}

#[derive(Debug)]
pub struct LineSplitter {
    bound: usize,
    excess: Excess,
    rest: Vec<u8>,
    /// The current line has exceeded the bound.
    is_cut: bool,
}

impl LineSplitter {
    /// Drops the rest of a line that exceeds `bound` bytes.
    pub const fn dropping_excess(bound: usize) -> Self {
        Self { bound, excess: Excess::Dropped, rest: Vec::new(), is_cut: false }
    }

    /// Returns a line that exceeds `bound` bytes in parts. No part ends within a UTF-8 character.
    /// The last part has the line's end and may be empty.
    pub const fn in_parts(bound: usize) -> Self {
        Self { bound, excess: Excess::NextPart, rest: Vec::new(), is_cut: false }
    }

    /// Passes each line that `bytes` complete to `take`.
    pub fn push(&mut self, mut bytes: &[u8], mut take: impl FnMut(Line<'_>)) {
        while let Some(end) = memchr(b'\n', bytes) {
            if self.rest.is_empty() && !self.is_cut && end <= self.bound {
                take(Line { bytes: &bytes[..end], is_cut: false, has_end: true });
            } else {
                self.keep(&bytes[..end], &mut take);
                self.give(true, &mut take);
            }
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes, &mut take);
    }

    /// Ends the stream: an unfinished line counts as a line.
    pub fn finish(&mut self, mut take: impl FnMut(Line<'_>)) {
        if !self.rest.is_empty() {
            self.give(false, &mut take);
        }
    }

    fn keep(&mut self, bytes: &[u8], take: &mut impl FnMut(Line<'_>)) {
        if self.excess == Excess::Dropped {
            let room = self.bound - self.rest.len();
            self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
            self.is_cut |= bytes.len() > room;
            return;
        }
        self.rest.extend_from_slice(bytes);
        while self.rest.len() > self.bound {
            let end = char_start(&self.rest, self.bound);
            take(Line { bytes: &self.rest[..end], is_cut: true, has_end: false });
            self.rest.drain(..end);
            self.is_cut = true;
        }
    }

    fn give(&mut self, has_end: bool, take: &mut impl FnMut(Line<'_>)) {
        take(Line { bytes: &self.rest, is_cut: self.is_cut, has_end });
        self.is_cut = false;
        self.rest.clear();
        self.rest.shrink_to(KEPT_CAPACITY);
    }
}

/// The last index up to `at` where a character may begin.
fn char_start(bytes: &[u8], at: usize) -> usize {
    let first = at.saturating_sub(3).max(1);
    (first..=at).rev().find(|at| bytes[*at] & 0xC0 != 0x80).unwrap_or(at)
}

/// A value as one line of JSON, with its line feed.
pub fn json_line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads lines from a stream. `next` is cancel-safe.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: BufReader<R>,
    bound: usize,
    line: Vec<u8>,
    is_given: bool,
    /// The rest of the current line is to be skipped.
    skips: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads about `block` bytes at once; lines have at most `bound` bytes.
    pub fn new(reader: R, block: usize, bound: usize) -> Self {
        let reader = BufReader::with_capacity(block, reader);
        Self { reader, bound, line: Vec::new(), is_given: false, skips: false }
    }

    /// The next line, or `None` at the end. A line that exceeds the bound is returned once, cut,
    /// without a wait for its rest, which is skipped.
    pub async fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        if std::mem::take(&mut self.is_given) {
            self.line.clear();
            self.line.shrink_to(KEPT_CAPACITY);
        }
        loop {
            let block = self.reader.fill_buf().await?;
            let end = memchr(b'\n', block);
            let piece = &block[..end.unwrap_or(block.len())];
            let (is_over, used) = (block.is_empty(), end.map_or(piece.len(), |end| end + 1));
            let room = if self.skips { 0 } else { self.bound - self.line.len() };
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            let is_cut = !self.skips && piece.len() > room;
            self.reader.consume(used);
            if is_cut {
                (self.skips, self.is_given) = (end.is_none(), true);
                return Ok(Some(Line { bytes: &self.line, is_cut, has_end: false }));
            }
            if self.skips {
                self.skips = end.is_none() && !is_over;
            } else if end.is_some() || (is_over && !self.line.is_empty()) {
                self.is_given = true;
                return Ok(Some(Line { bytes: &self.line, is_cut, has_end: end.is_some() }));
            }
            if is_over {
                return Ok(None);
            }
        }
    }

    /// Whether another whole line is buffered.
    pub fn has_line(&self) -> bool {
        memchr(b'\n', self.reader.buffer()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line, whether it was cut, and whether it had an end.
    type Seen = (Vec<u8>, bool, bool);

    fn split(mut splitter: LineSplitter, chunks: &[&[u8]]) -> Vec<Seen> {
        let mut all = Vec::new();
        let mut take = |line: Line<'_>| all.push((line.bytes.to_vec(), line.is_cut, line.has_end));
        for chunk in chunks {
            splitter.push(chunk, &mut take);
        }
        splitter.finish(&mut take);
        all
    }

    async fn read(text: &[u8], block: usize, bound: usize) -> Vec<Seen> {
        let (mut reader, mut all) = (LineReader::new(text, block, bound), Vec::new());
        while let Some(line) = reader.next().await.expect("memory does not fail") {
            all.push((line.bytes.to_vec(), line.is_cut, line.has_end));
        }
        all
    }

    type LineCase = (&'static [u8], bool, bool);

    fn seen(lines: &[LineCase]) -> Vec<Seen> {
        lines.iter().map(|(bytes, cut, end)| (bytes.to_vec(), *cut, *end)).collect()
    }

    #[tokio::test]
    async fn lines_do_not_depend_on_chunks() {
        let cases: &[(&[u8], &[LineCase])] = &[
            (b"", &[]),
            (b"a", &[(b"a", false, false)]),
            (
                b"a\r\n\n\xff\x00",
                &[(b"a\r", false, true), (b"", false, true), (b"\xff\x00", false, false)],
            ),
            (b"12345\nx", &[(b"1234", true, true), (b"x", false, false)]),
            (b"1234\n123456", &[(b"1234", false, true), (b"1234", true, false)]),
        ];
        for (text, expected) in cases {
            let pieces: Vec<&[u8]> = text.chunks(1).collect();
            for cut in 0..=text.len() {
                let halves = [&text[..cut], &text[cut..]];
                assert_eq!(split(LineSplitter::dropping_excess(4), &halves), seen(expected));
            }
            assert_eq!(split(LineSplitter::dropping_excess(4), &pieces), seen(expected));
            // A reader returns a cut line before it reads the line's end.
            let read_expected: Vec<Seen> = seen(expected)
                .into_iter()
                .map(|(line, cut, end)| (line, cut, end && !cut))
                .collect();
            for block in 1..=text.len() + 1 {
                assert_eq!(read(text, block, 4).await, read_expected, "{block}");
            }
        }
    }

    #[test]
    fn parts_add_up_to_the_line() {
        let in_parts = |text: &[u8]| {
            let whole = split(LineSplitter::in_parts(4), &[text]);
            for cut in 0..text.len() {
                let halves = [&text[..cut], &text[cut..]];
                assert_eq!(split(LineSplitter::in_parts(4), &halves), whole, "{cut}");
            }
            whole
        };
        assert_eq!(
            in_parts(b"12345678\nnext\n"),
            seen(&[(b"1234", true, false), (b"5678", true, true), (b"next", false, true),])
        );
        // No part ends within a character; invalid UTF-8 is split as well.
        let text = "ab€cd".as_bytes();
        assert_eq!(
            in_parts(text),
            seen(&[(b"ab", true, false), ("€c".as_bytes(), true, false), (b"d", true, false)])
        );
        let parts = in_parts(&[0x80; 9]);
        assert_eq!(parts.iter().map(|(part, ..)| part.len()).collect::<Vec<_>>(), [4, 4, 1]);
    }

    #[tokio::test]
    async fn reader_is_cancel_safe() {
        use tokio::io::AsyncWriteExt as _;

        let (mut writer, reader) = tokio::io::duplex(64);
        let mut lines = LineReader::new(reader, 16, 16);
        writer.write_all(b"one").await.unwrap();
        {
            let next = std::pin::pin!(lines.next());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(next.poll(&mut context).is_pending());
        }
        writer.write_all(b" line\nmore\n").await.unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap().bytes, b"one line");
        assert!(lines.has_line());
        assert_eq!(lines.next().await.unwrap().unwrap().bytes, b"more");
        assert!(!lines.has_line());
    }
}
