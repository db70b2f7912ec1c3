//! The payload that a client gives to its hook on standard input.

use std::io::Read as _;

use serde_json::Value;
use svc_model::json_without_nul;

/// Largest payload, in bytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// A payload up to this size, in bytes, is not shortened.
const MAX_WHOLE: usize = 256 * 1024;
/// Bytes kept at the beginning and at the end of a long text. The result of a test run stands at
/// the end.
const HEAD: usize = 48 * 1024;
const TAIL: usize = 16 * 1024;

/// Reads standard input to its end, or until it is one whole JSON object: some clients do not close
/// it.
pub(super) fn read() -> Result<Value, String> {
    let mut input = std::io::stdin().lock();
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let count = input.read(&mut chunk).map_err(|error| format!("standard input: {error}"))?;
        bytes.extend_from_slice(&chunk[..count]);
        let is_end = count == 0;
        if is_end || bytes.trim_ascii_end().ends_with(b"}") {
            let parsed = match std::str::from_utf8(&bytes) {
                Ok(text) => serde_json::from_str::<Value>(&json_without_nul(text)),
                Err(_) => serde_json::from_slice(&bytes),
            };
            match parsed {
                Ok(value @ Value::Object(_)) => return Ok(shortened(value, bytes.len())),
                Ok(_) => return Err("standard input: is no JSON object".to_owned()),
                // Not whole, or not UTF-8. Which one is known only at the end.
                Err(error) if is_end => return decode_lossy(&bytes, &error.to_string()),
                Err(_) => {}
            }
        }
        if bytes.len() > MAX_BYTES {
            return Err(format!("standard input: is longer than {MAX_BYTES} bytes"));
        }
    }
}

/// Reads a payload again with U+FFFD for what is not UTF-8; `problem` is why it could not be read
/// as it is.
fn decode_lossy(bytes: &[u8], problem: &str) -> Result<Value, String> {
    if bytes.trim_ascii().is_empty() {
        return Err("standard input: is empty".to_owned());
    }
    match serde_json::from_str(&json_without_nul(&String::from_utf8_lossy(bytes))) {
        Ok(value @ Value::Object(_)) => Ok(shortened(value, bytes.len())),
        _ => Err(format!("standard input: {problem}")),
    }
}

fn shortened(mut value: Value, size: usize) -> Value {
    if size > MAX_WHOLE {
        cut(&mut value);
    }
    value
}

/// Cuts the middle out of every long text.
fn cut(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > HEAD + TAIL + 64 => {
            let head = text.floor_char_boundary(HEAD);
            let tail = text.ceil_char_boundary(text.len() - TAIL);
            *text = format!("{}\n[… {} bytes …]\n{}", &text[..head], tail - head, &text[tail..]);
        }
        Value::Array(items) => items.iter_mut().for_each(cut),
        Value::Object(members) => members.values_mut().for_each(cut),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_keep_their_beginning_and_their_end() {
        let text = format!("begin{}1 failed", "ü".repeat(200_000));
        let value = shortened(
            json!({ "tool_response": { "stdout": text, "n": 1 }, "short": "s" }),
            400_000,
        );
        let kept = value["tool_response"]["stdout"].as_str().unwrap();
        assert!(kept.len() < 70_000 && kept.starts_with("begin") && kept.ends_with("1 failed"));
        assert_eq!(value["short"], "s");
    }

    #[test]
    fn what_is_no_text_is_decode_lossy() {
        let mut bytes = br#"{"prompt":"a"#.to_vec();
        bytes.extend([0xff, b'"', b'}']);
        assert_eq!(decode_lossy(&bytes, "").unwrap()["prompt"], "a\u{fffd}");
        let nul = br#"{"prompt":"a\u0000"}"#;
        assert_eq!(decode_lossy(nul, "").unwrap()["prompt"], "a\u{fffd}");
        assert!(decode_lossy(b" \n", "").unwrap_err().contains("empty"));
        assert!(decode_lossy(b"[1]", "p").unwrap_err().contains('p'));
    }
}
