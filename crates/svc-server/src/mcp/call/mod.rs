//! Calls of tools, from the request to the answer.
//!
//! Reading order: `channel` is how a tool talks to its client, and `round` how a stateless client answers it with another
//! request. `answer` makes a message of a tool's outcome, `task` the same for calls that became tasks. Then the ways to
//! run a tool: `immediate`, `detachable` (it may become a task) and `on_record` (its client comes back for the answer);
//! `end` ends a call on record. `tools_call` chooses among them, and `recovery` takes up what the last process left.

mod answer;
mod channel;
mod detachable;
mod end;
mod immediate;
mod on_record;
mod recovery;
mod round;
mod task;
mod tools_call;

pub(super) use answer::{CallAnswer, PendingAnswer, rpc_error_of};
pub(super) use channel::{CallClient, ClientChannel, store_questions, unauthorized};
pub(super) use end::cancel_call;
pub(super) use on_record::{RecordedCall, log_stream_of};
pub(super) use recovery::recover_calls;
pub(super) use task::TaskView;
pub(super) use tools_call::CallReply;
