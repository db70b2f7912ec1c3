//! Values as hosts of earlier versions wrote them: a time was a number, and the input of a call was
//! no text. Such hosts may still run, and their events stay in the log.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::Timestamp;

/// A time: RFC 3339, or Unix milliseconds.
pub(super) fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Moment {
        Text(Timestamp),
        Millis(i64),
    }
    match Moment::deserialize(deserializer) {
        Ok(Moment::Text(at)) => Ok(at),
        Ok(Moment::Millis(millis)) => Ok(Timestamp::from_millis(millis)),
        Err(_) => {
            Err(D::Error::custom("expected an RFC 3339 time such as 2026-01-31T12:00:00.000Z"))
        }
    }
}

/// The JSON text of a value, or the value.
pub(super) fn json_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(deserializer)? {
        None => None,
        Some(Value::String(text)) => Some(text),
        Some(value) => Some(value.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::agent::HistoryEntry;

    #[test]
    fn an_entry_of_an_earlier_version_is_read_and_written_as_one_of_today() {
        let input = json!({ "command": "ls" });
        let earlier = json!({ "role": "tool", "tool_input": input, "timestamp": 1_500 });
        let entry: HistoryEntry = serde_json::from_value(earlier).unwrap();
        let today = json!({
            "role": "tool", "tool_input": input.to_string(), "timestamp": "1970-01-01T00:00:01.500Z",
        });
        assert_eq!(serde_json::to_value(&entry).unwrap(), today);
        assert_eq!(serde_json::from_value::<HistoryEntry>(today).unwrap(), entry);
        let never = json!({ "role": "tool", "timestamp": "never" });
        let refused = serde_json::from_value::<HistoryEntry>(never).unwrap_err();
        assert!(refused.to_string().starts_with("expected an RFC 3339 time"), "{refused}");
    }
}
