//! The queue of a principal's write jobs. The writer takes jobs from the queues in turn.

use std::sync::Arc;

use svc_model::{Caller, Principal};

/// Names the queue in which a write job waits. Each principal has its own; the operator and the
/// daemon share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WriteQueueKey(Option<Arc<str>>);

impl WriteQueueKey {
    /// The queue of the operator and of the daemon itself.
    pub const DAEMON: Self = Self(None);

    pub fn for_principal(principal: &Principal) -> Self {
        match principal {
            Principal::Operator => Self::DAEMON,
            Principal::Session(key) => Self(Some(Arc::clone(key))),
        }
    }

    pub fn of_caller(caller: &Caller) -> Self {
        Self::for_principal(&caller.principal())
    }

    pub const fn is_daemon(&self) -> bool {
        self.0.is_none()
    }
}
