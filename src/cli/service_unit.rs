//! `svc service`: the daemon as a user service that starts at log-in and after a failure.
//!
//! Writes the file that tells systemd or launchd how to run the daemon, and calls the manager's own
//! programs. A file without svc's marker is never changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Subcommand;
use serde::Serialize;
use serde_json::{Value, json};
use svc_sys::config::Flags;
use svc_sys::{bounded_file, private_file};
use tokio::time::{Instant, sleep};

use super::daemon::{DaemonProbe, find_daemon};
use super::{Context, ExitResult, exit, output, program};

/// Deadline for the daemon's first response, the same as for `svc start`.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
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

#[derive(Debug, Subcommand)]
pub(super) enum ServiceCommand {
    /// Install the daemon as a user service: it starts at log-in, and again after a failure
    #[command(after_help = "Example:\n  svc service install\n\n\
        Writes a unit for systemd, or a property list for launchd, for this program and this data folder, and has the \
        service enabled and started. Once more changes nothing. Flags of `svc serve` belong into config.toml. \
        Exit code 1 if the service manager cannot be reached; the file is there all the same.")]
    Install,
    /// Stop the service and remove what install wrote
    #[command(after_help = "Example:\n  svc service uninstall\n\n\
        The data folder stays. Fine if nothing is installed.")]
    Uninstall,
    /// Whether it is installed, up to date, and runs; exit code 0 if all of that, else 1
    #[command(after_help = "Example:\n  svc service status --json")]
    Status,
}

pub(super) async fn run(context: &Context, command: ServiceCommand) -> ExitResult {
    let unit = Unit::new(context)?;
    match command {
        ServiceCommand::Install => install(context, &unit).await,
        ServiceCommand::Uninstall => uninstall(context, &unit).await,
        ServiceCommand::Status => status(context, &unit).await,
    }
}

/// The process of the daemon of this data folder, whoever started it.
async fn daemon_pid(context: &Context) -> Option<i32> {
    match find_daemon(context).await {
        DaemonProbe::Running(daemon, _) => Some(daemon.pid),
        DaemonProbe::Unready { pid, .. } => pid,
        DaemonProbe::Absent => None,
    }
}

async fn install(context: &Context, unit: &Unit) -> ExitResult {
    // A mistake in the configuration is reported here and not in a log.
    context.config(&Flags::default())?;
    let present = unit.present()?;
    let change = match present {
        Present::Absent => "created",
        Present::Outdated => "replaced",
        Present::Current => "unchanged",
        Present::Foreign => {
            bail!("{} exists and was not written by svc; move it away first", unit.path.display())
        }
    };
    // The daemon's log is the first file in the data folder.
    private_file::prepare_home(&context.paths.home)?;
    if present != Present::Current {
        unit.write()?;
    }
    let loaded = load(context, unit, present).await;
    report(context, unit, &json!(change), &loaded, daemon_pid(context).await)?;
    if loaded.is_err() {
        let commands = unit.enable.iter().chain(&unit.start);
        let later: Vec<String> = commands.map(|words| words.join(" ")).collect();
        advise(
            context,
            &format!(
                "the file stays, and from a session that has a service manager `{}` does the rest",
                later.join(" && ")
            ),
        );
    }
    if present == Present::Outdated && loaded.as_ref().is_ok_and(|state| state.active) {
        let restart = unit.restart.join(" ");
        advise(context, &format!("the service still runs as it was installed before; `{restart}`"));
    }
    Ok(if loaded.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has the manager enable the service, and start it unless a daemon runs that the service did not
/// start: it holds the database.
async fn load(context: &Context, unit: &Unit, present: Present) -> Result<ServiceState> {
    let before = unit.state()?;
    let starts = !before.active && daemon_pid(context).await.is_none();
    if present == Present::Current && before.enabled && !starts {
        return Ok(before);
    }
    run_all(&unit.enable)?;
    if !starts {
        return unit.state();
    }
    run_all(&unit.start)?;
    wait(context, unit).await
}

/// Waits until the daemon that the service started responds: a started process may still fail.
async fn wait(context: &Context, unit: &Unit) -> Result<ServiceState> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let state = unit.state()?;
        if let DaemonProbe::Running(daemon, health) = find_daemon(context).await
            && health.is_healthy()
            && state.pid.is_none_or(|pid| pid == daemon.pid)
        {
            return Ok(state);
        }
        if !state.active || Instant::now() >= deadline {
            bail!("the service is {} and does not answer; see `svc logs`", state.word);
        }
        sleep(POLL).await;
    }
}

async fn uninstall(context: &Context, unit: &Unit) -> ExitResult {
    let is_there = match unit.present()? {
        Present::Absent => false,
        Present::Foreign => bail!("{} was not written by svc, so it stays", unit.path.display()),
        Present::Current | Present::Outdated => true,
    };
    let problem = if is_there { unload(unit)? } else { None };
    let running = daemon_pid(context).await;
    let document = json!({
        "manager": unit.manager, "path": unit.path, "unit": "absent",
        "removed": is_there, "daemon_pid": running, "problem": problem,
    });
    let line = if is_there {
        format!("{} removed", unit.path.display())
    } else {
        "nothing is installed".to_owned()
    };
    context.print_line(&document, &line)?;
    if let Some(problem) = problem {
        let problem = output::visible(&problem);
        advise(context, &format!("{problem}; it forgets the service when it restarts"));
    }
    if let Some(pid) = running.filter(|_| is_there) {
        advise(context, &format!("a daemon (pid {pid}) still runs; `svc stop` ends it"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops the service and removes its file. Returns why the manager was not reached.
fn unload(unit: &Unit) -> Result<Option<String>> {
    let state = unit.state();
    // launchd refuses to unload a service that is not loaded.
    if state.as_ref().is_ok_and(|state| state.enabled || state.active) {
        run_all(&unit.disable).context("the service stays as it is")?;
    }
    std::fs::remove_file(&unit.path)
        .with_context(|| format!("cannot remove {}", unit.path.display()))?;
    match state {
        Ok(_) => run_all(&unit.forget).map(|()| None),
        Err(refused) => Ok(Some(refused.to_string())),
    }
}

async fn status(context: &Context, unit: &Unit) -> ExitResult {
    let present = unit.present()?;
    let state = unit.state();
    report(context, unit, &json!(present), &state, daemon_pid(context).await)?;
    if present == Present::Outdated {
        advise(
            context,
            "it was installed for another program or data folder, or by another version; `svc service install` renews it",
        );
    }
    let well = present == Present::Current && state.is_ok_and(|state| state.active);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a sentence for a person; a program reads the document.
fn advise(context: &Context, text: &str) {
    if !context.json {
        output::note(text);
    }
}

/// Prints the file, of which `word` says how it is, the state of the service and the daemon.
fn report(
    context: &Context,
    unit: &Unit,
    word: &Value,
    state: &Result<ServiceState>,
    daemon: Option<i32>,
) -> Result<()> {
    let problem = state.as_ref().err().map(ToString::to_string);
    let state = state.as_ref().ok();
    let pid = state.and_then(|state| state.pid);
    if context.json {
        output::json(&json!({
            "manager": unit.manager, "path": unit.path, "unit": word,
            "enabled": state.map(|state| state.enabled), "active": state.map(|state| state.active),
            "state": state.map(|state| &state.word),
            "pid": pid, "daemon_pid": daemon, "problem": problem,
        }))?;
    } else {
        let mut fields =
            vec![("unit", format!("{} ({})", unit.path.display(), output::plain(word)))];
        if let Some(state) = state {
            fields.push(("enabled", if state.enabled { "yes" } else { "no" }.to_owned()));
            fields.push(("state", state.word.clone()));
        }
        fields.extend(pid.map(|pid| ("pid", pid.to_string())));
        output::fields(&fields)?;
    }
    if let Some(problem) = problem {
        if context.json {
            exit::note_failure(&problem, true);
        } else {
            output::note(&output::visible(&problem));
        }
    }
    let is_service = state.is_some_and(|state| state.active) && pid == daemon;
    if let Some(pid) = daemon.filter(|_| !is_service) {
        advise(
            context,
            &format!(
                "a daemon (pid {pid}) runs, and not as this service: `svc stop`, then `svc service install`"
            ),
        );
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    fn here() -> Result<Self> {
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
}

/// The file of the service, and the commands of its manager, each as its words.
struct Unit {
    manager: Manager,
    path: PathBuf,
    text: String,
    /// Load the file, and let the service start at log-in.
    enable: Vec<Vec<String>>,
    start: Vec<Vec<String>>,
    /// Stop the service, and let it start no more.
    disable: Vec<Vec<String>>,
    /// Make the manager forget a removed file.
    forget: Vec<Vec<String>>,
    /// For a person, after an upgrade.
    restart: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Present {
    Absent,
    Current,
    /// svc's file, but for another program, another data folder or another version.
    Outdated,
    /// A file without svc's marker.
    Foreign,
}

impl Unit {
    fn new(context: &Context) -> Result<Self> {
        // A person's link leads to the new version after an upgrade.
        let program = program::own_name(&context.env)?;
        if !program.exists() {
            bail!(
                "this program is no longer at {}; run the one that is installed now",
                program.display()
            );
        }
        let service = Service::new(context, &program)?;
        let home = || context.env.os("HOME").map(PathBuf::from).context("HOME is not set");
        let manager = Manager::here()?;
        Ok(match manager {
            Manager::Systemd => {
                let config = context.env.os("XDG_CONFIG_HOME").map(PathBuf::from);
                let config = match config.filter(|path| path.is_absolute()) {
                    Some(config) => config,
                    None => home()?.join(".config"),
                };
                let of = |args: &[&str]| words(&[&["systemctl", "--user"], args].concat());
                Self {
                    manager,
                    path: config.join("systemd/user").join(SYSTEMD_NAME),
                    text: service.for_systemd(),
                    enable: vec![of(&["daemon-reload"]), of(&["enable", SYSTEMD_NAME])],
                    start: vec![of(&["start", SYSTEMD_NAME])],
                    disable: vec![of(&["disable", "--now", SYSTEMD_NAME])],
                    forget: vec![of(&["daemon-reload"])],
                    restart: of(&["restart", SYSTEMD_NAME]),
                }
            }
            Manager::Launchd => {
                let path = home()?.join(format!("Library/LaunchAgents/{LAUNCHD_LABEL}.plist"));
                let bootstrap =
                    words(&["launchctl", "bootstrap", &domain(), &path.to_string_lossy()]);
                Self {
                    manager,
                    path,
                    text: service.for_launchd(),
                    // launchd starts a service when it loads it, and loads the files in its folder
                    // at log-in.
                    enable: Vec::new(),
                    start: vec![bootstrap],
                    disable: vec![words(&["launchctl", "bootout", &target()])],
                    forget: Vec::new(),
                    restart: words(&["launchctl", "kickstart", "-k", &target()]),
                }
            }
        })
    }

    fn present(&self) -> Result<Present> {
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
    fn write(&self) -> Result<()> {
        let folder = self.path.parent().context("a unit has a folder")?;
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| private_file::replace_public(&self.path, self.text.as_bytes()));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn state(&self) -> Result<ServiceState> {
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ServiceState {
    /// Whether the service starts when the user logs in.
    enabled: bool,
    /// Whether the service runs or is about to.
    active: bool,
    /// The manager's own word: `active`, `inactive`, `failed`.
    word: String,
    pid: Option<i32>,
}

fn run_all(commands: &[Vec<String>]) -> Result<()> {
    for command in commands {
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        ask(&words)?;
    }
    Ok(())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn domain() -> String {
    format!("gui/{}", rustix::process::getuid().as_raw())
}

fn target() -> String {
    format!("{}/{LAUNCHD_LABEL}", domain())
}

fn ask(words: &[&str]) -> Result<String> {
    let failed = |output: String| anyhow!("`{}` failed: {output}", words.join(" "));
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
