//! `svc task resend FILE`: what a run could not send.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::{Context, output};
use super::notices::notify;
use super::run::patience;
use crate::runner::{self, EventSender, Outcome, Progress};

/// How long the daemon may be away: someone sits at the terminal, and the file does not run off.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends a spool file that a run left behind, and removes it.
///
/// With `new` the whole run becomes a task of its own. A repeat of that is the same task again.
pub(in crate::cli) async fn resend(
    context: &Context,
    file: &Path,
    new: bool,
) -> anyhow::Result<ExitCode> {
    let (mut header, batches, written, _lock) = runner::open(file)?;
    if new {
        header.create["idempotency_key"] = json!(format!("{}-new", header.run));
    }
    let (task, task_seen) = watch::channel(None);
    // The sending end stays in this scope: its being dropped would say that the run has crashed.
    let (_progress, progress) =
        watch::channel(Progress { written, finished: true, abandoned: false });
    let sender = EventSender {
        discovery: context.discovery()?,
        create: header.create,
        batches,
        patience: patience(context, PATIENCE)?,
        may_be_active: true,
        task,
        progress,
        notify,
    };
    match sender.run().await {
        Outcome::Complete => {}
        Outcome::Refused { problem, keep: false } => bail!(
            "{problem}; `svc task resend --new {}` records the whole run as a new task",
            file.display()
        ),
        Outcome::NoTask(problem) | Outcome::Refused { problem, .. } => {
            bail!("{problem}; {} is left as it is", file.display())
        }
        Outcome::GaveUp(problem) => {
            bail!("{problem}; {} is left as it is, try again later", file.display())
        }
    }
    std::fs::remove_file(file)?;
    let id = task_seen
        .borrow()
        .as_ref()
        .map(|task: &Value| output::cell(task, "task_id"))
        .unwrap_or_default();
    if context.json {
        output::json(&json!({ "task_id": id, "removed": file }))?;
    } else {
        output::line(&format!("task {id} has everything; removed {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
