//! Installations into files and out of them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::apply::{FileOutcome, Installer, format_of};
use super::super::client::{ClientLocations, InstallScope, KnownClient};
use super::super::document::FileFormat;
use super::super::edit::{Edit, FileChange};
use super::super::record::InstallRecord;
use super::{documents, hooks, server, value};

fn change(path: &Path, edits: Vec<Edit>) -> FileChange {
    FileChange { path: path.to_path_buf(), format: format_of(path), edits }
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
    // Each case waits for the disk.
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
        table: &["mcpServers"],
        entry: json!({ "type": "stdio", "command": "/usr/bin/svc", "args": ["stdio"] }),
    };
    let second = change(&path, vec![moved]);
    assert!(matches!(install(folder.path(), &second), FileOutcome::Changed(_)));
    uninstall(folder.path(), &path, &second.edits);
    assert_eq!(fs::read_to_string(&path).expect("reads"), text);
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
    // The file, one that does not exist yet, the folder, and one that leads back out.
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
        value(FileFormat::Json, &fs::read_to_string(&path).expect("reads"))["mcpServers"]["svc"]["command"],
        "/opt/svc"
    );
    uninstall(folder.path(), &path, &change.edits);
    assert_eq!(fs::read_to_string(&path).expect("reads"), text);
}
