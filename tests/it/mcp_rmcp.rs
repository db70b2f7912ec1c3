//! The MCP server through an independent client: `rmcp`, over HTTP in both eras and as the parent
//! of `svc stdio`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
    GetTaskParams, Implementation, ProgressNotificationParam, ProtocolVersion,
    ResourceUpdatedNotificationParam, ServerNotification, SubscribeRequestParams,
    SubscriptionFilter, TASKS_EXTENSION_ID, TaskPayload,
};
use rmcp::service::{
    ClientLifecycleMode, NotificationContext, RoleClient, RunningService, ServiceError,
    serve_client_with_lifecycle,
};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::daemon::Daemon;
use crate::expect::{append, done, new_task};

// A disk or a processor that others use may hold up all processes for many seconds.
const SOON: Duration = Duration::from_secs(80);

/// What a client records for each progress of a call.
const PROGRESS: &str = "progress";

/// A client that records which resources it was notified of, and that a call makes progress.
#[derive(Clone, Default)]
struct Ears {
    heard: Arc<Mutex<Vec<String>>>,
    tasks: bool,
}

impl ClientHandler for Ears {
    fn get_info(&self) -> ClientConfig {
        let extensions = if self.tasks { json!({ TASKS_EXTENSION_ID: {} }) } else { json!({}) };
        let capabilities: ClientCapabilities =
            serde_json::from_value(json!({ "extensions": extensions })).expect("capabilities");
        ClientConfig::new(capabilities, Implementation::new("rmcp", "3"))
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.heard.lock().expect("no holder panics").push(params.uri);
    }

    async fn on_progress(
        &self,
        _params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.heard.lock().expect("no holder panics").push(PROGRESS.to_owned());
    }
}

type Client = RunningService<RoleClient, Ears>;

fn discover() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

async fn http(d: &Daemon, ears: Ears, mode: ClientLifecycleMode) -> Client {
    // The client is built with TLS, which it does not use here. A second provider is refused, which
    // is fine.
    rustls::crypto::ring::default_provider().install_default().ok();
    let token = d.home.token().expect("a token");
    let config = StreamableHttpClientTransportConfig::with_uri(format!("{}/mcp", d.url()));
    let transport = StreamableHttpClientTransport::from_config(config.auth_header(token));
    serve_client_with_lifecycle(ears, transport, mode).await.expect("it connects")
}

async fn child(d: &Daemon, mode: ClientLifecycleMode) -> Client {
    // With a scope, as the tasks that it waits for belong to the operator.
    let input = json!({ "session": "bridge", "scopes": ["read_all"] });
    let minted = d.post("/v1/tokens", &input).ok(201);
    let mut command = tokio::process::Command::from(d.home.command(&["stdio"]));
    command.env("SVC_TOKEN", minted["token"].as_str().expect("a token"));
    let transport = TokioChildProcess::new(command).expect("the bridge starts");
    serve_client_with_lifecycle(Ears::default(), transport, mode).await.expect("it connects")
}

fn params(tool: &'static str, arguments: &Value) -> CallToolRequestParams {
    let arguments = arguments.as_object().expect("an object").clone();
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

fn wait_for(task: &str) -> CallToolRequestParams {
    params("TaskWait", &json!({ "task_id": task, "timeout_s": 600 }))
}

#[track_caller]
fn structured(result: &CallToolResult) -> Value {
    assert_ne!(result.is_error, Some(true), "{result:?}");
    result.structured_content.clone().expect("structured content")
}

#[track_caller]
fn is_done(result: &CallToolResult) {
    assert_eq!(structured(result)["task"]["status"], "done", "{result:?}");
}

/// The requests of every client.
async fn tour(client: &Client) {
    let tools = client.list_all_tools().await.expect("tools");
    assert!(tools.iter().any(|tool| tool.name == "peer_list"), "{tools:?}");
    assert!(!client.list_all_prompts().await.expect("prompts").is_empty());
    assert!(!client.list_all_resources().await.expect("resources").is_empty());
    let peer = json!({ "display_name": "ada", "backend": "codex", "path": "/repo" });
    let made = structured(&client.call_tool(params("peer_register", &peer)).await.expect("a peer"));
    let peers = client.call_tool(params("peer_list", &json!({}))).await.expect("peers");
    assert_eq!(structured(&peers)["peers"][0]["peer_id"], made["peer_id"]);
    let failed = client.call_tool(params("TaskGet", &json!({ "task_id": "nope" }))).await;
    let failed = failed.expect("a result");
    assert_eq!(failed.is_error, Some(true));
    assert_eq!(failed.structured_content.expect("an error")["error"]["type"], "not_found");
    match client.call_tool(params("nope", &json!({}))).await {
        Err(ServiceError::McpError(error)) => assert_eq!(error.code.0, -32602),
        other => panic!("a tool that is not there: {other:?}"),
    }
}

async fn heard(ears: &Ears, uri: &str) {
    let told = async {
        while !ears.heard.lock().expect("no holder panics").iter().any(|it| it == uri) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, told).await.expect("it is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_session_continues_after_a_crash() {
    let mut d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "100"));
    let ears = Ears::default();
    let client = http(&d, ears.clone(), ClientLifecycleMode::Initialize).await;
    tour(&client).await;

    let task = new_task(&d);
    let uri = format!("svc://stream/task/{task}");
    #[expect(deprecated, reason = "the session is of the era that has it")]
    client.subscribe(SubscribeRequestParams::new(uri.clone())).await.expect("a subscription");
    ears.heard.lock().expect("no holder panics").clear();
    let waiting = tokio::spawn({
        let peer = client.peer().clone();
        let task = task.clone();
        async move { peer.call_tool(wait_for(&task)).await }
    });
    // So the client knows where the call's stream is to go on.
    heard(&ears, PROGRESS).await;
    d.kill_and_restart();
    let list =
        client.call_tool(params("TaskList", &json!({}))).await.expect("the session is known");
    assert_eq!(structured(&list)["count"], 1);
    assert!(!waiting.is_finished(), "nobody knows the answer yet");
    append(&d, &task, &json!([done()]));
    is_done(&timeout(SOON, waiting).await.expect("in time").expect("no panic").expect("an answer"));
    heard(&ears, &uri).await;
    client.cancel().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stateless_slow_call_becomes_a_task_that_survives_a_crash() {
    let mut d = Daemon::with(|plan| plan.env("SVC_MCP_TASK_AFTER_MS", "200"));
    let client = http(&d, Ears { tasks: true, ..Ears::default() }, discover()).await;
    tour(&client).await;

    let task = new_task(&d);
    let CallToolResponse::Task(made) =
        client.call_tool_once(wait_for(&task)).await.expect("an answer")
    else {
        panic!("a call that takes time is a task for those who can have one");
    };
    d.kill_and_restart();
    append(&d, &task, &json!([done()]));
    let end = async {
        loop {
            let got = client.peer().get_task(GetTaskParams::new(&made.task.task_id)).await;
            if let TaskPayload::Completed { result } = got.expect("the task is known").task.payload
            {
                break result;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let result = timeout(SOON, end).await.expect("in time");
    let result: CallToolResult =
        serde_json::from_value(Value::from(result)).expect("the result of the call");
    is_done(&result);
    client.cancel().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stateless_client_without_tasks_waits_and_gets_notifications() {
    let mut d = Daemon::start();
    let client = http(&d, Ears::default(), discover()).await;
    let task = new_task(&d);
    let uri = format!("svc://stream/task/{task}");
    let filter = SubscriptionFilter::builder().resource_subscription(uri.clone()).build();
    let mut news = client.listen(filter.clone()).await.expect("a subscription");
    assert_eq!(*news.acknowledged(), filter);
    let peer = client.peer().clone();
    let awaited = task.clone();
    let waiting = tokio::spawn(async move { peer.call_tool(wait_for(&awaited)).await });
    sleep(Duration::from_millis(1500)).await;
    append(&d, &task, &json!([done()]));
    is_done(&timeout(SOON, waiting).await.expect("in time").expect("no panic").expect("an answer"));
    match timeout(SOON, news.next()).await.expect("in time").expect("well") {
        Some(ServerNotification::ResourceUpdatedNotification(it)) => assert_eq!(it.params.uri, uri),
        other => panic!("{other:?}"),
    }
    d.kill_and_restart();
    is_done(&client.call_tool(wait_for(&task)).await.expect("an answer"));
    client.cancel().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bridge_carries_a_call_across_a_crash_and_a_restart_in_both_eras() {
    let both = [ClientLifecycleMode::Initialize, discover()];
    for (mode, crash) in both.into_iter().flat_map(|mode| [(mode.clone(), true), (mode, false)]) {
        let mut d = Daemon::start();
        let client = child(&d, mode).await;
        tour(&client).await;
        let task = new_task(&d);
        let peer = client.peer().clone();
        let awaited = task.clone();
        let waiting = tokio::spawn(async move { peer.call_tool(wait_for(&awaited)).await });
        sleep(Duration::from_millis(300)).await;
        if crash {
            d.kill9();
        }
        d.restart();
        append(&d, &task, &json!([done()]));
        let answer = timeout(SOON, waiting).await.expect("in time");
        is_done(&answer.expect("no panic").expect("an answer"));
        client.cancel().await.expect("it ends");
    }
}
