//! Ids of things: opaque texts, made of a prefix that names the kind and a `UUIDv7`, so that they
//! sort by age.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Timestamp, limits};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            pub fn new(ids: &Ids, now: Timestamp) -> Self {
                Self(ids.next(Self::PREFIX, now))
            }

            /// Parses a caller's text. `None` if no id can have this form, so nothing has that id.
            pub fn parse(text: &str) -> Option<Self> {
                let fits = !text.is_empty()
                    && text.len() <= limits::ID_BYTES
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
                fits.then(|| Self(text.to_owned()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}

id!(
    /// A peer: an agent session, a person or a program that has an inbox.
    PeerId, "peer_"
);
id!(
    /// A message.
    MessageId, "msg_"
);
id!(
    /// A send of one session to another, with its turn and its reply.
    RunId, "run_"
);
id!(
    /// A hosted agent: one conversation, kept by one host process.
    AgentId, "ag_"
);
id!(
    /// What an agent asked for, and waits for.
    AgentRequestId, "req_"
);
id!(
    /// A task.
    TaskId, "task_"
);
id!(
    /// A session token's row (not the token).
    TokenId, "tok_"
);
id!(
    /// A session of an MCP client.
    McpSessionId, "mcp_"
);
id!(
    /// A record of an attempt.
    GhapId, "ghap_"
);
id!(
    /// Something that was seen to happen.
    OutcomeId, "out_"
);
id!(
    /// An event that a hook tells of.
    HookId, "hook_"
);
id!(
    /// Texts that are handed to a client's own queue or inbox.
    HandoverId, "ho_"
);
id!(
    /// A sentence drawn from records that are alike.
    ValueId, "val_"
);
id!(
    /// A call that takes time, and the task that it may be for an MCP client.
    CallId, "call_"
);
id!(
    /// A data folder on a host.
    MachineId, "mach_"
);

impl RunId {
    /// The run of a message, whose id differs in the prefix alone.
    pub fn of_message(message: &MessageId) -> Self {
        Self::with_prefix_of_run(message.as_str(), MessageId::PREFIX)
    }

    /// The run of a task, whose id differs in the prefix alone.
    pub fn from_task(task: &TaskId) -> Self {
        Self::with_prefix_of_run(task.as_str(), TaskId::PREFIX)
    }

    fn with_prefix_of_run(id: &str, prefix: &str) -> Self {
        Self(format!("{}{}", Self::PREFIX, id.strip_prefix(prefix).unwrap_or(id)))
    }
}

/// Makes ids. An argument of services, so that a test can predict them.
#[derive(Debug, Clone)]
pub struct Ids(Source);

#[derive(Debug, Clone)]
enum Source {
    Random,
    Counting(Arc<Mutex<u64>>),
}

impl Ids {
    /// Ids that nobody can predict.
    pub const fn random() -> Self {
        Self(Source::Random)
    }

    /// Ids that count from one. For tests.
    pub fn counting() -> Self {
        Self(Source::Counting(Arc::new(Mutex::new(0))))
    }

    pub fn uuid(&self, now: Timestamp) -> uuid::Uuid {
        let mut chance = [0_u8; 10];
        match &self.0 {
            Source::Random => random_bytes(&mut chance),
            Source::Counting(counter) => {
                let mut counter = counter.lock().unwrap_or_else(PoisonError::into_inner);
                *counter += 1;
                chance[2..].copy_from_slice(&counter.to_be_bytes());
            }
        }
        let millis = u64::try_from(now.as_millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &chance).into_uuid()
    }

    fn next(&self, prefix: &str, now: Timestamp) -> String {
        let mut text = String::with_capacity(prefix.len() + 26);
        text.push_str(prefix);
        push_base32(&mut text, self.uuid(now).as_u128());
        text
    }
}

/// Fills `bytes` from the operating system's generator. Panics if that fails: nothing that needs a
/// secret can go on then.
pub fn random_bytes(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// A new secret: 32 random bytes in hexadecimal.
pub fn new_secret() -> String {
    let mut bytes = [0_u8; 32];
    random_bytes(&mut bytes);
    hex::encode(bytes)
}

/// Crockford's base 32, lower case: 26 characters, which sort like the number.
fn push_base32(text: &mut String, value: u128) {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    for shift in (0..26).rev().map(|digit| digit * 5) {
        text.push(char::from(DIGITS[(value >> shift) as usize & 31]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_age_and_never_repeat() {
        let ids = Ids::random();
        let early = PeerId::new(&ids, Timestamp::from_millis(1));
        let late = PeerId::new(&ids, Timestamp::from_millis(2));
        let same = PeerId::new(&ids, Timestamp::from_millis(2));
        assert!(early < late && late != same);
        assert_eq!(early.as_str().len(), "peer_".len() + 26);
    }

    #[test]
    fn id_with_other_characters_or_length_does_not_parse() {
        for text in ["", "..", "../../etc/passwd", "a b", "peer_\0", "ä", &"x".repeat(129)] {
            assert_eq!(PeerId::parse(text), None, "{text:?}");
        }
        assert!(PeerId::parse("peer_01jd0").is_some());
    }
}
