//! How values of the domain stand in columns: ids and words as text, times as milliseconds.
//!
//! The values themselves know nothing of a database. A word is written as serde writes it, so the text in a column and
//! the text on the wire are the same.

use std::fmt;

use rusqlite::{
    ToSql,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef},
};
use serde::{
    Deserialize, Serialize,
    de::{IntoDeserializer as _, value::Error as WordError},
};
use sqlx::{
    Decode, Encode, Sqlite, Type,
    encode::IsNull,
    error::BoxDynError,
    sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef},
};

use crate::{
    domain::{
        CallId, DeliveryState, GhapId, HookId, McpSessionId, MessageId, MessageType, OutcomeId,
        PeerId, PeerRole, PeerStatus, RunId, TaskId, TaskStatus, Timestamp, TokenId, ValueId,
        agent::{AgentState, RequestKind},
        conversation::{RunMode, RunState, SourceTool},
        journal::{
            Domain, GhapStatus, OutcomeVerdict, RootCauseCategory, SessionSource, Strategy, Tier,
        },
        learning::{Axis, MemoryCategory},
    },
    store::{CallState, DispatchMode, DispatchState, GhapPart, McpTransport, ShownBy, TokenEnd},
};

/// A unit variant, displayed as the word that serde writes for it.
struct Word<'a, T>(&'a T);

impl<T: Serialize> fmt::Display for Word<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

/// Where a column holds an empty text for nothing.
pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Stores a type as `$stored`, with a way into it and a way back.
macro_rules! column {
    ($name:ty as $stored:ty, $encode:expr, $decode:expr) => {
        impl Type<Sqlite> for $name {
            fn type_info() -> SqliteTypeInfo {
                <$stored as Type<Sqlite>>::type_info()
            }

            fn compatible(column: &SqliteTypeInfo) -> bool {
                <$stored as Type<Sqlite>>::compatible(column)
            }
        }

        impl Encode<'_, Sqlite> for $name {
            fn encode_by_ref(
                &self,
                arguments: &mut SqliteArgumentsBuffer,
            ) -> Result<IsNull, BoxDynError> {
                let encode: fn(&Self) -> $stored = $encode;
                Encode::<Sqlite>::encode(encode(self), arguments)
            }
        }

        impl<'r> Decode<'r, Sqlite> for $name {
            fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
                let decode: fn($stored) -> Result<Self, BoxDynError> = $decode;
                decode(<$stored as Decode<Sqlite>>::decode(value)?)
            }
        }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                let encode: fn(&Self) -> $stored = $encode;
                Ok(encode(self).into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let decode: fn($stored) -> Result<Self, BoxDynError> = $decode;
                decode(<$stored as FromSql>::column_result(value)?).map_err(FromSqlError::Other)
            }
        }
    };
}

macro_rules! ids {
    ($($name:ident),+ $(,)?) => {
        $(column!($name as String, |id| id.as_str().to_owned(), |text| Ok(text.into()));)+
    };
}

macro_rules! words {
    ($($name:ident),+ $(,)?) => {
        $(column!($name as String, |word| Word(word).to_string(), |text| parse_word(&text));)+
    };
}

fn parse_word<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, BoxDynError> {
    let word: Result<T, WordError> = T::deserialize(text.into_deserializer());
    Ok(word?)
}

column!(Timestamp as i64, |at| at.as_millis(), |millis| Ok(Self::from_millis(millis)));

ids!(
    CallId,
    GhapId,
    HookId,
    McpSessionId,
    MessageId,
    OutcomeId,
    PeerId,
    RunId,
    TaskId,
    TokenId,
    ValueId,
);

words!(
    AgentState,
    Axis,
    CallState,
    DispatchMode,
    DispatchState,
    RequestKind,
    DeliveryState,
    Domain,
    GhapStatus,
    McpTransport,
    MemoryCategory,
    MessageType,
    OutcomeVerdict,
    GhapPart,
    PeerRole,
    PeerStatus,
    RootCauseCategory,
    SessionSource,
    ShownBy,
    TokenEnd,
    RunMode,
    RunState,
    SourceTool,
    Strategy,
    TaskStatus,
    Tier,
);

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};

    use super::*;

    async fn stored<'q, T>(conn: &mut SqliteConnection, value: T) -> String
    where
        T: Encode<'q, Sqlite> + Type<Sqlite> + 'q,
    {
        sqlx::query_scalar("select cast(? as text)").bind(value).fetch_one(conn).await.unwrap()
    }

    #[tokio::test]
    async fn values_stand_in_columns_as_the_migrations_spell_them() {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut conn = options.connect().await.unwrap();
        assert_eq!(stored(&mut conn, CallState::InputRequired).await, "input_required");
        assert_eq!(stored(&mut conn, McpTransport::Http).await, "http");
        assert_eq!(stored(&mut conn, ShownBy::Subject).await, "subject");
        assert_eq!(stored(&mut conn, GhapPart::RootCause).await, "root_cause");
        assert_eq!(stored(&mut conn, RunState::NoReply).await, "no_reply");
        assert_eq!(stored(&mut conn, SourceTool::SendMessage).await, "SendMessage");
        assert_eq!(stored(&mut conn, Strategy::ReadTheError).await, "read-the-error");
        assert_eq!(stored(&mut conn, Timestamp::from_millis(7)).await, "7");
        assert_eq!(stored(&mut conn, PeerId::from("peer_1".to_owned())).await, "peer_1");
        let read = async |conn: &mut SqliteConnection, sql: &'static str| {
            sqlx::query_scalar::<_, PeerStatus>(sql).fetch_one(conn).await
        };
        assert_eq!(read(&mut conn, "select 'busy'").await.unwrap(), PeerStatus::Busy);
        assert!(read(&mut conn, "select 'Busy'").await.is_err(), "a word that is not one of ours");
    }
}
