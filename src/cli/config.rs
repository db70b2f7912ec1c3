//! `svc config`: the settings in use, and the origin of each.

use std::path::PathBuf;

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};
use svc_sys::config::{Config, ConfigError, Env, FileConfig, Flags};

use super::output::{Column, Listing};
use super::{Context, ExitResult, ServeArgs, UsageError};

const SETTINGS: Listing = Listing {
    items: "settings",
    columns: &[
        Column::text("KEY", "key"),
        Column::text("VALUE", "value"),
        Column::text("ORIGIN", "origin").rank(1),
    ],
    empty: "",
    next: None,
};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print every key with its value and its origin: flag, env, file or default
    #[command(after_help = "Example:\n  SVC_LOG_LEVEL=debug svc config show\n\n\
        Takes the flags of `svc serve`, to show what they would change.")]
    Show(Box<ServeArgs>),
    /// Check a configuration file without using it
    #[command(after_help = "Example:\n  svc config check ./config.toml")]
    Check {
        /// The file to check [default: the one in use]
        file: Option<PathBuf>,
    },
}

pub(super) fn run(context: &Context, command: ConfigCommand) -> ExitResult {
    match command {
        ConfigCommand::Show(args) => show(context, &args.flags),
        ConfigCommand::Check { file } => check(context, file),
    }
}

fn show(context: &Context, flags: &Flags) -> ExitResult {
    let config = context.config(flags)?;
    let rows = config.rows;
    let file = &config.paths.config_file;
    let document = json!({
        "home": config.paths.home, "config_file": file, "config_file_exists": file.exists(),
        "settings": rows,
    });
    context.print(&document, || {
        let origin = if config.paths.explicit_home { "chosen" } else { "default" };
        let state = if file.exists() { "read" } else { "absent" };
        let mut all = vec![
            json!({ "key": "(home)", "value": config.paths.home, "origin": origin }),
            json!({ "key": "(config file)", "value": file, "origin": state }),
        ];
        all.extend(rows.iter().map(|it| {
            json!({ "key": it.key, "value": shown(it.key, &it.value), "origin": it.origin.to_string() })
        }));
        SETTINGS.print_table(&context.screen, &json!({ "settings": all }))
    })
}

fn check(context: &Context, named: Option<PathBuf>) -> ExitResult {
    let is_named = named.is_some();
    let file = named.unwrap_or_else(|| context.paths.config_file.clone());
    if is_named && !file.exists() {
        // A daemon runs without the file, but a person who names a file wants it read.
        bail!(UsageError(format!("there is no file {}", file.display())));
    }
    let file = std::path::absolute(file)?;
    let mut paths = context.paths.clone();
    paths.config_file.clone_from(&file);
    let parsed = FileConfig::load(&file)?;
    // Only `HOME`: the environment of this command is not the daemon's.
    let env: Env = context.env.os("HOME").map(|home| ("HOME", home)).into_iter().collect();
    let config = Config::from_sources(paths, &env, &Flags::default(), &parsed)?;
    let problems = config.agents.problems();
    if !problems.is_empty() {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(ConfigError::File { path: file, problem: problems.join("\n") }.into());
    }
    let problems = parsed.server_problems();
    if !problems.is_empty() {
        // A daemon starts in spite of these problems, but a person who checks the file wants to see
        // them.
        bail!(UsageError(format!("{}: {}", file.display(), problems.join("; "))));
    }
    let state = if file.exists() { "valid" } else { "absent: the defaults hold" };
    let line = format!("{} is {state}", file.display());
    context.print_line(&json!({ "file": file, "valid": true }), &line)
}

fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::Null if key == "default_agent" => "(none)".to_owned(),
        Value::Null if key == "daemon.name" => "(the host's name)".to_owned(),
        Value::Null if key == "sources.expose" => "(by the credential)".to_owned(),
        Value::Null if key == "store.url" => "(svc.db in the data folder)".to_owned(),
        Value::Null if key == "store.password_file" => "(none)".to_owned(),
        Value::Null => "(unlimited)".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            items.iter().map(|item| shown(key, item)).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
