//! Who may come in: the operator's token, browsers that the operator signed in, the tokens of
//! sessions, and the processes that show themselves on the Unix socket.

mod browser;
mod client_process;
mod credentials;
mod hosted;
mod process_tokens;
mod recheck;
mod room;
mod tokens;

pub use browser::{BrowserSignIn, LoginCode, LoginTicket, SignInKey};
pub use credentials::{Credential, TokenFileError, Tokens};
pub use process_tokens::{NewProcessToken, ProcessToken};
pub use recheck::RecordedCaller;
pub use room::Access;
pub use tokens::{MintedToken, NewToken, TokenInfo, TokenKind};
