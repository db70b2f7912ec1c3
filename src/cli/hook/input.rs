//! What a client gives to its hook.

use std::io::Read as _;

use serde_json::Value;

/// The most that is read, in bytes.
const MOST: usize = 16 * 1024 * 1024;
/// A payload up to this size goes as it is.
const PLAIN: usize = 256 * 1024;
/// What is kept of a long text in a larger one, at its beginning and at its end: what a test says of itself stands at
/// the end.
const HEAD: usize = 48 * 1024;
const TAIL: usize = 16 * 1024;

/// Reads standard input: to its end, or until it is one whole JSON object, as some do not close it.
pub(super) fn read() -> Result<Value, String> {
    let mut input = std::io::stdin().lock();
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let count = input.read(&mut chunk).map_err(|error| format!("standard input: {error}"))?;
        bytes.extend_from_slice(&chunk[..count]);
        let ends = count == 0;
        if ends || bytes.trim_ascii_end().ends_with(b"}") {
            match serde_json::from_slice::<Value>(&bytes) {
                Ok(value @ Value::Object(_)) => return Ok(trimmed(value, bytes.len())),
                Ok(_) => return Err("standard input: is no JSON object".to_owned()),
                // Not whole, or not text: what cannot be read as UTF-8 is replaced, once all is there.
                Err(error) if ends => return mended(&bytes, &error.to_string()),
                Err(_) => {}
            }
        }
        if bytes.len() > MOST {
            return Err(format!("standard input: is longer than {MOST} bytes"));
        }
    }
}

fn mended(bytes: &[u8], problem: &str) -> Result<Value, String> {
    if bytes.trim_ascii().is_empty() {
        return Err("standard input: is empty".to_owned());
    }
    match serde_json::from_str(&String::from_utf8_lossy(bytes)) {
        Ok(value @ Value::Object(_)) => Ok(trimmed(value, bytes.len())),
        _ => Err(format!("standard input: {problem}")),
    }
}

fn trimmed(mut value: Value, size: usize) -> Value {
    if size > PLAIN {
        cut(&mut value);
    }
    value
}

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
        let value =
            trimmed(json!({ "tool_response": { "stdout": text, "n": 1 }, "short": "s" }), 400_000);
        let kept = value["tool_response"]["stdout"].as_str().unwrap();
        assert!(kept.len() < 70_000 && kept.starts_with("begin") && kept.ends_with("1 failed"));
        assert_eq!(value["short"], "s");
    }

    #[test]
    fn what_is_no_text_is_mended() {
        let mut bytes = br#"{"prompt":"a"#.to_vec();
        bytes.extend([0xff, b'"', b'}']);
        assert_eq!(mended(&bytes, "").unwrap()["prompt"], "a\u{fffd}");
        assert!(mended(b" \n", "").unwrap_err().contains("empty"));
        assert!(mended(b"[1]", "p").unwrap_err().contains('p'));
    }
}
