//! Values and rules: what a participant, a message, a task, an event and a cursor are, and what
//! may become of them.
//!
//! The lowest crate. It does no I/O, reads no clock and makes no random choice: time and ids are
//! arguments ([`Clock`], [`Ids`]).
//!
//! # Who may read what
//!
//! `access.rs` has the rule: `Caller::access_to` says of an [`Ownership`] (owner, runner, project)
//! whether a caller may write a thing, read it, or sees nothing of it, and [`Reader`] the same of
//! streams, which may also be for the team, for their owner, or for the operator alone. A single
//! thing is read and then checked. A list is a query that is given the [`Reader`], so a page keeps
//! its size and a search its candidates. A project is never what the caller names: it comes from
//! the credential.
//!
//! `principal.rs` reads the text form of a [`Principal`]. A text that it does not know is nobody,
//! and what belongs to nobody is given to nobody.
//!
//! # What others wrote reaches a model
//!
//! A model cannot tell who wrote a text, so there is one way to a model: [`quote`].
//!
//! 1. `quote::plain` removes what nobody sees, and puts `(quoted)` into what imitates the lines
//!    around a message or a client's tag. `quote/skeleton.rs` compares texts by what they look
//!    like: NFKD, confusable letters, no case, no accents, nothing between the letters. That is
//!    for comparison only: the text that is given keeps its form, because NFKC would change code,
//!    names and paths.
//! 2. A text that the daemon composes is a `ModelText`. `model_text!` makes it of constants,
//!    numbers, ids and quotations; a `String` does not compile. `QuotedText` puts `> ` before each
//!    line, and `quote::line` makes one line. Hooks, waits, records, contexts and prompts are made
//!    of these, and [`stamp`] writes the lines around a message.
//! 3. The result of a tool is a JSON document, all of whose strings are made plain in one place
//!    (`svc-core/tools/tool.rs`). The result of a child server changes only where a string
//!    imitates. REST gives texts as they are.

mod access;
pub mod agent;
mod argument;
mod budget;
mod caller;
mod client_record;
pub mod cluster;
#[cfg(feature = "columns")]
pub mod columns;
pub mod conversation;
mod daemon_proof;
mod event;
mod evidence;
mod exposure;
pub mod fit;
mod gap;
pub mod hook;
mod id;
mod id_reference;
mod instance;
pub mod journal;
mod json_nul;
mod json_size;
mod json_weight;
pub mod learning;
pub mod limits;
mod list;
mod machine;
mod message;
mod open_calls;
mod operator_name;
mod peer;
mod peer_evidence;
mod peer_reference;
mod principal;
mod process;
mod project;
pub mod quote;
mod retention;
mod secret;
mod session_standing;
pub mod source;
pub mod stamp;
mod start_allowance;
mod task;
pub mod text;
mod time;

pub use access::{AccessLevel, Ownership, Reader, StreamVisibility, holds_call_results};
pub use argument::{NOT_BLANK, TAG, parse_word};
pub use budget::{BudgetBounds, BudgetKind, REQUEST_UNIT_BYTES};
pub use caller::{
    AGENTS_SCOPE, APPROVE_SCOPE, Caller, EXEC_SCOPE, OWN_SCOPES, READ_ALL, READ_SCOPE, Scope,
};
pub use client_record::{ClientRecord, RecordWord, RecordedState};
pub use daemon_proof::{ProofQuestion, TokenFingerprint, TokenHash, token_hash};
pub use event::{Event, EventKind, Framing, NewEvent, Seq, StreamName};
pub use evidence::StatusEvidence;
pub use exposure::{HARMLESS_TOOLS, SHORT_LIST, ToolExposure};
pub use gap::GapReason;
pub use id::random_bytes;
pub use id::{
    AgentId, AgentRequestId, CallId, GhapId, HandoverId, HookId, Ids, MachineId, McpSessionId,
    MessageId, OutcomeId, PeerId, RunId, TaskId, TokenId, ValueId, new_secret,
};
pub use id_reference::{IdReference, LATEST, PREFIX_CHARS as ID_PREFIX_CHARS};
pub use instance::{AgentInstance, InstanceStatus, InstanceView, StartRate, is_instance_name};
pub use json_nul::{NUL_REFUSED, json_has_nul, json_without_nul};
pub use json_size::json_bytes;
pub use json_weight::json_weight;
pub use list::{
    AgentFilter, GhapFilter, GhapSearch, ListQuery, MessageFilter, PageQuery, PeerFilter,
    RequestFilter, SessionFilter, TaskFilter, ToolFilter,
};
pub use machine::{DaemonView, Machine};
pub use message::{
    Delivery, DeliveryState, ExpectedDelivery, HandoverWay, Message, MessageType, NewMessage,
    SentMessage,
};
pub use open_calls::OpenCalls;
pub use operator_name::{IMPLICIT_SESSION, changes_direction, is_reserved_name};
pub use peer::{
    Peer, PeerRole, PeerSilence, PeerState, PeerStatus, RegisterInput, ReportedStatus, WaitingFor,
    WaitingKind,
};
pub use peer_reference::{PeerReference, SessionKey, choose, is_agent_key};
pub use principal::Principal;
pub use process::{
    LocalProcess, MachineProcess, PROCESS_HEADER, PROCESS_TOKENS_PATH, ProcessIdentity,
    ProcessState, SHELLS,
};
pub use project::{MovedFolder, Project, ProjectFolder, is_remote_name, remote_name};
pub use retention::Retention;
pub use secret::{WeakSecret, check_secret};
pub use session_standing::{
    KnownOwner, SessionContact, SessionStanding, client_session_id, is_daemons_session_id,
    is_own_session, own_session_ids, session_id_in_process,
};
pub use start_allowance::{StartAllowance, StartRefusal, StartRequester, StartSettings};
pub use task::{
    Frame, FrameKind, NewTask, ReplyKind, RunnerProcess, Task, TaskChange, TaskEvent,
    TaskEventBody, TaskReply, TaskReport, TaskStatus,
};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
