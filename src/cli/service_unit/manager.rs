//! Calls systemd and launchd through their own programs.

use std::collections::HashMap;
use std::process::{Command, Stdio};

use super::unit::{LAUNCHD_LABEL, Manager, SYSTEMD_NAME, Unit};

/// A command of the service manager failed or could not be run.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {output}")]
pub(super) struct ManagerError {
    command: String,
    output: String,
}

/// The state of the service in the service manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServiceState {
    /// Whether the service starts when the user logs in.
    pub(super) enabled: bool,
    /// Whether the service runs or is about to.
    pub(super) active: bool,
    /// The manager's term: `active`, `inactive`, `failed`.
    pub(super) word: String,
    /// The service's process, if it has one.
    pub(super) pid: Option<i32>,
}

impl Unit {
    pub(super) fn state(&self) -> Result<ServiceState, ManagerError> {
        match self.manager {
            Manager::Systemd => {
                let shown = ask(&[
                    "systemctl",
                    "--user",
                    "show",
                    "--property=ActiveState,UnitFileState,MainPID",
                    SYSTEMD_NAME,
                ])?;
                let of: HashMap<_, _> =
                    shown.lines().filter_map(|line| line.split_once('=')).collect();
                let word = of.get("ActiveState").copied().unwrap_or("unknown");
                Ok(ServiceState {
                    enabled: of.get("UnitFileState").is_some_and(|state| *state == "enabled"),
                    active: matches!(word, "active" | "activating" | "reloading"),
                    word: word.to_owned(),
                    pid: of.get("MainPID").and_then(|pid| pid.parse().ok()).filter(|&pid| pid > 0),
                })
            }
            Manager::Launchd => {
                // Distinguishes an unreachable domain of the user from a service that is not
                // loaded.
                ask(&["launchctl", "print", &domain()])?;
                let Ok(printed) = ask(&["launchctl", "print", &target()]) else {
                    return Ok(ServiceState {
                        word: "inactive".to_owned(),
                        ..ServiceState::default()
                    });
                };
                let field = |name: &str| {
                    printed
                        .lines()
                        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(" = "))
                };
                let word = field("state").unwrap_or("unknown").to_owned();
                Ok(ServiceState {
                    enabled: true,
                    active: word == "running",
                    word,
                    pid: field("pid").and_then(|pid| pid.parse().ok()),
                })
            }
        }
    }

    /// The commands that load the file, start the service at log-in and, if `start`, now.
    pub(super) fn enable(&self, start: bool) -> Vec<Vec<String>> {
        match self.manager {
            Manager::Systemd => {
                let mut commands =
                    vec![systemctl(&["daemon-reload"]), systemctl(&["enable", SYSTEMD_NAME])];
                if start {
                    commands.push(systemctl(&["start", SYSTEMD_NAME]));
                }
                commands
            }
            // launchd starts what it loads; a file in its folder is loaded at log-in.
            Manager::Launchd if start => vec![words(&[
                "launchctl",
                "bootstrap",
                &domain(),
                &self.path.display().to_string(),
            ])],
            Manager::Launchd => Vec::new(),
        }
    }

    /// The commands that stop the service and disable its start.
    pub(super) fn disable(&self) -> Vec<Vec<String>> {
        match self.manager {
            Manager::Systemd => vec![systemctl(&["disable", "--now", SYSTEMD_NAME])],
            Manager::Launchd => vec![words(&["launchctl", "bootout", &target()])],
        }
    }

    /// The commands that make the manager forget a removed file.
    pub(super) fn forget(&self) -> Vec<Vec<String>> {
        match self.manager {
            Manager::Systemd => vec![systemctl(&["daemon-reload"])],
            Manager::Launchd => Vec::new(),
        }
    }

    /// The command with which a person restarts the service after an upgrade.
    pub(super) fn restart(&self) -> String {
        match self.manager {
            Manager::Systemd => format!("systemctl --user restart {SYSTEMD_NAME}"),
            Manager::Launchd => format!("launchctl kickstart -k {}", target()),
        }
    }
}

/// Runs commands, up to the first that fails.
pub(super) fn run(commands: &[Vec<String>]) -> Result<(), ManagerError> {
    for command in commands {
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        ask(&words)?;
    }
    Ok(())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn systemctl(args: &[&str]) -> Vec<String> {
    words(&[&["systemctl", "--user"], args].concat())
}

/// The domain of the user who is logged in.
fn domain() -> String {
    format!("gui/{}", rustix::process::getuid().as_raw())
}

fn target() -> String {
    format!("{}/{LAUNCHD_LABEL}", domain())
}

/// Runs a command and returns its standard output.
fn ask(words: &[&str]) -> Result<String, ManagerError> {
    let failed = |output: String| ManagerError { command: words.join(" "), output };
    let ran = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| failed(error.to_string()))?;
    if !ran.status.success() {
        let stderr = String::from_utf8_lossy(&ran.stderr);
        let lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let output = lines.collect::<Vec<_>>().join("; ");
        return Err(failed(if output.is_empty() { ran.status.to_string() } else { output }));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
