//! Versions of clients, compared by their numbers.

use std::fmt;

/// A version of a client: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientVersion(pub [u32; 3]);

impl ClientVersion {
    /// Reads `2.1.100`, also with more behind it, such as `-beta.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Self([number()?, number()?, number()?]))
    }
}

impl fmt::Display for ClientVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (text, version) in [
            ("2.1.100", Some([2, 1, 100])),
            ("2.1.139 (Claude Code)", Some([2, 1, 139])),
            ("0.60.0-nightly.20260908", Some([0, 60, 0])),
            ("2.1", None),
            ("latest", None),
            ("", None),
        ] {
            assert_eq!(ClientVersion::parse(text), version.map(ClientVersion), "{text}");
        }
        assert!(ClientVersion([2, 1, 100]) > ClientVersion([2, 1, 99]));
        assert_eq!(ClientVersion([2, 0, 60]).to_string(), "2.0.60");
    }
}
