//! The hosts of agents that live, found by their sockets: they go on while no daemon runs.

use std::fs;

use svc_client::hosts::{HostClient, HostError};
use svc_model::AgentId;
use svc_wire::host_protocol::HostStatus;
use tokio::task::JoinSet;

use super::Context;

/// A host whose socket is there.
pub(super) struct FoundHost {
    /// Its agent, as the socket's name has it.
    pub(super) id: AgentId,
    pub(super) client: HostClient,
    /// What it says, or why it is unreachable.
    pub(super) said: Result<HostStatus, HostError>,
}

/// Every host that somebody listens for, by the ids of their agents. All are asked at once, so one
/// that does not answer holds up no other.
pub(super) async fn living_hosts(context: &Context) -> Vec<FoundHost> {
    let mut asked = JoinSet::new();
    for entry in fs::read_dir(&context.paths.agents).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        let id = path.file_stem().and_then(|stem| stem.to_str()).and_then(AgentId::parse);
        let Some(id) = id.filter(|_| is_socket) else { continue };
        let client = HostClient::new(id.clone(), path);
        asked.spawn(async move {
            let said = client.status().await;
            FoundHost { id, client, said }
        });
    }
    let mut found = asked.join_all().await;
    // The socket of a host that was killed is nobody's.
    found.retain(|host| !matches!(host.said, Err(HostError::Absent)));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found
}
