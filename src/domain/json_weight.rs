//! What a JSON text takes in memory once it is read into a tree of values: many times its length, if it is made for that.

/// An object with members: the first node of its map has room for eleven.
const OBJECT: usize = 640;
/// One value of a list or of an object. A list that grows has room for twice as many.
const VALUE: usize = 64;

/// About how many bytes a tree of this text takes. One look at each byte: nothing is built.
pub fn json_weight(text: &str) -> usize {
    let (mut objects, mut values, mut in_text, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in text.bytes() {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'{') => objects += 1,
            (false, b',' | b'[') => values += 1,
            _ => {}
        }
    }
    text.len() + objects * OBJECT + values * VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_weigh_and_texts_do_not() {
        for (text, weight) in [
            ("\"a, b {[\"", 9),
            (r#""\"{,""#, 6),
            ("[1,2]", 5 + 2 * VALUE),
            (r#"{"a":1}"#, 7 + OBJECT),
            (r#"{"a":{"b":"{"},"c":2}"#, 21 + 2 * OBJECT + VALUE),
        ] {
            assert_eq!(json_weight(text), weight, "{text}");
        }
    }
}
