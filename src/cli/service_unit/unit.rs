//! The file that tells the user's service manager how to run the daemon, and the manager's own
//! programs (systemd, launchd), which load it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use svc_sys::{bounded_file, private_file};

use crate::cli::{Context, program};

/// Marks the files that `svc service` wrote.
const MARKER: &str = "Made by svc service install";

const SYSTEMD_NAME: &str = "svc.service";
const LAUNCHD_LABEL: &str = "svc.daemon";

/// Largest unit, in bytes.
const MAX_UNIT: u64 = 1 << 20;
/// Deadline for a stop, in seconds: the daemon drains for 10 s and then closes its database.
const STOP_SECONDS: u32 = 20;
/// Seconds before a daemon that failed is started again.
const RESTART_SECONDS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    pub(super) fn here() -> Result<Self> {
        if cfg!(target_os = "macos") {
            Ok(Self::Launchd)
        } else if cfg!(target_os = "linux") {
            Ok(Self::Systemd)
        } else {
            bail!(
                "svc knows no service manager on this system; run `svc start` from what starts your programs"
            )
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Launchd => "launchd",
        }
    }

    /// The folder in which the manager looks for the user's files.
    fn folder(self, context: &Context) -> Result<PathBuf> {
        let home = || context.env.os("HOME").map(PathBuf::from).context("HOME is not set");
        match self {
            Self::Systemd => {
                let config = context.env.os("XDG_CONFIG_HOME").map(PathBuf::from);
                let config = match config.filter(|path| path.is_absolute()) {
                    Some(config) => config,
                    None => home()?.join(".config"),
                };
                Ok(config.join("systemd/user"))
            }
            Self::Launchd => Ok(home()?.join("Library/LaunchAgents")),
        }
    }
}

pub(super) struct Unit {
    pub(super) manager: Manager,
    pub(super) path: PathBuf,
    pub(super) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Present {
    Absent,
    Current,
    /// svc's file, but for another program, another data folder or another version.
    Outdated,
    /// A file without svc's marker.
    Foreign,
}

impl Present {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Current => "current",
            Self::Outdated => "outdated",
            Self::Foreign => "foreign",
        }
    }
}

impl Unit {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let manager = Manager::here()?;
        // A person's link leads to the new version after an upgrade.
        let program = program::own_name(&context.env)?;
        if !program.exists() {
            bail!(
                "this program is no longer at {}; run the one that is installed now",
                program.display()
            );
        }
        let service = Service::new(context, &program)?;
        let folder = manager.folder(context)?;
        let (name, text) = match manager {
            Manager::Systemd => (SYSTEMD_NAME.to_owned(), service.for_systemd()),
            Manager::Launchd => (format!("{LAUNCHD_LABEL}.plist"), service.for_launchd()),
        };
        Ok(Self { manager, path: folder.join(name), text })
    }

    pub(super) fn present(&self) -> Result<Present> {
        let read = bounded_file::read(&self.path, MAX_UNIT)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(match read {
            None => Present::Absent,
            Some(bytes) if bytes == self.text.as_bytes() => Present::Current,
            Some(bytes) if String::from_utf8_lossy(&bytes).contains(MARKER) => Present::Outdated,
            Some(_) => Present::Foreign,
        })
    }

    /// Writes the file atomically, readable by everybody: it holds no secret, and systemd warns
    /// about a unit file that others cannot read.
    pub(super) fn write(&self) -> Result<()> {
        let folder = self.path.parent().context("a unit has a folder")?;
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| private_file::replace_public(&self.path, self.text.as_bytes()));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

struct Service {
    program: String,
    log: String,
    environment: Vec<(&'static str, String)>,
}

impl Service {
    fn new(context: &Context, program: &Path) -> Result<Self> {
        let mut environment = Vec::new();
        if context.paths.explicit_home {
            environment.push(("SVC_HOME", plain(&context.paths.home)?));
        } else {
            // The service manager may have another environment than this shell; the data folder
            // depends on these variables.
            for name in ["XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
                if let Some(value) = context.env.os(name) {
                    environment.push((name, plain(Path::new(value))?));
                }
            }
        }
        Ok(Self { program: plain(program)?, log: plain(&context.paths.log)?, environment })
    }

    /// A unit of systemd (`systemd.service(5)`, `systemd.exec(5)`).
    fn for_systemd(&self) -> String {
        let mut text = format!(
            "# {MARKER}; `svc service uninstall` removes it, and installing again overwrites it.\n\
             \n\
             [Unit]\n\
             Description=svc, the team daemon for coding agents\n\
             StartLimitIntervalSec=60\n\
             StartLimitBurst=5\n\
             \n\
             [Service]\n\
             Type=exec\n"
        );
        for (name, value) in &self.environment {
            let assignment = quoted(&format!("{name}={value}"));
            text.extend(["Environment=", &assignment, "\n"]);
        }
        // systemd expands variables in the arguments but not in the program's path.
        let (program, log) = (quoted(&self.program), quoted(&self.log).replace('$', "$$"));
        text + &format!(
            "ExecStart={program} serve --log-file {log}\n\
             Restart=on-failure\n\
             RestartSec={RESTART_SECONDS}\n\
             # Wrong usage or configuration, another daemon on the database, pending migrations: once more would not help.\n\
             RestartPreventExitStatus=2 3 4\n\
             # The first SIGTERM lets requests finish, for up to 10 s.\n\
             KillMode=mixed\n\
             KillSignal=SIGTERM\n\
             TimeoutStopSec={STOP_SECONDS}\n\
             UMask=0077\n\
             \n\
             [Install]\n\
             WantedBy=default.target\n"
        )
    }

    /// A property list of launchd (`launchd.plist(5)`).
    fn for_launchd(&self) -> String {
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <!-- {MARKER}; `svc service uninstall` removes it, and installing again overwrites it. -->\n\
             <plist version=\"1.0\">\n<dict>\n\
             \t<key>Label</key>\n\t<string>{LAUNCHD_LABEL}</string>\n\
             \t<key>ProgramArguments</key>\n\t<array>\n"
        );
        for word in [&self.program, "serve", "--log-file", &self.log] {
            text.extend(["\t\t<string>", &escaped(word), "</string>\n"]);
        }
        text.push_str("\t</array>\n");
        if !self.environment.is_empty() {
            text.push_str("\t<key>EnvironmentVariables</key>\n\t<dict>\n");
            for (name, value) in &self.environment {
                text.extend(["\t\t<key>", name, "</key>\n\t\t<string>", &escaped(value)]);
                text.push_str("</string>\n");
            }
            text.push_str("\t</dict>\n");
        }
        text + &format!(
            "\t<key>RunAtLoad</key>\n\t<true/>\n\
             \t<key>KeepAlive</key>\n\t<dict>\n\t\t<key>SuccessfulExit</key>\n\t\t<false/>\n\t</dict>\n\
             \t<key>ExitTimeOut</key>\n\t<integer>{STOP_SECONDS}</integer>\n\
             \t<key>StandardErrorPath</key>\n\t<string>{}</string>\n\
             \t<key>Umask</key>\n\t<integer>{}</integer>\n\
             </dict>\n</plist>\n",
            escaped(&self.log),
            0o077
        )
    }
}

/// A path as text; fails if a line of a unit file cannot hold it.
fn plain(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    if text.chars().any(char::is_control) {
        bail!("{} has a control character in it", path.display());
    }
    Ok(text.to_owned())
}

/// A quoted word for a unit of systemd, with its specifiers (`%h`) escaped.
fn quoted(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{escaped}\"")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {output}")]
pub(super) struct ManagerError {
    command: String,
    output: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServiceState {
    /// Whether the service starts when the user logs in.
    pub(super) enabled: bool,
    /// Whether the service runs or is about to.
    pub(super) active: bool,
    /// The manager's own word: `active`, `inactive`, `failed`.
    pub(super) word: String,
    pub(super) pid: Option<i32>,
}

impl Unit {
    pub(super) fn state(&self) -> Result<ServiceState, ManagerError> {
        match self.manager {
            Manager::Systemd => {
                let properties = "--property=ActiveState,UnitFileState,MainPID";
                let shown = ask(&["systemctl", "--user", "show", properties, SYSTEMD_NAME])?;
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
                // Fails if the user's domain is unreachable, which the next command would report as
                // a service that is not loaded.
                ask(&["launchctl", "print", &domain()])?;
                let Ok(printed) = ask(&["launchctl", "print", &target()]) else {
                    let word = "inactive".to_owned();
                    return Ok(ServiceState { word, ..ServiceState::default() });
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

    /// The commands that load the file, enable the service at log-in and, if `start`, start it now.
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
            // launchd starts a service when it loads it, and loads the files in its folder at
            // log-in.
            Manager::Launchd if start => {
                let path = self.path.display().to_string();
                vec![words(&["launchctl", "bootstrap", &domain(), &path])]
            }
            Manager::Launchd => Vec::new(),
        }
    }

    /// The commands that stop and disable the service.
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

pub(super) fn run_all(commands: &[Vec<String>]) -> Result<(), ManagerError> {
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

fn domain() -> String {
    format!("gui/{}", rustix::process::getuid().as_raw())
}

fn target() -> String {
    format!("{}/{LAUNCHD_LABEL}", domain())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        Service {
            program: "/opt/my tools/100% $free/svc".to_owned(),
            log: "/data/a \"b\" & $c <d> %h\\/svc.log".to_owned(),
            environment: vec![("SVC_HOME", "/data/a \"b\" & $c <d> %h\\".to_owned())],
        }
    }

    #[test]
    fn systemd_unit_escapes_paths() {
        let text = service().for_systemd();
        let line =
            |start: &str| text.lines().find(|line| line.starts_with(start)).expect("it is there");
        assert_eq!(
            line("ExecStart="),
            r#"ExecStart="/opt/my tools/100%% $free/svc" serve --log-file "/data/a \"b\" & $$c <d> %%h\\/svc.log""#
        );
        assert_eq!(line("Environment="), r#"Environment="SVC_HOME=/data/a \"b\" & $c <d> %%h\\""#);
        assert!(text.starts_with(&format!("# {MARKER}")));
        assert_eq!(line("TimeoutStopSec="), "TimeoutStopSec=20");
    }

    #[test]
    fn launchd_plist_escapes_paths() {
        let text = service().for_launchd();
        assert!(text.contains("<string>/opt/my tools/100% $free/svc</string>"), "{text}");
        assert!(
            text.contains(
                "<key>SVC_HOME</key>\n\t\t<string>/data/a \"b\" &amp; $c &lt;d&gt; %h\\</string>"
            ),
            "{text}"
        );
        assert!(text.contains(MARKER), "{text}");
        for tag in ["dict", "array", "string", "key", "integer", "plist"] {
            let count = |tag: &str| text.matches(tag).count();
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
    }

    #[test]
    fn path_with_a_line_break_is_refused() {
        for path in ["/a\nb", "/a\tb", "/a\u{7f}"] {
            let error = plain(Path::new(path)).expect_err("a control character");
            assert!(error.to_string().contains("control character"), "{error}");
        }
    }
}
