//! `svc install` and `svc uninstall`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use svc_install::{
    ClientCommand, ClientLocations, Edit, FileChange, FileFormat, FileOutcome, InstallParts,
    InstallRecord, InstallScope, Installer, KnownClient, apply, probe, trust,
};
use svc_model::HARMLESS_TOOLS;
use svc_sys::config::FileConfig;
use svc_sys::private_file;

use super::args::{InstallArgs, InstallCommand, UninstallArgs};
use super::daemon::{after_uninstall, daemon_note};
use super::here;
use super::report::{ClientChanges, Report};
use super::status::status;
use crate::cli::mcp::change_config;
use crate::cli::{Context, UsageError};

/// Deadline for Codex to list its hooks.
const PATIENCE: Duration = Duration::from_secs(15);
/// How a person trusts hooks in Codex.
const TRUST_BY_HAND: &str = "codex runs hooks only after you have trusted them: type /hooks in codex, or run \
                             `svc install codex --trust-hooks`";

/// Installs, or with `--print` shows what would be written.
pub(in crate::cli) async fn install(
    context: &Context,
    args: &InstallArgs,
) -> anyhow::Result<ExitCode> {
    if let Some(InstallCommand::Status { clients, verbose }) = &args.command {
        return status(context, clients, *verbose).await;
    }
    let parts = InstallParts { server: !args.no_mcp, hooks: !args.no_hooks };
    if !parts.server && !parts.hooks {
        return Err(
            UsageError("--no-hooks and --no-mcp leave nothing to install".to_owned()).into()
        );
    }
    let locations = probe::with_versions(context.client_locations()?).await;
    let command = here::command(context)?;
    let clients = here::chosen(&args.clients, |client| client.is_here(&locations));
    if clients.is_empty() && args.scope.is_empty() {
        return Err(UsageError(format!(
            "no client was found here; name the one that you want: {}",
            here::names(KnownClient::all())
        ))
        .into());
    }
    if args.trust_hooks && !clients.contains(&KnownClient::Codex) {
        // Fails before anything is written.
        let why = if args.clients.is_empty() { "is not found here" } else { "is not named" };
        return Err(UsageError(format!(
            "--trust-hooks is for codex, which {why}; nothing was changed: `svc install codex --trust-hooks`, or leave the \
             flag out"
        ))
        .into());
    }
    // The record in the data folder names the files that are changed; others must not be able to
    // write it.
    private_file::check_folder(&context.paths.home)?;
    let record = InstallRecord::read(&context.paths.home)?;
    let home = &context.paths.home;
    let mut installer = Installer { home, locations: &locations, record, dry_run: args.dry_run };
    let listed = here::listed_tools(context);
    let mut results = Vec::new();
    for client in clients {
        let changes = client.changes(&locations, &command, args.files(), parts);
        // Codex keeps the allowed tools below the entry of the server, so the server's entry is
        // written first.
        let tools = client.named_in_rules(HARMLESS_TOOLS, &listed);
        let grant = args.allow_tools.then(|| client.grant(&locations, args.files(), &tools));
        let files = joined(changes.into_iter().chain(grant.flatten()))
            .into_iter()
            .map(|change| {
                let outcome = installer.install(client, args.files(), &change);
                (change.path, outcome)
            })
            .collect();
        results.push(ClientChanges { client, files });
    }
    let mut notes = notes(&results, &locations, &command, (args, &listed));
    let mut failures = Vec::new();
    if !args.dry_run && parts.hooks {
        for result in results
            .iter_mut()
            .filter(|result| result.client == KnownClient::Codex && result.is_fine())
        {
            match trust_hooks(&mut installer, &command, args, result).await {
                Ok(note) => notes.extend(note),
                Err(failure) => failures.push(failure),
            }
        }
    }
    let granted = match grant_scopes(context, &args.scope, args.dry_run) {
        Ok(granted) => granted,
        Err(error) => {
            failures.push(format!("the scopes are not granted: {error:#}"));
            None
        }
    };
    if granted.is_some() && !args.dry_run {
        let mut note = format!(
            "sessions that you start from now on have the scope {}; restart open ones",
            args.scope.join(", ")
        );
        if results.iter().any(|result| result.client == KnownClient::Codex) {
            note.push_str(
                ". All terminals of Codex run in one process: `codex app-server daemon stop` ends it and cuts off those \
                 that are open",
            );
        }
        notes.push(note);
    }
    if args.scope.is_empty() {
        notes.extend(scopes_note(context));
    }
    if !args.dry_run && args.files() == InstallScope::User {
        notes.extend(daemon_note(context, &command, args.no_start).await);
    }
    let report =
        Report { clients: &results, settings: granted, notes: &notes, failures: &failures };
    report.print(context, args.dry_run, "installed")
}

/// The scopes that the configuration grants attended sessions, as a note, if there are any.
fn scopes_note(context: &Context) -> Option<String> {
    let file = FileConfig::load(&context.paths.config_file).ok()?;
    let scopes = file.sessions.scopes.filter(|scopes| !scopes.is_empty())?;
    let file = context.paths.config_file.display();
    Some(format!("sessions have the scope {} by [sessions] scopes in {file}", scopes.join(", ")))
}

/// Adds scopes to those of attended sessions (`[sessions] scopes`). Returns the file and the
/// change, if there is one.
fn grant_scopes(
    context: &Context,
    wanted: &[String],
    dry_run: bool,
) -> anyhow::Result<Option<(PathBuf, String)>> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let (path, before, after) = change_config(context, dry_run, |document| {
        let value = document.value();
        let there = value.pointer("/sessions/scopes").and_then(Value::as_array);
        let mut scopes = there.cloned().unwrap_or_default();
        let count = scopes.len();
        for scope in wanted {
            if !scopes.iter().any(|known| known == scope) {
                scopes.push(json!(scope));
            }
        }
        if scopes.len() > count {
            document.set(&["sessions", "scopes"], &Value::Array(scopes))?;
        }
        Ok(())
    })?;
    let change = apply::diff(&path, Some(&before), Some(&after));
    Ok((before != after).then_some((path, change)))
}

/// Merges changes so that each file has one change with all edits.
fn joined(changes: impl Iterator<Item = FileChange>) -> Vec<FileChange> {
    let mut joined: Vec<FileChange> = Vec::new();
    for change in changes {
        match joined.iter_mut().find(|other| other.path == change.path) {
            Some(other) => other.edits.extend(change.edits),
            None => joined.push(change),
        }
    }
    joined
}

/// Trusts the hooks in Codex if the person said so, else returns a note on how to do it. Fails with
/// a sentence if the person said so and Codex could not be told.
async fn trust_hooks(
    installer: &mut Installer<'_>,
    command: &ClientCommand,
    args: &InstallArgs,
    codex: &mut ClientChanges,
) -> Result<Option<String>, String> {
    let locations = installer.locations;
    let listed = match trust::hooks(locations, env!("CARGO_PKG_VERSION"), PATIENCE).await {
        Some(Ok(hooks)) => Ok(trust::written(hooks, locations, command, args.files())),
        Some(Err(error)) => Err(format!("codex did not report the hashes of its hooks: {error:#}")),
        None => Err("there is no codex on the PATH, and only codex knows their hashes".to_owned()),
    };
    let hooks = match listed {
        Ok(hooks) if hooks.is_empty() && args.trust_hooks => {
            Err("codex does not list them: it is too old, or it does not trust this project"
                .to_owned())
        }
        other => other,
    };
    let hooks = match hooks {
        Ok(hooks) => hooks,
        Err(problem) if args.trust_hooks => {
            return Err(format!(
                "codex: its hooks are written but not trusted, so it does not run them: {problem}. Do it in codex \
                 itself, where /hooks shows them, or try again when codex answers"
            ));
        }
        Err(problem) => return Ok(Some(format!("{TRUST_BY_HAND} ({problem})"))),
    };
    let hashes: Vec<(String, String)> =
        hooks.into_iter().filter(|hook| !hook.trusted).map(|hook| (hook.key, hook.hash)).collect();
    if hashes.is_empty() {
        return Ok(None);
    }
    if !args.trust_hooks {
        return Ok(Some(TRUST_BY_HAND.to_owned()));
    }
    // Codex keeps trust in the user's file, whatever the scope of the hooks.
    let path = KnownClient::Codex.folder(locations).join("config.toml");
    let change = FileChange { path, format: FileFormat::Toml, edits: vec![Edit::Trust { hashes }] };
    let outcome = installer.install(KnownClient::Codex, InstallScope::User, &change);
    codex.add(change.path, outcome);
    Ok(None)
}

pub(in crate::cli) async fn uninstall(
    context: &Context,
    args: &UninstallArgs,
) -> anyhow::Result<ExitCode> {
    let locations = context.client_locations()?;
    let command = here::command(context)?;
    // The record in the data folder names the files that are changed; others must not be able to
    // write it.
    private_file::check_folder(&context.paths.home)?;
    let record = InstallRecord::read(&context.paths.home)?;
    let recorded = record.files.clone();
    let home = &context.paths.home;
    let mut installer = Installer { home, locations: &locations, record, dry_run: args.dry_run };
    let mut results = Vec::new();
    for client in here::chosen(&args.clients, |_| true) {
        // The recorded files, and the usual paths in case the record is lost.
        let mut files: Vec<(PathBuf, InstallScope)> = recorded
            .iter()
            .filter(|file| file.client == client)
            .filter(|file| !args.project || file.scope == InstallScope::Project)
            .map(|file| (file.path.clone(), file.scope))
            .collect();
        // A project's files are shared: only files that svc changed before are changed, unless the
        // flag names the project.
        let scope = if args.project { InstallScope::Project } else { InstallScope::User };
        for path in apply::files(client, &locations, &command, scope) {
            if !files.iter().any(|(known, _)| *known == path) {
                files.push((path, scope));
            }
        }
        let files = files
            .into_iter()
            .map(|(path, scope)| {
                let edits = apply::undoable(client, &locations, &command, &path);
                let outcome = installer.uninstall(scope, &path, &edits);
                (path, outcome)
            })
            // A file that svc never changed and cannot read or edit is no failure.
            .filter(|(path, outcome)| match outcome {
                Ok(FileOutcome::Unchanged) => false,
                Ok(FileOutcome::Changed(_)) => true,
                Err(_) => recorded.iter().any(|file| file.path == *path),
            })
            .collect();
        results.push(ClientChanges { client, files });
    }
    let changed = results.iter().any(ClientChanges::is_changed);
    let mut notes = Vec::new();
    if changed && !args.dry_run {
        notes.push("open sessions keep what they have until they end".to_owned());
        notes.extend(after_uninstall(context, args.no_stop).await);
        notes.extend(scopes_note(context));
    }
    let report = Report { clients: &results, settings: None, notes: &notes, failures: &[] };
    report.print(context, args.dry_run, "removed")
}

/// What the person has to know or do.
fn notes(
    results: &[ClientChanges],
    locations: &ClientLocations,
    command: &ClientCommand,
    (args, listed): (&InstallArgs, &[&str]),
) -> Vec<String> {
    let asks = |client: KnownClient| {
        client.asks_for_tools(locations, &client.named_in_rules(HARMLESS_TOOLS, listed))
    };
    let mut notes = Vec::new();
    if command.is_in_target() && args.files() == InstallScope::User {
        notes.push(format!(
            "{} is in a build folder and may go away; install it elsewhere and run `svc install` from there",
            command.path()
        ));
    }
    if args.files() == InstallScope::Project {
        notes.push(
            "everybody who works on this project needs `svc` on the PATH; clients ask each of them for trust".to_owned(),
        );
    }
    for result in results {
        let has_none =
            args.allow_tools && result.client.grant(locations, args.files(), &[]).is_none();
        if has_none && asks(result.client) {
            notes.push(format!(
                "{} keeps no such permission in this scope: `svc install {0} --allow-tools` is for yours",
                result.client.name()
            ));
        }
        if result.files.is_empty() {
            notes.push(format!("{} has no configuration for a project", result.client.name()));
        }
    }
    let changed: Vec<KnownClient> = results
        .iter()
        .filter(|changes| changes.is_changed())
        .map(|changes| changes.client)
        .collect();
    if changed.is_empty() || args.dry_run {
        return notes;
    }
    notes.push(format!(
        "restart open sessions of {}: they have read their files already",
        here::names(&changed)
    ));
    if !args.no_mcp && !args.allow_tools {
        let asking = |client: &&KnownClient| asks(**client);
        let asking: Vec<KnownClient> = changed.iter().filter(asking).copied().collect();
        if !asking.is_empty() {
            notes.push(format!(
                "these clients ask you before a model calls tools of svc: {}; a session that a message wakes waits until you answer; `svc install --allow-tools` allows the harmless tools",
                here::names(&asking)
            ));
        }
    }
    notes
}
