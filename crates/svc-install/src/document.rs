//! A configuration file in which one place is changed and the rest of the text is preserved.
//!
//! Both formats preserve comments, order, unknown keys, indentation and line ends. A document that
//! does not parse is never written.

use std::path::Path;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{
    CstContainerNode, CstInputValue, CstNewline, CstNode, CstObject, CstObjectProp, CstRootNode,
};
use serde_json::{Map, Value};
use toml_edit::{
    Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value as TomlValue,
};

use super::bounded_file::{self, CLIENT_FILE_BYTES};

/// Keys that svc writes before all others, in this order.
const FIRST: &[&str] = &["type", "name", "matcher", "command", "args", "hooks"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// JSON with comments and trailing commas.
    Json,
    Toml,
}

impl FileFormat {
    /// The format of a client's file, by its name.
    pub fn from_path(path: &Path) -> Self {
        let is_toml = path.extension().is_some_and(|extension| extension == "toml");
        if is_toml { Self::Toml } else { Self::Json }
    }
}

/// The content of a client's file; null if the file does not exist or does not parse.
pub(crate) fn content(path: &Path) -> Value {
    let text = bounded_file::read_text(path, CLIENT_FILE_BYTES).ok().flatten().unwrap_or_default();
    let document = ConfigDocument::parse(FileFormat::from_path(path), &text);
    document.map(|document| document.value()).unwrap_or_default()
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("is not valid {0}: {1}")]
    Invalid(&'static str, String),
    #[error("has something else than {1} at `{0}`")]
    Shape(String, &'static str),
}

#[derive(Debug)]
pub struct ConfigDocument {
    /// Whether a byte order mark precedes the document. The parsers do not keep it.
    mark: bool,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Json(CstRootNode),
    /// Its line ends are marked with [`CR`]. The flag: whether every line ends with CR LF, so that
    /// new lines do, too.
    Toml(Box<DocumentMut>, bool),
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Stands for the CR of a line end within a TOML document: the parser drops CRs and keeps blanks.
const CR: &str = " \t \t\t  \t ";

/// Whether every line ends with CR LF.
fn ends_in_crlf(text: &str) -> bool {
    let ends = text.matches('\n').count();
    ends > 0 && text.matches("\r\n").count() == ends
}

impl ConfigDocument {
    /// Parses a document; an empty text is an empty document.
    pub fn parse(format: FileFormat, text: &str) -> Result<Self, DocumentError> {
        let without_mark = text.strip_prefix(BYTE_ORDER_MARK);
        let (mark, text) = (without_mark.is_some(), without_mark.unwrap_or(text));
        let body = match format {
            FileFormat::Json => {
                let root = CstRootNode::parse(text, &options())
                    .map_err(|error| DocumentError::Invalid("JSON", error.to_string()))?;
                if root.value().is_some() && root.object_value().is_none() {
                    return Err(DocumentError::Shape("the top".to_owned(), "an object"));
                }
                Body::Json(root)
            }
            FileFormat::Toml => {
                let parsed = text.replace("\r\n", &format!("{CR}\n")).parse::<DocumentMut>();
                let document = parsed.map_err(|error| {
                    DocumentError::Invalid("TOML", error.to_string().trim().to_owned())
                })?;
                Body::Toml(Box::new(document), ends_in_crlf(text))
            }
        };
        Ok(Self { mark, body })
    }

    pub fn text(&self) -> String {
        let mut text = match &self.body {
            Body::Json(root) => root.to_string(),
            Body::Toml(document, false) => {
                document.to_string().replace(&format!("{CR}\n"), "\r\n").replace(CR, "")
            }
            Body::Toml(document, true) => {
                document.to_string().replace(CR, "").replace('\n', "\r\n")
            }
        };
        if self.mark {
            text.insert(0, BYTE_ORDER_MARK);
        }
        text
    }

    pub fn value(&self) -> Value {
        match &self.body {
            Body::Json(root) => root.to_serde_value().unwrap_or_else(|| Value::Object(Map::new())),
            Body::Toml(..) => {
                let text = self.text();
                let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
                let plain = text.parse::<DocumentMut>();
                plain.map_or_else(|_| Value::Object(Map::new()), |it| table_value(it.as_table()))
            }
        }
    }

    /// Sets the last key of `path` to `value`, and creates the tables above it if they are missing.
    /// An existing table keeps its comments and order.
    pub fn set(&mut self, path: &[&str], value: &Value) -> Result<(), DocumentError> {
        let Some((name, way)) = path.split_last() else { return Ok(()) };
        match &mut self.body {
            Body::Json(root) => {
                let object = json_object(root, way)?;
                match (object.get(name), value) {
                    (Some(property), Value::Object(wanted))
                        if let Some(there) = property.object_value() =>
                    {
                        json_update(&there, wanted);
                    }
                    (Some(property), value) => property.set_value(input(value)),
                    (None, value) => append_member(&object, name, value),
                }
            }
            Body::Toml(document, _) => {
                let (table, inline) = toml_table(document, way)?;
                if let Value::Object(wanted) = value
                    && let Some(there) = table.get_mut(name).and_then(Item::as_table_like_mut)
                {
                    toml_update(there, wanted);
                } else if inline {
                    table.insert(name, Item::Value(toml_value(value)));
                } else {
                    table.insert(name, toml_item(value));
                }
            }
        }
        Ok(())
    }

    /// Appends `value` to the list at `path`, and creates the list and the tables above it if they
    /// are missing.
    pub fn push(&mut self, path: &[&str], value: &Value) -> Result<(), DocumentError> {
        let Some((name, way)) = path.split_last() else { return Ok(()) };
        let shape = || DocumentError::Shape(path.join("."), "a list");
        match &mut self.body {
            Body::Json(root) => {
                let object = json_object(root, way)?;
                if object.get(name).is_none() {
                    append_member(&object, name, &Value::Array(Vec::new()));
                }
                let list = object.array_value(name).ok_or_else(shape)?;
                keep_end_of_last(&list.append(input(value)));
            }
            Body::Toml(document, _) => {
                let (table, inline) = toml_table(document, way)?;
                let empty = || {
                    if inline {
                        Item::Value(TomlValue::Array(Array::new()))
                    } else {
                        Item::ArrayOfTables(ArrayOfTables::new())
                    }
                };
                match table.entry(name).or_insert_with(empty) {
                    Item::ArrayOfTables(list) => list.push(toml_block(value)),
                    Item::Value(TomlValue::Array(list)) => list.push(toml_value(value)),
                    _ => return Err(shape()),
                }
            }
        }
        Ok(())
    }

    pub fn remove(&mut self, path: &[PathStep<'_>]) {
        match &mut self.body {
            Body::Json(root) => {
                let mut node = root.value();
                for (depth, step) in path.iter().enumerate() {
                    let Some(here) = node else { return };
                    let property = match step {
                        PathStep::Key(key) => here.as_object().and_then(|object| object.get(key)),
                        PathStep::Index(_) => None,
                    };
                    if depth + 1 == path.len()
                        && let Some(property) = property
                    {
                        remove_member(property);
                        return;
                    }
                    node = match step {
                        PathStep::Key(_) => property.and_then(|property| property.value()),
                        PathStep::Index(index) => {
                            here.as_array().and_then(|list| list.elements().get(*index).cloned())
                        }
                    };
                }
                if let Some(node) = node {
                    remove_element(node);
                }
            }
            Body::Toml(document, _) => toml_remove(document.as_item_mut(), path),
        }
    }
}

/// One step of a path in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathStep<'a> {
    Key(&'a str),
    /// An element of a list, counted from 0.
    Index(usize),
}

fn options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// The object at the keys of `way`, created if it is missing.
fn json_object(root: &CstRootNode, way: &[&str]) -> Result<CstObject, DocumentError> {
    let mut object = root
        .object_value_or_create()
        .ok_or_else(|| DocumentError::Shape("the top".to_owned(), "an object"))?;
    for (depth, key) in way.iter().enumerate() {
        if object.get(key).is_none() {
            append_member(&object, key, &Value::Object(Map::new()));
        }
        object = object
            .object_value(key)
            .ok_or_else(|| DocumentError::Shape(way[..=depth].join("."), "an object"))?;
    }
    Ok(object)
}

fn json_update(there: &CstObject, wanted: &Map<String, Value>) {
    for property in there.properties() {
        let name = property.decoded_name().unwrap_or_default();
        match wanted.get(&name) {
            None => remove_member(property),
            Some(value)
                if property.value().and_then(|it| it.to_serde_value()).as_ref() != Some(value) =>
            {
                property.set_value(input(value));
            }
            Some(_) => {}
        }
    }
    for (name, value) in ordered(wanted) {
        if there.get(name).is_none() {
            append_member(there, name, value);
        }
    }
}

fn append_member(object: &CstObject, name: &str, value: &Value) {
    keep_end_of_last(&object.append(name, input(value)).into());
}

fn remove_member(property: CstObjectProp) {
    let node = property.clone().into();
    keep_end_before(&node);
    property.remove();
}

/// The line ends before and behind a member of an object or a list that has its own lines.
fn line_ends(node: &CstNode) -> Option<(CstNewline, CstNewline)> {
    let before = node.previous_siblings().find(|it| !it.is_whitespace());
    let behind =
        node.next_siblings().find(|it| it.is_newline() || !it.is_trivia() && !it.is_comma());
    Some((before?.as_newline()?, behind?.as_newline()?))
}

/// Gives the line before a new last member its line end back: the parser puts a new one there, and
/// the old one behind the member.
fn keep_end_of_last(node: &CstNode) {
    if let Some((before, behind)) = line_ends(node) {
        before.set_kind(behind.kind());
    }
}

/// Keeps the end of the line before a member that is removed, whichever of the two line ends goes.
fn keep_end_before(node: &CstNode) {
    if let Some((before, behind)) = line_ends(node) {
        behind.set_kind(before.kind());
    }
}

fn remove_element(node: CstNode) {
    keep_end_before(&node);
    match node {
        CstNode::Container(CstContainerNode::Object(object)) => object.remove(),
        CstNode::Container(CstContainerNode::Array(array)) => array.remove(),
        other => other.remove(),
    }
}

/// The members of an object in the order in which svc writes them.
fn ordered(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut members: Vec<_> = map.iter().collect();
    members
        .sort_by_key(|(key, _)| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
    members
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(it) => CstInputValue::Bool(*it),
        Value::Number(it) => CstInputValue::Number(it.to_string()),
        Value::String(it) => CstInputValue::String(it.clone()),
        Value::Array(list) => CstInputValue::Array(list.iter().map(input).collect()),
        Value::Object(map) => CstInputValue::Object(
            ordered(map).into_iter().map(|(key, value)| (key.clone(), input(value))).collect(),
        ),
    }
}

/// The table at the keys of `way`, created if it is missing, and whether the table is written
/// inline.
fn toml_table<'a>(
    document: &'a mut DocumentMut,
    way: &[&str],
) -> Result<(&'a mut dyn TableLike, bool), DocumentError> {
    let mut table: &mut dyn TableLike = document.as_table_mut();
    let mut inline = false;
    for (depth, key) in way.iter().enumerate() {
        let item = table.entry(key).or_insert_with(|| {
            if inline {
                return Item::Value(TomlValue::InlineTable(InlineTable::new()));
            }
            let mut made = Table::new();
            // Only its children get headers.
            made.set_implicit(true);
            Item::Table(made)
        });
        inline |= item.is_inline_table();
        table = item
            .as_table_like_mut()
            .ok_or_else(|| DocumentError::Shape(way[..=depth].join("."), "a table"))?;
    }
    Ok((table, inline))
}

fn toml_update(there: &mut dyn TableLike, wanted: &Map<String, Value>) {
    let gone: Vec<String> = there
        .iter()
        .map(|(key, _)| key.to_owned())
        .filter(|key| !wanted.contains_key(key))
        .collect();
    for key in gone {
        there.remove(&key);
    }
    for (key, value) in ordered(wanted) {
        if there.get(key).map(item_value).as_ref() != Some(value) {
            there.insert(key, Item::Value(toml_value(value)));
        }
    }
}

fn toml_remove(item: &mut Item, path: &[PathStep<'_>]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (step, item) {
        (PathStep::Key(key), item) => {
            let Some(table) = item.as_table_like_mut() else { return };
            if rest.is_empty() {
                table.remove(key);
            } else if let Some(child) = table.get_mut(key) {
                toml_remove(child, rest);
            }
        }
        // The elements of a list are tables or values, not items.
        (PathStep::Index(index), Item::ArrayOfTables(list)) if *index < list.len() => {
            if rest.is_empty() {
                list.remove(*index);
            } else if let Some(table) = list.get_mut(*index) {
                let mut inner = Item::Table(std::mem::take(table));
                toml_remove(&mut inner, rest);
                if let Item::Table(changed) = inner {
                    *table = changed;
                }
            }
        }
        (PathStep::Index(index), Item::Value(TomlValue::Array(list))) if *index < list.len() => {
            if rest.is_empty() {
                list.remove(*index);
            } else if let Some(value) = list.get_mut(*index) {
                let mut inner = Item::Value(value.clone());
                toml_remove(&mut inner, rest);
                if let Item::Value(changed) = inner {
                    *value = changed;
                }
            }
        }
        (PathStep::Index(_), _) => {}
    }
}

/// The members without nulls, which TOML does not have.
fn toml_members(map: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    ordered(map).into_iter().filter(|(_, value)| !value.is_null())
}

fn toml_value(value: &Value) -> TomlValue {
    match value {
        Value::Null => TomlValue::from(""),
        Value::Bool(it) => TomlValue::from(*it),
        Value::Number(it) => match it.as_i64() {
            Some(it) => TomlValue::from(it),
            None => TomlValue::from(it.as_f64().unwrap_or_default()),
        },
        Value::String(it) => TomlValue::from(it.as_str()),
        Value::Array(list) => TomlValue::Array(list.iter().map(toml_value).collect()),
        Value::Object(map) => TomlValue::InlineTable(
            toml_members(map).map(|(key, value)| (key, toml_value(value))).collect(),
        ),
    }
}

/// A table with its own header; lists of tables in it have headers too.
fn toml_item(value: &Value) -> Item {
    match value {
        Value::Object(_) => Item::Table(toml_block(value)),
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_object) => {
            Item::ArrayOfTables(list.iter().map(toml_block).collect())
        }
        other => Item::Value(toml_value(other)),
    }
}

fn toml_block(value: &Value) -> Table {
    let mut table = Table::new();
    for (key, value) in value.as_object().into_iter().flat_map(toml_members) {
        let item = if value.is_array() { toml_item(value) } else { Item::Value(toml_value(value)) };
        table.insert(key, item);
    }
    table
}

fn table_value(table: &dyn TableLike) -> Value {
    Value::Object(table.iter().map(|(key, item)| (key.to_owned(), item_value(item))).collect())
}

fn item_value(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => plain(value),
        Item::Table(table) => table_value(table),
        Item::ArrayOfTables(list) => list.iter().map(|table| table_value(table)).collect(),
    }
}

fn plain(value: &TomlValue) -> Value {
    match value {
        TomlValue::String(it) => Value::from(it.value().as_str()),
        TomlValue::Integer(it) => Value::from(*it.value()),
        TomlValue::Float(it) => Value::from(*it.value()),
        TomlValue::Boolean(it) => Value::from(*it.value()),
        TomlValue::Datetime(it) => Value::from(it.value().to_string()),
        TomlValue::Array(list) => list.iter().map(plain).collect(),
        TomlValue::InlineTable(table) => table_value(table),
    }
}
