//! How work ends that an agent had: the terminal event of its task, the word to whoever asked, and
//! the next attempt where nothing was said yet. All of this is part of a write job.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::json;
use svc_model::{
    Caller, DeliveryState, MessageType, NewEvent, NewMessage, PeerId, Principal, Task, TaskChange,
    TaskReport, TaskStatus, TokenId,
    agent::{AgentBackend, AgentState, TurnEnd, TurnOutcome},
    conversation::SourceTool,
    limits,
};
use svc_store::{
    AgentRow, DispatchRow, DispatchState, MessageTerms, RequestRow, StoreError, TaskRow, WriteTx,
};

use crate::service::{Error, core::Core, tasks, team};

/// Attempts with agents that were lost before they had the prompt.
const LOST_ATTEMPTS: u32 = 5;

/// How a task ends.
struct DispatchOutcome {
    status: TaskStatus,
    result: Option<String>,
    report: TaskReport,
    /// Another instance may try: nothing was said, and the prompt is known to have come to nothing.
    may_retry: bool,
}

/// Settles a dispatch whose turn ended. An `exec` agent that was started for it settles it at its
/// exit, which has the code and the signal.
pub(super) async fn settle_turn(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    dispatch: &mut DispatchRow,
    turn: &TurnEnd,
) -> Result<(), Error> {
    let Some(task) = tx.tasks().get(&dispatch.task_id).await? else { return Ok(()) };
    let is_cancelled = task.task.cancel_requested_at.is_some();
    let waits_for_exit = row.info.backend == AgentBackend::Exec
        || is_cancelled
        || turn.outcome == TurnOutcome::Ended;
    if dispatch.is_spawned && waits_for_exit {
        dispatch.turn = Some(turn.clone());
        tx.dispatches().update(dispatch).await?;
        return Ok(());
    }
    let outcome = of_turn(turn, dispatch, is_cancelled);
    settle(tx, core, row, dispatch, task, outcome).await
}

/// The agent ended, and its work with it.
pub(super) async fn settle_exit(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    dispatch: &mut DispatchRow,
) -> Result<(), Error> {
    let Some(task) = tx.tasks().get(&dispatch.task_id).await? else { return Ok(()) };
    let is_cancelled = task.task.cancel_requested_at.is_some();
    let outcome = match dispatch.turn.take() {
        Some(turn) => {
            let mut outcome = of_turn(&turn, dispatch, is_cancelled);
            if turn.outcome == TurnOutcome::Ended {
                outcome = DispatchOutcome { result: turn.result.clone(), ..of_exit(row, dispatch) };
            }
            if outcome.status != TaskStatus::Cancelled && row.info.exit_code.is_some() {
                outcome.report.exit_code = row.info.exit_code;
            }
            // A program whose turn was over was stopped: how does not matter then.
            if outcome.status == TaskStatus::Failed {
                outcome.report.signal = row.info.signal.map(signal_name);
            }
            outcome
        }
        None => of_exit(row, dispatch),
    };
    let outcome = if is_cancelled {
        DispatchOutcome { status: TaskStatus::Cancelled, may_retry: false, ..outcome }
    } else {
        outcome
    };
    settle(tx, core, row, dispatch, task, outcome).await
}

fn of_turn(turn: &TurnEnd, dispatch: &DispatchRow, is_cancelled: bool) -> DispatchOutcome {
    let failed = |error: &str, may_retry: bool| DispatchOutcome {
        status: TaskStatus::Failed,
        result: turn.result.clone(),
        report: TaskReport {
            error: Some(turn.error.clone().unwrap_or_else(|| error.to_owned())),
            ..TaskReport::default()
        },
        may_retry: may_retry && !dispatch.has_words,
    };
    match turn.outcome {
        TurnOutcome::Completed => DispatchOutcome {
            status: TaskStatus::Done,
            result: turn.result.clone(),
            report: TaskReport::default(),
            may_retry: false,
        },
        TurnOutcome::Interrupted if is_cancelled => DispatchOutcome {
            status: TaskStatus::Cancelled,
            result: turn.result.clone(),
            report: TaskReport::default(),
            may_retry: false,
        },
        TurnOutcome::Interrupted => failed("the turn was interrupted", false),
        TurnOutcome::Refused => failed("the vendor refused", true),
        TurnOutcome::Failed => failed("the turn failed", true),
        TurnOutcome::Ended => failed("the program ended in the turn", false),
    }
}

/// An agent that ended without the end of the turn.
fn of_exit(row: &AgentRow, dispatch: &DispatchRow) -> DispatchOutcome {
    let info = &row.info;
    let failed = |error: String, may_retry: bool| DispatchOutcome {
        status: TaskStatus::Failed,
        result: None,
        report: TaskReport {
            exit_code: info.exit_code,
            signal: info.signal.map(signal_name),
            error: Some(error),
        },
        may_retry,
    };
    let reason = || info.error.clone();
    if dispatch.taken_at.is_none() {
        // The host has every prompt on record before the agent has it.
        let error =
            reason().unwrap_or_else(|| "the agent ended before it took the prompt".to_owned());
        return failed(error, true);
    }
    if info.state == AgentState::Lost {
        return failed("outcome unknown".to_owned(), false);
    }
    // Of a program that is no agent the end is the answer. An agent that was ended, or left, before
    // it answered has none, whatever its exit code.
    let is_answer = info.backend == AgentBackend::Exec && info.state == AgentState::Done;
    match (info.exit_code, info.signal) {
        (Some(0), _) if is_answer => DispatchOutcome {
            status: TaskStatus::Done,
            result: None,
            report: TaskReport { exit_code: Some(0), ..TaskReport::default() },
            may_retry: false,
        },
        (Some(0), _) => {
            let error = reason().unwrap_or_else(|| "the agent ended before it answered".to_owned());
            failed(error, false)
        }
        (Some(code), _) => {
            let error =
                reason().unwrap_or_else(|| format!("the program ended with exit code {code}"));
            failed(error, !dispatch.has_words)
        }
        (None, Some(signal)) => {
            let signal = signal_name(signal);
            failed(reason().unwrap_or_else(|| format!("the program was ended by {signal}")), false)
        }
        (None, None) => failed(reason().unwrap_or_else(|| "outcome unknown".to_owned()), false),
    }
}

async fn settle(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    dispatch: &mut DispatchRow,
    mut task: TaskRow,
    outcome: DispatchOutcome,
) -> Result<(), Error> {
    if task.task.is_over() {
        dispatch.state = DispatchState::Over;
        return Ok(());
    }
    let was_lost = row.info.state == AgentState::Lost && dispatch.taken_at.is_none();
    if outcome.may_retry && outcome.status == TaskStatus::Failed {
        let error = outcome.report.error.clone().unwrap_or_default();
        if was_lost && dispatch.attempt < LOST_ATTEMPTS {
            let same = dispatch.instance.clone();
            return retry(tx, dispatch, &task, same, &error).await;
        }
        if dispatch.wish.agent_id.is_none() && !dispatch.failover.is_empty() {
            let next = dispatch.failover.remove(0);
            return retry(tx, dispatch, &task, next, &error).await;
        }
    }
    end_task(tx, core, dispatch, &mut task, outcome.status, outcome.result, outcome.report).await
}

/// Puts a dispatch back into the queue, for another attempt. The one that failed is on record.
pub(super) async fn retry(
    tx: &mut WriteTx,
    dispatch: &mut DispatchRow,
    task: &TaskRow,
    next: String,
    error: &str,
) -> Result<(), Error> {
    let stream = tasks::stream_of(&dispatch.task_id);
    let head = tx.streams().state(&stream).await?.map_or(0, |state| state.head);
    let shown = Task { last_id: head + 1, updated_at: tx.now(), ..task.task.clone() };
    let mut event = serde_json::to_value(&shown).unwrap_or_default();
    if let Some(event) = event.as_object_mut() {
        event.insert("attempt".to_owned(), json!(dispatch.attempt));
        event.insert("instance".to_owned(), json!(dispatch.instance));
        event.insert("error".to_owned(), json!(error));
    }
    tx.append(&stream, vec![NewEvent::new("task", &event)]).await?;
    dispatch.instance = next;
    dispatch.attempt += 1;
    dispatch.state = DispatchState::Queued;
    (dispatch.agent_id, dispatch.is_spawned) = (None, false);
    (dispatch.taken_at, dispatch.has_words, dispatch.turn) = (None, false, None);
    dispatch.said = 0;
    tx.dispatches().update(dispatch).await?;
    Ok(())
}

/// Ends the task of a dispatch, and tells who asked for it.
pub(super) async fn end_task(
    tx: &mut WriteTx,
    core: &Core,
    dispatch: &mut DispatchRow,
    task: &mut TaskRow,
    status: TaskStatus,
    result: Option<String>,
    report: TaskReport,
) -> Result<(), Error> {
    dispatch.state = DispatchState::Over;
    tx.dispatches().update(dispatch).await?;
    task.task.result = result.map(shortened);
    let change = TaskChange { status, report, runner: None };
    tasks::apply(tx, task, &change, None).await?;
    tell_asker(tx, core, dispatch, task).await
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(limits::TASK_RESULT_BYTES));
    text
}

/// The word to whoever dispatched it: a message in its own peer's inbox.
async fn tell_asker(
    tx: &mut WriteTx,
    core: &Core,
    dispatch: &DispatchRow,
    task: &TaskRow,
) -> Result<(), Error> {
    // The answer of an attended session is a message already.
    if dispatch.wish.message_id.is_some() && task.task.status == TaskStatus::Done {
        return Ok(());
    }
    let named = task.task.from.as_deref().and_then(PeerId::parse);
    let peer = match (&task.owned.owner, named) {
        (_, Some(id)) => tx.peers().get(&id).await?,
        (Some(Principal::Session(session)), None) => tx.peers().of_key(session).await?,
        (Some(Principal::Operator) | None, None) => None,
    };
    let Some(peer) = peer else { return Ok(()) };
    let asker = tx.dispatches().asker(&dispatch.task_id).await?;
    if let (Some(agent), Some(Principal::Session(key))) = (&asker.agent, &task.owned.owner) {
        // One of its name that was started since has asked for nothing.
        let live = tx.agents().live(key).await?;
        if live.is_none_or(|live| live.info.id != *agent) {
            return Ok(());
        }
    }
    let text = end_in_words(&task.task, &dispatch.instance);
    let session = writer_of(dispatch, task);
    let from = writing_peer(tx, dispatch, &session).await?;
    let key = end_key(dispatch);
    let project = task.owned.project.as_deref();
    let tool = asker.tool.unwrap_or(SourceTool::SendMessage);
    let held_until = dispatch.wish.waits_until.filter(|until| *until > tx.now());
    let terms = MessageTerms { held_until, ..MessageTerms::default() };
    let from = AgentSender { session: &session, peer: from, project };
    tell(tx, core, from, peer.peer.peer_id, (tool, text), (Some(key), terms)).await
}

/// The call that waited for the answer has it: who asked is not told once more.
pub(super) async fn note_returned(tx: &mut WriteTx, dispatch: &DispatchRow) -> Result<(), Error> {
    let mut told = Vec::new();
    if let Some(task) = tx.tasks().get(&dispatch.task_id).await? {
        let from = writing_peer(tx, dispatch, &writer_of(dispatch, &task)).await?;
        told = tx.messages().all_by_key(&from, &end_key(dispatch)).await?;
    }
    if let Some(question) = &dispatch.wish.message_id
        && let Some(mut run) = tx.runs().of_message(question).await?
    {
        run.waits_until = None;
        run.answered.get_or_insert(run.state);
        tx.runs().update(&run).await?;
        if let Some(reply) = &run.reply_id {
            told.extend(tx.messages().get(reply).await?);
        }
    }
    for mut message in told {
        let (to, why) = (message.to_peer.clone(), Some("the call had it"));
        let had = std::slice::from_mut(&mut message);
        team::advance(tx, &to, had, DeliveryState::Acked, why).await?;
    }
    Ok(())
}

/// Whose word the end of a task is: that of the session that had it.
fn writer_of(dispatch: &DispatchRow, task: &TaskRow) -> String {
    match &task.owned.runner {
        Some(Principal::Session(key)) => key.to_string(),
        _ => format!("agent:{}", dispatch.instance),
    }
}

/// The sender of the message about the end of a task. A process may have several sessions: the
/// session that was asked sends it.
async fn writing_peer(
    tx: &mut WriteTx,
    dispatch: &DispatchRow,
    session: &str,
) -> Result<String, StoreError> {
    match (&dispatch.wish.peer_id, &dispatch.wish.message_id) {
        (Some(asked), Some(_)) => Ok(asked.to_string()),
        _ => sender_of(tx, session).await,
    }
}

/// The idempotency key of the word that a task is over.
fn end_key(dispatch: &DispatchRow) -> String {
    format!("task-end-{}", dispatch.task_id)
}

/// Who a message of a session is from: its peer, if it has one.
async fn sender_of(tx: &mut WriteTx, session: &str) -> Result<String, StoreError> {
    let own = tx.peers().of_key(session).await?;
    Ok(own.map_or_else(|| session.to_owned(), |own| own.peer.peer_id.as_str().to_owned()))
}

fn end_in_words(task: &Task, instance: &str) -> String {
    let mut text = format!("Task {} for {instance} is {}.", task.task_id, task.status.as_str());
    if let Some(error) = &task.report.error {
        write!(text, "\nError: {error}").expect("writing to a string does not fail");
    }
    if let Some(result) = task.result.as_deref().filter(|result| !result.is_empty()) {
        text.push('\n');
        text.extend(result.chars().take(limits::TOLD_RESULT_CHARS));
    }
    text
}

/// Who sends a message about an agent.
struct AgentSender<'a> {
    session: &'a str,
    /// The id of its peer, or its session key if it has none.
    peer: String,
    project: Option<&'a str>,
}

/// A message of an agent's to a peer. One for which there is no room is left out: what it tells of
/// stands elsewhere, too.
async fn tell(
    tx: &mut WriteTx,
    core: &Core,
    sender: AgentSender<'_>,
    to: PeerId,
    (tool, text): (SourceTool, String),
    (key, terms): (Option<String>, MessageTerms),
) -> Result<(), Error> {
    let caller = Caller::Session {
        key: sender.session.into(),
        token: TokenId::from("tok_of_agent".to_owned()),
        scopes: Arc::from([]),
        project: sender.project.map(Arc::from),
        process: None,
        folder: None,
    };
    let input = NewMessage {
        text,
        kind: Some(MessageType::Notification),
        from_peer: None,
        correlation_id: None,
        idempotency_key: key,
    };
    let outgoing = team::OutgoingMessage {
        core: core.clone(),
        caller,
        from: sender.peer,
        input: Arc::new(input),
        text_id: None,
        tool,
        run_id: None,
    };
    match team::deliver(tx, &outgoing, to, MessageType::Notification, terms).await {
        Ok(_) => Ok(()),
        Err(Error::LimitReached(reason)) => {
            tracing::warn!(reason, "no room for a word about an agent");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A request opened: the operator's peers hear of it.
pub(super) async fn tell_operator(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    request: &RequestRow,
) -> Result<(), Error> {
    let info = &row.info;
    let options: Vec<&str> =
        request.options.iter().map(|option| option.option_id.as_str()).collect();
    // What is asked comes first: lists show the beginning alone.
    let text = format!(
        "May I? {}\n{} ({}) waits for your answer: svc agent answer {} {} OPTION ({})",
        request.title,
        info.session_key,
        info.id,
        info.id,
        request.request_id,
        options.join(", ")
    );
    let own = sender_of(tx, &info.session_key).await?;
    for peer in tx.peers().of_operator(limits::TOLD_PEERS).await? {
        let terms = (Some(message_key(request)), MessageTerms::default());
        let from = AgentSender {
            session: &info.session_key,
            peer: own.clone(),
            project: row.owned.project.as_deref(),
        };
        let asks = (SourceTool::AgentRequest, text.clone());
        tell(tx, core, from, peer, asks, terms).await?;
    }
    Ok(())
}

/// The idempotency key of the messages about a request.
fn message_key(request: &RequestRow) -> String {
    format!("request-{}", request.request_id)
}

/// Acknowledges the messages about a request that is closed: nobody has to answer it any more.
pub(super) async fn withdraw_from_operator(
    tx: &mut WriteTx,
    row: &AgentRow,
    request: &RequestRow,
) -> Result<(), StoreError> {
    let key = message_key(request);
    // As `tell` wrote them.
    let own = sender_of(tx, &row.info.session_key).await?;
    for message in tx.messages().all_by_key(&own, &key).await? {
        let to = message.to_peer.clone();
        team::advance(tx, &to, &mut [message], DeliveryState::Acked, None).await?;
    }
    Ok(())
}

/// The name of a signal, as runners of tasks write it.
fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 12] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
        (24, "SIGXCPU"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == signal);
    known.map_or_else(|| signal.to_string(), |(_, name)| (*name).to_owned())
}
