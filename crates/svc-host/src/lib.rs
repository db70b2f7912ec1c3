//! What runs programs beside the daemon: [`host`], the process of one hosted agent, and [`runner`],
//! which runs a program and sends what it prints. Both outlive the daemon, so neither uses the
//! store or services.
//!
//! # An agent is hosted
//!
//! `svc-client/hosts.rs` starts this program as `agent host` and writes the specification to its
//! standard input, because it holds secrets.
//!
//! 1. That process starts a second one in a session of its own and ends (`host/entry.rs`). So the
//!    host is nobody's child, and a daemon that is killed takes no agent along.
//! 2. The host creates the spool, binds the socket, and starts a reaper (`host/reaper.rs`) with
//!    one end of a socket pair. The reaper is the agent's parent and a subreaper: what loses its
//!    parent below it becomes its child. When the agent ends, or the host is killed, it ends all of
//!    them. Each process is held by a descriptor and compared by its start time before it is
//!    signalled.
//! 3. A line of the agent becomes an event with an offset (`host/agent_spool.rs`); a thread
//!    writes and syncs what waits. Only then anybody sees it. While more than 1 MiB waits for the
//!    disk, the agent's output is not read.
//! 4. `host/agent.rs` gives the line to the agent's protocol (`host/backend/`) and applies the
//!    effects that come back: entries, requests, the end of a turn. Input is on the disk before the
//!    agent gets it, so an input without an `input` event was never given, and one with it is not
//!    given again.
//! 5. A client is a cursor into the spool (`host/connection.rs`). One that stalls is not read for.
//!    The text of an entry that is not finished is in memory alone (`host/record.rs`), until the
//!    entry is recorded.
//! 6. The agent's processes reach the socket too, so the host takes answers to requests only with a
//!    key (`AnswerKey`) that came with the specification.
//! 7. When the agent has ended, the host answers for some seconds more and ends. The spool stays
//!    until the daemon has all of it.

pub mod host;
pub mod runner;
