//! When sessions called last, in memory.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use svc_model::{Timestamp, limits};

use crate::service::core::lock;

/// When the holders of session tokens called last. A restart loses this: then a peer may be offline
/// until its next call.
#[derive(Debug, Default)]
pub(super) struct LastCalls(Mutex<HashMap<String, LastCall>>);

#[derive(Debug, Clone, Copy)]
struct LastCall {
    at: Timestamp,
    /// When the row of the peer was last read because of a call.
    checked_at: Timestamp,
}

impl LastCalls {
    /// Notes a call. Returns whether the row of the peer must be read: another daemon may have set
    /// it offline since it was last read.
    pub(super) fn note(&self, key: &str, now: Timestamp, checked_for: Duration) -> bool {
        let mut calls = lock(&self.0);
        if let Some(known) = calls.get_mut(key) {
            known.at = now;
            if now.since(known.checked_at) < checked_for {
                return false;
            }
            known.checked_at = now;
            return true;
        }
        if calls.len() >= limits::STREAMS_CACHED {
            calls.clear();
        }
        calls.insert(key.to_owned(), LastCall { at: now, checked_at: now });
        true
    }

    pub(super) fn last(&self, key: &str) -> Option<Timestamp> {
        lock(&self.0).get(key).map(|call| call.at)
    }
}
