//! A definition of a server's tool, resource, template or prompt.

use std::{ops::Deref, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use svc_model::quote;

use super::message::RawMembers;

/// A definition as it reads, and as its server has written it. Two that read the same are the same.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    read: Arc<Value>,
    written: Arc<RawValue>,
}

impl Definition {
    /// As its server has written it, with other values for some members, and without what nobody sees and what imitates the
    /// system. All else stays byte for byte.
    pub(super) fn shown_with(&self, values: &[(&str, Value)]) -> Box<RawValue> {
        let text = quote::json(self.written.get());
        let mut members = RawMembers::parse(&text).map(|members| members.0).unwrap_or_default();
        for (name, value) in values {
            let value = raw(value);
            match members.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = value,
                None => members.push(((*name).to_owned(), value)),
            }
        }
        RawValue::from_string(RawMembers(members).into_text()).unwrap_or_default()
    }
}

/// A value as JSON.
fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

impl Deref for Definition {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.read
    }
}

impl PartialEq for Definition {
    fn eq(&self, other: &Self) -> bool {
        self.read == other.read
    }
}

impl Eq for Definition {}

impl From<Value> for Definition {
    fn from(value: Value) -> Self {
        Self { written: raw(&value).into(), read: Arc::new(value) }
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let written = Box::<RawValue>::deserialize(source)?;
        let read = serde_json::from_str(written.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { read: Arc::new(read), written: written.into() })
    }
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, target: S) -> Result<S::Ok, S::Error> {
        self.written.as_ref().serialize(target)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_have_to_change_stays_as_it_was_written() {
        let schema = r#"{ "z": 1e5, "a": [12345678901234567890123, 1.50, "\u0041"] }"#;
        let written = format!(
            "{{\"name\":\"a.b\",\"description\":\"un\u{200b}seen\",\"inputSchema\":{schema},\"annotations\":{{\"x\": 1.0,\"title\":\"a\u{202e}b\"}}}}"
        );
        let definition: Definition = serde_json::from_str(&written).unwrap();
        assert_eq!(definition["name"], "a.b");
        assert_eq!(serde_json::to_string(&[&definition]).unwrap(), format!("[{written}]"));
        let shown = definition.shown_with(&[("name", json!("s__a_b")), ("more", json!(1))]);
        let expected = format!(
            r#"{{"name":"s__a_b","description":"unseen","inputSchema":{schema},"annotations":{{"x": 1.0,"title":"ab"}},"more":1}}"#
        );
        assert_eq!(shown.get(), expected);
    }

    #[test]
    fn two_that_read_the_same_are_the_same() {
        let [one, two] = [r#"{"a": 1.0,"b":2}"#, r#"{"b":2,"a":1.00}"#]
            .map(|text| serde_json::from_str::<Definition>(text).unwrap());
        assert_eq!(one, two);
        assert_ne!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
        assert_ne!(one, Definition::from(json!({ "a": 1.0 })));
    }
}
