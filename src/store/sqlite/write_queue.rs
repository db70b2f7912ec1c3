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
        if !lane.jobs.is_empty() {
            state.turns.push_back(turn);
        } else if Arc::strong_count(&lane.room) == 1 {
            // Nobody is about to hand over another.
            state.lanes.remove(&turn);
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
        let room = {
            let mut state = self.0.lock();
            if state.is_closed {
                return Err(StoreError::Stopped);
            }
            Arc::clone(&state.lane(&turn).room)
        };
        // It is given back when the job is taken.
        room.acquire().await.map_err(|_| StoreError::Stopped)?.forget();
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(StoreError::Stopped);
        }
        let lane = state.lane(&turn);
        let is_first = lane.jobs.is_empty();
        lane.jobs.push_back(job);
        if is_first {
            state.turns.push_back(turn);
        }
        drop(state);
        self.0.arrived.notify_one();
        Ok(())
    }

    /// Jobs that wait.
    pub(super) fn queued(&self) -> usize {
        self.0.lock().lanes.values().map(|lane| lane.jobs.len()).sum()
    }
}
