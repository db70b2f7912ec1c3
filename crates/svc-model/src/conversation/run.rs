//! A send: its turn, its reply, and the result that the sender gets.

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
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

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

/// The final text of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnReply {
    Text(String),
    /// No text, or [`Self::SKIP`].
    Silence,
}

impl TurnReply {
    /// A final text that counts as no reply.
    pub const SKIP: &'static str = "REPLY_SKIP";

    /// Parses the final text of a turn.
    pub fn from_text(text: &str) -> Self {
        match text.trim() {
            "" | Self::SKIP => Self::Silence,
            _ => Self::Text(text.to_owned()),
        }
    }
}

/// The number of the turn that answers this reply, if turn `turn` gave it; `None` if there is no
/// further turn: replies are answered in at most `most` turns.
pub fn next_turn(turn: u32, most: u32, words: &TurnReply) -> Option<u32> {
    (*words != TurnReply::Silence && turn < most).then_some(turn + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_to_replies_are_bounded() {
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
    fn each_run_state_has_its_status_for_the_sender() {
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
