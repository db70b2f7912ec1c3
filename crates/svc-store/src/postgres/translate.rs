//! The text of a statement on PostgreSQL, made from the one text that SQLite runs.
//!
//! Statements are constants, so this is no translator of SQL in general: it handles what our own
//! statements use, and a test prepares each of them on a server. Functions and operators that have
//! the same name in both dialects and differ are defined in the schema (`migrations/postgres`):
//! `json_each`, `iif`, `->>`, `substr` with a negative start, the `sum` of integers, `max` and
//! `min` of two values. A statement that no rule can convert has a text of its own in [`OWN`].

use std::borrow::Cow;

pub(crate) fn translate(sqlite: &str) -> String {
    if let Some(own) = own_text(sqlite) {
        return own.to_owned();
    }
    let mut text = Statement::read(sqlite);
    text.number_parameters();
    text.leave_the_order_to_the_planner();
    text.compare_with_null();
    text.fold_case();
    text.cast();
    text.make_json();
    text.qualify_upserts();
    text.give_types_to_null_tests();
    text.read_integers_from_lists();
    text.name_subqueries();
    text.write()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A name or a keyword.
    Word,
    /// A name in quotation marks.
    Quoted,
    Literal,
    Parameter,
    /// An operator, or punctuation such as a parenthesis.
    Symbol,
}

/// A token, with the space and the comments before it.
#[derive(Debug, Clone)]
struct SqlToken<'a> {
    space: &'a str,
    kind: Kind,
    text: Cow<'a, str>,
}

impl SqlToken<'_> {
    fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Symbol) && self.text == text
    }

    fn is_any(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.is(text))
    }

    fn insert_before(&mut self, text: &str) {
        self.text.to_mut().insert_str(0, text);
    }

    fn append(&mut self, text: &str) {
        self.text.to_mut().push_str(text);
    }

    /// Keeps the space, which may contain a line break.
    fn clear(&mut self) {
        self.text = Cow::Borrowed("");
    }
}

const COMPARISONS: &[&str] = &["=", "<>", "<", ">", "<=", ">="];
/// Words that may follow a subquery in a `from` and do not name it.
const AFTER_A_SOURCE: &[&str] =
    &["where", "group", "order", "limit", "union", "cross", "join", "left", "on", "having"];
/// Words in expressions that are not columns.
const KEYWORDS: &[&str] = &[
    "and", "or", "not", "is", "null", "true", "false", "in", "between", "case", "when", "then",
    "else", "end", "where", "as", "exists", "select", "from", "set",
];

struct Statement<'a> {
    tokens: Vec<SqlToken<'a>>,
}

impl<'a> Statement<'a> {
    fn read(text: &'a str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text;
        loop {
            let (space, after) = rest.split_at(space_before(rest));
            let Some(first) = after.chars().next() else {
                break;
            };
            let (kind, length) = match first {
                '\'' => (Kind::Literal, quoted(after, '\'')),
                '"' => (Kind::Quoted, quoted(after, '"')),
                '?' => (Kind::Parameter, 1 + run(&after[1..], |c| c.is_ascii_digit())),
                '0'..='9' => (Kind::Literal, run(after, |c| c.is_ascii_alphanumeric() || c == '.')),
                c if is_of_word(c) => (Kind::Word, run(after, is_of_word)),
                _ => {
                    let long = ["->>", "->", "<>", "<=", ">=", "||"];
                    let long = long.iter().find(|symbol| after.starts_with(**symbol));
                    (Kind::Symbol, long.map_or(first.len_utf8(), |symbol| symbol.len()))
                }
            };
            tokens.push(SqlToken { space, kind, text: Cow::Borrowed(&after[..length]) });
            rest = &after[length..];
        }
        Self { tokens }
    }

    fn write(&self) -> String {
        self.tokens.iter().flat_map(|token| [token.space, &*token.text]).collect()
    }

    fn has(&self, at: usize, texts: &[&str]) -> bool {
        let tokens = self.tokens.get(at..at + texts.len());
        tokens.is_some_and(|tokens| tokens.iter().zip(texts).all(|(token, text)| token.is(text)))
    }

    fn is_word(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == Kind::Word)
    }

    /// Indexes at which the tokens `texts` begin. The caller may change tokens while it visits
    /// them, but must not add any.
    fn places(&self, texts: &[&str]) -> Vec<usize> {
        (0..self.tokens.len()).filter(|at| self.has(*at, texts)).collect()
    }

    fn close(&self, open: usize) -> usize {
        let mut depth = 0;
        for (at, token) in self.tokens.iter().enumerate().skip(open) {
            if token.is("(") {
                depth += 1;
            } else if token.is(")") {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
        }
        self.tokens.len() - 1
    }

    /// Index of the parenthesis that encloses the token at `inside`, and the number of commas
    /// between the two.
    fn open(&self, inside: usize) -> Option<(usize, usize)> {
        let (mut depth, mut commas) = (0, 0);
        for at in (0..inside).rev() {
            let token = &self.tokens[at];
            if token.is(")") {
                depth += 1;
            } else if token.is("(") && depth == 0 {
                return Some((at, commas));
            } else if token.is("(") {
                depth -= 1;
            } else if token.is(",") && depth == 0 {
                commas += 1;
            }
        }
        None
    }

    /// `?` and `?3` are `$1` and `$3`. A `?` without number is the one after the highest so far.
    fn number_parameters(&mut self) {
        let mut highest = 0;
        for token in self.tokens.iter_mut().filter(|token| token.kind == Kind::Parameter) {
            let number = token.text[1..].parse().unwrap_or(highest + 1);
            highest = highest.max(number);
            token.text = Cow::Owned(format!("${number}"));
        }
    }

    /// `cross join a on …` and `indexed by …` tell SQLite what to read first and by which index.
    /// PostgreSQL has no such words and decides by its statistics.
    fn leave_the_order_to_the_planner(&mut self) {
        for at in self.places(&["indexed", "by"]) {
            self.tokens[at..at + 3].iter_mut().for_each(SqlToken::clear);
        }
        for cross in self.places(&["cross", "join"]) {
            let mut at = cross + 2;
            while let Some(token) = self.tokens.get(at) {
                if token.is("(") {
                    at = self.close(at);
                } else if token.is("on") {
                    self.tokens[cross].clear();
                    break;
                } else if token.is_any(&[")", ","]) || token.is_any(AFTER_A_SOURCE) {
                    break;
                }
                at += 1;
            }
        }
    }

    /// `a is ?` is also true if both are null.
    fn compare_with_null(&mut self) {
        for is in self.places(&["is"]) {
            let not = usize::from(self.has(is + 1, &["not"]));
            let value = is + 1 + not;
            if self.tokens.get(value).is_none_or(|token| token.is_any(&["null", "true", "false"])) {
                continue;
            }
            self.tokens[is].append(if not == 1 { " distinct from" } else { " not distinct from" });
            if not == 1 {
                self.tokens[is + 1].clear();
            }
        }
    }

    /// `a = ? collate nocase`: no collation of PostgreSQL folds only ASCII letters; `lower` with
    /// the collation "C" does. The indexes are over `lower(a)`.
    fn fold_case(&mut self) {
        for collate in self.places(&["collate", "nocase"]) {
            let (column, value) = (collate - 3, collate - 1);
            let is_qualified = self.has(column - 1, &["."]);
            self.tokens[if is_qualified { column - 2 } else { column }].insert_before("lower(");
            self.tokens[column].append(")");
            self.tokens[value].insert_before("lower(");
            self.tokens[collate + 1].text = Cow::Borrowed("\"C\")");
        }
    }

    fn cast(&mut self) {
        for cast in self.places(&["cast", "("]) {
            let end = self.close(cast + 1);
            let is_parameter = end == cast + 5 && self.tokens[cast + 2].kind == Kind::Parameter;
            match &*self.tokens[end - 1].text {
                "integer" if is_parameter => self.tokens[end - 1].text = Cow::Borrowed("bigint"),
                // PostgreSQL's cast rounds a fraction. SQLite's cast and this function drop it.
                "integer" => self.call(cast, "to_integer", end),
                "real" => self.tokens[end - 1].text = Cow::Borrowed("double precision"),
                "blob" => {
                    self.call(cast, "convert_to", end);
                    self.tokens[end].insert_before(", 'UTF8'");
                }
                _ => {}
            }
        }
    }

    /// Replaces the cast that ends at `end` by a call of `function`.
    fn call(&mut self, cast: usize, function: &'static str, end: usize) {
        self.tokens[cast].text = Cow::Borrowed(function);
        for token in &mut self.tokens[end - 2..end] {
            token.space = "";
            token.clear();
        }
    }

    /// Later versions of PostgreSQL parse `json_array(` as the SQL standard's, which drops nulls.
    fn make_json(&mut self) {
        for at in self.places(&["json_array", "("]) {
            self.tokens[at].text = Cow::Borrowed("json_build_array");
        }
        for at in self.places(&["json_group_array", "("]) {
            let end = self.close(at + 1);
            self.tokens[at].text = Cow::Borrowed("coalesce(json_agg");
            // `json_agg` of no rows is null.
            self.tokens[end].append(", '[]')");
        }
    }

    /// In `do update set n = n + 1`, the second `n` is ambiguous: it could be that of `excluded`.
    fn qualify_upserts(&mut self) {
        let Some(update) = self.places(&["do", "update", "set"]).first().copied() else {
            return;
        };
        let table = self.tokens[2].text.to_string();
        let (mut is_target, mut depth) = (true, 0);
        for at in update + 3..self.tokens.len() {
            let token = &self.tokens[at];
            if token.is("returning") {
                break;
            } else if token.is("(") {
                depth += 1;
            } else if token.is(")") {
                depth -= 1;
            } else if depth == 0 && token.is_any(&[",", "where"]) {
                is_target = token.is(",");
            } else if token.is("=") && is_target {
                is_target = false;
            } else if token.kind == Kind::Word
                && !is_target
                && !token.is_any(KEYWORDS)
                && !self.tokens[at - 1].is(".")
                && !self.has(at + 1, &["("])
                && !self.has(at + 1, &["."])
            {
                self.tokens[at].insert_before(&format!("{table}."));
            }
        }
    }

    /// PostgreSQL needs the type of a parameter at its first use, and `$1 is null` states none. The
    /// type is that of the operand with which the parameter is compared elsewhere.
    fn give_types_to_null_tests(&mut self) {
        for at in 0..self.tokens.len() {
            if self.is_null_test(at) {
                let kind = self.type_of(&self.tokens[at].text);
                self.tokens[at].append(kind);
            }
        }
    }

    fn is_null_test(&self, at: usize) -> bool {
        self.tokens[at].kind == Kind::Parameter
            && (self.has(at + 1, &["is", "null"]) || self.has(at + 1, &["is", "not", "null"]))
    }

    fn type_of(&self, parameter: &str) -> &'static str {
        for (at, token) in self.tokens.iter().enumerate() {
            if token.text != parameter || at < 2 || self.is_null_test(at) {
                continue;
            }
            let before = &self.tokens[at - 1];
            if before.is_any(COMPARISONS) && self.tokens[at - 2].is(")") {
                // `(a is null) = ?`
                return "::boolean";
            }
            if before.is_any(COMPARISONS) && self.is_word(at - 2) {
                return self.type_of_column(at - 2);
            }
            if let Some(column) = self.column_in_row(at) {
                return self.type_of_column(column);
            }
        }
        "::text"
    }

    /// The column that a parameter is compared with: `b` for the second one of `(a, b) < (?, ?)`.
    fn column_in_row(&self, parameter: usize) -> Option<usize> {
        let (open, commas) = self.open(parameter)?;
        if open < 2 || !self.tokens[open - 1].is_any(COMPARISONS) || !self.tokens[open - 2].is(")")
        {
            return None;
        }
        let end = open - 2;
        let (start, _) = self.open(end)?;
        let ends = (start..=end).filter(|at| self.tokens[*at].is_any(&[",", ")"]));
        ends.map(|end| end - 1).nth(commas)
    }

    fn type_of_column(&self, column: usize) -> &'static str {
        if self.is_integer(column) { "::bigint" } else { "::text" }
    }

    /// Whether this column holds numbers, by its name. Covers the columns that are compared with a
    /// parameter or a member of a list.
    fn is_integer(&self, column: usize) -> bool {
        let name = &self.tokens[column].text;
        self.is_word(column)
            && (matches!(&**name, "id" | "position" | "at") || name.ends_with("_at"))
    }

    /// The members of a list are texts, which PostgreSQL does not compare with numbers.
    fn read_integers_from_lists(&mut self) {
        for at in self.places(&["in", "(", "select", "value", "from", "json_each"]) {
            if self.is_integer(at - 1) {
                self.tokens[at + 3].append("::bigint");
            }
        }
        for at in self.places(&["=", "j", ".", "value"]) {
            if self.is_integer(at - 1) {
                self.tokens[at + 3].append("::bigint");
            }
        }
        for at in self.places(&["j", ".", "value", "="]) {
            if self.is_integer(at + 6) && self.has(at + 5, &["."]) {
                self.tokens[at + 2].append("::bigint");
            }
        }
    }

    /// Names each subquery in a `from`: PostgreSQL before version 16 requires a name.
    fn name_subqueries(&mut self) {
        let sources = self.places(&["from", "("]).into_iter().chain(self.places(&["join", "("]));
        let sources: Vec<usize> = sources.collect();
        for (number, at) in sources.into_iter().enumerate() {
            let end = self.close(at + 1);
            let has_name = self.is_word(end + 1) && !self.tokens[end + 1].is_any(AFTER_A_SOURCE);
            if !has_name {
                self.tokens[end].append(&format!(" as sub_{number}"));
            }
        }
    }
}

/// Bytes of space and comments at the start.
fn space_before(text: &str) -> usize {
    let mut length = 0;
    loop {
        length += run(&text[length..], char::is_whitespace);
        if !text[length..].starts_with("--") {
            return length;
        }
        length += run(&text[length..], |c| c != '\n');
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// Length in bytes of a quoted text, in which a doubled mark stands for the mark itself.
fn quoted(text: &str, mark: char) -> usize {
    let mut at = 1;
    while let Some(end) = text[at..].find(mark) {
        at += end + 1;
        if !text[at..].starts_with(mark) {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// A part of SQLite's text that no other statement has, and the text on PostgreSQL.
pub(super) const OWN: &[(&str, &str)] = &[
    // Sessions that wait for others: the parameter needs the column's collation, like the rows of
    // the recursive part.
    (
        "with recursive waiter(session)",
        r#"with recursive waiter(session) as (
    select $1::text collate "C"
    union
    select r.target_session from waiter join assignment r on r.source_session = waiter.session
    where r.waits_until > $2 and r.ended_at is null and r.target_session <> '' and r.mode <> 'steer'
)
select r.source_session as "waiter!", r.target_session as "awaited!"
from waiter join assignment r on r.source_session = waiter.session
where r.waits_until > $2 and r.ended_at is null and r.target_session <> '' and r.mode <> 'steer'"#,
    ),
    // Full-text search: SQLite's index splits each text into its terms, which are words without
    // punctuation, separated by spaces. `ghap_posting` holds the same terms.
    (
        "select json_group_array(f.rowid) from ghap_fts f",
        r#"select coalesce(json_agg(json_build_array(j.value, coalesce((
    select json_agg(p.ghap_id order by p.ghap_id)
    from term t
    join ghap_posting p on p.term_id = t.id
    where t.term = j.value
        and (coalesce($2, $3, $4) is null or exists (
            select 1 from ghap g
            where g.id = p.ghap_id and ($2 is null or g.domain = $2) and ($3 is null or g.status = $3)
                and ($4 is null or iif($4 = 'surprise', g.surprise, g.root_cause_category) is not null)
        ))
), '[]')) order by j.key), '[]') as "places!: String"
from json_each($1) j"#,
    ),
    // The parameter is a query of one term in quotation marks.
    (
        "select g.id as \"id!\" from ghap_fts f",
        r#"select g.id as "id!"
from term t
join ghap_posting p on p.term_id = t.id
join ghap g on g.id = p.ghap_id
where t.term = replace(substr($1, 2, length($1) - 2), '""', '"')
    and ($2::text is null or g.domain = $2) and ($3::text is null or g.status = $3)
    and ($4::text is null or iif($4 = 'surprise', g.surprise, g.root_cause_category) is not null)
    and ($6::text is null or g.project = $7 or g.session_id in (select session_id from session where reader_key = $6))
order by g.id desc limit $5"#,
    ),
    // Terms that resemble a word have its first letter and one of its parts of at least three
    // letters. SQLite has an index of trigrams; on PostgreSQL this reads all terms with that first
    // letter.
    (
        "cross join term_trigram f",
        r#"select (select coalesce(max(id), 0) from ghap_text) as "all!: i64",
    (
        select coalesce(json_agg(json_build_array(t.term, t.records) order by j.key), '[]')
        from json_each($1) j join term t on t.term = j.value
        where t.records > 0
    ) as "each!: String",
    (
        select coalesce(json_agg(json_build_array(found.word, found.term) order by found.key, found.id), '[]')
        from (
            select w.key, w.word, t.term, t.id
            from (
                select j.key, j.value ->> 0 as word,
                    string_to_array(trim(both '"' from j.value ->> 1), '" OR "') as parts
                from json_each($2) j
                where not exists (select 1 from term k where k.term = j.value ->> 0 and k.records > 0)
                order by j.key limit $3
            ) w
            join term t on t.term >= substr(w.word, 1, 1) and t.term < substr(w.word, 1, 1) || U&'\+10FFFF'
            where t.records > 0
                and exists (
                    select 1 from unnest(w.parts) part where length(part) >= 3 and strpos(t.term, part) > 0
                )
                and (
                    abs(length(t.term) - length(w.word)) <= 2
                    or strpos(t.term, w.word) = 1 or strpos(w.word, t.term) = 1
                )
            order by w.key, t.id limit $4
        ) found
    ) as "like!: String""#,
    ),
];

fn own_text(sqlite: &str) -> Option<&'static str> {
    OWN.iter().find(|(part, _)| sqlite.contains(part)).map(|(_, own)| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_translated() {
        for (sqlite, postgres) in [
            // Parameters have numbers.
            ("a = ? and b = ?", "a = $1 and b = $2"),
            ("a = ?2 and b = ? and c = ?1", "a = $2 and b = $3 and c = $1"),
            ("select '?', \"?1\" -- ?\n, ?", "select '?', \"?1\" -- ?\n, $1"),
            ("select 'it''s ?', ?", "select 'it''s ?', $1"),
            // Hints for the order of reads are left out.
            (
                "from a cross join b on b.x = a.x cross join c where c.y = 1",
                "from a  join b on b.x = a.x cross join c where c.y = 1",
            ),
            (
                "(select 1 from a cross join b) c join d on d.x = c.x",
                "(select 1 from a cross join b) c join d on d.x = c.x",
            ),
            ("from event e indexed by i join s", "from event e    join s"),
            // A comparison that two nulls fulfil.
            ("a is ?", "a is not distinct from $1"),
            ("a is not 'x'", "a is distinct from  'x'"),
            ("a is not null and b is null", "a is not null and b is null"),
            // Case is folded for ASCII alone.
            ("s.a = ?1 collate nocase and b", "lower(s.a) = lower($1 collate \"C\") and b"),
            // Casts are translated by type.
            ("cast(a * 10 as integer)", "to_integer(a * 10)"),
            ("cast(? as integer)", "cast($1 as bigint)"),
            ("cast(a as real)", "cast(a as double precision)"),
            (
                "substr(cast(coalesce(a, b) as blob), 1, ?)",
                "substr(convert_to(coalesce(a, b), 'UTF8'), 1, $1)",
            ),
            // JSON arrays of rows are translated.
            (
                "json_group_array(json_array(a, (b)))",
                "coalesce(json_agg(json_build_array(a, (b))), '[]')",
            ),
            // Columns of an upsert are the tables.
            (
                "insert into n (a, b) values (?, ?) on conflict (a) do update
                 set b = max(b, ?2), c = excluded.c, d = null where b = 1 and d is null returning b",
                "insert into n (a, b) values ($1, $2) on conflict (a) do update
                 set b = max(n.b, $2), c = excluded.c, d = null where n.b = 1 and n.d is null returning b",
            ),
            // A test for null has the type of the comparison.
            ("?1 is null or g.a = ?1", "$1::text is null or g.a = $1"),
            ("?1 is not null or g.a_at >= ?1", "$1::bigint is not null or g.a_at >= $1"),
            (
                "?1 is null or (a.b_at, a.c) < (?1, ?2) or ?2 is null",
                "$1::bigint is null or (a.b_at, a.c) < ($1, $2) or $2::text is null",
            ),
            ("?1 is null or (a is null) = ?1", "$1::boolean is null or (a is null) = $1"),
            // Members of lists are numbers where numbers are looked for.
            (
                "g.id in (select value from json_each(?)) and g.ghap_id in (select value from json_each(?))",
                "g.id in (select value::bigint from json_each($1)) and g.ghap_id in (select value from json_each($2))",
            ),
            (
                "g.id = j.value or j.value = m.id or m.name = j.value",
                "g.id = j.value::bigint or j.value::bigint = m.id or m.name = j.value",
            ),
            // Subqueries have names.
            (
                "from (select a from (select 1 as a) b) where true",
                "from (select a from (select 1 as a) b) as sub_0 where true",
            ),
        ] {
            assert_eq!(translate(sqlite), postgres);
        }
    }
}
