//! Runs programs beside the daemon: [`host`] is the process of one hosted agent, and [`runner`]
//! runs a program and sends its output. Both outlive the daemon, so neither uses the store or
//! services.
//!
//! # An agent is hosted
//!
//! `svc-client/hosts.rs` starts this program as `agent host` and writes the specification to its
//! standard input, because it holds secrets.
//!
//! 1. That process starts a second one in a session of its own and ends (`host/entry.rs`). So the
//!    host is no child of the daemon, and an agent survives the death of the daemon.
//! 2. The host creates the spool, binds the socket, and starts a reaper (`host/reaper.rs`) with
//!    one end of a socket pair. The reaper is the agent's parent and a subreaper: orphans below it
//!    become its children. When the agent ends or the host is killed, the reaper ends all of them.
//!    Before it signals a process, it opens a pidfd and compares the start time.
//! 3. A line of the agent becomes an event with an offset (`host/agent_spool.rs`). A thread writes
//!    and syncs pending events, and only then readers see them. While more than 1 MiB is pending,
//!    the agent's output is not read.
//! 4. `host/agent.rs` passes the line to the agent's protocol (`host/backend/`) and applies the
//!    effects that it returns: entries, requests, the end of a turn. Input is on the disk before
//!    the agent gets it, so an input without an `input` event was never given, and one with it is
//!    not given again.
//! 5. A client is a cursor into the spool (`host/connection.rs`). If a client stalls, the host does
//!    not read further for it. The text of an unfinished entry is only in memory
//!    (`host/record.rs`) until the entry is recorded.
//! 6. The agent's processes can connect to the socket too, so the host accepts answers to requests
//!    only with a key (`AnswerKey`) that came with the specification.
//! 7. When the agent has ended, the host answers for some more seconds and ends. The spool stays
//!    until the daemon has all of it.

pub mod host;
pub mod runner;
