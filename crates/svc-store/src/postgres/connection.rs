//! How statements run on a connection of PostgreSQL.

use std::{
    collections::HashMap,
    sync::{LazyLock, PoisonError, RwLock},
};

use futures_util::{Stream, TryStreamExt as _};
use rusqlite::types::FromSql;
use sqlx::{Either, Executor as _, PgConnection, SqlSafeStr as _, Statement as _, postgres::PgRow};

use super::{
    row::{arguments, column, read_row},
    translate::translate,
};
use crate::sqlite::row::{DirectRow, Parameter};

/// PostgreSQL's text of a statement. Each is made once and kept: the statements are those of the
/// program.
pub(super) fn translated(sql: &'static str) -> &'static str {
    static TEXTS: LazyLock<RwLock<HashMap<&'static str, &'static str>>> =
        LazyLock::new(RwLock::default);
    let known = TEXTS.read().unwrap_or_else(PoisonError::into_inner).get(sql).copied();
    known.unwrap_or_else(|| {
        let mut texts = TEXTS.write().unwrap_or_else(PoisonError::into_inner);
        texts.entry(sql).or_insert_with(|| Box::leak(translate(sql).into_boxed_str()))
    })
}

/// Runs a statement of PostgreSQL; its rows.
pub(super) fn rows<'a>(
    conn: &'a mut PgConnection,
    sql: &'static str,
    values: &'a [Parameter<'_>],
) -> impl Stream<Item = Result<PgRow, sqlx::Error>> + Send + 'a {
    let run = async move {
        let statement = conn.prepare(sql.into_sql_str()).await?;
        let types = match statement.parameters() {
            Some(Either::Left(types)) => types,
            _ => &[],
        };
        let arguments = arguments(values, types)?;
        Ok::<_, sqlx::Error>(conn.fetch(sqlx::query_with(sql, arguments)))
    };
    futures_util::stream::once(run).try_flatten()
}

/// Runs a statement of PostgreSQL that changes rows; returns their number.
pub(super) async fn change(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
) -> Result<u64, sqlx::Error> {
    let statement = conn.prepare(sql.into_sql_str()).await?;
    let types = match statement.parameters() {
        Some(Either::Left(types)) => types,
        _ => &[],
    };
    let arguments = arguments(values, types)?;
    Ok(conn.execute(sqlx::query_with(sql, arguments)).await?.rows_affected())
}

/// What a row says that does not have the expected columns.
pub(super) fn unreadable(error: rusqlite::Error) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

pub(super) async fn all<T: DirectRow>(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
) -> Result<Vec<T>, sqlx::Error> {
    let mut rows = std::pin::pin!(rows(conn, sql, values));
    let mut all = Vec::new();
    while let Some(row) = rows.try_next().await? {
        all.push(read_row(&row).map_err(unreadable)?);
    }
    Ok(all)
}

/// The single column of all rows.
pub(super) async fn values_of<T: FromSql>(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
) -> Result<Vec<T>, sqlx::Error> {
    let mut rows = std::pin::pin!(rows(conn, sql, values));
    let mut all = Vec::new();
    while let Some(row) = rows.try_next().await? {
        all.push(column(&row, 0).map_err(unreadable)?);
    }
    Ok(all)
}

/// The first row of a query, if it has one. The queries have at most one, or a limit.
pub(super) async fn first(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
) -> Result<Option<PgRow>, sqlx::Error> {
    let rows: Vec<PgRow> = rows(conn, sql, values).try_collect().await?;
    Ok(rows.into_iter().next())
}
