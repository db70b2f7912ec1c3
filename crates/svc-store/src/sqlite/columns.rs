//! Columns of the store's own enums. Values of the model: `svc_model::columns`.

use svc_model::{column, column_words};

use super::json::to_json;
use crate::{
    AssignmentState, CallState, GhapPart, HelpEvidence, McpTransport, TokenEnd, WorkRequirements,
};

/// For columns where an empty text means none.
pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

column!(WorkRequirements as String, to_json, |text| Ok(serde_json::from_str(&text)?));

column_words!(AssignmentState, CallState, GhapPart, McpTransport, HelpEvidence, TokenEnd);

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
    async fn stored_values_match_the_spelling_of_the_migrations() {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut conn = options.connect().await.unwrap();
        assert_eq!(stored(&mut conn, CallState::InputRequired).await, "input_required");
        assert_eq!(stored(&mut conn, McpTransport::Http).await, "http");
        assert_eq!(stored(&mut conn, HelpEvidence::Subject).await, "subject");
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
        assert!(read(&mut conn, "select 'Busy'").await.is_err(), "an unknown word");
    }
}
