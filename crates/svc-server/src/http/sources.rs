//! `/v1/sources`: child MCP servers. Only the operator turns them on and off.

use std::time::Duration;

use axum::extract::Path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{Page, sources::SourceKey};
use svc_model::{Caller, PageQuery, READ_ALL, source::SourceView};
use svc_sources::{LoginOutcome, OpenLogin, SourceChange, SourceManager};

use super::{
    App, Code, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_list = Operation::new("Child MCP servers that the caller's files name, by name");
    let on_list =
        on_list.query::<OfProject>().page_or_all().answer::<SourceList>(200, "All of them");
    let on_get = Operation::new("A child MCP server").query::<OfProject>();
    let on_log = Operation::new(
        "The end of what a child MCP server wrote to its error output (operator, read_all)",
    );
    let on_log =
        on_log.query::<OfProject>().answer::<SourceLog>(200, "At most 64 KiB of each instance");
    let on_changes = Operation::new(
        "What waits for a person's approval: changed definitions of a child MCP server, or a project's file (operator, read_all)",
    );
    let on_changes = on_changes.query::<OfApproval>();
    let change = |what| Operation::new(what).query::<OfProject>();
    let on_reconnect = change("Restart a child MCP server at once (operator)");
    let on_enable = change("Turn a child MCP server on, for good (operator)");
    let on_disable = change("Turn a child MCP server off, for good (operator)");
    let on_reload = Operation::new("Read the files that name child MCP servers again (operator)");
    api.get("/v1/sources", on_list, list)
        .post("/v1/sources/reload", on_reload.answer::<SourceList>(200, "All of them"), reload)
        .get("/v1/sources/{name}", on_get.answer::<SourceView>(200, "The server"), get)
        .get("/v1/sources/{name}/log", on_log, log)
        .get(
            "/v1/sources/{name}/changes",
            on_changes.answer::<SourceChanges>(200, "What has changed"),
            changes,
        )
        .post(
            "/v1/sources/{name}/approve",
            Operation::new("Approve what waits of a child MCP server (operator)")
                .query::<OfApproval>()
                .body::<SourceApproval>()
                .answer::<SourceView>(200, "The server"),
            approve,
        )
        .post(
            "/v1/sources/{name}/reconnect",
            on_reconnect.answer::<SourceView>(200, "The server"),
            reconnect,
        )
        .post(
            "/v1/sources/{name}/enable",
            on_enable.answer::<SourceView>(200, "The server"),
            enable,
        )
        .post(
            "/v1/sources/{name}/disable",
            on_disable.answer::<SourceView>(200, "The server"),
            disable,
        )
        .post(
            "/v1/sources/{name}/login",
            change("Begin a login to a child MCP server at a URL (operator)")
                .body::<LoginBody>()
                .answer::<LoginPage>(200, "What to open in a browser"),
            log_in,
        )
        .post(
            "/v1/sources/{name}/login/wait",
            change("Wait up to 25 s for the end of a login (operator)")
                .body::<LoginWait>()
                .answer::<LoginState>(200, "How far it is"),
            wait_for_login,
        )
        .post(
            "/v1/sources/{name}/logout",
            change("Forget a login and have its tokens revoked (operator)")
                .answer::<LogoutState>(200, "What became of it"),
            log_out,
        )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoginBody {
    /// The port of this machine that the browser comes back to; 0 or none for that of the entry,
    /// else any.
    port: Option<u16>,
}

#[derive(Serialize, JsonSchema)]
struct LoginPage {
    /// What the person opens in a browser.
    authorization_url: String,
    /// Where the browser comes back to. The daemon listens there for 10 minutes.
    redirect_uri: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoginWait {
    /// The address that the browser was redirected to, if it cannot reach this machine.
    redirect: Option<String>,
    /// How long to wait, in milliseconds; at most 25000.
    wait_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct LoginState {
    state: LoginWord,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LoginWord {
    Waiting,
    Done,
    Failed,
}

#[derive(Serialize, JsonSchema)]
struct LogoutState {
    /// Whether there was a login.
    logged_out: bool,
    /// Whether the issuer has revoked its tokens.
    revoked: bool,
}

/// Longest wait for a person, in milliseconds.
const MAX_LOGIN_WAIT: u64 = 25_000;

/// The server of a name that is in force for the caller; the operator only.
fn key_of(app: &App, caller: &Caller, query: &OfProject, name: &str) -> Result<SourceKey, Problem> {
    operators_own(caller)?;
    sources(app)?.in_folder(folder_of(caller, query)).key_of(name).ok_or_else(|| unknown(name))
}

async fn log_in(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
    Json(body): Json<LoginBody>,
) -> Result<Json<LoginPage>, Problem> {
    let key = key_of(&app, &caller, &query, &name)?;
    let open = sources(&app)?.login(&key).begin(body.port.filter(|port| *port > 0)).await;
    let OpenLogin { authorization_url, redirect: redirect_uri } =
        open.map_err(|reason| Problem::new(Code::Conflict, format!("{name}: {reason}")))?;
    Ok(Json(LoginPage { authorization_url, redirect_uri }))
}

async fn wait_for_login(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
    Json(body): Json<LoginWait>,
) -> Result<Json<LoginState>, Problem> {
    let key = key_of(&app, &caller, &query, &name)?;
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(MAX_LOGIN_WAIT).min(MAX_LOGIN_WAIT));
    let login = sources(&app)?.login(&key);
    let outcome = login.outcome(body.redirect.as_deref(), wait);
    // The wait must not delay shutdown.
    let outcome = app.stop.run_until_cancelled(outcome).await;
    let outcome = outcome.unwrap_or(Some(LoginOutcome::Waiting));
    let outcome =
        outcome.ok_or_else(|| Problem::new(Code::Conflict, format!("{name} has no login")))?;
    let (state, reason) = match outcome {
        LoginOutcome::Waiting => (LoginWord::Waiting, None),
        LoginOutcome::Done => (LoginWord::Done, None),
        LoginOutcome::Failed(reason) => (LoginWord::Failed, Some(reason)),
    };
    Ok(Json(LoginState { state, reason }))
}

async fn log_out(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
) -> Result<Json<LogoutState>, Problem> {
    let key = key_of(&app, &caller, &query, &name)?;
    let outcome = sources(&app)?.login(&key).end().await.map_err(|error| {
        tracing::error!(error = %error, "a login cannot be forgotten");
        Problem::new(Code::Internal, "the login cannot be forgotten: see the daemon's log")
    })?;
    Ok(Json(LogoutState { logged_out: outcome.is_some(), revoked: outcome == Some(true) }))
}

#[derive(Deserialize, JsonSchema)]
struct OfProject {
    /// The operator's: see the servers of this project's files too. A session sees those of its own
    /// project.
    project: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct OfApproval {
    /// The operator's: see the servers of this project's files too. A session sees those of its own
    /// project.
    project: Option<String>,
    /// The file that waits. By default what is in force of that name, else the file that waits.
    from: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct SourceList {
    #[serde(flatten)]
    page: Page<SourceView>,
    /// Files whose servers are missing, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct SourceChanges {
    changes: Vec<SourceChange>,
    count: usize,
    /// Names these changes, for their approval.
    digest: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SourceApproval {
    /// The `digest` of the changes that the person has seen.
    digest: String,
}

#[derive(Serialize, JsonSchema)]
struct SourceLog {
    log: String,
}

/// The folder whose servers the caller sees. A caller with `READ_ALL` may name any folder.
fn folder_of<'a>(caller: &'a Caller, query: &'a OfProject) -> Option<&'a str> {
    if caller.has_scope(READ_ALL) && query.project.is_some() || caller.is_operator() {
        query.project.as_deref().filter(|folder| folder.starts_with('/'))
    } else {
        caller.folder()
    }
}

fn sources(app: &App) -> Result<&SourceManager, Problem> {
    app.sources.as_ref().ok_or_else(|| Problem::new(Code::NotFound, "there are no servers"))
}

fn operators_own(caller: &Caller) -> Result<(), Problem> {
    if caller.is_operator() {
        return Ok(());
    }
    Err(Problem::new(Code::Forbidden, "child MCP servers are the operator's to start and to end"))
}

fn reads_everything(caller: &Caller) -> Result<(), Problem> {
    if caller.has_scope(READ_ALL) {
        return Ok(());
    }
    Err(Problem::new(Code::Forbidden, "this is for the operator, or needs read_all"))
}

/// The servers that a caller sees: all, or the requested page.
fn listed(
    app: &App,
    caller: &Caller,
    project: Option<&str>,
    page: &PageQuery,
) -> Result<SourceList, Problem> {
    let sources = sources(app)?.in_folder(project);
    let views = sources.views().into_iter();
    let page = Page::part_or_all(views.map(|view| for_caller(caller, view)).collect(), page)?;
    let mut problems = sources.problems().to_vec();
    // A session sees only problems with its project's files.
    problems.retain(|problem| {
        caller.has_scope(READ_ALL) || caller.root().is_some_and(|root| problem.starts_with(root))
    });
    Ok(SourceList { page, problems })
}

fn one(
    app: &App,
    caller: &Caller,
    project: Option<&str>,
    name: &str,
) -> Result<Json<SourceView>, Problem> {
    let found = sources(app)?.in_folder(project).find(name);
    found.map(|view| Json(for_caller(caller, view))).ok_or_else(|| unknown(name))
}

/// Removes what the caller may not see: instances of others, whose names are projects and sessions,
/// and the command.
fn for_caller(caller: &Caller, mut view: SourceView) -> SourceView {
    if !caller.has_scope(READ_ALL) {
        let own = [caller.root(), caller.session()];
        view.instances.retain(|instance| own.contains(&Some(instance.key.as_str())));
        view.runs = None;
    }
    view
}

fn unknown(name: &str) -> Problem {
    let name: String = name.chars().take(64).collect();
    Problem::new(Code::NotFound, format!("there is no server {name:?}: see /v1/sources"))
}

async fn list(
    app: App,
    caller: Caller,
    Query(project): Query<OfProject>,
    Query(page): Query<PageQuery>,
) -> Result<Json<SourceList>, Problem> {
    Ok(Json(listed(&app, &caller, folder_of(&caller, &project), &page)?))
}

async fn get(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
) -> Result<Json<SourceView>, Problem> {
    let Json(view) = one(&app, &caller, folder_of(&caller, &query), &name)?;
    Ok(Json(view))
}

async fn log(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
) -> Result<Json<SourceLog>, Problem> {
    reads_everything(&caller)?;
    let log = sources(&app)?.in_folder(folder_of(&caller, &query)).log(&name);
    log.map(|log| Json(SourceLog { log })).ok_or_else(|| unknown(&name))
}

async fn changes(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(OfApproval { project, from }): Query<OfApproval>,
) -> Result<Json<SourceChanges>, Problem> {
    reads_everything(&caller)?;
    let query = OfProject { project };
    let sources = sources(&app)?.in_folder(folder_of(&caller, &query));
    let found = sources.changes(&name, from.as_deref());
    let (changes, digest) = found.ok_or_else(|| unknown(&name))?;
    Ok(Json(SourceChanges { count: changes.len(), changes, digest }))
}

async fn approve(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(OfApproval { project, from }): Query<OfApproval>,
    Json(body): Json<SourceApproval>,
) -> Result<Json<SourceView>, Problem> {
    operators_own(&caller)?;
    let query = OfProject { project };
    let folder = folder_of(&caller, &query);
    let own = sources(&app)?.in_folder(folder);
    let approved = own.approve(&name, from.as_deref(), &body.digest).await;
    let approved = approved.map_err(|error| {
        tracing::error!(error = %error, "an approval cannot be kept");
        Problem::new(Code::Internal, "the approval cannot be kept: see the daemon's log")
    })?;
    match approved {
        None => Err(unknown(&name)),
        Some(false) => {
            let text = format!("{name} has changed again since: look at it, and approve that");
            Err(Problem::new(Code::Conflict, text))
        }
        Some(true) => one(&app, &caller, folder, &name),
    }
}

async fn reload(app: App, caller: Caller) -> Result<Json<SourceList>, Problem> {
    operators_own(&caller)?;
    sources(&app)?.reload();
    listed(&app, &caller, None, &PageQuery::default()).map(Json)
}

async fn reconnect(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
) -> Result<Json<SourceView>, Problem> {
    operators_own(&caller)?;
    let project = folder_of(&caller, &query);
    let found = one(&app, &caller, project, &name)?;
    if !sources(&app)?.in_folder(project).reconnect(&name) {
        let reason = found.0.reason.unwrap_or_default();
        return Err(Problem::new(Code::Conflict, format!("{name} is not to run: {reason}")));
    }
    one(&app, &caller, project, &name)
}

async fn enable(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
) -> Result<Json<SourceView>, Problem> {
    switch(&app, &caller, &name, &query, true)
}

async fn disable(
    app: App,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<OfProject>,
) -> Result<Json<SourceView>, Problem> {
    switch(&app, &caller, &name, &query, false)
}

fn switch(
    app: &App,
    caller: &Caller,
    name: &str,
    query: &OfProject,
    enabled: bool,
) -> Result<Json<SourceView>, Problem> {
    operators_own(caller)?;
    let project = folder_of(caller, query);
    one(app, caller, project, name)?;
    sources(app)?.switch(name, enabled).map_err(|error| {
        tracing::error!(error = %error, "a decision cannot be written");
        Problem::new(Code::Internal, "the decision cannot be written: see the daemon's log")
    })?;
    one(app, caller, project, name)
}
