//! What every kind of agent can be told.

use std::fmt::Debug;
use std::time::Instant;

use super::effect::Effects;

/// Input for an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::host) struct PromptInput<'a> {
    pub(in crate::host) text: &'a str,
    /// Its id.
    pub(in crate::host) message_id: &'a str,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::host) enum Decision {
    /// One of the options that it offered.
    Option {
        /// Its id.
        option_id: String,
        /// What is said to it.
        text: Option<String>,
    },
    /// Words in place of an option.
    Text(String),
    /// No, for this reason.
    Denied(String),
    /// The turn is ended.
    Cancelled,
}

/// A protocol that an agent speaks on its standard input and output.
pub(in crate::host) trait AgentProtocol: Debug + Send {
    /// What to add to the program and arguments of the settings.
    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    /// Variables that the agent needs.
    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The program runs.
    fn start(&mut self, effects: &mut Effects);

    /// Begins a turn. Only called when the agent is ready and no turn is under way.
    fn prompt(&mut self, input: &PromptInput<'_>, effects: &mut Effects);

    /// Adds to the turn that is under way; `false` if the agent cannot take it now.
    fn steer(&mut self, input: &PromptInput<'_>, effects: &mut Effects) -> bool;

    /// Takes a line of standard output, without its end.
    fn line(&mut self, line: &[u8], now: Instant, effects: &mut Effects);

    /// Ends the turn that is under way.
    fn interrupt(&mut self, effects: &mut Effects);

    /// Answers a request by its key.
    fn answer(&mut self, key: &str, decision: &Decision, effects: &mut Effects);

    /// Standard output has ended, and the program with this exit code if it was one.
    fn end(&mut self, exit_code: Option<i32>, effects: &mut Effects);

    /// When [`Self::tick`] wants to be called.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed.
    fn tick(&mut self, _effects: &mut Effects) {}
}
