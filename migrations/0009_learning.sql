-- What is learned: memories, groups of records that are alike, values drawn from those, and what each session was told.

-- Something that a session or a person wants to be remembered.
create table memory (
    -- order of creation, and the key of the index
    id integer primary key,
    memory_id text not null unique,
    -- root of the project that it belongs to; '' if it holds everywhere
    project text not null default '',
    category text not null,
    content text not null,
    -- SHA-256 of the content in hexadecimal: an index over contents would be as large as they are
    digest text not null,
    -- what it is found by; made by the program, as that of a record is
    terms text not null,
    importance real not null check (importance between 0 and 1),
    -- an array of texts
    tags text not null check (json_valid(tags)),
    -- the session that stored it
    session_id text not null,
    created_at integer not null
) strict;

-- The same once more is the one that there is.
create unique index memory_once on memory (project, category, digest);

create virtual table memory_fts using fts5 (
    terms, content = 'memory', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 0'
);

create virtual table memory_place using fts5vocab (memory_fts, instance);

create trigger memory_added after insert on memory begin
    insert into memory_fts (rowid, terms) values (new.id, new.terms);
end;

create trigger memory_removed after delete on memory begin
    insert into memory_fts (memory_fts, rowid, terms) values ('delete', old.id, old.terms);
end;

create trigger memory_changed after update of terms on memory begin
    insert into memory_fts (memory_fts, rowid, terms) values ('delete', old.id, old.terms);
    insert into memory_fts (rowid, terms) values (new.id, new.terms);
end;

-- How the records were grouped last, one row for each way to look at them.
create table clustering (
    axis text primary key,
    -- count, last id and last change of the records: another text means that they have changed since
    state text not null,
    -- records that were looked at, and those of them that are like no others
    records integer not null,
    noise integer not null,
    -- the number of the next cluster that is like none before; one that is like a former one keeps its name
    next_label integer not null,
    at integer not null
) strict, without rowid;

-- Records that are alike. All rows of an axis are replaced together.
create table cluster (
    -- '<axis>_<label>'
    cluster_id text primary key,
    axis text not null references clustering (axis),
    label integer not null,
    -- how far its records can be trusted on average: gold 1, silver 0.8, bronze 0.5, abandoned 0.2
    avg_weight real not null,
    unique (axis, label)
) strict, without rowid;

create table cluster_member (
    cluster_id text not null references cluster (cluster_id) on delete cascade,
    ghap_id text not null references ghap (ghap_id) on delete cascade,
    -- cosine to the middle of the cluster
    similarity real not null,
    primary key (cluster_id, ghap_id)
) strict, without rowid;

create index cluster_member_of on cluster_member (ghap_id);

-- A sentence that somebody drew from a cluster. It outlives the cluster, so it does not refer to it.
create table learned_value (
    id integer primary key,
    value_id text not null unique,
    -- root of the project that it was drawn in; '' if there was none
    project text not null default '',
    axis text not null,
    cluster_id text not null,
    text text not null,
    terms text not null,
    -- 1 - cosine to the middle of the cluster, when it was stored
    distance real not null,
    session_id text not null,
    validated_at integer not null,
    unique (cluster_id, text)
) strict;

-- What a session was given already, so that it is not given twice. A session may be unknown to `session`.
create table seen (
    session_id text not null,
    kind text not null check (kind in ('experience', 'value', 'memory')),
    item text not null,
    -- when the item was last changed: a later version may come again
    version integer not null,
    at integer not null,
    primary key (session_id, kind, item, version)
) strict, without rowid;

-- For people with `sqlite3`. These names and columns are a contract: a later migration keeps them.

create view memories as
select
    m.memory_id,
    nullif(m.project, '') as project,
    m.category,
    m.importance,
    m.tags,
    m.content,
    m.session_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000.0, 'unixepoch') as created_at
from memory m;

create view cluster_members as
select
    c.axis,
    c.cluster_id,
    m.similarity,
    g.ghap_id,
    g.domain,
    g.strategy,
    g.status,
    g.tier,
    g.goal
from cluster c
join cluster_member m on m.cluster_id = c.cluster_id
join ghap g on g.ghap_id = m.ghap_id;

create view team_values as
select
    v.value_id,
    nullif(v.project, '') as project,
    v.axis,
    v.cluster_id,
    v.text,
    v.distance,
    v.session_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', v.validated_at / 1000.0, 'unixepoch') as validated_at
from learned_value v;
