//! Authentication: the operator's token, browsers that the operator signed in, the tokens of
//! sessions, and processes that the Unix socket identifies.

mod browser;
mod client_process;
mod credentials;
mod hosted;
mod process_tokens;
mod recheck;
mod tokens;

use crate::service::core::Core;

pub use browser::{BrowserSignIn, LoginCode, LoginTicket, SignInKey};
pub use credentials::{Credential, TokenFileError, Tokens};
pub use process_tokens::{NewProcessToken, ProcessToken};
pub use recheck::RecordedCaller;
pub use tokens::{MintedToken, NewToken, TokenInfo, TokenKind};

/// The service of credentials.
#[derive(Debug, Clone)]
pub struct Access {
    core: Core,
    tokens: Tokens,
}

impl Access {
    pub(in crate::service) fn new(core: Core, tokens: Tokens) -> Self {
        Self { core, tokens }
    }

    /// Ends what was opened with these tokens, whose rows are revoked already.
    pub(in crate::service) fn forget(&self, ids: &[svc_model::TokenId]) {
        self.tokens.forget(ids, self.core.now());
    }
}
