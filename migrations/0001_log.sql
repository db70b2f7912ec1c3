-- The log. Everything observable is an event in a stream; a reader is a cursor over these rows.

create table stream (
    id integer primary key,
    -- `task/<id>`, `peer/<id>`, `session/<id>`, `team`, `daemon`
    name text not null unique,
    created_at integer not null,
    -- set with the last event: nothing may follow it
    closed_at integer
) strict;

-- There is no head and no floor column: retention never removes the last event of a stream, so both are
-- index look-ups (max and min of seq), and an append does not rewrite a stream row.
create table event (
    -- Orders the whole log. Never used twice: the highest one belongs to the last event of some stream,
    -- and that one stays.
    position integer primary key,
    stream_id integer not null references stream (id),
    -- dense within its stream: 1, 2, 3 …, so that a reader can prove that nothing is missing
    seq integer not null,
    kind text not null,
    -- One line of JSON. Checked before it gets here; a constraint would parse it a second time.
    data text not null,
    -- unix milliseconds, the time of the commit
    at integer not null,
    -- the producer's own id for it: a repeat is answered with the seq first given
    producer_id text,
    unique (stream_id, seq)
) strict;

create unique index event_producer on event (stream_id, producer_id) where producer_id is not null;

-- Replay takes hundreds of rows in one page, except where a row is this large: those go one by one, so that a
-- page has a bound in bytes too. (`length` and not `octet_length`: the file must open in the older sqlite3 of a
-- stable distribution.)
create index event_large on event (stream_id, seq) where length(data) > 8192;
create index event_large_position on event (position) where length(data) > 8192;

-- Facts about the database as a whole, one a row. `trimmed`: the highest position that retention removed.
create table meta (
    name text primary key,
    value integer not null
) strict, without rowid;
