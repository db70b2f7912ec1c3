//! Params that several methods have.

use serde::Serialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

use super::super::rpc::RpcError;

/// A member of a list as JSON.
pub(super) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("it has a JSON form")
}

/// The cursor of a list in pages.
pub(super) fn cursor(params: &Map<String, Value>) -> Result<Option<&str>, RpcError> {
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(cursor)) => Ok(Some(cursor)),
        Some(_) => Err(RpcError::invalid_params("params.cursor: must be a string")),
    }
}

/// A list that comes whole has given no cursor to come back with.
pub(super) fn refuse_cursor(params: &Map<String, Value>) -> Result<(), RpcError> {
    match cursor(params)? {
        None => Ok(()),
        Some(_) => Err(RpcError::invalid_params("params.cursor: is none of this list's")),
    }
}
