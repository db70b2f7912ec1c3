//! The acting principal, in the form that rows store.

use std::{fmt, sync::Arc};

/// The identity that a credential proves, without its rights.
///
/// Rows store the text form. [`Principal::parse`] is the only parser, and it fails closed: a text
/// that does not parse is no principal, and owns nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    /// Holder of the operator's token.
    Operator,
    /// Holder of a token of the session with this key.
    Session(Arc<str>),
}

const OPERATOR: &str = "operator";
const SESSION: &str = "session:";

impl Principal {
    /// Parses the text form: `operator`, or `session:` and a non-empty key.
    pub fn parse(text: &str) -> Option<Self> {
        if text == OPERATOR {
            return Some(Self::Operator);
        }
        let key = text.strip_prefix(SESSION)?;
        (!key.is_empty()).then(|| Self::Session(key.into()))
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str(OPERATOR),
            Self::Session(key) => write!(f, "{SESSION}{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_unknown_text_is_no_principal() {
        for text in ["", "Operator", " operator", "operator ", "session", "session:", "admin", "*"]
        {
            assert_eq!(Principal::parse(text), None, "{text:?}");
        }
        assert_eq!(
            Principal::parse("session:operator"),
            Some(Principal::Session("operator".into()))
        );
    }

    proptest! {
        #[test]
        fn the_text_form_parses_back_to_the_same_principal(key in ".+", text in any::<String>()) {
            let session = Principal::Session(key.as_str().into());
            prop_assert_eq!(Principal::parse(&session.to_string()), Some(session));
            if let Some(principal) = Principal::parse(&text) {
                prop_assert_eq!(principal.to_string(), text);
            }
        }
    }
}
