//! Lists as one JSON text, as parameters and as results: each row or parameter of a list would cost
//! a switch between threads.

use serde::{Serialize, de::DeserializeOwned};

use crate::StoreError;

/// A list as a parameter for `json_each`.
///
/// # Panics
/// If `value` does not serialise; texts, numbers and ids always do.
pub(super) fn to_json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("texts and numbers are JSON")
}

/// A list that `json_group_array` made.
pub(super) fn from_json<T: DeserializeOwned>(list: &str) -> Result<T, StoreError> {
    serde_json::from_str(list).map_err(|error| sqlx::Error::Decode(error.into()).into())
}
