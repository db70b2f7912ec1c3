//! Calls that wait for the answer to an assignment, and the end of such a wait without the answer.

use std::time::Duration;

use svc_model::{Caller, RunId, Timestamp, conversation::RunState};
use svc_store::job;
use tokio::{runtime::Handle, time::sleep};

use super::Agents;
use crate::service::{
    Error, Result,
    assignments::{hold_answer, tell_again},
    core::lock,
};

/// The wait before the next attempt to reach a database that is away.
const PAUSE: Duration = Duration::from_secs(1);

/// A call that waits for an answer. If it is dropped before the response with the answer was handed
/// to the connection, as that was cut, a message brings the answer.
#[derive(Debug)]
pub struct AnswerWaiter {
    agents: Agents,
    caller: Caller,
    run: RunId,
    /// When the wait ends. It identifies the call: no two waits for one answer end alike.
    until: Timestamp,
    takes_answer: bool,
    is_handed: bool,
}

impl AnswerWaiter {
    /// Notes that the call takes the answer now. Called before that is stored: the call may be cut
    /// meanwhile.
    pub fn note_answer(&mut self) {
        self.takes_answer = true;
    }

    /// Ends the wait: the response was handed to the connection.
    pub fn note_handed(mut self) {
        self.is_handed = true;
    }
}

impl Drop for AnswerWaiter {
    fn drop(&mut self) {
        let wait = (self.run.clone(), self.until);
        lock(&self.agents.live.waits).remove(&wait);
        let (false, Ok(runtime)) = (self.is_handed, Handle::try_current()) else { return };
        let (agents, caller, takes_answer) =
            (self.agents.clone(), self.caller.clone(), self.takes_answer);
        runtime.spawn(async move {
            while let Err(error) = agents.stop_waiting(&caller, wait.clone(), takes_answer).await {
                error.report("cannot note that a call waits no more");
                let is_away =
                    matches!(error, Error::StoreUnavailable(_) | Error::OutcomeUnknown { .. });
                if !is_away {
                    return;
                }
                // The call may have been cut because the database is away.
                sleep(PAUSE).await;
            }
        });
    }
}

impl Agents {
    /// Begins the wait of a call until `until`, which is also in the assignment's row.
    pub(in crate::service) fn wait_for_answer(
        &self,
        caller: &Caller,
        run: &RunId,
        until: Timestamp,
    ) -> AnswerWaiter {
        lock(&self.live.waits).insert((run.clone(), until));
        AnswerWaiter {
            agents: self.clone(),
            caller: caller.clone(),
            run: run.clone(),
            until,
            takes_answer: false,
            is_handed: false,
        }
    }

    fn last_wait(&self, run: &RunId) -> Option<Timestamp> {
        let waits = lock(&self.live.waits);
        waits.iter().filter(|(waited, _)| waited == run).map(|(_, until)| *until).max()
    }

    /// Ends the wait of the call that waited until `until`. If a later call waits, the assignment's
    /// row has the end of that later wait and stays unchanged. An earlier call may still wait.
    /// Every call of this process that waits is known before its row is committed. With
    /// `takes_answer`, the call may have taken the answer, by an earlier job of the same queue.
    pub(super) async fn stop_waiting(
        &self,
        caller: &Caller,
        (run, until): (RunId, Timestamp),
        takes_answer: bool,
    ) -> Result<()> {
        let agents = self.clone();
        let store = self.core.store.on_behalf_of(caller);
        let write = store.write(job!(|tx| {
            let Some(mut work) = tx.assignments().get(&run).await? else { return Ok(()) };
            if takes_answer && work.answered.is_some_and(RunState::is_over) {
                return Ok(tell_again(tx, &agents.core, &mut work).await?);
            }
            if work.waits_until != Some(until) {
                return Ok(());
            }
            work.waits_until = agents.last_wait(&run);
            tx.assignments().update(&work).await?;
            if work.ended_at.is_some() {
                // The answer came after the call was cut, and is held for the call.
                hold_answer(tx, &work).await?;
            }
            Ok(())
        }));
        write.await
    }

    /// Calls that waited for the answer to a task ended with the process that had them. Where
    /// several machines share the database, nobody knows whose call a wait is, and it lasts until
    /// its end.
    pub(super) async fn end_former_waits(&self) -> Result<()> {
        if !self.core.machine_names().await?.is_empty() {
            return Ok(());
        }
        for (run, until) in self.core.store.assignments().awaited(self.core.now()).await? {
            self.stop_waiting(&Caller::Operator, (run, until), false).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use svc_model::{NewTask, PeerId, StreamName, TaskId};
    use svc_store::{AssignmentRow, testing::TestStore};
    use tokio::time::timeout;

    use super::*;
    use crate::service::{
        PageBounds, Services,
        assignments::{self, AssignmentOutcome, TaskEnd},
        tasks, team,
        testing::{opened, session},
    };

    /// Work of the session `s-1`, with its peer, its task, and a wait until each of `untils`.
    async fn work(
        test: &TestStore,
        agents: &Agents,
        untils: &[Timestamp],
    ) -> Result<(PeerId, TaskId, Vec<AnswerWaiter>)> {
        let (agents, untils) = (agents.clone(), untils.to_vec());
        let made = test.store.write(job!(|tx| {
            let (core, caller) = (&agents.core, session("s-1", &[]));
            let peer = team::peer_of_speaker(tx, core, &caller, "s-1").await?.peer_id;
            let new = NewTask { prompt: Some("go".to_owned()), ..NewTask::default() };
            let task = tasks::make(tx, core, &caller, new).await?.task.task_id;
            let row = AssignmentRow {
                task_id: Some(task.clone()),
                waits_until: untils.last().copied(),
                instance: "slow".to_owned(),
                ..AssignmentRow::new(RunId::from_task(&task), "s-1".to_owned(), tx.now())
            };
            tx.assignments().insert(&row).await?;
            let wait = |until| agents.wait_for_answer(&caller, &row.run_id, until);
            let waits = untils.into_iter().map(wait);
            Ok((peer, task, waits.collect()))
        }));
        made.await
    }

    async fn end(test: &TestStore, agents: &Agents, task: &TaskId) -> Result<()> {
        let (agents, task) = (agents.clone(), task.clone());
        let end = test.store.write(job!(|tx| {
            let work = tx.assignments().of_task(&task).await?;
            let (Some(mut work), Some(mut task)) = (work, tx.tasks().get(&task).await?) else {
                panic!("no work");
            };
            let end = TaskEnd::new(AssignmentOutcome::Failed, Some("no answer".to_owned()));
            assignments::end(tx, &agents.core, &mut work, &mut task, end).await
        }));
        end.await
    }

    /// The number of messages that the session takes from its inbox.
    async fn taken(services: &Services, peer: &PeerId) -> Result<usize> {
        let (caller, page) = (session("s-1", &[]), PageBounds::new(None, None));
        Ok(services.team.take_messages(&caller, peer.as_str(), page).await?.items.len())
    }

    /// The work ends after the calls were cut, and before that is noted.
    #[tokio::test]
    async fn an_answer_that_is_held_for_cut_calls_comes_with_the_last_cut() {
        let (test, services) = opened().await;
        let first = services.now().plus(Duration::from_hours(1));
        let second = first.plus(Duration::from_millis(1));
        let (peer, task, waits) = work(&test, &services.agents, &[first, second]).await.unwrap();
        end(&test, &services.agents, &task).await.unwrap();
        let mut events = test.store.bus().listen(&StreamName::new("peer", &peer));
        for (wait, messages) in waits.into_iter().rev().zip([0, 1]) {
            let head = events.last();
            drop(wait);
            timeout(Duration::from_mins(1), events.wait(head)).await.unwrap();
            assert_eq!(taken(&services, &peer).await.unwrap(), messages);
        }
    }

    #[tokio::test]
    async fn answer_that_a_message_has_brought_is_not_returned_by_a_repeated_call() {
        let (test, services) = opened().await;
        let caller = session("s-1", &[]);
        for is_taken in [true, false] {
            let (peer, task, _) = work(&test, &services.agents, &[]).await.unwrap();
            end(&test, &services.agents, &task).await.unwrap();
            if is_taken {
                assert_eq!(taken(&services, &peer).await.unwrap(), 1);
            }
            for _ in 0..2 {
                let answer = services.agents.return_answer(&caller, &task).await.unwrap();
                assert_eq!(answer.unwrap().was_sent, is_taken);
            }
            assert_eq!(taken(&services, &peer).await.unwrap(), 0);
        }
    }
    /// The call has taken the answer, and is cut before its response is handed over.
    #[tokio::test]
    async fn answer_that_was_not_handed_over_comes_as_a_message() {
        let (test, services) = opened().await;
        let caller = session("s-1", &[]);
        let until = services.now().plus(Duration::from_hours(1));
        for is_handed in [false, true] {
            let (peer, task, waits) = work(&test, &services.agents, &[until]).await.unwrap();
            end(&test, &services.agents, &task).await.unwrap();
            let answer = async || {
                let answer = services.agents.return_answer(&caller, &task).await.unwrap();
                answer.unwrap().was_sent
            };
            for mut wait in waits {
                wait.note_answer();
                assert!(!answer().await);
                let mut events = test.store.bus().listen(&StreamName::new("peer", &peer));
                let head = events.last();
                if is_handed {
                    wait.note_handed();
                } else {
                    drop(wait);
                    timeout(Duration::from_mins(1), events.wait(head)).await.unwrap();
                }
            }
            assert_eq!(taken(&services, &peer).await.unwrap(), usize::from(!is_handed));
            assert_eq!(answer().await, !is_handed, "it comes once");
        }
    }
}
