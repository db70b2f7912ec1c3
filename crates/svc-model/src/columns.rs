//! How values are stored in columns of a database: ids and words as text, times as milliseconds.
//!
//! A word is written as serde writes it, so it is the same text in a column and on the wire. The
//! traits are those of the store's drivers; only the crate that defines a type may implement them
//! for it. Only the store enables this feature.

use std::fmt;

use serde::Serialize;

use crate::{
    AgentId, CallId, DeliveryState, GhapId, HandoverId, HandoverWay, HookId, MachineId,
    McpSessionId, MessageId, MessageType, OutcomeId, PeerId, PeerRole, PeerStatus, RunId,
    StatusEvidence, TaskId, TaskStatus, Timestamp, TokenId, ValueId,
    agent::{AgentState, RequestKind, TurnEnd},
    conversation::{RunMode, RunState, SourceTool},
    journal::{
        Domain, GhapStatus, OutcomeVerdict, RootCauseCategory, SessionSource, Strategy, Tier,
    },
    learning::{Axis, MemoryCategory},
};

/// Displays a unit variant as the word that serde writes for it.
#[derive(Debug)]
pub struct Word<'a, T>(pub &'a T);

impl<T: Serialize> fmt::Display for Word<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

/// Stores a type as `$stored`, by two conversions.
#[macro_export]
macro_rules! column {
    ($name:ty as $stored:ty, $encode:expr, $decode:expr) => {
        impl sqlx::Type<sqlx::Sqlite> for $name {
            fn type_info() -> sqlx::sqlite::SqliteTypeInfo {
                <$stored as sqlx::Type<sqlx::Sqlite>>::type_info()
            }

            fn compatible(column: &sqlx::sqlite::SqliteTypeInfo) -> bool {
                <$stored as sqlx::Type<sqlx::Sqlite>>::compatible(column)
            }
        }

        impl sqlx::Encode<'_, sqlx::Sqlite> for $name {
            fn encode_by_ref(
                &self,
                arguments: &mut sqlx::sqlite::SqliteArgumentsBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                let encode: fn(&Self) -> $stored = $encode;
                sqlx::Encode::<sqlx::Sqlite>::encode(encode(self), arguments)
            }
        }

        impl<'r> sqlx::Decode<'r, sqlx::Sqlite> for $name {
            fn decode(
                value: sqlx::sqlite::SqliteValueRef<'r>,
            ) -> Result<Self, sqlx::error::BoxDynError> {
                let decode: fn($stored) -> Result<Self, sqlx::error::BoxDynError> = $decode;
                decode(<$stored as sqlx::Decode<sqlx::Sqlite>>::decode(value)?)
            }
        }

        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                let encode: fn(&Self) -> $stored = $encode;
                Ok(encode(self).into())
            }
        }

        impl rusqlite::types::FromSql for $name {
            fn column_result(
                value: rusqlite::types::ValueRef<'_>,
            ) -> rusqlite::types::FromSqlResult<Self> {
                let decode: fn($stored) -> Result<Self, sqlx::error::BoxDynError> = $decode;
                decode(<$stored as rusqlite::types::FromSql>::column_result(value)?)
                    .map_err(rusqlite::types::FromSqlError::Other)
            }
        }
    };
}

macro_rules! ids {
    ($($name:ident),+ $(,)?) => {
        $(column!($name as String, |id| id.as_str().to_owned(), |text| Ok(text.into()));)+
    };
}

/// Stores types with unit variants as the words that serde writes for them.
#[macro_export]
macro_rules! column_words {
    ($($name:ident),+ $(,)?) => {
        $($crate::column!($name as String, |word| $crate::columns::Word(word).to_string(), |text| Ok($crate::parse_word(&text)?));)+
    };
}

column!(TurnEnd as String, |turn| serde_json::to_string(turn).expect("texts are JSON"), |text| Ok(
    serde_json::from_str(&text)?
));

column!(Timestamp as i64, |at| at.as_millis(), |millis| Ok(Self::from_millis(millis)));

ids! {
    AgentId, CallId, HandoverId, GhapId, HookId, MachineId, McpSessionId, MessageId, OutcomeId,
    PeerId, RunId, TaskId, TokenId, ValueId,
}

column_words! {
    AgentState, Axis, RequestKind, DeliveryState, Domain, GhapStatus, HandoverWay, MemoryCategory,
    MessageType, OutcomeVerdict, PeerRole, PeerStatus, StatusEvidence, RootCauseCategory,
    SessionSource, RunMode, RunState, SourceTool, Strategy, TaskStatus, Tier,
}
