//! Installs into one file and uninstalls from it: reads, edits, replaces and records.

use std::path::{Path, PathBuf};

use diffy::DiffOptions;

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::client::ClientCommand;
use super::client::ClientLocations;
use super::client::{InstallParts, InstallScope, KnownClient};
use super::document::{ConfigDocument, FileFormat};
use super::edit::{self, Edit, EditError, EditState, FileChange, UndoInfo};
use super::file::{self, FileError, ForeignFile, LinkRule};
use super::record::{FileBackup, InstallRecord, InstalledFile, digest};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOutcome {
    Unchanged,
    /// It was changed, or would be in a dry run: a unified diff.
    Changed(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error("was changed, but {0:#}")]
    Record(anyhow::Error),
}

#[derive(Debug)]
pub struct Installer<'a> {
    /// The data folder, where the record is kept.
    pub home: &'a Path,
    pub locations: &'a ClientLocations,
    pub record: InstallRecord,
    pub dry_run: bool,
}

impl Installer<'_> {
    pub fn install(
        &mut self,
        client: KnownClient,
        scope: InstallScope,
        change: &FileChange,
    ) -> Result<FileOutcome, ApplyError> {
        let links = LinkRule::Within(self.locations.folders(scope));
        file::edit(&change.path, &links, is_busy, |file| {
            self.try_install(client, scope, change, &file)
        })
    }

    fn try_install(
        &mut self,
        client: KnownClient,
        scope: InstallScope,
        change: &FileChange,
        file: &ForeignFile,
    ) -> Result<FileOutcome, ApplyError> {
        let folders = self.locations.folders(scope);
        let recorded = self.record.find(&change.path).cloned();
        let mut undo = recorded.as_ref().map(|entry| entry.undo.clone()).unwrap_or_default();
        let mut text = file.text().to_owned();
        // Only a copy without entries of svc, and with the entries that svc took out, is restored.
        let mut pristine = undo.taken.is_empty();
        for edit in &change.edits {
            pristine &= !(matches!(edit, Edit::Take { .. }) && recorded.is_some());
            let state = edit::find(&text, change.format, edit).map_err(EditError::from)?;
            pristine &= state == EditState::Missing;
            let (edited, new) = edit::apply(&text, change.format, edit)?;
            undo.add(new, recorded.is_some());
            text = edited;
        }
        if text == file.text() {
            return Ok(FileOutcome::Unchanged);
        }
        let outcome = FileOutcome::Changed(diff(&change.path, file.text.as_deref(), Some(&text)));
        file.check_writable()?;
        if self.dry_run {
            return Ok(outcome);
        }
        let mut entry = recorded.unwrap_or_else(|| InstalledFile {
            client,
            scope,
            path: change.path.clone(),
            created: file.text.is_none(),
            folders: Vec::new(),
            backup: None,
            after: String::new(),
            undo: UndoInfo::default(),
            within: folders.into_iter().find(|folder| change.path.starts_with(folder)),
        });
        let (before, after) = (digest(file.text()), digest(&text));
        if file.text.is_some() && before != entry.after {
            // Another program has changed the file since, so the earlier copy is obsolete.
            let path = file.back_up(scope)?;
            entry.backup = Some(FileBackup { path, digest: before, pristine });
            entry.created &= pristine;
        }
        entry.folders.extend(file.replace(&text, scope)?);
        (entry.after, entry.undo) = (after, undo);
        self.record.put(entry);
        self.save()?;
        Ok(outcome)
    }

    pub fn uninstall(
        &mut self,
        scope: InstallScope,
        path: &Path,
        edits: &[Edit],
    ) -> Result<FileOutcome, ApplyError> {
        let recorded = self.record.find(path).cloned();
        let mut folders = self.locations.folders(scope);
        // The installation may be of another project, or of a folder that a variable named.
        folders.extend(recorded.as_ref().and_then(|entry| match &entry.within {
            Some(folder) => Some(folder.clone()),
            None => entry.path.parent().map(Path::to_path_buf),
        }));
        let links = LinkRule::Within(folders);
        file::edit(path, &links, is_busy, |file| self.try_uninstall(scope, path, edits, &file))
    }

    fn try_uninstall(
        &mut self,
        scope: InstallScope,
        path: &Path,
        edits: &[Edit],
        file: &ForeignFile,
    ) -> Result<FileOutcome, ApplyError> {
        let recorded = self.record.find(path).cloned();
        let Some(text) = file.text.as_deref() else {
            self.forget(recorded.as_ref())?;
            return Ok(FileOutcome::Unchanged);
        };
        let untouched = recorded.as_ref().filter(|entry| entry.after == digest(text));
        let wanted = match untouched {
            Some(entry) if entry.created => None,
            Some(entry) => match text_before(entry) {
                Some(text_before) => Some(text_before),
                None => without(text, format_of(path), edits, &entry.undo)?,
            },
            None => {
                let undo = recorded.as_ref().map(|entry| entry.undo.clone()).unwrap_or_default();
                let text = without(text, format_of(path), edits, &undo)?;
                let created = recorded.as_ref().is_some_and(|entry| entry.created);
                text.filter(|text| !(created && is_blank(text, format_of(path))))
            }
        };
        if wanted.as_deref() == Some(text) {
            self.forget(recorded.as_ref())?;
            return Ok(FileOutcome::Unchanged);
        }
        let outcome = FileOutcome::Changed(diff(path, Some(text), wanted.as_deref()));
        file.check_writable()?;
        if self.dry_run {
            return Ok(outcome);
        }
        match &wanted {
            Some(wanted) => drop(file.replace(wanted, scope)?),
            None => file.remove()?,
        }
        self.forget(recorded.as_ref())?;
        Ok(outcome)
    }

    /// Removes the entry of a file, its copy, and the folders made for it that are empty again.
    fn forget(&mut self, recorded: Option<&InstalledFile>) -> Result<(), ApplyError> {
        let Some(entry) = recorded.filter(|_| !self.dry_run) else { return Ok(()) };
        if let Some(backup) = &entry.backup {
            std::fs::remove_file(&backup.path).ok();
        }
        self.record.forget(&entry.path);
        for folder in entry.folders.iter().rev() {
            // A folder of another installed file is removed with that file; one with other files
            // stays.
            match self.record.files.iter_mut().find(|file| file.path.starts_with(folder)) {
                Some(other) => other.folders.insert(0, folder.clone()),
                None => drop(std::fs::remove_dir(folder)),
            }
        }
        self.save()
    }

    fn save(&self) -> Result<(), ApplyError> {
        self.record.write(self.home).map_err(ApplyError::Record)
    }
}

/// The edits that may have been made in a client's file, as far as undoing needs them.
pub fn undoable(
    client: KnownClient,
    locations: &ClientLocations,
    command: &ClientCommand,
    path: &Path,
) -> Vec<Edit> {
    let is_own = is_own_file(path);
    let edits =
        client.changes(locations, command, InstallScope::User, InstallParts::ALL).into_iter();
    // The record has the allowed tools.
    let grant = client.grant(locations, InstallScope::User, &[]);
    let trust = (client == KnownClient::Codex).then(|| Edit::Trust { hashes: Vec::new() });
    let edits: Vec<Edit> = edits.chain(grant).flat_map(|change| change.edits).collect();
    // The record has the servers that were taken out.
    let taken = edits.iter().find_map(|edit| match edit {
        Edit::Server { table, .. } => {
            let table = table.iter().map(|key| (*key).to_owned()).collect();
            Some(Edit::Take { table, names: Vec::new() })
        }
        _ => None,
    });
    edits
        .into_iter()
        .chain(trust)
        .chain(taken)
        .filter(|edit| matches!(edit, Edit::Whole { .. }) == is_own)
        .collect()
}

/// Whether svc writes this file whole: a plugin, or rules.
pub(crate) fn is_own_file(path: &Path) -> bool {
    let is_rules = path.parent().is_some_and(|folder| folder.ends_with("policies"));
    is_rules || path.extension().is_some_and(|extension| extension == "js")
}

/// The format of a file, by its name.
pub fn format_of(path: &Path) -> FileFormat {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    if is_toml { FileFormat::Toml } else { FileFormat::Json }
}

fn is_busy(error: &ApplyError) -> bool {
    matches!(error, ApplyError::File(FileError::Busy))
}

/// The text before the first installation, if its copy is unchanged.
fn text_before(entry: &InstalledFile) -> Option<String> {
    let backup = entry.backup.as_ref().filter(|backup| backup.pristine)?;
    let text = bounded_file::read_text(&backup.path, CLIENT_FILE_BYTES).ok()??;
    (digest(&text) == backup.digest).then_some(text)
}

fn without(
    text: &str,
    format: FileFormat,
    edits: &[Edit],
    undo: &UndoInfo,
) -> Result<Option<String>, EditError> {
    let mut text = text.to_owned();
    for edit in edits.iter().rev() {
        match edit::undo(&text, format, edit, undo)? {
            Some(left) => text = left,
            None => return Ok(None),
        }
    }
    Ok(Some(text))
}

/// Whether a document is empty and has no comment.
fn is_blank(text: &str, format: FileFormat) -> bool {
    let empty = ConfigDocument::parse(format, text)
        .is_ok_and(|document| document.value().as_object().is_some_and(serde_json::Map::is_empty));
    empty && text.chars().all(|c| c.is_whitespace() || c == '{' || c == '}')
}

pub fn diff(path: &Path, old: Option<&str>, new: Option<&str>) -> String {
    let name = |text: Option<&str>| match text {
        Some(_) => path.display().to_string(),
        None => "/dev/null".to_owned(),
    };
    let (from, to) = (name(old), name(new));
    DiffOptions::new()
        .set_context_len(3)
        .set_original_filename(from)
        .set_modified_filename(to)
        .create_patch(old.unwrap_or_default(), new.unwrap_or_default())
        .to_string()
}

/// The files of a scope in which svc may be installed.
pub fn files(
    client: KnownClient,
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for change in client.changes(locations, command, scope, InstallParts::ALL) {
        let folder = change.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        // An earlier installation may have chosen the other file.
        let also: &[&str] = match client {
            KnownClient::Codex => &["config.toml", "hooks.json"],
            KnownClient::Opencode if change.format == FileFormat::Json && !has_whole(&change) => {
                &["opencode.json", "opencode.jsonc"]
            }
            _ => &[],
        };
        files.push(change.path);
        files.extend(also.iter().map(|name| folder.join(name)));
    }
    files.extend(client.grant_file(locations, scope).map(|(path, _)| path));
    files.sort();
    files.dedup();
    files
}

fn has_whole(change: &FileChange) -> bool {
    change.edits.iter().any(|edit| matches!(edit, Edit::Whole { .. }))
}
