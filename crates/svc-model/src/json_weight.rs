//! What a JSON text takes in memory once it is read into a tree of values: many times its length,
//! if it is made for that.

/// An object with members: the first node of its map has room for eleven.
const OBJECT: usize = 640;
/// One value of a list or of an object. A list that grows has room for twice as many.
const VALUE: usize = 64;

/// About how many bytes a tree of this text takes. One look at each byte, and hardly that within
/// texts: nothing is built.
pub fn json_weight(text: &str) -> usize {
    let (mut objects, mut values, mut rest) = (0_usize, 0_usize, text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => rest = after_text(rest),
            b'{' => objects += 1,
            b',' | b'[' => values += 1,
            _ => {}
        }
    }
    text.len() + objects * OBJECT + values * VALUE
}

/// What follows the text that has begun here.
fn after_text(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let is_end = rest[at] == b'"';
        // An escape takes one more byte at least, and none of what follows it is an end.
        rest = rest.get(at + if is_end { 1 } else { 2 }..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_weigh_and_texts_do_not() {
        for (text, weight) in [
            ("\"a, b {[\"", 9),
            // Without an end, and with half an escape.
            (r#""a,{"#, 4),
            (r#"[",\"#, 4 + VALUE),
            (r#""\"{,""#, 6),
            ("[1,2]", 5 + 2 * VALUE),
            (r#"{"a":1}"#, 7 + OBJECT),
            (r#"{"a":{"b":"{"},"c":2}"#, 21 + 2 * OBJECT + VALUE),
        ] {
            assert_eq!(json_weight(text), weight, "{text}");
        }
    }
}
