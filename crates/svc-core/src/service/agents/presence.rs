//! The status of a hosted agent's peer: what the host reports, or that the host does not answer.
//! Hooks, heartbeats and silence do not change it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use svc_client::hosts::HostClient;
use svc_model::{
    AgentId, PeerState, PeerStatus, StatusEvidence, Timestamp, WaitingFor, WaitingKind,
    agent::{AgentState, RequestKind},
};
use svc_store::{AgentRow, StoreError, WriteTx};
use svc_sys::telemetry::chain;
use tokio::time::sleep;

use crate::service::{Error, core::Core, team};

/// How often a host is probed. With the time that an answer may take, this is less than 10 s.
const HOST_CHECK: Duration = Duration::from_secs(4);

/// The status of an agent whose host reports `state`.
const fn status_of(state: AgentState) -> PeerStatus {
    match state {
        AgentState::Starting | AgentState::Running | AgentState::Stopping => PeerStatus::Busy,
        AgentState::RequiresAction | AgentState::Limited => PeerStatus::Waiting,
        AgentState::Idle => PeerStatus::Idle,
        AgentState::Unreachable => PeerStatus::Unreachable,
        AgentState::Done | AgentState::Error | AgentState::Lost => PeerStatus::Offline,
    }
}

/// Shows an agent's state in its peer. `until` is the end of a usage limit in unix milliseconds, if
/// the vendor names it.
pub(super) async fn show(
    tx: &mut WriteTx,
    row: &AgentRow,
    state: AgentState,
    until: Option<i64>,
) -> Result<(), StoreError> {
    let key = row.info.session_key.as_str();
    let own = tx.peers().of_key(key).await?;
    let Some(mut own) = own.filter(|own| own.owner.as_deref() == Some(key)) else { return Ok(()) };
    let at = tx.now();
    let status = status_of(state);
    let waiting_for = match state {
        AgentState::RequiresAction => {
            let asked = tx.requests().open_of_agent(&row.info.id).await?.into_iter().next();
            asked.map(|asked| WaitingFor {
                kind: match asked.kind {
                    RequestKind::Permission => WaitingKind::Permission,
                    RequestKind::Question => WaitingKind::Question,
                },
                since: asked.opened_at,
                title: Some(asked.title),
                tool: asked.tool.as_ref().and_then(|tool| tool["name"].as_str().map(str::to_owned)),
                until: None,
            })
        }
        AgentState::Limited => Some(WaitingFor {
            kind: WaitingKind::Limit,
            since: at,
            title: None,
            tool: None,
            until: until.map(Timestamp::from_millis),
        }),
        _ => None,
    };
    own.peer.last_seen = at;
    let state = PeerState { status, waiting_for, at, evidence: StatusEvidence::Host };
    team::set_hosted_state(tx, &mut own.peer, state, "host").await
}

/// Live agents whose host does not answer.
#[derive(Debug, Clone)]
pub(super) struct HostReach {
    core: Core,
    unreachable: Arc<Mutex<HashSet<AgentId>>>,
}

impl HostReach {
    pub(super) fn new(core: Core) -> Self {
        Self { core, unreachable: Arc::default() }
    }

    fn unreachable(&self) -> MutexGuard<'_, HashSet<AgentId>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes an agent's host again and again until the future is dropped.
    pub(super) async fn watch(&self, id: &AgentId, host: HostClient) {
        let mut probe = host.probe();
        let mut is_first = true;
        loop {
            sleep(HOST_CHECK).await;
            let is_reached = probe.ping().await.is_ok();
            if let Err(error) = self.note_reached(id, is_reached, is_first).await {
                let error = chain(&error);
                tracing::error!(agent = %id, error, "cannot note whether a host answers");
                continue;
            }
            is_first = false;
        }
    }

    /// Notes that a request to a host failed.
    pub(super) async fn note_failure(&self, id: &AgentId) {
        if let Err(error) = self.note_reached(id, false, false).await {
            let error = chain(&error);
            tracing::error!(agent = %id, error, "cannot note that a host does not answer");
        }
    }

    /// Whether the host of a live agent does not answer.
    pub(super) fn is_unreachable(&self, id: &AgentId) -> bool {
        self.unreachable().contains(id)
    }

    /// Stores whether a host answers, if that has changed. With `in_any_case` also without a
    /// change, as the rows may be from an earlier daemon.
    async fn note_reached(
        &self,
        id: &AgentId,
        is_reached: bool,
        in_any_case: bool,
    ) -> Result<(), Error> {
        if !is_reached {
            // A host that is about to start does not answer yet.
            let row = self.core.store.agents().get(id).await?;
            if row.is_none_or(|row| row.host.is_none() || row.ended_at.is_some()) {
                return Ok(());
            }
        }
        let is_news = {
            let mut unreachable = self.unreachable();
            if is_reached { unreachable.remove(id) } else { unreachable.insert(id.clone()) }
        };
        if !is_news && !in_any_case {
            return Ok(());
        }
        let id = id.clone();
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let found = tx.agents().get(&id).await?.filter(|row| row.ended_at.is_none());
                    let Some(row) = found else { return Ok(()) };
                    let state = if is_reached { row.info.state } else { AgentState::Unreachable };
                    show(tx, &row, state, None).await
                })
            })
            .await?;
        Ok(())
    }

    /// An agent that has ended is not unreachable.
    pub(super) fn forget(&self, id: &AgentId) {
        self.unreachable().remove(id);
    }
}
