//! Pages of lists: which rows a page has, and how the next one is asked for.

use std::sync::Arc;

use serde::{Serialize, Serializer, de::DeserializeOwned};

use super::{Error, check};
use crate::store::StoreError;

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
    /// `read` gets the key in that cursor and the greatest number of rows to give. That is one more than the page
    /// takes: if it comes, another page follows. `key` makes the cursor's key of the page's last row.
    pub(super) async fn read<Key, LastKey, Read>(
        cursor: Option<&str>,
        limit: Option<u32>,
        read: impl FnOnce(Option<Key>, u32) -> Read,
        key: impl FnOnce(&T) -> LastKey,
    ) -> Result<Self, Error>
    where
        Key: DeserializeOwned,
        LastKey: Serialize,
        Read: Future<Output = Result<Vec<T>, StoreError>>,
    {
        let limit = check::limit(limit)?;
        let mut items = read(check::cursor(cursor)?, limit + 1).await?;
        let is_last = items.len() <= limit as usize;
        items.truncate(limit as usize);
        let next_cursor =
            items.last().filter(|_| !is_last).map(|item| check::make_cursor(&key(item)));
        Ok(Self { items, next_cursor })
    }

    /// A page of a list that is there as a whole.
    pub fn of_all(all: Vec<T>, cursor: Option<&str>, limit: Option<u32>) -> Result<Self, Error> {
        let limit = check::limit(limit)?;
        let begin = check::cursor::<u32>(cursor)?.unwrap_or(0);
        let end = begin.saturating_add(limit);
        let next_cursor = (all.len() > end as usize).then(|| check::make_cursor(&end));
        let items = all.into_iter().skip(begin as usize).take(limit as usize).collect();
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
