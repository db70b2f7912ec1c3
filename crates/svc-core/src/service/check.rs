//! Rules for texts that callers give, one error message each.

use svc_model::{is_reserved_name, limits, quote};

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

/// Refuses a number that is not from 0 to 1.
pub(super) fn fraction(field: &'static str, share: f64) -> Result<()> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::invalid(field, "must be from 0 to 1"))
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

/// Decodes a cursor that [`make_cursor`] made.
pub fn cursor<T: serde::de::DeserializeOwned>(text: Option<&str>) -> Result<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    hex::decode(text)
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok())
        .map(Some)
        .ok_or_else(|| Error::invalid("cursor", "is not one that this daemon gave"))
}

/// Makes an opaque cursor: hexadecimal JSON, which needs no escaping in a URL.
pub fn make_cursor(key: &impl serde::Serialize) -> String {
    let json = serde_json::to_vec(key).expect("a key of a list has a JSON form");
    hex::encode(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_decode_to_their_key(rank in any::<i64>(), name in any::<String>()) {
            let text = make_cursor(&(rank, &name));
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric()));
            prop_assert_eq!(cursor::<(i64, String)>(Some(&text)).unwrap(), Some((rank, name)));
        }

        #[test]
        fn only_hexadecimal_json_decodes_as_a_cursor(text in any::<String>()) {
            let made_here = hex::decode(&text).is_ok_and(|json| {
                serde_json::from_slice::<(i64, String)>(&json).is_ok()
            });
            prop_assert_eq!(cursor::<(i64, String)>(Some(&text)).is_ok(), made_here);
        }
    }
}
