//! Rules for texts that callers give, one error message each.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use svc_model::{is_reserved_name, json_is_deeper, limits, quote};

use super::{Error, Result};

pub(super) fn not_blank(field: &'static str, text: &str) -> Result<()> {
    if text.chars().all(|c| c.is_whitespace() || c.is_control() || quote::is_invisible(c)) {
        return Err(Error::invalid(field, "must not be blank"));
    }
    Ok(())
}

/// Refuses a name, a path or a key of more than [`limits::SHORT_TEXT_BYTES`].
pub(super) fn short(field: &'static str, text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| long(field, text, limits::SHORT_TEXT_BYTES))
}

/// Refuses a text of more than `most` bytes.
pub(super) fn long(field: &'static str, text: &str, most: usize) -> Result<()> {
    if text.len() > most {
        let len = text.len();
        return Err(Error::invalid(field, format!("must have at most {most} bytes, has {len}")));
    }
    Ok(())
}

/// Refuses an optional key that is blank or too long.
pub(super) fn key(field: &'static str, text: Option<&str>) -> Result<()> {
    if let Some(text) = text {
        not_blank(field, text)?;
    }
    short(field, text)
}

/// Refuses a text that is blank or has more than `max_chars` characters.
pub(super) fn text(field: &'static str, text: &str, max_chars: usize) -> Result<()> {
    not_blank(field, text)?;
    let chars = text.chars().count();
    if chars > max_chars {
        return Err(Error::invalid(
            field,
            format!("must have at most {max_chars} characters, has {chars}"),
        ));
    }
    Ok(())
}

/// Refuses an object of free form with more than [`limits::JSON_LEVELS`] levels.
pub(super) fn levels(field: &'static str, members: Option<&Map<String, Value>>) -> Result<()> {
    let most = limits::JSON_LEVELS;
    let mut values = members.into_iter().flat_map(Map::values);
    if values.any(|value| json_is_deeper(value, most - 1)) {
        let why = format!("must have at most {most} levels of arrays and objects");
        return Err(Error::invalid(field, why));
    }
    Ok(())
}

/// Refuses a reserved name for a peer, an agent, a label or a key: others will read it.
pub(super) fn name(field: &'static str, text: &str) -> Result<()> {
    if is_reserved_name(text) {
        let why = "it says no more than operator, user, system and the like: choose another name";
        return Err(Error::not_yours(field, why));
    }
    Ok(())
}

pub fn limit(limit: Option<u32>) -> Result<u32> {
    let limit = limit.unwrap_or(limits::PAGE_DEFAULT);
    if !(1..=limits::PAGE_MAX).contains(&limit) {
        return Err(Error::invalid("limit", format!("must be from 1 to {}", limits::PAGE_MAX)));
    }
    Ok(limit)
}

/// Decodes a cursor that [`make_cursor`] made for the list of this name. Cursors hold the name,
/// since the key of one list may have the form of another's and mean something else there.
pub fn cursor<T: DeserializeOwned>(list: &str, text: Option<&str>) -> Result<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    // A cursor has one form: `hex` would take capitals, too.
    let json = Some(text).filter(|text| !text.bytes().any(|b| b.is_ascii_uppercase()));
    json.and_then(|json| hex::decode(json).ok())
        .and_then(|json| serde_json::from_slice::<(String, T)>(&json).ok())
        .filter(|(mark, _)| mark == list)
        .map(|(_, key)| Some(key))
        .ok_or_else(|| Error::invalid("cursor", "is none that this list gave"))
}

/// Makes an opaque cursor: hexadecimal JSON, which needs no escaping in a URL.
pub fn make_cursor(list: &str, key: &impl Serialize) -> String {
    let json = serde_json::to_vec(&(list, key)).expect("a key of a list has a JSON form");
    hex::encode(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_decode_to_their_key(rank in any::<i64>(), name in any::<String>()) {
            let text = make_cursor("tasks", &(rank, &name));
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric()));
            let decode = |list: &str, text: &str| cursor::<(i64, String)>(list, Some(text));
            prop_assert_eq!(decode("tasks", &text).unwrap(), Some((rank, name)));
            prop_assert!(decode("sessions", &text).is_err());
            prop_assert!(decode("tasks", &text.to_uppercase()).is_err());
        }

        #[test]
        fn only_hexadecimal_json_decodes_as_a_cursor(text in any::<String>()) {
            let made_here = hex::decode(&text).is_ok_and(|json| {
                serde_json::from_slice::<(String, (i64, String))>(&json)
                    .is_ok_and(|(mark, key)| make_cursor("tasks", &key) == text && mark == "tasks")
            });
            prop_assert_eq!(cursor::<(i64, String)>("tasks", Some(&text)).is_ok(), made_here);
        }
    }
}
