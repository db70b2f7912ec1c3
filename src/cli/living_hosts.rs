//! Finds the hosts of agents by their sockets: hosts go on while no daemon runs.

use std::fs;

use svc_client::hosts::{HostClient, HostError};
use svc_model::AgentId;
use svc_wire::host_protocol::HostStatus;
use tokio::task::JoinSet;

use super::Context;

/// A host whose socket exists.
pub(super) struct FoundHost {
    /// The agent's id, from the name of the socket.
    pub(super) id: AgentId,
    pub(super) client: HostClient,
    /// The host's status, or why the host is unreachable.
    pub(super) said: Result<HostStatus, HostError>,
}

/// All hosts with a listening socket, in the order of their agents' ids. They are asked
/// concurrently, so that one which does not respond delays no other.
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
    // A host that was killed leaves its socket.
    found.retain(|host| !matches!(host.said, Err(HostError::Absent)));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found
}
