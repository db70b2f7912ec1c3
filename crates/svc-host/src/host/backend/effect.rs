//! What follows from a line of an agent, or from a request to it.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use svc_model::agent::{AgentUsage, HistoryEntry, RequestKind, RequestOption, TurnOutcome};

/// Several, in order.
pub(in crate::host) type Effects = Vec<Effect>;

/// One thing that follows.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::host) enum Effect {
    /// Bytes for the agent's standard input.
    Write(Vec<u8>),
    /// Its standard input ends after what was written.
    CloseInput,
    /// A signal of this number for its process group.
    Signal(i32),
    /// It takes prompts.
    Ready,
    /// It works on a turn.
    Working,
    /// The turn is over.
    TurnEnd(TurnResult),
    /// The vendor refuses, until then if it said so.
    Limited {
        /// Unix milliseconds.
        until: Option<i64>,
    },
    /// The vendor's id of the conversation.
    Session(String),
    /// Words of the agent, which its next entry will have.
    Words(String),
    /// An entry of the conversation; its time is set by who records it.
    Entry(HistoryEntry),
    /// What the turn has used.
    Usage(AgentUsage),
    /// Something failed; the agent goes on.
    Error(String),
    /// The agent asks, and waits.
    Request(VendorRequest),
    /// The agent waits no longer for this request.
    RequestGone(String),
    /// The agent cannot be used.
    Fatal(String),
}

impl Effect {
    /// One JSON value on a line of its own for the agent.
    pub(in crate::host) fn write_json(value: &impl Serialize) -> Self {
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        line.push(b'\n');
        Self::Write(line)
    }
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::host) struct TurnResult {
    pub(in crate::host) outcome: TurnOutcome,
    /// The final text, if the vendor names one.
    pub(in crate::host) result: Option<String>,
    pub(in crate::host) error: Option<String>,
}

impl TurnResult {
    /// The agent had no more to do.
    pub(in crate::host) const fn completed(result: Option<String>) -> Self {
        Self { outcome: TurnOutcome::Completed, result, error: None }
    }

    /// Somebody ended it.
    pub(in crate::host) const fn interrupted() -> Self {
        Self { outcome: TurnOutcome::Interrupted, result: None, error: None }
    }

    /// The vendor reports a failure.
    pub(in crate::host) const fn failed(error: String) -> Self {
        Self { outcome: TurnOutcome::Failed, result: None, error: Some(error) }
    }
}

/// What an agent asks for.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::host) struct VendorRequest {
    /// By this the protocol knows it.
    pub(in crate::host) key: String,
    pub(in crate::host) kind: RequestKind,
    pub(in crate::host) title: String,
    pub(in crate::host) options: Vec<RequestOption>,
    pub(in crate::host) tool: Option<Value>,
    /// Files that it would change, if it would do nothing else.
    pub(in crate::host) edits: Option<Vec<PathBuf>>,
}
