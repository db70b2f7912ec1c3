//! From the pipes of the program to the spool: bytes become lines that fit into frames.

use std::sync::Arc;
use std::time::Duration;

use svc_model::FrameKind;
use svc_sys::lines::{Line, LineSplitter};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::event::{EventNumbering, OutputFrame, RunNotice, RunObserver, timestamp};
use super::sender::SpoolProgress;
use super::spool::Spool;

/// How long a pipe may stay open in silence after the program: a background process holds it.
const LINGER: Duration = Duration::from_secs(2);
/// Lines that may wait between the pipes and the spool.
pub(super) const QUEUE: usize = 256;
const BLOCK: usize = 64 * 1024;
/// Longest line of one frame, in bytes of JSON text. A request holds several.
const MAX_LINE: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct PipeReader<O> {
    pub(super) kind: FrameKind,
    pub(super) frames: mpsc::Sender<OutputFrame>,
    pub(super) observer: Arc<O>,
    pub(super) ended: watch::Receiver<bool>,
}

impl<O: RunObserver> PipeReader<O> {
    /// Reads to the end of the pipe, or until it is silent after the program has ended.
    pub(super) async fn run(mut self, mut pipe: impl AsyncRead + Unpin + Send) {
        let (mut splitter, mut lines) = (OutputLines::new(), Vec::new());
        let mut block = vec![0; BLOCK];
        loop {
            let count = tokio::select! {
                biased;
                count = pipe.read(&mut block) => count.unwrap_or(0),
                () = silence(&mut self.ended) => 0,
            };
            if count == 0 {
                splitter.finish(&mut lines);
            } else {
                splitter.push(&block[..count], &mut lines);
            }
            let ts = timestamp();
            for line in lines.drain(..) {
                let frame = OutputFrame { line, kind: self.kind, ts: ts.clone() };
                self.frames.send(frame).await.ok();
            }
            if count == 0 {
                return;
            }
            self.observer.output(self.kind, &block[..count]).await;
        }
    }
}

async fn silence(ended: &mut watch::Receiver<bool>) {
    ended.wait_for(|ended| *ended).await.ok();
    sleep(LINGER).await;
}

#[derive(Debug)]
pub(super) struct FrameRecorder<O> {
    pub(super) spool: Spool,
    pub(super) numbering: EventNumbering,
    pub(super) progress: watch::Sender<SpoolProgress>,
    pub(super) observer: Arc<O>,
}

impl<O: RunObserver> FrameRecorder<O> {
    /// Writes until every pipe has ended, all frames that wait at once.
    pub(super) async fn run(mut self, mut frames: mpsc::Receiver<OutputFrame>) -> Self {
        let mut batch = Vec::with_capacity(QUEUE);
        let mut has_failed = false;
        while frames.recv_many(&mut batch, QUEUE).await > 0 {
            let mut lines = Vec::new();
            for frame in &batch {
                lines.extend(self.numbering.line("frame", frame).unwrap_or_default());
            }
            match self.spool.append(&lines) {
                Ok(()) => self.publish(false),
                // The program goes on; one notice is enough.
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    let problem = error.to_string();
                    self.observer.notice(RunNotice::SpoolFailed { problem });
                }
                Err(_) => {}
            }
            for frame in batch.drain(..) {
                self.observer.frame_recorded(&frame).await;
            }
        }
        self
    }

    /// Tells the sender how far the spool is.
    pub(super) fn publish(&self, finished: bool) {
        self.progress.send_modify(|progress| {
            (progress.written, progress.finished) = (self.spool.written(), finished);
        });
    }
}

/// Bytes into lines of text.
///
/// A carriage return before a line feed is dropped, invalid UTF-8 and U+0000 become U+FFFD, and a
/// line over [`MAX_LINE`] comes in pieces that together are the line.
#[derive(Debug)]
struct OutputLines(LineSplitter);

impl OutputLines {
    fn new() -> Self {
        Self(LineSplitter::in_parts(MAX_LINE))
    }

    fn push(&mut self, bytes: &[u8], lines: &mut Vec<String>) {
        self.0.push(bytes, |line| take(line, lines));
    }

    /// An unfinished last line is a line too.
    fn finish(&mut self, lines: &mut Vec<String>) {
        self.0.finish(|line| take(line, lines));
    }
}

fn take(line: Line<'_>, lines: &mut Vec<String>) {
    let bytes = line.bytes;
    let bytes = if line.has_end { bytes.strip_suffix(b"\r").unwrap_or(bytes) } else { bytes };
    // The parts before held all of a long line.
    if !(line.is_cut && bytes.is_empty()) {
        pieces(&String::from_utf8_lossy(bytes).replace('\0', "\u{FFFD}"), lines);
    }
}

/// Cuts by the length in JSON, where a control character takes six bytes.
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
        let (mut splitter, mut lines) = (OutputLines::new(), Vec::new());
        splitter.push(bytes, &mut lines);
        splitter.finish(&mut lines);
        lines
    }

    #[test]
    fn output_is_cut_at_line_feeds() {
        let cases: &[(&[u8], &[&str])] = &[
            (b"", &[]),
            (b"a", &["a"]),
            (b"a\n", &["a"]),
            (b"a\nb", &["a", "b"]),
            (b"\n\n", &["", ""]),
            (b"a\r\nb\r", &["a", "b\r"]),
            (b"50%\r100%\n", &["50%\r100%"]),
            (b"\xFFx\n", &["\u{FFFD}x"]),
            (b"a\0b\n", &["a\u{FFFD}b"]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(split(bytes), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn long_line_comes_in_pieces_that_fit_a_frame() {
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
            let fits = |line| serde_json::to_string(line).expect("text").len() <= MAX_LINE + 2;
            assert!(lines.iter().all(fits));
            let (last, pieces) = lines.split_last().expect("there are lines");
            assert!(last == "next" && pieces.concat() == text, "{} pieces", pieces.len());
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }
}
