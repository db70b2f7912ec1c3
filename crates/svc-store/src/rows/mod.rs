//! Arguments and results of the store: plain values, independent of the engine.

mod agent;
mod assignment;
mod journal;
mod learning;
mod log;
mod machine;
mod mcp;
mod project;
mod search;
mod source;
mod team;
mod tool_call;

pub use agent::{AgentRow, RequestAnswerRow, RequestRow};
pub use assignment::{
    AgentMail, AssignmentEnd, AssignmentRow, AssignmentState, WorkMode, WorkRequirements,
};
pub use journal::{
    CalibrationRow, HitRate, LessonKind, ProbabilityBin, SessionLock, SessionStart, VerdictWeek,
};
pub use learning::{
    ClusterRow, Clustering, GivenItem, HelpEvidence, ItemVersion, MemberRow, MemoryFilter,
    NewCluster, SoughtTerm,
};
pub use log::{
    AppendedSeqs, FeedScope, FramePage, LogPage, PageSize, RowPage, StreamState, StreamView,
};
pub use machine::{AwayMachine, NewDaemon};
pub use mcp::{CallRow, CallState, McpSessionRow, McpTransport};
pub use project::FolderDecision;
pub use search::{Frequencies, GhapPart, SearchCandidate, SearchFilter};
pub use source::{SourceListRow, SourcePinRow, SourceProcessRow, SourceStateRow};
pub use team::{
    DeliveryTerms, HandoverRow, ListedMessage, LoginCodeRow, MessageRow, PeerRow, ProcessSubject,
    StrandedInbox, SubjectHolders, TaskRow, TokenEnd, TokenRow,
};
pub use tool_call::{ToolCall, ToolCallCount};
