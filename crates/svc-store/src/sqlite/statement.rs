//! Macros for statements that sqlx checks at compile time, on SQLite. SQLite runs those of write
//! jobs on the writer's thread, short reads on the caller's, and other queries on a connection of a
//! pool.

/// A row struct, read from columns in the order of its fields.
macro_rules! direct_row {
    (
        $(#[$note:meta])*
        $vis:vis struct $raw:ident { $($(#[$field_note:meta])* $field:ident: $kind:ty),+ $(,)? }
    ) => {
        $(#[$note])*
        $vis struct $raw {
            $($(#[$field_note])* $vis $field: $kind),+
        }
        $crate::sqlite::statement::direct_row!($raw { $($field),+ });
    };
    ($raw:ty { $($field:ident),+ $(,)? }) => {
        impl $crate::sqlite::row::DirectRow for $raw {
            fn read(columns: &mut impl $crate::sqlite::row::Columns) -> rusqlite::Result<Self> {
                Ok(Self { $($field: columns.next(stringify!($field))?),+ })
            }
        }
    };
}

/// The parameters of a statement.
macro_rules! bind {
    ($($argument:expr),*) => { &[$($crate::sqlite::row::parameter(&$argument)?),*] };
}

/// Runs a statement that changes rows; returns their number.
macro_rules! change {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        // sqlx checks the statement at compile time and never runs it.
        let _ = || sqlx::query!($sql $(, $argument)*);
        $tx.direct.change($sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The single value of a query that returns one row.
macro_rules! select_value {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let checked = || sqlx::query_scalar!($sql $(, $argument)*);
        $tx.direct.value(checked, $sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The single value of a query that returns at most one row.
macro_rules! find_value {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let checked = || sqlx::query_scalar!($sql $(, $argument)*);
        $tx.direct.value_if_any(checked, $sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The single column of all rows of a query.
macro_rules! select_values {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let checked = || sqlx::query_scalar!($sql $(, $argument)*);
        $tx.direct.values(checked, $sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The row of a query that returns at most one. `$columns` is the text before `$tail`.
macro_rules! select_one {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $tx.direct.one::<$raw>(concat!($columns, $tail), $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The row of a query that returns exactly one.
macro_rules! select_row {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $tx.direct.row::<$raw>(concat!($columns, $tail), $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The rows of a query.
macro_rules! select_all {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $tx.direct.all::<$raw>(concat!($columns, $tail), $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// Runs `$select` with a query whose columns no other query has: declares a row type with these
/// fields.
macro_rules! select_fields {
    (
        $select:ident, $tx:expr, { $($field:ident: $kind:ty),+ $(,)? }, $sql:literal
        $(, $argument:expr)* $(,)?
    ) => {{
        $crate::sqlite::statement::direct_row! { struct Fields { $($field: $kind),+ } }
        $crate::sqlite::statement::$select!($sql, Fields, $tx, "" $(, $argument)*)
    }};
}

/// A query that sqlx runs, on a connection of a pool.
macro_rules! pool_query {
    ($columns:literal, $raw:ty, $tail:literal $(+ $more:literal)* $(, $argument:expr)* $(,)?) => {
        $crate::sqlite::statement::query_rows!($raw, $columns + $tail $(+ $more)* $(, $argument)*)
    };
}

/// A query whose rows no macro of columns has, on a connection of a pool.
macro_rules! query_rows {
    ($raw:ty, $sql:literal $(+ $more:literal)* $(, $argument:expr)* $(,)?) => {
        $crate::sqlite::read_query::ReadQuery::new(
            sqlx::query_as!($raw, $sql $(+ $more)* $(, $argument)*),
            concat!($sql $(, $more)*),
            || Ok(vec![$($crate::sqlite::row::owned_parameter(&$argument)?),*]),
        )
    };
}

/// [`query_rows`] with a row type that only this query has: declares it with these fields.
macro_rules! query_fields {
    ({ $($field:ident: $kind:ty),+ $(,)? }, $sql:literal $(, $argument:expr)* $(,)?) => {{
        $crate::sqlite::statement::direct_row! { struct Fields { $($field: $kind),+ } }
        $crate::sqlite::statement::query_rows!(Fields, $sql $(, $argument)*)
    }};
}

/// A query of a single column, on a connection of a pool.
macro_rules! query_value {
    ($sql:literal $(, $argument:expr)* $(,)?) => {
        $crate::sqlite::read_query::ReadQuery::new(
            sqlx::query_scalar!($sql $(, $argument)*),
            $sql,
            || Ok(vec![$($crate::sqlite::row::owned_parameter(&$argument)?),*]),
        )
    };
}

/// The row of an indexed query that returns at most one, read on the caller's thread.
macro_rules! read_one {
    ($columns:literal, $raw:ty, $store:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $store.yield_if_due().await;
        let sql = concat!($columns, $tail);
        $store.row_readers.one::<$raw>(sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The rows of an indexed query, read on the caller's thread. Only for few rows.
macro_rules! read_all {
    ($columns:literal, $raw:ty, $store:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $store.yield_if_due().await;
        let sql = concat!($columns, $tail);
        $store.row_readers.all::<$raw>(sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

/// The single value of an indexed query that returns one row, read on the caller's thread.
macro_rules! read_value {
    ($store:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_scalar!($sql $(, $argument)*);
        $store.yield_if_due().await;
        $store.row_readers.value($sql, $crate::sqlite::statement::bind!($($argument),*)).await?
    }};
}

pub(super) use {
    bind, change, direct_row, find_value, pool_query, query_fields, query_rows, query_value,
    read_all, read_one, read_value, select_all, select_fields, select_one, select_row,
    select_value, select_values,
};
