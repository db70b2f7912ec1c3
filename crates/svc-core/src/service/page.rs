//! Pages of lists: which rows a page has, and how the next one is asked for.

use std::sync::Arc;

use serde::{Serialize, Serializer, de::DeserializeOwned};
use svc_model::{json_bytes, limits};
use svc_store::{PageSize, RowPage, StoreError};

use super::{Error, check};

/// Where a page ends: after so many rows, or so many bytes of their JSON, so `count` may be below `limit` though others follow.
/// One larger row comes alone.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PageLimit {
    rows: Option<u32>,
    bytes: usize,
}

impl From<Option<u32>> for PageLimit {
    /// For programs and people.
    fn from(rows: Option<u32>) -> Self {
        Self { rows, bytes: limits::PAGE_BYTES }
    }
}

impl PageLimit {
    /// For a model, which has to read all of it.
    pub const fn for_model(rows: Option<u32>) -> Self {
        Self { rows, bytes: limits::AGENT_PAGE_BYTES }
    }

    /// For a model that gets messages with their stamps, which take about as much as the shortest messages do.
    pub const fn for_stamped(rows: Option<u32>) -> Self {
        Self { rows, bytes: limits::AGENT_PAGE_BYTES / 2 }
    }

    /// The same in numbers, if the caller's is one that a page may have.
    pub(super) fn size(self) -> Result<PageSize, Error> {
        Ok(PageSize { rows: check::limit(self.rows)?, bytes: self.bytes })
    }
}

/// A page of a list.
#[derive(Debug, Serialize)]
pub struct Page<T> {
    /// The rows, in the order of the list.
    pub items: Vec<T>,
    /// For the request of the next page, if there is one. Opaque to clients.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page that nothing follows.
    pub fn last(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }

    /// Reads the page that begins after `cursor`, or the first one.
    ///
    /// `read` gets the key in that cursor and how much to read. `key` makes the cursor's key of the page's last row.
    pub(super) async fn read<Key, LastKey, Read>(
        cursor: Option<&str>,
        limit: PageLimit,
        read: impl FnOnce(Option<Key>, PageSize) -> Read,
        key: impl FnOnce(&T) -> LastKey,
    ) -> Result<Self, Error>
    where
        Key: DeserializeOwned,
        LastKey: Serialize,
        Read: Future<Output = Result<RowPage<T>, StoreError>>,
    {
        let RowPage { rows, more } = read(check::cursor(cursor)?, limit.size()?).await?;
        let next_cursor = rows.last().filter(|_| more).map(|row| check::make_cursor(&key(row)));
        Ok(Self { items: rows, next_cursor })
    }

    /// A page of a list that is there as a whole.
    pub fn of_all(
        all: Vec<T>,
        cursor: Option<&str>,
        limit: impl Into<PageLimit>,
    ) -> Result<Self, Error>
    where
        T: Serialize,
    {
        let size = limit.into().size()?;
        let begin = check::cursor::<usize>(cursor)?.unwrap_or(0);
        let (mut items, mut bytes) = (Vec::new(), 0_usize);
        let mut rest = all.into_iter().skip(begin).peekable();
        while let Some(item) = rest.peek() {
            bytes = bytes.saturating_add(json_bytes(item));
            let is_full = items.len() >= size.rows as usize || bytes > size.bytes;
            if is_full && !items.is_empty() {
                break;
            }
            items.extend(rest.next());
        }
        let next_cursor =
            rest.peek().map(|_| check::make_cursor(&begin.saturating_add(items.len())));
        Ok(Self { items, next_cursor })
    }

    /// The page with other items in the place of these.
    pub fn map<U>(self, item: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(item).collect(), next_cursor: self.next_cursor }
    }
}

/// Serializes the items of a page that is shared, as [`serde`]'s `serialize_with` wants it.
pub fn shared_items<T: Serialize, S: Serializer>(
    page: &Arc<Page<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    page.items.serialize(serializer)
}
