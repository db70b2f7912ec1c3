//! The calls of tools that a client has begun and not ended.

use serde::{Deserialize, Serialize};

use super::limits;

/// The open calls of one session, the oldest first: each is named by the client's id of it, or by
/// its tool where the client gives no ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpenCalls(Vec<String>);

impl OpenCalls {
    /// Whether none is open.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this call is open.
    pub fn has(&self, call: &str) -> bool {
        self.0.iter().any(|open| open == call)
    }

    /// Notes that a call has begun; answers whether that was not known.
    pub fn begin(&mut self, call: &str) -> bool {
        if call.len() > limits::SHORT_TEXT_BYTES || self.has(call) {
            return false;
        }
        if self.0.len() >= limits::OPEN_CALLS {
            self.0.remove(0);
        }
        self.0.push(call.to_owned());
        true
    }

    /// Notes that a call has ended; answers whether it was open.
    pub fn end(&mut self, call: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|open| open != call);
        self.0.len() < before
    }

    /// Forgets all of them; answers whether there were some.
    pub fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_open_until_it_ends_or_many_come_after_it() {
        let mut calls = OpenCalls::default();
        assert!(calls.begin("a") && !calls.begin("a") && calls.begin("b"));
        assert!(calls.end("a") && !calls.end("a") && !calls.is_empty());
        for number in 0..limits::OPEN_CALLS {
            assert!(calls.begin(&number.to_string()));
        }
        assert!(!calls.end("b"), "it made room");
        assert!(!calls.begin(&"x".repeat(10_000)));
        assert!(calls.clear() && calls.is_empty() && !calls.clear());
    }
}
