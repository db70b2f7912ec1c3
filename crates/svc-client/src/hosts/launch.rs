//! Starting a host: `svc agent host`, with what it needs to know on its standard input and one line of answer.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use svc_model::agent::{HostSpec, HostStarted};
use svc_sys::lines::LineReader;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// A host that has not said within this time whether its program runs is given up.
const STARTED_WITHIN: Duration = Duration::from_secs(15);
/// Longest answer, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;

/// Starts a host and waits for its answer. The host detaches itself, so it is no child of this process for long.
pub async fn launch(program: &Path, spec: &HostSpec) -> io::Result<HostStarted> {
    let input = serde_json::to_vec(spec)?;
    let mut child = Command::new(program)
        .args(["agent", "host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // Whoever waits for it reaps it, also if nobody waits for the answer any more.
    tokio::spawn(async move { child.wait().await });
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(io::Error::other("the host has no pipes"));
    };
    let answer = async {
        stdin.write_all(&input).await?;
        stdin.shutdown().await?;
        drop(stdin);
        let mut lines = LineReader::new(stdout, ANSWER_BYTES, ANSWER_BYTES);
        // One line: the pipe may stay open in a process that the host has started.
        match lines.next().await?.filter(|line| !line.bytes.is_empty()) {
            Some(line) => serde_json::from_slice(line.bytes).map_err(io::Error::from),
            None => Err(io::Error::other("the host ended without a word")),
        }
    };
    timeout(STARTED_WITHIN, answer)
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the host has not answered in time")))
}
