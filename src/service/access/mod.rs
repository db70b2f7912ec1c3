//! Who may come in: the operator's token and the tokens of sessions.

mod room;
mod tokens;

pub use room::Access;
pub use tokens::{Credential, MintedToken, NewToken, TokenFileError, TokenInfo, Tokens};
