//! How long a value is as JSON.

use std::io;

use serde::Serialize;

/// Bytes of a value's JSON, without making it.
pub fn json_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut count = CountedBytes(0);
    // Counting cannot fail, and every value of ours has a JSON form.
    serde_json::to_writer(&mut count, value).ok();
    count.0
}

struct CountedBytes(usize);

impl io::Write for CountedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_text() {
        let value = serde_json::json!({ "text": "a \"b\"\n\u{1}é", "list": [1, null, true] });
        assert_eq!(json_bytes(&value), value.to_string().len());
    }
}
