//! Parameters, columns and rows as statements have them, whatever engine runs them. SQLite's kinds
//! of values are the common form: an engine with more kinds maps its own to them. Columns of the
//! model's values: `svc_model::columns`.

use std::{error::Error, sync::Arc};

use rusqlite::types::{FromSql, ToSql, ToSqlOutput, Value, ValueRef};
use serde::{Serialize, de::DeserializeOwned};
use svc_model::{StreamVisibility, column, column_words};

use crate::{
    AssignmentState, CallState, GhapPart, HelpEvidence, McpTransport, Result, StoreError, TokenEnd,
    WorkRequirements,
};

pub(crate) type Parameter<'a> = ToSqlOutput<'a>;

pub(crate) fn parameter(value: &(impl ToSql + ?Sized)) -> Result<Parameter<'_>> {
    Ok(value.to_sql()?)
}

/// The same parameters, for a statement that outlives their sources.
pub(crate) fn owned_parameters(values: &[Parameter<'_>]) -> Result<Vec<Parameter<'static>>> {
    let owned = |value: &Parameter<'_>| {
        Ok(ToSqlOutput::Owned(match value {
            ToSqlOutput::Owned(value) => value.clone(),
            ToSqlOutput::Borrowed(value) => {
                Value::try_from(*value).map_err(rusqlite::Error::from)?
            }
            _ => return Err(sqlx::Error::Encode("a parameter of another kind".into()).into()),
        }))
    };
    values.iter().map(owned).collect()
}

/// Why a row is not read.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// A row of an engine.
pub(crate) trait EngineRow {
    fn value(&self, at: usize) -> Result<ValueRef<'_>, Fault>;

    fn name(&self, at: usize) -> &str;
}

/// The columns of a row, read from left to right.
pub(crate) struct Columns<'a> {
    row: &'a dyn EngineRow,
    next: usize,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(row: &'a dyn EngineRow) -> Self {
        Self { row, next: 0 }
    }

    /// The next column, which must be the column of `field`; an empty text names any column.
    pub(crate) fn next<T: FromSql>(&mut self, field: &str) -> Result<T, Fault> {
        let at = self.next;
        self.next += 1;
        debug_assert!(is_column_of(self.row.name(at), field), "column {at} is not {field}");
        let value = T::column_result(self.row.value(at)?);
        value.map_err(|error| format!("{}: {error}", self.row.name(at)).into())
    }

    /// A text in JSON.
    pub(crate) fn json<T: DeserializeOwned>(&mut self, field: &str) -> Result<T, Fault> {
        let text: String = self.next(field)?;
        serde_json::from_str(&text).map_err(|error| format!("{field}: {error}").into())
    }

    /// A text in JSON, or null.
    pub(crate) fn json_if_any<T: DeserializeOwned>(
        &mut self,
        field: &str,
    ) -> Result<Option<T>, Fault> {
        let text: Option<String> = self.next(field)?;
        let value = text.map(|text| serde_json::from_str(&text)).transpose();
        value.map_err(|error| format!("{field}: {error}").into())
    }

    /// A text that is empty for none.
    pub(crate) fn non_empty(&mut self, field: &str) -> Result<Option<String>, Fault> {
        Ok(non_empty(self.next(field)?))
    }
}

/// Whether a column is named like a field. The name may carry sqlx's type override as a suffix.
fn is_column_of(name: &str, field: &str) -> bool {
    field.is_empty() || name.split(['!', '?', ':']).next() == Some(field)
}

/// Reads a value from the columns of a row, in their order.
pub(crate) trait DirectRow: Sized {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault>;
}

macro_rules! tuples {
    ($(($($kind:ident),+))+) => {$(
        impl<$($kind: FromSql),+> DirectRow for ($($kind,)+) {
            fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
                Ok(($(columns.next::<$kind>("")?,)+))
            }
        }
    )+};
}

tuples!((A)(A, B)(A, B, C));

/// A row of the engine as a value. The error names a row with a type by its first column. That of a
/// tuple may be anything: a secret is read as one.
pub(crate) fn read_row<T: DirectRow>(row: &dyn EngineRow) -> Result<T> {
    T::read(&mut Columns::new(row)).map_err(|fault| {
        let kind = std::any::type_name::<T>();
        let is_named = !kind.starts_with('(');
        let id = match row.value(0) {
            Ok(ValueRef::Text(text)) if is_named => String::from_utf8_lossy(text).into_owned(),
            Ok(ValueRef::Integer(number)) if is_named => number.to_string(),
            _ => "without an id".to_owned(),
        };
        let name = kind.rsplit("::").next().unwrap_or(kind).trim_end_matches('>');
        let table = if is_named { name } else { "an answer of columns" };
        StoreError::BadRow { table, id, why: fault.to_string() }
    })
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

    #[test]
    fn an_error_names_a_row_with_a_type_and_shows_no_value_of_a_tuple() {
        #[expect(dead_code, reason = "only read from a row")]
        struct Numbered {
            id: String,
            number: i64,
        }
        crate::statement::direct_row!(Numbered { id, number });
        let conn = rusqlite::Connection::open_in_memory().unwrap();
        let error_of = |read: fn(&dyn EngineRow) -> Option<StoreError>| {
            let read = |row: &rusqlite::Row<'_>| Ok(read(row));
            let error = conn.query_row("select 'one' as id, 'x' as number", [], read).unwrap();
            error.unwrap().to_string()
        };
        let named = error_of(|row| read_row::<Numbered>(row).err());
        assert!(named.starts_with("bad row in Numbered, one: number: "), "{named}");
        let tuple = error_of(|row| read_row::<(String, i64)>(row).err());
        assert!(tuple.contains("without an id: number: "), "{tuple}");
    }
}
