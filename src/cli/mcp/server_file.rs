//! Files with entries of servers: changes them, copies entries of another client into config.toml
//! (`svc mcp import`), and tells the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use svc_client::ClientError;
use svc_install::apply::diff;
use svc_install::document::{ConfigDocument, FileFormat, PathStep};
use svc_install::file::{self, FileError, ForeignFile, LinkRule};
use svc_install::{Edit, FileChange, FileOutcome, InstallRecord, InstallScope, Installer};
use svc_model::hook::HookClient;
use svc_model::source::{SourceEntry, SourceProblem, SourceTransport, source_name};
use svc_sys::config::FileConfig;
use svc_sys::config::sources::{ImportFile, SourceChoices, SourceDocument};
use svc_sys::git_repository::project_root;
use svc_sys::{bounded_file, private_file, telemetry};

use super::super::{Context, ExitResult, output};

/// The text of a file before and after entries were added, and the names that the file had already;
/// `true` if the existing entry is identical.
type InsertedEntries = (String, String, Vec<(String, bool)>);

pub(super) struct ServerFile {
    pub(super) path: PathBuf,
    pub(super) is_toml: bool,
}

impl ServerFile {
    pub(super) fn of_user(context: &Context) -> Self {
        Self { path: context.paths.config_file.clone(), is_toml: true }
    }

    pub(super) fn of_project() -> Result<Self> {
        Ok(Self { path: project_root(&here()?).join(".mcp.json"), is_toml: false })
    }

    fn section(&self) -> &'static str {
        if self.is_toml { "sources" } else { "mcpServers" }
    }

    fn parse(&self, file: &ForeignFile) -> Result<ConfigDocument> {
        let format = FileFormat::from_path(&self.path);
        let text = match (file.text(), self.is_toml) {
            ("", false) => "{}\n",
            (text, _) => text,
        };
        ConfigDocument::parse(format, text).with_context(|| self.path.display().to_string())
    }

    /// The name as the file spells it: as given, or with the characters that `source_name`
    /// replaces.
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
    pub(super) fn insert(&self, name: &str, entry: &Value) -> Result<(String, String)> {
        let (before, after, there) = self.insert_missing(&[(name.to_owned(), entry.clone())])?;
        if !there.is_empty() {
            let path = self.path.display();
            bail!("{path} has a server {name} already; `svc mcp remove {name}` removes it");
        }
        Ok((before, after))
    }

    /// Lets `work` change the file under the rules of `svc install`: no link to a project's file is
    /// followed, and changes are serialised.
    fn edit<T>(&self, work: impl Fn(&ForeignFile, &mut ConfigDocument) -> Result<T>) -> Result<T> {
        let shown = || self.path.display().to_string();
        let links = match self.path.parent() {
            Some(folder) if !self.is_toml => LinkRule::Nowhere(folder.to_owned()),
            _ => LinkRule::Anywhere,
        };
        let is_busy = |error: &anyhow::Error| matches!(error.downcast_ref(), Some(FileError::Busy));
        let edited = file::edit(&self.path, &links, is_busy, |file| {
            let mut document = self.parse(&file)?;
            work(&file, &mut document)
        });
        edited.map_err(|error| match error.downcast::<FileError>() {
            Ok(error) => anyhow::Error::new(error).context(shown()),
            Err(error) => error,
        })
    }

    /// Adds the entries whose names the file does not have.
    fn insert_missing(&self, entries: &[(String, Value)]) -> Result<InsertedEntries> {
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
            Ok((before, after, there))
        })
    }

    /// Removes an entry. Returns the text of the file before and after; `None` if there is no such
    /// entry.
    pub(super) fn take(&self, name: &str) -> Result<Option<(String, String)>> {
        // A file without the name is not changed, so it may be a link.
        let file =
            ForeignFile::read(&self.path).with_context(|| self.path.display().to_string())?;
        if self.written_name(&self.parse(&file)?, name).is_none() {
            return Ok(None);
        }
        self.edit(|file, document| {
            let Some(written) = self.written_name(document, name) else { return Ok(None) };
            document.remove(&[PathStep::Key(self.section()), PathStep::Key(&written)]);
            Ok(Some((file.text().to_owned(), self.write(file, document)?)))
        })
    }

    /// Writes a changed document, after a check that it parses.
    fn write(&self, file: &ForeignFile, document: &ConfigDocument) -> Result<String> {
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

/// Lets `work` change config.toml. Returns the file, and its text before and after. `dry_run`
/// writes nothing.
pub(crate) fn change_config(
    context: &Context,
    dry_run: bool,
    work: impl Fn(&mut ConfigDocument) -> Result<()>,
) -> Result<(PathBuf, String, String)> {
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

pub(super) fn here() -> Result<PathBuf> {
    std::env::current_dir().context("cannot tell the present folder")
}

pub(super) fn decide(context: &Context, change: impl FnOnce(&mut SourceChoices)) -> Result<()> {
    let home = &context.paths.home;
    let shown = || SourceChoices::file(home).display().to_string();
    SourceChoices::change(home, change).with_context(shown)
}

/// Makes a running daemon read the files again. Does nothing without a daemon.
pub(super) async fn tell_daemon(context: &Context) {
    let told = async {
        let client = context.client()?;
        client.post::<Value>("/v1/sources/reload", &json!({})).await.map(drop)?;
        anyhow::Ok(())
    };
    if let Err(error) = told.await
        && !matches!(error.downcast_ref(), Some(ClientError::NotRunning { .. }))
    {
        output::note(&format!("the daemon has not read it yet: {}", telemetry::chain(&*error)));
    }
}

/// Largest file of a client, in bytes. Some clients keep a history in it.
const MAX_FILE: u64 = 64 * 1024 * 1024;

pub(super) async fn import(context: &Context, client: HookClient, is_move: bool) -> ExitResult {
    let file = ImportFile::new(client, &context.env);
    let path = file.path().display().to_string();
    let entries = match file.read() {
        None => bail!("{} has no servers here: there is no {path}", client.as_str()),
        Some(Err(problem)) => bail!("{path} {problem}"),
        Some(Ok(entries)) => entries,
    };
    let (mut good, mut bad): (Vec<(String, Value)>, Vec<String>) = (Vec::new(), Vec::new());
    // Servers of config.toml: the name in the client's file, and the name in config.toml.
    let mut taken: Vec<(String, String)> = Vec::new();
    for (written, entry) in entries {
        let checked = source_name(&written).and_then(|name| {
            let (parsed, warnings) = SourceEntry::parse(&entry, true)?;
            // A copied entry must not grant roots and rights to the built-in server; only a person
            // does.
            if matches!(parsed.transport, SourceTransport::Builtin { .. }) {
                return Err(SourceProblem::new("type", "builtin servers are not copied"));
            }
            Ok((name, warnings))
        });
        match checked {
            Ok((name, warnings)) => {
                for warning in warnings {
                    output::note(&format!("warning: {written}: {warning}"));
                }
                taken.push((written, name.clone()));
                good.push((name, entry));
            }
            Err(problem) => {
                output::note(&format!("{written} is left out: {problem}"));
                bad.push(written);
            }
        }
    }
    let target = ServerFile::of_user(context);
    let (before, after, there) = target.insert_missing(&good)?;
    for (name, is_same) in &there {
        let what =
            if *is_same { "it has it already" } else { "it has another server of that name" };
        output::note(&format!("{name} is left out of {}: {what}", target.path.display()));
        // The person decides about an entry that differs, so it stays in the client's file.
        if !is_same {
            taken.retain(|(_, own)| own != name);
        }
    }
    good.retain(|(name, _)| there.iter().all(|(known, _)| known != name));
    let names: Vec<&str> = good.iter().map(|(name, _)| name.as_str()).collect();
    let patch = diff(&target.path, Some(&before), Some(&after));
    if !names.is_empty() {
        tell_daemon(context).await;
    }
    let doubled: Vec<String> = taken.into_iter().map(|(written, _)| written).collect();
    let moved = if is_move { take_out(context, &file, &doubled)? } else { None };
    if context.json {
        let left_out: Vec<&String> = there.iter().map(|(name, _)| name).chain(&bad).collect();
        let still: &[String] = if is_move { &[] } else { &doubled };
        output::json(&json!({
            "imported": names, "left_out": left_out, "file": target.path, "diff": patch,
            "moved": moved.as_ref().map(|_| &doubled), "starts_twice": still,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if names.is_empty() {
        output::line(&format!("{path} has nothing new"))?;
    } else {
        for line in patch.lines() {
            output::line(line)?;
        }
        output::line(&format!("{} of {path} in {}", names.join(", "), target.path.display()))?;
    }
    if let Some(change) = moved {
        for line in change.lines() {
            output::line(line)?;
        }
        output::line(&format!(
            "{} removed from {path}; restart open sessions of {}. `svc uninstall {2}` puts them back",
            doubled.join(", "),
            client.as_str(),
            client.as_str()
        ))?;
    } else if !is_move && !doubled.is_empty() {
        output::note(&format!(
            "{} starts its own entries of these, too, so each runs twice: {}. `svc mcp import {0} --move` removes them",
            client.as_str(),
            doubled.join(", ")
        ));
    }
    let text = bounded_file::read_text(file.path(), MAX_FILE).ok().flatten().unwrap_or_default();
    if is_move && !file.has_us(&text) {
        output::note(&format!(
            "{} does not have svc yet, so it has none of these tools now: `svc install {0}`",
            client.as_str()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes servers from the client's file. The removal is recorded, so that an uninstallation puts
/// them back. Returns the change.
fn take_out(context: &Context, file: &ImportFile, names: &[String]) -> Result<Option<String>> {
    let home = &context.paths.home;
    let locations = context.client_locations()?;
    let record = InstallRecord::read(home)?;
    let mut installer = Installer { home, locations: &locations, record, dry_run: false };
    let edits = vec![Edit::Take { table: file.key(), names: names.to_vec() }];
    let change = FileChange { path: file.path().to_owned(), edits };
    let outcome = installer.install(file.known_client(), InstallScope::User, &change);
    match outcome {
        Ok(FileOutcome::Changed(change)) => Ok(Some(change)),
        Ok(FileOutcome::Unchanged) => Ok(None),
        Err(error) => bail!("{} {error}; it is left as it is", file.path().display()),
    }
}
