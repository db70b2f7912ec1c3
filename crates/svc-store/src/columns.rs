//! Parameters, columns and rows as statements have them, whatever engine runs them. SQLite's kinds
//! of values are the common form: an engine with more kinds maps its own to them. Columns of the
//! model's values: `svc_model::columns`.

use std::sync::Arc;

use rusqlite::types::{ToSql, ToSqlOutput, Type, Value, ValueRef};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{Column as _, Row, error::BoxDynError};
use svc_model::{StreamVisibility, column, column_words};

use crate::{
    AssignmentState, CallState, GhapPart, HelpEvidence, McpTransport, Result, TokenEnd,
    WorkRequirements,
};

pub(crate) use rusqlite::types::FromSql;

pub(crate) type Parameter<'a> = ToSqlOutput<'a>;

pub(crate) fn parameter(value: &(impl ToSql + ?Sized)) -> Result<Parameter<'_>> {
    Ok(value.to_sql()?)
}

/// Reads a row from columns in the order of the struct's fields.
pub(crate) trait DirectRow: Sized {
    fn read(columns: &mut impl Columns) -> rusqlite::Result<Self>;
}

pub(crate) trait Columns {
    /// The next column, which must be the column of `field`; an empty text names any column.
    fn next<T: FromSql>(&mut self, field: &str) -> rusqlite::Result<T>;
}

/// The row of a query of a single column.
pub(crate) struct Single<T>(pub(crate) T);

impl<T: FromSql> DirectRow for Single<T> {
    fn read(columns: &mut impl Columns) -> rusqlite::Result<Self> {
        Ok(Self(columns.next("")?))
    }
}

/// A row of sqlx, whose columns are read in SQLite's kinds of values.
pub(crate) trait RawRow: Row {
    fn raw_value(&self, at: usize) -> Result<ValueRef<'_>, BoxDynError>;
}

struct RawColumns<'a, R> {
    row: &'a R,
    next: usize,
}

impl<R: RawRow> Columns for RawColumns<'_, R> {
    fn next<T: FromSql>(&mut self, field: &str) -> rusqlite::Result<T> {
        let at = self.next;
        self.next += 1;
        debug_assert!(
            self.row.columns().get(at).is_some_and(|column| is_column_of(column.name(), field)),
            "column {at} is not {field}"
        );
        column(self.row, at)
    }
}

pub(crate) fn read_row<T: DirectRow>(row: &impl RawRow) -> rusqlite::Result<T> {
    T::read(&mut RawColumns { row, next: 0 })
}

pub(crate) fn column<T: FromSql>(row: &impl RawRow, at: usize) -> rusqlite::Result<T> {
    let failed = |kind, error| rusqlite::Error::FromSqlConversionFailure(at, kind, error);
    let value = row.raw_value(at).map_err(|error| failed(Type::Null, error))?;
    T::column_result(value).map_err(|error| failed(value.data_type(), error.into()))
}

/// Whether a column is named like a field. The name may carry sqlx's type override as a suffix.
pub(crate) fn is_column_of(name: &str, field: &str) -> bool {
    field.is_empty() || name.split(['!', '?', ':']).next() == Some(field)
}

/// The value of a parameter, owned, so that it can outlive its source.
pub(crate) fn owned_parameter(
    value: &(impl ToSql + ?Sized),
) -> Result<Parameter<'static>, sqlx::Error> {
    let value = value.to_sql().map_err(|error| sqlx::Error::Encode(error.into()))?;
    let owned = match value {
        ToSqlOutput::Borrowed(value) => Value::try_from(value),
        ToSqlOutput::Owned(value) => Ok(value),
        _ => return Err(sqlx::Error::Encode("a parameter of another kind".into())),
    };
    Ok(ToSqlOutput::Owned(owned.map_err(|error| sqlx::Error::Encode(error.into()))?))
}

/// A list as a parameter for `json_each`. Lists go as one JSON text, because each row or parameter
/// of a list would cost a switch between threads.
///
/// # Panics
/// If `value` does not serialise; texts, numbers and ids always do.
pub(super) fn to_json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("texts and numbers are JSON")
}

pub(super) fn from_json<T: DeserializeOwned>(list: &str) -> Result<T> {
    serde_json::from_str(list).map_err(|error| sqlx::Error::Decode(error.into()).into())
}

/// For columns where an empty text means none.
pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

column!(WorkRequirements as String, to_json, |text| Ok(serde_json::from_str(&text)?));

column_words!(AssignmentState, CallState, GhapPart, McpTransport, HelpEvidence, TokenEnd);

pub(super) struct VisibilityColumns {
    pub(super) visibility: &'static str,
    pub(super) owner: Option<Arc<str>>,
    pub(super) runner: Option<Arc<str>>,
    pub(super) project: Option<Arc<str>>,
}

impl From<&StreamVisibility> for VisibilityColumns {
    fn from(visibility: &StreamVisibility) -> Self {
        let none = Self { visibility: "operator", owner: None, runner: None, project: None };
        match visibility {
            StreamVisibility::Team => Self { visibility: "team", ..none },
            StreamVisibility::Shared { owner, runner, project } => Self {
                owner: owner.clone(),
                runner: runner.clone(),
                project: Some(project.clone().unwrap_or_else(|| "".into())),
                ..none
            },
            StreamVisibility::Private { owner } => Self { owner: Some(Arc::clone(owner)), ..none },
            StreamVisibility::Answers => none,
        }
    }
}

/// The visibility from its columns. An unknown word means that only the operator may read.
pub(crate) fn visibility_of(
    visibility: &str,
    owner: Option<String>,
    runner: Option<String>,
    project: Option<String>,
) -> StreamVisibility {
    match (visibility, owner, project) {
        ("team", ..) => StreamVisibility::Team,
        ("operator", owner, Some(project)) => StreamVisibility::Shared {
            owner: owner.map(Arc::from),
            runner: runner.map(Arc::from),
            project: (!project.is_empty()).then(|| project.into()),
        },
        ("operator", Some(owner), None) => StreamVisibility::Private { owner: owner.into() },
        _ => StreamVisibility::Answers,
    }
}

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
