//! Who may come in: the operator's token and the tokens of sessions.

mod tokens;

pub use tokens::{Credential, MintedToken, NewToken, TokenFileError, TokenInfo, Tokens};

use super::core::Core;

/// The room of credentials.
#[derive(Debug, Clone)]
pub struct Access {
    core: Core,
    tokens: Tokens,
}

impl Access {
    pub(super) fn new(core: Core, tokens: Tokens) -> Self {
        Self { core, tokens }
    }

    /// Ends what was opened with these tokens, which are revoked in the store already.
    pub(super) fn forget(&self, ids: &[crate::domain::TokenId]) {
        self.tokens.forget(ids);
    }
}
