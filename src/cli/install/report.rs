//! The output of `svc install` and `svc uninstall`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use svc_install::{ApplyError, FileOutcome, KnownClient};

use crate::cli::{Context, ExitResult, output};

/// A file, and what was done to it.
pub(super) type FileResult = (PathBuf, Result<FileOutcome, ApplyError>);

pub(super) struct ClientChanges {
    pub(super) client: KnownClient,
    pub(super) files: Vec<FileResult>,
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
        self.files.iter().any(is_changed)
    }
}

pub(super) struct Report<'a> {
    pub(super) clients: &'a [ClientChanges],
    /// svc's own configuration file, if it has a change.
    pub(super) settings: Option<FileResult>,
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
            if let Some(file) = settings {
                document["settings"] = file_document(file, dry_run);
            }
            output::json(&document)?;
        } else {
            let files = clients
                .iter()
                .flat_map(|it| it.files.iter().map(move |file| (it.client.name(), file)));
            let files: Vec<_> = files.chain(settings.iter().map(|file| ("svc", file))).collect();
            if dry_run && changed {
                output::block(&summary(&files))?;
            }
            for (owner, file) in files {
                print_file(owner, file, dry_run)?;
            }
            if !changed && !failed && !clients.is_empty() {
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

fn is_changed((_, outcome): &FileResult) -> bool {
    matches!(outcome, Ok(FileOutcome::Changed(_)))
}

/// One line for each file that a run would change. The diffs follow.
fn summary(files: &[(&str, &FileResult)]) -> String {
    let changed = files.iter().filter(|(_, file)| is_changed(file));
    let line = |(owner, (path, _)): &(&str, &FileResult)| {
        format!("  {owner:<12} {}\n", output::visible(&path.display().to_string()))
    };
    let lines: Vec<String> = changed.map(line).collect();
    let (count, plural) = (lines.len(), if lines.len() == 1 { "" } else { "s" });
    format!("would change {count} file{plural} (nothing is written now):\n{}\n", lines.concat())
}

fn print_file(owner: &str, (path, outcome): &FileResult, dry_run: bool) -> anyhow::Result<()> {
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
            // A parser quotes the faulty line below its message.
            let error = error.to_string().replace('\n', "\n  ");
            output::notes(&format!("{owner}: {path} {error}{rest}"));
            Ok(())
        }
    }
}

fn document(client: &ClientChanges, dry_run: bool) -> Value {
    let files = client.files.iter().map(|file| file_document(file, dry_run));
    json!({ "client": client.client.name(), "files": files.collect::<Vec<_>>() })
}

fn file_document((path, outcome): &FileResult, dry_run: bool) -> Value {
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
