//! Responses: whole answers, and streams of server-sent events.
//!
//! `body` is the one mechanism of all streams: it ends them, keeps them alive and reports their
//! errors, and gives an answer that is not there yet. `session` are the streams of a legacy session
//! and of its calls.

mod body;
mod session;

pub(super) use body::{
    AnswerForms, McpResponseBody, MessageSource, event, pending_response, whole_response,
};
pub(super) use session::{
    CallLog, LogCursor, sse_session_response, standalone_response, standalone_stream_of,
};
