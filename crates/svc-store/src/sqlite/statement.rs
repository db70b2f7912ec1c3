//! Macros for statements that sqlx checks at compile time and SQLite runs on the calling thread:
//! those of write jobs on the writer's thread, and short reads on the caller's.

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
        impl $crate::sqlite::direct_connection::DirectRow for $raw {
            fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
                let mut columns = $crate::sqlite::direct_connection::DirectColumns::new(row);
                Ok(Self { $($field: columns.next(stringify!($field))?),+ })
            }
        }
    };
}

/// Runs a statement that changes rows; returns their number.
macro_rules! change {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        // sqlx checks the statement at compile time and never runs it.
        let _ = || sqlx::query!($sql $(, $argument)*);
        $tx.direct.change($sql, rusqlite::params![$($argument),*])?
    }};
}

/// The single value of a query that returns one row.
macro_rules! select_value {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let checked = || sqlx::query_scalar!($sql $(, $argument)*);
        $tx.direct.value(checked, $sql, rusqlite::params![$($argument),*])?
    }};
}

/// The single value of a query that returns at most one row.
macro_rules! find_value {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let checked = || sqlx::query_scalar!($sql $(, $argument)*);
        $tx.direct.value_if_any(checked, $sql, rusqlite::params![$($argument),*])?
    }};
}

/// The single column of all rows of a query.
macro_rules! select_values {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let checked = || sqlx::query_scalar!($sql $(, $argument)*);
        $tx.direct.values(checked, $sql, rusqlite::params![$($argument),*])?
    }};
}

/// The row of a query that returns at most one. `$columns` is the text before `$tail`.
macro_rules! select_one {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $tx.direct.one::<$raw>(concat!($columns, $tail), rusqlite::params![$($argument),*])?
    }};
}

/// The row of a query that returns exactly one.
macro_rules! select_row {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $tx.direct.row::<$raw>(concat!($columns, $tail), rusqlite::params![$($argument),*])?
    }};
}

/// The rows of a query.
macro_rules! select_all {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $tx.direct.all::<$raw>(concat!($columns, $tail), rusqlite::params![$($argument),*])?
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
        sqlx::query_as!($raw, $columns + $tail $(+ $more)* $(, $argument)*)
    };
}

/// The row of an indexed query that returns at most one, read on the caller's thread.
macro_rules! read_one {
    ($columns:literal, $raw:ty, $store:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $store.yield_if_due().await;
        let sql = concat!($columns, $tail);
        $store.row_readers.one::<$raw>(sql, rusqlite::params![$($argument),*])?
    }};
}

/// The rows of an indexed query, read on the caller's thread. Only for few rows.
macro_rules! read_all {
    ($columns:literal, $raw:ty, $store:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $store.yield_if_due().await;
        let sql = concat!($columns, $tail);
        $store.row_readers.all::<$raw>(sql, rusqlite::params![$($argument),*])?
    }};
}

/// The single value of an indexed query that returns one row, read on the caller's thread.
macro_rules! read_value {
    ($store:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_scalar!($sql $(, $argument)*);
        $store.yield_if_due().await;
        $store.row_readers.value($sql, rusqlite::params![$($argument),*])?
    }};
}

pub(super) use {
    change, direct_row, find_value, pool_query, read_all, read_one, read_value, select_all,
    select_fields, select_one, select_row, select_value, select_values,
};
