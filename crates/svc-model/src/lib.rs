//! Values and rules: what a participant, a message, a task, an event and a cursor are, and how they
//! may change.
//!
//! The lowest crate. It does no I/O, reads no clock and makes no random choice: time and ids are
//! arguments ([`Clock`], [`Ids`]).
//!
//! # Who may read what
//!
//! `access.rs` has the rule. `Caller::access_to` decides by the [`Ownership`] of a thing (owner,
//! runner, project) whether a caller may write it, may read it, or sees nothing of it. [`Reader`]
//! decides the same for streams, which may also be for the team, for their owner, or for the
//! operator alone. A single thing is read and then checked. A list is a query that gets the
//! [`Reader`], so a page keeps its size and a search its candidates. The project comes from the
//! credential, and never from what the caller names.
//!
//! A [`Principal`] is stored as a text. A text that does not parse is no principal: nobody owns
//! what belongs to it.
//!
//! # How texts of others reach a model
//!
//! A model cannot tell who wrote a text, so there is one way to a model: [`quote`].
//!
//! 1. `quote::plain` removes invisible characters, and puts `(quoted)` into imitations of the lines
//!    around a message and of clients' tags. `quote/look.rs` compares texts by what they look like:
//!    NFKD, confusable letters, no case, no accents, nothing between the letters. That is for
//!    comparison only. The text itself keeps its form, because NFKC would change code, names and
//!    paths.
//! 2. A text that the daemon composes is a `ModelText`. `model_text!` makes it of constants,
//!    numbers, ids and quotations; a `String` does not compile. `QuotedText` puts `> ` before each
//!    line, and `quote::line` makes one line. Hooks, waits, records, contexts and prompts consist
//!    of these, and [`stamp`] writes the lines around a message.
//! 3. The result of a tool is a JSON document, all of whose strings are made plain in one place
//!    (`svc-core/tools/tool.rs`). The result of a child server changes only where a string is an
//!    imitation. REST returns texts as they are.

mod access;
pub mod agent;
pub mod cluster;
#[cfg(feature = "columns")]
pub mod columns;
pub mod conversation;
mod event;
mod exposure;
mod finding;
pub mod fit;
pub mod hook;
mod id;
mod instance;
pub mod journal;
mod json;
pub mod learning;
pub mod limits;
mod list;
mod machine;
mod message;
mod peer;
mod peer_evidence;
mod project;
pub mod quote;
mod reference;
mod session_standing;
pub mod source;
pub mod stamp;
mod task;
pub mod text;
mod time;
mod token;
mod words;

pub use access::{
    AGENTS_SCOPE, APPROVE_SCOPE, AccessLevel, BudgetBounds, BudgetKind, Caller, EXEC_SCOPE,
    OWN_SCOPES, Ownership, Principal, READ_ALL, READ_SCOPE, REQUEST_UNIT_BYTES, Reader, Scope,
    StreamVisibility, holds_call_results,
};
pub use event::{Event, EventKind, Framing, GapReason, NewEvent, Retention, Seq, StreamName};
pub use exposure::{HARMLESS_TOOLS, SHORT_LIST, ToolExposure};
pub use finding::{Finding, Level};
pub use hook::OpenCalls;
pub use id::{
    AgentId, AgentRequestId, CallId, GhapId, HandoverId, HookId, Ids, MachineId, McpSessionId,
    MessageId, OutcomeId, PeerId, RunId, TaskId, TokenId, ValueId, new_secret, random_bytes,
};
pub use instance::{
    AgentInstance, AgentStarter, InstanceStatus, InstanceView, StartAllowance, StartRate,
    StartRefusal, StartSettings, is_instance_name,
};
pub use json::{
    NUL_REFUSED, OrderedMembers, json_bytes, json_has_nul, json_is_deeper, json_weight,
    json_with_storable_texts,
};
pub use list::{
    AgentFilter, GhapFilter, GhapSearch, ListQuery, MessageFilter, PageQuery, PeerFilter,
    RequestFilter, SessionFilter, TaskFilter, ToolFilter,
};
pub use machine::{
    DaemonView, LocalProcess, Machine, MachineProcess, PROCESS_HEADER, PROCESS_TOKENS_PATH,
    ProcessIdentity, ProcessState, SHELLS,
};
pub use message::{
    Delivery, DeliveryState, ExpectedDelivery, HandoverWay, Message, MessageType, NewMessage,
    SentMessage,
};
pub use peer::{
    Peer, PeerRole, PeerSilence, PeerState, PeerStatus, RegisterInput, ReportedStatus,
    StatusEvidence, WaitingFor, WaitingKind, backend_names,
};
pub use peer_evidence::{ClientRecord, RecordRelation, RecordedState};
pub use project::{MovedFolder, Project, ProjectFolder, is_remote_name, remote_name};
pub use reference::{
    ID_PREFIX_CHARS, IdReference, LATEST, PeerReference, SessionKey, choose, is_agent_key,
};
pub use session_standing::{
    IMPLICIT_SESSION, KnownOwner, SessionReference, SessionStanding, changes_direction,
    client_session_id, is_daemons_session_id, is_own_session, is_reserved_name, own_session_ids,
    session_id_in_process,
};
pub use task::{
    Frame, FrameKind, NewFrame, NewTask, ReplyKind, RunnerProcess, Task, TaskChange, TaskEvent,
    TaskEventBody, TaskReply, TaskReport, TaskStatus, is_cut_result,
};
pub use time::{Clock, ManualClock, SystemClock, Timestamp};
pub use token::{ProofQuestion, TokenFingerprint, TokenHash, WeakSecret, check_secret, token_hash};
pub use words::{NOT_BLANK, TAG, parse_word};
