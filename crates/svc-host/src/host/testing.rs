//! What the tests of this room share.

use std::collections::BTreeMap;

use svc_model::AgentId;
use svc_model::agent::{AgentBackend, AnswerKey, HostSpec, PermissionMode};

/// A program of `exec` in a folder that is there.
pub(super) fn spec(command: &[&str]) -> HostSpec {
    HostSpec {
        agent_id: AgentId::from("ag_test".to_owned()),
        folder: std::env::temp_dir(),
        project: "p".to_owned(),
        instance: "worker".to_owned(),
        session_key: "agent:worker:main".to_owned(),
        backend: AgentBackend::Exec,
        command: command.iter().map(|&part| part.to_owned()).collect(),
        cwd: std::env::temp_dir(),
        env: BTreeMap::new(),
        task: None,
        description: None,
        prompt: None,
        one_shot: false,
        permission: PermissionMode::Ask,
        turn_end: None,
        model: None,
        resume: None,
        system_prompt: None,
        mcp: None,
        answer_key: AnswerKey::default(),
        start_timeout_ms: 60_000,
        request_timeout_ms: 600_000,
        idle_timeout_ms: 0,
        linger_ms: 1_000,
    }
}
