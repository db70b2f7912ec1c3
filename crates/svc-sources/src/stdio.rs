//! A server's pipes: one message a line, and its error output, which is always read.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use svc_sys::lines::LineReader;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    connection::{ChildMessage, SourceConnection},
    stderr::StderrLines,
};

/// Longest message of a server, in bytes.
pub(super) const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// How much of a server's error output is kept.
const LOG_BYTES: usize = 64 * 1024;
/// Longest line of error output that goes out as one event.
const LOG_LINE: usize = 4096;
/// Error output that is read in one second, in bytes. A server that writes more waits, and costs this daemon no more.
const LOG_RATE: usize = 4 * 1024 * 1024;
/// Length of that window.
const LOG_WINDOW: Duration = Duration::from_secs(1);

/// The end of a server's error output.
#[derive(Debug, Default)]
pub(super) struct ServerLog(Mutex<VecDeque<u8>>);

impl ServerLog {
    fn add(&self, text: &str) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(text.as_bytes());
        let excess = kept.len().saturating_sub(LOG_BYTES);
        kept.drain(..excess);
    }

    /// What is kept.
    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept.iter().copied().collect::<Vec<u8>>()).into_owned()
    }

    /// The last line, for a reason.
    pub(super) fn last_line(&self) -> Option<String> {
        let text = self.text();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(300).collect())
    }
}

/// What waits is written at once up to so many bytes: a busy server is woken once for many calls.
const AT_ONCE: usize = 64 * 1024;

/// Writes what is to be sent until the connection or the server ends. Dropping the pipe ends the server's input.
pub(super) async fn write(
    connection: Arc<SourceConnection>,
    mut messages: mpsc::Receiver<ChildMessage>,
    mut stdin: ChildStdin,
) {
    loop {
        let message = tokio::select! {
            biased;
            () = connection.closed.cancelled() => return,
            message = messages.recv() => message,
        };
        let Some(message) = message else { return };
        let mut text = message.into_text();
        text.push('\n');
        while text.len() < AT_ONCE {
            let Ok(more) = messages.try_recv() else { break };
            text.push_str(&more.into_text());
            text.push('\n');
        }
        let written = tokio::select! {
            biased;
            () = connection.closed.cancelled() => return,
            written = stdin.write_all(text.as_bytes()) => written,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Reads messages until the server ends; the error says what it did wrong.
pub(super) async fn read(
    connection: Arc<SourceConnection>,
    stdout: ChildStdout,
) -> Result<(), String> {
    let mut lines = LineReader::new(stdout, 64 * 1024, MAX_MESSAGE);
    while let Ok(Some(line)) = lines.next().await {
        if line.is_cut {
            return Err("it sent a message of more than 16 MiB".to_owned());
        }
        if let Ok(text) = std::str::from_utf8(line.bytes) {
            let text = text.trim();
            if !text.is_empty() {
                connection.take(text).await;
            }
        }
    }
    Ok(())
}

/// Reads the error output until the server ends, without secrets.
pub(super) async fn read_log(
    connection: Arc<SourceConnection>,
    mut stderr: ChildStderr,
    log: Arc<ServerLog>,
    lines: StderrLines,
) {
    let (mut buffer, mut rest) = (vec![0; 8192], Vec::new());
    let (mut window_end, mut in_window) = (Instant::now() + LOG_WINDOW, 0);
    while let Ok(read) = stderr.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        in_window += read;
        if Instant::now() >= window_end || in_window > LOG_RATE {
            // Its end has come, or is waited for.
            sleep_until(window_end).await;
            (window_end, in_window) = (Instant::now() + LOG_WINDOW, read);
        }
        rest.extend_from_slice(&buffer[..read]);
        // Only whole lines: a secret might be cut in two.
        let end = rest.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        if let Some(end) = end {
            let whole: Vec<u8> = rest.drain(..end).collect();
            keep(&connection, &whole, &log, &lines);
        }
        if rest.len() > LOG_BYTES {
            let text = String::from_utf8_lossy(&rest);
            let text = connection.hide(&text);
            // What may be the beginning of a secret waits for the rest of it.
            let (whole, begun) = text.split_at(text.floor_char_boundary(text.len() - LOG_LINE));
            keep(&connection, whole.as_bytes(), &log, &lines);
            rest = begun.as_bytes().to_vec();
        }
    }
    if !rest.is_empty() {
        keep(&connection, &rest, &log, &lines);
    }
}

fn keep(connection: &SourceConnection, bytes: &[u8], log: &ServerLog, lines: &StderrLines) {
    let text = String::from_utf8_lossy(bytes);
    let text = connection.hide(&text);
    log.add(&text);
    for line in text.lines().filter(|line| !line.is_empty()) {
        lines.say(&line[..line.floor_char_boundary(LOG_LINE)]);
    }
}
