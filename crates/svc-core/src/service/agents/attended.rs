//! Work for a session that a person started and that hooks made known. It gets the prompt as a
//! question in its inbox, and its answer is the result.

use std::sync::Arc;

use svc_model::{
    Caller, DeliveryState, Message, MessageType, NewMessage, Ownership, Peer, PeerId,
    PeerReference, PeerStatus, Principal, Reader, RunId, TaskChange, TaskId, TaskReport,
    TaskStatus, TokenId,
    conversation::{RunMode, RunState, SourceTool},
    hook::HookClient,
    limits,
};
use svc_store::{
    DispatchRow, DispatchState, MessageTerms, PeerRow, RunEnd, RunRow, TaskRow, WriteTx,
};

use super::{
    Agents,
    queue::give_to,
    records::set_reason,
    settle::{end_task, note_returned, retry},
};
use crate::service::{Error, core::Core, tasks, team};

/// What became of a question that is a task.
enum Progress {
    /// It is in the session's context.
    Given,
    /// The session has answered, or its turn ended without words.
    Answered(Option<String>),
    /// The turn of the question failed or was interrupted: the reason.
    Failed(String),
    /// The session did not take the message, or either is gone: why.
    Gone(&'static str),
    /// The session took the message. What came of it nobody knows.
    Unknown,
}

impl Agents {
    /// The attended session with this key, if the caller may see it.
    pub(super) async fn attended_of_key(
        &self,
        caller: &Caller,
        named: &str,
    ) -> Result<Option<PeerRow>, Error> {
        let Some(PeerReference::SessionKey(key)) = PeerReference::parse(named) else {
            return Ok(None);
        };
        let reader = Reader::from_caller(caller);
        let rows =
            self.core.store.peers().of_session_key(&key.session_id, limits::PAGE_DEFAULT).await?;
        let is_meant = |row: &PeerRow| {
            let is_there = row.peer.status != PeerStatus::Offline && row.peer.session_id.is_some();
            is_there && key.is_of(&row.clone().shown_to(&reader))
        };
        Ok(rows.into_iter().find(is_meant))
    }

    /// An attended session that may take a dispatch: of this backend, seen by who asks, of its
    /// project first.
    pub(super) async fn attended_for(
        &self,
        tx: &mut WriteTx,
        backend: &str,
        owned: &Ownership,
    ) -> Result<Option<PeerRow>, Error> {
        let Some(client) = HookClient::parse(backend) else { return Ok(None) };
        let mut rows = tx.peers().attended(client.as_str(), limits::PAGE_DEFAULT).await?;
        let is_near = |row: &PeerRow| row.project.is_some() && row.project == owned.project;
        rows.retain(|row| match &owned.owner {
            Some(Principal::Operator) => true,
            Some(Principal::Session(key)) => {
                // Nobody asks itself.
                row.owner.as_deref() != Some(&**key) && is_near(row)
            }
            None => false,
        });
        rows.sort_by_key(|row| !is_near(row));
        Ok(rows.into_iter().next())
    }

    /// Puts the prompt into the inbox of an attended session.
    pub(super) async fn ask_attended(
        &self,
        tx: &mut WriteTx,
        dispatch: &mut DispatchRow,
        task: &mut TaskRow,
        row: &PeerRow,
    ) -> Result<(), Error> {
        let (caller, from) = asker(tx, &self.core, task).await?;
        let run_id = RunId::new(&self.core.ids, tx.now());
        let source = caller.session().map_or_else(|| PeerId::OPERATOR.to_owned(), str::to_owned);
        let own = PeerId::parse(&from).unwrap_or_else(PeerId::operator);
        let input = NewMessage {
            text: task.task.prompt.clone().unwrap_or_default(),
            kind: Some(MessageType::Query),
            from_peer: None,
            correlation_id: None,
            idempotency_key: Some(format!("task-{}", dispatch.task_id)),
        };
        let outgoing = team::OutgoingMessage {
            core: self.core.clone(),
            caller,
            from,
            input: Arc::new(input),
            text_id: None,
            tool: SourceTool::SendMessage,
            run_id: Some(run_id.clone()),
        };
        let to = row.peer.peer_id.clone();
        let terms = MessageTerms::default();
        let message = team::deliver(tx, &outgoing, to.clone(), MessageType::Query, terms).await?;
        let session = row.owner.as_deref().or(row.peer.session_id.as_deref()).unwrap_or_default();
        let run = RunRow {
            run_id,
            message_id: message.id.clone(),
            mode: RunMode::Followup,
            source: RunEnd { session: source, peer: own, agent: None },
            target: RunEnd { session: session.to_owned(), peer: to.clone(), agent: None },
            state: RunState::Queued,
            reason: None,
            error: None,
            reply_id: None,
            waits_until: dispatch.wish.waits_until,
            answered: None,
            idempotency_key: None,
            created_at: tx.now(),
            begun_at: None,
            ended_at: None,
        };
        team::open_run(tx, &run).await?;
        dispatch.state = DispatchState::Sent;
        dispatch.wish.peer_id = Some(to);
        dispatch.wish.message_id = Some(message.id);
        tx.dispatches().update(dispatch).await?;
        give_to(tx, task, session).await?;
        set_reason(tx, task, Some(waits_in_inbox(&row.peer))).await
    }

    /// Ends the tasks whose questions were answered, or will not be.
    pub(super) async fn look_at_attended(&self) -> Result<(), Error> {
        for dispatch in self.core.store.dispatches().in_state(DispatchState::Sent).await? {
            let Some(id) = dispatch.wish.message_id.clone() else { continue };
            let Some(task) = self.core.store.tasks().get(&dispatch.task_id).await? else {
                continue;
            };
            let is_cancelled = task.task.cancel_requested_at.is_some();
            let message = self.core.store.messages().get(&id).await?;
            let progress = match &message {
                None => Some(Progress::Gone("its message is gone")),
                Some(message) => self.progress_of(message, &task).await?,
            };
            if progress.is_none() && !is_cancelled {
                continue;
            }
            let (agents, task_id) = (self.clone(), dispatch.task_id.clone());
            self.core
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        agents.advance_attended(tx, &task_id, message, progress).await
                    })
                })
                .await
                .or_else(|error| match error {
                    Error::Unavailable(_) | Error::StorageFull(_) | Error::Internal(_) => {
                        Err(error)
                    }
                    error => {
                        tracing::warn!(task = %dispatch.task_id, %error, "a task stays as it is");
                        Ok(())
                    }
                })?;
        }
        Ok(())
    }

    async fn progress_of(
        &self,
        message: &Message,
        task: &TaskRow,
    ) -> Result<Option<Progress>, Error> {
        let store = &self.core.store;
        let run = store.runs().of_message(&message.id).await?.filter(|run| run.ended_at.is_some());
        if let Some(RunRow { state: RunState::Error, error: Some(error), .. }) = &run {
            return Ok(Some(Progress::Failed(error.clone())));
        }
        if let Some(answer) = store.messages().answer_to(&message.id, &message.to_peer).await? {
            let text = (answer.kind == MessageType::Response).then_some(answer.text);
            return Ok(Some(Progress::Answered(text)));
        }
        if let Some(run) = run {
            // Nobody is left whom the answer would have reached.
            return Ok(Some(match run.state {
                RunState::Ok | RunState::NoReply => Progress::Answered(None),
                _ => Progress::Unknown,
            }));
        }
        let peer = store.peers().get(&message.to_peer).await?;
        let is_there = peer.is_some_and(|row| row.peer.status != PeerStatus::Offline);
        let is_given = matches!(message.state, DeliveryState::Injected | DeliveryState::Acked);
        Ok(match message.state {
            DeliveryState::Expired | DeliveryState::Refused | DeliveryState::Undeliverable => {
                Some(Progress::Gone("the session did not take the prompt"))
            }
            _ if !is_there && is_given => Some(Progress::Unknown),
            _ if !is_there => Some(Progress::Gone("the session ended before it took the prompt")),
            _ if is_given && task.task.status == TaskStatus::Pending => Some(Progress::Given),
            _ => None,
        })
    }

    async fn advance_attended(
        &self,
        tx: &mut WriteTx,
        id: &TaskId,
        message: Option<Message>,
        progress: Option<Progress>,
    ) -> Result<(), Error> {
        let known = tx.dispatches().get(id).await?.filter(|it| it.state == DispatchState::Sent);
        let (Some(mut dispatch), Some(mut task)) = (known, tx.tasks().get(id).await?) else {
            return Ok(());
        };
        let core = self.core.clone();
        match progress {
            Some(Progress::Answered(text)) => {
                let (done, none) = (TaskStatus::Done, TaskReport::default());
                end_task(tx, &core, &mut dispatch, &mut task, done, text, none).await?;
                if task.task.from.is_none() && task.owned.owner == Some(Principal::Operator) {
                    // No peer was named for the end, so the answer is read in the task.
                    note_returned(tx, &dispatch).await?;
                }
                Ok(())
            }
            _ if task.task.cancel_requested_at.is_some() => {
                take_back(tx, message).await?;
                let (cancelled, none) = (TaskStatus::Cancelled, TaskReport::default());
                end_task(tx, &core, &mut dispatch, &mut task, cancelled, None, none).await
            }
            Some(Progress::Given) => {
                let change = TaskChange::to(TaskStatus::Active, None);
                tasks::apply(tx, &mut task, &change, None).await?;
                Ok(())
            }
            Some(Progress::Failed(why)) => {
                let report = TaskReport { error: Some(why), ..TaskReport::default() };
                end_task(tx, &core, &mut dispatch, &mut task, TaskStatus::Failed, None, report)
                    .await
            }
            Some(Progress::Unknown) => {
                take_back(tx, message).await?;
                let why = Some("outcome unknown".to_owned());
                let report = TaskReport { error: why, ..TaskReport::default() };
                end_task(tx, &core, &mut dispatch, &mut task, TaskStatus::Failed, None, report)
                    .await
            }
            Some(Progress::Gone(why)) => {
                take_back(tx, message).await?;
                if !dispatch.failover.is_empty() {
                    let next = dispatch.failover.remove(0);
                    (dispatch.wish.peer_id, dispatch.wish.message_id) = (None, None);
                    return retry(tx, &mut dispatch, &task, next, why).await;
                }
                let report = TaskReport { error: Some(why.to_owned()), ..TaskReport::default() };
                end_task(tx, &core, &mut dispatch, &mut task, TaskStatus::Failed, None, report)
                    .await
            }
            None => Ok(()),
        }
    }
}

/// Why a prompt waits in the inbox of a session, and who has to do something before the session has
/// it.
fn waits_in_inbox(peer: &Peer) -> String {
    let (name, status) = (&peer.display_name, peer.status.as_str());
    let is_woken = HookClient::parse(&peer.backend) == Some(HookClient::ClaudeCode);
    let until = match peer.status {
        PeerStatus::Waiting => ": somebody has to answer at its terminal first",
        PeerStatus::Online | PeerStatus::Idle if !is_woken => {
            ": it reads the prompt when somebody types there"
        }
        _ => "",
    };
    format!("waits in the inbox of {name}, which is {status}{until}")
}

/// A message that nobody has been given yet reaches nobody.
async fn take_back(tx: &mut WriteTx, message: Option<Message>) -> Result<(), Error> {
    let waits = |message: &Message| message.state < DeliveryState::Offered;
    if let Some(mut message) = message.filter(waits) {
        let to: PeerId = message.to_peer.clone();
        let gone = DeliveryState::Undeliverable;
        let why = Some("its task is over");
        team::advance(tx, &to, std::slice::from_mut(&mut message), gone, why).await?;
    }
    Ok(())
}

/// Who asks, and the peer that it asks as: an answer comes back to that. A session that has none
/// gets one.
async fn asker(tx: &mut WriteTx, core: &Core, task: &TaskRow) -> Result<(Caller, String), Error> {
    // Without a peer it stands for the principal, whom no answer reaches.
    let named = task.task.from.clone().filter(|from| PeerId::parse(from).is_some());
    Ok(match &task.owned.owner {
        Some(Principal::Session(key)) => {
            let caller = Caller::Session {
                key: Arc::clone(key),
                token: TokenId::from("tok_of_agent".to_owned()),
                scopes: Arc::from([]),
                project: task.owned.project.as_deref().map(Arc::from),
                process: None,
                folder: None,
            };
            let from = if let Some(named) = named {
                named
            } else {
                let own = team::peer_of_speaker(tx, core, &caller, key).await?;
                own.peer_id.to_string()
            };
            (caller, from)
        }
        Some(Principal::Operator) => {
            (Caller::Operator, named.unwrap_or_else(|| PeerId::OPERATOR.to_owned()))
        }
        // Whoever cannot be read is nobody, and not the operator.
        None => return Err(Error::Forbidden("the owner of this task is unknown".to_owned())),
    })
}
