//! Opens and closes prompts: by the events of the session's hooks, by the client's record, and by
//! the app-server that asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_model::{
    AgentRequestId, ClientRecord, Ids, MachineProcess, NewEvent, OpenCalls, Ownership,
    ProcessState, RecordedState, Timestamp, WaitingFor, WaitingKind,
    agent::{RequestKind, RequestOptionKind},
    hook::{AttendedPrompts, ClientPrompt, HookEvent, HookMoment, HookTiming, HookToolUse},
    is_agent_key, limits,
};
use svc_store::{PeerRow, RequestAnswerRow, RequestRow, StoreError, WriteTx, job};
use svc_sys::{client_records, process_list};

use super::Prompts;
use crate::boxed;
use crate::service::{Result, team};

/// The closer on record of a prompt that was not answered here.
const TERMINAL: &str = "terminal";
/// The closer on record if the client, the session or the turn ended.
const GONE: &str = "gone";
/// How long a prompt may have options without a holder.
const UNHELD: Duration = Duration::from_secs(2);

/// What a client asks, as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptPrompt {
    /// Absent while no hook has reported the dialog.
    #[serde(flatten)]
    asked: Option<ClientPrompt>,
    /// The session's open calls when the client asked; the call that the prompt is about is among
    /// them.
    #[serde(default)]
    calls: OpenCalls,
    /// When the client showed the dialog, if its record showed the dialog before a hook reported
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shown_at: Option<Timestamp>,
}

pub(in crate::service) struct NewPrompt<'a> {
    pub(in crate::service) id: AgentRequestId,
    pub(in crate::service) session: &'a str,
    pub(in crate::service) cwd: Option<String>,
    pub(in crate::service) prompt: &'a ClientPrompt,
    pub(in crate::service) owned: Ownership,
    /// Whether a hook waits here to give the client an answer.
    pub(in crate::service) is_held: bool,
}

/// Stores a prompt that a client reports, and returns its id. Claude Code shows one prompt at a
/// time, so earlier prompts of the session are over. If the client's record showed a dialog a
/// moment before, that is the same prompt, and it keeps its id.
pub(in crate::service) async fn open(
    tx: &mut WriteTx,
    new: NewPrompt<'_>,
) -> Result<AgentRequestId> {
    let NewPrompt { id, session, cwd, prompt, owned, is_held } = new;
    let mut shown = None;
    if let ClientPrompt::Claude(_) = prompt {
        let mut open = tx.requests().open_prompts_of(session).await?;
        shown = open.pop_if(|last| kept(last).is_some_and(|kept| kept.asked.is_none()));
        for row in open {
            close(tx, &row, PromptEnd::Answered).await?;
        }
    }
    let now = tx.now();
    let peer = tx.peers().of_session(session).await?;
    let calls = peer.map(|peer| peer.open_calls).unwrap_or_default();
    let shown_at = shown.as_ref().and_then(|row| kept(row)?.shown_at);
    let kept = KeptPrompt { asked: Some(prompt.clone()), calls, shown_at };
    let (request_id, opened_at) =
        shown.as_ref().map_or((id, now), |shown| (shown.request_id.clone(), shown.opened_at));
    let (whose, words) = ((session.to_owned(), owned), (prompt.kind(), prompt.title()));
    let row = RequestRow {
        cwd,
        tool: Some(prompt.tool()),
        options: if is_held { prompt.options() } else { Vec::new() },
        ..RequestRow::new(request_id, None, whose, words, Some(json!(kept)), opened_at)
    };
    if shown.is_some() {
        tx.requests().describe(&row).await?;
        append_team_event(tx, "request.described", &row, json!({})).await?;
    } else {
        tx.requests().insert(&row).await?;
        append_team_event(tx, "request.opened", &row, json!({})).await?;
    }
    Ok(row.request_id)
}

/// Closes the prompts that an event shows to be over, and corrects a denial on record if its call
/// ran.
pub(in crate::service) async fn follow_event(
    tx: &mut WriteTx,
    event: &HookEvent,
    timing: HookTiming,
) -> Result<()> {
    // A sub-agent's events do not close prompts, as the session shows the prompts of all its
    // sub-agents; but an answer names its prompt.
    if event.is_of_sub_agent() && !matches!(event.moment, HookMoment::Answered(_)) {
        return Ok(());
    }
    if matches!(event.moment, HookMoment::ToolStart(_) | HookMoment::Other) {
        return Ok(());
    }
    for row in tx.requests().open_prompts_of(&event.session_id).await? {
        if let Some(end) = end_by_event(event, timing, &row) {
            close(tx, &row, end).await?;
        }
    }
    match &event.moment {
        HookMoment::ToolEnd(used) => {
            correct_denial(tx, &event.session_id, &call_of(used), used.call()).await
        }
        _ => Ok(()),
    }
}

/// How an event shows an open prompt of its session to be over. A late event ends no prompts that
/// were opened after it, unless it names the prompt or its call.
fn end_by_event<'a>(
    event: &'a HookEvent,
    timing: HookTiming,
    row: &RequestRow,
) -> Option<PromptEnd<'a>> {
    let is_earlier = !timing.is_before(row.opened_at);
    match &event.moment {
        HookMoment::Prompt { .. } | HookMoment::Start { .. } | HookMoment::Stop { .. } => {
            is_earlier.then_some(PromptEnd::Answered)
        }
        HookMoment::TurnOver { .. } | HookMoment::Refused(_) | HookMoment::End { .. } => {
            is_earlier.then_some(PromptEnd::Gone)
        }
        HookMoment::Answered(Some(reply)) => {
            let is_it = asked(row).is_some_and(|asked| asked.id() == Some(&reply.prompt));
            is_it.then_some(PromptEnd::Replied(reply.option_id.as_deref()))
        }
        HookMoment::ToolEnd(used) => (row.tool == Some(call_of(used))).then_some(PromptEnd::Ran),
        // No call of the batch runs after it, so that a denial was taken. A prompt without one may
        // be a sub-agent's, and stay.
        HookMoment::BatchEnd => {
            let is_denied = row.answering.as_ref().is_some_and(|it| is_denial(row, it));
            (is_denied && is_earlier).then_some(PromptEnd::Answered)
        }
        _ => None,
    }
}

fn call_of(used: &HookToolUse) -> Value {
    json!({ "name": used.tool, "input": used.arguments })
}

/// How a prompt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum PromptEnd<'a> {
    /// The client has an answer: the one given here, if there is one, else the person's.
    Answered,
    /// The person's answer counts, whatever answer was given here.
    Person,
    /// The turn or the client ended. An answer that was given here counts as taken.
    Gone,
    /// The client reports the answer, perhaps with the chosen option.
    Replied(Option<&'a str>),
    /// The call ran, so it was allowed.
    Ran,
}

async fn close(tx: &mut WriteTx, row: &RequestRow, end: PromptEnd<'_>) -> Result<()> {
    let terminal = || RequestAnswerRow::by(TERMINAL);
    let answer = match (end, &row.answering) {
        (PromptEnd::Replied(Some(option)), given) => match given {
            Some(given) if given.option_id.as_deref() == Some(option) => given.clone(),
            _ => RequestAnswerRow { option_id: Some(option.to_owned()), ..terminal() },
        },
        (PromptEnd::Ran, Some(given)) if is_denial(row, given) => terminal(),
        (PromptEnd::Person, _) => terminal(),
        (_, Some(given)) => given.clone(),
        (PromptEnd::Gone, None) => RequestAnswerRow::by(GONE),
        (_, None) => terminal(),
    };
    tx.requests().close(&row.request_id, &answer).await?;
    Ok(append_team_event(tx, "request.closed", row, json!({ "by": answer.by })).await?)
}

/// Corrects a denial on record if the call ran: then the person's permission came first.
async fn correct_denial(
    tx: &mut WriteTx,
    session: &str,
    call: &Value,
    call_id: &str,
) -> Result<()> {
    let last = tx.requests().last_prompt(session).await?;
    let Some(row) = last.filter(|row| row.closed_at.is_some()) else { return Ok(()) };
    let is_it = row.tool.as_ref() == Some(call)
        && row.answer.as_ref().is_some_and(|answer| is_denial(&row, answer))
        && kept(&row).is_some_and(|kept| kept.calls.has(call_id));
    if is_it { correct(tx, &row).await } else { Ok(()) }
}

/// Replaces the answer on record: the person at the terminal answered.
async fn correct(tx: &mut WriteTx, row: &RequestRow) -> Result<()> {
    let answer = RequestAnswerRow::by(TERMINAL);
    tx.requests().correct(&row.request_id, &answer).await?;
    let about = json!({ "by": answer.by, "corrects": true });
    Ok(append_team_event(tx, "request.closed", row, about).await?)
}

/// Reads the options from the stored prompt, because the row has none once its hook has ended.
fn is_denial(row: &RequestRow, answer: &RequestAnswerRow) -> bool {
    asked(row).is_some_and(|asked| denies(&asked, answer.option_id.as_deref()))
}

pub(super) fn denies(asked: &ClientPrompt, option_id: Option<&str>) -> bool {
    asked.options().iter().any(|option| {
        option.kind == RequestOptionKind::Deny && Some(option.option_id.as_str()) == option_id
    })
}

pub(super) fn asked(row: &RequestRow) -> Option<ClientPrompt> {
    kept(row).and_then(|kept| kept.asked)
}

fn kept(row: &RequestRow) -> Option<KeptPrompt> {
    row.prompt.clone().and_then(|prompt| serde_json::from_value(prompt).ok())
}

/// Appends an event about a prompt to the team stream. Everybody reads that stream, so the event
/// leaves out what is asked.
pub(super) async fn append_team_event(
    tx: &mut WriteTx,
    kind: &'static str,
    row: &RequestRow,
    mut about: Value,
) -> Result<(), StoreError> {
    about["request_id"] = json!(row.request_id);
    about["session_key"] = json!(row.session_key);
    about["kind"] = json!(row.kind);
    team::append_to_team(tx, NewEvent::new(kind, &about)).await
}

impl Prompts {
    /// Removes the options from a prompt that no hook holds any more, and also the answer if its
    /// hook did not print it. The options stay if another hook holds the prompt by now.
    pub(super) async fn withdraw(&self, id: &AgentRequestId, is_unprinted: bool) -> Result<()> {
        let (id, prompts) = (id.clone(), self.clone());
        let job = self.core.store.write(job!(|tx| {
            if is_unprinted {
                tx.requests().clear_answering(&id).await?;
            }
            if prompts.is_held(&id) {
                return Ok(());
            }
            let row = tx.requests().get(&id).await?.filter(|row| row.closed_at.is_none());
            if let Some(row) = row
                && tx.requests().withdraw_options(&id).await?
            {
                append_team_event(tx, "request.withdrawn", &row, json!({})).await?;
            }
            Ok(())
        }));
        job.await
    }

    /// Removes the options from all prompts: no hook holds a prompt when the daemon starts.
    #[boxed]
    pub async fn begin(&self) -> Result<()> {
        for row in self.core.store.requests().open_prompts().await? {
            if !row.options.is_empty() {
                self.withdraw(&row.request_id, false).await?;
            }
        }
        Ok(())
    }

    /// Closes the prompts whose clients have ended, or whose clients' records show no dialog.
    /// Removes the options from prompts without a holder, and opens prompts for dialogs that only a
    /// record shows.
    #[boxed]
    pub async fn sweep(&self) -> Result<()> {
        for row in self.core.store.requests().open_prompts().await? {
            let age = self.core.now().since(row.opened_at);
            if !row.options.is_empty() && age >= UNHELD && !self.is_held(&row.request_id) {
                // The hook ended before it learned that it had to hold the prompt.
                self.withdraw(&row.request_id, false).await?;
            }
            let session = row.session.clone();
            let peer = self.core.store.peers().of_session(&session).await?;
            let Some(process) = peer.and_then(|peer| peer.process()) else {
                // The sweep of peers has forgotten a process that is gone, and ended its session.
                let known = self.core.store.sessions().get(&session).await?;
                let ended_at = known.and_then(|session| session.ended_at);
                if ended_at.is_some_and(|at| at >= row.opened_at) {
                    self.end(&row.request_id, PromptEnd::Gone).await?;
                }
                continue;
            };
            let Some((is_running, record)) = self.record(process, session).await else { continue };
            let is_shown = record.is_none_or(|record| {
                let is_newer = record.at >= row.opened_at;
                // The record shows a later dialog than the one in this row.
                let is_another = kept(&row).is_some_and(|kept| kept.asked.is_none())
                    && record.at > row.opened_at;
                matches!(record.state, RecordedState::Waiting(_)) && !is_another
                    || !is_newer && age < limits::RECORD_GRACE
            });
            if !is_running {
                self.end(&row.request_id, PromptEnd::Gone).await?;
            } else if !is_shown {
                self.end(&row.request_id, PromptEnd::Answered).await?;
            }
        }
        self.open_dialogs().await
    }

    /// Closes a prompt. If it is closed already with another's answer and `end` says that the
    /// person's answer counted, corrects the answer on record.
    pub(in crate::service) async fn end(
        &self,
        id: &AgentRequestId,
        end: PromptEnd<'static>,
    ) -> Result<()> {
        let id = id.clone();
        let job = self.core.store.write(job!(|tx| {
            let Some(row) = tx.requests().get(&id).await? else { return Ok(()) };
            match &row.answer {
                None => close(tx, &row, end).await,
                Some(answer) if end == PromptEnd::Person && answer.by != TERMINAL => {
                    correct(tx, &row).await
                }
                Some(_) => Ok(()),
            }
        }));
        job.await
    }

    /// Whether the process of a session on this machine runs, and its client's record.
    async fn record(
        &self,
        process: MachineProcess,
        session: String,
    ) -> Option<(bool, Option<ClientRecord>)> {
        let here = self.core.store.machine().machine_id.clone();
        if process.machine_id != here {
            return None;
        }
        let read = move || {
            let is_running = process_list::state(&process, &here) == ProcessState::Running;
            let process = &process.process;
            let read = || client_records::read(client_records::CLAUDE, process, &session);
            (is_running, is_running.then(read).flatten())
        };
        tokio::task::spawn_blocking(read).await.ok()
    }

    /// Opens a prompt for each dialog that a record has shown for [`limits::RECORD_GRACE`] and that
    /// no hook has reported.
    async fn open_dialogs(&self) -> Result<()> {
        if self.core.attended == AttendedPrompts::Off {
            return Ok(());
        }
        for row in self.core.store.peers().waiting_in_processes(client_records::CLAUDE).await? {
            let Some(session) = row.peer.session_id.clone().filter(|_| is_dialog(&row)) else {
                continue;
            };
            let Some(process) = row.process() else { continue };
            let read = self.record(process, session).await;
            let Some((_, Some(record))) = read else { continue };
            let is_waiting = matches!(record.state, RecordedState::Waiting(_));
            if is_waiting && self.core.now().since(record.at) >= limits::RECORD_GRACE {
                let ids = self.core.ids.clone();
                let open =
                    self.core.store.write(job!(|tx| open_dialog(tx, &ids, row, record).await));
                open.await?;
            }
        }
        Ok(())
    }
}

/// Whether a session may be waiting at a dialog, and not for its vendor's limit.
fn is_dialog(row: &PeerRow) -> bool {
    let kind = row.peer.waiting_for.as_ref().map(|waiting| waiting.kind);
    kind != Some(WaitingKind::Limit) && !row.owner.as_deref().is_some_and(is_agent_key)
}

/// Opens a prompt for a dialog that a record shows and no hook reports (Claude Code asks some
/// things without calling its hook for permissions), unless the session has got a prompt since the
/// dialog was shown. Only the terminal can answer it.
async fn open_dialog(
    tx: &mut WriteTx,
    ids: &Ids,
    shown: PeerRow,
    record: ClientRecord,
) -> Result<(), StoreError> {
    let Some(session) = shown.peer.session_id else { return Ok(()) };
    let last = tx.requests().last_prompt(&session).await?;
    // A prompt that was opened well before the dialog is an earlier prompt, even if it was closed
    // later because the client's event came late. A prompt from a record has the time of its
    // dialog.
    let is_told = last.is_some_and(|last| {
        last.closed_at.is_none_or(|closed| match kept(&last).and_then(|kept| kept.shown_at) {
            Some(shown_at) => record.at <= shown_at,
            None => closed >= record.at && record.at <= last.opened_at.plus(limits::RECORD_GRACE),
        })
    });
    if is_told {
        return Ok(());
    }
    let Some(owned) = tx.sessions().owner(&session).await? else { return Ok(()) };
    let Some(peer) = tx.peers().get(&shown.peer.peer_id).await? else { return Ok(()) };
    let now = tx.now();
    let words = dialog_words(&record, peer.peer.waiting_for.as_ref());
    let kept = KeptPrompt { asked: None, calls: peer.open_calls, shown_at: Some(record.at) };
    let (id, whose) = (AgentRequestId::new(ids, now), (session, owned));
    let row = RequestRow {
        cwd: peer.peer.path,
        ..RequestRow::new(id, None, whose, words, Some(json!(kept)), now)
    };
    tx.requests().insert(&row).await?;
    append_team_event(tx, "request.opened", &row, json!({})).await
}

/// The question of a dialog: in the words of a hook that reported it, else in the words of the
/// record.
fn dialog_words(record: &ClientRecord, told: Option<&WaitingFor>) -> (RequestKind, String) {
    let kind = match record.state {
        RecordedState::Waiting(WaitingKind::Permission) => RequestKind::Permission,
        _ => RequestKind::Question,
    };
    let title = told.and_then(|told| told.title.clone()).or_else(|| record.asks.clone());
    (kind, title.unwrap_or_else(|| "a dialog at its terminal".to_owned()))
}

#[cfg(test)]
mod tests {
    use svc_model::{Caller, agent::RequestOption, hook::OpencodePrompt, journal::SessionSource};
    use svc_store::SessionStart;
    use tokio::{sync::oneshot, time::timeout};

    use super::*;
    use crate::service::testing::opened;

    fn offered(id: AgentRequestId, opened_at: Timestamp) -> RequestRow {
        let owned = Ownership::from_row("operator", String::new());
        let words = (RequestKind::Permission, "touch made".to_owned());
        RequestRow {
            options: vec![RequestOption {
                option_id: "allow".to_owned(),
                name: "Yes".to_owned(),
                kind: RequestOptionKind::AllowOnce,
                text: false,
            }],
            ..RequestRow::new(id, None, ("s".to_owned(), owned), words, Some(json!({})), opened_at)
        }
    }

    /// In lists of sessions, such a session has the key of its token, too.
    #[tokio::test]
    async fn a_prompt_of_a_token_like_an_agents_key_has_that_key() {
        let (test, services) = opened().await;
        for (owner, key) in [
            ("session:agent:exec:worker", "agent:exec:worker"),
            ("session:s", "agent:claude:s"),
            ("operator", "agent:claude:s"),
        ] {
            let id = AgentRequestId::new(&services.prompts.core.ids, services.now());
            let owned = Ownership::from_row(owner, String::new());
            let words = (RequestKind::Permission, "touch made".to_owned());
            let kept = KeptPrompt { asked: None, calls: OpenCalls::default(), shown_at: None };
            let whose = ("s".to_owned(), owned);
            let kept = Some(json!(kept));
            let row = RequestRow::new(id.clone(), None, whose, words, kept, services.now());
            assert_eq!(row.session_key, key, "{owner}");
            test.write(job!(|tx| tx.requests().insert(&row).await)).await;
            let read = test.store.requests().get(&id).await.unwrap().unwrap();
            assert_eq!(read.session_key, key, "{owner}");
        }
    }

    /// A connection breaks, and the client holds its prompt again before the options are removed.
    #[tokio::test]
    async fn a_prompt_that_is_held_again_keeps_its_options() {
        let (test, services) = opened().await;
        let (id, opened_at) = (AgentRequestId::from("req_again".to_owned()), services.now());
        let row = offered(id.clone(), opened_at);
        test.write(job!(|tx| tx.requests().insert(&row).await)).await;
        let hold = services.prompts.take_hold(&id).unwrap();
        let withdrawn = async || {
            services.prompts.withdraw(&id, false).await.unwrap();
            test.store.requests().get(&id).await.unwrap().unwrap().options.is_empty()
        };
        assert!(!withdrawn().await);
        drop(hold);
        assert!(withdrawn().await);
    }

    /// The job that removes the options has found no holder, and is not committed yet.
    #[tokio::test]
    async fn a_prompt_that_is_held_while_its_options_are_removed_is_offered_again() {
        let (test, services) = opened().await;
        let (id, opened_at) = (AgentRequestId::from("req_again".to_owned()), services.now());
        let properties = json!({ "id": "per_1", "permission": "bash", "patterns": ["touch made"] });
        let asked = OpencodePrompt::read(&properties).map(ClientPrompt::Opencode);
        let kept = KeptPrompt { asked, calls: OpenCalls::default(), shown_at: None };
        let row = RequestRow { prompt: Some(json!(kept)), ..offered(id.clone(), opened_at) };
        test.write(job!(|tx| tx.requests().insert(&row).await)).await;
        let (removed, is_removed) = oneshot::channel();
        let (commit, may_commit) = oneshot::channel();
        let request = id.clone();
        let removing = test.store.write(job!(|tx| {
            tx.requests().withdraw_options(&request).await?;
            removed.send(()).unwrap();
            may_commit.await.unwrap();
            Ok::<_, StoreError>(())
        }));
        let prompts = &services.prompts;
        let holding = async {
            is_removed.await.unwrap();
            prompts.hold(&Caller::Operator, id.as_str()).await.unwrap()
        };
        let committing = async {
            while !prompts.is_held(&id) {
                tokio::task::yield_now().await;
            }
            commit.send(()).unwrap();
        };
        let all = async { tokio::join!(removing, holding, committing) };
        let (removed, _held, ()) = timeout(Duration::from_mins(1), all).await.unwrap();
        removed.unwrap();
        let row = test.store.requests().get(&id).await.unwrap().unwrap();
        assert!(!row.options.is_empty());
    }

    /// The sweep of peers may see the end of a process first, and forgets the process.
    #[tokio::test]
    async fn a_prompt_of_a_session_that_ended_with_its_process_is_closed() {
        let (test, services) = opened().await;
        let id = AgentRequestId::from("req_left".to_owned());
        let row = offered(id.clone(), services.now());
        let start = SessionStart {
            session_id: row.session.clone(),
            project: None,
            client: None,
            source: SessionSource::Startup,
            created_by: "operator".to_owned(),
        };
        test.write(job!(|tx| {
            tx.sessions().begin(&start).await?;
            tx.requests().insert(&row).await
        }))
        .await;
        let answer_after_a_sweep = async || {
            services.prompts.sweep().await.unwrap();
            test.store.requests().get(&id).await.unwrap().unwrap().answer
        };
        assert!(answer_after_a_sweep().await.is_none(), "the session is open");
        test.write(job!(|tx| tx.sessions().end("s", Some("gone")).await)).await;
        assert_eq!(answer_after_a_sweep().await.unwrap().by, GONE);
    }

    #[tokio::test]
    async fn a_prompt_that_nobody_comes_to_hold_loses_its_options() {
        let (test, services) = opened().await;
        let opened_at = services.now();
        let ids = ["req_held", "req_left"].map(|id| AgentRequestId::from(id.to_owned()));
        for id in ids.clone() {
            let row = offered(id, opened_at);
            test.write(job!(|tx| tx.requests().insert(&row).await)).await;
        }
        let _hold = services.prompts.take_hold(&ids[0]).unwrap();
        for (after, options) in [(Duration::ZERO, 1), (UNHELD, 0)] {
            test.clock.advance(after);
            services.prompts.sweep().await.unwrap();
            let open = services.prompts.core.store.requests().open_prompts().await.unwrap();
            let of = |id: &AgentRequestId| {
                open.iter().find(|row| row.request_id == *id).unwrap().options.len()
            };
            assert_eq!((of(&ids[0]), of(&ids[1])), (1, options), "{after:?}");
        }
    }
}
