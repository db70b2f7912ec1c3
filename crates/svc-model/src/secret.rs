//! Which texts are good enough as the operator's token: those that nobody guesses.

/// Fewest digits of a token in hexadecimal: 128 bits.
const HEX_DIGITS: usize = 32;
/// Fewest characters of a token over a larger alphabet: 128 bits in base 64.
const CHARACTERS: usize = 22;
/// Fewest different characters: random text of that length has more.
const DIFFERENT: usize = 8;

/// Why a token can be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WeakSecret {
    /// It is shorter than 128 bits.
    #[error(
        "is too short: it needs 128 bits, which is {HEX_DIGITS} hexadecimal digits or {CHARACTERS} characters of base64"
    )]
    Short,
    /// It repeats itself.
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
