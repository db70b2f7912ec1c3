//! The room itself: what its calls stand on.

use crate::domain::Peer;
use crate::service::{Page, access::Access, core::Core, read_cache::ReadCache};
use std::sync::Arc;

/// The room of peers, inboxes and sessions.
#[derive(Debug, Clone)]
pub struct Team {
    pub(super) core: Core,
    pub(super) access: Access,
    pub(super) peer_pages: Arc<ReadCache<Page<Peer>>>,
}

impl Team {
    pub(in crate::service) fn new(core: Core, access: Access) -> Self {
        Self { core, access, peer_pages: Arc::default() }
    }
}
