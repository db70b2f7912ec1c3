//! Authentication: the operator's token, browsers that the operator signed in, the tokens of
//! sessions, and processes that the Unix socket identifies.
//!
//! `credentials` makes a caller of a token, and checks a credential again after a long wait.
//! `process_tokens` finds the client that a process on the socket belongs to, and its subject.
//! `tokens` and `browser` make credentials and take them back.

mod browser;
mod credentials;
mod process_tokens;
mod tokens;

pub use browser::{LoginCode, LoginTicket, SignInKey};
pub use credentials::{Access, Credential, TokenFileError, Tokens};
pub use process_tokens::NewProcessToken;
pub use tokens::{MintedToken, NewToken, TokenInfo, TokenKind};

pub(super) use tokens::new_token_row;
