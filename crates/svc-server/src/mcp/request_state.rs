//! State that a stateless client carries between two rounds of a call (`requestState`, SEP-2322).
//!
//! The client is not trusted with it: the state is signed, and bound to the caller, to the call and
//! to a time.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use svc_model::{Timestamp, limits};

use super::rpc::RpcError;

/// State of a call between two rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestState {
    /// The client's answers of earlier rounds.
    pub(crate) answers: Map<String, Value>,
    /// State of the tool's own.
    pub(crate) kept: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct SignedState {
    // Clients hold states with this name across an update of the daemon.
    #[serde(rename = "carried")]
    state: RequestState,
    /// In milliseconds.
    expires_at: i64,
    bound_to: String,
}

/// Signs with the daemon's key.
#[derive(Clone)]
pub(crate) struct RequestStateSigner(Vec<u8>);

impl std::fmt::Debug for RequestStateSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RequestStateSigner").finish()
    }
}

impl RequestStateSigner {
    pub(crate) fn new(key: Vec<u8>) -> Self {
        Self(key)
    }

    /// The state as text, which is valid for this call alone.
    pub(crate) fn close(
        &self,
        state: RequestState,
        binding: &RequestStateBinding<'_>,
        now: Timestamp,
    ) -> String {
        let sealed = SignedState {
            state,
            expires_at: now.plus(limits::MCP_STATE_TTL).as_millis(),
            bound_to: binding.digest(),
        };
        let body = serde_json::to_vec(&sealed).expect("a state has a JSON form");
        let tag = self.mac(&body).finalize().into_bytes();
        format!("{}.{}", BASE64.encode(body), BASE64.encode(tag))
    }

    /// The state in the text.
    pub(crate) fn open(
        &self,
        text: &str,
        binding: &RequestStateBinding<'_>,
        now: Timestamp,
    ) -> Result<RequestState, RpcError> {
        let refused = || {
            RpcError::invalid_params(
                "requestState: is not one that was given for this call, or too old",
            )
        };
        let (body, tag) = text.split_once('.').ok_or_else(refused)?;
        let body = BASE64.decode(body).map_err(|_| refused())?;
        let tag = BASE64.decode(tag).map_err(|_| refused())?;
        self.mac(&body).verify_slice(&tag).map_err(|_| refused())?;
        let sealed: SignedState = serde_json::from_slice(&body).map_err(|_| refused())?;
        if sealed.expires_at < now.as_millis() || sealed.bound_to != binding.digest() {
            return Err(refused());
        }
        Ok(sealed.state)
    }

    fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("a key of any length will do");
        mac.update(body);
        mac
    }
}

/// The call that a state is valid for.
#[derive(Debug)]
pub(crate) struct RequestStateBinding<'a> {
    pub(crate) principal: &'a str,
    /// The session that the call acts for: one principal may hold several.
    pub(crate) session: &'a str,
    pub(crate) method: &'a str,
    pub(crate) name: &'a str,
    pub(crate) arguments: &'a Value,
}

impl RequestStateBinding<'_> {
    fn digest(&self) -> String {
        let text = serde_json::json!([
            self.principal,
            self.session,
            self.method,
            self.name,
            self.arguments
        ]);
        BASE64.encode(Sha256::digest(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_state_is_valid_for_its_call_and_for_its_time() {
        let seal = RequestStateSigner::new(vec![7; 32]);
        let arguments = json!({"a": 1});
        let of_session = |principal, session| RequestStateBinding {
            principal,
            session,
            method: "tools/call",
            name: "t",
            arguments: &arguments,
        };
        let binding = |principal| of_session(principal, "one");
        let state = RequestState { answers: Map::new(), kept: Some(json!("half way")) };
        let now = Timestamp::from_millis(1_000_000);
        let text = seal.close(state.clone(), &binding("operator"), now);
        assert_eq!(seal.open(&text, &binding("operator"), now).unwrap(), state);
        let later = now.plus(limits::MCP_STATE_TTL).plus(std::time::Duration::from_millis(1));
        seal.open(&text, &binding("operator"), later).unwrap_err();
        seal.open(&text, &binding("session:x"), now).unwrap_err();
        seal.open(&text, &of_session("operator", "two"), now).unwrap_err();
        RequestStateSigner::new(vec![8; 32]).open(&text, &binding("operator"), now).unwrap_err();
        for index in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[index] = if other[index] == b'A' { b'B' } else { b'A' };
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
