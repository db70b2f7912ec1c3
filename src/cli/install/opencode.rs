//! opencode: servers in `opencode.json(c)`, hooks as a plugin, which is a file that is ours altogether.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::clients::{Change, Parts, Places, Scope};
use super::document::Format;
use super::edit::{Edit, OUR_FILE};
use super::program::Program;

/// The plugin, in which `@SETTINGS@` stands for what it must know of this installation.
const PLUGIN: &str = include_str!("opencode_plugin.js");

pub(super) fn folder(places: &Places) -> PathBuf {
    places.config().join("opencode")
}

pub(super) fn changes(
    places: &Places,
    program: &Program,
    scope: Scope,
    parts: Parts,
) -> Vec<Change> {
    let (folder, plugins) = match scope {
        Scope::User => (folder(places), folder(places).join("plugin")),
        Scope::Project => (places.project.clone(), places.project.join(".opencode/plugin")),
    };
    let mut changes = Vec::new();
    if parts.server {
        let mut command = vec![program.command(scope)];
        command.extend(program.arguments(scope, &["stdio"]));
        let entry = json!({ "type": "local", "command": command, "enabled": true });
        changes.push(Change {
            path: config_file(&folder),
            format: Format::Json,
            edits: vec![Edit::Server { table: &["mcp"], entry }],
        });
    }
    if parts.hooks {
        let text = plugin(program.data_folder(scope));
        let edits = vec![Edit::Whole { text }];
        changes.push(Change { path: plugins.join("svc.js"), format: Format::Json, edits });
    }
    changes
}

/// It reads all of these; the one that is there, or the one that its own `mcp add` makes.
fn config_file(folder: &Path) -> PathBuf {
    let names = ["opencode.jsonc", "opencode.json"];
    let there = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    there.unwrap_or_else(|| folder.join("opencode.json"))
}

fn plugin(home: Option<&str>) -> String {
    let home = home.map_or(Value::Null, Value::from);
    format!("{OUR_FILE}\n{}", PLUGIN.replace("@SETTINGS@", &json!({ "home": home }).to_string()))
}
