//! The URL of the daemon over TCP.

use anyhow::bail;
use svc_client::{ClientError, Url};

use super::probe::{DaemonProbe, find_daemon, no_socket, not_ready};
use crate::cli::Context;

/// The URL that was given, or the one that the running daemon wrote to `daemon.json`.
pub(in crate::cli) async fn daemon_url(context: &Context) -> anyhow::Result<String> {
    if let Some(url) = context.discovery()?.fixed() {
        return Ok(url.to_string());
    }
    match find_daemon(context).await {
        DaemonProbe::Running(daemon, _) if Url::parse(&daemon.url).is_ok() => Ok(daemon.url),
        DaemonProbe::Running(..) => bail!(
            "{} does not say at which URL the daemon listens: name it with --url, or `svc restart`",
            context.paths.daemon_json.display()
        ),
        DaemonProbe::NotReady(pid) => bail!("{}", not_ready(pid)),
        DaemonProbe::WithoutSocket(daemon) => bail!("{}", no_socket(&daemon)),
        DaemonProbe::Silent { problem, .. } => bail!("the daemon does not answer: {problem}"),
        DaemonProbe::Absent => {
            let url = context.paths.socket.display().to_string();
            Err(ClientError::NotRunning { url }.into())
        }
    }
}
