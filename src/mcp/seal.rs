//! State that a stateless client carries for us between two rounds of a call (`requestState`, SEP-2322).
//!
//! The client is not trusted with it: it is signed, and bound to the caller, to the call and to a time.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::RpcError;
use crate::domain::{Timestamp, limits};

/// What is carried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Carried {
    /// What the client answered in earlier rounds.
    pub(super) answers: Map<String, Value>,
    /// What the tool wants to have again.
    pub(super) kept: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    carried: Carried,
    expires_at: i64,
    bound_to: String,
}

/// Signs with the daemon's key.
#[derive(Clone)]
pub(super) struct Seal(Vec<u8>);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Seal").finish()
    }
}

impl Seal {
    pub(super) fn new(key: Vec<u8>) -> Self {
        Self(key)
    }

    /// The state as text, for this call alone.
    pub(super) fn close(&self, carried: Carried, binding: &Binding<'_>, now: Timestamp) -> String {
        let sealed = Sealed {
            carried,
            expires_at: now.plus(limits::MCP_STATE_TTL).as_millis(),
            bound_to: binding.digest(),
        };
        let body = serde_json::to_vec(&sealed).expect("a state has a JSON form");
        let tag = self.mac(&body).finalize().into_bytes();
        format!("{}.{}", BASE64.encode(body), BASE64.encode(tag))
    }

    /// The state that the text stands for.
    pub(super) fn open(
        &self,
        text: &str,
        binding: &Binding<'_>,
        now: Timestamp,
    ) -> Result<Carried, RpcError> {
        let refused = || {
            RpcError::invalid_params(
                "requestState: is not one that was given for this call, or too old",
            )
        };
        let (body, tag) = text.split_once('.').ok_or_else(refused)?;
        let body = BASE64.decode(body).map_err(|_| refused())?;
        let tag = BASE64.decode(tag).map_err(|_| refused())?;
        self.mac(&body).verify_slice(&tag).map_err(|_| refused())?;
        let sealed: Sealed = serde_json::from_slice(&body).map_err(|_| refused())?;
        if sealed.expires_at < now.as_millis() || sealed.bound_to != binding.digest() {
            return Err(refused());
        }
        Ok(sealed.carried)
    }

    fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("a key of any length will do");
        mac.update(body);
        mac
    }
}

/// What a state counts for.
#[derive(Debug)]
pub(super) struct Binding<'a> {
    pub(super) principal: &'a str,
    pub(super) method: &'a str,
    pub(super) name: &'a str,
    pub(super) arguments: &'a Value,
}

impl Binding<'_> {
    fn digest(&self) -> String {
        let text = serde_json::json!([self.principal, self.method, self.name, self.arguments]);
        BASE64.encode(Sha256::digest(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_given_for_this_call_and_not_too_long_ago_counts() {
        let seal = Seal::new(vec![7; 32]);
        let arguments = json!({"a": 1});
        let binding = |principal| Binding {
            principal,
            method: "tools/call",
            name: "t",
            arguments: &arguments,
        };
        let carried = Carried { answers: Map::new(), kept: Some(json!("half way")) };
        let now = Timestamp::from_millis(1_000_000);
        let text = seal.close(carried.clone(), &binding("operator"), now);
        assert_eq!(seal.open(&text, &binding("operator"), now).unwrap(), carried);
        let later = now.plus(limits::MCP_STATE_TTL).plus(std::time::Duration::from_millis(1));
        seal.open(&text, &binding("operator"), later).unwrap_err();
        seal.open(&text, &binding("session:x"), now).unwrap_err();
        Seal::new(vec![8; 32]).open(&text, &binding("operator"), now).unwrap_err();
        for place in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[place] = if other[place] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            if other != text {
                seal.open(&other, &binding("operator"), now).unwrap_err();
            }
        }
        for text in ["", ".", "a.b", "ä.ö"] {
            seal.open(text, &binding("operator"), now).unwrap_err();
        }
    }
}
