//! Hosted agents: their instances, start and stop, the events of their hosts, their requests, and
//! the work that they are given.
//!
//! [`Agents`] is in `state`, operations of callers are in `control`, and requests in `requests`. A
//! row is stored before anything starts. `start` makes the row and launches the host. `run` has a
//! follower for each agent: `follow` takes the host's events into the log and notices its end;
//! `intake` applies a batch of events in one write job; `presence` shows the status of agents.
//! `allowance` decides what a request may set for an agent. `mailing` makes turns of messages.
//! `deltas` publishes the text that an agent is producing. `dispatch` accepts work, `queue` decides
//! which agent gets it and when, and `attended` gives it to an attended session.
//! `service/assignments` decides how the work ends.

mod allowance;
mod attended;
mod control;
mod deltas;
mod dispatch;
mod follow;
mod intake;
mod mailing;
mod presence;
mod queue;
mod records;
mod requests;
mod run;
mod start;
mod state;

pub use control::{AgentView, SendToAgent, StartedAgent};
pub use dispatch::{DispatchedTask, NewDispatch, WantedMode};
pub(super) use follow::lose_agent;
pub use start::NewAgent;
pub use state::{AgentSettings, Agents};
