//! Statements whose text on PostgreSQL is another one.

/// A part of SQLite's text that no other statement has, and the text on PostgreSQL.
pub(super) const OWN: &[(&str, &str)] = &[
    // A session waits for others: the parameter has the column's collation, as the rows that
    // follow.
    (
        "with recursive waiter(session)",
        r#"with recursive waiter(session) as (
    select $1::text collate "C"
    union
    select r.target_session from waiter join assignment r on r.source_session = waiter.session
    where r.waits_until > $2 and r.ended_at is null and r.message_id is not null
)
select r.source_session as "waiter!", r.target_session as "awaited!"
from waiter join assignment r on r.source_session = waiter.session
where r.waits_until > $2 and r.ended_at is null and r.message_id is not null"#,
    ),
    // Full-text search: SQLite's index splits each text into its terms, which are words without
    // marks between spaces. `ghap_posting` holds the same terms.
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
    // Terms that resemble a word have one of its parts, of three letters at least, and its first
    // letter. SQLite has an index of each three letters, PostgreSQL reads the terms of that letter.
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

pub(super) fn find(sqlite: &str) -> Option<&'static str> {
    OWN.iter().find(|(part, _)| sqlite.contains(part)).map(|(_, own)| *own)
}
