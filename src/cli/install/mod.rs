//! `svc install`, `svc uninstall`, `svc install status`: this program among the servers and hooks of coding agents.
//!
//! # What is installed, and why
//!
//! - **The server is `svc stdio`**, a process that each client starts, and no URL. So no token stands in any file
//!   (`svc token rotate` makes nothing stale, a project may share the entry), no variable must be set, the port may
//!   change, a daemon that does not run is started, and one that dies and comes back is not noticed: over HTTP two
//!   clients never try again, and one loses the call that was under way. It costs a process for each session.
//! - **Hooks are commands**, `svc hook CLIENT`, which say nothing and exit with 0 whatever happens; see [`claude`] and
//!   [`codex`] for what handlers of other types do when the server is away. opencode, whose hooks are code, has a plugin.
//! - **We edit the files ourselves.** `claude mcp add` and its like refuse a name that exists, have no scope or
//!   replace silently, cannot do hooks, start a program of unknown age, and some write the whole file anew.
//! - **Permissions are not touched.** Whether a model may call our tools unasked is the person's to say; the notes at the
//!   end say how.
//!
//! # How
//!
//! [`clients`] says what is wanted in which file, [`edit`] puts it into a text and takes it out, [`document`] knows the
//! formats, [`mod@file`] replaces a file, [`record`] remembers, [`apply`] does these in order. [`check`] compares without
//! writing; `svc doctor` uses it too.

mod apply;
mod check;
mod claude;
mod clients;
mod codex;
mod document;
mod edit;
mod file;
mod gemini;
mod opencode;
mod program;
mod record;
#[cfg(test)]
mod tests;
mod trust;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

pub(super) use check::drift;

use self::apply::{Failure, Outcome, Work};
use self::clients::{Change, Client, Parts, Places, Scope};
use self::document::Format;
use self::edit::Edit;
use self::program::Program;
use self::record::Record;
use super::{Context, UsageError, output};

pub(super) const EXAMPLES: &str = "\
Examples:
  svc install                        every coding agent that is found here
  svc install claude-code --dry-run  what would change, as a diff; writes nothing
  svc install --scope project        this folder's project, without paths and secrets of yours
  svc install status                 what is installed, and what is no longer right

Again is fine and changes nothing. Each file that is changed is first copied to FILE.svc-backup.
`svc uninstall` puts everything back.";

/// Arguments of `svc install`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct InstallArgs {
    #[command(subcommand)]
    command: Option<InstallCommand>,
    /// The clients [default: those that are found]
    #[arg(value_name = "CLIENT")]
    clients: Vec<Client>,
    /// Whose configuration
    #[arg(long, default_value = "user")]
    scope: Scope,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Leave the hooks as they are
    #[arg(long)]
    no_hooks: bool,
    /// Leave the MCP servers as they are
    #[arg(long)]
    no_mcp: bool,
    /// Tell Codex that you trust these hooks, instead of reviewing them there with /hooks
    #[arg(long)]
    trust_hooks: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum InstallCommand {
    /// What is installed in which client, and what is no longer right; exit code 1 if anything is not
    #[command(after_help = "Example:\n  svc install status --json")]
    Status {
        /// The clients [default: all]
        #[arg(value_name = "CLIENT")]
        clients: Vec<Client>,
    },
}

/// Arguments of `svc uninstall`.
#[derive(Debug, Clone, Args)]
pub(super) struct UninstallArgs {
    /// The clients [default: all]
    #[arg(value_name = "CLIENT")]
    clients: Vec<Client>,
    /// Whose configuration [default: all that `svc install` has changed]
    #[arg(long)]
    scope: Option<Scope>,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// What became of one client.
#[derive(Debug)]
struct Report {
    client: Client,
    files: Vec<(PathBuf, Result<Outcome, Failure>)>,
}

/// Installs, or says what is installed.
pub(super) async fn install(context: &Context, args: &InstallArgs) -> anyhow::Result<ExitCode> {
    if let Some(InstallCommand::Status { clients }) = &args.command {
        return check::status(context, clients).await;
    }
    let parts = Parts { server: !args.no_mcp, hooks: !args.no_hooks };
    if !parts.server && !parts.hooks {
        return Err(
            UsageError("--no-hooks and --no-mcp leave nothing to install".to_owned()).into()
        );
    }
    let (places, program) = (Places::current(context)?, Program::current(context)?);
    let clients = chosen(&args.clients, |client| client.is_here(&places));
    if clients.is_empty() {
        return Err(UsageError(format!(
            "none of the clients is found here; name the one that you want: {}",
            names(Client::all())
        ))
        .into());
    }
    let record = Record::read(&context.paths.home)?;
    let mut work = Work { home: &context.paths.home, record, dry: args.dry_run };
    let mut reports = Vec::new();
    for client in clients {
        let changes = client.changes(&places, &program, args.scope, parts);
        let files = changes
            .into_iter()
            .map(|change| {
                let outcome = work.install(client, args.scope, &change);
                (change.path, outcome)
            })
            .collect();
        reports.push(Report { client, files });
    }
    let mut notes = notes(&reports, &program, args);
    if !args.dry_run && parts.hooks {
        for report in reports.iter_mut().filter(|it| it.client == Client::Codex && it.is_fine()) {
            notes.extend(trust_hooks(&mut work, &places, args, report).await);
        }
    }
    if !args.dry_run && args.scope == Scope::User {
        notes.push(check::connection(context).await);
    }
    print(context, &reports, &notes, args.dry_run, "installed")
}

/// Sees to it that Codex runs our hooks, or says what to do about it.
async fn trust_hooks(
    work: &mut Work<'_>,
    places: &Places,
    args: &InstallArgs,
    report: &mut Report,
) -> Option<String> {
    let by_hand = "codex runs hooks only after you have trusted them: say /hooks in codex, or run \
                   `svc install codex --trust-hooks`";
    let hooks = match trust::hooks(places).await {
        Some(Ok(hooks)) => hooks,
        Some(Err(error)) => {
            return Some(format!("{by_hand} (codex could not be asked: {error:#})"));
        }
        None => return Some(by_hand.to_owned()),
    };
    let hashes: Vec<(String, String)> =
        hooks.into_iter().filter(|it| !it.trusted).map(|it| (it.key, it.hash)).collect();
    if hashes.is_empty() {
        return None;
    }
    if !args.trust_hooks {
        return Some(by_hand.to_owned());
    }
    // Trust is the person's, whatever the scope of the hooks.
    let path = codex::folder(places).join("config.toml");
    let change = Change { path, format: Format::Toml, edits: vec![Edit::Trust { hashes }] };
    let outcome = work.install(Client::Codex, Scope::User, &change);
    report.files.push((change.path, outcome));
    None
}

/// Takes away what was installed.
pub(super) fn uninstall(context: &Context, args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    let (places, program) = (Places::current(context)?, Program::current(context)?);
    let record = Record::read(&context.paths.home)?;
    let known = record.files.clone();
    let mut work = Work { home: &context.paths.home, record, dry: args.dry_run };
    let mut reports = Vec::new();
    for client in chosen(&args.clients, |_| true) {
        // What is known, and what is where it would be put: the record may be lost.
        let mut files: Vec<(PathBuf, Scope)> = known
            .iter()
            .filter(|it| it.client == client && args.scope.is_none_or(|scope| scope == it.scope))
            .map(|it| (it.path.clone(), it.scope))
            .collect();
        // A project's files are shared: they are touched only where we did it, or when told to.
        let scope = args.scope.unwrap_or(Scope::User);
        for path in apply::files(client, &places, &program, scope) {
            if !files.iter().any(|(there, _)| *there == path) {
                files.push((path, scope));
            }
        }
        let files = files
            .into_iter()
            .map(|(path, scope)| {
                let edits = apply::undoable(client, &places, &program, &path);
                let outcome = work.uninstall(client, scope, &path, &edits);
                (path, outcome)
            })
            // What is not there, not ours or not to be understood is no concern of ours, if we did nothing to it.
            .filter(|(path, outcome)| match outcome {
                Ok(Outcome::Unchanged) => false,
                Ok(Outcome::Changed(_)) => true,
                Err(_) => known.iter().any(|it| it.path == *path),
            })
            .collect();
        reports.push(Report { client, files });
    }
    let changed = reports.iter().any(Report::is_changed);
    let notes = if changed && !args.dry_run {
        vec!["sessions that run keep what they have until they end".to_owned()]
    } else {
        Vec::new()
    };
    print(context, &reports, &notes, args.dry_run, "removed")
}

impl Report {
    fn is_fine(&self) -> bool {
        self.files.iter().all(|(_, outcome)| outcome.is_ok())
    }

    fn is_changed(&self) -> bool {
        self.files.iter().any(|(_, outcome)| matches!(outcome, Ok(Outcome::Changed(_))))
    }
}

impl Places {
    /// Those of whoever runs this.
    fn current(context: &Context) -> anyhow::Result<Self> {
        let home = context.env.os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Ok(Self {
            home: home
                .context("HOME is not set, so nobody can tell where the clients' files are")?,
            project: std::env::current_dir().context("cannot tell which folder this is")?,
            env: context.env.clone(),
        })
    }
}

fn chosen(named: &[Client], otherwise: impl Fn(Client) -> bool) -> Vec<Client> {
    let wanted = |client: Client| {
        if named.is_empty() { otherwise(client) } else { named.contains(&client) }
    };
    Client::all().iter().copied().filter(|client| wanted(*client)).collect()
}

fn names(clients: &[Client]) -> String {
    clients.iter().map(|client| client.name()).collect::<Vec<_>>().join(", ")
}

/// What the person must know or do.
fn notes(reports: &[Report], program: &Program, args: &InstallArgs) -> Vec<String> {
    let mut notes = Vec::new();
    if program.is_in_target() && args.scope == Scope::User {
        notes.push(format!(
            "{} is in a build folder and may go away; install it elsewhere and run `svc install` from there",
            program.path()
        ));
    }
    if args.scope == Scope::Project {
        notes.push(
            "everybody who works on this project needs `svc` on the PATH; clients ask each of them for trust".to_owned(),
        );
    }
    for report in reports {
        if report.files.is_empty() {
            notes.push(format!("{} has no configuration for a project", report.client.name()));
        }
    }
    let changed: Vec<Client> =
        reports.iter().filter(|it| it.is_changed()).map(|it| it.client).collect();
    if changed.is_empty() || args.dry_run {
        return notes;
    }
    notes.push(format!(
        "start sessions of {} anew: those that run have read their files",
        names(&changed)
    ));
    if !args.no_mcp {
        notes.extend(changed.iter().filter_map(|client| client.permission()).map(str::to_owned));
    }
    notes
}

impl Client {
    /// How a person lets models call our tools without being asked each time.
    fn permission(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some(
                "claude-code asks before each of our tools; `\"permissions\": {\"allow\": [\"mcp__svc\"]}` in settings.json ends that",
            ),
            Self::Codex => Some(
                "codex asks before our tools that write; `default_tools_approval_mode = \"approve\"` under [mcp_servers.svc] ends that",
            ),
            Self::Gemini => Some(
                "gemini asks before each of our tools, and offers none when it runs without a terminal; `\"trust\": true` in the entry ends that",
            ),
            _ => None,
        }
    }
}

fn print(
    context: &Context,
    reports: &[Report],
    notes: &[String],
    dry: bool,
    what: &str,
) -> anyhow::Result<ExitCode> {
    let failed = reports.iter().any(|report| !report.is_fine());
    let changed = reports.iter().any(Report::is_changed);
    if context.json {
        let clients: Vec<Value> = reports.iter().map(|report| document(report, dry)).collect();
        output::json(&json!({
            "ok": !failed,
            "changed": changed && !dry,
            "dry_run": dry,
            "clients": clients,
            "notes": notes,
        }))?;
    } else {
        for report in reports {
            for (path, outcome) in &report.files {
                print_file(report.client, path, outcome, dry)?;
            }
        }
        if !changed && !failed {
            output::line(&format!("nothing to do: everything is {what} already"))?;
        }
        for note in notes {
            output::line(&format!("note: {note}"))?;
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_file(
    client: Client,
    path: &Path,
    outcome: &Result<Outcome, Failure>,
    dry: bool,
) -> anyhow::Result<()> {
    let place = output::visible(&path.display().to_string());
    match outcome {
        Ok(Outcome::Changed(diff)) if dry => output::raw(diff.as_bytes()),
        Ok(Outcome::Changed(_)) => output::line(&format!("{}: changed {place}", client.name())),
        Ok(Outcome::Unchanged) => {
            output::line(&format!("{}: {place} is as it should be", client.name()))
        }
        Err(error) => {
            let rest =
                if matches!(error, Failure::Record(_)) { "" } else { "; it is left as it is" };
            output::note(&format!("{}: {place} {error}{rest}", client.name()));
            Ok(())
        }
    }
}

fn document(report: &Report, dry: bool) -> Value {
    let files = report.files.iter().map(|(path, outcome)| {
        let mut file = json!({ "path": path });
        match outcome {
            Ok(Outcome::Unchanged) => file["action"] = json!("unchanged"),
            Ok(Outcome::Changed(diff)) if dry => {
                file["action"] = json!("would_change");
                file["diff"] = json!(diff);
            }
            Ok(Outcome::Changed(_)) => file["action"] = json!("changed"),
            Err(error) => {
                file["action"] = json!("failed");
                file["error"] = json!(error.to_string());
            }
        }
        file
    });
    json!({ "client": report.client.name(), "files": files.collect::<Vec<_>>() })
}
