//! Commands that change files: entries, approvals, switches.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use svc_client::ClientError;
use svc_model::source::{BUILTIN_CORE, SourceEntry, source_name};
use svc_sys::config::sources::{ApprovedEntry, SourceChoices, SourceDocument, project_files};

use super::super::naming::{source_found, source_missing};
use super::super::{Context, ExitResult, UsageError, output};
use super::server_file::{ServerFile, decide, here, tell_daemon};
use super::show::path_of;

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The server's name
    pub(super) name: String,
    #[command(flatten)]
    pub(crate) options: AddOptions,
    /// The program and its arguments, or the URL
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND_OR_URL")]
    pub(crate) command: Vec<String>,
}

impl AddArgs {
    /// The words behind the URL of a server, which has no arguments that could be meant. None
    /// behind a program.
    pub(crate) fn behind_url(&self) -> &[String] {
        let is_remote = matches!(self.options.transport.as_deref(), Some("http" | "sse"));
        match self.command.split_first() {
            Some((first, behind)) if is_remote || scheme(first).is_some() => behind,
            _ => &[],
        }
    }
}

/// The scheme of a word that is a URL.
fn scheme(word: &str) -> Option<&str> {
    let (scheme, _) = word.split_once("://")?;
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (!scheme.is_empty() && scheme.chars().all(is_of_scheme)).then_some(scheme)
}

#[derive(Debug, Args)]
pub(crate) struct AddOptions {
    /// How it is reached: stdio, http or sse [default: http for a URL, else stdio]
    #[arg(short, long, value_parser = ["stdio", "http", "sse"], hide_possible_values = true)]
    pub(super) transport: Option<String>,
    /// A header of each request, as in `X-Key: value`; repeatable
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub(crate) header: Vec<String>,
    /// A variable of its environment; repeatable
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    pub(super) env: Vec<String>,
    /// Where: user (config.toml) or project (this project's .mcp.json, which is approved)
    /// [default: user]
    #[arg(long, value_parser = ["user", "project"], hide_possible_values = true)]
    pub(super) scope: Option<String>,
}

/// The first argument of a program that looks like an option of `svc mcp add`.
fn own_option(arguments: &[String]) -> Option<&String> {
    let own = ["-t", "--transport", "-H", "--header", "-e", "--env", "--scope"];
    arguments.iter().find(|argument| {
        let name = argument.split_once('=').map_or(argument.as_str(), |(name, _)| name);
        own.contains(&name)
    })
}

pub(super) async fn add(context: &Context, args: AddArgs) -> ExitResult {
    let AddArgs { name, options, command } = args;
    let (command, arguments) = command.split_first().context("a command is needed")?;
    let is_url = matches!(scheme(command), Some("http" | "https"));
    let kind = match options.transport.as_deref() {
        None if is_url => Some("http"),
        None | Some("stdio") => None,
        remote => remote,
    };
    let env = pairs_of(&options.env, '=', |pair| format!("-e {pair}: not of the form NAME=VALUE"))?;
    let headers = pairs_of(&options.header, ':', |_| "-H: not of the form NAME: VALUE".to_owned())?;
    let wrong = |text: String| Err(UsageError(text).into());
    let mut entry = match kind {
        Some(_) if !env.is_empty() => {
            return wrong("-e: a server at a URL has no environment".to_owned());
        }
        Some(kind) => json!({ "type": kind, "url": command }),
        None if !headers.is_empty() => return wrong("-H: a program takes no headers".to_owned()),
        None if scheme(command).is_some() => {
            return wrong(format!(
                "{command} is no program: the URL of a server begins with https:// or http://"
            ));
        }
        None => json!({ "command": command }),
    };
    // All arguments after `--` belong to the program.
    let is_parted = std::env::args_os().any(|argument| argument == "--");
    if let Some(option) = own_option(arguments).filter(|_| !is_parted) {
        return wrong(format!(
            "{option} stands behind the program {command}, which would get it: put it before {name} if it is meant for svc, or `--` before {command}"
        ));
    }
    if !arguments.is_empty() {
        entry["args"] = json!(arguments);
    }
    for (field, values) in [("env", env), ("headers", headers)] {
        if !values.is_empty() {
            entry[field] = Value::Object(values);
        }
    }
    put(context, &name, &entry, options.scope.as_deref() != Some("project")).await
}

/// Pairs of a name and a value; the error quotes an argument that is no pair.
fn pairs_of(
    all: &[String],
    between: char,
    problem: impl Fn(&str) -> String,
) -> Result<serde_json::Map<String, Value>, UsageError> {
    let pairs = all.iter().map(|pair| {
        let (name, value) = pair.split_once(between).unwrap_or_default();
        // Spaces in the value of a variable are significant.
        let (name, value) =
            if between == ':' { (name.trim(), value.trim()) } else { (name, value) };
        if name.is_empty() {
            return Err(UsageError(problem(pair)));
        }
        Ok((name.to_owned(), json!(value)))
    });
    pairs.collect()
}

pub(super) async fn add_json(context: &Context, name: &str, entry: &str) -> ExitResult {
    let entry: Value = serde_json::from_str(entry)
        .map_err(|error| UsageError(format!("the entry is not JSON: {error}")))?;
    put(context, name, &entry, true).await
}

async fn put(context: &Context, name: &str, entry: &Value, is_user: bool) -> ExitResult {
    let normal = source_name(name).map_err(|problem| UsageError(problem.to_string()))?;
    if normal != name {
        bail!(UsageError(format!("{name:?}: use letters, digits, _ and -, such as {normal}")));
    }
    if name == BUILTIN_CORE && entry.get("type").and_then(Value::as_str) != Some("builtin") {
        bail!(UsageError(format!("{name:?} is the built-in server's name: choose another")));
    }
    let (_, warnings) = SourceEntry::parse(entry, is_user)
        .map_err(|problem| UsageError(format!("the entry: {problem}")))?;
    // A URL may begin with a variable.
    if let Some(url) = entry.get("url").and_then(Value::as_str)
        && !["http://", "https://", "$"].iter().any(|start| url.starts_with(start))
    {
        bail!(UsageError(format!("{url:?} is no URL: it begins with https:// or http://")));
    }
    let target = if is_user { ServerFile::of_user(context) } else { ServerFile::of_project()? };
    let (before, after) = target.insert(name, entry)?;
    if !is_user {
        approve_own(context, &target.path, &before, &after)?;
    }
    for warning in warnings {
        output::note(&format!("warning: {warning}"));
    }
    tell_daemon(context).await;
    done(context, name, &format!("{name} is in {}", target.path.display()), &target.path)
}

/// Approves a project's file after an entry was added, unless other entries in it wait for
/// approval: the person may not have read those.
fn approve_own(context: &Context, path: &Path, before: &str, after: &str) -> Result<()> {
    // A file that does not parse names no servers, and the new entry may make it parse.
    let had_none =
        SourceDocument::parse_json(before).map_or(true, |document| document.0.is_empty());
    let mut is_approved = false;
    decide(context, |choices| {
        is_approved = had_none || choices.is_approved(path, before);
        if had_none {
            choices.approve(path.to_owned(), after);
        } else if is_approved {
            choices.go_on(path.to_owned(), after);
        }
    })?;
    if !is_approved {
        let path = path.display();
        output::note(&format!(
            "{path} has other servers that wait for approval: look at it, then `svc mcp approve {path}`"
        ));
    }
    Ok(())
}

pub(super) async fn remove(context: &Context, name: &str) -> ExitResult {
    let of_project =
        project_files(&here()?).into_iter().map(|path| ServerFile { path, is_toml: false });
    for target in of_project.chain([ServerFile::of_user(context)]) {
        if !target.path.exists() {
            continue;
        }
        let Some((before, text)) = target.take(name)? else { continue };
        let folder = target.path.parent().filter(|_| !target.is_toml);
        let folder = folder.map(|folder| folder.display().to_string());
        decide(context, |choices| {
            choices.forget(name, folder.as_deref());
            // The removal of an entry needs no new approval of the others.
            if choices.is_approved(&target.path, &before) {
                choices.go_on(target.path.clone(), &text);
            }
        })?;
        tell_daemon(context).await;
        let told = format!("removed {name} from {}", target.path.display());
        return done(context, name, &told, &target.path);
    }
    bail!("neither this project nor {} has a server {name}", context.paths.config_file.display())
}

pub(super) async fn switch(context: &Context, name: &str, on: bool) -> ExitResult {
    // Only the daemon knows all servers. Without it the files say which there are.
    let known = match context.client() {
        Ok(client) => Some(client.get::<Value>(&path_of(name, "")?).await),
        Err(_) => None,
    };
    let plan = context.source_plan();
    let meant = plan.as_ref().ok().and_then(|plan| plan.meant(name)?.folder.clone());
    let folder = match known {
        Some(Ok(view)) => folder_of(&view),
        Some(Err(error)) if error.status() == Some(StatusCode::NOT_FOUND) => {
            return Err(source_missing(error, name).into());
        }
        None | Some(Err(ClientError::NotRunning { .. })) => {
            if let Ok(plan) = &plan
                && !plan.sources.iter().any(|it| it.name == name)
            {
                bail!(
                    "no file names a server {name} here; only a running daemon knows those of --mcp-config"
                );
            }
            meant
        }
        Some(Err(_)) => meant,
    };
    decide(context, |choices| choices.set_switch(name, folder.as_deref(), on))?;
    tell_daemon(context).await;
    let told = format!("{name} is turned {}", if on { "on" } else { "off" });
    done(context, name, &told, &SourceChoices::file(&context.paths.home))
}

/// The folder of the project's file that names a server; `None` if another file names it.
fn folder_of(view: &Value) -> Option<String> {
    view["project"].as_str()?;
    Some(Path::new(view["from"].as_str()?).parent()?.display().to_string())
}

pub(super) async fn approve(context: &Context, what: Option<PathBuf>) -> ExitResult {
    let given = match what {
        // A server's name: approves the changed definitions of that server.
        Some(name) if is_name(&name) => {
            return approve_changes(context, &name.to_string_lossy()).await;
        }
        Some(file) => std::path::absolute(file)?,
        None => waiting_file(context)?,
    };
    let path = with_real_folder(given.clone());
    let (document, text) = match SourceDocument::load(&path) {
        None => bail!("there is no {}", path.display()),
        Some(Err(problem)) => bail!("{} {problem}", path.display()),
        Some(Ok(read)) => read,
    };
    decide(context, |choices| {
        if given != path && !given.components().any(|part| part == Component::ParentDir) {
            choices.approve(given.clone(), &text);
        }
        choices.approve(path.clone(), &text);
    })?;
    tell_daemon(context).await;
    let names: Vec<&str> = document.0.iter().map(|found| found.name.as_str()).collect();
    // As the file has them: one name may stand there twice, and only the first of the two is used.
    let entries = document.0.iter();
    let entries = entries.map(|it| ApprovedEntry::new(&it.name, &it.entry, &it.written));
    let entries: Vec<ApprovedEntry> = entries.collect();
    let line = format!("{} is approved as it is now: {}", path.display(), names.join(", "));
    let printed = context
        .print_line(&json!({ "file": path, "servers": names, "entries": entries }), &line)?;
    for entry in entries.iter().filter(|_| !context.json) {
        output::line(&format!("  {entry}"))?;
    }
    Ok(printed)
}

/// The path without links above the file and without `..`: a command's working folder is without
/// them. A session may have been started under a link, so what a person writes counts, too.
fn with_real_folder(file: PathBuf) -> PathBuf {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return file };
    folder.canonicalize().map_or_else(|_| file.clone(), |folder| folder.join(name))
}

fn is_name(word: &Path) -> bool {
    let text = word.to_string_lossy();
    source_name(&text).is_ok_and(|name| name == text) && !word.exists()
}

/// Approves the present definitions of a server, and shows which have changed.
async fn approve_changes(context: &Context, name: &str) -> ExitResult {
    let client = context.client()?;
    let waiting: Value = source_found(name, client.get(&path_of(name, "/changes")?).await)?;
    let changes = output::items(&waiting, "changes");
    if !changes.is_empty() {
        let seen = json!({ "digest": waiting["digest"] });
        client.post::<Value>(&path_of(name, "/approve")?, &seen).await?;
    }
    let line = match changes.len() {
        0 => format!("{name} has not changed since its approval"),
        count => format!("{name} is approved as it is now, with {count} changes:"),
    };
    let printed = context.print_line(&json!({ "name": name, "changes": changes }), &line)?;
    for change in changes.iter().filter(|_| !context.json) {
        let text = |value: &Value| value.as_str().map(output::visible).unwrap_or_default();
        let word = if change.get("before").is_some() { "changed" } else { "new" };
        let (kind, own) = (text(&change["kind"]), text(&change["name"]));
        let description = text(&change["after"]["description"]);
        output::line(&format!("  {kind} {own} ({word}): {description}"))?;
    }
    Ok(printed)
}

/// The nearest file of this folder's project whose present text is not approved; the nearest one if
/// all are.
fn waiting_file(context: &Context) -> Result<PathBuf> {
    let choices = SourceChoices::load(&context.paths.home).unwrap_or_default();
    let mut files = project_files(&here()?);
    files.retain(|file| file.symlink_metadata().is_ok());
    let waits = |file: &PathBuf| match SourceDocument::load(file) {
        Some(Ok((_, text))) => !choices.is_approved(file, &text),
        _ => true,
    };
    let waiting = files.iter().find(|file| waits(file)).or(files.first());
    Ok(waiting.cloned().unwrap_or(ServerFile::of_project()?.path))
}

fn done(context: &Context, name: &str, told: &str, file: &Path) -> ExitResult {
    context.print_line(&json!({ "name": name, "file": file }), told)
}
