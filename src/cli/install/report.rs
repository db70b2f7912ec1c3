//! The output of `svc install` and `svc uninstall`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use svc_install::{ApplyError, FileOutcome, KnownClient};

use crate::cli::{Context, ExitResult, output};

pub(super) struct ClientChanges {
    pub(super) client: KnownClient,
    pub(super) files: Vec<(PathBuf, Result<FileOutcome, ApplyError>)>,
}

impl ClientChanges {
    pub(super) fn is_fine(&self) -> bool {
        self.files.iter().all(|(_, outcome)| outcome.is_ok())
    }

    /// Adds the outcome for a file. A file that occurs already is listed once.
    pub(super) fn add(&mut self, path: PathBuf, outcome: Result<FileOutcome, ApplyError>) {
        match self.files.iter_mut().find(|(known, _)| *known == path) {
            Some((_, Ok(FileOutcome::Changed(_)))) if outcome.is_ok() => {}
            Some((_, known)) => *known = outcome,
            None => self.files.push((path, outcome)),
        }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.files.iter().any(|(_, outcome)| matches!(outcome, Ok(FileOutcome::Changed(_))))
    }
}

pub(super) struct Report<'a> {
    pub(super) clients: &'a [ClientChanges],
    /// svc's own configuration file and the change in it, if there is one.
    pub(super) settings: Option<(PathBuf, String)>,
    pub(super) notes: &'a [String],
    /// Failures other than those of files.
    pub(super) failures: &'a [String],
}

impl Report<'_> {
    /// Prints the report. `done` is the sentence for a run that had nothing to change.
    pub(super) fn print(&self, context: &Context, dry_run: bool, done: &str) -> ExitResult {
        let Self { clients, settings, notes, failures } = self;
        let failed = !failures.is_empty() || clients.iter().any(|client| !client.is_fine());
        let changed = settings.is_some() || clients.iter().any(ClientChanges::is_changed);
        if context.json {
            let documents: Vec<Value> =
                clients.iter().map(|client| document(client, dry_run)).collect();
            let mut document = json!({
                "ok": !failed, "changed": changed && !dry_run, "dry_run": dry_run,
                "clients": documents, "notes": notes, "failures": failures,
            });
            if let Some((path, change)) = settings {
                document["settings"] =
                    file_document(path, &Ok(FileOutcome::Changed(change.clone())), dry_run);
            }
            output::json(&document)?;
        } else {
            if dry_run && changed {
                output::block(&summary(clients, settings.as_ref().map(|(path, _)| path)))?;
            }
            for client in *clients {
                for (path, outcome) in &client.files {
                    print_file(client.client.name(), path, outcome, dry_run)?;
                }
            }
            if let Some((path, change)) = settings {
                print_file("svc", path, &Ok(FileOutcome::Changed(change.clone())), dry_run)?;
            }
            if !changed && !failed {
                output::line(&format!("nothing to do: everything is already {done}"))?;
            }
            for note in *notes {
                output::line(&format!("note: {note}"))?;
            }
            for failure in *failures {
                output::note(&format!("error: {failure}"));
            }
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// One line for each file that a run would change. The diffs follow.
fn summary(clients: &[ClientChanges], settings: Option<&PathBuf>) -> String {
    let line = |name: &str, path: &Path| {
        format!("  {name:<12} {}\n", output::visible(&path.display().to_string()))
    };
    let changed = |client: &ClientChanges| {
        let is_changed = |outcome: &Result<_, _>| matches!(outcome, Ok(FileOutcome::Changed(_)));
        let files = client.files.iter().filter(|(_, outcome)| is_changed(outcome));
        files.map(|(path, _)| line(client.client.name(), path)).collect::<Vec<_>>()
    };
    let settings = settings.map(|path| line("svc", path));
    let lines: Vec<String> = clients.iter().flat_map(changed).chain(settings).collect();
    let (count, plural) = (lines.len(), if lines.len() == 1 { "" } else { "s" });
    format!("would change {count} file{plural} (nothing is written now):\n{}\n", lines.concat())
}

fn print_file(
    owner: &str,
    path: &Path,
    outcome: &Result<FileOutcome, ApplyError>,
    dry_run: bool,
) -> anyhow::Result<()> {
    // A file in which nothing but svc's entries was left is removed.
    let verb = if path.exists() { "changed" } else { "removed" };
    let path = output::visible(&path.display().to_string());
    match outcome {
        Ok(FileOutcome::Changed(diff)) if dry_run => output::block(diff),
        Ok(FileOutcome::Changed(_)) => output::line(&format!("{owner}: {verb} {path}")),
        Ok(FileOutcome::Unchanged) => output::line(&format!("{owner}: {path} is up to date")),
        Err(error) => {
            let rest =
                if matches!(error, ApplyError::Record(_)) { "" } else { "; it is left as it is" };
            output::note(&format!("{owner}: {path} {error}{rest}"));
            Ok(())
        }
    }
}

fn document(client: &ClientChanges, dry_run: bool) -> Value {
    let files = client.files.iter().map(|(path, outcome)| file_document(path, outcome, dry_run));
    json!({ "client": client.client.name(), "files": files.collect::<Vec<_>>() })
}

fn file_document(path: &Path, outcome: &Result<FileOutcome, ApplyError>, dry_run: bool) -> Value {
    let mut file = json!({ "path": path });
    match outcome {
        Ok(FileOutcome::Unchanged) => file["action"] = json!("unchanged"),
        Ok(FileOutcome::Changed(diff)) if dry_run => {
            file["action"] = json!("would_change");
            file["diff"] = json!(diff);
        }
        Ok(FileOutcome::Changed(_)) => file["action"] = json!("changed"),
        Err(error) => {
            file["action"] = json!("failed");
            file["error"] = json!(error.to_string());
        }
    }
    file
}
