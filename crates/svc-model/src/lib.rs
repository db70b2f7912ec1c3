//! Values and rules: what a peer, a message, a task, an event and a cursor are, and what may become of them.
//!
//! The lowest crate. It does no input or output, reads no clock and rolls no dice: time and ids come in as
//! arguments ([`Clock`], [`Ids`]).

mod access;
pub mod agent;
mod budget;
mod caller;
mod client_record;
pub mod cluster;
#[cfg(feature = "columns")]
pub mod columns;
pub mod conversation;
mod daemon_proof;
mod event;
mod exposure;
pub mod fit;
mod gap;
pub mod hook;
mod id;
mod id_reference;
mod instance;
pub mod journal;
mod json_size;
mod json_weight;
pub mod learning;
pub mod limits;
mod message;
mod open_calls;
mod operator_name;
mod peer;
mod peer_reference;
mod principal;
mod process;
pub mod quote;
mod secret;
mod session_standing;
pub mod source;
pub mod stamp;
mod start_allowance;
mod task;
pub mod text;
mod time;
mod visibility;

pub use access::{AccessLevel, Ownership, RowReader};
pub use budget::{BudgetBounds, BudgetKind, REQUEST_UNIT_BYTES};
pub use caller::{
    AGENTS_SCOPE, APPROVE_SCOPE, Caller, EXEC_SCOPE, OWN_SCOPES, READ_ALL, READ_SCOPE, Scope,
};
pub use client_record::{ClientRecord, RecordedState};
pub use daemon_proof::{ProofQuestion, TokenFingerprint, TokenHash, token_hash};
pub use event::{Event, EventKind, Framing, NewEvent, Seq, StreamName};
pub use exposure::{HARMLESS_TOOLS, SHORT_LIST, ToolExposure};
pub use gap::GapReason;
pub use id::random_bytes;
pub use id::{
    AgentId, AgentRequestId, CallId, GhapId, HookId, Ids, McpSessionId, MessageId, OutcomeId,
    PeerId, RunId, TaskId, TokenId, ValueId, new_secret,
};
pub use id_reference::{IdReference, LATEST, PREFIX_CHARS as ID_PREFIX_CHARS};
pub use instance::{AgentInstance, InstanceStatus, InstanceView, StartRate, is_instance_name};
pub use json_size::json_bytes;
pub use json_weight::json_weight;
pub use message::{
    Delivery, DeliveryState, ExpectedDelivery, Message, MessageType, NewMessage, SentMessage,
};
pub use open_calls::OpenCalls;
pub use operator_name::{IMPLICIT_SESSION, changes_direction, is_reserved_name};
pub use peer::{
    Peer, PeerPresence, PeerRole, PeerSilence, PeerStatus, RegisterInput, ReportedStatus,
    WaitingFor, WaitingKind,
};
pub use peer_reference::{PeerReference, SessionKey, choose, is_agent_key};
pub use principal::Principal;
pub use process::{LocalProcess, PROCESS_HEADER, PROCESS_TOKENS_PATH, ProcessIdentity, SHELLS};
pub use secret::{WeakSecret, check_secret};
pub use session_standing::{
    KnownOwner, SessionContact, SessionStanding, is_daemons_session_id, is_own_session,
    own_session_ids,
};
pub use start_allowance::{StartAllowance, StartRefusal, StartRequester, StartSettings};
pub use task::{
    Frame, FrameKind, NewTask, ReplyKind, RunnerProcess, Task, TaskChange, TaskEnd, TaskEvent,
    TaskEventBody, TaskReply, TaskReport, TaskState, TaskStatus,
};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
pub use visibility::{StreamReader, StreamVisibility, holds_answers};
