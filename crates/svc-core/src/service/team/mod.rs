//! Who is here: peers, the messages between them, and the sessions of coding agents.

mod delivery;
mod expiry;
mod find;
mod inbox;
mod ownership;
mod peers;
mod records;
mod room;
mod runs;
mod session_stream;
mod sessions;

pub use inbox::{BroadcastReach, MessageDetail, Stamped};
pub use room::Team;
pub use sessions::{ActingSession, CheckIn, NewSession, SessionDetail};

pub(super) use delivery::{
    AGENT_ENDED, OutgoingMessage, advance, deliver, end_deliveries, note_unseen,
};
pub(super) use find::{find_peer, operator_peer};
pub(super) use inbox::send_answer;
pub(super) use ownership::{claim, refusal};
pub(super) use peers::{create, may_act_for, set_hosted_state, set_state, update};
pub(super) use runs::{
    UNKNOWN_CLIENT, agent_ended, hosted_peer, late_turn_prompted, mail_refused, open_run,
    peer_of_speaker, remove_agents_peer, turn_began, turn_ended, turn_failed, turn_prompted,
    turn_said,
};
pub(super) use session_stream::tell;
pub(super) use sessions::{begin, end, owns_session};
