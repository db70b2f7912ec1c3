//! Pages of lists: the rows of a page, and the cursor of the next page.

use std::{borrow::Cow, iter::Peekable};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer, de::DeserializeOwned, ser::SerializeMap as _};
use svc_model::{
    InstanceView, Message, PageQuery, Peer, Project, Task, Timestamp,
    journal::{Ghap, Session},
    json_bytes, limits,
    source::SourceView,
};
use svc_store::{PageSize, RowPage, StoreError};

use super::{Result, check};

/// Which page of a list: its cursor, and its bounds in rows and in bytes of JSON.
///
/// A page that reaches its bound in bytes has fewer rows than requested, even if more follow. A row
/// above the bound is a page of its own.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PageBounds<'a> {
    cursor: Option<&'a str>,
    rows: Option<u32>,
    bytes: usize,
}

impl<'a> From<&'a PageQuery> for PageBounds<'a> {
    fn from(query: &'a PageQuery) -> Self {
        Self::new(query.cursor.as_deref(), query.limit)
    }
}

impl<'a> PageBounds<'a> {
    pub const fn new(cursor: Option<&'a str>, rows: Option<u32>) -> Self {
        Self { cursor, rows, bytes: limits::PAGE_BYTES }
    }

    /// The bounds for a model, which reads all of the page.
    #[must_use]
    pub const fn for_model(self) -> Self {
        Self { bytes: limits::AGENT_PAGE_BYTES, ..self }
    }

    /// The bounds for a model that gets messages with their stamps: a stamp takes about as much as
    /// a short message.
    #[must_use]
    pub const fn for_stamped(self) -> Self {
        Self { bytes: limits::AGENT_PAGE_BYTES / 2, ..self }
    }

    /// How much to read; an error if `rows` is out of range.
    pub(super) fn size(self) -> Result<PageSize> {
        Ok(PageSize { rows: check::limit(self.rows)?, bytes: self.bytes })
    }
}

pub trait Listed: JsonSchema {
    /// The document's member that holds the items.
    const NAME: &'static str;
}

macro_rules! listed {
    ($($item:ty: $name:literal),* $(,)?) => {
        $(impl Listed for $item {
            const NAME: &'static str = $name;
        })*
    };
}

listed! {
    Ghap: "ghap",
    InstanceView: "agents",
    Message: "messages",
    Peer: "peers",
    Project: "projects",
    Session: "sessions",
    SourceView: "sources",
    Task: "tasks",
}

/// A page of a list. Its document is `{<name>: […], count, next_cursor?}`.
#[derive(Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor of the next page, opaque to clients.
    pub next_cursor: Option<String>,
}

impl<T: Listed + Serialize> Serialize for Page<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_map(None)?;
        document.serialize_entry(T::NAME, &self.items)?;
        document.serialize_entry("count", &self.items.len())?;
        if let Some(next_cursor) = &self.next_cursor {
            document.serialize_entry("next_cursor", next_cursor)?;
        }
        document.end()
    }
}

impl<T: Listed> JsonSchema for Page<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("PageOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        page_schema(T::NAME, &generator.subschema_for::<Vec<T>>())
    }
}

/// Apart, so that it exists once in the program and not for each kind of item.
fn page_schema(name: &str, items: &Schema) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            name: items,
            "count": {
                "description": "How many are on this page.",
                "type": "integer",
                "minimum": 0,
            },
            "next_cursor": {
                "description": "There is more: goes into `cursor`.",
                "type": ["string", "null"],
            },
        },
        "required": [name, "count"],
    })
}

/// Peers, with the time that their states are of.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Peers")]
pub struct PeersAt<P> {
    /// A page of peers.
    #[serde(flatten)]
    pub page: P,
    /// The time of this list.
    pub as_of: Timestamp,
}

impl<T> Page<T> {
    pub fn last(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }

    /// The first of `ranked` that a model reads at once, at least one.
    pub fn best(ranked: impl Iterator<Item = T>) -> Self
    where
        T: Serialize,
    {
        let size = PageSize { rows: u32::MAX, bytes: limits::AGENT_PAGE_BYTES };
        Self::last(fill(&mut ranked.peekable(), size))
    }

    /// Reads a page of `list`. `read` gets the key of the cursor and how much to read. `key` makes
    /// the cursor's key of the page's last row.
    pub(super) async fn read<Key, LastKey, Read>(
        list: &str,
        bounds: PageBounds<'_>,
        read: impl FnOnce(Option<Key>, PageSize) -> Read,
        key: impl FnOnce(&T) -> LastKey,
    ) -> Result<Self>
    where
        Key: DeserializeOwned,
        LastKey: Serialize,
        Read: Future<Output = Result<RowPage<T>, StoreError>>,
    {
        let after = check::cursor(list, bounds.cursor)?;
        let RowPage { rows, more } = read(after, bounds.size()?).await?;
        let last = rows.last().filter(|_| more);
        let next_cursor = last.map(|row| check::make_cursor(list, &key(row)));
        Ok(Self { items: rows, next_cursor })
    }

    /// A page of a list that is in memory and whose items have no key of their own: the cursor
    /// counts the items before it.
    pub fn part(list: &str, all: impl IntoIterator<Item = T>, query: &PageQuery) -> Result<Self>
    where
        T: Serialize,
    {
        let begin = check::cursor::<usize>(list, query.cursor.as_deref())?.unwrap_or(0);
        let rest = all.into_iter().skip(begin);
        Self::of_rest(list, rest, query, |items| begin.saturating_add(items.len()))
    }

    /// A page of a list that is in memory: the first of the items after the query's cursor. `key`
    /// makes the next cursor's key of the page's items.
    pub fn of_rest<Key: Serialize>(
        list: &str,
        rest: impl IntoIterator<Item = T>,
        query: &PageQuery,
        key: impl FnOnce(&[T]) -> Key,
    ) -> Result<Self>
    where
        T: Serialize,
    {
        let size = PageBounds::from(query).size()?;
        let mut rest = rest.into_iter().peekable();
        let items = fill(&mut rest, size);
        let next_cursor = rest.peek().map(|_| check::make_cursor(list, &key(&items)));
        Ok(Self { items, next_cursor })
    }

    pub fn map<U>(self, item: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(item).collect(), next_cursor: self.next_cursor }
    }
}

/// Takes the items of a page. The first comes whatever its size.
fn fill<T: Serialize>(rest: &mut Peekable<impl Iterator<Item = T>>, size: PageSize) -> Vec<T> {
    let (mut items, mut bytes) = (Vec::new(), 0_usize);
    while let Some(item) = rest.peek() {
        bytes = bytes.saturating_add(json_bytes(item));
        let is_full = items.len() >= size.rows as usize || bytes > size.bytes;
        if is_full && !items.is_empty() {
            break;
        }
        items.extend(rest.next());
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_a_list_without_keys_has_the_default_limit_of_lists() {
        let mut query = PageQuery::default();
        for expected in [0..50, 50..60] {
            let page = Page::part("numbers", 0..60, &query).unwrap();
            assert_eq!(page.items, expected.collect::<Vec<_>>());
            query.cursor = page.next_cursor;
        }
        assert_eq!(query.cursor, None);
    }

    #[test]
    fn page_of_a_list_in_memory_ends_at_its_bounds_in_items_and_in_bytes() {
        let large = "x".repeat(limits::PAGE_BYTES / 2);
        let all = [large.as_str(), "a", "b", &large, &large, "c"];
        let page = |begin: usize, limit: Option<u32>| {
            let query = PageQuery { limit, cursor: None };
            let rest = all[begin..].iter().copied();
            let page =
                Page::of_rest("texts", rest, &query, |texts| texts.last().map(|last| last.len()));
            page.map(|page| (page.items.len(), page.next_cursor))
        };
        let cursor = |key: usize| Some(check::make_cursor("texts", &key));
        assert_eq!(page(0, None).unwrap(), (3, cursor(1)));
        assert_eq!(page(0, Some(2)).unwrap(), (2, cursor(1)));
        assert_eq!(page(3, None).unwrap(), (1, cursor(large.len())));
        assert_eq!(page(4, None).unwrap(), (2, None));
        page(0, Some(0)).unwrap_err();
    }

    #[test]
    fn best_of_what_was_found_is_bounded_in_bytes() {
        let large = "x".repeat(limits::AGENT_PAGE_BYTES);
        let best = |ranked: &[&str]| Page::best(ranked.iter().copied()).items.len();
        assert_eq!(best(&[&large, "a"]), 1);
        assert_eq!(best(&["a", "b", &large, "c"]), 2);
        assert_eq!(best(&[]), 0);
    }
}
