//! The rows of a table as lines of PostgreSQL's `copy`, in the order of the primary key. Both
//! engines yield the same lines, so a digest of the lines tells whether two tables are equal. The
//! digest takes a real number as its bits.

use futures_util::TryStreamExt as _;
use rusqlite::{Connection, types::ValueRef};
use sha2::{Digest as _, Sha256};
use sqlx::{Executor as _, PgConnection, Row as _};

use crate::{CopyError, upkeep::MoveMark};

/// Bytes of lines that one write sends to the server.
const CHUNK: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopiedKind {
    Integer,
    Real,
    Text,
    Blob,
}

#[derive(Debug)]
struct CopiedColumn {
    name: String,
    kind: CopiedKind,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    columns: Vec<CopiedColumn>,
    key: Vec<String>,
    /// Whether `id` is an identity column, whose sequence must be set after a copy.
    pub(super) counts_ids: bool,
}

/// Number of rows, and a digest of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) rows: u64,
    digest: [u8; 32],
}

#[derive(Debug, Default)]
struct Summing {
    rows: u64,
    hash: Sha256,
}

impl Summing {
    fn add(&mut self, line: &[u8]) {
        self.rows += 1;
        self.hash.update(line);
    }

    fn finish(self) -> Sum {
        Sum { rows: self.rows, digest: self.hash.finalize().into() }
    }
}

/// The tables of the schema, each after the tables that it references. Leaves out the writer's own
/// tables (`writer.sql`), which number commits and hold no facts.
pub(super) async fn tables(conn: &mut PgConnection) -> Result<Vec<Table>, sqlx::Error> {
    let columns = r"select c.relname::text, a.attname::text, format_type(a.atttypid, null),
            a.attidentity <> '' as counts_ids, coalesce(array_position(i.indkey::int2[], a.attnum), -1)
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid
        join pg_index i on i.indrelid = c.oid and i.indisprimary
        where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
            and c.relname <> '_sqlx_migrations' and c.relname not like 'svc\_%'
            and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
        order by c.oid, a.attnum";
    let mut tables: Vec<Table> = Vec::new();
    let mut keys: Vec<Vec<(i32, String)>> = Vec::new();
    for row in conn.fetch_all(columns).await? {
        let (table, name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if tables.last().is_none_or(|last| last.name != table) {
            tables.push(Table { name: table, columns: vec![], key: vec![], counts_ids: false });
            keys.push(vec![]);
        }
        let kind = match row.try_get::<&str, _>(2)? {
            "bigint" => CopiedKind::Integer,
            "double precision" => CopiedKind::Real,
            "bytea" => CopiedKind::Blob,
            _ => CopiedKind::Text,
        };
        let place: i32 = row.try_get(4)?;
        if let (Some(table), Some(key)) = (tables.last_mut(), keys.last_mut()) {
            table.counts_ids |= row.try_get::<bool, _>(3)?;
            if place >= 0 {
                key.push((place, name.clone()));
            }
            table.columns.push(CopiedColumn { name, kind });
        }
    }
    for (table, mut key) in tables.iter_mut().zip(keys) {
        key.sort_unstable();
        table.key = key.into_iter().map(|(_, name)| name).collect();
    }
    Ok(tables)
}

/// Whether the file has the same tables and columns.
///
/// # Errors
/// If they differ, because a migration was written for one engine only.
pub(super) fn compare(file: &Connection, tables: &[Table]) -> Result<(), CopyError> {
    let names = "select m.name from sqlite_schema m
        where m.type = 'table' and m.sql not like 'create virtual%' and m.name not like 'sqlite\\_%' escape '\\'
            and m.name not like 'ghap\\_fts\\_%' escape '\\' and m.name not like 'term\\_trigram\\_%' escape '\\'
            and m.name <> '_sqlx_migrations'";
    let mut names = file.prepare(names)?;
    let names =
        names.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    for name in &names {
        if !tables.iter().any(|table| table.name == *name) {
            return Err(CopyError::Schema(format!("the server has no table {name}")));
        }
    }
    for table in tables {
        let columns = "select name from pragma_table_xinfo(?) where hidden = 0";
        let mut columns = file.prepare(columns)?;
        let mut found = columns
            .query_map([&table.name], |row| row.get::<_, String>(0))?
            .collect::<Result<Vec<_>, _>>()?;
        let mut wanted: Vec<_> = table.columns.iter().map(|column| column.name.clone()).collect();
        found.sort_unstable();
        wanted.sort_unstable();
        if found != wanted {
            return Err(CopyError::Schema(format!("the columns of {} differ", table.name)));
        }
    }
    Ok(())
}

impl Table {
    fn column_names(&self) -> String {
        self.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// SQL condition that leaves out the marks of a move.
    fn condition(&self) -> String {
        if self.name == "setting" {
            format!(" where name not in ('{}')", MoveMark::NAMES.join("', '"))
        } else {
            String::new()
        }
    }

    fn order(&self) -> String {
        format!(" order by {}", self.key.join(", "))
    }

    pub(super) fn is_used(&self) -> String {
        // The migrations create the row of the scope of all memories.
        let condition = match self.name.as_str() {
            "search_scope" => " where name <> ''".to_owned(),
            _ => self.condition(),
        };
        format!("select exists (select 1 from {}{condition})", self.name)
    }

    fn select(&self) -> String {
        let names = self.column_names();
        format!("select {names} from {}{}{}", self.name, self.condition(), self.order())
    }

    /// Reads rows of the file as lines of `copy` until `chunk` is full. Returns whether there may
    /// be more rows. `sum` takes the lines with the bits of real numbers.
    fn read_chunk(
        &self,
        rows: &mut rusqlite::Rows<'_>,
        chunk: &mut Vec<u8>,
        sum: &mut Summing,
    ) -> Result<bool, CopyError> {
        let mut exact = Vec::new();
        chunk.clear();
        while let Some(row) = rows.next()? {
            exact.clear();
            for (at, column) in self.columns.iter().enumerate() {
                if at > 0 {
                    chunk.push(b'\t');
                    exact.push(b'\t');
                }
                self.write(row.get_ref(at)?, column, chunk, &mut exact)?;
            }
            chunk.push(b'\n');
            exact.push(b'\n');
            sum.add(&exact);
            if chunk.len() >= CHUNK {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn write(
        &self,
        value: ValueRef<'_>,
        column: &CopiedColumn,
        line: &mut Vec<u8>,
        exact: &mut Vec<u8>,
    ) -> Result<(), CopyError> {
        let start = line.len();
        match value {
            ValueRef::Null => line.extend_from_slice(b"\\N"),
            ValueRef::Integer(number) => line.extend_from_slice(number.to_string().as_bytes()),
            ValueRef::Real(number) => {
                line.extend_from_slice(number.to_string().as_bytes());
                exact.extend_from_slice(format!("{:016x}", number.to_bits()).as_bytes());
                return Ok(());
            }
            ValueRef::Text(text) => {
                if text.contains(&0) {
                    return Err(CopyError::Nul {
                        table: self.name.clone(),
                        column: column.name.clone(),
                    });
                }
                escape(text, line);
            }
            ValueRef::Blob(bytes) => {
                line.extend_from_slice(b"\\\\x");
                line.extend_from_slice(hex::encode(bytes).as_bytes());
            }
        }
        exact.extend_from_slice(&line[start..]);
        Ok(())
    }

    pub(super) fn sum_of_file(&self, file: &Connection) -> Result<Sum, CopyError> {
        let mut statement = file.prepare(&self.select())?;
        let mut rows = statement.query([])?;
        let (mut chunk, mut sum) = (Vec::new(), Summing::default());
        while self.read_chunk(&mut rows, &mut chunk, &mut sum)? {}
        Ok(sum.finish())
    }

    /// Sends the file's rows to the server. `progress` gets the number of rows so far.
    pub(super) async fn send(
        &self,
        file: &Connection,
        conn: &mut PgConnection,
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<Sum, CopyError> {
        let mut statement = file.prepare(&self.select())?;
        let mut rows = statement.query([])?;
        let copy = format!("copy {} ({}) from stdin", self.name, self.column_names());
        let mut target = conn.copy_in_raw(&copy).await?;
        let (mut chunk, mut sum) = (Vec::with_capacity(2 * CHUNK), Summing::default());
        loop {
            let more = match self.read_chunk(&mut rows, &mut chunk, &mut sum) {
                Ok(more) => more,
                Err(error) => {
                    // `abort` returns an error by itself; `error` is the cause.
                    drop(target.abort("a row was not read").await);
                    return Err(error);
                }
            };
            target.send(&*chunk).await?;
            progress(&self.name, sum.rows);
            if !more {
                break;
            }
        }
        target.finish().await?;
        Ok(sum.finish())
    }

    /// Reads the server's rows as lines with the bits of real numbers.
    async fn read_server(
        &self,
        conn: &mut PgConnection,
        mut each: impl FnMut(&[u8]) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let columns = self.columns.iter().map(|column| match column.kind {
            CopiedKind::Real => format!("encode(float8send({}), 'hex')", column.name),
            _ => column.name.clone(),
        });
        let columns = columns.collect::<Vec<_>>().join(", ");
        let (condition, order) = (self.condition(), self.order());
        let copy =
            format!("copy (select {columns} from {}{condition}{order}) to stdout", self.name);
        let mut chunks = conn.copy_out_raw(&copy).await?;
        let mut rest = Vec::new();
        while let Some(chunk) = chunks.try_next().await? {
            rest.extend_from_slice(&chunk);
            let mut start = 0;
            while let Some(end) = rest[start..].iter().position(|byte| *byte == b'\n') {
                each(&rest[start..=start + end])?;
                start += end + 1;
            }
            rest.drain(..start);
        }
        Ok(())
    }

    pub(super) async fn sum_of_server(&self, conn: &mut PgConnection) -> Result<Sum, CopyError> {
        let mut sum = Summing::default();
        self.read_server(conn, |line| {
            sum.add(line);
            Ok(())
        })
        .await?;
        Ok(sum.finish())
    }

    pub(super) async fn receive(
        &self,
        conn: &mut PgConnection,
        file: &Connection,
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<Sum, CopyError> {
        let marks = vec!["?"; self.columns.len()].join(", ");
        let insert =
            format!("insert into {} ({}) values ({marks})", self.name, self.column_names());
        let mut insert = file.prepare(&insert)?;
        let mut sum = Summing::default();
        self.read_server(conn, |line| {
            sum.add(line);
            let fields = line[..line.len() - 1].split(|byte| *byte == b'\t');
            for (at, (field, column)) in fields.zip(&self.columns).enumerate() {
                insert.raw_bind_parameter(at + 1, column.read(field)?)?;
            }
            insert.raw_execute()?;
            if sum.rows % 10_000 == 0 {
                progress(&self.name, sum.rows);
            }
            Ok(())
        })
        .await?;
        progress(&self.name, sum.rows);
        Ok(sum.finish())
    }
}

impl CopiedColumn {
    fn read(&self, field: &[u8]) -> Result<rusqlite::types::Value, CopyError> {
        use rusqlite::types::Value;
        if field == b"\\N" {
            return Ok(Value::Null);
        }
        let bad =
            || CopyError::Schema(format!("a value of the column {} is unreadable", self.name));
        let text = String::from_utf8(unescape(field)).map_err(|_| bad())?;
        match self.kind {
            CopiedKind::Integer => text.parse().map(Value::Integer).map_err(|_| bad()),
            CopiedKind::Real => {
                let bits = u64::from_str_radix(&text, 16).map_err(|_| bad())?;
                Ok(Value::Real(f64::from_bits(bits)))
            }
            CopiedKind::Text => Ok(Value::Text(text)),
            CopiedKind::Blob => {
                let digits = text.strip_prefix("\\x").ok_or_else(bad)?;
                hex::decode(digits).map(Value::Blob).map_err(|_| bad())
            }
        }
    }
}

/// The characters that `copy` escapes, each with the letter that follows the backslash.
const ESCAPES: [(u8, u8); 7] = [
    (b'\\', b'\\'),
    (b'\n', b'n'),
    (b'\t', b't'),
    (b'\r', b'r'),
    (8, b'b'),
    (11, b'v'),
    (12, b'f'),
];

fn escape(text: &[u8], line: &mut Vec<u8>) {
    for byte in text {
        if let Some((_, letter)) = ESCAPES.iter().find(|(plain, _)| plain == byte) {
            line.extend_from_slice(&[b'\\', *letter]);
        } else {
            line.push(*byte);
        }
    }
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut bytes = field.iter();
    while let Some(byte) = bytes.next() {
        let letter = if *byte == b'\\' { bytes.next() } else { None };
        let known = letter.and_then(|letter| ESCAPES.iter().find(|(_, known)| known == letter));
        plain.push(known.map_or(*byte, |(byte, _)| *byte));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_field_of_one_line() {
        let mut line = Vec::new();
        escape("a\\N\tb\n\r\u{8}\u{b}\u{c}é".as_bytes(), &mut line);
        assert_eq!(line, "a\\\\N\\tb\\n\\r\\b\\v\\fé".as_bytes());
        assert_eq!(unescape(&line), "a\\N\tb\n\r\u{8}\u{b}\u{c}é".as_bytes());
    }
}
