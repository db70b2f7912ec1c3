//! The journal: GHAP records, memories and values, and the context for a prompt that is made of
//! them.

mod context;
mod memories;
mod records;
mod values;

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::service::{core::Core, search::Search};

pub use context::{AssembledContext, ContextKind, ContextQuery, ContextSource};
pub use memories::{NewMemory, StoredMemory};
pub use records::{GhapDetail, NewOutcome};
pub use values::{ClusterList, StoredValue, ValueDistances, ValueValidity, distance_error};

pub(super) use records::put_outcome;

#[derive(Debug, Clone)]
pub struct Journal {
    core: Core,
    search: Search,
    /// Held during a clustering, so that only one clustering at a time uses a core.
    grouping: Arc<Mutex<()>>,
}

impl Journal {
    pub(in crate::service) fn new(core: Core, search: Search) -> Self {
        Self { core, search, grouping: Arc::default() }
    }
}
