//! For whom a write is: the writer takes the lanes in turns.

use std::sync::Arc;

use crate::domain::Principal;

tokio::task_local! {
    static LANE: WriteLane;
}

/// The lane of the writer's queue in which a task's writes wait. Each principal has one; that of the operator and of the
/// daemon itself is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct WriteLane(Option<Arc<str>>);

impl WriteLane {
    /// The lane of a principal.
    pub fn of(principal: &Principal) -> Self {
        match principal {
            Principal::Operator => Self(None),
            Principal::Session(key) => Self(Some(Arc::clone(key))),
        }
    }

    /// The lane of the present task.
    pub fn current() -> Self {
        LANE.try_with(Self::clone).unwrap_or_default()
    }

    /// Lets the writes of a future wait in this lane. A task that it spawns begins in the default lane again, unless it
    /// is given `WriteLane::current().scope(…)`.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        LANE.scope(self, work)
    }

    /// Whether this is the lane of the operator and of the daemon itself.
    pub const fn is_default(&self) -> bool {
        self.0.is_none()
    }
}
