//! `svc install` and `svc uninstall`: changes the files, and starts, checks or stops the daemon.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use svc_install::{
    ClientCommand, ClientLocations, Edit, FileChange, FileOutcome, InstallParts, InstallRecord,
    InstallScope, Installer, KnownClient, apply, probe, trust,
};
use svc_model::{HARMLESS_TOOLS, OWN_SCOPES};
use svc_server::daemon::stays_stopped;
use svc_sys::{private_file, telemetry};

use super::report::{ClientChanges, FileResult, Report};
use super::status::status;
use super::{InstallArgs, InstallCommand, UninstallArgs, chosen, command, listed_tools, names};
use crate::cli::daemon::{DaemonProbe, agents_that_go_on, ensure_apart, find_daemon, stop_running};
use crate::cli::mcp::change_config;
use crate::cli::{Context, ExitResult, UsageError};

const TRUST_DEADLINE: Duration = Duration::from_secs(15);
const TRUST_BY_HAND: &str = "codex runs hooks only after you have trusted them: type /hooks in codex, or run \
                             `svc install codex --trust-hooks`";

pub(crate) async fn install(context: &Context, args: &InstallArgs) -> ExitResult {
    if let Some(InstallCommand::Status { clients }) = &args.command {
        return status(context, clients).await;
    }
    let parts = InstallParts { server: !args.no_mcp, hooks: !args.no_hooks };
    if !parts.server && !parts.hooks {
        anyhow::bail!(UsageError("--no-hooks and --no-mcp leave nothing to install".to_owned()));
    }
    check_scopes(context, &args.scope)?;
    let locations = probe::with_versions(context.client_locations()?).await;
    let command = command(context)?;
    let clients = chosen(&args.clients, |client| client.is_here(&locations));
    let is_nobody_here = clients.is_empty();
    if args.trust_hooks && !clients.contains(&KnownClient::Codex) {
        // Fails before anything is written.
        let why = if args.clients.is_empty() { "is not found here" } else { "is not named" };
        anyhow::bail!(UsageError(format!(
            "--trust-hooks is for codex, which {why}; nothing was changed: `svc install codex --trust-hooks`, or leave the \
             flag out"
        )));
    }
    let mut installer = installer(context, &locations, args.dry_run)?;
    let listed = listed_tools(context);
    let mut results = Vec::new();
    for client in clients {
        let changes = client.changes(&locations, &command, args.files(), parts);
        // Codex keeps the allowed tools below the server's entry, so that entry is written first.
        let tools = client.named_in_rules(HARMLESS_TOOLS, &listed);
        let grant = args.allow_tools.then(|| client.grant(&locations, args.files(), &tools));
        let changes = FileChange::joined(changes.into_iter().chain(grant.flatten())).into_iter();
        let files = changes.map(|change| {
            let outcome = installer.install(client, args.files(), &change);
            (change.path, outcome)
        });
        results.push(ClientChanges { client, files: files.collect() });
    }
    let mut notes = notes(&results, &locations, (args, &listed));
    if is_nobody_here {
        // Not an error: on a new machine the daemon may be there before the first client.
        notes.push(format!(
            "no client was found here: `svc install` again when there is one, or name the one that you want: {}",
            names(KnownClient::all())
        ));
    }
    let mut failures = Vec::new();
    let codex = results.iter_mut().find(|result| result.client == KnownClient::Codex);
    if let Some(codex) = codex.filter(|codex| !args.dry_run && parts.hooks && codex.is_fine()) {
        if args.trust_hooks {
            let trusted = trust_hooks(&mut installer, &command, args, codex).await;
            failures.extend(trusted.err());
        } else if codex.is_changed() {
            notes.push(TRUST_BY_HAND.to_owned());
        }
    }
    let granted = match grant_scopes(context, &args.scope, args.dry_run) {
        Ok(granted) => granted,
        Err(error) => {
            failures.push(format!("the scopes are not granted: {}", telemetry::chain(&*error)));
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
    if !args.dry_run && args.files() == InstallScope::User {
        notes.push(daemon_note(context, args.no_start).await);
    }
    let report =
        Report { clients: &results, settings: granted, notes: &notes, failures: &failures };
    report.print(context, args.dry_run, "installed")
}

fn installer<'a>(
    context: &'a Context,
    locations: &'a ClientLocations,
    dry_run: bool,
) -> Result<Installer<'a>> {
    let home = &context.paths.home;
    // The record in the data folder names the files that are changed; others must not be able to
    // write it.
    private_file::check_folder(home)?;
    Ok(Installer { home, locations, record: InstallRecord::read(home)?, dry_run })
}

/// Refuses a scope that neither svc nor a server asks for: it would allow nothing.
fn check_scopes(context: &Context, wanted: &[String]) -> Result<(), UsageError> {
    let is_own = |scope: &&String| OWN_SCOPES.contains(&scope.as_str());
    if wanted.iter().all(|scope| is_own(&scope)) {
        return Ok(());
    }
    let plan = context.source_plan().unwrap_or_default();
    let entries = plan.sources.iter().filter_map(|planned| planned.entry.as_ref().ok());
    let of_servers: BTreeSet<&str> = entries.filter_map(|entry| entry.scope.as_deref()).collect();
    let is_known = |scope: &&String| is_own(scope) || of_servers.contains(scope.as_str());
    let Some(unknown) = wanted.iter().find(|scope| !is_known(scope)) else { return Ok(()) };
    let known: Vec<&str> = OWN_SCOPES.into_iter().chain(of_servers).collect();
    let known = known.join(", ");
    Err(UsageError(format!("--scope {unknown}: nothing asks for this scope; there are {known}")))
}

/// Adds scopes to `[sessions] scopes`. Returns the file if it changes.
fn grant_scopes(context: &Context, wanted: &[String], dry_run: bool) -> Result<Option<FileResult>> {
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
    let change = FileOutcome::Changed(apply::diff(&path, Some(&before), Some(&after)));
    Ok((before != after).then_some((path, Ok(change))))
}

/// Trusts the hooks in Codex. Fails with a sentence if Codex could not be told.
async fn trust_hooks(
    installer: &mut Installer<'_>,
    command: &ClientCommand,
    args: &InstallArgs,
    codex: &mut ClientChanges,
) -> Result<(), String> {
    let locations = installer.locations;
    let listed = match trust::hooks(locations, env!("CARGO_PKG_VERSION"), TRUST_DEADLINE).await {
        Some(Ok(hooks)) => match trust::written(hooks, locations, command, args.files()) {
            none if none.is_empty() => {
                Err("codex does not list them: it is too old, or it does not trust this project"
                    .to_owned())
            }
            written => Ok(written),
        },
        Some(Err(error)) => {
            let why = telemetry::chain(&*error);
            Err(format!("codex did not report the hashes of its hooks: {why}"))
        }
        None => Err("there is no codex on the PATH, and only codex knows their hashes".to_owned()),
    };
    let hooks = listed.map_err(|problem| {
        format!(
            "codex: its hooks are written but not trusted, so it does not run them: {problem}. Do it in codex \
             itself, where /hooks shows them, or try again when codex answers"
        )
    })?;
    let hashes: Vec<(String, String)> =
        hooks.into_iter().filter(|hook| !hook.trusted).map(|hook| (hook.key, hook.hash)).collect();
    if hashes.is_empty() {
        return Ok(());
    }
    // Codex keeps trust in the user's file, whatever the scope of the hooks.
    let path = KnownClient::Codex.folder(locations).join("config.toml");
    let change = FileChange { path, edits: vec![Edit::Trust { hashes }] };
    let outcome = installer.install(KnownClient::Codex, InstallScope::User, &change);
    codex.add(change.path, outcome);
    Ok(())
}

pub(crate) async fn uninstall(context: &Context, args: &UninstallArgs) -> ExitResult {
    let locations = context.client_locations()?;
    let command = command(context)?;
    let mut installer = installer(context, &locations, args.dry_run)?;
    let recorded = installer.record.files.clone();
    let mut results = Vec::new();
    for client in chosen(&args.clients, |_| true) {
        // The recorded files, and the usual paths in case the record is incomplete.
        let mut files: Vec<(PathBuf, InstallScope)> = recorded
            .iter()
            .filter(|file| file.client == client)
            .filter(|file| !args.project || file.scope == InstallScope::Project)
            .map(|file| (file.path.clone(), file.scope))
            .collect();
        // A project's files are shared, so only those that svc changed before are changed, unless
        // the flag names the project.
        let scope = if args.project { InstallScope::Project } else { InstallScope::User };
        for path in apply::files(client, &locations, &command, scope) {
            if !files.iter().any(|(known, _)| *known == path) {
                files.push((path, scope));
            }
        }
        let undone = files.into_iter().map(|(path, scope)| {
            let edits = apply::undoable(client, &locations, &command, &path, HARMLESS_TOOLS);
            let outcome = installer.uninstall(scope, &path, &edits);
            (path, outcome)
        });
        // It is no failure if svc cannot read or edit a file that it never changed.
        let files = undone.filter(|(path, outcome)| match outcome {
            Ok(FileOutcome::Unchanged) => false,
            Ok(FileOutcome::Changed(_)) => true,
            Err(_) => recorded.iter().any(|file| file.path == *path),
        });
        results.push(ClientChanges { client, files: files.collect() });
    }
    let changed = results.iter().any(ClientChanges::is_changed);
    let mut notes = Vec::new();
    if changed && !args.dry_run {
        notes.push("open sessions keep what they have until they end".to_owned());
        notes.extend(after_uninstall(context, args.no_stop).await);
    }
    let report = Report { clients: &results, settings: None, notes: &notes, failures: &[] };
    report.print(context, args.dry_run, "removed")
}

fn notes(
    results: &[ClientChanges],
    locations: &ClientLocations,
    (args, listed): (&InstallArgs, &[&str]),
) -> Vec<String> {
    let asks = |client: KnownClient| {
        let approvals = client.approvals(locations, &client.named_in_rules(HARMLESS_TOOLS, listed));
        approvals.is_some_and(|approvals| !approvals.missing.is_empty())
    };
    let mut notes = Vec::new();
    if args.files() == InstallScope::Project {
        notes.push(
            "everybody who works on this project needs `svc` on the PATH; clients ask each of them for trust".to_owned(),
        );
    }
    for result in results {
        if result.files.is_empty() {
            notes.push(format!("{} has no configuration for a project", result.client.name()));
        }
    }
    let changed = results.iter().filter(|changes| changes.is_changed());
    let changed: Vec<KnownClient> = changed.map(|changes| changes.client).collect();
    if changed.is_empty() || args.dry_run {
        return notes;
    }
    notes.push(format!(
        "restart open sessions of {}: they have read their files already",
        names(&changed)
    ));
    if !args.no_mcp && !args.allow_tools {
        let asking: Vec<_> = changed.iter().copied().filter(|client| asks(*client)).collect();
        if !asking.is_empty() {
            notes.push(format!(
                "these clients ask you before a model calls tools of svc: {}; a session that a message wakes waits until you answer; `svc install --allow-tools` allows the harmless tools",
                names(&asking)
            ));
        }
    }
    notes
}

/// Starts the daemon unless it runs or `no_start` is set, and says in a sentence what came of that.
async fn daemon_note(context: &Context, no_start: bool) -> String {
    match find_daemon(context).await {
        DaemonProbe::Absent => {}
        DaemonProbe::Running(..) => return "the daemon runs".to_owned(),
        DaemonProbe::Unready { problem, .. } => return problem,
    }
    if stays_stopped(&context.paths) {
        return "the daemon stays stopped (`svc stop --stay`): `svc start` starts it".to_owned();
    }
    if no_start {
        let note = "the daemon does not run: `svc start` or a client's next session starts it";
        return note.to_owned();
    }
    match ensure_apart(context).await {
        Ok((daemon, true)) => format!("started the daemon: {} (pid {})", daemon.url, daemon.pid),
        Ok((_, false)) => "the daemon runs".to_owned(),
        Err(error) => {
            let why = telemetry::chain(&*error);
            format!("the daemon does not start: {why}; see `svc doctor`")
        }
    }
}

/// Stops the daemon after an uninstallation if no client is left and `no_stop` is not set. Returns
/// sentences that say what stays.
async fn after_uninstall(context: &Context, no_stop: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let is_left =
        InstallRecord::read(&context.paths.home).is_ok_and(|record| !record.files.is_empty());
    if !is_left && !no_stop {
        match stop_running(context).await {
            Ok(Some(pid)) => {
                notes.push(format!(
                    "no client is left, so the daemon was stopped (pid {pid}); the next prompt in a session that \
                     is still open starts it again"
                ));
                notes.extend(agents_that_go_on(context).await);
            }
            Ok(None) => {}
            Err(error) => {
                notes.push(format!("the daemon was not stopped: {}", telemetry::chain(&*error)));
            }
        }
    }
    let home = &context.paths.home;
    if home.exists() {
        notes.push(format!(
            "the data stay in {}, and the configuration in {}; remove them if you do not need them",
            home.display(),
            context.paths.config_file.display()
        ));
    }
    notes
}
