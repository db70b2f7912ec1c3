//! Who is here: peers, the messages between them, and the sessions of coding agents.

mod delivery;
mod find;
mod inbox;
mod ownership;
mod peers;
mod room;
mod session_stream;
mod sessions;

pub use inbox::{BroadcastReach, ListedMessage, MessageDetail, Stamped};
pub use room::Team;
pub use sessions::{ActingSession, CheckIn, NewSession, SessionDetail};

pub(super) use delivery::{OutgoingMessage, advance, deliver, note_unseen};
pub(super) use ownership::{claim, foreign};
pub(super) use peers::{create, may_act_for, set_status, update};
pub(super) use session_stream::tell;
pub(super) use sessions::{begin, end, owns_session};
