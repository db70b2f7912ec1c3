//! Which files a session has seen, and how they were then: an edit of one that has changed since would undo somebody's work.

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};

/// Most files that are remembered, of all sessions.
const MAX_FILES: usize = 20_000;

type FileKey = (String, PathBuf);
type ContentHash = [u8; 32];

/// The files that sessions have read or written.
#[derive(Debug, Default)]
pub(super) struct SeenFiles(Mutex<SeenTable>);

#[derive(Debug, Default)]
struct SeenTable {
    files: HashMap<FileKey, ContentHash>,
    /// The oldest first.
    order: VecDeque<FileKey>,
}

/// Why a file may not be edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotSeen {
    Never,
    Changed,
}

impl SeenFiles {
    /// The session has seen, or made, this content.
    pub(super) fn note(&self, session: &str, path: &Path, content: &[u8]) {
        let key = (session.to_owned(), path.to_owned());
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.files.insert(key.clone(), Sha256::digest(content).into()).is_none() {
            table.order.push_back(key);
        }
        while table.order.len() > MAX_FILES {
            if let Some(oldest) = table.order.pop_front() {
                table.files.remove(&oldest);
            }
        }
    }

    /// Whether this is the content that the session has seen.
    pub(super) fn check(&self, session: &str, path: &Path, content: &[u8]) -> Result<(), NotSeen> {
        let key = (session.to_owned(), path.to_owned());
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match table.files.get(&key) {
            None => Err(NotSeen::Never),
            Some(seen) if *seen == ContentHash::from(Sha256::digest(content)) => Ok(()),
            Some(_) => Err(NotSeen::Changed),
        }
    }
}
