//! Kinds of agents: each a state machine between lines of text and what they mean. No input or output here.

mod acp;
mod claude;
mod codex;
mod effect;
mod exec;
mod protocol;
#[cfg(test)]
mod recorded;
mod rpc;
mod wording;

use crate::domain::agent::{AgentBackend, HostSpec};

pub(super) use effect::{Effect, Effects, TurnResult, VendorRequest};
pub(super) use protocol::{AgentProtocol, Decision, PromptInput};

/// The protocol that an agent of this kind speaks.
pub(super) fn protocol_of(spec: &HostSpec) -> Box<dyn AgentProtocol> {
    match spec.backend {
        AgentBackend::Claude => Box::new(claude::ClaudeProtocol::new(spec)),
        AgentBackend::Exec => Box::new(exec::ExecProtocol::new(spec)),
        AgentBackend::Codex => Box::new(codex::CodexProtocol::new(spec)),
        AgentBackend::Gemini | AgentBackend::OpenCode | AgentBackend::Acp => {
            Box::new(acp::AcpProtocol::new(spec))
        }
    }
}
