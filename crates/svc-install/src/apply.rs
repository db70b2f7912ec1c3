//! Installs into one file and uninstalls from it: reads, edits and replaces the file, and records
//! the changes in `installed.json` in the data folder. Without that record `svc uninstall` still
//! removes svc's entries.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use diffy::DiffOptions;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::client::{ClientCommand, ClientLocations, InstallParts, InstallScope, KnownClient};
use super::document::{ConfigDocument, FileFormat};
use super::edit::{self, Edit, EditError, EditState, FileChange, UndoInfo};
use super::file::{self, FileError, ForeignFile, LinkRule};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOutcome {
    Unchanged,
    /// A unified diff, for a dry run as well.
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
    /// The data folder, which holds the record.
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
        let (format, mut text) = (FileFormat::from_path(&change.path), file.text().to_owned());
        // The copy is restored only if it has no entries of svc, and still has the servers that svc
        // took out.
        let mut pristine = undo.taken.is_empty();
        for edit in &change.edits {
            pristine &= !(matches!(edit, Edit::Take { .. }) && recorded.is_some());
            let state = edit::find(&text, format, edit).map_err(EditError::from)?;
            pristine &= state == EditState::Missing;
            let (edited, new) = edit::apply(&text, format, edit)?;
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
            // Another program has changed the file since then, so the earlier copy is obsolete.
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
        // The installation may belong to another project, or to a folder that a variable named.
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
        let format = FileFormat::from_path(path);
        let wanted = match &recorded {
            Some(entry) if entry.after == digest(text) && entry.created => None,
            Some(entry) if entry.after == digest(text) => match text_before(entry) {
                Some(text_before) => Some(text_before),
                None => without(text, format, edits, &entry.undo)?,
            },
            Some(entry) => {
                let text = without(text, format, edits, &entry.undo)?;
                text.filter(|text| !(entry.created && is_blank(text, format)))
            }
            None => {
                let undo = guessed(text, format, edits);
                let left = without(text, format, edits, &undo)?;
                // The file is removed if nothing else is in it and there is no earlier text of it.
                let is_own = |left: &str| left != text && is_blank(left, format);
                left.filter(|left| !is_own(left) || file::copy_of(&file.real).exists())
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
        if recorded.is_none()
            && wanted.is_none()
            && is_own_file(path)
            && let Some(folder) = file.real.parent()
        {
            // The folder stays if other files are in it.
            drop(std::fs::remove_dir(folder));
        }
        self.forget(recorded.as_ref())?;
        Ok(outcome)
    }

    /// Removes a file's entry from the record, its copy, and the folders that were created for it
    /// and are empty again.
    fn forget(&mut self, recorded: Option<&InstalledFile>) -> Result<(), ApplyError> {
        let Some(entry) = recorded.filter(|_| !self.dry_run) else { return Ok(()) };
        if let Some(backup) = &entry.backup {
            std::fs::remove_file(&backup.path).ok();
        }
        self.record.forget(&entry.path);
        for folder in entry.folders.iter().rev() {
            // If another installed file is in the folder, the folder is removed with that file. A
            // folder with other files stays.
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

/// The edits that may have been made in a client's file, with the details that undoing needs. In a
/// file that the record does not name, undoing removes only the permission rules of `tools`, the
/// tools that svc allows: the name of a person's own server may begin with `svc_`, too.
pub fn undoable(
    client: KnownClient,
    locations: &ClientLocations,
    command: &ClientCommand,
    path: &Path,
    tools: &[&str],
) -> Vec<Edit> {
    let is_own = is_own_file(path);
    let edits =
        client.changes(locations, command, InstallScope::User, InstallParts::ALL).into_iter();
    let grant = client.grant(locations, InstallScope::User, tools);
    let trust = (client == KnownClient::Codex).then(|| Edit::Trust { hashes: Vec::new() });
    let edits: Vec<Edit> = edits.chain(grant).flat_map(|change| change.edits).collect();
    // The record has the names of the servers that were taken out.
    let taken = edits.iter().find_map(|edit| match edit {
        Edit::Server { table, .. } => Some(Edit::Take { table, names: Vec::new() }),
        _ => None,
    });
    edits
        .into_iter()
        .chain(trust)
        .chain(taken)
        .filter(|edit| matches!(edit, Edit::Whole { .. }) == is_own)
        .collect()
}

/// Whether svc writes the whole file: a plugin, or rules.
pub(crate) fn is_own_file(path: &Path) -> bool {
    let is_rules = path.parent().is_some_and(|folder| folder.ends_with("policies"));
    is_rules || path.extension().is_some_and(|extension| extension == "js")
}

fn is_busy(error: &ApplyError) -> bool {
    matches!(error, ApplyError::File(FileError::Busy))
}

/// The text before the first installation, if the copy is unchanged.
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

/// What undoing takes in a file that the record does not have. A file that svc writes whole need
/// not parse.
fn guessed(text: &str, format: FileFormat, edits: &[Edit]) -> UndoInfo {
    let document = ConfigDocument::parse(format, text);
    document.map(|document| edit::guess(&document.value(), edits)).unwrap_or_default()
}

/// Whether a document has neither members nor comments.
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

/// The files of a scope into which svc may be installed.
pub fn files(
    client: KnownClient,
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for change in client.changes(locations, command, scope, InstallParts::ALL) {
        let folder = change.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        // An earlier installation may have used the other file.
        let also: &[&str] = match client {
            KnownClient::Codex => &["config.toml", "hooks.json"],
            KnownClient::Opencode if !is_own_file(&change.path) => {
                &["opencode.json", "opencode.jsonc"]
            }
            _ => &[],
        };
        files.push(change.path);
        files.extend(also.iter().map(|name| folder.join(name)));
    }
    files.extend(client.grant_file(locations, scope));
    files.sort();
    files.dedup();
    files
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstallRecord {
    pub files: Vec<InstalledFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstalledFile {
    pub client: KnownClient,
    pub scope: InstallScope,
    /// The path before links are followed.
    pub path: PathBuf,
    pub created: bool,
    /// Folders that svc created for the file, the outermost first.
    #[serde(default)]
    pub folders: Vec<PathBuf>,
    /// A copy of the earlier text; obsolete once another program changes the file.
    pub backup: Option<FileBackup>,
    /// SHA-256 of the text that svc wrote, in hex.
    pub after: String,
    #[serde(flatten)]
    pub undo: UndoInfo,
    /// The folder within which links were followed: the person's home, or the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileBackup {
    pub path: PathBuf,
    /// SHA-256 of the copy's text, in hex.
    pub digest: String,
    /// Whether the copy has no entry of svc.
    pub pristine: bool,
}

impl InstallRecord {
    pub fn path(home: &Path) -> PathBuf {
        home.join("installed.json")
    }

    /// The record; empty if the file does not exist.
    pub fn read(home: &Path) -> anyhow::Result<Self> {
        let path = Self::path(home);
        let read = bounded_file::read(&path, CLIENT_FILE_BYTES)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let Some(bytes) = read else { return Ok(Self::default()) };
        serde_json::from_slice(&bytes).with_context(|| {
            format!("{} cannot be understood; move it away, then try again", path.display())
        })
    }

    /// Removes the file if the record is empty.
    pub fn write(&self, home: &Path) -> anyhow::Result<()> {
        let path = Self::path(home);
        if self.files.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {}", path.display()))
                }
                _ => Ok(()),
            };
        }
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        ForeignFile::read_within(&path, &[home.to_path_buf()])
            .and_then(|file| file.replace(&text, InstallScope::User))
            .map(drop)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn find(&self, path: &Path) -> Option<&InstalledFile> {
        self.files.iter().find(|entry| entry.path == path)
    }

    pub fn put(&mut self, entry: InstalledFile) {
        self.forget(&entry.path);
        self.files.push(entry);
    }

    pub fn forget(&mut self, path: &Path) {
        self.files.retain(|entry| entry.path != path);
    }
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::tests::{documents, hooks, server, value};
    use super::*;

    fn change(path: &Path, edits: Vec<Edit>) -> FileChange {
        FileChange { path: path.to_path_buf(), edits }
    }

    fn work(home: &Path) -> Installer<'_> {
        let locations = ClientLocations::new(home.to_path_buf(), home.join("project"), |_| None);
        let locations = Box::leak(Box::new(locations));
        let record = InstallRecord::read(home).expect("reads");
        Installer { home, locations, record, dry_run: false }
    }

    #[track_caller]
    fn install(home: &Path, change: &FileChange) -> FileOutcome {
        work(home).install(KnownClient::Gemini, InstallScope::User, change).expect("installs")
    }

    #[track_caller]
    fn uninstall(home: &Path, path: &Path, edits: &[Edit]) {
        work(home).uninstall(InstallScope::User, path, edits).expect("uninstalls");
    }

    proptest! {
        // Each case waits for the disk, so there are fewer than usual.
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn uninstalled_file_is_byte_for_byte_what_it_was(document in documents(), spaces in 0_usize..3, end: bool) {
            let mut text = " ".repeat(spaces) + &serde_json::to_string_pretty(&document).expect("is JSON");
            if end {
                text.push('\n');
            }
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("settings.json");
            fs::write(&path, &text).expect("writes");
            let change = change(&path, vec![server(), hooks()]);
            prop_assert!(matches!(install(folder.path(), &change), FileOutcome::Changed(_)));
            prop_assert_eq!(install(folder.path(), &change), FileOutcome::Unchanged);
            uninstall(folder.path(), &path, &change.edits);
            prop_assert_eq!(fs::read_to_string(&path).expect("is there"), text);
            prop_assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1, "nothing else is left");
        }
    }

    #[test]
    fn later_changes_of_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.json");
        fs::write(&path, "{\n  \"a\": 1\n}\n").expect("writes");
        let change = change(&path, vec![server(), hooks()]);
        install(folder.path(), &change);
        let text = fs::read_to_string(&path).expect("reads").replace("\"a\": 1", "\"a\": 2");
        fs::write(&path, text).expect("writes");
        uninstall(folder.path(), &path, &change.edits);
        assert_eq!(fs::read_to_string(&path).expect("reads"), "{\n  \"a\": 2\n}\n");
    }

    #[test]
    fn second_installation_keeps_the_text_before_the_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.json");
        let text = "{ \"a\": [1,   2] }";
        fs::write(&path, text).expect("writes");
        install(folder.path(), &change(&path, vec![server()]));
        let moved = Edit::Server {
            table: "mcpServers",
            entry: json!({ "type": "stdio", "command": "/usr/bin/svc", "args": ["stdio"] }),
        };
        let second = change(&path, vec![moved]);
        assert!(matches!(install(folder.path(), &second), FileOutcome::Changed(_)));
        uninstall(folder.path(), &path, &second.edits);
        assert_eq!(fs::read_to_string(&path).expect("reads"), text);
    }

    /// The data folder was removed before `svc uninstall`, or is another one.
    #[test]
    fn without_the_record_only_entries_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.json");
        let copy = folder.path().join("settings.json.svc-backup");
        let allow = |tools: &[&str]| Edit::Allow {
            table: &["permissions", "allow"],
            tools: tools.iter().map(|tool| format!("mcp__svc__{tool}")).collect(),
            form: edit::GrantForm::ListItem,
        };
        let change = change(&path, vec![server(), hooks(), allow(&["peer_list", "peer_send"])]);
        let edits = &change.edits;
        let forget = || fs::remove_file(InstallRecord::path(folder.path())).expect("is there");
        fs::write(&path, "{ // mine\n \"a\": [1,   2], \"mcpServers\": {} }").expect("writes");
        install(folder.path(), &change);
        forget();
        uninstall(folder.path(), &path, edits);
        let left = fs::read_to_string(&path).expect("reads");
        assert!(left.starts_with("{ // mine\n \"a\": [1,   2]"), "{left}");
        let left = value(FileFormat::Json, &left);
        assert_eq!(left, json!({ "a": [1, 2] }), "nothing of svc, and no empty list");
        assert!(copy.exists(), "the earlier text");

        fs::remove_file(&copy).expect("is there");
        fs::remove_file(&path).expect("is there");
        install(folder.path(), &change);
        forget();
        uninstall(folder.path(), &path, edits);
        assert!(!path.exists(), "svc had created it");
    }

    /// The names of the person's own server and of its rules begin with `svc_`.
    #[test]
    fn without_the_record_rules_of_other_servers_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path();
        let path = home.join(".config/opencode/opencode.json");
        fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        let before = json!({ "permission": { "*": "ask", "svc_mine_read": "allow", "svc_mine_*": "allow" } });
        fs::write(&path, serde_json::to_string_pretty(&before).expect("is JSON")).expect("writes");
        let installer = work(home);
        let tools = ["peer_list", "peer_send"];
        let grant = KnownClient::Opencode.grant(installer.locations, InstallScope::User, &tools);
        install(home, &grant.expect("it asks"));
        let settings = || value(FileFormat::Json, &fs::read_to_string(&path).expect("reads"));
        assert_eq!(settings()["permission"]["svc_peer_send"], "allow");
        fs::remove_file(InstallRecord::path(home)).expect("is there");
        let command = ClientCommand::new(Path::new("/opt/svc"), home, Some(home)).expect("is text");
        let edits = undoable(KnownClient::Opencode, installer.locations, &command, &path, &tools);
        uninstall(home, &path, &edits);
        assert_eq!(settings(), before);
    }

    #[test]
    fn links_and_modes_stay_and_read_only_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, link) = (folder.path().join("real.json"), folder.path().join("settings.json"));
        fs::write(&real, "{}").expect("writes");
        fs::set_permissions(&real, Permissions::from_mode(0o640)).expect("is ours");
        std::os::unix::fs::symlink("real.json", &link).expect("links");
        let change = change(&link, vec![server()]);
        install(folder.path(), &change);
        assert!(fs::symlink_metadata(&link).expect("is there").is_symlink());
        let meta = fs::metadata(&real).expect("is there");
        assert_eq!(meta.permissions().mode() & 0o777, 0o640);
        assert!(fs::read_to_string(&real).expect("reads").contains("/opt/svc"));
        uninstall(folder.path(), &link, &change.edits);
        assert_eq!(fs::read_to_string(&real).expect("reads"), "{}");

        fs::set_permissions(&real, Permissions::from_mode(0o440)).expect("is ours");
        let refused = work(folder.path()).install(KnownClient::Gemini, InstallScope::User, &change);
        assert_eq!(refused.expect_err("read-only").to_string(), "is read-only (mode 440)");
        assert_eq!(fs::read_to_string(&real).expect("reads"), "{}");
    }

    #[test]
    fn links_out_of_the_scope_are_not_followed() {
        let outer = tempfile::tempdir().expect("a folder");
        let (home, elsewhere) = (outer.path().join("home"), outer.path().join("elsewhere"));
        let project = home.join("project");
        fs::create_dir_all(project.join(".inner")).expect("makes");
        fs::create_dir(&elsewhere).expect("makes");
        fs::write(elsewhere.join("settings.json"), "{}").expect("writes");
        fs::write(home.join("settings.json"), "{}").expect("writes");
        let link = |target: &Path, name: &str| {
            std::os::unix::fs::symlink(target, project.join(name)).expect("links");
        };
        // Links out of the home to a file, to a file that does not exist yet, and to a folder; then
        // links out of the project.
        link(&elsewhere.join("settings.json"), "a.json");
        link(&elsewhere.join("new.json"), "b.json");
        link(&elsewhere, "c");
        link(&home.join("settings.json"), "d.json");
        link(Path::new("../missing/../settings.json"), "e.json");
        link(Path::new(".inner/f.json"), "f.json");
        for (name, project_passes, user_passes) in [
            ("a.json", false, false),
            ("b.json", false, false),
            ("c/settings.json", false, false),
            ("c/new/settings.json", false, false),
            ("d.json", false, true),
            ("e.json", false, false),
            ("f.json", true, true),
        ] {
            let change = change(&project.join(name), vec![server()]);
            for (scope, passes) in
                [(InstallScope::Project, project_passes), (InstallScope::User, user_passes)]
            {
                let mut work = work(&home);
                let installed = work.install(KnownClient::Gemini, scope, &change);
                assert_eq!(installed.is_ok(), passes, "{name} {scope:?} {installed:?}");
                if let Err(error) = installed {
                    assert!(error.to_string().contains("outside of "), "{error}");
                    work.uninstall(scope, &change.path, &change.edits).expect_err("leads outside");
                } else {
                    work.uninstall(scope, &change.path, &change.edits).expect("uninstalls");
                }
            }
        }
        assert_eq!(fs::read_to_string(elsewhere.join("settings.json")).expect("reads"), "{}");
        assert_eq!(fs::read_dir(&elsewhere).expect("lists").count(), 1);
    }

    #[test]
    fn file_of_five_megabytes_is_edited_in_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(".claude.json");
        let history: Vec<Value> =
            (0..40_000).map(|n| json!({ "n": n, "text": "x".repeat(90) })).collect();
        let text = serde_json::to_string_pretty(&json!({ "history": history, "numStartups": 7 }))
            .expect("is JSON");
        assert!(text.len() > 5_000_000, "{}", text.len());
        fs::write(&path, &text).expect("writes");
        let change = change(&path, vec![server()]);
        install(folder.path(), &change);
        assert_eq!(
            value(FileFormat::Json, &fs::read_to_string(&path).expect("reads"))["mcpServers"]["svc"]
                ["command"],
            "/opt/svc"
        );
        uninstall(folder.path(), &path, &change.edits);
        assert_eq!(fs::read_to_string(&path).expect("reads"), text);
    }
}
