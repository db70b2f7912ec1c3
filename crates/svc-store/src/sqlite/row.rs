//! Parameters and rows as statements have them, whatever engine runs them. SQLite's kinds of values
//! are the common form: an engine with more kinds maps its own to them.

use rusqlite::types::{FromSql, ToSql, ToSqlOutput, Value};

use crate::StoreError;

/// The value of a parameter.
pub(crate) type Parameter<'a> = ToSqlOutput<'a>;

pub(crate) fn parameter(value: &(impl ToSql + ?Sized)) -> Result<Parameter<'_>, StoreError> {
    Ok(value.to_sql()?)
}

/// Reads a row from columns in the order of the struct's fields.
pub(crate) trait DirectRow: Sized {
    fn read(columns: &mut impl Columns) -> rusqlite::Result<Self>;
}

/// The columns of a row, from the first to the last.
pub(crate) trait Columns {
    /// The next column, which must be the column of `field`.
    fn next<T: FromSql>(&mut self, field: &str) -> rusqlite::Result<T>;
}

/// Whether a column is named like a field. The name may carry sqlx's type override as a suffix.
pub(crate) fn is_column_of(name: &str, field: &str) -> bool {
    name.split(['!', '?', ':']).next() == Some(field)
}

/// The value of a parameter that outlives what it was made of.
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
