//! The daemon: its adapters, [`http`] and [`mcp`], what they share, [`web`], and [`daemon`], which
//! starts, sweeps and ends it.
//!
//! `daemon` uses `http` and `mcp`, which do not use each other, and all use `web`. Status codes
//! stand in these adapters alone.
//!
//! # A request comes in
//!
//! 1. `http/connection.rs` accepts the connection within the bounds of `http/listener.rs`:
//!    connections whose client has shown no good credential are few, and one more closes the
//!    longest idle.
//! 2. hyper reads the request, and `http/edge.rs` passes it through its layers. Its top comment
//!    lists them.
//! 3. `http/routes.rs` is the table of REST routes. A body over 64 KiB is parsed on a thread
//!    beside the runtime's (`web::parse_body`).
//! 4. Each piece of an answer counts in its reader's budget until it is written
//!    (`http/admission.rs`). A reader that takes no byte for 30 s while bytes wait is cut off.
//!
//! # A model waits, and the daemon is killed
//!
//! `tools/call TaskWait` in an MCP session of revision 2025-11-25.
//!
//! 1. The message is read as raw JSON (`mcp/rpc.rs`). The session is in memory or a row.
//!    Its principal has to be the caller, or the answer is 404.
//! 2. The tool is declared slow, so a row of `mcp_call` is written and the stream `mcp/<call>` is
//!    opened in one commit (`mcp/call/mod.rs`). The answer's body follows that stream: an event
//!    with an id first, what the tool says, and its result, which closes the stream.
//! 3. `kill -9`. At the next start, before the first request, `mcp/call/mod.rs` runs the call again
//!    if its tool is idempotent, with the time of its first start. Every other call gets a result
//!    that says that its outcome is unknown.
//! 4. The client comes back with `Last-Event-ID: <call>.<seq>` and gets the rest. A client that
//!    has everything gets 204, or it would come back for ever.
//!
//! A call of a client without sessions has no stream. It runs as long as its connection, or becomes
//! a task, which is the same row. Its questions end it with `input_required`, and the next round
//! runs it again with the answers; the state between rounds travels with the client, signed
//! (`mcp/call/active.rs`). What a legacy client hears unasked is which lists have changed and
//! which subscribed streams have moved since a position of the log (`mcp/notices.rs`).
//!
//! # The daemon starts and ends
//!
//! 1. `src/cli/serve.rs` takes the lock of the data folder, or says who has it.
//!    `daemon/mod.rs` binds the port, which answers 503, opens and migrates the file, and
//!    appends `daemon.started`: the first write proves that writing works.
//! 2. It takes up calls that were under way, writes `daemon.json`, and lets requests reach the
//!    routes. Tokens, leases, idempotency keys and cursors are rows, so they are as they were.
//! 3. Sweeps (`daemon/background.rs`) find peers that fell silent and tasks whose runner is gone,
//!    and take in what hooks left.
//! 4. The first signal ends the streams and lets requests finish, for up to 10 s. The second drops
//!    them. Then `daemon.stopped` and a last checkpoint.

// A request is one future of many layers, down to the statements of a write.
#![recursion_limit = "256"]

pub mod daemon;
pub mod http;
pub mod mcp;
pub mod web;
