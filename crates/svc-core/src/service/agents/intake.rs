//! Stores a batch of a host's events and applies it to the agent's row, its requests and its work.
//! All of this is one write job, so the log has each event once and no consequence is lost.

use base64::Engine as _;
use serde_json::json;
use svc_client::hosts::RawAgentEvent;
use svc_model::{
    AgentId, AgentRequestId, Frame, FrameKind, NewEvent, PeerId, PeerStatus, Principal, Timestamp,
    TokenId,
    agent::{AgentBackend, AgentEventBody, AgentOutput, AgentRequest, AgentState, HistoryRole},
    limits,
};
use svc_store::{
    AgentRow, AssignmentRow, AssignmentState, RequestAnswerRow, RequestRow, StoreError, WriteTx,
};

use super::state::{
    append_team_event, notify_operator, set_peer_state, set_reason, show_state, stream_of,
    tell_closed, unknown,
};
use crate::service::{
    Error, Result,
    assignments::{self, AssignmentEvent, settle_exit, settle_turn},
    core::Core,
    tasks, team,
};

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the steps after an intake are independent")]
pub(super) struct IntakeResult {
    pub(super) has_ended: bool,
    /// The task that the agent was started for has ended.
    pub(super) is_spent: bool,
    /// The agent has work that has not ended.
    pub(super) is_dispatching: bool,
    /// The peer of an ended agent, if it has more deliveries than one write job may end; the caller
    /// ends the rest at once, as the next agent of this name may start before the sweep does.
    pub(super) has_mail: Option<PeerId>,
    pub(super) revoked: Vec<TokenId>,
    /// The agent has ended, and nothing remains of it after the end of its task.
    pub(super) is_removable: bool,
}

/// Stores events of a host. Skips those that the log already has.
///
/// # Errors
/// [`Error::Conflict`] if an event is missing between the log and `events`.
pub(super) async fn take_in(
    tx: &mut WriteTx,
    core: &Core,
    id: &AgentId,
    events: Vec<RawAgentEvent>,
) -> Result<IntakeResult> {
    let mut row = tx.agents().get(id).await?.ok_or_else(|| unknown(id.as_str()))?;
    let stream = stream_of(id);
    let state = tx.streams().state(&stream).await?.ok_or(StoreError::NoStream)?;
    if row.ended_at.is_some() || state.closed {
        return Ok(IntakeResult { has_ended: true, ..IntakeResult::default() });
    }
    let mut head = state.head;
    let mut fresh = Vec::with_capacity(events.len());
    for event in events {
        if event.offset() <= head {
            continue;
        }
        if event.offset() != head + 1 {
            return Err(Error::Conflict(format!(
                "the host of {id} has offset {} where {} was due",
                event.offset(),
                head + 1
            )));
        }
        head += 1;
        fresh.push(event);
    }
    let mut taken = IntakeResult::default();
    let mut work = work_of(tx, id).await?;
    if !fresh.is_empty() {
        tx.append(&stream, logged(&fresh)).await?;
        let before = row.clone();
        for event in &fresh {
            taken.is_spent |= apply(tx, core, &mut row, &mut work, event).await?;
        }
        let exit = fresh.iter().find_map(|event| match event.body() {
            AgentEventBody::Exit { final_state, .. } => Some(*final_state),
            _ => None,
        });
        if let Some(end) = exit {
            row.info.state = end;
            finish(tx, &mut row, &mut work, core, &mut taken).await?;
        }
        if row != before {
            tx.agents().update(&row).await?;
        }
    }
    taken.is_dispatching = work.iter().any(|it| it.ended_at.is_none());
    if let Some(task) = &row.task_id
        && tx.assignments().of_task(task).await?.is_none_or(|it| it.ended_at.is_some())
    {
        taken.is_spent = true;
    }
    Ok(taken)
}

/// Events as the log stores them: the host's lines, unchanged.
pub(super) fn logged(events: &[RawAgentEvent]) -> Vec<NewEvent> {
    let logged = |event: &RawAgentEvent| {
        let kind = event.body().kind().into();
        NewEvent { kind, data: event.line.clone(), producer_id: None }
    };
    events.iter().map(logged).collect()
}

/// Whether an event changes only the log, as output does.
pub(super) fn is_plain(event: &RawAgentEvent) -> bool {
    matches!(
        event.body(),
        AgentEventBody::Output(_)
            | AgentEventBody::Stderr(_)
            | AgentEventBody::ChatEntry { .. }
            | AgentEventBody::Usage(_)
    )
}

/// Applies an event to the agent's row, to its requests, to the message that became a turn, and to
/// the agent's work: its frames, its state and why it waits. Returns whether the turn of the work
/// has ended that the agent was started for.
async fn apply(
    tx: &mut WriteTx,
    core: &Core,
    row: &mut AgentRow,
    work: &mut [AssignmentRow],
    event: &RawAgentEvent,
) -> Result<bool> {
    let at = event.event.timestamp;
    match event.body() {
        AgentEventBody::State { state, task, description, session_id, until, turn, .. } => {
            // The exit sets a final state, and may come in a later batch: a row with a final state
            // always has the exit code or the signal.
            if !state.is_final() {
                if row.info.state != *state {
                    show_state(tx, row, *state, *until).await?;
                }
                if (row.info.state, *state) == (AgentState::Idle, AgentState::Running) {
                    // The error is of an earlier turn.
                    row.info.error = None;
                }
                row.info.state = *state;
            }
            let known = [
                (task, &mut row.info.task),
                (description, &mut row.info.description),
                (session_id, &mut row.info.session_id),
            ];
            for (news, known) in known {
                if news.is_some() {
                    known.clone_from(news);
                }
            }
            let Some(turn) = turn else { return Ok(false) };
            assignments::turn_ended(tx, core, row, turn).await?;
            let named = turn.message_id.as_deref();
            let ended = work.iter_mut().find(|it| named.is_some_and(|id| it.is_task(id)));
            if let Some(assigned) = ended.filter(|it| it.ended_at.is_none()) {
                settle_turn(tx, core, row, assigned, turn).await?;
                return Ok(assigned.is_spawned);
            }
        }
        AgentEventBody::Input { message_id, .. } => {
            assignments::turn_began(tx, row, message_id).await?;
            let begun = work.iter_mut().find(|it| it.is_task(message_id));
            if let Some(begun) = begun.filter(|it| it.ended_at.is_none()) {
                begun.taken_at = Some(event.offset());
                assignments::apply(tx, begun, AssignmentEvent::Begun).await?;
            }
        }
        AgentEventBody::Error { error } => row.info.error = Some(error.clone()),
        AgentEventBody::Exit { exit_code, signal, .. } => {
            (row.info.exit_code, row.info.signal, row.info.pid) = (*exit_code, *signal, 0);
        }
        AgentEventBody::Request(request) => {
            open_request(tx, core, row, request, at).await?;
            let (key, title) = (&row.info.session_key, &request.title);
            let options: Vec<&str> =
                request.options.iter().map(|it| it.option_id.as_str()).collect();
            let options = options.join(", ");
            let why =
                format!("{key} asks {title:?}: svc agent answer {key} latest OPTION ({options})");
            wait_for_person(tx, work, Some(why)).await?;
        }
        AgentEventBody::Answer { request_id, option_id, by } => {
            close_request(tx, row, request_id, option_id.clone(), by.clone()).await?;
            wait_for_person(tx, work, None).await?;
        }
        AgentEventBody::Output(output) if row.info.backend == AgentBackend::Exec => {
            if let Some(assigned) = under_way(work).filter(|_| !output.ends_turn) {
                let last = (output.truncated, false);
                add_frames(tx, assigned, &[text_of(output)], FrameKind::Stdout, at, last).await?;
                store_delta(tx, assigned).await?;
            }
        }
        AgentEventBody::Stderr(output) => {
            let assigned = match work.iter_mut().position(|it| it.is_spawned) {
                Some(spawned) => Some(&mut work[spawned]),
                None => under_way(work),
            };
            if let Some(assigned) = assigned.filter(|it| it.ended_at.is_none()) {
                let last = (output.truncated, false);
                add_frames(tx, assigned, &[text_of(output)], FrameKind::Stderr, at, last).await?;
            }
        }
        AgentEventBody::ChatEntry { chat_entry } => {
            let Some(assigned) = under_way(work) else { return Ok(false) };
            let said = chat_entry.content.as_deref();
            if row.info.backend != AgentBackend::Exec
                && let (HistoryRole::Assistant, Some(said)) = (chat_entry.role, said)
            {
                let given = bytes_of(std::mem::take(&mut assigned.said));
                let lines = lines_left(said, given);
                let last = (chat_entry.truncated, false);
                add_frames(tx, assigned, &lines, FrameKind::Stdout, at, last).await?;
                if given > 0 {
                    tx.assignments().update(assigned).await?;
                }
            }
            let is_word = matches!(chat_entry.role, HistoryRole::Assistant | HistoryRole::Tool);
            if is_word && chat_entry.is_error != Some(true) {
                store_delta(tx, assigned).await?;
            }
        }
        AgentEventBody::Output(_) | AgentEventBody::Delta(_) | AgentEventBody::Usage(_) => {}
    }
    Ok(false)
}

async fn open_request(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    request: &AgentRequest,
    opened_at: Timestamp,
) -> Result<()> {
    let whose = (row.info.session_key.clone(), row.owned.clone());
    let words = (request.kind, request.title.clone());
    let (id, agent) = (request.request_id.clone(), row.info.id.clone());
    let asked = RequestRow {
        options: request.options.clone(),
        tool: request.tool.clone(),
        deadline: Some(opened_at.plus(row.request_timeout)),
        ..RequestRow::new(id, Some(agent), whose, words, None, opened_at)
    };
    if !tx.requests().insert(&asked).await? {
        return Ok(());
    }
    let about = json!({ "request_id": asked.request_id, "kind": asked.kind });
    append_team_event(tx, "request.opened", row, about).await?;
    notify_operator(tx, core, row, &asked).await
}

/// Who closes a request that nobody answers in time.
pub(super) const TIMEOUT: &str = "timeout";

pub(super) async fn close_request(
    tx: &mut WriteTx,
    row: &AgentRow,
    id: &AgentRequestId,
    option_id: Option<String>,
    by: String,
) -> Result<()> {
    let known = tx.requests().get(id).await?;
    let Some(request) = known.filter(|request| request.agent_id.as_ref() == Some(&row.info.id))
    else {
        return Ok(());
    };
    let answer = RequestAnswerRow { option_id, text: None, by };
    match &request.answer {
        None => {
            tx.requests().close(id, &answer).await?;
            tell_closed(tx, row, &request, &answer.by).await?;
        }
        // The daemon denied it while the host hung, and the host had another answer.
        Some(denied) if denied.by == TIMEOUT && *denied != answer => {
            tx.requests().correct(id, &answer).await?;
            let about = json!({
                "request_id": id, "kind": request.kind, "by": answer.by, "corrects": true,
            });
            append_team_event(tx, "request.closed", row, about).await?;
        }
        Some(_) => {}
    }
    Ok(())
}

/// The agent's assignments that have a task.
pub(super) async fn work_of(
    tx: &mut WriteTx,
    id: &AgentId,
) -> Result<Vec<AssignmentRow>, StoreError> {
    let mut work = tx.assignments().of_agent(id).await?;
    work.retain(|it| it.task_id.is_some());
    Ok(work)
}

/// Stores why the work under way waits for a person; `None` if it no longer does.
pub(super) async fn wait_for_person(
    tx: &mut WriteTx,
    work: &mut [AssignmentRow],
    why: Option<String>,
) -> Result<()> {
    let Some(id) = under_way(work).and_then(|it| it.task_id.clone()) else { return Ok(()) };
    match tx.tasks().get(&id).await? {
        Some(mut task) if !task.task.is_over() => set_reason(tx, &mut task, why).await,
        _ => Ok(()),
    }
}

/// The work whose prompt the agent has and whose turn has not ended.
fn under_way(work: &mut [AssignmentRow]) -> Option<&mut AssignmentRow> {
    work.iter_mut()
        .filter(|it| it.state == AssignmentState::Running && it.turn.is_none())
        .max_by_key(|it| it.taken_at)
}

/// Makes frames of an unfinished entry: of each complete line, and with `is_due` also of the last
/// line, as a partial frame that the next frame continues. `said` is the whole entry so far.
pub(super) async fn give_unfinished(
    tx: &mut WriteTx,
    id: &AgentId,
    said: &str,
    is_due: bool,
) -> Result<()> {
    let mut work = work_of(tx, id).await?;
    let Some(assigned) = under_way(&mut work) else { return Ok(()) };
    let mut given = bytes_of(assigned.said);
    let Some(rest) = said.get(given..) else { return Ok(()) };
    let at = tx.now();
    let (whole, begun) = rest.split_at(rest.rfind('\n').map_or(0, |end| end + 1));
    let (lines, kind) = (frame_lines(whole), FrameKind::Stdout);
    add_frames(tx, assigned, &lines, kind, at, (false, false)).await?;
    given += whole.len();
    if is_due && !begun.is_empty() {
        add_frames(tx, assigned, &[begun.to_owned()], kind, at, (false, true)).await?;
        given += begun.len();
    }
    assigned.said = u32::try_from(given).unwrap_or(u32::MAX);
    assigned.has_words = true;
    tx.assignments().update(assigned).await?;
    Ok(())
}

fn bytes_of(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// The lines of a finished entry of which `given` bytes are frames already. An empty line ends a
/// partial frame that has no rest.
fn lines_left(text: &str, given: usize) -> Vec<String> {
    let Some((before, rest)) = text.split_at_checked(given) else { return frame_lines(text) };
    let mut lines = frame_lines(rest);
    if lines.is_empty() && !before.is_empty() && !before.ends_with('\n') {
        lines.push(String::new());
    }
    lines
}

async fn store_delta(tx: &mut WriteTx, assigned: &mut AssignmentRow) -> Result<(), StoreError> {
    if assigned.has_words {
        return Ok(());
    }
    assigned.has_words = true;
    tx.assignments().update(assigned).await
}

/// The lines of a text, each for a frame. The agent chooses how many there are, so the last one
/// holds all that exceeds the bound of a write job.
fn frame_lines(text: &str) -> Vec<String> {
    let mut rest = text;
    let mut lines = Vec::new();
    while !rest.is_empty() && lines.len() + 1 < limits::EVENTS_PER_REQUEST {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        lines.push(line.strip_suffix('\r').unwrap_or(line).to_owned());
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest.to_owned());
    }
    lines
}

/// Appends lines to the task's stream. `is_cut` and `is_partial` are of the last line.
async fn add_frames(
    tx: &mut WriteTx,
    assigned: &AssignmentRow,
    lines: &[String],
    kind: FrameKind,
    ts: Timestamp,
    (is_cut, is_partial): (bool, bool),
) -> Result<(), StoreError> {
    let (Some(task_id), Some(last)) = (&assigned.task_id, lines.len().checked_sub(1)) else {
        return Ok(());
    };
    let frame = |(index, line): (usize, &String)| {
        let (truncated, partial) = (is_cut && index == last, is_partial && index == last);
        NewEvent::new("frame", &Frame { task_id, line, kind, ts, truncated, partial })
    };
    let frames = lines.iter().enumerate().map(frame).collect();
    match tx.append(&tasks::stream_of(task_id), frames).await {
        // The task was ended elsewhere.
        Ok(_) | Err(StoreError::StreamClosed) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A line as text. Invalid UTF-8 becomes replacement characters; the agent's own stream has the
/// original bytes.
fn text_of(output: &AgentOutput) -> String {
    if output.encoding.is_none() {
        return output.data.clone();
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(&output.data);
    bytes.map_or_else(|_| output.data.clone(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Ends what the agent's own hooks registered: its sessions, and the presence of its peer.
async fn end_presence(
    tx: &mut WriteTx,
    key: &str,
    taken: &mut IntakeResult,
) -> Result<(), StoreError> {
    let owner = Principal::Session(key.into());
    for session in tx.sessions().open_of(&owner, limits::PAGE_DEFAULT).await? {
        let left = team::end(tx, &session, Some("its agent ended")).await?;
        taken.revoked.extend(left.tokens);
    }
    set_peer_state(tx, key, PeerStatus::Offline, None, "its agent ended").await
}

/// Ends an agent: its requests, its work, its token and its stream. The caller stores the row.
pub(super) async fn finish(
    tx: &mut WriteTx,
    row: &mut AgentRow,
    work: &mut [AssignmentRow],
    core: &Core,
    taken: &mut IntakeResult,
) -> Result<()> {
    let id = row.info.id.clone();
    for request in tx.requests().open_of_agent(&id).await? {
        let by = if row.info.state == AgentState::Lost { "lost" } else { "exit" };
        close_request(tx, row, &request.request_id, None, by.to_owned()).await?;
    }
    for assigned in work.iter_mut().filter(|it| it.ended_at.is_none()) {
        settle_exit(tx, core, row, assigned).await?;
    }
    taken.has_mail = assignments::agent_ended(tx, core, row).await?;
    if let Some(task) = &row.task_id
        && tx.assignments().of_task(task).await?.is_some_and(|it| it.removes_peer)
    {
        team::remove_agents_peer(tx, row).await?;
        taken.is_removable = true;
    }
    row.info.pid = 0;
    row.ended_at = Some(tx.now());
    tx.streams().close(&stream_of(&id)).await?;
    taken.revoked = tx.tokens().revoke_all_of(&row.info.session_key).await?;
    end_presence(tx, &row.info.session_key, taken).await?;
    taken.has_ended = true;
    let about = json!({ "exit_code": row.info.exit_code, "signal": row.info.signal });
    append_team_event(tx, "agent.ended", row, about).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use svc_store::job;

    use super::*;
    use crate::service::testing::{insert_agent, opened};

    #[tokio::test]
    async fn a_state_is_final_only_with_how_the_program_ended() {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        let id = AgentId::from("ag_1".to_owned());
        let shown = [
            (r#""type":"state","state":"done""#, (AgentState::Running, None)),
            (r#""type":"exit","exit_code":0,"final_state":"done""#, (AgentState::Done, Some(0))),
        ];
        for (offset, (body, expected)) in (1..).zip(shown) {
            let line = format!(
                r#"{{{body},"agent_id":"ag_1","offset":{offset},"timestamp":"2026-01-01T00:00:00.000Z"}}"#
            );
            let event = RawAgentEvent::parse(line.as_bytes()).unwrap();
            let (core, key) = (services.agents.core.clone(), id.clone());
            let write = test.store.write(job!(|tx| take_in(tx, &core, &key, vec![event]).await));
            let taken: Result<IntakeResult> = write.await;
            taken.unwrap();
            let info = test.store.agents().get(&id).await.unwrap().unwrap().info;
            assert_eq!((info.state, info.exit_code), expected, "{body}");
        }
    }

    #[test]
    fn frames_of_a_text_are_bounded_and_keep_all_of_it() {
        assert_eq!(frame_lines("a\r\n\nb"), ["a", "", "b"]);
        assert_eq!(frame_lines("a\n"), ["a"]);
        assert!(frame_lines("").is_empty());
        assert_eq!(lines_left("one\ntwo", 0), ["one", "two"]);
        assert_eq!(lines_left("one\ntwo", 4), ["two"]);
        assert_eq!(lines_left("one\ntwo\n", 6), ["o"]);
        assert_eq!(lines_left("one", 3), [""]);
        assert_eq!(lines_left("one\n", 3), [""]);
        assert!(lines_left("one\n", 4).is_empty());
        let many = frame_lines(&"x\n".repeat(100_000));
        assert_eq!(many.len(), limits::EVENTS_PER_REQUEST);
        let kept: usize = many.iter().map(|line| line.matches('x').count()).sum();
        assert_eq!(kept, 100_000);
    }
}
