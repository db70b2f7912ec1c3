//! Waits for the result of a send.

use svc_model::{
    Caller, ExpectedDelivery, RunId, StreamName,
    conversation::{RunState, SendStatus},
};
use svc_store::{StoreError, WriteTx, job};
use tokio::time::{Instant, sleep_until};

use super::{
    Conversations,
    send::{SentRun, SessionReply, last_delivery},
};
use crate::service::{
    Result,
    agents::AnswerWaiter,
    assignments::{is_answer_given, note_returned},
    core::wait_for_event,
};

impl Conversations {
    /// The response to the sender. It has the reply if the reply is there, or comes while the call
    /// waits. If the future is dropped, or later the waiter that comes with a reply, a message
    /// brings the reply.
    pub(super) async fn outcome(
        &self,
        caller: &Caller,
        sent: SentRun,
        when: ExpectedDelivery,
    ) -> Result<(SessionReply, Option<AnswerWaiter>)> {
        let SentRun { row: run, wait } = sent;
        let (waiter, until) = wait.unzip();
        let stream = StreamName::new("peer", &run.source_peer);
        let store = &self.core.store;
        // Listens before it reads; otherwise it would miss an end that comes in between.
        let mut listener = store.bus().listen(&stream);
        let wait = until.map(|until| until.since(self.core.now())).unwrap_or_default();
        let end = Instant::now() + wait;
        loop {
            let head = listener.last();
            let known = store.assignments().get(&run.run_id).await?.ok_or(StoreError::NoStream)?;
            let is_there = known.answered.is_some() || known.state.is_over();
            let may_wait = Instant::now() < end;
            if is_there || !may_wait {
                if let (Some(waiter), None) = (&waiter, known.answered) {
                    waiter.note_answer();
                }
                let id = run.run_id.clone();
                let writes = store.on_behalf_of(caller);
                let job = writes.write(job!(|tx| settle(tx, &id, may_wait, when).await));
                if let Some(reply) = job.await? {
                    return Ok((reply, waiter));
                }
            }
            tokio::select! {
                () = wait_for_event(&mut listener, head, |kind| kind == "run.ended") => {}
                () = sleep_until(end) => {}
            }
        }
    }
}

/// Takes the reply of a send, or settles the send without one; `None` if the call `may_wait` and
/// there is no result yet.
async fn settle(
    tx: &mut WriteTx,
    id: &RunId,
    may_wait: bool,
    when: ExpectedDelivery,
) -> Result<Option<SessionReply>> {
    let mut run = tx.assignments().get(id).await?.ok_or(StoreError::NoStream)?;
    if run.answered.is_none() {
        let is_over = run.state.is_over();
        if is_over && !is_answer_given(tx, &run).await? {
            note_returned(tx, &mut run).await?;
        } else if may_wait && !is_over {
            return Ok(None);
        } else {
            // The inbox brings the reply, or has handed it out since an earlier call was cut.
            (run.answered, run.waits_until) = (Some(RunState::Queued), None);
            tx.assignments().update(&run).await?;
        }
    }
    let answered = run.answered.unwrap_or(run.state.as_run());
    let reply = match &run.reply_id {
        Some(id) if answered == RunState::Ok => tx.messages().get(id).await?.map(|it| it.text),
        _ => None,
    };
    let states = match &run.message_id {
        Some(id) => tx.messages().deliveries(id).await?,
        None => Vec::new(),
    };
    let status = match (SendStatus::from(answered), &reply) {
        // The send asked for no answer, and the session has the text.
        (SendStatus::Ok, None) => SendStatus::Accepted,
        (status, _) => status,
    };
    let is_failed = status == SendStatus::Error || status == SendStatus::Timeout;
    Ok(Some(SessionReply {
        status,
        delivery: last_delivery(states, when),
        error: run.error.filter(|_| is_failed),
        reason: run.reason.filter(|_| is_failed),
        run_id: run.run_id,
        session_key: run.target_session,
        message_id: run.message_id,
        reply,
    }))
}
