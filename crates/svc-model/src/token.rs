//! Tokens: what the daemon stores of a token, how it proves over TCP that it knows a token before
//! the client sends it, and which texts are strong enough for the operator's token.
//!
//! The client sends the token's fingerprint and a nonce. The daemon answers with a code over the
//! nonce and the address that the client connected to, made with a key that follows from the token.
//! A program that relays the question to the daemon listens at another address, so its answer is
//! not accepted.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// Bytes of a fingerprint.
const FINGERPRINT: usize = 8;
const PURPOSE: &str = "svc daemon proof 1";

/// The SHA-256 of a token: what the daemon keeps of it.
pub type TokenHash = [u8; 32];

pub fn token_hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// The beginning of a token's hash, by which the daemon finds the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenFingerprint([u8; FINGERPRINT]);

impl TokenFingerprint {
    pub fn from_hash(hash: &TokenHash) -> Self {
        let mut bytes = [0; FINGERPRINT];
        bytes.copy_from_slice(&hash[..FINGERPRINT]);
        Self(bytes)
    }

    /// Reads 16 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; FINGERPRINT];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The least and the greatest hash that begin with it.
    pub fn range(&self) -> (TokenHash, TokenHash) {
        let (mut least, mut greatest) = ([0; 32], [0xff; 32]);
        least[..FINGERPRINT].copy_from_slice(&self.0);
        greatest[..FINGERPRINT].copy_from_slice(&self.0);
        (least, greatest)
    }
}

impl std::fmt::Display for TokenFingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// The input of a proof.
#[derive(Debug, Clone, Copy)]
pub struct ProofQuestion<'a> {
    /// 64 hexadecimal digits, chosen by the client.
    pub nonce: &'a str,
    /// Host and port that the client connected to, as the request's `Host` has them.
    pub authority: &'a str,
}

impl ProofQuestion<'_> {
    /// Whether the nonce is 64 hexadecimal digits.
    pub fn has_nonce(&self) -> bool {
        self.nonce.len() == 64 && self.nonce.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The proof of knowing the token with this hash, in hexadecimal digits.
    pub fn answer(&self, hash: &TokenHash) -> String {
        hex::encode(self.code(hash).finalize().into_bytes())
    }

    /// Whether the text is that proof. Takes the same time for every wrong proof.
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

/// Fewest digits of a token in hexadecimal: 128 bits.
const HEX_DIGITS: usize = 32;
/// Fewest characters of a token over a larger alphabet: 128 bits in base 64.
const CHARACTERS: usize = 22;
/// Fewest different characters: random text of 128 bits has more.
const DIFFERENT: usize = 8;

/// Why a token can be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WeakSecret {
    #[error(
        "is too short: it needs 128 bits, which is {HEX_DIGITS} hexadecimal digits or {CHARACTERS} characters of base64"
    )]
    Short,
    #[error("is not random: it has fewer than {DIFFERENT} different characters")]
    Uniform,
}

/// Refuses a token that is shorter than 128 bits, or obviously not random.
pub fn check_secret(token: &str) -> Result<(), WeakSecret> {
    // A UUID is hexadecimal, too.
    let is_hex = token.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let digits = token.bytes().filter(|byte| *byte != b'-').count();
    if if is_hex { digits < HEX_DIGITS } else { token.len() < CHARACTERS } {
        return Err(WeakSecret::Short);
    }
    let mut different: Vec<u8> = token.bytes().collect();
    different.sort_unstable();
    different.dedup();
    if different.len() < DIFFERENT { Err(WeakSecret::Uniform) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::new_secret;

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

    #[test]
    fn weak_tokens_by_table() {
        for (token, verdict) in [
            (new_secret().as_str(), Ok(())),
            ("0123456789abcdef0123456789ABCDEF", Ok(())),
            ("0123456789abcdef0123456789abcde", Err(WeakSecret::Short)),
            ("12345678901234567890123456789012", Ok(())),
            ("6f9619ff-8b86-d011-b42d-00c04fc964ff", Ok(())),
            ("6f9619ff-8b86-d011-b42d-00c04fc964f-", Err(WeakSecret::Short)),
            ("kJ8_zq1LQ0xYw-4vNpR7tA", Ok(())),
            ("kJ8_zq1LQ0xYw-4vNpR7t", Err(WeakSecret::Short)),
            ("hunter2", Err(WeakSecret::Short)),
            ("", Err(WeakSecret::Short)),
            (&"0".repeat(64), Err(WeakSecret::Uniform)),
            ("passpasspasspasspasspasspasspass", Err(WeakSecret::Uniform)),
        ] {
            assert_eq!(check_secret(token), verdict, "{token}");
        }
    }
}
