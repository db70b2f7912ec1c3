//! What the system does, without a protocol: [`service`] has a service for each subject, [`tools`]
//! what a model may ask for.
//!
//! Tools call services. A service is a struct whose fields name the services that it calls
//! (`service/services.rs`); it also uses what the module of another service exports. Each call
//! takes a [`Caller`](svc_model::Caller), whose identity comes from the credential.
//!
//! # An event of a hook
//!
//! A coding agent runs `svc hook` with the event on standard input. `src/cli/hook/` sends it in
//! one call of the tool `hook_event`.
//!
//! 1. `svc-model/hook/payload.rs` makes the same `HookEvent` of each client's payload.
//! 2. `service/hooks/event.rs` recognises the session, decides the effects
//!    (`svc-model/hook/effects.rs`, without I/O), applies them in one write job
//!    (`service/hooks/write_job.rs`) and composes the reply. The effects are the session's row,
//!    its peer and the peer's status, the count of tool uses, an outcome if the command was a
//!    test, and the messages that are handed over. An event that changes nothing writes nothing.
//! 3. `svc-model/hook/reply.rs` writes the reply in the client's format, or nothing. The hook
//!    prints only a reply that `svc-model/hook/reply.rs` recognises.
//! 4. A message that the reply carries is `offered`. The session's next event shows that the
//!    session went on: then the message is `injected`. A hook that could not print its reply leaves
//!    a note for the next hook, and the daemon takes back the messages of that reply by its id.
//! 5. Without a daemon the event goes to a spool (`svc-sys/spool.rs`), which
//!    `svc-server/daemon/background.rs` takes in. The event's id makes the repeat idempotent.
//!
//! What no hook reports, such as Esc at a dialog, is in the client's own records
//! (`svc-sys/client_records/`, read by `service/team/records.rs`); `svc-model/peer_evidence.rs`
//! decides between a record and a hook. MCP does not say in which of a client's sessions a tool is
//! called; `service/hooks/between_hooks.rs` matches the call with the hook that came just before
//! it.
//!
//! # A client proves who it is
//!
//! 1. `svc stdio` connects to the Unix socket and asks for a token, without a credential. The
//!    kernel names the process. `service/access/process_tokens.rs` walks up its ancestors to the
//!    client, in the system's list of processes. If a process between the two is a client itself,
//!    the request is refused.
//! 2. `service/access/process_tokens.rs` gives each process one subject, by its id and start time,
//!    and one token for each `svc stdio`. The row ends with the process. A hook needs no token: the
//!    socket identifies its process in the same way.
//! 3. A session that hooks report belongs to that subject. `svc-model/session_standing.rs` has the
//!    rule, and `service/team/ownership.rs` applies it in the write job of the change. A session
//!    whose owner is gone passes to the owner of a hook that presents the session's secret
//!    (`svc-sys/session_secret.rs`); no call returns that secret.
//! 4. A process below a host speaks as the host's agent (`service/access/process_tokens.rs`).
//! 5. A call that waited checks its credential's row again before it answers
//!    (`service/access/credentials.rs`). A stream ends with its credential (`Access::until_over`).
//!
//! # Codex asks its person
//!
//! 1. Hooks of Codex come from the app-server that all its terminals share.
//!    `service/codex/follow.rs` connects to that process, if that process is the one that listens
//!    (`svc-reach/codex_socket.rs`).
//! 2. `svc-reach/codex.rs` turns the app-server's messages into observations, and the connection
//!    stores these for the sessions of that process.
//! 3. A request of a thread is a row of `request`, which the connection holds
//!    (`service/prompts/answer.rs`) as a hook of Claude Code does. An answer becomes the result
//!    of the app-server's request.
//! 4. The app-server reports that the request is resolved. The end of the item that the request is
//!    about shows whose answer counted (`service/codex/follow.rs`).
//! 5. After a restart of the daemon, the app-server sends its open requests again, and the daemon
//!    continues with the same rows.
//!
//! # A caller names a peer
//!
//! Each adapter passes the text on unchanged, and `service/team/find.rs` resolves it.
//! `svc-model/reference.rs` decides by the form whether the text is an id, the prefix of an id, a
//! session's key or a display name; a text with the prefix of an id or a key is never a name. If
//! several peers match and exactly one of them lives, that peer is meant; otherwise the error lists
//! the matches that the caller may see. The operator's peer is a row that no registration finds. A
//! peer lives while its process does (`PeerRow::process`); without a process, the time since it was
//! last heard, the session and the MCP connection decide.
//!
//! # An agent works, and the daemon is killed
//!
//! 1. `service/agents/dispatch.rs` makes the task and its assignment in one commit, before
//!    anything starts. `service/agents/allowance.rs` asks whether the request may set what it
//!    sets. `service/agents/queue.rs` takes its turn: the rows of the agent and its token in one
//!    commit, then `svc-client/hosts.rs` starts the host.
//! 2. `service/agents/follow.rs` attaches behind the head of the stream `agent/<id>`, the last
//!    offset that was taken over. `service/agents/intake.rs` takes a batch in one write job: the
//!    log, the agent's row, its requests, the frames of the task.
//! 3. The daemon dies. The agent works on, and the host's spool grows.
//! 4. The next daemon follows all live agents and stores what it missed. If a host is gone,
//!    `svc-client/hosts.rs` reads its spool. Without an `exit` the agent is `lost`, after
//!    `end_tree` of the same file has ended the processes that still ran.
//! 5. The end of the turn comes with the prompt's `message_id`, which is the task's id.
//!    `service/assignments/settle.rs` writes the terminal event, the result and the message to
//!    the requester in the same commit. If an agent is lost with the prompt on record, the outcome
//!    is unknown; if the prompt is not on record, the task goes back to the queue.
//!
//! # A participant asks another
//!
//! 1. `service/conversations/mod.rs` takes the caller from the credential, and the target as far
//!    as the policy lets the caller see it (`svc-model/conversation/policy.rs`). An unseen target
//!    and an unknown one get the same answer.
//! 2. `service/conversations/send.rs` is one write job: the idempotency key, the circle that the
//!    wait would close (`svc-model/conversation/mod.rs`), the rate, the message, its assignment.
//! 3. `service/agents/mailing.rs` gives the messages in a hosted agent's inbox to its host. The
//!    message's id is the idempotency key.
//! 4. `service/assignments/turns.rs` notes that the turn began. The end of the turn stores the
//!    reply as a message in the same commit. The hooks of an attended session report its turns.
//! 5. The reply is held back from the inbox while the call waits (`message.held_until`). The call
//!    takes the reply by acknowledging it; if the call is gone, the reply stays in the inbox.
//! 6. When the agent ends, its open assignments fail and the messages in its inbox become
//!    undeliverable, in the commit of its end.

pub mod service;
pub mod tools;

use svc_store::boxed;
