//! The protocol's official conformance suite against the server of the program. The tools and
//! resources that the suite expects are added here and in no other build.
//!
//! Needs Node and the suite's package: `SVC_CONFORMANCE` names the `node_modules` folder that has
//! both.

mod fixtures;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use svc_core::service::{ServiceSettings, Services, Tokens, Tuning};
use svc_core::tools::Catalogue;
use svc_model::{Clock, Ids, SystemClock, Timestamp};
use svc_server::http::{self, App, AppState, Edge, EntryRules, Identity, Listener, Metrics};
use svc_server::mcp::{self, McpMetrics, McpServer, McpServerParts};
use svc_store::{OpenOptions, Store};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The folder of the suite; `None`, and a line that says so, if it is missing.
#[expect(clippy::print_stdout, reason = "a run that skips it says so")]
fn suite() -> Option<PathBuf> {
    let folder = std::env::var_os("SVC_CONFORMANCE").map(PathBuf::from);
    if folder.is_none() {
        println!(
            "not run: the MCP conformance suite (SVC_CONFORMANCE names no node_modules folder)"
        );
    }
    folder
}

/// Runs the server with the suite's fixtures until the token is cancelled.
async fn serve(home: &Path, stop: &CancellationToken) -> String {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let options = OpenOptions::for_file(home.join("svc.db")).expect("a machine");
    let (store, _writer) = Store::open(&options, Arc::clone(&clock)).await.expect("a store");
    let tokens = Tokens::open_or_make(&home.join("token")).expect("a token");
    let services = Services::new(
        store,
        clock,
        Ids::random(),
        Tuning::default(),
        tokens,
        ServiceSettings::default(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // The suite has no token.
    let access = EntryRules { listen: vec![address], no_auth: true, ..EntryRules::default() };
    let edge = Edge::new(access, "conformance");
    let (listener, bounds) = (Listener::Tcp(listener), http::ConnectionBounds::of_tcp());
    let connections = TaskTracker::new();
    tokio::spawn(http::serve(listener, bounds, edge.clone(), stop.clone(), connections));
    let handle = Arc::new(OnceLock::new());
    let catalogue = Arc::new(Catalogue::new(fixtures::tools(&handle)));
    let mcp = McpServer::start(McpServerParts {
        services: services.clone(),
        catalogue: Arc::clone(&catalogue),
        resources: vec![Box::new(fixtures::Resources), Box::new(mcp::StreamResources)],
        prompts: fixtures::prompts(),
        sources: None,
        metrics: McpMetrics::default(),
        stop: stop.clone(),
        exposure: None,
    })
    .await
    .expect("a server");
    handle.set(mcp.clone()).expect("once");
    let identity = Identity {
        boot_id: "conformance".to_owned(),
        pid: 0,
        started_at: Timestamp::from_millis(0),
    };
    let app = App::new(AppState {
        services,
        metrics: Metrics::default(),
        tools: catalogue,
        sources: None,
        doctor: None,
        identity,
        stop: stop.clone(),
    });
    edge.ready(app, mcp::routes(mcp));
    format!("http://{address}/mcp")
}

/// Runs the server scenarios of a revision: the required ones and those that are not scored.
#[expect(clippy::print_stdout, reason = "the suite says what fails")]
fn run(requirements: &str) {
    let Some(modules) = suite() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let stop = CancellationToken::new();
    let url = runtime.block_on(serve(home.path(), &stop));
    let output = Command::new(modules.join("node/bin/node"))
        .arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", &url, "--requirements", requirements, "-o"])
        .arg(home.path().join("out"))
        .stdin(Stdio::null())
        .output()
        .expect("the suite runs");
    stop.cancel();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    assert!(output.status.success(), "the suite of {requirements} fails");
    // Scenarios that are not scored must pass, too, and nothing may warn.
    assert!(text.contains("scenario(s) run, 0 failing"), "what is not scored fails");
    let warnings = checks(&home.path().join("out"), "WARNING");
    assert!(warnings.is_empty(), "warnings:\n{}", warnings.join("\n"));
}

/// Scenarios of extensions that no revision requires and that this client does not support: a
/// person logs in, with a token of the server's issuer, which requests carry unchanged.
const NOT_APPLICABLE: [&str; 6] = [
    // A program logs in by itself, without a person.
    "auth/client-credentials-basic",
    "auth/client-credentials-jwt",
    // Tokens that are bound to a key of the client.
    "auth/dpop",
    "auth/dpop-nonce",
    // A company's issuer, and a workload's identity, are exchanged for a token.
    "auth/enterprise-managed-authorization",
    "auth/wif-jwt-bearer",
];

/// Runs the client scenarios of a revision: the required ones, and those of extensions, which fail
/// if they are not applicable. The client is the daemon, with the suite's server as its child.
#[expect(clippy::print_stdout, reason = "the suite says what fails")]
fn run_as_client(requirements: &str) {
    let Some(modules) = suite() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/conformance_client.py");
    let output = Command::new(modules.join("node/bin/node"))
        .arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["client", "--requirements", requirements, "--timeout", "90000", "--command"])
        .arg(format!("python3 {driver} {}", env!("CARGO_BIN_EXE_svc")))
        .arg("-o")
        .arg(home.path().join("out"))
        .stdin(Stdio::null())
        .output()
        .expect("the suite runs");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the suite's client scenarios of {requirements} fail");
    let (_, rest) = text.split_once("Not scored for").expect("what is not scored is listed");
    let failing = rest.lines().filter_map(|line| line.trim().strip_prefix("\u{2717} "));
    let mut failing: Vec<&str> = failing.filter_map(|line| line.split(' ').next()).collect();
    failing.sort_unstable();
    assert_eq!(failing, NOT_APPLICABLE, "what is not scored and applies has to hold all the same");
}

/// The checks with this status, from the suite's files.
fn checks(folder: &Path, status: &str) -> Vec<String> {
    let mut found = Vec::new();
    for scenario in std::fs::read_dir(folder).expect("results") {
        let file = scenario.expect("a folder").path().join("checks.json");
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let all: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list of checks");
        let these = all.into_iter().filter(|check| check["status"] == status);
        found.extend(these.map(|check| format!("{}: {}", check["id"], check["errorMessage"])));
    }
    found
}

#[test]
fn conforms_to_2025_11_25() {
    run("2025-11-25");
}

#[test]
fn conforms_to_2026_07_28() {
    run("2026-07-28");
}

#[test]
fn conforms_to_2025_11_25_as_a_client() {
    run_as_client("2025-11-25");
}

#[test]
fn conforms_to_2026_07_28_as_a_client() {
    run_as_client("2026-07-28");
}
