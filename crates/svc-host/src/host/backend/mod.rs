//! Protocols of agents: each a state machine from lines of text to effects, without I/O.

mod acp;
mod claude;
mod codex;
mod exec;
mod protocol;
mod rpc;
#[cfg(test)]
mod tests;

use svc_model::agent::{AgentBackend, HostSpec};

pub(super) use protocol::{
    AgentProtocol, Decision, Effect, Effects, PromptInput, TurnResult, VendorRequest,
};

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
