//! Words: enums that are spelled alike in rows, on the wire and on the command line, and the forms
//! that texts of callers must have.

use serde::de::{DeserializeOwned, IntoDeserializer as _, value::Error as WordError};

/// The pattern of a text that is not blank: `#[schemars(regex(pattern = NOT_BLANK))]`.
pub const NOT_BLANK: &str = r"\S";
/// The pattern of a tag.
pub const TAG: &str = r"^[\w.-]+$";

/// Parses a word as JSON is parsed, so the error lists the known words.
pub fn parse_word<T: DeserializeOwned>(text: &str) -> Result<T, WordError> {
    T::deserialize(text.into_deserializer())
}

/// Enums of words. Each variant has its spelling beside it.
macro_rules! words {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash,
            ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema,
        )]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl $crate::quote::SafeForModels for $name {}
    )+};
}
pub(crate) use words;
