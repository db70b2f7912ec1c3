//! `/v1/sources`: child MCP servers, which only the operator turns on and off; and `/v1/tools`, the
//! list of the tools that models call by MCP.

use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::{
    service::{Page, check, sources::SourceKey},
    tools::Descriptor,
};
use svc_model::{Caller, PageQuery, READ_ALL, ToolFilter, source::SourceView};
use svc_sources::{FolderSources, LoginOutcome, OpenLogin, SourceChange, SourceManager};

use super::{
    App, Code, Problem,
    api::{Api, Operation, Taken},
    request::{ItemRequest, Json, JsonResult, ListRequest, PageResult, Query, may_read_all},
};

pub(super) fn routes(api: Api) -> Api {
    api.get("/v1/tools", "Tools that the caller may call, by name", list_tools)
        .get("/v1/sources", "Child MCP servers that the caller's files name, by name", list)
        .post(
            "/v1/sources/reload",
            "Read the files that name child MCP servers again (operator)",
            reload,
        )
        .get("/v1/sources/{name}", "A child MCP server", get)
        .get(
            "/v1/sources/{name}/log",
            "The end of a child MCP server's error output (operator, read_all)",
            log,
        )
        .get(
            "/v1/sources/{name}/changes",
            "Definitions and files that wait for a person's approval (operator, read_all)",
            changes,
        )
        .post(
            "/v1/sources/{name}/approve",
            "Approve what waits of a child MCP server (operator)",
            approve,
        )
        .post(
            "/v1/sources/{name}/reconnect",
            "Restart a child MCP server at once (operator)",
            reconnect,
        )
        .post(
            "/v1/sources/{name}/enable",
            "Turn a child MCP server on, for good (operator)",
            enable,
        )
        .post(
            "/v1/sources/{name}/disable",
            "Turn a child MCP server off, for good (operator)",
            disable,
        )
        .post(
            "/v1/sources/{name}/login",
            "Begin a login to a child MCP server at a URL (operator)",
            log_in,
        )
        .post(
            "/v1/sources/{name}/login/wait",
            "Wait up to 25 s for the end of a login (operator)",
            await_login,
        )
        .post("/v1/sources/{name}/logout", "Forget a login, revoke its tokens (operator)", log_out)
}

#[derive(Deserialize, JsonSchema)]
struct LoginBody {
    /// The port of this machine that the browser comes back to; 0 or none for that of the entry,
    /// else any.
    port: Option<u16>,
}

#[derive(Deserialize, JsonSchema)]
struct LoginWait {
    /// The address that the browser was redirected to, if it cannot reach this machine.
    redirect: Option<String>,
    /// How long to wait, in milliseconds; at most 25000.
    wait_ms: Option<u64>,
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

#[derive(Deserialize, JsonSchema)]
struct OfProject {
    /// The operator's: see the servers of this project's files too. A session sees those of its own
    /// project.
    project: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct OfApproval {
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
struct SourceApproval {
    /// The `digest` of the changes that the person has seen.
    digest: String,
}

#[derive(Serialize, JsonSchema)]
struct SourceLog {
    log: String,
}

/// A request about one child server.
struct SourceRequest {
    app: App,
    caller: Caller,
    name: String,
    /// The folder whose servers the caller sees.
    folder: Option<String>,
}

impl FromRequestParts<App> for SourceRequest {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, app: &App) -> Result<Self, Problem> {
        let ItemRequest { app, caller, id: name } =
            ItemRequest::from_request_parts(head, app).await?;
        let Query(query) = Query::<OfProject>::from_request_parts(head, &app).await?;
        let folder = folder_of(&caller, &query).map(str::to_owned);
        Ok(Self { app, caller, name, folder })
    }
}

impl Taken for SourceRequest {
    fn describe(operation: &mut Operation) {
        operation.query::<OfProject>();
    }
}

impl SourceRequest {
    /// The servers in the files for the folder, from the files' present content.
    fn servers(&self) -> Result<FolderSources, Problem> {
        Ok(manager(&self.app)?.in_folder(self.folder.as_deref()))
    }

    fn view(&self) -> JsonResult<SourceView> {
        let found = self.servers()?.find(&self.name).ok_or_else(|| self.unknown())?;
        Ok(Json(for_caller(&self.caller, found)))
    }

    /// The key of the server that is in force under the name; for the operator only.
    fn key(&self) -> Result<SourceKey, Problem> {
        operators_own(&self.caller)?;
        self.servers()?.key_of(&self.name).ok_or_else(|| self.unknown())
    }

    fn unknown(&self) -> Problem {
        let name: String = self.name.chars().take(64).collect();
        Problem::new(Code::NotFound, format!("there is no server {name:?}: see /v1/sources"))
    }
}

/// The folder whose servers the caller sees. A caller with `READ_ALL` may name any folder.
fn folder_of<'a>(caller: &'a Caller, query: &'a OfProject) -> Option<&'a str> {
    if caller.has_scope(READ_ALL) && query.project.is_some() || caller.is_operator() {
        query.project.as_deref().filter(|folder| folder.starts_with('/'))
    } else {
        caller.folder()
    }
}

fn manager(app: &App) -> Result<&SourceManager, Problem> {
    app.sources.as_ref().ok_or_else(|| Problem::new(Code::NotFound, "there are no servers"))
}

fn operators_own(caller: &Caller) -> Result<(), Problem> {
    let why = "child MCP servers are the operator's to start and to end";
    if caller.is_operator() { Ok(()) } else { Err(Problem::new(Code::Forbidden, why)) }
}

/// A person's decision about a server was not written.
fn not_kept(error: impl std::fmt::Display) -> Problem {
    tracing::error!(%error, "a decision about a server cannot be kept");
    Problem::new(Code::Internal, "the decision cannot be kept: see the daemon's log")
}

/// Removes what the caller may not see: the instances of others and the command.
fn for_caller(caller: &Caller, mut view: SourceView) -> SourceView {
    if !caller.has_scope(READ_ALL) {
        let own = [caller.root(), caller.session()];
        view.instances.retain(|instance| own.contains(&Some(instance.key.as_str())));
        view.runs = None;
    }
    view
}

/// The servers that a caller sees: all, or a page of them.
fn listed(
    app: &App,
    caller: &Caller,
    folder: Option<&str>,
    page: Option<&PageQuery>,
) -> JsonResult<SourceList> {
    let servers = manager(app)?.in_folder(folder);
    let views = servers.views().into_iter().map(|view| for_caller(caller, view));
    let page = match page {
        Some(page) => Page::part("sources", views, page)?,
        None => Page::last(views.collect()),
    };
    let mut problems = servers.problems().to_vec();
    // A session sees only problems with its project's files.
    problems.retain(|problem| {
        caller.has_scope(READ_ALL) || caller.root().is_some_and(|root| problem.starts_with(root))
    });
    Ok(Json(SourceList { page, problems }))
}

async fn list(list: ListRequest<OfProject>) -> JsonResult<SourceList> {
    listed(&list.app, &list.caller, folder_of(&list.caller, &list.filter), Some(&list.page))
}

async fn reload(app: App, caller: Caller) -> JsonResult<SourceList> {
    operators_own(&caller)?;
    manager(&app)?.reload();
    listed(&app, &caller, None, None)
}

async fn get(server: SourceRequest) -> JsonResult<SourceView> {
    server.view()
}

async fn log(server: SourceRequest) -> JsonResult<SourceLog> {
    may_read_all(&server.caller)?;
    let log = server.servers()?.log(&server.name).ok_or_else(|| server.unknown())?;
    Ok(Json(SourceLog { log }))
}

async fn changes(
    server: SourceRequest,
    Query(OfApproval { from, .. }): Query<OfApproval>,
) -> JsonResult<SourceChanges> {
    may_read_all(&server.caller)?;
    let found = server.servers()?.changes(&server.name, from.as_deref());
    let (changes, digest) = found.ok_or_else(|| server.unknown())?;
    Ok(Json(SourceChanges { count: changes.len(), changes, digest }))
}

async fn approve(
    server: SourceRequest,
    Query(OfApproval { from, .. }): Query<OfApproval>,
    Json(body): Json<SourceApproval>,
) -> JsonResult<SourceView> {
    operators_own(&server.caller)?;
    let (servers, name) = (server.servers()?, &server.name);
    let approved = servers.approve(name, from.as_deref(), &body.digest).await;
    let approved = approved.map_err(not_kept)?;
    match approved {
        None => Err(server.unknown()),
        Some(false) => {
            let text = format!("{name} has changed again since: look at it, and approve that");
            Err(Problem::new(Code::Conflict, text))
        }
        Some(true) => server.view(),
    }
}

async fn reconnect(server: SourceRequest) -> JsonResult<SourceView> {
    operators_own(&server.caller)?;
    let (Json(view), name) = (server.view()?, &server.name);
    if !server.servers()?.reconnect(name) {
        let text = match view.reason {
            Some(reason) => format!("{name} may not run: {reason}"),
            None => format!("{name} has no connection: it is part of the daemon"),
        };
        return Err(Problem::new(Code::Conflict, text));
    }
    server.view()
}

async fn enable(server: SourceRequest) -> JsonResult<SourceView> {
    switch(&server, true)
}

async fn disable(server: SourceRequest) -> JsonResult<SourceView> {
    switch(&server, false)
}

fn switch(server: &SourceRequest, enabled: bool) -> JsonResult<SourceView> {
    let key = server.key()?;
    manager(&server.app)?.switch(&key, enabled).map_err(not_kept)?;
    server.view()
}

async fn log_in(server: SourceRequest, Json(body): Json<LoginBody>) -> JsonResult<OpenLogin> {
    let (key, name) = (server.key()?, &server.name);
    let port = body.port.filter(|port| *port > 0);
    let open = manager(&server.app)?.begin_login(&key, port).await;
    let refused = |reason| Problem::new(Code::Conflict, format!("{name}: {reason}"));
    open.map(Json).map_err(refused)
}

async fn await_login(
    server: SourceRequest,
    Json(body): Json<LoginWait>,
) -> JsonResult<LoginOutcome> {
    let (key, name) = (server.key()?, &server.name);
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(MAX_LOGIN_WAIT).min(MAX_LOGIN_WAIT));
    let sources = manager(&server.app)?;
    let outcome = sources.login_outcome(&key, body.redirect.as_deref(), wait);
    // The wait must not delay shutdown.
    let outcome = server.app.stop.run_until_cancelled(outcome).await;
    let none = || Problem::new(Code::Conflict, format!("{name} has no login"));
    outcome.unwrap_or(Some(LoginOutcome::Waiting)).map(Json).ok_or_else(none)
}

async fn log_out(server: SourceRequest) -> JsonResult<LogoutState> {
    let key = server.key()?;
    let outcome = manager(&server.app)?.end_login(&key).await.map_err(not_kept)?;
    Ok(Json(LogoutState { logged_out: outcome.is_some(), revoked: outcome == Some(true) }))
}

async fn list_tools(list: ListRequest<ToolFilter>) -> PageResult<Descriptor> {
    let after: Option<String> = check::cursor("tools", list.page.cursor.as_deref())?;
    let mut open = list.app.tools.open_to(&list.caller);
    open.sort_by(|a, b| a.name().cmp(b.name()));
    let rest = open.into_iter().filter(|tool| {
        // The tool in the cursor may be gone.
        after.as_deref().is_none_or(|after| tool.name() > after)
            && list.filter.family.as_deref().is_none_or(|family| tool.family_name() == family)
    });
    let rest = rest.map(|tool| Descriptor::from_tool(&tool));
    Ok(Json(Page::of_rest("tools", rest, &list.page, |tools| {
        tools.last().map(|last| last.name.clone())
    })?))
}
