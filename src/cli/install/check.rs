//! What is installed, and what is no longer right: compared with the files as they are, writing nothing.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::clients::{Client, Parts, Places, Scope};
use super::document::Document;
use super::edit::{self, Edit, Found, SERVER};
use super::file::Read;
use super::program::Program;
use super::record::Record;
use super::{apply, trust};
use crate::cli::daemon::{DaemonProbe, find_daemon};
use crate::cli::{Context, output};
use crate::client::{DaemonFile, Token, Url};
use crate::config::Flags;

/// How long a client may take to say its version; some are slow to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something that is no longer as it was installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Drift {
    /// The client's name.
    pub(in crate::cli) client: &'static str,
    /// What it is.
    pub(in crate::cli) problem: String,
    /// What to do.
    pub(in crate::cli) advice: String,
}

/// What is known of one client.
#[derive(Debug, Serialize)]
struct State {
    client: Client,
    /// Whether it is on this machine, or was.
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    servers: Vec<Seen>,
    hooks: Vec<Seen>,
    problems: Vec<String>,
    #[serde(skip)]
    advice: String,
}

/// A part of ours in a file.
#[derive(Debug, Serialize)]
struct Seen {
    scope: &'static str,
    path: PathBuf,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// What is right at this moment, which entries are compared with.
#[derive(Debug)]
struct Truth {
    places: Places,
    program: Program,
    record: Record,
    /// Where the daemon is, or would be.
    url: Option<Url>,
    token: Option<Token>,
}

/// `svc install status`: exit code 1 if anything of ours is not right.
pub(super) async fn status(context: &Context, clients: &[Client]) -> anyhow::Result<ExitCode> {
    let truth = Truth::now(context)?;
    let mut states = Vec::new();
    for client in super::chosen(clients, |_| true) {
        states.push(state(&truth, client).await);
    }
    let versions = states.iter().map(|state| version(&truth.places, state.client));
    let versions = futures_util::future::join_all(versions).await;
    for (state, version) in states.iter_mut().zip(versions) {
        state.version = version;
    }
    // Nobody wants to read of clients that are not here, unless asked for.
    states.retain(|state| !clients.is_empty() || state.found || !state.is_absent());
    let fine = states.iter().all(|state| state.problems.is_empty());
    if context.json {
        output::json(&json!({ "ok": fine, "program": truth.program.path(), "clients": states }))?;
    } else {
        states.iter().try_for_each(print)?;
        if states.is_empty() {
            output::line("no client is found here")?;
        }
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All that is no longer right in any client, and how many clients have something of ours.
pub(in crate::cli) async fn drift(context: &Context) -> anyhow::Result<(usize, Vec<Drift>)> {
    let truth = Truth::now(context)?;
    let (mut installed, mut drift) = (0, Vec::new());
    for client in Client::all() {
        let state = state(&truth, *client).await;
        installed += usize::from(!state.is_absent());
        drift.extend(state.problems.iter().map(|problem| Drift {
            client: client.name(),
            problem: problem.clone(),
            advice: state.advice.clone(),
        }));
    }
    Ok((installed, drift))
}

/// Whether what was installed works now: the server is started as a client would, if a daemon runs.
pub(super) async fn connection(context: &Context) -> String {
    if matches!(find_daemon(context).await, DaemonProbe::Absent) {
        // Asked, it would start one, and who installs may want other flags.
        return "the daemon does not run: `svc start` (a client's first session starts it, too)"
            .to_owned();
    }
    match timeout(PATIENCE, introduce(context)).await {
        Ok(Ok(())) => "the daemon runs, and `svc stdio` reaches it".to_owned(),
        Ok(Err(error)) => {
            format!("`svc stdio` does not reach the daemon: {error:#}; see `svc doctor`")
        }
        Err(_) => "`svc stdio` does not reach the daemon in time; see `svc doctor`".to_owned(),
    }
}

/// `initialize`, said to the process that clients start.
async fn introduce(context: &Context) -> anyhow::Result<()> {
    let program = Program::current(context)?;
    let mut child = Command::new(program.path())
        .args(program.arguments(Scope::User, &["stdio"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (Some(mut input), Some(output)) = (input, output) else { anyhow::bail!("it has no input") };
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": { "name": "svc-install", "version": env!("CARGO_PKG_VERSION") },
    }});
    input.write_all(format!("{hello}\n").as_bytes()).await?;
    let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
    let answer: Value = serde_json::from_str(&line)?;
    anyhow::ensure!(answer.pointer("/result/serverInfo/name") == Some(&json!("svc")), "{answer}");
    // It ends with its input, and its session with it.
    drop(input);
    child.wait().await?;
    Ok(())
}

impl Truth {
    fn now(context: &Context) -> anyhow::Result<Self> {
        let config = context.config(&Flags::default()).ok();
        let live = DaemonFile::read_live(&context.paths.daemon_json);
        let listen = || {
            let listen = config.as_ref()?.listen.iter().find(|address| address.port() != 0)?;
            Some(Url::of_listener(*listen))
        };
        let url = live.and_then(|daemon| Url::parse(&daemon.url).ok()).or_else(listen);
        let token = config.as_ref().and_then(|it| Token::read(&it.token_file.value).ok().flatten());
        Ok(Self {
            places: Places::current(context)?,
            program: Program::current(context)?,
            record: Record::read(&context.paths.home)?,
            url,
            token,
        })
    }
}

impl State {
    fn is_absent(&self) -> bool {
        self.servers.is_empty() && self.hooks.is_empty() && self.problems.is_empty()
    }
}

async fn state(truth: &Truth, client: Client) -> State {
    let mut state = State {
        client,
        found: client.is_here(&truth.places),
        version: None,
        servers: Vec::new(),
        hooks: Vec::new(),
        problems: Vec::new(),
        advice: format!("svc install {}", client.name()),
    };
    let mut looked_at = Vec::new();
    for scope in [Scope::User, Scope::Project] {
        for path in apply::files(client, &truth.places, &truth.program, scope) {
            // In one's home the project's files may be one's own.
            if !looked_at.contains(&path) {
                look(truth, &mut state, scope, &path);
                looked_at.push(path);
            }
        }
    }
    expected(truth, &mut state, &looked_at);
    double(&mut state);
    if client == Client::Codex && !state.hooks.is_empty() {
        untrusted(truth, &mut state).await;
    }
    state
}

/// What of ours is in a file.
fn look(truth: &Truth, state: &mut State, scope: Scope, path: &Path) {
    let text = match Read::new(path) {
        Ok(Read { text: None, .. }) => return,
        Ok(file) => file.text.unwrap_or_default(),
        Err(error) => return state.problems.push(format!("{} {error}", path.display())),
    };
    let format = apply::format_of(path);
    let parts = Parts { server: true, hooks: true };
    let changes = state.client.changes(&truth.places, &truth.program, scope, parts);
    let is_whole = |edit: &Edit| matches!(edit, Edit::Whole { .. });
    let is_plugin = path.extension().is_some_and(|it| it == "js");
    for edit in changes.iter().flat_map(|it| &it.edits).filter(|it| is_whole(it) == is_plugin) {
        let found = match edit::find(&text, format, edit) {
            Ok(found) => found,
            Err(error) => return state.problems.push(format!("{} {error}", path.display())),
        };
        let (name, path) = (scope_name(scope), path.to_path_buf());
        match edit {
            Edit::Server { table, .. } => {
                let document = Document::parse(format, &text).map(|it| it.value());
                let document = document.unwrap_or_default();
                let entry = edit::at(&document, table).and_then(|it| it.get(SERVER));
                state.see_server(truth, name, &path, entry, found == Found::Same);
                if state.client == Client::ClaudeCode && scope == Scope::User {
                    let here = truth.places.project.to_string_lossy();
                    let entry = edit::at(&document, &["projects", &here, "mcpServers", SERVER]);
                    state.see_server(truth, "local", &path, entry, false);
                }
            }
            Edit::Hooks { .. } | Edit::Whole { .. } => {
                let off = edit::find_switch(&text, format);
                let (what, detail) = match found {
                    Found::Missing => continue,
                    Found::Same if off.is_some() => ("disabled", off),
                    Found::Same => ("ok", None),
                    Found::Differs => ("changed", None),
                    Found::Foreign => ("foreign", None),
                };
                if what == "changed" {
                    state.problems.push(format!(
                        "its hooks in {} are not those of this version of svc, or of this program",
                        path.display()
                    ));
                } else if let Some(switch) = &detail {
                    state.problems.push(format!(
                        "its hooks are switched off by {switch} in {}",
                        path.display()
                    ));
                }
                state.hooks.push(Seen { scope: name, path, state: what, detail });
            }
            Edit::Trust { .. } => {}
        }
    }
}

impl State {
    fn see_server(
        &mut self,
        truth: &Truth,
        scope: &'static str,
        path: &Path,
        entry: Option<&Value>,
        same: bool,
    ) {
        let Some(entry) = entry else { return };
        let (what, detail) = judge(truth, entry, same);
        if let Some(detail) = &detail {
            self.problems.push(format!("its server `svc` in {} {detail}", path.display()));
        }
        self.servers.push(Seen { scope, path: path.to_path_buf(), state: what, detail });
    }
}

/// Whether an entry leads to our daemon, and what is wrong with it if not.
fn judge(truth: &Truth, entry: &Value, same: bool) -> (&'static str, Option<String>) {
    let off =
        entry.get("enabled") == Some(&json!(false)) || entry.get("disabled") == Some(&json!(true));
    if off {
        return ("disabled", Some("is switched off".to_owned()));
    }
    if same {
        return ("ok", None);
    }
    if !edit::is_our_server(entry) {
        return ("foreign", Some("is not this program".to_owned()));
    }
    if let (Some(program), _) = edit::command_of(entry) {
        return judge_program(truth, program, entry);
    }
    let port = |url: &str| Url::parse(url).ok().map(|url| url.socket().1);
    let (there, here) =
        (edit::url_of(entry).and_then(port), truth.url.as_ref().map(|url| url.socket().1));
    if let (Some(there), Some(here)) = (there, here)
        && there != here
    {
        return ("wrong_port", Some(format!("says port {there}, but the daemon is at {here}")));
    }
    if is_stale(truth, entry) {
        return ("stale_token", Some("has a token that is no longer the operator's".to_owned()));
    }
    ("ok", None)
}

fn judge_program(truth: &Truth, program: &str, entry: &Value) -> (&'static str, Option<String>) {
    let found = if program.contains('/') {
        Some(PathBuf::from(program)).filter(|path| path.exists())
    } else {
        truth.places.find(program)
    };
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    match found {
        None => ("missing_program", Some(format!("runs {program}, which does not exist"))),
        Some(path) if real(&path) != real(Path::new(truth.program.path())) => (
            "other_program",
            Some(format!("runs {}, and not {}", path.display(), truth.program.path())),
        ),
        Some(_) => {
            let (_, arguments) = edit::command_of(entry);
            let home =
                arguments.iter().position(|it| *it == "--home").map(|at| arguments.get(at + 1));
            let ours = truth.program.data_folder(Scope::User);
            match home {
                Some(home) if home.copied() != ours => {
                    ("other_home", Some("uses another data folder".to_owned()))
                }
                _ => ("ok", None),
            }
        }
    }
}

/// Whether a token stands in the entry that is not the one in the token file. A placeholder is somebody's environment.
fn is_stale(truth: &Truth, entry: &Value) -> bool {
    let headers = entry.get("headers").or_else(|| entry.get("http_headers"));
    let headers = headers.and_then(Value::as_object).into_iter().flatten();
    let credential = headers
        .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        .find_map(|(_, value)| value.as_str()?.strip_prefix("Bearer "));
    match (credential, &truth.token) {
        (Some(credential), Some(token)) => {
            !credential.contains('$') && credential != token.expose()
        }
        _ => false,
    }
}

/// What we installed and is gone.
fn expected(truth: &Truth, state: &mut State, looked_at: &[PathBuf]) {
    for entry in truth.record.files.iter().filter(|entry| entry.client == state.client) {
        let seen = state.servers.iter().chain(&state.hooks).any(|seen| seen.path == entry.path);
        if looked_at.contains(&entry.path) && !seen {
            state.problems.push(format!("what was installed in {} is gone", entry.path.display()));
        }
    }
}

/// Hooks that run twice for each event count everything twice.
fn double(state: &mut State) {
    let mut scopes: Vec<&str> = state.hooks.iter().map(|seen| seen.scope).collect();
    scopes.dedup();
    if state.hooks.len() > 1 {
        let places: Vec<String> =
            state.hooks.iter().map(|seen| seen.path.display().to_string()).collect();
        state
            .problems
            .push(format!("its hooks run twice: they are in {}", places.join(" and in ")));
        state.advice = format!(
            "svc uninstall {} --scope {}",
            state.client.name(),
            scopes.last().unwrap_or(&"user")
        );
    }
    if state.servers.len() > 1 {
        let places: Vec<&str> = state.servers.iter().map(|seen| seen.scope).collect();
        state.problems.push(format!("it has two servers `svc`: {}", places.join(" and ")));
        state.advice = format!(
            "remove the one that you do not want: svc uninstall {} --scope …",
            state.client.name()
        );
    }
}

async fn untrusted(truth: &Truth, state: &mut State) {
    let Some(Ok(hooks)) = trust::hooks(&truth.places).await else { return };
    let count = hooks.iter().filter(|hook| !hook.trusted).count();
    if count == 0 {
        return;
    }
    let detail = format!("{count} of {} are not trusted, so codex does not run them", hooks.len());
    for seen in &mut state.hooks {
        (seen.state, seen.detail) = ("untrusted", Some(detail.clone()));
    }
    state.problems.push(format!("of its hooks {detail}"));
    "review them with /hooks in codex, or `svc install codex --trust-hooks`"
        .clone_into(&mut state.advice);
}

async fn version(places: &Places, client: Client) -> Option<String> {
    let program = places.find(client.executable()?)?;
    let ran = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let text = timeout(PATIENCE, ran).await.ok()?.ok()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_version =
        |word: &&str| word.starts_with(|it: char| it.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(is_version).map(str::to_owned)
}

fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "user",
        Scope::Project => "project",
    }
}

fn print(state: &State) -> anyhow::Result<()> {
    let version = state.version.as_deref().map(|it| format!(" {it}")).unwrap_or_default();
    output::line(&format!("{}{version}", state.client.name()))?;
    for (what, seen) in [("server", &state.servers), ("hooks", &state.hooks)] {
        if seen.is_empty() && (what == "server" || state.client.has_hooks()) {
            output::line(&format!("  {what:<7} not installed"))?;
        }
        for it in seen {
            let path = output::visible(&it.path.display().to_string());
            output::line(&format!("  {what:<7} {:<12} {:<8} {path}", it.state, it.scope))?;
        }
    }
    for problem in &state.problems {
        output::line(&format!("  !! {}", output::visible(problem)))?;
    }
    if !state.problems.is_empty() {
        output::line(&format!("  -> {}", state.advice))?;
    }
    Ok(())
}
