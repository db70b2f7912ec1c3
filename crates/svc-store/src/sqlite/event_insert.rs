//! The statement that inserts events.

use std::sync::{Arc, LazyLock};

use svc_model::{EventKind, Seq, StreamVisibility};

/// An event with its seq, not yet written.
#[derive(Debug)]
pub(super) struct UncommittedEvent {
    pub(super) stream: Arc<str>,
    pub(super) stream_id: i64,
    pub(super) visibility: Arc<StreamVisibility>,
    pub(super) seq: Seq,
    pub(super) kind: EventKind,
    pub(super) data: Arc<str>,
    pub(super) producer_id: Option<Arc<str>>,
}

/// Maximum rows of one statement: 5 parameters each, below SQLite's bound of 32,766.
pub(super) const MAX_ROWS: usize = 1024;

/// One statement for each power of two of rows. Unbound rows are null, and the `where` skips them:
/// eleven prepared statements serve every size.
static INSERTS: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| {
    (0..=MAX_ROWS.trailing_zeros())
        .map(|power| {
            let rows = vec!["(?,?,?,?,?)"; 1 << power].join(",");
            // The first parameter is the time, which all rows of a commit share.
            format!(
                "insert into event (at, stream_id, seq, kind, data, producer_id) \
                 select ?, column1, column2, column3, column4, column5 \
                 from (values {rows}) where column1 is not null"
            )
            .into()
        })
        .collect()
});

/// The statement for up to `rows` rows. At most [`MAX_ROWS`].
pub(super) fn insert_of(rows: usize) -> &'static Arc<str> {
    &INSERTS[rows.next_power_of_two().trailing_zeros() as usize]
}
