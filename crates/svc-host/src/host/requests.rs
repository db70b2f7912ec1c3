//! What an agent has asked and nobody has answered yet.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use svc_model::AgentRequestId;
use svc_model::agent::{RequestKind, RequestOptionKind};
use svc_wire::host_protocol::AnswerAgent;

use super::backend::{Decision, VendorRequest};

/// The open requests of one agent, and which were answered.
#[derive(Debug, Default)]
pub(super) struct AgentRequests {
    open: HashMap<AgentRequestId, UnansweredRequest>,
    answered: HashSet<AgentRequestId>,
}

#[derive(Debug)]
struct UnansweredRequest {
    request: VendorRequest,
    deadline: Instant,
}

impl AgentRequests {
    /// Keeps a request until it is closed.
    pub(super) fn open(&mut self, id: AgentRequestId, request: VendorRequest, deadline: Instant) {
        self.open.insert(id, UnansweredRequest { request, deadline });
    }

    /// Takes a request as answered. The vendor's key of it; `None` if it is not open.
    pub(super) fn close(&mut self, id: &AgentRequestId) -> Option<String> {
        let closed = self.open.remove(id)?;
        self.answered.insert(id.clone());
        Some(closed.request.key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn is_answered(&self, id: &AgentRequestId) -> bool {
        self.answered.contains(id)
    }

    pub(super) fn ids(&self) -> Vec<AgentRequestId> {
        self.open.keys().cloned().collect()
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.open.values().map(|open| open.deadline).min()
    }

    /// Those whose deadline has come.
    pub(super) fn overdue(&self, now: Instant) -> Vec<AgentRequestId> {
        let due = self.open.iter().filter(|(_, open)| open.deadline <= now);
        due.map(|(id, _)| id.clone()).collect()
    }

    /// The open request that the vendor knows by this key.
    pub(super) fn of_key(&self, key: &str) -> Option<AgentRequestId> {
        let found = self.open.iter().find(|(_, open)| open.request.key == key);
        found.map(|(id, _)| id.clone())
    }

    /// The first option of this kind that an open request has.
    pub(super) fn option(&self, id: &AgentRequestId, kind: RequestOptionKind) -> Option<String> {
        let mut options = self.open.get(id)?.request.options.iter();
        options.find(|option| option.kind == kind).map(|option| option.option_id.clone())
    }

    /// What an answer decides; `None` if the request is not open.
    ///
    /// # Errors
    /// What is wrong with the answer, for who gave it.
    pub(super) fn decision(&self, answer: &AnswerAgent) -> Option<Result<Decision, String>> {
        let request = &self.open.get(&answer.request_id)?.request;
        Some(match (&answer.option_id, &answer.text) {
            (Some(chosen), text) => {
                if request.options.iter().any(|option| option.option_id == *chosen) {
                    Ok(Decision::Option { option_id: chosen.clone(), text: text.clone() })
                } else {
                    let ids = request.options.iter().map(|option| option.option_id.as_str());
                    let ids: Vec<_> = ids.collect();
                    Err(format!("no such option: choose one of {}", ids.join(", ")))
                }
            }
            (None, Some(text)) if request.kind == RequestKind::Question => {
                Ok(Decision::Text(text.clone()))
            }
            (None, _) => Err("option_id is missing".to_owned()),
        })
    }
}
