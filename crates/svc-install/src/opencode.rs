//! opencode: servers in `opencode.json(c)`, hooks as a plugin, which is a file that is ours altogether.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::change::FileChange;
use super::client::{InstallParts, InstallScope};
use super::command::ClientCommand;
use super::document::FileFormat;
use super::edit::{Edit, OUR_FILE};
use super::locations::ClientLocations;

/// The plugin. `@SETTINGS@` stands for the settings of this installation.
const PLUGIN: &str = include_str!("opencode_plugin.js");

pub(crate) fn folder(locations: &ClientLocations) -> PathBuf {
    locations.config().join("opencode")
}

/// Where its servers and permissions are.
pub(crate) fn settings_file(locations: &ClientLocations, scope: InstallScope) -> PathBuf {
    match scope {
        InstallScope::User => config_file(&folder(locations)),
        InstallScope::Project => config_file(&locations.project),
    }
}

pub(crate) fn changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let (folder, plugins) = match scope {
        InstallScope::User => (folder(locations), folder(locations).join("plugin")),
        InstallScope::Project => {
            (locations.project.clone(), locations.project.join(".opencode/plugin"))
        }
    };
    let mut changes = Vec::new();
    if parts.server {
        let mut words = vec![command.executable(scope)];
        words.extend(command.arguments(scope, &["stdio"]));
        let entry = json!({ "type": "local", "command": words, "enabled": true });
        changes.push(FileChange {
            path: config_file(&folder),
            format: FileFormat::Json,
            edits: vec![Edit::Server { table: &["mcp"], entry }],
        });
    }
    if parts.hooks {
        let text = plugin(command.data_folder(scope));
        let edits = vec![Edit::Whole { text }];
        changes.push(FileChange { path: plugins.join("svc.js"), format: FileFormat::Json, edits });
    }
    changes
}

/// The configuration file that exists, or else the one that opencode's own `mcp add` makes. opencode reads both.
fn config_file(folder: &Path) -> PathBuf {
    let names = ["opencode.jsonc", "opencode.json"];
    let existing = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    existing.unwrap_or_else(|| folder.join("opencode.json"))
}

fn plugin(home: Option<&str>) -> String {
    let home = home.map_or(Value::Null, Value::from);
    format!("{OUR_FILE}\n{}", PLUGIN.replace("@SETTINGS@", &json!({ "home": home }).to_string()))
}
