//! Peers, the messages between them, and the sessions of coding agents.

mod delivery;
mod expiry;
mod find;
mod hosted;
mod inbox;
mod ownership;
mod peers;
mod records;
mod session_stream;
mod sessions;
mod state;
mod usage;

pub use inbox::{BroadcastReach, MessageDetail, Stamped};
pub use sessions::{ActingSession, CheckIn, NewSession, SessionDetail};
pub use state::Team;

pub(super) use delivery::{
    AGENT_ENDED, OutgoingMessage, advance, close_questions, deliver, end_deliveries, give_up,
    note_unseen, put,
};
pub(super) use find::{find_peer, operator_peer};
pub(super) use hosted::{
    UNKNOWN_CLIENT, hosted_peer, is_namesake, peer_of_agent, peer_of_speaker, remove_agents_peer,
};
pub(super) use inbox::send_answer;
pub(super) use ownership::{claim, refusal};
pub(super) use peers::{create, may_act_for, set_hosted_state, set_reach, set_state, update};
pub(super) use session_stream::{append_to_peer, tell};
pub(super) use sessions::{begin, end, owns_session};
