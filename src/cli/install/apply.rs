//! One file: read, edited, put back, written down. And the way back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use diffy::DiffOptions;

use super::clients::{Change, Client, Places, Scope};
use super::document::{Document, Format};
use super::edit::{self, Done, Edit, Found, Problem};
use super::file::{FileError, Read};
use super::program::Program;
use super::record::{Backup, Entry, Record, digest};

/// How often a file that another program is writing is read again.
const TRIES: u32 = 20;
/// How long to let the other program write.
const PAUSE: Duration = Duration::from_millis(25);

/// What became of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There was nothing to do.
    Unchanged,
    /// It was changed, or would have been: a unified diff.
    Changed(String),
}

/// Why nothing became of it. It is as it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// What stands in it.
    #[error(transparent)]
    Edit(#[from] Problem),
    /// It was changed, and that could not be written down.
    #[error("was changed, but {0:#}")]
    Record(anyhow::Error),
}

/// How an operation goes about it.
#[derive(Debug)]
pub(super) struct Work<'a> {
    /// The data folder, where the record is kept.
    pub(super) home: &'a Path,
    /// What is known of earlier installations.
    pub(super) record: Record,
    /// Whether nothing is to be written.
    pub(super) dry: bool,
}

impl Work<'_> {
    /// Puts our part into a file.
    pub(super) fn install(
        &mut self,
        client: Client,
        scope: Scope,
        change: &Change,
    ) -> Result<Outcome, Failure> {
        patiently(|| self.try_install(client, scope, change))
    }

    fn try_install(
        &mut self,
        client: Client,
        scope: Scope,
        change: &Change,
    ) -> Result<Outcome, Failure> {
        let file = Read::new(&change.path)?;
        let known = self.record.of(&change.path).cloned();
        let mut done = known.as_ref().map(Entry::done).unwrap_or_default();
        let mut text = file.text().to_owned();
        let mut pristine = true;
        for edit in &change.edits {
            let found = edit::find(&text, change.format, edit).map_err(Problem::from)?;
            pristine &= found == Found::Missing;
            let (edited, new) = edit::apply(&text, change.format, edit)?;
            done.add(new, known.is_some());
            text = edited;
        }
        if text == file.text() {
            return Ok(Outcome::Unchanged);
        }
        let outcome = Outcome::Changed(diff(&change.path, file.text.as_deref(), Some(&text)));
        file.check_writable()?;
        if self.dry {
            return Ok(outcome);
        }
        let mut entry = known.unwrap_or_else(|| Entry {
            client,
            scope,
            path: change.path.clone(),
            created: file.text.is_none(),
            folders: Vec::new(),
            backup: None,
            after: String::new(),
            made: Vec::new(),
            replaced: None,
            trusted: Vec::new(),
        });
        let (before, after) = (digest(file.text()), digest(&text));
        if file.text.is_some() && before != entry.after {
            // Somebody else had it after us, so what was there before us is no longer what there should be without us.
            let path = file.back_up(scope)?;
            entry.backup = Some(Backup { path, digest: before, pristine });
            entry.created &= pristine;
        }
        entry.folders.extend(file.replace(&text, scope)?);
        entry.after = after;
        (entry.made, entry.replaced, entry.trusted) = (done.made, done.replaced, done.trusted);
        self.record.put(entry);
        self.save()?;
        Ok(outcome)
    }

    /// Takes our part out of a file.
    pub(super) fn uninstall(
        &mut self,
        client: Client,
        scope: Scope,
        path: &Path,
        edits: &[Edit],
    ) -> Result<Outcome, Failure> {
        patiently(|| self.try_uninstall(client, scope, path, edits))
    }

    fn try_uninstall(
        &mut self,
        client: Client,
        scope: Scope,
        path: &Path,
        edits: &[Edit],
    ) -> Result<Outcome, Failure> {
        let file = Read::new(path)?;
        let known = self.record.of(path).cloned();
        let Some(text) = file.text.as_deref() else {
            self.forget(known.as_ref())?;
            return Ok(Outcome::Unchanged);
        };
        let untouched = known.as_ref().filter(|entry| entry.after == digest(text));
        let wanted = match untouched {
            Some(entry) if entry.created => None,
            Some(entry) => match before(entry) {
                Some(before) => Some(before),
                None => without(text, format_of(path), edits, &entry.done())?,
            },
            None => {
                let done = known.as_ref().map(Entry::done).unwrap_or_default();
                let text = without(text, format_of(path), edits, &done)?;
                let created = known.as_ref().is_some_and(|entry| entry.created);
                text.filter(|text| !(created && is_blank(text, format_of(path))))
            }
        };
        if wanted.as_deref() == Some(text) {
            self.forget(known.as_ref())?;
            return Ok(Outcome::Unchanged);
        }
        tracing::debug!(client = client.name(), path = %path.display(), "undone");
        let outcome = Outcome::Changed(diff(path, Some(text), wanted.as_deref()));
        file.check_writable()?;
        if self.dry {
            return Ok(outcome);
        }
        match &wanted {
            Some(wanted) => drop(file.replace(wanted, scope)?),
            None => file.remove()?,
        }
        self.forget(known.as_ref())?;
        Ok(outcome)
    }

    /// What was written down of a file goes, with its copy and the folders made for it that are empty again.
    fn forget(&mut self, known: Option<&Entry>) -> Result<(), Failure> {
        let Some(entry) = known.filter(|_| !self.dry) else { return Ok(()) };
        if let Some(backup) = &entry.backup {
            std::fs::remove_file(&backup.path).ok();
        }
        self.record.forget(&entry.path);
        for folder in entry.folders.iter().rev() {
            // Another file of ours may be in it; then it goes with that one. One that has somebody else's stays.
            match self.record.files.iter_mut().find(|it| it.path.starts_with(folder)) {
                Some(other) => other.folders.insert(0, folder.clone()),
                None => drop(std::fs::remove_dir(folder)),
            }
        }
        self.save()
    }

    fn save(&self) -> Result<(), Failure> {
        self.record.write(self.home).map_err(Failure::Record)
    }
}

impl Done {
    /// What a further edit of the same file did. What ours replaces at a second installation is ours.
    fn add(&mut self, new: Self, known: bool) {
        for made in new.made {
            if !self.made.contains(&made) {
                self.made.push(made);
            }
        }
        for key in new.trusted {
            if !self.trusted.contains(&key) {
                self.trusted.push(key);
            }
        }
        if !known && self.replaced.is_none() {
            self.replaced = new.replaced;
        }
    }
}

/// All that a client may have of ours in a file: enough to find it and take it away.
pub(super) fn undoable(
    client: Client,
    places: &Places,
    program: &Program,
    path: &Path,
) -> Vec<Edit> {
    let is_plugin = path.extension().is_some_and(|it| it == "js");
    let parts = super::clients::Parts { server: true, hooks: true };
    let edits = client.changes(places, program, Scope::User, parts).into_iter();
    let trust = (client == Client::Codex).then(|| Edit::Trust { hashes: Vec::new() });
    edits
        .flat_map(|change| change.edits)
        .chain(trust)
        .filter(|edit| matches!(edit, Edit::Whole { .. }) == is_plugin)
        .collect()
}

/// How a file is written, by its name.
pub(super) fn format_of(path: &Path) -> Format {
    if path.extension().is_some_and(|it| it == "toml") { Format::Toml } else { Format::Json }
}

fn patiently(mut work: impl FnMut() -> Result<Outcome, Failure>) -> Result<Outcome, Failure> {
    for _ in 1..TRIES {
        match work() {
            Err(Failure::File(FileError::Busy)) => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    work()
}

/// The text from before us, if it is known and the copy is what we wrote.
fn before(entry: &Entry) -> Option<String> {
    let backup = entry.backup.as_ref().filter(|backup| backup.pristine)?;
    let text = std::fs::read_to_string(&backup.path).ok()?;
    (digest(&text) == backup.digest).then_some(text)
}

fn without(
    text: &str,
    format: Format,
    edits: &[Edit],
    done: &Done,
) -> Result<Option<String>, Problem> {
    let mut text = text.to_owned();
    for edit in edits.iter().rev() {
        match edit::undo(&text, format, edit, done)? {
            Some(left) => text = left,
            None => return Ok(None),
        }
    }
    Ok(Some(text))
}

/// Whether nothing is said in a document, not even in a comment.
fn is_blank(text: &str, format: Format) -> bool {
    let empty = Document::parse(format, text)
        .is_ok_and(|document| document.value().as_object().is_some_and(serde_json::Map::is_empty));
    empty && text.chars().all(|it| it.is_whitespace() || it == '{' || it == '}')
}

fn diff(path: &Path, old: Option<&str>, new: Option<&str>) -> String {
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

/// The files in which something of ours may be, in a scope.
pub(super) fn files(
    client: Client,
    places: &Places,
    program: &Program,
    scope: Scope,
) -> Vec<PathBuf> {
    let parts = super::clients::Parts { server: true, hooks: true };
    let mut files: Vec<PathBuf> = Vec::new();
    for change in client.changes(places, program, scope, parts) {
        let folder = change.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        // Where the other half of it would be if the person's own files were others.
        let also: &[&str] = match client {
            Client::Codex => &["config.toml", "hooks.json"],
            Client::Opencode if change.format == Format::Json && !has_whole(&change) => {
                &["opencode.json", "opencode.jsonc"]
            }
            _ => &[],
        };
        files.push(change.path);
        files.extend(also.iter().map(|name| folder.join(name)));
    }
    files.sort();
    files.dedup();
    files
}

fn has_whole(change: &Change) -> bool {
    change.edits.iter().any(|edit| matches!(edit, Edit::Whole { .. }))
}
