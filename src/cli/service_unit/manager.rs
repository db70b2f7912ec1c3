//! What is asked of systemd and launchd, through their own programs.

use std::collections::HashMap;
use std::process::{Command, Stdio};

use super::unit::{LAUNCHD_LABEL, Manager, SYSTEMD_NAME, Unit};

/// The manager did not do what it was asked, or could not be asked; in its words.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {said}")]
pub(super) struct Refused {
    command: String,
    said: String,
}

/// What the manager knows of the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// It is started when the user logs in.
    pub(super) enabled: bool,
    /// It runs, or is about to.
    pub(super) active: bool,
    /// In the manager's own word: `active`, `inactive`, `failed`.
    pub(super) word: String,
    /// Its process, if it has one.
    pub(super) pid: Option<i32>,
}

impl Unit {
    /// What the manager knows of it.
    pub(super) fn state(&self) -> Result<State, Refused> {
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
                Ok(State {
                    enabled: of.get("UnitFileState").is_some_and(|state| *state == "enabled"),
                    active: matches!(word, "active" | "activating" | "reloading"),
                    word: word.to_owned(),
                    pid: of.get("MainPID").and_then(|pid| pid.parse().ok()).filter(|&pid| pid > 0),
                })
            }
            Manager::Launchd => {
                // To reach the user's domain at all is one question, whether the service is in it another.
                ask(&["launchctl", "print", &domain()])?;
                let Ok(printed) = ask(&["launchctl", "print", &target()]) else {
                    return Ok(State { word: "inactive".to_owned(), ..State::default() });
                };
                let field = |name: &str| {
                    printed
                        .lines()
                        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(" = "))
                };
                let word = field("state").unwrap_or("unknown").to_owned();
                Ok(State {
                    enabled: true,
                    active: word == "running",
                    word,
                    pid: field("pid").and_then(|pid| pid.parse().ok()),
                })
            }
        }
    }

    /// The commands that make the manager take up the file, start the service at log-in and, if `start`, now.
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
            // It starts what it loads; a file in its folder is loaded at log-in.
            Manager::Launchd if start => vec![words(&[
                "launchctl",
                "bootstrap",
                &domain(),
                &self.path.display().to_string(),
            ])],
            Manager::Launchd => Vec::new(),
        }
    }

    /// The commands that stop the service and keep it from starting.
    pub(super) fn disable(&self) -> Vec<Vec<String>> {
        match self.manager {
            Manager::Systemd => vec![systemctl(&["disable", "--now", SYSTEMD_NAME])],
            Manager::Launchd => vec![words(&["launchctl", "bootout", &target()])],
        }
    }

    /// The commands that make the manager forget a file that is gone.
    pub(super) fn forget(&self) -> Vec<Vec<String>> {
        match self.manager {
            Manager::Systemd => vec![systemctl(&["daemon-reload"])],
            Manager::Launchd => Vec::new(),
        }
    }

    /// What a person runs to make the service run what is installed now.
    pub(super) fn restart(&self) -> String {
        match self.manager {
            Manager::Systemd => format!("systemctl --user restart {SYSTEMD_NAME}"),
            Manager::Launchd => format!("launchctl kickstart -k {}", target()),
        }
    }
}

/// Runs commands, up to the first that fails.
pub(super) fn run(commands: &[Vec<String>]) -> Result<(), Refused> {
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

/// Runs a command and gives its standard output.
fn ask(words: &[&str]) -> Result<String, Refused> {
    let refused = |said: String| Refused { command: words.join(" "), said };
    let ran = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| refused(error.to_string()))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let said = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let said = said.collect::<Vec<_>>().join("; ");
        return Err(refused(if said.is_empty() { ran.status.to_string() } else { said }));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
