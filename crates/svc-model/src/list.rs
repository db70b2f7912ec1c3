//! Queries of lists. Each list has one type, which is parsed from the command line, a URL or the
//! arguments of a tool, is sent by `svc`, and filters in the store.
//!
//! The doc comment of a field is its description for models and in the OpenAPI document; `help` is
//! the text for people, where that needs more. All given filters must match.

use clap::{ArgAction, Args};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    DeliveryState, MessageType, NOT_BLANK, PeerStatus, TaskStatus, Timestamp,
    agent::AgentState,
    journal::{Domain, GhapStatus},
    limits, parse_word,
};

/// A list, as it is asked for.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct ListQuery<F: Args> {
    /// Which items.
    #[command(flatten)]
    #[serde(flatten)]
    pub filter: F,
    /// Which of their pages.
    #[command(flatten)]
    #[serde(flatten)]
    pub page: PageQuery,
}

/// A page of a list.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct PageQuery {
    /// How many at most.
    #[arg(long, value_name = "N", help = "How many, 1 to 500")]
    #[schemars(range(min = 1, max = limits::PAGE_MAX), extend("default" = limits::PAGE_DEFAULT))]
    pub limit: Option<u32>,
    /// The `next_cursor` of the previous page.
    #[arg(long)]
    #[schemars(regex(pattern = NOT_BLANK))]
    pub cursor: Option<String>,
}

/// Which tasks.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct TaskFilter {
    /// Only tasks in this state.
    #[arg(long, value_parser = parse_word::<TaskStatus>)]
    #[arg(help = "Only this status: pending, active, done, failed, cancelled or expired")]
    pub status: Option<TaskStatus>,
    /// Only tasks for this agent.
    #[arg(long, help = "Only this agent's")]
    pub agent: Option<String>,
    /// Only tasks on behalf of this `peer_id`, session or `operator`.
    #[arg(long, help = "Only those on behalf of this one")]
    pub from: Option<String>,
    /// Only tasks created since this time (RFC 3339).
    #[arg(long, value_name = "TIME", value_parser = parse_word::<Timestamp>)]
    #[arg(help = "Only those created since this time (RFC 3339)")]
    pub since: Option<Timestamp>,
}

/// Which peers.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct PeerFilter {
    /// Only in this state.
    #[arg(long, value_parser = parse_word::<PeerStatus>)]
    #[arg(help = "Only this status: online, busy, waiting, idle, unreachable or offline")]
    pub status: Option<PeerStatus>,
    /// Only this backend, such as `codex`.
    #[arg(long, help = "Only this backend, such as claude or codex")]
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    pub backend: Option<String>,
    /// Only this circle.
    #[arg(long)]
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    pub circle: Option<String>,
    /// Only in this folder.
    #[arg(long, help = "Only this working folder")]
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    pub path: Option<String>,
}

/// Which messages.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct MessageFilter {
    /// Only those from or to this peer: what names it, or `operator`.
    #[arg(long, help = "Only from or to this peer")]
    pub peer: Option<String>,
    /// Only those in this state.
    #[arg(skip)]
    pub state: Option<DeliveryState>,
    /// Only those of this type.
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_word::<MessageType>)]
    #[arg(help = "Only of this type: query, response, notification or broadcast")]
    #[serde(rename = "type")]
    pub kind: Option<MessageType>,
    /// Only questions that wait for an answer of the peer that was asked.
    #[arg(long, help = "Only questions that wait for an answer")]
    #[serde(default)]
    pub open: bool,
}

/// Which sessions.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct SessionFilter {
    /// Only this project.
    #[arg(long, help = "Only of this project")]
    pub project: Option<String>,
    /// Only this client.
    #[arg(long, help = "Only of this client")]
    pub client: Option<String>,
    /// Only those that are open, or only those that are over.
    #[arg(long, action = ArgAction::SetTrue, help = "Only open sessions")]
    pub open: Option<bool>,
}

/// Which records of attempts.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct GhapFilter {
    /// Only in this state.
    #[arg(long, value_parser = parse_word::<GhapStatus>)]
    #[arg(help = "Only this state: active, confirmed, falsified or abandoned")]
    pub status: Option<GhapStatus>,
    /// Only of this domain.
    #[arg(long, value_parser = parse_word::<Domain>)]
    #[arg(help = "Only this domain, such as debugging")]
    pub domain: Option<Domain>,
    /// Only of this project.
    #[arg(long)]
    pub project: Option<String>,
    /// Only of this session.
    #[arg(long = "session", value_name = "SESSION")]
    pub session_id: Option<String>,
    /// Only those that ended at this time or later.
    #[arg(skip)]
    pub since: Option<Timestamp>,
}

/// A search of records.
#[derive(Debug, Clone, Args, Serialize, Deserialize, JsonSchema)]
pub struct GhapSearch {
    /// Any text: a question, an error message, code. A blank one finds nothing.
    #[arg(value_name = "QUERY", help = "Any text: a question, an error message, code")]
    pub q: String,
    /// Only of this domain.
    #[arg(long, value_parser = parse_word::<Domain>)]
    #[arg(help = "Only this domain, such as debugging")]
    pub domain: Option<Domain>,
    /// Only with this outcome.
    #[arg(long, value_parser = parse_word::<GhapStatus>)]
    #[arg(help = "Only this outcome: confirmed, falsified or abandoned")]
    pub status: Option<GhapStatus>,
    /// Records of this project come first.
    #[arg(long)]
    pub project: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", help = "How many, 1 to 50")]
    #[schemars(range(min = 1, max = limits::SEARCH_HITS), extend("default" = 10))]
    pub limit: Option<u32>,
}

/// Which hosted agents.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize, JsonSchema)]
pub struct AgentFilter {
    /// Only in this state.
    #[arg(
        long,
        value_parser = parse_word::<AgentState>,
        help = "Only agents that svc runs in this state: `starting`, `running`, `idle`, \
            `requires_action`, `limited`, `stopping`, `done`, `error`, `lost` or `unreachable`"
    )]
    pub state: Option<AgentState>,
    /// Only of this instance.
    #[arg(long, help = "Only agents of this instance")]
    pub instance: Option<String>,
    /// Only of this backend.
    #[arg(long, help = "Only this backend's")]
    pub backend: Option<String>,
    /// A project, a folder of it, or the last part of its name.
    #[arg(long, value_name = "NAME")]
    #[arg(help = "Only this project's: its folder, or the name of that")]
    pub project: Option<String>,
    /// Only agents that have not ended.
    #[arg(skip)]
    #[serde(default)]
    pub live: bool,
}

/// Which requests of agents.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestFilter {
    /// Only those that wait for an answer.
    #[serde(default)]
    pub open: bool,
}

/// Which tools.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ToolFilter {
    /// Only this family, such as `peers` or `tasks`.
    pub family: Option<String>,
}
