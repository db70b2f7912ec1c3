//! The rows that a daemon keeps, whichever database has them.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};

use crate::daemon::Home;

/// Whether the tests' daemons keep their rows in `svc.db`. If not, says that this test is skipped.
pub(crate) fn is_in_file() -> bool {
    let is_in_file = std::env::var_os("SVC_TEST_STORE").is_none();
    if !is_in_file {
        say_skipped("svc.db");
    }
    is_in_file
}

/// Whether a server of PostgreSQL can be started. If not, says that this test is skipped.
pub(crate) fn has_server() -> bool {
    let has_server = svc_store::scratch_server::is_installed();
    if !has_server {
        say_skipped("Debian's package postgresql");
    }
    has_server
}

/// Not by `println!`, which a test that passes does not show.
fn say_skipped(needs: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    writeln!(std::io::stderr(), "skipped: {test} (needs {needs})").expect("it is open");
}

impl Home {
    /// What the daemon says its database is.
    pub(crate) fn shown_store(&self) -> Value {
        self.store().map_or_else(|| json!(self.path("svc.db")), Value::from)
    }

    /// The files of the database.
    pub(crate) fn store_files(&self) -> &'static [&'static str] {
        if self.store().is_some() { &[] } else { &["svc.db", "svc.db-wal", "svc.db-shm"] }
    }

    /// The rows of a query, with the names of their columns.
    #[track_caller]
    pub(crate) fn named_rows(&self, sql: &str) -> Vec<Vec<(String, Value)>> {
        match self.store() {
            Some(url) => rows_of_server(url, sql),
            None => rows_of_file(&self.database(), sql),
        }
    }

    #[track_caller]
    pub(crate) fn rows(&self, sql: &str) -> Vec<Vec<Value>> {
        let rows = self.named_rows(sql).into_iter();
        rows.map(|row| row.into_iter().map(|(_, value)| value).collect()).collect()
    }

    #[track_caller]
    pub(crate) fn value(&self, sql: &str) -> Value {
        let rows = self.rows(sql);
        match rows.as_slice() {
            [row] if row.len() == 1 => row[0].clone(),
            _ => panic!("{sql}: {rows:?}"),
        }
    }

    /// Runs a statement beside the daemon; the number of rows that it changed.
    #[track_caller]
    pub(crate) fn change(&self, sql: &str) -> usize {
        let Some(url) = self.store() else {
            return self.database().execute(sql, []).unwrap_or_else(|why| panic!("{sql}: {why}"));
        };
        // Such as `UPDATE 2`.
        let tag = psql(url, sql);
        let count = tag.split_whitespace().next_back().and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("{sql}: {tag}"))
    }

    /// The file, beside a daemon that has it open.
    fn database(&self) -> Connection {
        let file = Connection::open(self.path("svc.db")).expect("the database opens");
        file.busy_timeout(Duration::from_secs(30)).expect("waits for the daemon");
        file
    }
}

fn rows_of_file(file: &Connection, sql: &str) -> Vec<Vec<(String, Value)>> {
    let mut statement = file.prepare(sql).unwrap_or_else(|why| panic!("{sql}: {why}"));
    let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let value = |value: ValueRef<'_>| match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
        ValueRef::Blob(_) => panic!("no blobs: {sql}"),
    };
    let rows = statement.query_map([], |row| {
        let named = names.iter().enumerate();
        named.map(|(n, name)| Ok((name.clone(), value(row.get_ref(n)?)))).collect()
    });
    rows.expect("rows").collect::<Result<_, _>>().unwrap_or_else(|why| panic!("{sql}: {why}"))
}

fn rows_of_server(url: &str, sql: &str) -> Vec<Vec<(String, Value)>> {
    // Pairs, since unnamed columns of a row have one name.
    let pairs = format!(
        "select coalesce(json_agg((select json_agg(json_build_array(key, value) order by ordinality)
            from pg_catalog.json_each(row_to_json(told)) with ordinality)), '[]') from ({sql}) told"
    );
    let told: Vec<Vec<(String, Value)>> =
        serde_json::from_str(&psql(url, &pairs)).expect("an array of rows");
    let numbers = |(name, value): (String, Value)| match value {
        // As SQLite has them.
        Value::Bool(is) => (name, json!(i64::from(is))),
        value => (name, value),
    };
    told.into_iter().map(|row| row.into_iter().map(numbers).collect()).collect()
}

/// Runs statements on a server of PostgreSQL, in the schema that daemons have by default.
#[track_caller]
pub(crate) fn psql(url: &str, sql: &str) -> String {
    let mut psql = Command::new(svc_store::scratch_server::programs().join("psql"));
    psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
    psql.args(["--dbname", url]).stdin(Stdio::piped());
    psql.stdout(Stdio::piped()).stderr(Stdio::piped());
    psql.env("PGOPTIONS", "-c search_path=svc,pg_catalog -c client_min_messages=warning");
    let mut running = psql.spawn().expect("psql runs");
    // A statement may be longer than an argument.
    let mut input = running.stdin.take().expect("it is piped");
    input.write_all(sql.as_bytes()).expect("it reads");
    drop(input);
    let ran = running.wait_with_output().expect("psql runs");
    assert!(ran.status.success(), "{sql}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("UTF-8").trim_end().to_owned()
}
