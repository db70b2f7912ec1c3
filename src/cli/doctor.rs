//! `svc doctor`: checks from outside the daemon, each finding with advice.
//!
//! Reads only. The daemon itself checks the integrity of the database.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use svc_client::{ClientError, Endpoint, Token, Url};
use svc_model::{
    Clock as _, Finding, InstanceStatus, Level, ProcessIdentity, SystemClock, Timestamp,
};
use svc_store::{MigrateError, PostgresOptions, RestoreError, ServerSync, StoreError};
use svc_sys::config::{
    Config, FileConfig, Flags,
    sources::{SourceStanding, SourceVault},
};
use svc_sys::{
    client_records,
    local_socket::{self, ConnectError},
    private_file,
    process_list::ProcessEntry,
    telemetry,
};

use super::daemon::{DaemonProbe, find_daemon, probe};
use super::{Context, ExitResult, install, output};

/// Free space below which the check warns, in bytes. Below a tenth of it the check fails.
const LITTLE_SPACE: u64 = 1024 * 1024 * 1024;
/// How long before writes will be refused the check begins to warn.
const SOON: Duration = Duration::from_hours(30 * 24);
/// Older refusals of hooks are not reported.
const LATELY: Duration = Duration::from_hours(1);

pub(super) async fn run(context: &Context) -> ExitResult {
    let mut findings = Vec::new();
    let config = match context.config(&Flags::default()) {
        Ok(config) => {
            findings.extend(configuration(&config.paths.config_file));
            findings.extend(agents(context, &config));
            findings.extend(servers(&config));
            Some(config)
        }
        Err(error) => {
            let advice = "correct it; the daemon does not start before";
            findings.push(fail("configuration", telemetry::chain(&*error), advice));
            None
        }
    };
    findings.push(home(context));
    findings.extend(config.as_ref().map(token));
    #[cfg(target_os = "linux")]
    findings.extend(filesystem(&context.paths.home));
    findings.extend(space(context).await);
    match config.as_ref().map(PostgresOptions::configured) {
        Some(Ok(Some(server))) => findings.extend(database(server).await),
        Some(Err(error)) => findings.push(fail(DATABASE, error.to_string(), "correct it")),
        Some(Ok(None)) | None => {
            findings.extend(moved(context).await);
            findings.extend(schema(context).await);
        }
    }
    findings.extend(daemon(context, config.is_some()).await);
    if let Some(config) = &config {
        findings.extend(neighbour(context, config).await);
    }
    findings.extend(moved_remotes(context).await);
    findings.extend(sessions(context).await);
    findings.extend(refused_hook(context));
    findings.extend(clients(context).await);
    print(context, &findings)
}

fn print(context: &Context, findings: &[Finding]) -> ExitResult {
    let failed = findings.iter().any(|finding| finding.level == Level::Fail);
    if context.json {
        output::json(&json!({ "ok": !failed, "checks": findings }))?;
    } else {
        for finding in findings {
            let mark = match finding.level {
                Level::Ok => "ok  ",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            let mut lines = finding.detail.trim_end().lines().map(output::visible);
            let first = lines.next().unwrap_or_default();
            output::line(&format!("{mark}  {}: {first}", finding.check))?;
            // A parser quotes the faulty line below its message.
            lines.try_for_each(|line| output::line(&format!("      {line}")))?;
            if let Some(advice) = &finding.advice {
                output::line(&format!("      -> {advice}"))?;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The file, and its servers as `svc config check` checks them.
fn configuration(file: &Path) -> Vec<Finding> {
    const CHECK: &str = "configuration";
    let problems = FileConfig::load(file).map(|parsed| parsed.server_problems());
    let problems = problems.unwrap_or_default();
    if problems.is_empty() {
        let state = if file.exists() { "is fine" } else { "is absent, which is fine" };
        return vec![ok(CHECK, format!("{} {state}", file.display()))];
    }
    let bad = |problem| format!("{}: {problem}", file.display());
    let bad = problems.into_iter().map(bad);
    bad.map(|bad| warn(CHECK, bad, "correct the entry; without it the server is missing")).collect()
}

/// Instances whose entries are invalid, whose programs are missing, or that ask for no permissions.
fn agents(context: &Context, config: &Config) -> Vec<Finding> {
    const CHECK: &str = "agents";
    let problems = config.agents.problems();
    let mut findings: Vec<Finding> = problems
        .iter()
        .map(|problem| warn(CHECK, problem.to_string(), "correct it, then `svc config check`"))
        .collect();
    for resolved in config.agents.instances(&context.env) {
        let view = resolved.view;
        let Some(reason) = view.reason else { continue };
        let is_told = problems.iter().any(|problem| problem.to_string() == reason);
        if !is_told && view.status != InstanceStatus::Disabled {
            let detail = format!("instance {} cannot be started: {reason}", view.instance);
            findings.push(warn(CHECK, detail, "the daemon's own environment counts"));
        }
    }
    for name in config.agents.bypassing() {
        let detail =
            format!("instance {name} has permission = \"bypass\": it asks for no permission");
        findings.push(warn(CHECK, detail, "any text that it reads can make it do anything"));
    }
    findings
}

/// Child MCP servers whose entries are ignored, and why. Those of the configuration file that are
/// bad are told with it.
fn servers(config: &Config) -> Vec<Finding> {
    const CHECK: &str = "MCP servers";
    let here = std::env::current_dir().ok();
    let plan = config.sources.plan(here.as_deref());
    let entries = plan.sources.iter().filter_map(|source| {
        let (name, from) = (&source.name, &source.from);
        match &source.standing {
            SourceStanding::InForce | SourceStanding::Disabled => None,
            SourceStanding::Bad if Path::new(from) == config.sources.config_file => None,
            SourceStanding::Bad => {
                let problem = source.entry.as_ref().err().map(ToString::to_string);
                let detail = format!("{from}: {name}: {}", problem.unwrap_or_default());
                Some(warn(CHECK, detail, "correct the entry"))
            }
            SourceStanding::PendingApproval => {
                let advice = format!("look at it, then `svc mcp approve {from}`");
                Some(warn(CHECK, format!("{from}: {name} waits for approval"), &advice))
            }
            SourceStanding::Hidden(by) => {
                Some(ok(CHECK, format!("{from}: {name} is not used; the entry of {by} is")))
            }
        }
    });
    let mut findings: Vec<Finding> = entries.collect();
    for problem in plan.problems {
        findings.push(warn(CHECK, problem, "correct the file"));
    }
    if let Err(error) = SourceVault::new(&config.sources.home).kept() {
        let advice = "until then servers have neither secrets nor logins";
        findings.push(warn(CHECK, error.to_string(), advice));
    }
    findings
}

/// The response of a running daemon; `None` on any error.
async fn ask(context: &Context, path: &str) -> Option<Value> {
    context.client().ok()?.get(path).await.ok()
}

/// Folders whose repositories have another remote than when their project was decided.
async fn moved_remotes(context: &Context) -> Vec<Finding> {
    let page = ask(context, "/v1/projects?limit=500").await.unwrap_or_default();
    let mut findings = Vec::new();
    for project in output::items(&page, "projects") {
        for folder in output::items(project, "folders") {
            let Some(differs) = folder["differs"].as_str() else { continue };
            let (name, folder) = (output::cell(project, "project"), output::cell(folder, "folder"));
            let detail =
                format!("{folder} counts as {name}, and its repository now says {differs}");
            findings.push(warn("projects", detail, "`svc project move DIR` follows it"));
        }
    }
    findings
}

fn home(context: &Context) -> Finding {
    const CHECK: &str = "data folder";
    let home = &context.paths.home;
    match std::fs::metadata(home) {
        Ok(meta) if !meta.is_dir() => {
            let advice = "move it away, or choose another with SVC_HOME";
            fail(CHECK, format!("{} is not a folder", home.display()), advice)
        }
        Ok(meta) => match private_file::check_folder(home) {
            Ok(()) => private(CHECK, home, &meta, 0o700),
            Err(error) => fail(CHECK, error.to_string(), "nothing starts before"),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            ok(CHECK, format!("{} does not exist yet; `svc start` makes it", home.display()))
        }
        Err(error) => {
            let detail = format!("{}: {error}", home.display());
            fail(CHECK, detail, "run as the user who runs the daemon")
        }
    }
}

fn token(config: &Config) -> Finding {
    const CHECK: &str = "operator token";
    let path = &config.token_file.value;
    match (Token::read(path), std::fs::metadata(path)) {
        (Ok(Some(_)), Ok(meta)) => private(CHECK, path, &meta, 0o600),
        (Ok(_), _) => {
            ok(CHECK, format!("{} does not exist yet; the first start makes it", path.display()))
        }
        (Err(error), _) => fail(CHECK, error.to_string(), "`svc token rotate` writes a new one"),
    }
}

/// Checks the mode of a file: a file that others can read leaks its secret, and a start refuses one
/// that others can write.
fn private(check: &'static str, path: &Path, meta: &Metadata, wanted: u32) -> Finding {
    if let Err(untrusted) = private_file::check_private(path, meta, wanted) {
        let (detail, advice) = untrusted.parts();
        return fail(check, detail, advice);
    }
    let mode = meta.permissions().mode() & 0o777;
    ok(check, format!("{} (mode {mode:o})", path.display()))
}

#[cfg(target_os = "linux")]
fn filesystem(home: &Path) -> Option<Finding> {
    const CHECK: &str = "file system";
    let stat = rustix::fs::statfs(private_file::existing_folder(home)).ok()?;
    // Only the low 32 bits are the magic number, whatever the type's width and sign.
    let magic = u64::from_ne_bytes(stat.f_type.to_ne_bytes()) & 0xFFFF_FFFF;
    let name = match magic {
        0x6969 => "NFS",
        0x517B | 0xFE53_4D42 => "SMB",
        0xFF53_4D42 => "CIFS",
        0x0102_1997 => "9P",
        0x00C3_6400 => "Ceph",
        0x0BD0_0BD0 => "Lustre",
        0x5346_414F => "AFS",
        _ => return Some(ok(CHECK, "local".to_owned())),
    };
    let advice = "put SVC_HOME on a local disk: SQLite's locks and shared memory do not work there";
    Some(warn(CHECK, format!("{} is on {name}, a network file system", home.display()), advice))
}

/// The space that is left, and when it will be used up: a running daemon knows how fast the
/// database grows.
async fn space(context: &Context) -> Option<Finding> {
    const CHECK: &str = "disk space";
    let free = private_file::free_bytes(&context.paths.home)?;
    let health = ask(context, "/v1/health").await.unwrap_or_default();
    let growth = &health["store"]["growth"];
    let forecast = forecast(growth).map(|text| format!("; {text}")).unwrap_or_default();
    let detail = format!("{} MiB free{forecast}", free / (1024 * 1024));
    let advice = "free some; writes are refused when it runs out, nothing is lost";
    Some(match free {
        _ if free < LITTLE_SPACE / 10 => fail(CHECK, detail, advice),
        _ if free < LITTLE_SPACE => warn(CHECK, detail, advice),
        _ if is_soon_full(growth) => {
            warn(CHECK, detail, "free some, raise store.max_bytes, or let [retention] remove more")
        }
        _ => ok(CHECK, detail),
    })
}

/// How fast the database grows, and what happens at that rate.
fn forecast(growth: &Value) -> Option<String> {
    let daily = growth["bytes_per_day"].as_u64()?;
    let rate = format!("the database grows by {} MiB a day", daily.div_ceil(1024 * 1024));
    let reaches = &growth["reaches"];
    let (Some(bound), Some(at)) = (reaches["bound"].as_str(), reaches["at"].as_str()) else {
        return Some(rate);
    };
    let day = at.get(..10)?;
    Some(match bound {
        "disk" => format!("{rate}, and the disk is full on {day}"),
        "store.max_bytes" => format!("{rate}, and has reached store.max_bytes on {day}"),
        _ => format!("{rate}, until {bound} holds its size from {day}"),
    })
}

/// Whether writes will be refused within [`SOON`].
fn is_soon_full(growth: &Value) -> bool {
    let reaches = &growth["reaches"];
    let at = reaches["at"].as_str().and_then(Timestamp::parse);
    let refuses = matches!(reaches["bound"].as_str(), Some("disk" | "store.max_bytes"));
    refuses && at.is_some_and(|at| at < SystemClock.now().plus(SOON))
}

const DATABASE: &str = "database";
/// A longer round trip slows every write.
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(5);
/// Largest difference of the server's clock and this machine's, in milliseconds.
const SKEW: u64 = 2_000;

async fn database(mut server: PostgresOptions) -> Vec<Finding> {
    server.connect_timeout = Duration::from_secs(5);
    let report = match svc_store::look_at_server(&server).await {
        Ok(report) => report,
        Err(error) => {
            let advice =
                "the daemon does not start before; see docs/guide/several-machines.md#set-it-up";
            return vec![fail(DATABASE, telemetry::chain(&error), advice)];
        }
    };
    let place = server.url.shown();
    let mut findings = vec![ok(DATABASE, format!("{place}, PostgreSQL {}", report.version))];
    if report.round_trip > SLOW_ROUND_TRIP {
        let took = format!("a statement takes {} ms there and back", report.round_trip.as_millis());
        findings.push(warn(DATABASE, took, "run svc near the database"));
    }
    if report.skew_ms.unsigned_abs() > SKEW {
        let differs = format!("the server's clock differs by {} ms", report.skew_ms);
        let advice = "let both machines take their time from the network";
        findings.push(warn(DATABASE, differs, advice));
    }
    if !report.writes_full_pages {
        let lost = "full_page_writes is off: a power cut may damage what the server acknowledged";
        let advice = "set it to on, unless the server's file system never writes half a page";
        findings.push(warn(DATABASE, lost.to_owned(), advice));
    }
    if report.sync == ServerSync::Async {
        let advice =
            "name a standby in synchronous_standby_names, if no answer may be lost with the server";
        findings.push(warn(DATABASE, "no standby is waited for".to_owned(), advice));
    }
    if report.is_readable {
        let advice = "add sslmode=verify-full to store.url, or give the address of a socket";
        findings.push(warn(DATABASE, "the connection is not encrypted".to_owned(), advice));
    }
    let own = env!("CARGO_PKG_VERSION");
    let others: Vec<&str> =
        report.daemons.iter().map(String::as_str).filter(|version| *version != own).collect();
    if !others.is_empty() {
        let differs =
            format!("a daemon of version {} runs on it, this is {own}", others.join(", "));
        findings.push(warn(DATABASE, differs, "run the same version on all machines"));
    }
    if !report.is_listening {
        let advice = "commits of other connections are found by looking each second";
        findings.push(warn(DATABASE, "a NOTIFY does not return within 1 s".to_owned(), advice));
    }
    findings
}

/// The database to which the history of `svc.db` moves or has moved. No daemon starts on the file
/// then.
async fn moved(context: &Context) -> Option<Finding> {
    let place = svc_store::gone_to(&context.paths.db).await.ok()??;
    let advice =
        "name that in [store] url of config.toml, or repeat `svc migrate` if it did not end";
    Some(warn("history", format!("it moves to {place}, or has moved there"), advice))
}

/// Objects that other programs added to the database: a trigger runs with each write of the daemon.
async fn schema(context: &Context) -> Option<Finding> {
    const CHECK: &str = "schema";
    let db = context.paths.db.clone();
    if !db.exists() {
        return None;
    }
    let path = db.clone();
    // The future of the comparison is not `Send`, so it cannot run as a task of the runtime.
    let runtime = tokio::runtime::Handle::current();
    let compared =
        tokio::task::spawn_blocking(move || runtime.block_on(svc_store::schema_difference(&path)));
    Some(match compared.await.ok()? {
        Ok(None) => ok(CHECK, "as svc makes it".to_owned()),
        Ok(Some(difference)) => {
            let advice = "remove it with sqlite3, or restore a backup from before";
            warn(CHECK, format!("{}: {difference}", db.display()), advice)
        }
        Err(error) => {
            let detail = format!("{}: {}", db.display(), telemetry::chain(&error));
            match error {
                RestoreError::Store(StoreError::Corrupt(_))
                | RestoreError::Migrate(MigrateError::Store(StoreError::Corrupt(_))) => {
                    fail(CHECK, detail, "`svc restore` puts a backup in its place")
                }
                // The error says which program or which backup to use.
                RestoreError::Migrate(MigrateError::Newer { .. } | MigrateError::Older { .. }) => {
                    fail(CHECK, detail, "the daemon does not start before")
                }
                _ => warn(CHECK, detail, "see `svc logs`"),
            }
        }
    })
}

async fn daemon(context: &Context, may_ask: bool) -> Vec<Finding> {
    const CHECK: &str = "daemon";
    let (daemon, health) = match find_daemon(context).await {
        DaemonProbe::Absent => return vec![warn(CHECK, "not running".to_owned(), "svc start")],
        DaemonProbe::Unready { problem, may_pass: true, .. } => {
            return vec![warn(CHECK, problem, "look again in a moment")];
        }
        DaemonProbe::Unready { problem, .. } => {
            return vec![fail(CHECK, problem, "`svc logs`; run as the user who runs the daemon")];
        }
        DaemonProbe::Running(daemon, health) => (daemon, health),
    };
    let mut findings = vec![if health.is_healthy() {
        ok(CHECK, format!("running at {} (pid {})", daemon.url, daemon.pid))
    } else if let Some(trouble) = health.trouble() {
        let advice = if health.is_fenced() {
            "stop one of the two daemons"
        } else {
            "look at the server, and at the network to it"
        };
        warn(CHECK, trouble.to_owned(), advice)
    } else {
        let detail = format!("{} answers {}", daemon.url, health.status);
        warn(CHECK, detail, "it starts or stops; look again in a moment")
    }];
    let (theirs, ours) = (health.document.version.as_str(), env!("CARGO_PKG_VERSION"));
    findings.push(if theirs == ours {
        ok("version", ours.to_owned())
    } else {
        warn("version", format!("the daemon is {theirs}, this program {ours}"), "svc restart")
    });
    if may_ask {
        findings.extend(access(context).await);
    }
    findings
}

/// The program that listens at the configured address, if it is not the daemon of this data folder.
async fn neighbour(context: &Context, config: &Config) -> Option<Finding> {
    const CHECK: &str = "address";
    let ours = svc_server::daemon::live_file(&context.paths);
    let address = config.listen.iter().find(|address| address.port() != 0)?;
    let url = Url::from_listener(*address);
    let advice = "to use this address, end that program; otherwise choose another with --listen or in config.toml";
    let health = match probe(Endpoint::Tcp(url.clone())).await {
        Ok(health) => health,
        // Nobody listens, or the listener does not speak HTTP.
        Err(ClientError::NotRunning { .. }) => return None,
        Err(error) => {
            return Some(warn(CHECK, format!("the program at {url} is not svc: {error}"), advice));
        }
    };
    if health.document.server != "svc" {
        return Some(warn(CHECK, format!("the program at {url} is not svc"), advice));
    }
    let theirs = health.document.pid;
    if ours.as_ref().is_some_and(|ours| theirs == Some(ours.pid)) {
        return None;
    }
    let who = theirs.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    if let Some(ours) = ours {
        let detail = format!(
            "there are two daemons, each at an address of its own: ours at {}, another{who} at {url}",
            ours.url
        );
        return Some(ok(CHECK, detail));
    }
    let detail = format!("a daemon of another data folder{who} is at {url}");
    let advice = "stop it (`svc --home DIR stop`), or choose another address with --listen or in config.toml";
    Some(warn(CHECK, detail, advice))
}

/// Entries of `svc install` in other programs' files that are no longer right.
async fn clients(context: &Context) -> Vec<Finding> {
    const CHECK: &str = "clients";
    let statuses = match install::inspected(context).await {
        Ok(statuses) => statuses,
        Err(error) => return vec![warn(CHECK, telemetry::chain(&*error), "svc install status")],
    };
    let count = statuses.iter().filter(|status| !status.is_absent()).count();
    if count == 0 {
        return vec![ok(CHECK, "no client is connected; `svc install` connects them".to_owned())];
    }
    let mut findings = Vec::new();
    for status in statuses {
        let finding =
            |problem| warn(CHECK, format!("{}: {problem}", status.client.name()), &status.advice);
        findings.extend(status.problems.iter().map(finding));
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, format!("{count} know svc")));
    }
    findings
}

/// Sessions whose client record or socket is not trusted, and clients that take connections from
/// every user of this machine. Only a running daemon knows the sessions.
async fn sessions(context: &Context) -> Vec<Finding> {
    let page = ask(context, "/v1/peers?live=true&limit=500").await.unwrap_or_default();
    let mut findings = Vec::new();
    let mut add = |detail, advice| findings.push(warn("sessions", detail, advice));
    for peer in output::items(&page, "peers") {
        let pid = peer["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let (Some(backend), Some(pid)) = (peer["backend"].as_str(), pid) else { continue };
        let name = output::cell(peer, "display_name");
        if let Some(address) = client_records::open_server(backend, pid) {
            add(
                format!("{name} takes commands at {address} without a password"),
                "whoever reaches that address can do what it may: set OPENCODE_SERVER_PASSWORD",
            );
        }
        let process = ProcessEntry::read(pid).map(|entry| entry.identity(pid));
        let (Some(process), Some(session)) = (process, peer["session_id"].as_str()) else {
            continue;
        };
        if let Some(fault) = client_records::fault(backend, &process, session) {
            add(
                format!("the record of {name}: {fault}"),
                "until then its status is as its hooks tell, which miss a No and Esc",
            );
        }
        if let Some(error) = refused_socket(backend, &process, session).await {
            let error = telemetry::chain(&error);
            add(
                format!(
                    "{name} is reached by its hooks alone, and its socket is not used: {error}"
                ),
                "until only its own process listens there, no message wakes it by that way",
            );
        }
    }
    findings
}

/// The last hook that the daemon refused because another process has the session. Only `hooks.log`
/// knows of such a session.
fn refused_hook(context: &Context) -> Option<Finding> {
    let log = std::fs::read_to_string(context.paths.home.join("hooks.log")).ok()?;
    let since = SystemClock.now().minus(LATELY);
    let is_late = |line: &&str| {
        line.split_once(' ').and_then(|(at, _)| Timestamp::parse(at)).is_some_and(|at| at >= since)
    };
    // A line has the client and the event, then the daemon's error.
    let mut problems =
        log.lines().rev().take_while(is_late).filter_map(|line| line.split_once(": "));
    let (_, why) = problems.find(|(_, why)| why.starts_with("session"))?;
    let advice = "such a session is not shown: begin a new conversation, or go on with this one \
        after the process that has it has ended";
    Some(warn("sessions", format!("a hook was refused in the last hour: {why}"), advice))
}

/// Why the daemon refuses a client's socket that exists.
async fn refused_socket(
    backend: &str,
    process: &ProcessIdentity,
    session: &str,
) -> Option<ConnectError> {
    let socket = client_records::socket(backend, process, session)?;
    match local_socket::connect_to_process(&socket, process).await {
        Ok(_) => None,
        // A Codex need not have an app-server, and the socket may be that of another Codex.
        Err(ConnectError::Absent(_) | ConnectError::OtherProcess { .. })
            if backend == client_records::CODEX =>
        {
            None
        }
        Err(error) => Some(error),
    }
}

async fn access(context: &Context) -> Option<Finding> {
    const CHECK: &str = "access";
    let problem = match context.client() {
        Ok(client) => match client.get::<Value>("/v1/health").await {
            Ok(_) => return Some(ok(CHECK, "the token is accepted".to_owned())),
            // Without its database the daemon cannot say. That has a finding of its own.
            Err(error) if error.is_transient() => return None,
            Err(error) => error.to_string(),
        },
        Err(error) => telemetry::chain(&*error),
    };
    let advice = "compare `svc token show` with the daemon's token_file (`svc config show`)";
    Some(fail(CHECK, problem, advice))
}

fn ok(check: &'static str, detail: String) -> Finding {
    Finding { check: check.into(), level: Level::Ok, detail, advice: None }
}

fn warn(check: &'static str, detail: String, advice: &str) -> Finding {
    Finding { check: check.into(), level: Level::Warn, detail, advice: Some(advice.to_owned()) }
}

fn fail(check: &'static str, detail: String, advice: &str) -> Finding {
    Finding { check: check.into(), level: Level::Fail, detail, advice: Some(advice.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn file_that_others_can_read_fails_with_advice() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "x").expect("writes");
        for (mode, level) in
            [(0o600, Level::Ok), (0o400, Level::Ok), (0o640, Level::Fail), (0o604, Level::Fail)]
        {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("is ours");
            let finding = private("x", &path, &std::fs::metadata(&path).expect("exists"), 0o600);
            assert_eq!(finding.level, level, "{mode:o}");
            assert_eq!(
                finding.advice.is_some_and(|advice| advice.starts_with("chmod 600 ")),
                level == Level::Fail
            );
        }
    }
}
