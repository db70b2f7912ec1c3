//! Pages of rows: reading ends when a page is full, by rows or by bytes, which bounds the memory.

use std::pin::pin;

use futures_util::{Stream, TryStreamExt as _};
use serde::Serialize;
use svc_model::json_bytes;

use crate::{PageSize, RowPage, StoreError};

/// Reads rows of a query until a page is full. The query's limit is [`PageSize::limit`], one row
/// more than the page has.
///
/// `shown` returns the part of a row whose JSON counts towards the bytes.
pub(super) async fn read_page<Raw, Row, Shown: Serialize>(
    rows: impl Stream<Item = Result<Raw, sqlx::Error>> + Send,
    size: PageSize,
    row: impl Fn(Raw) -> Result<Row, StoreError>,
    shown: impl Fn(&Row) -> &Shown,
) -> Result<RowPage<Row>, StoreError> {
    let mut rows = pin!(rows);
    let mut page = RowPage { rows: Vec::new(), more: false };
    let mut total = 0_usize;
    while let Some(raw) = rows.try_next().await? {
        let next = row(raw)?;
        total = total.saturating_add(json_bytes(shown(&next)));
        let is_full = page.rows.len() >= size.rows as usize || total > size.bytes;
        if is_full && !page.rows.is_empty() {
            page.more = true;
            break;
        }
        page.rows.push(next);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn page_of(lengths: &[usize], size: PageSize) -> (Vec<usize>, bool, usize) {
        let read = std::sync::atomic::AtomicUsize::new(0);
        let rows = lengths.iter().map(|length| {
            read.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok("x".repeat(*length))
        });
        let page = read_page(stream::iter(rows), size, Ok, |row: &String| row).await.unwrap();
        let lengths = page.rows.iter().map(String::len).collect();
        (lengths, page.more, read.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_page_ends_at_its_bounds_and_reads_at_most_one_row_more() {
        let size = PageSize { rows: 3, bytes: 100 };
        assert_eq!(page_of(&[], size).await, (vec![], false, 0));
        assert_eq!(page_of(&[1, 1, 1], size).await, (vec![1, 1, 1], false, 3));
        assert_eq!(page_of(&[1, 1, 1, 1, 1], size).await, (vec![1, 1, 1], true, 4));
        // Two quotation marks each.
        assert_eq!(page_of(&[48, 48, 1], size).await, (vec![48, 48], true, 3));
        assert_eq!(page_of(&[48, 49, 1], size).await, (vec![48], true, 2));
        // A row that exceeds the bound has a page of its own, at the beginning and in the middle.
        assert_eq!(page_of(&[500, 1], size).await, (vec![500], true, 2));
        assert_eq!(page_of(&[1, 500], size).await, (vec![1], true, 2));
        assert_eq!(page_of(&[500], size).await, (vec![500], false, 1));
    }
}
