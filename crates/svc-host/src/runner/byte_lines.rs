//! Bytes into lines, each as it came.

/// Longest line that is kept, in bytes. What follows up to the end of the line is dropped.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// Capacity that is kept for the next line after a long one.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Cuts a stream of bytes into lines, wherever the pieces begin and end. A line ends at a line feed, which is not a part
/// of it; the last line needs none.
#[derive(Debug, Default)]
pub(crate) struct ByteLines {
    rest: Vec<u8>,
    /// Whether bytes of the present line were dropped.
    cut: bool,
}

/// A line without its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteLine<'a> {
    pub(crate) bytes: &'a [u8],
    /// Whether it went on.
    pub(crate) cut: bool,
}

impl ByteLines {
    /// Takes the next bytes, and gives each line that they complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(ByteLine<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            if self.rest.is_empty() && !self.cut {
                line(ByteLine { bytes: &bytes[..end], cut: false });
            } else {
                self.keep(&bytes[..end]);
                self.give(&mut line);
            }
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    /// The stream is over: an unfinished line is a line too.
    pub(crate) fn finish(&mut self, mut line: impl FnMut(ByteLine<'_>)) {
        if !self.rest.is_empty() {
            self.give(&mut line);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_LINE - self.rest.len();
        self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.cut |= bytes.len() > room;
    }

    fn give(&mut self, line: &mut impl FnMut(ByteLine<'_>)) {
        line(ByteLine { bytes: &self.rest, cut: self.cut });
        self.cut = false;
        self.rest.clear();
        self.rest.shrink_to(KEPT_CAPACITY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let (mut splitter, mut all) = (ByteLines::default(), Vec::new());
        let mut take = |line: ByteLine<'_>| all.push((line.bytes.to_vec(), line.cut));
        for chunk in chunks {
            splitter.push(chunk, &mut take);
        }
        splitter.finish(&mut take);
        all
    }

    #[test]
    fn bytes_stay_as_they_came() {
        let expected: [(&[u8], bool); 4] =
            [(b"a\r", false), (b"", false), (b"\xff\x00", false), (b"end", false)];
        let expected: Vec<_> = expected.map(|(line, cut)| (line.to_vec(), cut)).into();
        assert_eq!(lines(&[b"a\r\n\n\xff", b"\x00\ne", b"nd"]), expected);
    }

    #[test]
    fn a_line_beyond_the_limit_is_cut_and_the_next_is_whole() {
        let long = vec![b'x'; MAX_LINE + 1];
        let lines = lines(&[&long, b"more\n", b"next\n"]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].1 && lines[0].0.len() == MAX_LINE);
        assert_eq!(lines[1], (b"next".to_vec(), false));
        let just = vec![b'x'; MAX_LINE];
        assert!(!self::lines(&[&just, b"\n"])[0].1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn chunks_do_not_matter(text in "[a\n]{0,40}", cut in 0_usize..40) {
            let bytes = text.as_bytes();
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            let given: Vec<_> = lines(&[head, tail]).into_iter().map(|(line, _)| line).collect();
            let mut expected: Vec<_> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            if expected.last().is_some_and(Vec::is_empty) {
                expected.pop();
            }
            prop_assert_eq!(given, expected);
        }
    }
}
