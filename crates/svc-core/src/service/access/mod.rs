//! Authentication: the operator's token, browsers that the operator signed in, the tokens of
//! sessions, and processes that the Unix socket identifies.

mod browser;
mod client_process;
mod credentials;
mod hosted;
mod process_tokens;
mod recheck;
mod state;
mod tokens;

pub use browser::{BrowserSignIn, LoginCode, LoginTicket, SignInKey};
pub use credentials::{Credential, TokenFileError, Tokens};
pub use process_tokens::{NewProcessToken, ProcessToken};
pub use recheck::RecordedCaller;
pub use state::Access;
pub use tokens::{MintedToken, NewToken, TokenInfo, TokenKind};
