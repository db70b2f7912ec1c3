//! What was said in a conversation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryRole {
    /// Whoever sends it input.
    User,
    /// The agent.
    Assistant,
    /// A tool that it called: the call, or its result.
    Tool,
    /// The program around the model, such as an error text.
    System,
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Who said it.
    pub role: HistoryRole,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The tool that is called, or has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// The whole input of a call: its JSON text.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::wire::json_text"
    )]
    pub tool_input: Option<String>,
    /// The input of a call in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_summary: Option<String>,
    /// The text of a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_result: Option<String>,
    /// The vendor's id of the call, which its result bears too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// Whether it tells of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// Whether its text went on beyond what is here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The offset of its event, in a history: `before` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// When.
    #[serde(deserialize_with = "super::wire::moment")]
    pub timestamp: Timestamp,
}

impl HistoryEntry {
    /// An entry without anything in it.
    pub const fn empty(role: HistoryRole) -> Self {
        Self {
            role,
            content: None,
            tool_name: None,
            tool_input: None,
            tool_summary: None,
            tool_result: None,
            tool_use_id: None,
            is_error: None,
            truncated: false,
            offset: None,
            timestamp: Timestamp::from_millis(0),
        }
    }

    pub fn text(role: HistoryRole, content: impl Into<String>) -> Self {
        Self { content: Some(content.into()), ..Self::empty(role) }
    }

    /// A text that tells of a failure.
    pub fn error(content: impl Into<String>) -> Self {
        Self { is_error: Some(true), ..Self::text(HistoryRole::System, content) }
    }

    /// Whether it is a call of a tool or what came of one.
    pub fn is_of_tool(&self) -> bool {
        self.role == HistoryRole::Tool
    }
}
