//! An agent's queued inputs, its current turn, and its open requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use sha2::{Digest as _, Sha256};
use svc_model::agent::{
    AgentEventBody, AgentRequest, HistoryEntry, HistoryRole, HostSpec, PermissionMode, RequestKind,
    RequestOptionKind, TurnEnd, TurnOutcome,
};
use svc_model::{AgentRequestId, json_is_deeper, limits};
use svc_wire::host_protocol::{AnswerAgent, SendAnswer};

use super::backend::{Decision, TurnResult, VendorRequest};
use super::record::AgentRecord;

/// Inputs that may wait for a turn; a further one is refused.
const MAX_QUEUE: usize = 1000;

#[derive(Debug)]
pub(super) struct QueuedInput {
    pub(super) input: String,
    pub(super) message_id: String,
    pub(super) from: Option<String>,
}

impl QueuedInput {
    pub(super) fn record(&self, record: &mut AgentRecord) -> u64 {
        let offset = record.append(&AgentEventBody::Input {
            data: self.input.clone(),
            from: self.from.clone(),
            message_id: self.message_id.clone(),
        });
        record.entry(HistoryEntry::text(HistoryRole::User, self.input.clone()));
        offset
    }
}

/// The queued inputs, and the idempotency keys of all inputs so far.
#[derive(Debug, Default)]
pub(super) struct AgentInputs {
    pub(super) queue: VecDeque<QueuedInput>,
    /// Hash of the input under each idempotency key, and the response to it.
    sent: HashMap<String, ([u8; 32], SendAnswer)>,
}

impl AgentInputs {
    /// The response to an earlier input with this key, or a conflict if that input was another.
    pub(super) fn repeated(&self, key: &str, input: &str) -> Option<Result<SendAnswer, String>> {
        let (hash, answer) = self.sent.get(key)?;
        Some(if *hash == hash_of(input) {
            Ok(answer.clone())
        } else {
            Err("conflict: this idempotency key was used for another input".to_owned())
        })
    }

    pub(super) fn remember(&mut self, key: String, input: &str, answer: &SendAnswer) {
        self.sent.insert(key, (hash_of(input), answer.clone()));
    }

    pub(super) fn push(&mut self, input: QueuedInput) -> Result<(), String> {
        if self.queue.len() == MAX_QUEUE {
            return Err(format!("{MAX_QUEUE} inputs wait already"));
        }
        self.queue.push_back(input);
        Ok(())
    }

    /// Removes a message's input from the queue; `false` if it is not queued.
    pub(super) fn remove(&mut self, message_id: &str) -> bool {
        let before = self.queue.len();
        self.queue.retain(|queued| queued.message_id != message_id);
        self.queue.len() < before
    }
}

fn hash_of(input: &str) -> [u8; 32] {
    Sha256::digest(input).into()
}

#[derive(Debug)]
pub(super) struct Turn {
    pub(super) message_id: Option<String>,
    pub(super) last_text: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) interrupted: bool,
}

impl Turn {
    pub(super) const fn new(message_id: Option<String>) -> Self {
        Self { message_id, last_text: None, last_error: None, interrupted: false }
    }

    /// The end of the turn: the vendor's report, completed by what the host observed.
    pub(super) fn finish(self, result: TurnResult) -> TurnEnd {
        let TurnResult { mut outcome, result, error } = result;
        if self.interrupted && outcome != TurnOutcome::Refused {
            outcome = TurnOutcome::Interrupted;
        }
        let error = error
            .or_else(|| (outcome != TurnOutcome::Completed).then_some(self.last_error).flatten());
        TurnEnd { message_id: self.message_id, outcome, result: result.or(self.last_text), error }
    }
}

#[derive(Debug, Default)]
pub(super) struct AgentRequests {
    pub(super) open: HashMap<AgentRequestId, UnansweredRequest>,
    pub(super) answered: HashSet<AgentRequestId>,
}

#[derive(Debug)]
pub(super) struct UnansweredRequest {
    request: VendorRequest,
    deadline: Instant,
}

impl AgentRequests {
    pub(super) fn open(
        &mut self,
        record: &AgentRecord,
        id: AgentRequestId,
        request: VendorRequest,
        deadline: Instant,
    ) {
        record.append(&AgentEventBody::Request(AgentRequest {
            request_id: id.clone(),
            kind: request.kind,
            title: request.title.clone(),
            options: request.options.clone(),
            // A call that is deeper could be read in no list.
            tool: request.tool.clone().filter(|it| !json_is_deeper(it, limits::JSON_LEVELS)),
        }));
        self.open.insert(id, UnansweredRequest { request, deadline });
    }

    /// Records the answer to a request. Returns the vendor's key and the offset of the answer's
    /// event; `None` if the request is not open.
    pub(super) fn close(
        &mut self,
        record: &AgentRecord,
        id: &AgentRequestId,
        option_id: Option<String>,
        by: &str,
    ) -> Option<(String, u64)> {
        let closed = self.open.remove(id)?;
        self.answered.insert(id.clone());
        let (request_id, by) = (id.clone(), by.to_owned());
        let offset = record.append(&AgentEventBody::Answer { request_id, option_id, by });
        Some((closed.request.key, offset))
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.open.values().map(|open| open.deadline).min()
    }

    pub(super) fn overdue(&self, now: Instant) -> Vec<AgentRequestId> {
        let due = self.open.iter().filter(|(_, open)| open.deadline <= now);
        due.map(|(id, _)| id.clone()).collect()
    }

    /// The open request with this vendor key.
    pub(super) fn with_key(&self, key: &str) -> Option<AgentRequestId> {
        let found = self.open.iter().find(|(_, open)| open.request.key == key);
        found.map(|(id, _)| id.clone())
    }

    /// The first option of this kind that an open request offers.
    pub(super) fn option(&self, id: &AgentRequestId, kind: RequestOptionKind) -> Option<String> {
        let mut options = self.open.get(id)?.request.options.iter();
        options.find(|option| option.kind == kind).map(|option| option.option_id.clone())
    }

    /// The decision that an answer stands for, or why the answer is invalid; `None` if the request
    /// is not open.
    pub(super) fn decision(&self, answer: &AnswerAgent) -> Option<Result<Decision, String>> {
        let request = &self.open.get(&answer.request_id)?.request;
        Some(match (&answer.option_id, &answer.text) {
            (Some(chosen), text) => {
                if request.options.iter().any(|option| option.option_id == *chosen) {
                    Ok(Decision::Option { option_id: chosen.clone(), text: text.clone() })
                } else {
                    let ids: Vec<_> =
                        request.options.iter().map(|option| option.option_id.as_str()).collect();
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

/// The settings' decision on a request: `true` allows it, `false` denies it, `None` asks a person.
pub(super) fn settled_by_policy(spec: &HostSpec, request: &VendorRequest) -> Option<bool> {
    let edits_inside = request.edits.as_ref().is_some_and(|files| {
        !files.is_empty() && files.iter().all(|file| is_inside(&spec.cwd, file))
    });
    match spec.permission {
        _ if request.kind != RequestKind::Permission => None,
        PermissionMode::Deny => Some(false),
        PermissionMode::Bypass => Some(true),
        PermissionMode::AcceptEdits if edits_inside => Some(true),
        PermissionMode::AcceptEdits | PermissionMode::Ask => None,
    }
}

/// Whether a file, which need not exist, is inside a folder after all links are resolved.
fn is_inside(folder: &Path, file: &Path) -> bool {
    let joined = folder.join(file);
    let has_way_up = joined.components().any(|part| part == Component::ParentDir);
    let Ok(folder) = folder.canonicalize() else { return false };
    !has_way_up && existing(&joined).is_some_and(|known| known.starts_with(&folder))
}

/// The real path of the longest existing part of a path; `None` if that is a dangling link.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|part| part.symlink_metadata().is_ok())?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_or_parent_component_leads_outside() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("inside");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/etc", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("/no/such/file", folder.join("dangling")).unwrap();
        for (file, inside) in [
            ("a.txt", true),
            ("new/folder/a.txt", true),
            ("../a.txt", false),
            ("new/../../a.txt", false),
            ("link/passwd", false),
            ("dangling", false),
            ("/etc/passwd", false),
        ] {
            assert_eq!(is_inside(&folder, Path::new(file)), inside, "{file}");
        }
        assert!(is_inside(&folder, &folder.join("a")));
        assert!(!is_inside(&folder, &outer.path().join("inside-not")));
    }
}
