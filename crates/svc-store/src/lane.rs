//! For whom a write is: the writer takes the lanes in turns.

use std::sync::Arc;

use svc_model::{Caller, Principal};

/// The lane of the writer's queue in which a job waits. Each principal has one; the operator and
/// the daemon itself share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WriteLane(Option<Arc<str>>);

impl WriteLane {
    /// That of the operator and of the daemon itself.
    pub const DAEMON: Self = Self(None);

    /// The lane of a principal.
    pub fn for_principal(principal: &Principal) -> Self {
        match principal {
            Principal::Operator => Self::DAEMON,
            Principal::Session(key) => Self(Some(Arc::clone(key))),
        }
    }

    /// The lane of a caller.
    pub fn of_caller(caller: &Caller) -> Self {
        Self::for_principal(&caller.principal())
    }

    /// Whether this is the lane of the operator and of the daemon itself.
    pub const fn is_daemon(&self) -> bool {
        self.0.is_none()
    }
}
