//! JSON values from a stream of bytes, which need not have one per line, and requests from values.

use serde_json::Value;
use svc_wire::host_protocol::HostRequest;

/// Largest value, in bytes.
pub(super) const MAX_VALUE: usize = 4 * 1024 * 1024;
/// Below this size in bytes, an incomplete value is parsed again with each arrival of bytes.
const EAGER: usize = 16 * 1024;
/// Capacity of the buffer that is kept between values.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Parses bytes into values. After invalid JSON, everything up to the next line feed is dropped.
#[derive(Debug, Default)]
pub(super) struct ValueReader {
    bytes: Vec<u8>,
    /// Scan of the value that begins at the first byte.
    scan: Scan,
    /// Length of the incomplete value when it was last parsed.
    parsed: usize,
    skips: bool,
}

/// Finds where a value may end. Looks at each byte once.
#[derive(Debug, Default)]
struct Scan {
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueReader {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next value, or an error if bytes are dropped; `None` if more bytes are needed.
    pub(super) fn next_value(&mut self) -> Option<Result<Value, String>> {
        if self.skips && !self.skip_line() {
            return None;
        }
        let blank = self.bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if blank > 0 {
            self.drop_bytes(blank);
        }
        if self.bytes.is_empty() {
            return None;
        }
        let complete = self.scan.run(&self.bytes);
        let size = self.bytes.len();
        if !complete && size > EAGER && size < 2 * self.parsed && size <= MAX_VALUE {
            return None;
        }
        self.parsed = size;
        let mut values = serde_json::Deserializer::from_slice(&self.bytes).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                let end = values.byte_offset();
                if end > MAX_VALUE {
                    self.drop_bytes(end);
                    return Some(Err(too_large()));
                }
                // A number or a literal may continue in the next bytes.
                if end == size && !matches!(self.bytes[end - 1], b'}' | b']' | b'"') {
                    return None;
                }
                self.drop_bytes(end);
                Some(Ok(value))
            }
            Some(Err(error)) if error.is_eof() => {
                if size <= MAX_VALUE {
                    return None;
                }
                self.skips = true;
                Some(Err(too_large()))
            }
            Some(Err(error)) => {
                let seen = position(&self.bytes, &error);
                self.drop_bytes(seen);
                self.skips = true;
                Some(Err(error.to_string()))
            }
            None => None,
        }
    }

    /// Drops bytes up to the next line feed; `false` if there is none yet.
    fn skip_line(&mut self) -> bool {
        let end = self.bytes.iter().position(|byte| *byte == b'\n');
        self.drop_bytes(end.map_or(self.bytes.len(), |end| end + 1));
        self.skips = end.is_none();
        !self.skips
    }

    fn drop_bytes(&mut self, count: usize) {
        self.bytes.drain(..count);
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_CAPACITY);
        }
        self.scan = Scan::default();
        self.parsed = 0;
    }
}

impl Scan {
    fn run(&mut self, bytes: &[u8]) -> bool {
        while let Some(byte) = bytes.get(self.at) {
            self.at += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => continue,
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => continue,
                }
            }
            if self.depth == 0 && !self.in_string {
                return true;
            }
        }
        self.depth == 0 && !self.in_string
    }
}

fn too_large() -> String {
    format!("the value is larger than {MAX_VALUE} bytes")
}

/// The byte offset of the error, but no further than a line feed at that place.
fn position(bytes: &[u8], error: &serde_json::Error) -> usize {
    let lines = error.line().saturating_sub(1);
    let line_start = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(lines.wrapping_sub(1))
        .map_or(0, |(at, _)| at + 1);
    let at = if lines == 0 { 0 } else { line_start };
    (at + error.column().saturating_sub(1)).min(bytes.len())
}

/// Parses a request. Null counts as a request without a type.
pub(super) fn request_of(value: Value) -> Result<HostRequest, String> {
    match value {
        Value::Null => return Ok(HostRequest::default()),
        Value::Object(_) => {}
        _ => return Err("expected an object".to_owned()),
    }
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<Result<Value, ()>> {
        let (mut reader, mut all) = (ValueReader::default(), Vec::new());
        for chunk in chunks {
            reader.push(chunk);
            while let Some(value) = reader.next_value() {
                all.push(value.map_err(drop));
            }
        }
        all
    }

    #[test]
    fn values_are_read_without_line_feeds() {
        let expected = [Ok(json!({"a": 1})), Ok(json!({"b": "}\"{"})), Ok(json!([2]))];
        let text = b"{\"a\":\n1}{\"b\":\"}\\\"{\"}\n\n [2]";
        assert_eq!(read(&[text]), expected);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&bytes), expected);
        assert_eq!(read(&[b"12"]), [], "a number may go on");
        assert_eq!(read(&[b"12 null\n"]), [Ok(json!(12)), Ok(json!(null))]);
    }

    #[test]
    fn invalid_json_is_dropped_up_to_the_next_line_feed() {
        let next = Ok(json!({"next": 1}));
        for broken in [
            "{bad}\n",
            "{\"a\": 1,}\n",
            "nonsense {\"x\":1}\n",
            "}\n",
            "{\"a\":\n 1 2}\n",
            "{\"a\":\n\n\nx}\n",
            "\u{0}\n",
            "{\"a\": \"x\ny\"}\n",
        ] {
            let text = format!("{broken}{{\"next\":1}}\n");
            let values = read(&[text.as_bytes()]);
            assert_eq!(values.last(), Some(&next), "{broken:?}");
            assert_eq!(values[0], Err(()), "{broken:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(read(&bytes).last(), Some(&next), "{broken:?}");
        }
        assert_eq!(read(&[b"\xff\xfe\n{\"next\":1}\n"]), [Err(()), next]);
    }

    #[test]
    fn value_above_the_limit_is_dropped_and_the_next_is_read() {
        let fits = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_VALUE - 8));
        assert_eq!(fits.len(), MAX_VALUE);
        assert!(matches!(read(&[fits.as_bytes()])[..], [Ok(_)]));
        let chunks: Vec<&[u8]> = fits.as_bytes().chunks(60_000).collect();
        assert!(matches!(read(&chunks)[..], [Ok(_)]));
        let large = format!("{{\"a\":\"{}\"}}\n{{}}\n", "x".repeat(MAX_VALUE));
        assert_eq!(read(&[large.as_bytes()]), [Err(()), Ok(json!({}))]);
        let chunks: Vec<&[u8]> = large.as_bytes().chunks(60_000).collect();
        assert_eq!(read(&chunks), [Err(()), Ok(json!({}))]);
    }
}
