//! Calls in sessions beside the server of `rmcp` with its session mode, and an event store in
//! `SQLite` that writes as much as it has to (two rows for each call):
//! `cargo bench --package svc-bench --bench mcp`, after `cargo build --release`. The load is that
//! of `svc-bench`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use axum::serve::ListenerExt as _;
use futures_util::future::BoxFuture;
use rmcp::{
    RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
        ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService,
        session::{
            ServerSseMessage,
            local::LocalSessionManager,
            store::{EventId, EventStore, EventStoreError, EventStream},
        },
    },
};

/// A server with one tool, which says as much as it was asked for.
struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("x".repeat(400))]).into())
    }
}

/// Events in a table, each in a commit of its own: in the write-ahead log, and not waiting for the
/// disk.
struct Events(Mutex<rusqlite::Connection>);

impl Events {
    fn open(path: &std::path::Path) -> rusqlite::Result<Self> {
        let database = rusqlite::Connection::open(path)?;
        database.pragma_update(None, "journal_mode", "wal")?;
        database.pragma_update(None, "synchronous", "normal")?;
        database.execute_batch(
            "create table event (id integer primary key, stream text not null, message text) strict",
        )?;
        Ok(Self(Mutex::new(database)))
    }

    fn append(&self, stream: &str, event: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        let message = event.message.as_deref().map(serde_json::to_string).transpose()?;
        let database = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        database
            .prepare_cached("insert into event (stream, message) values (?, ?)")?
            .execute((stream, message))?;
        Ok(database.last_insert_rowid().to_string())
    }
}

impl EventStore for Events {
    fn store_event<'a, 'b, 'c, 'd>(
        &'a self,
        stream: &'b str,
        event: &'c ServerSseMessage,
    ) -> BoxFuture<'d, Result<EventId, EventStoreError>>
    where
        'a: 'd,
        'b: 'd,
        'c: 'd,
        Self: 'd,
    {
        Box::pin(std::future::ready(self.append(stream, event)))
    }

    fn replay_events_after<'a, 'b, 'd>(
        &'a self,
        _: &'b str,
    ) -> BoxFuture<'d, Result<EventStream, EventStoreError>>
    where
        'a: 'd,
        'b: 'd,
        Self: 'd,
    {
        // Nobody comes back here.
        Box::pin(async { Ok(Box::pin(futures_util::stream::empty()) as EventStream) })
    }
}

fn serve() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let events = Arc::new(Events::open(&folder.path().join("events.db"))?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let sessions = Arc::new(LocalSessionManager::default().with_event_store(events));
        let config = StreamableHttpServerConfig::default();
        let service = StreamableHttpService::new(|| Ok(Echo), sessions, config);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        #[expect(clippy::print_stdout, reason = "whoever started it waits for the address")]
        {
            println!("{}", listener.local_addr()?);
        }
        // Without it each answer takes 40 ms.
        let listener = listener.tap_io(|socket| {
            socket.set_nodelay(true).ok();
        });
        axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "serve") {
        return serve();
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        // A test run only wants it to build.
        return Ok(ExitCode::SUCCESS);
    }
    let mut server =
        Command::new(std::env::current_exe()?).arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    if let Some(stdout) = server.stdout.take() {
        BufReader::new(stdout).read_line(&mut address)?;
    }
    let compared = Command::new(env!("CARGO_BIN_EXE_svc-bench"))
        .args(["--only", "peers-mcp", "--mcp-peer", address.trim()])
        .status();
    server.kill()?;
    server.wait()?;
    Ok(if compared?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
