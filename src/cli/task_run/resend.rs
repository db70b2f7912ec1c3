//! `svc task resend FILE`: sends the spool file of a run to the daemon.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use svc_host::runner::{EventSender, LeftoverSpool, SendOutcome, TaskDocument};

use super::super::{Context, output};
use super::printer::{PrintMode, RunPrinter};
use super::run::patience;

/// How long to retry while the daemon is away: a person waits, and the file stays.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends a spool file that a run left behind, and removes it.
///
/// With `new` the run becomes a new task. A repetition finds the same task again.
pub(in crate::cli) async fn resend(
    context: &Context,
    file: &Path,
    new: bool,
) -> anyhow::Result<ExitCode> {
    let LeftoverSpool { mut header, reader, written, lock: _lock } = LeftoverSpool::open(file)?;
    if new {
        header.create["idempotency_key"] = json!(format!("{}-new", header.run));
    }
    let sender = EventSender {
        discovery: context.discovery()?,
        create: header.create,
        reader,
        patience: patience(context, PATIENCE)?,
        accept_begun: true,
        observer: Arc::new(RunPrinter::new(PrintMode::Quiet)),
    };
    let (outcome, task) = sender.run_to_end(written).await;
    match outcome {
        SendOutcome::Complete => {}
        SendOutcome::TaskClosed(problem) => bail!(
            "{problem}; `svc task resend --new {}` records the whole run as a new task",
            file.display()
        ),
        SendOutcome::NoTask(problem) | SendOutcome::Refused(problem) => {
            bail!("{problem}; {} is left as it is", file.display())
        }
        SendOutcome::GaveUp(problem) => {
            bail!("{problem}; {} is left as it is, try again later", file.display())
        }
    }
    std::fs::remove_file(file)?;
    let id = task.as_ref().map(TaskDocument::id).unwrap_or_default();
    if context.json {
        output::json(&json!({ "task_id": id, "removed": file }))?;
    } else {
        output::line(&format!("task {id} has all lines; removed {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
