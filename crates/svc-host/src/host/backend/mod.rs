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

use svc_model::agent::{AgentBackend, HostSpec};

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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use serde_json::{Value, json};
    use svc_model::AgentId;
    use svc_model::agent::AgentMcpServer;

    use super::*;

    /// What a protocol says up to where its agent knows of our server: arguments, and the lines that it writes.
    fn said_to_begin(backend: AgentBackend) -> String {
        let agent = AgentId::from("ag_7".to_owned());
        let server = AgentMcpServer::of_agent(Path::new("/bin/svc"), Path::new("/data"), &agent);
        let spec = HostSpec { backend, mcp: Some(server), ..super::super::testing::spec(&["x"]) };
        let mut protocol = protocol_of(&spec);
        let mut effects = Effects::new();
        protocol.start(&mut effects);
        let hello = json!({ "id": 1, "jsonrpc": "2.0", "result": { "protocolVersion": 1 } });
        protocol.line(hello.to_string().as_bytes(), Instant::now(), &mut effects);
        let written = effects.into_iter().filter_map(|effect| match effect {
            Effect::Write(bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        });
        let arguments: Vec<String> = protocol.arguments();
        arguments.into_iter().chain(written).collect::<Vec<_>>().join("\n")
    }

    fn first_of(value: &Value, name: &str) -> Option<Value> {
        match value {
            Value::Object(members) => members
                .get(name)
                .cloned()
                .or_else(|| members.values().find_map(|member| first_of(member, name))),
            Value::Array(items) => items.iter().find_map(|item| first_of(item, name)),
            _ => None,
        }
    }

    #[test]
    fn its_own_server_is_a_program_without_a_secret() {
        for backend in AgentBackend::ALL {
            let said = said_to_begin(backend);
            if backend == AgentBackend::Exec {
                assert!(!said.contains("stdio"), "{said}");
                continue;
            }
            let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut servers = lines.filter_map(|line| {
                first_of(&line, "svc").or_else(|| first_of(&line, "mcpServers"))
            });
            let server = servers.next().unwrap_or_else(|| panic!("{backend}: {said}"));
            let server = if server.is_array() { server[0].clone() } else { server };
            assert_eq!(server["command"], "/bin/svc", "{backend}: {said}");
            assert_eq!(server["args"], json!(["stdio"]), "{backend}: {said}");
            let env = match &server["env"] {
                Value::Array(list) => list.iter().map(|it| it["name"].clone()).collect::<Vec<_>>(),
                env => env.as_object().expect("one").keys().map(|name| json!(name)).collect(),
            };
            assert_eq!(env, [json!("SVC_AGENT_ID"), json!("SVC_HOME")], "{backend}: {said}");
            assert!(!said.contains("ToolCall"), "{backend}: {said}");
            assert!(!said.contains("\"mcp__svc\""), "{backend} allows every tool: {said}");
            // The names of tools look like session tokens, which begin with `svc_`.
            let said = said.replace("mcp__svc__", "");
            for word in ["Bearer", "Authorization", "svc_", "http:"] {
                assert!(!said.contains(word), "{backend}: {word}: {said}");
            }
        }
    }
}
