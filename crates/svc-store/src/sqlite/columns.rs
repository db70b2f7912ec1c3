//! How the store's own words stand in columns. Values of the model: `svc_model::columns`.

use svc_model::{column, column_words};

use super::json::to_json;
use crate::{AssignmentState, CallState, GhapPart, McpTransport, ShownBy, TokenEnd, WorkWish};

/// Where a column holds an empty text for nothing.
pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

column!(WorkWish as String, to_json, |text| Ok(serde_json::from_str(&text)?));

column_words!(AssignmentState, CallState, GhapPart, McpTransport, ShownBy, TokenEnd);

#[cfg(test)]
mod tests {
    use sqlx::{
        ConnectOptions as _, Encode, Sqlite, SqliteConnection, Type, sqlite::SqliteConnectOptions,
    };
    use svc_model::{
        PeerId, PeerStatus, Timestamp,
        conversation::{RunState, SourceTool},
        journal::Strategy,
    };

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
