//! The body of a list: `{<name>: […], count, next_cursor?}`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use svc_core::{
    service::{
        Page,
        access::TokenInfo,
        agents::{AgentView, RequestView},
        team::ListedMessage,
    },
    tools::Descriptor,
};
use svc_model::{
    Message, Task,
    journal::{Ghap, Session},
};

/// A page as it is sent.
pub(super) struct List<T>(Page<T>);

/// What a list can hold.
pub(super) trait Listed: JsonSchema {
    /// The member of the body that holds the items.
    const NAME: &'static str;
}

impl Listed for AgentView {
    const NAME: &'static str = "hosts";
}

impl Listed for RequestView {
    const NAME: &'static str = "requests";
}

impl Listed for Descriptor {
    const NAME: &'static str = "tools";
}

impl Listed for Ghap {
    const NAME: &'static str = "ghap";
}

impl Listed for Message {
    const NAME: &'static str = "messages";
}

impl Listed for ListedMessage {
    const NAME: &'static str = "messages";
}

impl Listed for Session {
    const NAME: &'static str = "sessions";
}

impl Listed for Task {
    const NAME: &'static str = "tasks";
}

impl Listed for TokenInfo {
    const NAME: &'static str = "tokens";
}

impl<T> From<Page<T>> for List<T> {
    fn from(page: Page<T>) -> Self {
        Self(page)
    }
}

impl<T: Listed + Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(Page { items, next_cursor }) = self;
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry(T::NAME, items)?;
        body.serialize_entry("count", &items.len())?;
        if let Some(next_cursor) = next_cursor {
            body.serialize_entry("next_cursor", next_cursor)?;
        }
        body.end()
    }
}

impl<T: Listed> JsonSchema for List<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("PageOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {
                T::NAME: generator.subschema_for::<Vec<T>>(),
                "count": generator.subschema_for::<usize>(),
                "next_cursor": generator.subschema_for::<Option<String>>(),
            },
            "required": [T::NAME, "count"],
        })
    }
}
