//! The state of the service.

use svc_model::Peer;

use crate::service::{Page, access::Access, core::Core, read_cache::ReadCache};
use std::sync::Arc;

/// The service of peers, inboxes and sessions.
#[derive(Debug, Clone)]
pub struct Team {
    pub(super) core: Core,
    pub(super) access: Access,
    pub(super) peer_pages: Arc<ReadCache<Page<Peer>>>,
    /// The peer of a session, if it has one.
    pub(super) session_peers: Arc<ReadCache<Option<Peer>>>,
    /// The latest open session of a principal.
    pub(super) latest_sessions: Arc<ReadCache<Option<String>>>,
}

impl Team {
    pub(in crate::service) fn new(core: Core, access: Access) -> Self {
        Self {
            core,
            access,
            peer_pages: Arc::default(),
            session_peers: Arc::default(),
            latest_sessions: Arc::default(),
        }
    }
}
