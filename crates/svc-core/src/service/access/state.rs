use super::Tokens;
use crate::service::core::Core;

/// The service of credentials.
#[derive(Debug, Clone)]
pub struct Access {
    pub(super) core: Core,
    pub(super) tokens: Tokens,
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
