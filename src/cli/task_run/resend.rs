//! `svc task resend FILE`: what a run could not send.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::{Context, output};
use super::run::patience;
use super::sender::{Outcome, Progress, Sender};
use super::spool;

/// Sends a spool file that a run left behind, and removes it.
pub(in crate::cli) async fn resend(context: &Context, file: &Path) -> anyhow::Result<ExitCode> {
    let (header, batches, written, _lock) = spool::open(file)?;
    let (task, task_seen) = watch::channel(None);
    // The sending end stays in this scope: its being dropped would say that the run has crashed.
    let (_progress, progress) = watch::channel(Progress {
        written,
        finished: true,
        abandoned: false,
    });
    let sender = Sender {
        discovery: context.discovery()?,
        create: header.create,
        batches,
        patience: patience(context)?,
        may_be_active: true,
        task,
        progress,
    };
    match sender.run().await {
        Outcome::Complete => {}
        Outcome::NoTask(problem) | Outcome::Refused { problem, .. } => {
            bail!("{problem}; {} is left as it is", file.display())
        }
        Outcome::GaveUp(problem) => bail!(
            "{problem}; {} is left as it is, try again later",
            file.display()
        ),
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
        output::line(&format!(
            "task {id} has everything; removed {}",
            file.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
