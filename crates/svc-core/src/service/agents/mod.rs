//! Agents that the daemon runs: instances, starting and stopping, taking over what their hosts have
//! on record, requests, and the work that is given to them.
//!
//! [`Agents`] is in `state`, what callers do with agents in `control`, and their requests in
//! `requests`. A row stands before anything starts. `start` makes one and launches its host; `run`
//! has a follower for each: `follow` takes the host's events into the log and notices its end;
//! `intake` is what a batch of events changes, in one write job; `presence` shows how agents stand.
//! `allowance` says what a request may set of an agent. `mailing` makes messages its turns.
//! `deltas` tells what an agent is saying. `dispatch` takes work, `queue` says which agent gets it
//! and when, and `attended` gives it to a session that a person started; what comes of it then is
//! decided in `service/assignments`.

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
pub use start::NewAgent;
pub use state::{AgentSettings, Agents};
