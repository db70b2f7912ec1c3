//! Looks at JSON texts and values without building a tree or a text: characters that are not
//! stored, length, memory, and depth.

use std::{borrow::Cow, fmt, io, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

/// The escape of U+0000. JSON has no other way to write it.
const ESCAPE: &[u8] = b"\\u0000";

/// The error for a caller. Databases do not store U+0000 in every kind of text, so it is refused in
/// texts of callers, and replaced in the output of programs.
pub const NUL_REFUSED: &str = "a text must not have the character U+0000";

/// Whether a text in this JSON has U+0000.
pub fn json_has_nul(json: &str) -> bool {
    let json = json.as_bytes();
    memchr::memmem::find_iter(json, ESCAPE).any(|at| {
        // The backslash may itself be escaped.
        let before = json[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        before.is_multiple_of(2)
    })
}

/// The JSON with U+FFFD for each U+0000 and for each surrogate outside a pair. JavaScript writes
/// such a surrogate for a text that was cut within a character, and `serde_json` refuses the whole
/// document because of it.
pub fn json_with_storable_texts(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let (mut clean, mut copied, mut at) = (String::new(), 0_usize, 0_usize);
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        let escape = at + found;
        let next = escape + ESCAPE.len();
        at = match (code_unit(bytes, escape), code_unit(bytes, next)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => next + ESCAPE.len(),
            (Some(0 | 0xd800..=0xdfff), _) => {
                clean.push_str(&json[copied..escape]);
                clean.push_str("\\ufffd");
                copied = next;
                next
            }
            (Some(_), _) => next,
            (None, _) => escape + 2,
        };
    }
    if copied == 0 {
        return json.into();
    }
    clean.push_str(&json[copied..]);
    clean.into()
}

/// The UTF-16 code unit of the escape at this index; `None` if there is no escape with digits.
pub(crate) fn code_unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE.len())?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| {
        let digit = u16::try_from(char::from(*digit).to_digit(16)?).ok()?;
        Some((unit << 4) | digit)
    })
}

/// Length of a value's JSON in bytes, without building the JSON.
pub fn json_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut count = CountedBytes(0);
    // Counting cannot fail, and every value has a JSON form.
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

/// Whether a value has more than `most` levels of arrays and objects. It is the first level itself.
pub fn json_is_deeper(value: &Value, most: usize) -> bool {
    match value {
        Value::Array(items) => most == 0 || items.iter().any(|it| json_is_deeper(it, most - 1)),
        Value::Object(members) => {
            most == 0 || members.values().any(|it| json_is_deeper(it, most - 1))
        }
        _ => false,
    }
}

/// Bytes of an object with members: the first node of its map has room for eleven.
const OBJECT: usize = 640;
/// Bytes of one value of a list or of an object. A list that grows has room for twice as many.
const VALUE: usize = 64;

/// Approximate memory, in bytes, of this text as a tree of values, which may be many times its
/// length. One pass, without an allocation.
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

/// The bytes after the end of the string whose content begins here.
fn after_text(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let is_end = rest[at] == b'"';
        // Also skips the byte after a backslash. The rest of a longer escape has no quotation mark.
        rest = rest.get(at + if is_end { 1 } else { 2 }..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

/// Whether serde leaves a member out: it has its default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Parses an object that is kept as it is. Refuses integers beyond 64 bits, of which a [`Value`]
/// would make floats, with other digits.
pub(crate) fn exact_object<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(source)? else { return Ok(None) };
    if let Some(integer) = inexact_integer(raw.get()) {
        let why = "is beyond 64 bits: give it as a string";
        return Err(D::Error::custom(format_args!("the integer {integer} {why}")));
    }
    serde_json::from_str(raw.get()).map(Some).map_err(D::Error::custom)
}

/// The first integer in this JSON that 64 bits do not hold.
fn inexact_integer(json: &str) -> Option<&str> {
    let is_of_number = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
    let mut rest = json.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let at = json.len() - rest.len();
        rest = match byte {
            b'"' => after_text(after),
            b'-' | b'0'..=b'9' => {
                let length = rest.iter().take_while(|byte| is_of_number(byte)).count();
                let number = &json[at..at + length];
                let is_integer = !number.contains(['.', 'e', 'E']);
                if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(number);
                }
                &rest[length..]
            }
            _ => after,
        };
    }
    None
}

/// Members of an object in their order, also several of one name.
#[derive(Debug)]
pub struct OrderedMembers<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for OrderedMembers<V> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Members<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Members<V> {
            type Value = OrderedMembers<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(OrderedMembers(members))
            }
        }
        source.deserialize_map(Members(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_that_no_text_may_hold_are_replaced_and_look_alikes_are_not() {
        for (json, clean) in [
            (r#"{"a":"\u0000"}"#, r#"{"a":"\ufffd"}"#),
            (r#"{"a\u0000":"b\\\u0000c\u0000"}"#, r#"{"a\ufffd":"b\\\ufffdc\ufffd"}"#),
            (r#"["\u0000\u0000"]"#, r#"["\ufffd\ufffd"]"#),
            (r#"{"a":"\\u0000"}"#, r#"{"a":"\\u0000"}"#),
            (r#"{"a":"\\\\u0000 \u0001 u0000"}"#, r#"{"a":"\\\\u0000 \u0001 u0000"}"#),
        ] {
            assert_eq!(json_has_nul(json), json != clean, "{json}");
            assert_eq!(json_with_storable_texts(json), clean);
        }
        // Half a character is refused by serde, and a whole one is not.
        for (json, clean) in [
            (r#"["\ud83d"]"#, r#"["\ufffd"]"#),
            (r#"["a\uDE00b\ud83d\ud83d\ude00"]"#, r#"["a\ufffdb\ufffd\ud83d\ude00"]"#),
            (r#"["\ud83d\n\ude00"]"#, r#"["\ufffd\n\ufffd"]"#),
            (r#"["\\ud83d \ud83d\ude00 \u00e9"]"#, r#"["\\ud83d \ud83d\ude00 \u00e9"]"#),
            (r#"["\ud83"#, r#"["\ud83"#),
            (r#"["\"#, r#"["\"#),
        ] {
            assert_eq!(json_with_storable_texts(json), clean);
            if json.ends_with(']') {
                serde_json::from_str::<Value>(clean).unwrap();
                assert_eq!(serde_json::from_str::<Value>(json).is_err(), json != clean, "{json}");
            }
        }
    }

    #[test]
    fn bytes_are_those_of_the_text() {
        let value = serde_json::json!({ "text": "a \"b\"\n\u{1}é", "list": [1, null, true] });
        assert_eq!(json_bytes(&value), value.to_string().len());
    }

    #[test]
    fn levels_are_counted_to_the_deepest() {
        let nested = |levels: usize| -> Value {
            let text = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
            serde_json::from_str(&text).unwrap()
        };
        for (value, levels) in [
            (serde_json::json!("a"), 0),
            (serde_json::json!([]), 1),
            (serde_json::json!([[], { "a": [1] }, 2]), 3),
            (nested(64), 64),
            (serde_json::json!({ "a": 1, "b": nested(63) }), 64),
        ] {
            assert!(!json_is_deeper(&value, levels), "{value}");
            assert!(levels == 0 || json_is_deeper(&value, levels - 1), "{value}");
        }
    }

    #[test]
    fn integers_beyond_64_bits_are_refused_and_not_changed() {
        let parse = |json: &str| exact_object(&mut serde_json::Deserializer::from_str(json));
        for exact in [
            r#"{"a":18446744073709551615,"b":[-9223372036854775808,1.5,1e30,-0.5E+3,0]}"#,
            r#"{"18446744073709551616":"\"18446744073709551616","a":"\\"}"#,
            "{}",
        ] {
            assert_eq!(parse(exact).unwrap(), serde_json::from_str(exact).unwrap(), "{exact}");
        }
        assert_eq!(parse("null").unwrap(), None);
        for integer in ["18446744073709551616", "-9223372036854775809"] {
            let error = parse(&format!(r#"{{"a":"x","b":[1,{{"c": {integer}}}]}}"#)).unwrap_err();
            assert!(error.to_string().contains(integer), "{error}");
        }
        for other in ["5", "[]", "\"a\""] {
            let error = parse(other).unwrap_err();
            assert!(error.to_string().contains("invalid type"), "{error}");
        }
    }

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
