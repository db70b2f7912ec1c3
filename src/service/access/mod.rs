//! Who may come in: the operator's token and the tokens of sessions.

mod credentials;
mod room;
mod tokens;

pub use credentials::{Credential, TokenFileError, Tokens};
pub use room::Access;
pub use tokens::{MintedToken, NewToken, TokenInfo};
