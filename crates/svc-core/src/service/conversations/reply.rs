//! Waits for the result of a send.

use svc_model::{
    Delivery, ExpectedDelivery, RunId, StreamName,
    conversation::{RunState, SendStatus},
};
use svc_store::{AssignmentRow, Batch, Heard, StoreError, StreamListener, WriteTx};

use super::{
    Conversations,
    send::{SessionReply, last_delivery},
};
use crate::service::{Error, assignments::note_returned};

/// Most bytes of events that are read at once.
const EVENTS_BYTES: usize = 64 * 1024;

/// Whether a call goes on waiting for the result of its send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// The call waits on if there is no result yet.
    Left,
    /// The call returns without the reply.
    Over,
}

impl Conversations {
    /// The response to the sender: with the reply if that comes while the call waits, or was there
    /// already.
    pub(super) async fn outcome(
        &self,
        run: AssignmentRow,
        when: ExpectedDelivery,
    ) -> Result<SessionReply, Error> {
        let stream = StreamName::new("peer", &run.source_peer);
        let store = &self.core.store;
        // Listens before it reads, or an end that comes in between would be missed.
        let mut listener = store.bus().listen(&stream);
        let wait = run.waits_until.map(|until| until.since(self.core.now())).unwrap_or_default();
        let end = tokio::time::Instant::now() + wait;
        loop {
            let head = listener.last();
            let known = store.assignments().get(&run.run_id).await?.ok_or(StoreError::NoStream)?;
            let is_there = known.answered.is_some() || known.state.is_over();
            let patience =
                if tokio::time::Instant::now() < end { Patience::Left } else { Patience::Over };
            if (is_there || patience == Patience::Over)
                && let Some(settled) = self.settle(&run.run_id, patience).await?
            {
                return Ok(settled.into_reply(when));
            }
            tokio::select! {
                () = wait_for_end(&mut listener, head) => {}
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }

    /// Takes the reply, or settles the send without it; `None` if the call is to wait on.
    async fn settle(&self, id: &RunId, patience: Patience) -> Result<Option<SettledRun>, Error> {
        let id = id.clone();
        self.core
            .store
            .write(move |tx| Box::pin(async move { settle(tx, &id, patience).await }))
            .await
    }
}

/// Waits for an event after `cursor` that ends a send of the stream's peer.
async fn wait_for_end(listener: &mut StreamListener<Batch>, mut cursor: i64) {
    loop {
        listener.wait(cursor).await;
        let Heard::Items(batches) = listener.hear(cursor, EVENTS_BYTES) else { return };
        let mut events = batches.iter().flat_map(|batch| &batch.events);
        if events.any(|event| &*event.kind == "run.ended") {
            return;
        }
        cursor = batches.last().map_or(cursor, |last| last.seqs.1);
    }
}

/// A send for which its call waits no longer, and what the call returns.
#[derive(Debug)]
struct SettledRun {
    run: AssignmentRow,
    /// The text of the reply, if there is one.
    reply: Option<String>,
    /// The delivery states of its message so far.
    states: Vec<Delivery>,
}

impl SettledRun {
    async fn read(tx: &mut WriteTx, run: AssignmentRow) -> Result<Self, StoreError> {
        let reply = match (&run.reply_id, run.answered.unwrap_or(run.state.as_run())) {
            (Some(id), RunState::Ok) => tx.messages().get(id).await?.map(|it| it.text),
            _ => None,
        };
        let states = match &run.message_id {
            Some(id) => tx.messages().deliveries(id).await?,
            None => Vec::new(),
        };
        Ok(Self { run, reply, states })
    }

    fn into_reply(self, when: ExpectedDelivery) -> SessionReply {
        let Self { run, reply, states } = self;
        let answered = run.answered.unwrap_or(run.state.as_run());
        let status = match (SendStatus::from(answered), &reply) {
            // The send asked for no answer, and the session has it.
            (SendStatus::Ok, None) => SendStatus::Accepted,
            (status, _) => status,
        };
        let is_failed = status == SendStatus::Error || status == SendStatus::Timeout;
        SessionReply {
            status,
            delivery: last_delivery(states, when),
            error: run.error.filter(|_| is_failed),
            reason: run.reason.filter(|_| is_failed),
            run_id: run.run_id,
            session_key: run.target_session,
            message_id: run.message_id,
            reply,
        }
    }
}

async fn settle(
    tx: &mut WriteTx,
    id: &RunId,
    patience: Patience,
) -> Result<Option<SettledRun>, Error> {
    let mut run = tx.assignments().get(id).await?.ok_or(StoreError::NoStream)?;
    if run.answered.is_some() {
        return Ok(Some(SettledRun::read(tx, run).await?));
    }
    if !run.state.is_over() && patience == Patience::Left {
        return Ok(None);
    }
    if run.state.is_over() {
        note_returned(tx, &mut run).await?;
    } else {
        (run.answered, run.waits_until) = (Some(RunState::Queued), None);
        tx.assignments().update(&run).await?;
    }
    Ok(Some(SettledRun::read(tx, run).await?))
}
