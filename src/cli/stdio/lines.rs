//! Standard input and output as lines, one JSON document each.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::super::output;

/// Longest line that is taken, in bytes: the daemon takes no larger body.
pub(super) const MAX_LINE: usize = 4 * 1024 * 1024;
/// Lines that wait for the client. When the queue is full the exchanges wait, so memory stays bounded.
const QUEUE: usize = 64;
/// Bytes read at once.
const BLOCK: usize = 64 * 1024;

/// A line of the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputLine {
    /// A line without its end.
    Whole(Vec<u8>),
    /// A line longer than [`MAX_LINE`], which was skipped.
    TooLong,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct LineReader<R> {
    reader: BufReader<R>,
}

impl<R: AsyncRead + Unpin + Send> LineReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(BLOCK, reader) }
    }

    /// The next line that is not blank, or `None` at the end. The last line needs no end.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<InputLine>> {
        let (mut line, mut too_long) = (Vec::new(), false);
        loop {
            let bytes = self.reader.fill_buf().await?;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if too_long || line.len() + piece.len() > MAX_LINE {
                too_long = true;
                line = Vec::new();
            } else {
                line.extend_from_slice(piece);
            }
            let (over, used) = (bytes.is_empty(), end.map_or(piece.len(), |end| end + 1));
            self.reader.consume(used);
            if end.is_none() && !over {
                continue;
            }
            if too_long {
                return Ok(Some(InputLine::TooLong));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(InputLine::Whole(line)));
            }
            if over {
                return Ok(None);
            }
            line.clear();
        }
    }
}

/// Writes lines, each whole. Cheap to clone; the writing ends when the last clone is gone.
#[derive(Debug, Clone)]
pub(super) struct LineWriter(mpsc::Sender<String>);

impl LineWriter {
    /// Standard output, and the task that writes to it. The task ends early if nobody reads.
    pub(super) fn stdout() -> (Self, JoinHandle<anyhow::Result<()>>) {
        let (sender, mut lines) = mpsc::channel::<String>(QUEUE);
        let writing = spawn_blocking(move || {
            while let Some(line) = lines.blocking_recv() {
                output::exact(format!("{line}\n").as_bytes())?;
            }
            Ok(())
        });
        (Self(sender), writing)
    }

    /// Writes one message, which has no line break in it.
    pub(super) async fn send(&self, message: String) {
        debug_assert!(!message.contains('\n'), "one message is one line");
        // Fails when nobody reads any more, and then the whole bridge ends.
        self.0.send(message).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &[u8]) -> Vec<InputLine> {
        let (mut input, mut lines) = (LineReader::new(text), Vec::new());
        while let Some(line) = input.next().await.expect("memory does not fail") {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn lines_end_where_they_should() {
        let whole = |text: &str| InputLine::Whole(text.as_bytes().to_vec());
        let cases: Vec<(&[u8], Vec<InputLine>)> = vec![
            (b"", vec![]),
            (b"a\nb", vec![whole("a"), whole("b")]),
            (b"\n \r\na\r\n\n", vec![whole("a\r")]),
        ];
        for (text, expected) in cases {
            assert_eq!(lines(text).await, expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_costs_itself_alone() {
        let largest = vec![b'x'; MAX_LINE];
        let text = [&largest, b"\n".as_slice(), &largest, b"y\nz\n", &largest, b"yy"].concat();
        let read = lines(&text).await;
        let expected = [
            InputLine::Whole(largest),
            InputLine::TooLong,
            InputLine::Whole(b"z".to_vec()),
            InputLine::TooLong,
        ];
        assert!(read == expected, "{} lines", read.len());
    }
}
