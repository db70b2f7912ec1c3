//! Statements of write jobs that run through either connection of the writer, and reads that need no other thread.
//!
//! sqlx checks each when it is compiled; in a direct commit the direct connection runs the same text, on the writer's own
//! thread. Whatever is not written with these macros is for the checked connection alone: a job that comes to such a statement
//! is run again there.

/// Says which fields a row has, in the order of its columns.
macro_rules! direct_row {
    ($raw:ty { $($field:ident),+ $(,)? }) => {
        impl $crate::sqlite::direct_connection::DirectRow for $raw {
            fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
                let mut columns = 0..;
                Ok(Self { $($field: row.get(columns.next().unwrap_or_default())?),+ })
            }
        }
    };
}

/// Runs a statement that changes rows; how many it changed.
macro_rules! change {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {
        match $tx.route {
            $crate::sqlite::tx::WriteRoute::Direct => {
                $tx.direct.change($sql, rusqlite::params![$($argument),*])?
            }
            $crate::sqlite::tx::WriteRoute::Checked => {
                sqlx::query!($sql $(, $argument)*).execute(&mut $tx.conn).await?.rows_affected()
            }
        }
    };
}

/// The one value of the one row of a query.
macro_rules! select_value {
    ($tx:expr, $sql:literal $(, $argument:expr)* $(,)?) => {
        match $tx.route {
            $crate::sqlite::tx::WriteRoute::Direct => {
                $tx.direct.value($sql, rusqlite::params![$($argument),*])?
            }
            $crate::sqlite::tx::WriteRoute::Checked => {
                sqlx::query_scalar!($sql $(, $argument)*).fetch_one(&mut $tx.conn).await?
            }
        }
    };
}

/// The one row of a query, if it has one. `$columns` is what stands before the query's own part.
macro_rules! select_one {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {
        match $tx.route {
            $crate::sqlite::tx::WriteRoute::Direct => {
                $tx.direct.one::<$raw>(concat!($columns, $tail), rusqlite::params![$($argument),*])?
            }
            $crate::sqlite::tx::WriteRoute::Checked => {
                sqlx::query_as!($raw, $columns + $tail $(, $argument)*)
                    .fetch_optional(&mut $tx.conn)
                    .await?
            }
        }
    };
}

/// The rows of a query.
macro_rules! select_all {
    ($columns:literal, $raw:ty, $tx:expr, $tail:literal $(, $argument:expr)* $(,)?) => {
        match $tx.route {
            $crate::sqlite::tx::WriteRoute::Direct => {
                $tx.direct.all::<$raw>(concat!($columns, $tail), rusqlite::params![$($argument),*])?
            }
            $crate::sqlite::tx::WriteRoute::Checked => {
                sqlx::query_as!($raw, $columns + $tail $(, $argument)*)
                    .fetch_all(&mut $tx.conn)
                    .await?
            }
        }
    };
}

/// A query for readers, which the checked driver runs.
macro_rules! select_checked {
    ($columns:literal, $raw:ty, $tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!($raw, $columns + $tail $(, $argument)*)
    };
}

/// The one row of a query by an index, if it has one, read on the caller's own thread.
macro_rules! read_one {
    ($columns:literal, $raw:ty, $store:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        // sqlx checks the query, and does not run it.
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $store.take_turn().await;
        let sql = concat!($columns, $tail);
        $store.row_readers.one::<$raw>(sql, rusqlite::params![$($argument),*])?
    }};
}

/// The rows of a query by an index, read on the caller's own thread. They are few.
macro_rules! read_all {
    ($columns:literal, $raw:ty, $store:expr, $tail:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_as!($raw, $columns + $tail $(, $argument)*);
        $store.take_turn().await;
        let sql = concat!($columns, $tail);
        $store.row_readers.all::<$raw>(sql, rusqlite::params![$($argument),*])?
    }};
}

/// The one value of the one row of a query by an index, read on the caller's own thread.
macro_rules! read_value {
    ($store:expr, $sql:literal $(, $argument:expr)* $(,)?) => {{
        let _ = || sqlx::query_scalar!($sql $(, $argument)*);
        $store.take_turn().await;
        $store.row_readers.value($sql, rusqlite::params![$($argument),*])?
    }};
}

pub(super) use {
    change, direct_row, read_all, read_one, read_value, select_all, select_checked, select_one,
    select_value,
};
