//! Who acts, in the form that rows keep.

use std::{fmt, sync::Arc};

/// The identity that a credential proves, without the rights that come with it.
///
/// Rows keep its text form. [`Principal::parse`] is the only reader of that form, and it fails
/// closed: a text that it does not know is nobody, and what belongs to nobody is given to nobody.
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
    /// Reads the text form: `operator`, or `session:` and a key that is not empty. `None` for
    /// everything else.
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
    fn what_is_no_principal_is_nobody() {
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
        fn the_text_form_comes_back_and_names_one_principal(key in ".+", text in any::<String>()) {
            let session = Principal::Session(key.as_str().into());
            prop_assert_eq!(Principal::parse(&session.to_string()), Some(session));
            if let Some(principal) = Principal::parse(&text) {
                prop_assert_eq!(principal.to_string(), text);
            }
        }
    }
}
