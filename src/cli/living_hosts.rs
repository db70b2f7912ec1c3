//! The hosts of agents that live, found by their sockets: they go on while no daemon runs.

use std::fs;

use super::Context;
use crate::domain::AgentId;
use crate::domain::agent::AgentInfo;
use crate::hosts::HostClient;

/// Every host that answers, with what it says of its agent.
pub(super) async fn living_hosts(context: &Context) -> Vec<(HostClient, AgentInfo)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(&context.paths.agents).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        let id = path.file_stem().and_then(|stem| stem.to_str()).and_then(AgentId::parse);
        let Some(id) = id.filter(|_| is_socket) else { continue };
        let host = HostClient::new(id, path);
        // The socket of a host that was killed answers nobody.
        let Ok(status) = host.status().await else { continue };
        found.push((host, status.agent));
    }
    found
}
