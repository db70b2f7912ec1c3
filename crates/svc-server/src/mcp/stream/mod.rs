//! Responses: whole answers, and streams of server-sent events.
//!
//! `body` is the one mechanism of all streams: it ends them, keeps them alive and reports their errors. Each of the
//! others is a source of messages for it: `answer` an answer that is not there yet, `call_log` a call on record,
//! `session` the two streams of a legacy session, `listen` a listen request of a stateless client.

mod answer;
mod body;
mod call_log;
mod listen;
mod session;

pub(super) use answer::pending_response;
pub(super) use body::{AnswerForms, whole_response};
pub(super) use call_log::{CallLog, LogCursor};
pub(super) use listen::listen_response;
pub(super) use session::{sse_session_response, standalone_response, standalone_stream_of};
