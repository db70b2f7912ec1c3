//! Dialogs that a client's record shows and that no hook tells of: Claude Code asks some things
//! without its hook for permissions. Each is a prompt that its terminal alone answers.

use svc_model::{
    AgentRequestId, ClientRecord, Ids, RecordedState, WaitingFor, WaitingKind, agent::RequestKind,
    hook::AttendedPrompts, is_agent_key, limits,
};
use svc_store::{PeerRow, RequestRow, StoreError, WriteTx};
use svc_sys::client_records;

use super::{
    Prompts,
    settle::{KeptPrompt, append_team_event, kept},
};
use crate::service::Error;

impl Prompts {
    /// Opens a prompt for each dialog that a record has shown for [`limits::RECORD_GRACE`] and that
    /// no hook has told of.
    pub(super) async fn open_dialogs(&self) -> Result<(), Error> {
        if self.attended == AttendedPrompts::Off {
            return Ok(());
        }
        for row in self.core.store.peers().waiting_in_processes(client_records::CLAUDE).await? {
            let Some(session) = row.peer.session_id.clone().filter(|_| is_dialog(&row)) else {
                continue;
            };
            let Some(process) = row.process() else { continue };
            let read =
                move || client_records::read(client_records::CLAUDE, &process.process, &session);
            let Ok(Some(record)) = tokio::task::spawn_blocking(read).await else { continue };
            let is_waiting = matches!(record.state, RecordedState::Waiting(_));
            if is_waiting && self.core.now().since(record.at) >= limits::RECORD_GRACE {
                let ids = self.core.ids.clone();
                let open = self.core.store.write(move |tx| {
                    Box::pin(async move { open_dialog(tx, &ids, row, record).await })
                });
                let opened: Result<(), StoreError> = open.await;
                opened?;
            }
        }
        Ok(())
    }
}

/// Whether a session may wait at a dialog, and not for its vendor.
fn is_dialog(row: &PeerRow) -> bool {
    let kind = row.peer.waiting_for.as_ref().map(|waiting| waiting.kind);
    kind != Some(WaitingKind::Limit) && !row.owner.as_deref().is_some_and(is_agent_key)
}

/// Opens the prompt if the session has none since the dialog was shown.
async fn open_dialog(
    tx: &mut WriteTx,
    ids: &Ids,
    shown: PeerRow,
    record: ClientRecord,
) -> Result<(), StoreError> {
    let Some(session) = shown.peer.session_id else { return Ok(()) };
    let last = tx.requests().last_prompt(&session).await?;
    // A prompt that opened well before the dialog is an earlier one, though it closed later: the
    // client's event came late. Of a prompt that a record told of, the time of its dialog is known.
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
    let (kind, title) = asked(&record, peer.peer.waiting_for.as_ref());
    let kept = KeptPrompt { asked: None, calls: peer.open_calls, shown_at: Some(record.at) };
    let row = RequestRow {
        request_id: AgentRequestId::new(ids, now),
        agent_id: None,
        session_key: session,
        peer_id: None,
        owned,
        kind,
        title,
        cwd: peer.peer.path,
        tool: None,
        prompt: Some(serde_json::to_value(kept).unwrap_or_default()),
        options: Vec::new(),
        opened_at: now,
        deadline: None,
        answering: None,
        closed_at: None,
        answer: None,
    };
    tx.requests().insert(&row).await?;
    append_team_event(tx, "request.opened", &row, serde_json::json!({})).await
}

/// What is asked, in words: those of a hook that told of it, else those of the client.
fn asked(record: &ClientRecord, told: Option<&WaitingFor>) -> (RequestKind, String) {
    let kind = match record.state {
        RecordedState::Waiting(WaitingKind::Permission) => RequestKind::Permission,
        _ => RequestKind::Question,
    };
    let title = told.and_then(|told| told.title.clone()).or_else(|| record.asks.clone());
    (kind, title.unwrap_or_else(|| "a dialog at its terminal".to_owned()))
}
