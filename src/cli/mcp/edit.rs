//! Changes files: entries, approvals, switches.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use http::StatusCode;
use serde_json::{Value, json};
use svc_client::ClientError;
use svc_install::InstallScope;
use svc_install::document::{ConfigDocument, PathStep};
use svc_install::file::{self, FileError, ForeignFile, LinkRule};
use svc_model::source::{BUILTIN_CORE, SourceEntry, source_name};
use svc_sys::config::FileConfig;
use svc_sys::config::sources::{ApprovedEntry, SourceChoices, SourceDocument, project_files};
use svc_sys::private_file;
use svc_sys::project_folder::project_root;

use super::super::naming::AdvisedError;
use super::super::output;
use super::super::{Context, UsageError};
use super::args::{AddArgs, AddOptions, EntryScope, EntryTransport};
use super::show::path_of;

/// The outcome of adding entries to a file.
pub(super) struct InsertedEntries {
    pub(super) before: String,
    pub(super) after: String,
    /// Names that existed, and whether the entry was the same.
    pub(super) there: Vec<(String, bool)>,
}

/// A file with entries of servers.
pub(super) struct ServerFile {
    pub(super) path: PathBuf,
    is_toml: bool,
}

impl ServerFile {
    pub(super) fn of_user(context: &Context) -> Self {
        Self { path: context.paths.config_file.clone(), is_toml: true }
    }

    fn of_project() -> anyhow::Result<Self> {
        let here = std::env::current_dir().context("cannot tell the present folder")?;
        Ok(Self { path: project_root(&here).join(".mcp.json"), is_toml: false })
    }

    fn section(&self) -> &'static str {
        if self.is_toml { "sources" } else { "mcpServers" }
    }

    fn read(&self) -> anyhow::Result<(ForeignFile, ConfigDocument)> {
        let shown = self.path.display().to_string();
        let file = ForeignFile::read(&self.path).with_context(|| shown)?;
        let document = self.parse(&file)?;
        Ok((file, document))
    }

    fn parse(&self, file: &ForeignFile) -> anyhow::Result<ConfigDocument> {
        let format = svc_install::apply::format_of(&self.path);
        let text = match (file.text(), self.is_toml) {
            ("", false) => "{}\n",
            (text, _) => text,
        };
        ConfigDocument::parse(format, text).with_context(|| self.path.display().to_string())
    }

    fn has(&self, document: &ConfigDocument, name: &str) -> bool {
        self.written_name(document, name).is_some()
    }

    /// The name as the file spells it: as given, or with characters that `source_name` replaces.
    fn written_name(&self, document: &ConfigDocument, name: &str) -> Option<String> {
        let value = document.value();
        let servers = value.get(self.section())?.as_object()?;
        let is_it = |written: &&String| source_name(written).is_ok_and(|normal| normal == name);
        servers
            .get_key_value(name)
            .map(|(written, _)| written)
            .or_else(|| servers.keys().find(is_it))
            .cloned()
    }

    /// Adds an entry. Returns the text of the file before and after.
    fn insert(&self, name: &str, entry: &Value) -> anyhow::Result<(String, String)> {
        self.edit(|file, document| {
            if self.has(document, name) {
                let path = self.path.display();
                bail!("{path} has a server {name} already; `svc mcp remove {name}` removes it");
            }
            document.set(&[self.section(), name], entry)?;
            Ok((file.text().to_owned(), self.write(file, document)?))
        })
    }

    /// Lets `work` change the file under the rules of `svc install`: a project's file through no
    /// link, and one change at a time.
    fn edit<T>(
        &self,
        work: impl Fn(&ForeignFile, &mut ConfigDocument) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let shown = || self.path.display().to_string();
        let links = match self.path.parent() {
            Some(folder) if !self.is_toml => LinkRule::Nowhere(folder.to_owned()),
            _ => LinkRule::Anywhere,
        };
        let is_busy = |error: &EditFailure| {
            matches!(error.0.downcast_ref::<FileError>(), Some(FileError::Busy))
        };
        let edited = file::edit(&self.path, &links, is_busy, |file| {
            let mut document = self.parse(&file)?;
            work(&file, &mut document).map_err(EditFailure)
        });
        edited.map_err(|EditFailure(error)| match error.downcast::<FileError>() {
            Ok(error) => anyhow::Error::new(error).context(shown()),
            Err(error) => error,
        })
    }

    /// Adds the entries whose names the file does not have.
    pub(super) fn insert_missing(
        &self,
        entries: &[(String, Value)],
    ) -> anyhow::Result<InsertedEntries> {
        self.edit(|file, document| {
            let before = file.text().to_owned();
            let (mut there, mut is_changed) = (Vec::new(), false);
            for (name, entry) in entries {
                if let Some(written) = self.written_name(document, name) {
                    let known = document.value()[self.section()][&written].clone();
                    there.push((name.clone(), known == *entry));
                } else {
                    document.set(&[self.section(), name], entry)?;
                    is_changed = true;
                }
            }
            let after = if is_changed { self.write(file, document)? } else { before.clone() };
            Ok(InsertedEntries { before, after, there })
        })
    }

    /// Removes an entry. Returns the text of the file before and after; `None` if there is no such
    /// entry.
    fn take(&self, name: &str) -> anyhow::Result<Option<(String, String)>> {
        // A file without the name is not changed, and may be a link.
        if !self.has(&self.read()?.1, name) {
            return Ok(None);
        }
        self.edit(|file, document| {
            let Some(written) = self.written_name(document, name) else { return Ok(None) };
            document.remove(&[PathStep::Key(self.section()), PathStep::Key(&written)]);
            Ok(Some((file.text().to_owned(), self.write(file, document)?)))
        })
    }

    /// Writes a changed document, after a check that it parses.
    fn write(&self, file: &ForeignFile, document: &ConfigDocument) -> anyhow::Result<String> {
        let text = document.text();
        let scope = if self.is_toml {
            FileConfig::parse(&text, &self.path)?;
            if let Some(folder) = self.path.parent() {
                private_file::create_folder(folder)
                    .with_context(|| folder.display().to_string())?;
            }
            InstallScope::User
        } else {
            if let Err(problem) = SourceDocument::parse_json(&text) {
                bail!("{} {problem}", self.path.display());
            }
            InstallScope::Project
        };
        file.replace(&text, scope)?;
        Ok(text)
    }
}

/// Lets `work` change config.toml. Returns the file, and its text before and after. With `dry_run`
/// nothing is written.
pub(in crate::cli) fn change_config(
    context: &Context,
    dry_run: bool,
    work: impl Fn(&mut ConfigDocument) -> anyhow::Result<()>,
) -> anyhow::Result<(PathBuf, String, String)> {
    let target = ServerFile::of_user(context);
    let (before, after) = target.edit(|file, document| {
        work(document)?;
        let (before, after) = (file.text().to_owned(), document.text());
        if before != after && !dry_run {
            target.write(file, document)?;
        }
        Ok((before, after))
    })?;
    Ok((target.path, before, after))
}

struct EditFailure(anyhow::Error);

impl From<FileError> for EditFailure {
    fn from(error: FileError) -> Self {
        Self(error.into())
    }
}

impl From<anyhow::Error> for EditFailure {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

pub(super) async fn add(context: &Context, args: AddArgs) -> anyhow::Result<ExitCode> {
    let AddArgs { name, mut options, command } = args;
    let (command, mut arguments) = command.split_first().context("a command is needed")?;
    let is_url = command.starts_with("http://") || command.starts_with("https://");
    if is_url || matches!(options.transport, Some(EntryTransport::Http | EntryTransport::Sse)) {
        options = options.with_those_behind(arguments)?;
        arguments = &[];
    }
    let default = if is_url { EntryTransport::Http } else { EntryTransport::Stdio };
    let kind = match options.transport.unwrap_or(default) {
        EntryTransport::Stdio => None,
        EntryTransport::Http => Some("http"),
        EntryTransport::Sse => Some("sse"),
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
        None => json!({ "command": command }),
    };
    // After `--` all arguments are the program's.
    let is_parted = std::env::args_os().any(|argument| argument == "--");
    if let Some(option) = AddOptions::among(arguments).filter(|_| !is_parted) {
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
    let added = put(context, &name, &entry, options.scope.unwrap_or(EntryScope::User)).await?;
    if kind.is_none()
        && let Some(warning) = missing_program(command, context.env.os("PATH"))
    {
        output::note(&format!("warning: {warning}"));
    }
    Ok(added)
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

/// The note for a program that does not exist now. It may be installed later, so this is no error.
/// A name that contains a variable is checked only at the start.
fn missing_program(command: &str, paths: Option<&OsStr>) -> Option<String> {
    if command.contains('$') || command.starts_with('~') {
        return None;
    }
    if command.contains('/') {
        return (!Path::new(command).is_file()).then(|| {
            format!("there is no program {command}: the server cannot start before there is one")
        });
    }
    let is_there = std::env::split_paths(paths?).any(|folder| folder.join(command).is_file());
    (!is_there).then(|| {
        format!("there is no {command} on the PATH: the server cannot start before there is one")
    })
}

pub(super) async fn add_json(
    context: &Context,
    name: &str,
    entry: &str,
) -> anyhow::Result<ExitCode> {
    let entry: Value = serde_json::from_str(entry)
        .map_err(|error| UsageError(format!("the entry is not JSON: {error}")))?;
    put(context, name, &entry, EntryScope::User).await
}

async fn put(
    context: &Context,
    name: &str,
    entry: &Value,
    scope: EntryScope,
) -> anyhow::Result<ExitCode> {
    let normal = source_name(name).map_err(|problem| UsageError(problem.to_string()))?;
    if normal != name {
        return Err(UsageError(format!(
            "{name:?}: use letters, digits, _ and -, such as {normal}"
        ))
        .into());
    }
    if name == BUILTIN_CORE && entry.get("type").and_then(Value::as_str) != Some("builtin") {
        return Err(
            UsageError(format!("{name:?} is the built-in server's name: choose another")).into()
        );
    }
    let is_user = scope == EntryScope::User;
    let (_, warnings) = SourceEntry::parse(entry, is_user)
        .map_err(|problem| UsageError(format!("the entry: {problem}")))?;
    // The value of a variable may be the beginning of the URL.
    if let Some(url) = entry.get("url").and_then(Value::as_str)
        && !["http://", "https://", "$"].iter().any(|start| url.starts_with(start))
    {
        let text = format!("{url:?} is no URL: it begins with https:// or http://");
        return Err(UsageError(text).into());
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
fn approve_own(context: &Context, path: &Path, before: &str, after: &str) -> anyhow::Result<()> {
    // A file that does not parse has no servers; with the new entry it can parse.
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

pub(super) async fn remove(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let here = std::env::current_dir().context("cannot tell the present folder")?;
    let of_project =
        project_files(&here).into_iter().map(|path| ServerFile { path, is_toml: false });
    for target in of_project.chain([ServerFile::of_user(context)]) {
        if !target.path.exists() {
            continue;
        }
        let Some((before, text)) = target.take(name)? else { continue };
        decide(context, |choices| {
            choices.forget(name);
            // The removal of an entry needs no new approval of the others.
            if choices.is_approved(&target.path, &before) {
                choices.go_on(target.path.clone(), &text);
            }
        })?;
        tell_daemon(context).await;
        return done(
            context,
            name,
            &format!("removed {name} from {}", target.path.display()),
            &target.path,
        );
    }
    bail!("neither this project nor {} has a server {name}", context.paths.config_file.display())
}

pub(super) async fn switch(context: &Context, name: &str, on: bool) -> anyhow::Result<ExitCode> {
    // Only the daemon knows which servers exist.
    if let Ok(client) = context.client()
        && let Err(error) = client.get::<Value>(&path_of(name, "")?).await
        && error.status() == Some(StatusCode::NOT_FOUND)
    {
        return Err(AdvisedError::new(error, "`svc mcp list` lists them").into());
    }
    decide(context, |choices| choices.set_switch(name, on))?;
    tell_daemon(context).await;
    let word = if on { "on" } else { "off" };
    done(
        context,
        name,
        &format!("{name} is turned {word}"),
        &SourceChoices::file(&context.paths.home),
    )
}

pub(super) async fn approve(context: &Context, what: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let path = match what {
        // A name means the server, whose definitions have changed.
        Some(name) if is_name(&name) => {
            return approve_changes(context, &name.to_string_lossy()).await;
        }
        Some(file) => std::path::absolute(file)?,
        None => waiting_file(context)?,
    };
    let (document, text) = match SourceDocument::load(&path) {
        None => bail!("there is no {}", path.display()),
        Some(Err(problem)) => bail!("{} {problem}", path.display()),
        Some(Ok(read)) => read,
    };
    decide(context, |choices| choices.approve(path.clone(), &text))?;
    tell_daemon(context).await;
    let names: Vec<&str> = document.0.iter().map(|found| found.name.as_str()).collect();
    let raw: Value = serde_json::from_str(&text).unwrap_or_default();
    let entries = names.iter().map(|name| ApprovedEntry::new(name, &raw["mcpServers"][*name]));
    let entries: Vec<ApprovedEntry> = entries.collect();
    if context.json {
        output::json(&json!({ "file": path, "servers": names, "entries": entries }))?;
    } else {
        output::line(&format!(
            "{} is approved as it is now: {}",
            path.display(),
            names.join(", ")
        ))?;
        for entry in &entries {
            output::line(&format!("  {entry}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether an argument names a server and not a file.
fn is_name(word: &Path) -> bool {
    let text = word.to_string_lossy();
    source_name(&text).is_ok_and(|name| name == text) && !word.exists()
}

/// Approves the present definitions of a server, and shows which have changed.
async fn approve_changes(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let waiting: Value = match client.get(&path_of(name, "/changes")?).await {
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
            return Err(AdvisedError::new(error, "`svc mcp list` lists them").into());
        }
        waiting => waiting?,
    };
    let changes = output::items(&waiting, "changes");
    if !changes.is_empty() {
        let seen = json!({ "digest": waiting["digest"] });
        client.post::<Value>(&path_of(name, "/approve")?, &seen).await?;
    }
    if context.json {
        output::json(&json!({ "name": name, "changes": changes }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if changes.is_empty() {
        output::line(&format!("{name} has not changed since its approval"))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&format!("{name} is approved as it is now, with {} changes:", changes.len()))?;
    for change in changes {
        let text = |value: &Value| value.as_str().map(output::visible).unwrap_or_default();
        let word = if change.get("before").is_some() { "changed" } else { "new" };
        let (kind, own) = (text(&change["kind"]), text(&change["name"]));
        output::line(&format!(
            "  {kind} {own} ({word}): {}",
            text(&change["after"]["description"])
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The nearest file of this folder's project whose present text is not approved; the nearest one if
/// all are.
fn waiting_file(context: &Context) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("cannot tell the present folder")?;
    let choices = SourceChoices::load(&context.paths.home).unwrap_or_default();
    let mut files = project_files(&here);
    files.retain(|file| file.symlink_metadata().is_ok());
    let waits = |file: &PathBuf| match SourceDocument::load(file) {
        Some(Ok((_, text))) => !choices.is_approved(file, &text),
        _ => true,
    };
    let waiting = files.iter().find(|file| waits(file)).or(files.first());
    Ok(waiting.cloned().unwrap_or(ServerFile::of_project()?.path))
}

fn decide(context: &Context, change: impl FnOnce(&mut SourceChoices)) -> anyhow::Result<()> {
    let home = &context.paths.home;
    let shown = || SourceChoices::file(home).display().to_string();
    SourceChoices::change(home, change).with_context(shown)
}

/// Makes a running daemon read the files again. Without a daemon there is nothing to do.
pub(super) async fn tell_daemon(context: &Context) {
    let told = async {
        let client = context.client()?;
        client.post::<Value>("/v1/sources/reload", &json!({})).await.map(drop)?;
        anyhow::Ok(())
    };
    if let Err(error) = told.await
        && !matches!(error.downcast_ref(), Some(ClientError::NotRunning { .. }))
    {
        output::note(&format!("the daemon has not read it yet: {error:#}"));
    }
}

fn done(context: &Context, name: &str, told: &str, file: &Path) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&json!({ "name": name, "file": file }))?;
    } else {
        output::line(told)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("toy"), "").expect("writes");
        let paths = Some(folder.path().as_os_str());
        assert_eq!(missing_program("toy", paths), None);
        assert_eq!(missing_program(&folder.path().join("toy").display().to_string(), None), None);
        assert_eq!(missing_program("${HOME}/bin/x", paths), None, "known where it is started");
        for absent in ["nope", "/no/such"] {
            let warning = missing_program(absent, paths).expect("a warning");
            assert!(warning.contains(absent), "{warning}");
        }
    }
}
