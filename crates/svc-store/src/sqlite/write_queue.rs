//! The writer's queue. Each principal has a lane, and the lanes are taken in turns: who writes much
//! waits behind its own writes, and its neighbours behind one of each lane. Within a lane the order
//! is that of arrival.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use svc_model::limits;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::write_job::WriterJob;
use crate::{StoreError, WriteLane};

/// The queue, as the writer sees it.
#[derive(Default)]
pub(super) struct WriteQueue {
    state: Mutex<QueuedJobs>,
    arrived: Condvar,
}

/// The end of those who write. When the last is gone, the queue is closed.
pub(super) struct WriteQueueSender(Arc<WriteQueue>);

/// A sender that waits for room in its lane. Dropping it removes the lane if it is empty.
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
    /// Whether the writer waits for a job.
    is_awaited: bool,
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
            let room = if lane.is_daemon() { limits::WRITE_QUEUE } else { limits::WRITE_LANE };
            Lane { jobs: VecDeque::new(), room: Arc::new(Semaphore::new(room)) }
        })
    }

    /// The next job, if there is one.
    fn next(&mut self) -> Option<WriterJob> {
        let turn = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&turn)?;
        let job = lane.jobs.pop_front()?;
        lane.room.add_permits(1);
        if lane.jobs.is_empty() {
            self.forget_if_unused(&turn);
        } else {
            self.turns.push_back(turn);
        }
        Some(job)
    }

    /// Takes room for a job in a lane, if it has any. It is given back when the job is taken.
    fn take_room(&mut self, turn: &WriteLane) -> bool {
        self.lane(turn).room.try_acquire().map(SemaphorePermit::forget).is_ok()
    }

    /// Puts a job at the end of its lane. Tells whether the writer has to be woken.
    fn push(&mut self, turn: &WriteLane, job: WriterJob) -> bool {
        let lane = self.lane(turn);
        let is_first = lane.jobs.is_empty();
        lane.jobs.push_back(job);
        if is_first {
            self.turns.push_back(turn.clone());
        }
        std::mem::take(&mut self.is_awaited)
    }

    fn close(&mut self) {
        self.is_closed = true;
        for lane in self.lanes.values() {
            lane.room.close();
        }
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

    /// Waits for a job; `false` once the queue is closed and empty.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.lock();
        while state.turns.is_empty() && !state.is_closed {
            state.is_awaited = true;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_awaited = false;
        !state.turns.is_empty()
    }

    /// Gives the jobs that are there, until `take` wants no more. A stop closes the queue.
    pub(super) fn take(&self, mut take: impl FnMut(WriterJob) -> bool) {
        let mut state = self.lock();
        while let Some(job) = state.next() {
            if let WriterJob::Stop { reply } = job {
                state.close();
                reply.send(()).ok();
            } else if !take(job) {
                break;
            }
        }
    }

    /// Takes no more jobs. Those that queue are still given.
    fn close(&self) {
        self.lock().close();
        self.arrived.notify_one();
    }
}

impl WriteQueueSender {
    pub(super) fn open() -> (Self, Arc<WriteQueue>) {
        let queue = Arc::new(WriteQueue::default());
        (Self(Arc::clone(&queue)), queue)
    }

    /// Hands over a job in a lane, as soon as that has room.
    pub(super) async fn send(&self, turn: &WriteLane, job: WriterJob) -> Result<(), StoreError> {
        let waiting = {
            let mut state = self.0.lock();
            if state.is_closed {
                return Err(StoreError::Stopped);
            }
            if state.take_room(turn) {
                let is_awaited = state.push(turn, job);
                drop(state);
                self.wake(is_awaited);
                return Ok(());
            }
            let room = Some(Arc::clone(&state.lane(turn).room));
            WaitingSender { queue: &self.0, turn, room }
        };
        if let Some(room) = &waiting.room {
            room.acquire().await.map_err(|_| StoreError::Stopped)?.forget();
        }
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(StoreError::Stopped);
        }
        let is_awaited = state.push(turn, job);
        drop(state);
        self.wake(is_awaited);
        drop(waiting);
        Ok(())
    }

    fn wake(&self, is_awaited: bool) {
        if is_awaited {
            self.0.arrived.notify_one();
        }
    }

    /// Jobs that wait.
    pub(super) fn queued(&self) -> usize {
        self.0.lock().lanes.values().map(|lane| lane.jobs.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, future::join_all};
    use svc_model::Principal;
    use tokio::sync::oneshot;

    use super::*;

    fn job() -> WriterJob {
        WriterJob::Stop { reply: oneshot::channel().0 }
    }

    #[tokio::test]
    async fn a_lane_goes_with_its_last_job_and_with_the_last_who_gave_up_waiting() {
        let (sender, queue) = WriteQueueSender::open();
        let lane = WriteLane::for_principal(&Principal::Session("greedy".into()));
        let send = || sender.send(&lane, job());
        join_all((0..limits::WRITE_LANE).map(|_| send())).await;
        let mut waiting = Box::pin(send());
        assert!(waiting.as_mut().now_or_never().is_none(), "the lane is full");
        while queue.lock().next().is_some() {}
        assert_eq!(queue.lock().lanes.len(), 1, "one is about to hand over its job");
        drop(waiting);
        assert!(queue.lock().lanes.is_empty());
        send().await.unwrap();
        assert!(queue.lock().next().is_some());
        assert!(queue.lock().lanes.is_empty());
    }
}
