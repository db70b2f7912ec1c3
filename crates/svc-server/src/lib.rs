//! The daemon: its adapters, [`http`] and [`mcp`], what they share, [`web`], and
//! [`daemon`], which starts, sweeps and ends it.
//!
//! `daemon` uses `http` and `mcp`, which do not use each other, and all use `web`. Status codes
//! are known in these adapters only.
//!
//! # A request comes in
//!
//! 1. `http/edge.rs` accepts the connection within the bounds of `http/connection.rs`: at most 64
//!    connections wait for a client without a valid credential, and one more closes the one that
//!    has been idle longest.
//! 2. hyper reads the request, and `http/edge.rs` passes it through its layers. Its top comment
//!    lists them.
//! 3. `http/edge.rs` ends with the table of REST routes. A body over 64 KiB is parsed on a blocking
//!    thread (`web::parse_body`).
//! 4. Each chunk of a response counts in its reader's budget until it is written
//!    (`http/admission.rs`). A reader that takes no byte for 30 s while bytes wait is cut off.
//!
//! # A model waits, and the daemon is killed
//!
//! `tools/call TaskWait` in an MCP session of revision 2025-11-25.
//!
//! 1. The message is read as raw JSON (`mcp/rpc.rs`). The session is read from memory, else from
//!    its row. Its principal has to be the caller, or the response is 404.
//! 2. The tool is declared slow, so a row of `mcp_call` is written and the stream `mcp/<call>` is
//!    opened in one commit (`mcp/call/mod.rs`). The response's body follows that stream: first an
//!    event with an id, then the tool's messages, then its result, which closes the stream.
//! 3. `kill -9`. At the next start, before the first request, `mcp/call/mod.rs` runs the call again
//!    if its tool is idempotent, with the time of its first start. Every other call gets a result
//!    that says that its outcome is unknown.
//! 4. The client comes back with `Last-Event-ID: <call>.<seq>` and gets the rest. A client that
//!    has everything gets 204, since it would resume an empty stream for ever.
//!
//! A call of a client without sessions has no stream. It runs as long as its connection, or becomes
//! a task, which is such a row, too. Its questions end it with `input_required`, and the next round
//! runs it again with the answers; the client carries the signed state between rounds
//! (`mcp/call/active.rs`). Without a request a legacy client is told which lists have changed, and
//! which subscribed streams have new events since a position of the log (`mcp/notices.rs`).
//!
//! # The daemon starts and ends
//!
//! 1. `src/cli/serve.rs` takes the lock of the data folder, or reports which daemon holds it.
//!    `daemon/mod.rs` binds the port, which answers 503, opens and migrates the file, and
//!    appends `daemon.started`: the first write proves that writing works.
//! 2. It takes up calls that were under way, writes `daemon.json`, and lets requests reach the
//!    routes. Tokens, leases, idempotency keys and cursors are rows, so they are as they were.
//! 3. Sweeps (`daemon/background.rs`) find peers that fell silent and tasks whose runner is gone,
//!    and record the events that hooks spooled.
//! 4. The first signal ends the streams and lets requests finish, for up to 10 s. The second drops
//!    them. Then `daemon.stopped` and a last checkpoint.

// A request is one future of many layers, down to the statements of a write.
#![recursion_limit = "256"]

pub mod daemon;
pub mod http;
pub mod mcp;
pub mod web;
