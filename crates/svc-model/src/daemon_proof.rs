//! How a daemon proves over TCP that it knows a token, before the token is sent to it.
//!
//! The client sends the token's fingerprint and a nonce. The daemon answers with a code over the
//! nonce and the address that the client connected to, made with a key that follows from the token.
//! A program that passes the question on to the daemon listens at another address, so what it gets
//! is of no use to it.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// Length of a fingerprint, in hexadecimal digits.
const FINGERPRINT_DIGITS: usize = 16;
/// Length of a nonce, in hexadecimal digits.
const NONCE_DIGITS: usize = 64;
const PURPOSE: &str = "svc daemon proof 1";

/// The SHA-256 of a token: what the daemon keeps of it.
pub type TokenHash = [u8; 32];

/// The SHA-256 of this token.
pub fn token_hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// The beginning of a token's hash, by which the daemon finds the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenFingerprint([u8; FINGERPRINT_DIGITS / 2]);

impl TokenFingerprint {
    /// The fingerprint of the token with this hash.
    pub fn from_hash(hash: &TokenHash) -> Self {
        let mut bytes = [0; FINGERPRINT_DIGITS / 2];
        bytes.copy_from_slice(&hash[..FINGERPRINT_DIGITS / 2]);
        Self(bytes)
    }

    /// Reads 16 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; FINGERPRINT_DIGITS / 2];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The least and the greatest hash that begin with it.
    pub fn range(&self) -> (TokenHash, TokenHash) {
        let (mut least, mut greatest) = ([0; 32], [0xff; 32]);
        least[..self.0.len()].copy_from_slice(&self.0);
        greatest[..self.0.len()].copy_from_slice(&self.0);
        (least, greatest)
    }
}

impl std::fmt::Display for TokenFingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// What a proof is about.
#[derive(Debug, Clone, Copy)]
pub struct ProofQuestion<'a> {
    /// 64 hexadecimal digits that the client has made up.
    pub nonce: &'a str,
    /// Host and port that the client connected to, as the request's `Host` has them.
    pub authority: &'a str,
}

impl ProofQuestion<'_> {
    /// Whether the nonce is 64 hexadecimal digits.
    pub fn has_nonce(&self) -> bool {
        self.nonce.len() == NONCE_DIGITS && self.nonce.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The proof of knowing the token with this hash, in hexadecimal digits.
    pub fn answer(&self, hash: &TokenHash) -> String {
        hex::encode(self.code(hash).finalize().into_bytes())
    }

    /// Whether the text is that proof. Takes the same time for every wrong one.
    pub fn accepts(&self, hash: &TokenHash, proof: &str) -> bool {
        hex::decode(proof).is_ok_and(|proof| self.code(hash).verify_slice(&proof).is_ok())
    }

    fn code(&self, hash: &TokenHash) -> Hmac<Sha256> {
        let mut code = Hmac::new_from_slice(hash).expect("a key of any length will do");
        for part in [PURPOSE, "\n", self.nonce, "\n", self.authority] {
            code.update(part.as_bytes());
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_token_one_nonce_and_one_address() {
        let nonce = "ab".repeat(32);
        let question = ProofQuestion { nonce: &nonce, authority: "127.0.0.1:6334" };
        let hash = token_hash("secret");
        let proof = question.answer(&hash);
        assert!(question.has_nonce() && question.accepts(&hash, &proof));
        assert!(!question.accepts(&token_hash("other"), &proof), "another token");
        let elsewhere = ProofQuestion { authority: "127.0.0.1:6335", ..question };
        assert!(!elsewhere.accepts(&hash, &proof), "another address");
        let other = "cd".repeat(32);
        assert!(!ProofQuestion { nonce: &other, ..question }.accepts(&hash, &proof));
        for text in ["", "zz", &proof[..62], &format!("{proof}00")] {
            assert!(!question.accepts(&hash, text), "{text}");
        }
        for nonce in ["", "ab", &"x".repeat(64), &"ab".repeat(33)] {
            assert!(!ProofQuestion { nonce, ..question }.has_nonce(), "{nonce}");
        }
    }

    #[test]
    fn a_fingerprint_bounds_the_hashes_that_it_may_stand_for() {
        let hash = token_hash("secret");
        let fingerprint = TokenFingerprint::from_hash(&hash);
        assert_eq!(TokenFingerprint::parse(&fingerprint.to_string()), Some(fingerprint));
        let (least, greatest) = fingerprint.range();
        assert!(least <= hash && hash <= greatest);
        for text in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeg"] {
            assert_eq!(TokenFingerprint::parse(text), None, "{text}");
        }
    }
}
