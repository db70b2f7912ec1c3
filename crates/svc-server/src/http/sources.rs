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
    api::{Api, Operation},
    request::{ItemRequest, Json, JsonResult, ListRequest, PageResult, Query},
};

pub(super) fn routes(api: Api) -> Api {
    let on_list = Operation::new("Child MCP servers that the caller's files name, by name");
    let on_list = on_list
        .query::<OfProject>()
        .query::<PageQuery>()
        .answer::<SourceList>(200, "A page of servers");
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
    let on_changes = on_changes.answer::<SourceChanges>(200, "What has changed");
    let change = |what| Operation::new(what).query::<OfProject>();
    let the_server = |on: Operation| on.answer::<SourceView>(200, "The server");
    let on_reconnect = change("Restart a child MCP server at once (operator)");
    let on_enable = change("Turn a child MCP server on, for good (operator)");
    let on_disable = change("Turn a child MCP server off, for good (operator)");
    let on_reload = Operation::new("Read the files that name child MCP servers again (operator)");
    let on_approve = Operation::new("Approve what waits of a child MCP server (operator)");
    let on_approve = on_approve.query::<OfApproval>().body::<SourceApproval>();
    let on_login = change("Begin a login to a child MCP server at a URL (operator)");
    let on_login =
        on_login.body::<LoginBody>().answer::<LoginPage>(200, "What to open in a browser");
    let on_login_wait = change("Wait up to 25 s for the end of a login (operator)");
    let on_login_wait =
        on_login_wait.body::<LoginWait>().answer::<LoginState>(200, "How far it is");
    let on_logout = change("Forget a login and have its tokens revoked (operator)");
    let on_logout = on_logout.answer::<LogoutState>(200, "Result of the logout");
    let on_tools = Operation::new("Tools that the caller may call, by name").query::<ToolFilter>();
    api.get("/v1/tools", on_tools.page_of::<Descriptor>("A page of tools"), list_tools)
        .get("/v1/sources", on_list, list)
        .post("/v1/sources/reload", on_reload.answer::<SourceList>(200, "All of them"), reload)
        .get("/v1/sources/{name}", the_server(on_get), get)
        .get("/v1/sources/{name}/log", on_log, log)
        .get("/v1/sources/{name}/changes", on_changes, changes)
        .post("/v1/sources/{name}/approve", the_server(on_approve), approve)
        .post("/v1/sources/{name}/reconnect", the_server(on_reconnect), reconnect)
        .post("/v1/sources/{name}/enable", the_server(on_enable), enable)
        .post("/v1/sources/{name}/disable", the_server(on_disable), disable)
        .post("/v1/sources/{name}/login", on_login, log_in)
        .post("/v1/sources/{name}/login/wait", on_login_wait, await_login)
        .post("/v1/sources/{name}/logout", on_logout, log_out)
}

#[derive(Deserialize, JsonSchema)]
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
    #[expect(dead_code, reason = "SourceRequest reads it; here it is for the description")]
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

fn reads_everything(caller: &Caller) -> Result<(), Problem> {
    let why = "this is for the operator, or needs read_all";
    if caller.has_scope(READ_ALL) { Ok(()) } else { Err(Problem::new(Code::Forbidden, why)) }
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
    reads_everything(&server.caller)?;
    let log = server.servers()?.log(&server.name).ok_or_else(|| server.unknown())?;
    Ok(Json(SourceLog { log }))
}

async fn changes(
    server: SourceRequest,
    Query(OfApproval { from, .. }): Query<OfApproval>,
) -> JsonResult<SourceChanges> {
    reads_everything(&server.caller)?;
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
    let approved = approved.map_err(|error| {
        tracing::error!(error = %error, "an approval cannot be kept");
        Problem::new(Code::Internal, "the approval cannot be kept: see the daemon's log")
    })?;
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
    operators_own(&server.caller)?;
    server.view()?;
    manager(&server.app)?.switch(&server.name, enabled).map_err(|error| {
        tracing::error!(error = %error, "a decision cannot be written");
        Problem::new(Code::Internal, "the decision cannot be written: see the daemon's log")
    })?;
    server.view()
}

async fn log_in(server: SourceRequest, Json(body): Json<LoginBody>) -> JsonResult<LoginPage> {
    let (key, name) = (server.key()?, &server.name);
    let open = manager(&server.app)?.login(&key).begin(body.port.filter(|port| *port > 0)).await;
    let OpenLogin { authorization_url, redirect: redirect_uri } =
        open.map_err(|reason| Problem::new(Code::Conflict, format!("{name}: {reason}")))?;
    Ok(Json(LoginPage { authorization_url, redirect_uri }))
}

async fn await_login(server: SourceRequest, Json(body): Json<LoginWait>) -> JsonResult<LoginState> {
    let (key, name) = (server.key()?, &server.name);
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(MAX_LOGIN_WAIT).min(MAX_LOGIN_WAIT));
    let login = manager(&server.app)?.login(&key);
    let outcome = login.outcome(body.redirect.as_deref(), wait);
    // The wait must not delay shutdown.
    let outcome = server.app.stop.run_until_cancelled(outcome).await;
    let outcome = outcome
        .unwrap_or(Some(LoginOutcome::Waiting))
        .ok_or_else(|| Problem::new(Code::Conflict, format!("{name} has no login")))?;
    let (state, reason) = match outcome {
        LoginOutcome::Waiting => (LoginWord::Waiting, None),
        LoginOutcome::Done => (LoginWord::Done, None),
        LoginOutcome::Failed(reason) => (LoginWord::Failed, Some(reason)),
    };
    Ok(Json(LoginState { state, reason }))
}

async fn log_out(server: SourceRequest) -> JsonResult<LogoutState> {
    let key = server.key()?;
    let outcome = manager(&server.app)?.login(&key).end().await.map_err(|error| {
        tracing::error!(error = %error, "a login cannot be forgotten");
        Problem::new(Code::Internal, "the login cannot be forgotten: see the daemon's log")
    })?;
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
