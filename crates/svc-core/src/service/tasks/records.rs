//! Tasks: making, reading, writing and watching them, and the sweeps that end tasks which their
//! runners do not end. A task's output is its stream.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{
    AccessLevel, Caller, Frame, IdReference, LATEST, MachineProcess, NewEvent, NewFrame, NewTask,
    Ownership, PeerId, ProcessIdentity, Reader, ReplyKind, Seq, StreamVisibility, Task, TaskChange,
    TaskEvent, TaskEventBody, TaskFilter, TaskId, TaskReply, TaskReport, TaskStatus, Timestamp,
    limits,
};
use svc_store::{AppendedSeqs, AssignmentState, PeerRow, StoreError, TaskRow, WriteTx, job};

use super::{OwnedTask, Tasks, apply, stream_of};
use crate::boxed;
use crate::service::{
    Candidate, Error, Page, PageBounds, ResourceKind, Result,
    assignments::end_otherwise,
    check,
    core::Core,
    team::{log_impersonation, may_act_for},
};

#[derive(Debug)]
pub struct Created {
    pub task: Task,
    /// False if the caller made it before with the same key.
    pub is_new: bool,
}

/// Result of a cancellation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Cancelled {
    /// The task.
    pub task: Task,
    /// It is over; if not, its runner was asked to stop.
    pub at_once: bool,
}

impl Tasks {
    /// Makes a task, which is pending until a runner begins it.
    #[boxed]
    pub async fn create_task(&self, caller: &Caller, input: NewTask) -> Result<Created> {
        for (field, text) in [("title", &input.title), ("agent", &input.agent)] {
            check::short(field, text.as_deref())?;
        }
        check::key("idempotency_key", input.idempotency_key.as_deref())?;
        check::key("from", input.from.as_deref())?;
        check::levels("metadata", input.metadata.as_ref())?;
        let has_key = input.idempotency_key.is_some();
        let (caller, core) = (caller.clone(), self.core.clone());
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let requested = input.clone();
            let created = make(tx, &core, &caller, input).await?;
            if created.is_new || requested.is_for(&created.task) {
                return Ok(created);
            }
            Err(Error::Conflict(format!(
                "idempotency_key {:?} stands for another task, {}",
                requested.idempotency_key.unwrap_or_default(),
                created.task.task_id
            )))
        }));
        write.await.map_err(|error: Error| error.of_repeatable(has_key))
    }

    #[boxed]
    pub async fn task(&self, caller: &Caller, id: &str) -> Result<Arc<Task>> {
        let id = self.find_task(caller, id).await?;
        let known = self.owned_task(&id).await?;
        check_read(caller, &known.owned, &id)?;
        Ok(Arc::clone(&known.task))
    }

    /// The id of the task that a text names: its id, or a prefix of the id of one task that the
    /// caller may read.
    async fn find_task(&self, caller: &Caller, text: &str) -> Result<TaskId> {
        if text == LATEST {
            let page =
                self.tasks(caller, &TaskFilter::default(), PageBounds::new(None, Some(1))).await?;
            let latest = page.items.into_iter().next();
            return latest
                .map(|task| task.task_id)
                .ok_or_else(|| Error::not_found(ResourceKind::Task, text));
        }
        let Some(IdReference::Prefix(prefix)) = IdReference::parse(text, TaskId::PREFIX) else {
            return task_id(text);
        };
        let (reader, limit) = (Reader::from_caller(caller), limits::PAGE_DEFAULT);
        let rows = self.core.store.tasks().with_prefix(&reader, &prefix, limit).await?;
        let row = Error::only_one(ResourceKind::Task, text, rows, |row| candidate(&row.task))?;
        Ok(row.task.task_id)
    }

    async fn owned_task(&self, id: &TaskId) -> Result<Arc<OwnedTask>> {
        let read = async || {
            let row = self.core.store.tasks().get(id).await?.ok_or_else(|| unknown(id))?;
            Ok(OwnedTask { task: Arc::new(row.task), owned: row.owned })
        };
        self.read.get(&self.core.store, id, read).await
    }

    /// A page of the tasks that the caller may read, the latest first.
    pub async fn tasks(
        &self,
        caller: &Caller,
        filter: &TaskFilter,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<Task>> {
        let reader = Reader::from_caller(caller);
        let read = async |before: Option<(i64, String)>, limit| {
            let before = before.map(|(at, id)| (Timestamp::from_millis(at), id));
            self.core.store.tasks().list(&reader, filter, before.as_ref(), limit).await
        };
        let key =
            |TaskRow { task, .. }: &TaskRow| (task.created_at.as_millis(), task.task_id.clone());
        Ok(Page::read("tasks", page.into(), read, key).await?.map(|row| row.task))
    }

    /// Appends a producer's events to a task, and returns the first and the last seq.
    ///
    /// An event whose producer id the task has already is not appended again: it gets the seq it
    /// has, also after the end of the task.
    ///
    /// # Panics
    /// If `events` is empty: the adapter has checked.
    #[boxed]
    pub async fn append_task_events(
        &self,
        caller: &Caller,
        id: &str,
        events: Vec<TaskEvent>,
    ) -> Result<AppendedSeqs> {
        let id = self.find_task(caller, id).await?;
        check_events(&events)?;
        // The operator's runners append most events, and need no read of the task's row.
        if !caller.is_operator() {
            check_write(caller, &self.owned_task(&id).await?.owned, &id)?;
        }
        let frames_only =
            events.iter().all(|event| matches!(event.body, TaskEventBody::Frame { .. }));
        let have_ids = events.iter().all(|event| event.producer_id.is_some());
        if frames_only {
            // The common case needs no statement of its own: all appends of a commit share one.
            let now = self.core.now();
            let events =
                events.into_iter().map(|event| frame_event(&id, event, now)).collect::<Vec<_>>();
            return self
                .core
                .store
                .on_behalf_of(caller)
                .append(stream_of(&id), events)
                .await
                .map_err(|error| of_task(error, &id).of_repeatable(have_ids));
        }
        self.core
            .store
            .on_behalf_of(caller)
            .write(job!(|tx| append_all(tx, &id, events).await))
            .await
            .map_err(|error: Error| error.of_repeatable(have_ids))
    }

    /// Requests the end of a task. A task that no runner has begun ends at once.
    #[boxed]
    pub async fn cancel_task(&self, caller: &Caller, id: &str) -> Result<Cancelled> {
        let (id, caller) = (self.find_task(caller, id).await?, caller.clone());
        let core = self.core.clone();
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let mut row = tx.tasks().get(&id).await?.ok_or_else(|| unknown(&id))?;
            check_write(&caller, &row.owned, &id)?;
            if row.task.is_over() {
                return Err(ended(&row.task));
            }
            // The first event is our own; any further event means that somebody works on the
            // task.
            let work = tx.assignments().of_task(&id).await?;
            let at_once = match &work {
                // While the task waits in the queue nobody works on it, whatever events it had
                // before.
                Some(work) => work.state == AssignmentState::Queued,
                None => row.task.status == TaskStatus::Pending && row.task.last_id <= 1,
            };
            if at_once {
                let change = TaskChange::to(TaskStatus::Cancelled, None);
                end_otherwise(tx, &core, &mut row, &change).await?;
            } else if row.task.cancel_requested_at.is_none() {
                row.task.cancel_requested_at = Some(tx.now());
                let change = TaskChange::to(row.task.status, None);
                apply(tx, &mut row, &change, None).await?;
            }
            Ok(Cancelled { task: row.task, at_once })
        }));
        let cancelled = write.await;
        self.core.work.notify_one();
        cancelled.map_err(|error: Error| error.of_repeatable(true))
    }

    /// Appends a reply to a task's stream. It does not change the task, which must not have ended.
    ///
    /// `named` is whom the operator speaks for; a session speaks for its own peer, or for itself.
    #[boxed]
    pub async fn reply_to_task(
        &self,
        caller: &Caller,
        named: Option<String>,
        id: &str,
        kind: ReplyKind,
        body: String,
    ) -> Result<Seq> {
        check::not_blank("body", &body)?;
        check::long("body", &body, limits::REPLY_BYTES)?;
        let id = self.find_task(caller, id).await?;
        let caller = caller.clone();
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let row = tx.tasks().get(&id).await?.ok_or_else(|| unknown(&id))?;
            check_write(&caller, &row.owned, &id)?;
            if row.task.is_over() {
                return Err(ended(&row.task));
            }
            let from = asker(tx, &caller, named).await?;
            let from = from.as_deref().unwrap_or("operator");
            let reply = TaskReply { kind, body: &body, from, ts: tx.now() };
            let events = vec![NewEvent::new("reply", &reply)];
            Ok(tx.append(&stream_of(&id), events).await?.last)
        }));
        write.await
    }

    /// The last lines of a task's output, each with the seq of its event, in order; and whether the
    /// bound of bytes left lines out.
    #[boxed]
    pub async fn last_frames(&self, id: &TaskId, count: u32) -> Result<(Vec<(Seq, String)>, bool)> {
        if count == 0 {
            return Ok((Vec::new(), false));
        }
        Ok(self.core.store.tasks().last_frames(id, count, limits::TASK_FRAMES_BYTES).await?)
    }

    /// Watches tasks for their end. The caller must be allowed to read all of them.
    #[boxed]
    pub async fn watch_tasks(&self, caller: &Caller, ids: &[String]) -> Result<TaskWatch> {
        let mut watch = TaskWatch { ended: VecDeque::new(), pending: FuturesUnordered::new() };
        for id in ids {
            let id = self.find_task(caller, id).await?;
            // Listen first and read second, or an end in between is missed.
            let mut listener = self.core.store.bus().listen(&stream_of(&id));
            let row = self.core.store.tasks().get(&id).await?.ok_or_else(|| unknown(&id))?;
            check_read(caller, &row.owned, &id)?;
            if row.task.is_over() {
                watch.ended.push_back(row.task);
                continue;
            }
            let store = self.core.store.clone();
            watch.pending.push(Box::pin(async move {
                // The commit that ends a task closes its stream.
                listener.wait_closed().await;
                Ok(store.tasks().get(&id).await?.ok_or_else(|| unknown(&id))?.task)
            }));
        }
        Ok(watch)
    }

    /// Ends tasks that no runner began within `age`.
    #[boxed]
    pub async fn expire_tasks(&self, age: Duration) -> Result<()> {
        for row in self.core.store.tasks().old_pending(self.core.now().minus(age)).await? {
            let days = age.as_secs() / (24 * 60 * 60);
            let why = Some(format!("nobody began it within {days} days"));
            end_or_note(&self.core, row.task, TaskChange::to(TaskStatus::Expired, why)).await?;
        }
        Ok(())
    }

    /// Ends tasks whose runner's process is gone, or that have had no event for too long.
    #[boxed]
    pub async fn sweep_tasks(&self) -> Result<()> {
        let now = self.core.now();
        for row in self.core.store.tasks().silent(now.minus(self.core.tuning.runner_grace)).await? {
            let silence = now.since(row.task.updated_at);
            let end = match &row.process {
                Some(process) if !self.core.is_gone(process) => {
                    if row.task.reason.is_none() {
                        continue;
                    }
                    // The runner's machine was away, and is back.
                    TaskChange::to(TaskStatus::Active, None)
                }
                Some(MachineProcess { process: ProcessIdentity { pid, .. }, .. }) => {
                    TaskChange::to(
                        TaskStatus::Failed,
                        Some(format!("the process that ran it (pid {pid}) is gone")),
                    )
                }
                None if silence < limits::TASK_SILENCE => continue,
                None => TaskChange::to(
                    TaskStatus::Expired,
                    Some(format!("nothing was heard of it for {} h", silence.as_secs() / 3600)),
                ),
            };
            end_or_note(&self.core, row.task, end).await?;
        }
        Ok(())
    }
}

/// Ends a task and notifies its requester, or notes why it does not continue; does nothing if the
/// task got an event after it was read.
pub(in crate::service) async fn end_or_note(
    core: &Core,
    read: Task,
    change: TaskChange,
) -> Result<()> {
    let Task { task_id: id, last_id, .. } = read;
    let ending = core.clone();
    let write = core.store.write(job!(|tx| {
        let Some(mut row) = tx.tasks().get(&id).await? else {
            return Ok(());
        };
        if row.task.last_id != last_id || row.task.is_over() {
            return Ok(());
        }
        if change.status.is_terminal() {
            end_otherwise(tx, &ending, &mut row, &change).await?;
        } else {
            apply(tx, &mut row, &change, None).await?;
        }
        Ok::<(), Error>(())
    }));
    write.await
}

/// Tasks whose end is awaited. It listens until it is dropped.
#[derive(Debug)]
pub struct TaskWatch {
    ended: VecDeque<Task>,
    pending: FuturesUnordered<BoxFuture<'static, Result<Task>>>,
}

impl TaskWatch {
    /// Waits for the next task to end, each once; `None` after the last. Cancel safe.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Task>> {
        match self.ended.pop_front() {
            Some(task) => Ok(Some(task)),
            None => self.pending.next().await.transpose(),
        }
    }
}

/// Makes a task, or finds the one that the caller made with the same key. The texts are checked
/// already.
pub(in crate::service) async fn make(
    tx: &mut WriteTx,
    core: &Core,
    caller: &Caller,
    input: NewTask,
) -> Result<Created> {
    if let Some(key) = &input.idempotency_key
        && let Some(row) = tx.tasks().by_key(&caller.principal().to_string(), key).await?
    {
        return Ok(Created { task: row.task, is_new: false });
    }
    let from = asker(tx, caller, input.from).await?;
    let owned = ownership(tx, caller, input.agent.as_deref(), from.as_deref()).await?;
    core.budget.check_rows(tx, caller, 1).await?;
    let now = tx.now();
    let task = Task {
        task_id: TaskId::new(&core.ids, now),
        title: input.title,
        agent: input.agent,
        prompt: input.prompt,
        from,
        metadata: input.metadata,
        status: TaskStatus::Pending,
        report: TaskReport::default(),
        reason: None,
        result: None,
        result_truncated: false,
        cancel_requested_at: None,
        created_at: now,
        updated_at: now,
        closed_at: None,
        last_id: 1,
    };
    let stream = stream_of(&task.task_id);
    let id = tx.streams().open(&stream, &StreamVisibility::shared(&owned)).await?.id;
    tx.tasks().insert(&task, &owned, id, input.idempotency_key.as_deref()).await?;
    tx.append(&stream, vec![NewEvent::new("task", &task)]).await?;
    Ok(Created { task, is_new: true })
}

async fn append_all(tx: &mut WriteTx, id: &TaskId, events: Vec<TaskEvent>) -> Result<AppendedSeqs> {
    let mut row = tx.tasks().get(id).await?.ok_or_else(|| unknown(id))?;
    let stream = stream_of(id);
    let now = tx.now();
    let probes: Vec<NewEvent> = events
        .iter()
        .map(|event| NewEvent {
            producer_id: event.producer_id.as_deref().map(Into::into),
            ..NewEvent::new("task", &())
        })
        .collect();
    let known = tx.streams().known_producer_ids(&stream, &probes).await?;
    let mut places = AppendedSeqs { first: i64::MAX, last: 0 };
    let mut add = |seq: i64| {
        places = AppendedSeqs { first: places.first.min(seq), last: places.last.max(seq) };
    };
    for event in events {
        let repeated = event.producer_id.as_deref().and_then(|id| known.get(id));
        if let Some(seq) = repeated {
            add(*seq);
            continue;
        }
        if row.task.is_over() {
            return Err(ended(&row.task));
        }
        match &event.body {
            TaskEventBody::Frame { .. } => {
                let placed = tx.append(&stream, vec![frame_event(id, event, now)]).await?;
                add(placed.last);
            }
            TaskEventBody::Change(change) => {
                if change.status == TaskStatus::Pending && row.task.status != TaskStatus::Pending {
                    return Err(Error::Conflict(format!(
                        "task {id} is {} and cannot be pending again",
                        row.task.status.as_str()
                    )));
                }
                add(apply(tx, &mut row, change, event.producer_id.clone()).await?);
            }
        }
    }
    Ok(places)
}

fn check_events(events: &[TaskEvent]) -> Result<()> {
    for (index, event) in events.iter().enumerate() {
        let field = |name: &str| match events.len() {
            1 => name.to_owned(),
            _ => format!("[{index}].{name}"),
        };
        if let Some(id) = &event.producer_id
            && !(1..=limits::PRODUCER_ID_BYTES).contains(&id.len())
        {
            let most = limits::PRODUCER_ID_BYTES;
            return Err(Error::invalid(field("id"), format!("must have from 1 to {most} bytes")));
        }
    }
    Ok(())
}

fn frame_event(id: &TaskId, event: TaskEvent, now: Timestamp) -> NewEvent {
    let TaskEventBody::Frame(NewFrame { line, kind, ts }) = &event.body else {
        unreachable!("the caller has only frames")
    };
    let frame = Frame {
        task_id: id,
        line,
        kind: *kind,
        ts: ts.unwrap_or(now),
        truncated: false,
        partial: false,
    };
    let producer_id = event.producer_id.map(Into::into);
    NewEvent { producer_id, ..NewEvent::new(FRAME.clone(), &frame) }
}

static FRAME: std::sync::LazyLock<svc_model::EventKind> =
    std::sync::LazyLock::new(|| "frame".into());

/// The requester of a task: the caller's own peer, or the peer that the operator names.
async fn asker(tx: &mut WriteTx, caller: &Caller, named: Option<String>) -> Result<Option<String>> {
    let Some(session) = caller.session() else {
        return Ok(named);
    };
    let own = tx.peers().of_key(session).await?;
    let own = own.map(|row| row.peer.peer_id.as_str().to_owned());
    let own = own.unwrap_or_else(|| caller.principal().to_string());
    if let Some(id) = named.as_deref().and_then(PeerId::parse)
        && let Some(row) = tx.peers().get(&id).await?
        && may_act_for(caller, &row).is_ok()
    {
        return Ok(named);
    }
    match named {
        Some(named) if named != own => {
            log_impersonation(caller, "from", &named);
            Err(Error::Forbidden(format!("from: this token asks only as {own}")))
        }
        _ => Ok(Some(own)),
    }
}

/// A task for a session's peer is run by that session; one that the operator requests for a peer,
/// or gives to one, belongs to the project of that peer.
async fn ownership(
    tx: &mut WriteTx,
    caller: &Caller,
    agent: Option<&str>,
    from: Option<&str>,
) -> Result<Ownership> {
    let mut peers = [None, None];
    for (named, peer) in [from, agent].into_iter().zip(&mut peers) {
        if let Some(id) = named.and_then(PeerId::parse) {
            *peer = tx.peers().get(&id).await?;
        }
    }
    let [asks, runs] = peers;
    let runner = runs.as_ref().map(PeerRow::principal);
    let project = if caller.is_operator() {
        [asks, runs].into_iter().flatten().find_map(|row| row.project)
    } else {
        caller.project().map(str::to_owned)
    };
    Ok(Ownership { owner: Some(caller.principal()), runner, project })
}

fn check_read(caller: &Caller, owned: &Ownership, id: &TaskId) -> Result<()> {
    match caller.access_to(owned) {
        AccessLevel::Hidden => Err(unknown(id)),
        AccessLevel::Read | AccessLevel::Write => Ok(()),
    }
}

fn check_write(caller: &Caller, owned: &Ownership, id: &TaskId) -> Result<()> {
    match caller.access_to(owned) {
        AccessLevel::Hidden => Err(unknown(id)),
        AccessLevel::Read => Err(Error::Forbidden(format!(
            "task {id} is another's: its maker or its runner may do this"
        ))),
        AccessLevel::Write => Ok(()),
    }
}

/// What distinguishes a task from others with the same prefix of an id.
fn candidate(task: &Task) -> Candidate {
    let title = task.title.as_deref().unwrap_or("without a title");
    let about = format!("{}, {title}, since {}", task.status.as_str(), task.created_at);
    Candidate { id: task.task_id.as_str().to_owned(), about }
}

fn task_id(text: &str) -> Result<TaskId> {
    TaskId::parse(text).ok_or_else(|| Error::not_found(ResourceKind::Task, text))
}

fn unknown(id: &TaskId) -> Error {
    Error::not_found(ResourceKind::Task, id.as_str())
}

fn ended(task: &Task) -> Error {
    Error::Conflict(format!("task {} is over: {}", task.task_id, task.status.as_str()))
}

fn of_task(error: StoreError, id: &TaskId) -> Error {
    match error {
        StoreError::NoStream => unknown(id),
        StoreError::StreamClosed => Error::Conflict(format!("task {id} is over")),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::RunId;
    use svc_store::AssignmentRow;

    use super::*;
    use crate::service::{
        team,
        testing::{opened, session},
    };

    #[tokio::test]
    async fn whoever_gave_work_hears_that_it_expired() {
        const AGE: Duration = Duration::from_hours(720);
        let (test, services) = opened().await;
        let core = services.tasks.core.clone();
        let made = test.store.write(job!(|tx| {
            let caller = session("s-1", &[]);
            let peer = team::peer_of_speaker(tx, &core, &caller, "s-1").await?.peer_id;
            let new = NewTask { prompt: Some("go".to_owned()), ..NewTask::default() };
            let task = make(tx, &core, &caller, new).await?.task.task_id;
            let row = AssignmentRow {
                task_id: Some(task.clone()),
                instance: "slow".to_owned(),
                ..AssignmentRow::new(RunId::from_task(&task), "s-1".to_owned(), tx.now())
            };
            tx.assignments().insert(&row).await?;
            Ok::<_, Error>((peer, task))
        }));
        let (peer, task) = made.await.unwrap();
        test.clock.advance(AGE);
        services.tasks.expire_tasks(AGE).await.unwrap();
        let (caller, page) = (session("s-1", &[]), PageBounds::new(None, None));
        let inbox = services.team.take_messages(&caller, peer.as_str(), page).await.unwrap();
        let texts: Vec<&str> = inbox.items.iter().map(|message| &*message.text).collect();
        let expected =
            format!("Task {task} for slow has expired.\nError: nobody began it within 30 days");
        assert_eq!(texts, [expected]);
    }

    #[tokio::test]
    async fn a_task_expires_if_no_runner_begins_it_and_not_while_it_runs() {
        const AGE: Duration = Duration::from_hours(720);
        let (test, services) = opened().await;
        let tasks = &services.tasks;
        let make = async |title: &str| {
            let input = serde_json::from_value(json!({ "title": title })).unwrap();
            tasks.create_task(&Caller::Operator, input).await.unwrap().task.task_id
        };
        let (old, begun) = (make("old").await, make("begun").await);
        test.clock.advance(AGE);
        let young = make("young").await;
        let body = TaskEventBody::Change(TaskChange::to(TaskStatus::Active, None));
        let active = TaskEvent { producer_id: None, body };
        tasks.append_task_events(&Caller::Operator, begun.as_str(), vec![active]).await.unwrap();
        tasks.expire_tasks(AGE).await.unwrap();
        let task = async |id: &TaskId| tasks.task(&Caller::Operator, id.as_str()).await.unwrap();
        assert_eq!(task(&old).await.status, TaskStatus::Expired);
        let why = task(&old).await.report.error.clone();
        assert_eq!(why.as_deref(), Some("nobody began it within 30 days"));
        assert_eq!(task(&begun).await.status, TaskStatus::Active);
        assert_eq!(task(&young).await.status, TaskStatus::Pending);
    }
}
