//! `svc stdio`: MCP on standard input and output, for clients that start their servers as
//! processes.
//!
//! The path of a message: [`lines`] → [`call`] → [`dispatcher`] → [`exchange`] → [`link`] → daemon,
//! and back through [`exchange`] to [`lines`]. The bridge keeps the session's id, the client's
//! parameters of `initialize`, and the calls under way; the daemon has all other state. So a
//! restart of the daemon costs the client a delay at most.
//!
//! A client may mix revisions with sessions and the one without; each message says which it uses.

mod bridge;
mod call;
mod dispatcher;
mod exchange;
mod lines;
mod link;
mod listen;
mod session;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use svc_model::ToolExposure;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::bridge::Bridge;
use self::dispatcher::{CallDispatcher, LAST_WORDS};
use self::lines::LineWriter;
use self::link::DaemonLink;
use super::Context;

pub(super) const EXAMPLES: &str = "\
Example:
  claude mcp add svc -- svc stdio

Starts the daemon if none runs (not with --url), and lives through its restarts: what was asked is \
asked again or resumed, and if that could do something twice, the answer says so. Standard output \
has the protocol alone, one JSON-RPC message per line. Ends with its standard input.

It speaks as the process that started it, with a token that the daemon gives that process on the \
socket in the data folder; with the token of --token-file, as `svc mcp-config` writes one; or with \
SVC_TOKEN. --url needs one of these two. A person says --operator.";

/// Arguments of `svc stdio`.
#[derive(Debug, Clone, Args)]
pub(super) struct StdioArgs {
    /// Use the operator token: for a person, not for an agent
    #[arg(long)]
    operator: bool,
    /// Use the token in this file, which nobody else may read
    #[arg(long, value_name = "FILE", conflicts_with = "operator")]
    token_file: Option<PathBuf>,
    /// Which tools the client lists: `search` (a few, the others found by `ToolSearch`) or `all`
    #[arg(long, value_name = "WHICH")]
    expose: Option<ToolExposure>,
}

/// Bridges standard input and output to the daemon until the input ends or a signal comes.
pub(super) async fn run(context: &Context, args: StdioArgs) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    stop_on_signal(&stop)?;
    let (output, mut writing) = LineWriter::stdout();
    let link = DaemonLink::new(context, args.operator, args.token_file)?;
    let bridge = Arc::new(Bridge::new(link, output, args.expose));
    let mut dispatcher = CallDispatcher::new(Arc::clone(&bridge), &stop);
    let read = tokio::select! {
        read = dispatcher.read(tokio::io::stdin()) => read,
        () = stop.cancelled() => Ok(()),
        // Standard output is closed.
        _ = &mut writing => {
            stop.cancel();
            Ok(())
        }
    };
    dispatcher.finish().await;
    timeout(LAST_WORDS, bridge.end_session()).await.ok();
    drop(bridge);
    if !writing.is_finished() {
        timeout(LAST_WORDS, writing).await.ok();
    }
    read.map(|()| ExitCode::SUCCESS)
}

fn stop_on_signal(stop: &CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}
