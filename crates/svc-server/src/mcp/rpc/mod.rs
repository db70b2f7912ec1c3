//! JSON-RPC 2.0, without a transport: messages that come in, messages that go out, errors.
//!
//! What the daemon does not have to understand stays raw JSON, so that the result of a tool reaches the client byte for
//! byte.

mod error;
mod incoming;
mod outgoing;
mod result;

pub use error::RpcError;
pub(super) use error::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, RESOURCE_NOT_FOUND,
    SESSION_NOT_FOUND, UNAUTHORIZED, shortened,
};
pub(super) use incoming::{
    ClientBody, ClientMessage, ClientRequest, UnreadableMessage, object_or_empty, parse_body,
    text_param,
};
pub(super) use outgoing::{
    error_message, notification_message, request_message, result_message, result_message_with_room,
};
pub(super) use result::{
    AnswerEra, CacheHint, CacheScope, Empty, EraResult, ResultType, SERVER_INFO, ServerInfo,
    raw_in_era,
};
