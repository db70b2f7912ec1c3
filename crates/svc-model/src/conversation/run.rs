//! A send: its turn, its reply, and what the one who sent is told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a message is to be taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunMode {
    /// As a turn of its own, whose words are the reply.
    #[default]
    Followup,
    /// To be known: nothing is answered.
    Notify,
    /// Into the turn that is under way.
    Steer,
}

/// How far a send is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The target has not begun with it.
    Queued,
    /// The target has it before its eyes.
    Running,
    /// It was answered.
    Ok,
    /// The turn ended without words.
    NoReply,
    /// It met a limit of the target's.
    Timeout,
    /// It came to nothing.
    Error,
}

impl RunState {
    /// Whether nothing more comes of it.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ok => "ok",
            Self::NoReply => "no_reply",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }
}

/// What the one who sent is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SendStatus {
    /// The reply is here.
    Ok,
    /// It was taken; a reply comes later as a message, once.
    Accepted,
    /// The turn ended without words.
    NoReply,
    /// It met a limit of the target's.
    Timeout,
    /// It was refused, or came to nothing.
    Error,
    /// Not for this caller.
    Forbidden,
}

impl From<RunState> for SendStatus {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Queued | RunState::Running => Self::Accepted,
            RunState::Ok => Self::Ok,
            RunState::NoReply => Self::NoReply,
            RunState::Timeout => Self::Timeout,
            RunState::Error => Self::Error,
        }
    }
}

/// What a turn said in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnReply {
    /// Words.
    Text(String),
    /// None.
    Silence,
}

impl TurnReply {
    /// What ends an exchange as an empty reply does.
    pub const SKIP: &'static str = "REPLY_SKIP";

    /// Reads the final words of a turn.
    pub fn from_text(text: &str) -> Self {
        match text.trim() {
            "" | Self::SKIP => Self::Silence,
            _ => Self::Text(text.to_owned()),
        }
    }
}

/// The number of the turn in which these words are answered, if a turn of this number said them:
/// replies answer replies in at most `most` turns.
pub fn next_turn(turn: u32, most: u32, words: &TurnReply) -> Option<u32> {
    (*words != TurnReply::Silence && turn < most).then_some(turn + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_answer_replies_so_often_and_no_more() {
        let words = TurnReply::from_text("well");
        let mut turns = vec![1];
        while let Some(next) = next_turn(turns[turns.len() - 1], 5, &words) {
            turns.push(next);
        }
        assert_eq!(turns, [1, 2, 3, 4, 5]);
        for (turn, most, text, next) in [
            (1, 5, "", None),
            (1, 5, " \n", None),
            (1, 5, "REPLY_SKIP", None),
            (1, 5, " REPLY_SKIP\n", None),
            (1, 5, "reply_skip", Some(2)),
            (1, 5, "I say REPLY_SKIP", Some(2)),
            (1, 1, "well", None),
            (1, 0, "well", None),
            (9, 5, "well", None),
        ] {
            assert_eq!(
                next_turn(turn, most, &TurnReply::from_text(text)),
                next,
                "{turn} {most} {text:?}"
            );
        }
        assert_eq!(
            TurnReply::from_text(" a "),
            TurnReply::Text(" a ".to_owned()),
            "as it was said"
        );
    }

    #[test]
    fn what_a_state_is_to_the_one_who_sent() {
        for (state, is_over, status) in [
            (RunState::Queued, false, "accepted"),
            (RunState::Running, false, "accepted"),
            (RunState::Ok, true, "ok"),
            (RunState::NoReply, true, "no_reply"),
            (RunState::Timeout, true, "timeout"),
            (RunState::Error, true, "error"),
        ] {
            assert_eq!(state.is_over(), is_over);
            assert_eq!(serde_json::json!(SendStatus::from(state)), status);
            assert_eq!(serde_json::json!(state), state.as_str());
        }
    }
}
