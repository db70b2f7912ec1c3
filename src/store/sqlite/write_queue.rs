//! The writer's queue. Each principal has a lane, and the lanes are taken in turns: who writes much waits behind its own
//! writes, and its neighbours behind one of each lane. Within a lane the order is that of arrival.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, Semaphore};

use super::write_job::WriterJob;
use crate::{
    domain::limits,
    store::{StoreError, WriteLane},
};

/// The queue, as the writer sees it.
#[derive(Default)]
pub(super) struct WriteQueue {
    state: Mutex<QueuedJobs>,
    arrived: Notify,
}

/// The end of those who write. When the last is gone, the queue is closed.
pub(super) struct WriteQueueSender(Arc<WriteQueue>);

/// One that waits for room in its lane. When it gives up, a lane that nobody needs any more goes with it.
struct WaitingSender<'a> {
    queue: &'a WriteQueue,
    turn: &'a WriteLane,
    room: Option<Arc<Semaphore>>,
}

impl Drop for WaitingSender<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        self.room = None;
        state.forget_if_unused(self.turn);
    }
}

#[derive(Default)]
struct QueuedJobs {
    lanes: HashMap<WriteLane, Lane>,
    /// The lanes that have jobs, in the order of their turns.
    turns: VecDeque<WriteLane>,
    is_closed: bool,
}

struct Lane {
    jobs: VecDeque<WriterJob>,
    /// One permit for each job that may still queue.
    room: Arc<Semaphore>,
}

impl std::fmt::Debug for WriteQueueSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteQueueSender").field("queued", &self.queued()).finish()
    }
}

impl Drop for WriteQueueSender {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl QueuedJobs {
    fn lane(&mut self, lane: &WriteLane) -> &mut Lane {
        self.lanes.entry(lane.clone()).or_insert_with(|| {
            let room = if lane.is_default() { limits::WRITE_QUEUE } else { limits::WRITE_LANE };
            Lane { jobs: VecDeque::new(), room: Arc::new(Semaphore::new(room)) }
        })
    }

    /// Removes a lane without jobs that nobody is about to hand one over to.
    fn forget_if_unused(&mut self, turn: &WriteLane) {
        let is_unused = |lane: &Lane| lane.jobs.is_empty() && Arc::strong_count(&lane.room) == 1;
        if self.lanes.get(turn).is_some_and(is_unused) {
            self.lanes.remove(turn);
        }
    }
}

impl WriteQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedJobs> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job; `None` once the queue is closed and empty.
    pub(super) async fn next(&self) -> Option<WriterJob> {
        loop {
            if let Some(job) = self.try_next() {
                return Some(job);
            }
            if self.lock().is_closed {
                return None;
            }
            self.arrived.notified().await;
        }
    }

    /// The next job, if there is one.
    pub(super) fn try_next(&self) -> Option<WriterJob> {
        let mut state = self.lock();
        let turn = state.turns.pop_front()?;
        let lane = state.lanes.get_mut(&turn)?;
        let job = lane.jobs.pop_front()?;
        lane.room.add_permits(1);
        if lane.jobs.is_empty() {
            state.forget_if_unused(&turn);
        } else {
            state.turns.push_back(turn);
        }
        Some(job)
    }

    /// Takes no more jobs. Those that queue are still given.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for lane in state.lanes.values() {
            lane.room.close();
        }
        drop(state);
        self.arrived.notify_one();
    }
}

impl WriteQueueSender {
    /// Opens a queue.
    pub(super) fn open() -> (Self, Arc<WriteQueue>) {
        let queue = Arc::new(WriteQueue::default());
        (Self(Arc::clone(&queue)), queue)
    }

    /// Hands over a job in the lane of the present task, as soon as that has room.
    pub(super) async fn send(&self, job: WriterJob) -> Result<(), StoreError> {
        let turn = WriteLane::current();
        let waiting = {
            let mut state = self.0.lock();
            if state.is_closed {
                return Err(StoreError::Stopped);
            }
            let room = Some(Arc::clone(&state.lane(&turn).room));
            WaitingSender { queue: &self.0, turn: &turn, room }
        };
        if let Some(room) = &waiting.room {
            // It is given back when the job is taken.
            room.acquire().await.map_err(|_| StoreError::Stopped)?.forget();
        }
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(StoreError::Stopped);
        }
        let lane = state.lane(&turn);
        let is_first = lane.jobs.is_empty();
        lane.jobs.push_back(job);
        if is_first {
            state.turns.push_back(turn.clone());
        }
        drop(state);
        self.0.arrived.notify_one();
        drop(waiting);
        Ok(())
    }

    /// Jobs that wait.
    pub(super) fn queued(&self) -> usize {
        self.0.lock().lanes.values().map(|lane| lane.jobs.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::join_all};
    use tokio::sync::oneshot;

    use super::*;
    use crate::domain::Principal;

    fn job() -> WriterJob {
        WriterJob::Stop { reply: oneshot::channel().0 }
    }

    #[tokio::test]
    async fn a_lane_goes_with_its_last_job_and_with_the_last_who_gave_up_waiting() {
        let (sender, queue) = WriteQueueSender::open();
        let lane = WriteLane::of(&Principal::Session("greedy".into()));
        let send = || lane.clone().scope(sender.send(job()));
        join_all((0..limits::WRITE_LANE).map(|_| send())).await;
        let mut waiting = Box::pin(send());
        assert!(waiting.as_mut().now_or_never().is_none(), "the lane is full");
        while queue.try_next().is_some() {}
        assert_eq!(queue.lock().lanes.len(), 1, "one is about to hand over its job");
        drop(waiting);
        assert!(queue.lock().lanes.is_empty());
        send().await.unwrap();
        assert!(queue.try_next().is_some());
        assert!(queue.lock().lanes.is_empty());
    }
}
