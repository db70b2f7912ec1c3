//! Settings that commands change: svc's own files, and those of coding agents.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::{Round, run};
use crate::daemon::Home;

/// The changes that commands acknowledged.
#[derive(Default)]
pub(super) struct ChangedFiles {
    /// The number of commands that succeeded.
    pub(super) count: u64,
    /// The servers that were added.
    servers: BTreeSet<String>,
    /// Whether the last command added or removed the hooks in the client's settings; `None` if it
    /// did not end.
    is_installed: Option<bool>,
}

impl ChangedFiles {
    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.servers.extend(other.servers);
        self.is_installed = other.is_installed.or(self.is_installed);
    }
}

/// Adds servers, and adds hooks to a client's settings and removes them.
pub(super) fn change(round: &Round<'_>) -> ChangedFiles {
    let mut kept = ChangedFiles::default();
    for number in 0_u64.. {
        let server = format!("s{}x{number}x", round.number);
        let installs = number % 2 == 0;
        let settings: &[&str] = if installs {
            &["install", "claude-code", "--no-start"]
        } else {
            &["uninstall", "claude-code", "--no-stop"]
        };
        for args in [&["mcp", "add", &server, "true"][..], settings] {
            if !round.goes_on() {
                return kept;
            }
            let is_server = args[0] == "mcp";
            if !is_server {
                kept.is_installed = None;
            }
            let ran = run(round.away, args, "");
            if !round.goes_on() {
                return kept;
            }
            assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
            kept.count += 1;
            if is_server {
                kept.servers.insert(server.clone());
            } else {
                kept.is_installed = Some(installs);
            }
        }
    }
    kept
}

/// Asserts that the files are intact, and as the last commands left them.
pub(super) fn check(away: &Home, kept: &ChangedFiles) {
    let config = fs::read_to_string(away.path("config.toml")).unwrap_or_default();
    toml::from_str::<toml::Table>(&config).expect("the file is whole");
    for server in &kept.servers {
        assert!(config.contains(server.as_str()), "{server} was named, and is not in {config}");
    }
    let settings = fs::read(away.user().join(".claude/settings.json")).unwrap_or_default();
    if !settings.is_empty() {
        serde_json::from_slice::<Value>(&settings).expect("the settings are whole");
    }
    if let Some(is_installed) = kept.is_installed {
        let settings = String::from_utf8_lossy(&settings);
        assert_eq!(settings.contains("hook claude"), is_installed, "{settings}");
    }
}
