//! Who is here: peers, the messages between them, and the sessions of coding agents.

mod inbox;
mod peers;
mod sessions;

use std::sync::Arc;

pub use inbox::{MessageDetail, Stamped};
pub use sessions::{ActingSession, CheckIn, NewSession, SessionDetail};

pub(super) use inbox::{advance, note_unseen, stamp_of};
pub(super) use peers::{create, set_status, update};
pub(super) use sessions::{begin, end, project_root, tell};

use super::{Page, access::Access, core::Core, read_cache::ReadCache};
use crate::domain::Peer;

/// The room of peers, inboxes and sessions.
#[derive(Debug, Clone)]
pub struct Team {
    core: Core,
    access: Access,
    peer_pages: Arc<ReadCache<Page<Peer>>>,
}

impl Team {
    pub(super) fn new(core: Core, access: Access) -> Self {
        Self { core, access, peer_pages: Arc::default() }
    }
}
