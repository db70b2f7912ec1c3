//! The beginning of an id in place of the whole.

/// Names the newest thing of a list, wherever an id stands.
pub const LATEST: &str = "latest";
/// Characters of an id that are enough to name it, behind what all ids of its kind begin with.
pub const PREFIX_CHARS: usize = 4;
/// Characters of a whole id, behind what all ids of its kind begin with.
const ID_CHARS: usize = 26;

/// What a text is where an id is meant, by its form alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdReference {
    /// A whole id, or something that is longer than one.
    Whole,
    /// The beginning of one.
    Prefix(String),
}

impl IdReference {
    /// Whether a text is the beginning of an id that is too short to name anything: `kind` and a
    /// few characters.
    pub fn is_too_short(text: &str, kind: &str) -> bool {
        let is_digit = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase();
        text.strip_prefix(kind)
            .is_some_and(|rest| rest.len() < PREFIX_CHARS && rest.chars().all(is_digit))
    }

    /// Reads what a caller wrote; `kind` is what all ids of the kind begin with, and may be left
    /// out. `None` if the text is too short, or is the beginning of no id.
    pub fn parse(text: &str, kind: &str) -> Option<Self> {
        let rest = text.strip_prefix(kind).unwrap_or(text);
        let is_digit = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase();
        match rest.len() {
            _ if rest.len() != text.len() && rest.len() >= ID_CHARS => Some(Self::Whole),
            PREFIX_CHARS..=ID_CHARS if rest.chars().all(is_digit) => {
                Some(Self::Prefix(format!("{kind}{rest}")))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_that_is_too_short_is_known() {
        for (text, is) in [
            ("peer_", true),
            ("peer_01k", true),
            ("peer_01k9", false),
            ("peer_a b", false),
            ("msg_01", false),
            ("01k", false),
        ] {
            assert_eq!(IdReference::is_too_short(text, "peer_"), is, "{text}");
        }
    }

    #[test]
    fn four_characters_of_an_id_may_name_it() {
        let prefix = |text: &str| Some(IdReference::Prefix(text.to_owned()));
        for (text, reference) in [
            ("peer_01k9zz00000000000000000000", Some(IdReference::Whole)),
            ("peer_unknown_and_longer_than_any_id", Some(IdReference::Whole)),
            ("peer_01k9", prefix("peer_01k9")),
            ("01k9", prefix("peer_01k9")),
            ("01k9zz00000000000000000000", prefix("peer_01k9zz00000000000000000000")),
            ("peer_01k", None),
            ("peer_", None),
            ("01k", None),
            ("peer_01k9 zz", None),
            ("01K9", None),
            ("msg_01k9", None),
            ("", None),
        ] {
            assert_eq!(IdReference::parse(text, "peer_"), reference, "{text:?}");
        }
    }
}
