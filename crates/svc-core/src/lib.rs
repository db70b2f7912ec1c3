//! What the system does, without a protocol: [`service`] has a service for each subject, [`tools`]
//! what a model may ask for.
//!
//! Tools call services. Services are structs that name the services they call as fields
//! (`service/services.rs`), and use what another one's module exports. Each call takes a
//! [`Caller`](svc_model::Caller), whose identity comes from the credential.
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
//! 3. `svc-model/hook/reply.rs` puts the reply into the client's shape, or says nothing. The hook
//!    prints only an answer that `svc-model/hook/output.rs` knows.
//! 4. A message that is handed over is `offered`. The session's next event shows that it went on:
//!    then it is `injected`. A hook that could not print its answer has the next one report that,
//!    and the daemon takes back what bears its id.
//! 5. Without a daemon the event goes to a spool (`svc-sys/hook_spool.rs`), which
//!    `svc-server/daemon/hook_drain.rs` takes in. The event's id makes it count once.
//!
//! What no hook tells, such as Esc at a dialog, is in the client's own records
//! (`svc-sys/client_records/`, read by `service/team/records.rs`); `svc-model/client_record.rs`
//! says whose word counts. MCP does not say in which of a client's sessions a tool is called;
//! `service/hooks/call_ties.rs` knows from the hook that came a moment before.
//!
//! # A client proves who it is
//!
//! 1. `svc stdio` connects to the Unix socket and asks for a token, without a credential. The
//!    kernel noted the process. `service/access/client_process.rs` looks from it up to the client,
//!    in the system's list of processes. A process between the two that is a client itself is a
//!    refusal.
//! 2. `service/access/process_tokens.rs` gives each process one subject, by its id and start time,
//!    and one token for each `svc stdio`. The row ends with the process. A hook needs no token: it
//!    shows itself in the same way.
//! 3. A session that hooks report belongs to that subject. `svc-model/session_standing.rs` is the
//!    rule, and `service/team/ownership.rs` asks it in the write job that would change something.
//!    A session whose owner is gone goes to a hook that shows the session's secret
//!    (`svc-sys/session_secret.rs`); no call shows one.
//! 4. A process below a host speaks as the host's agent (`service/access/hosted.rs`).
//! 5. A call that waited looks at its credential's row again before its answer
//!    (`service/access/recheck.rs`). A stream whose credential ends is ended too
//!    (`Access::until_over`).
//!
//! # A caller names a peer
//!
//! Each adapter hands the text on as it is, and `service/team/find.rs` resolves it.
//! `svc-model/peer_reference.rs` tells by the form whether it is an id, the beginning of one, a
//! session's key or a display name; what begins like an id or a key is never a name. Of several
//! peers the only living one is meant; otherwise the error lists them, as far as the caller may
//! see them. The operator's peer is a row that no registration finds. A peer lives while its
//! process does (`PeerRow::process`); without one, silence, the session and the MCP connection
//! decide.
//!
//! # An agent works, and the daemon is killed
//!
//! 1. `service/agents/dispatch.rs` makes the task and its assignment in one commit, before
//!    anything starts. `service/agents/allowance.rs` asks whether the request may set what it
//!    sets. `service/agents/queue.rs` takes its turn: the rows of the agent and its token in one
//!    commit, then `svc-client/hosts/lifecycle.rs` starts the host.
//! 2. `service/agents/follow.rs` attaches behind the head of the stream `agent/<id>`, the last
//!    offset that was taken over. `service/agents/intake.rs` takes a batch in one write job: the
//!    log, the agent's row, its requests, the frames of the task.
//! 3. The daemon dies. The agent works on, and the host's spool grows.
//! 4. The next daemon follows all live agents and takes over what it missed. If a host is gone,
//!    `svc-client/hosts/lifecycle.rs` reads what it left. Without an `exit` the agent is `lost`,
//!    after `end_tree` of the same file has ended what still ran.
//! 5. The end of the turn comes with the prompt's `message_id`, which is the task's id.
//!    `service/assignments/settle.rs` writes the terminal event, the result and the message to who
//!    asked, in the same commit. An agent that was lost with the prompt on record leaves an
//!    unknown outcome; one without it goes back to the queue.
//!
//! # A participant asks another
//!
//! 1. `service/conversations/party.rs` takes the caller from the credential, and the target as far
//!    as the policy lets the caller see it (`svc-model/conversation/policy.rs`). An unseen target
//!    and an unknown one get the same answer.
//! 2. `service/conversations/send.rs` is one write job: the idempotency key, the circle that the
//!    wait would close (`svc-model/conversation/wait.rs`), the rate, the message, its assignment.
//! 3. `service/agents/mailing.rs` gives what waits in a hosted agent's inbox to its host. The
//!    message's id is the idempotency key.
//! 4. `service/assignments/turns.rs` notes that the turn began. The end of the turn stores the
//!    reply as a message in the same commit. For an attended session its hooks tell both.
//! 5. The reply is held back from the inbox while the call waits (`message.held_until`). The call
//!    takes it by acknowledging it; a call that is gone leaves it to the inbox.
//! 6. When the agent ends, its open assignments fail and what waits for it becomes undeliverable,
//!    in the commit of its end.

pub mod service;
pub mod tools;
