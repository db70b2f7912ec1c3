-- What helped again. A record or a memory is confirmed again by a record of another session that ends as confirmed, and that
-- names it, or has to do with it after the session was given it. To be given it alone counts for nothing: what is shown would
-- be shown the more.

-- What a session was given stays known after it forgot it (a compaction), or what it searched for itself: 1 if it may be given
-- that again.
alter table seen add column may_repeat integer not null default 0 check (may_repeat in (0, 1));

-- How often each was confirmed again: the rows of `confirmation`, counted by the triggers below.
alter table ghap add column confirmed_again integer not null default 0;
alter table memory add column confirmed_again integer not null default 0;

create table confirmation (
    -- what helped: a record (its `ghap_id`) or a memory (its `memory_id`)
    kind text not null check (kind in ('experience', 'memory')),
    item text not null,
    -- the record that was confirmed with it; each counts once
    confirmed_by text not null references ghap (ghap_id) on delete cascade,
    -- how it shows: it is named there, or its session was given it and it is about the same
    shown_by text not null check (shown_by in ('name', 'subject')),
    at integer not null,
    primary key (kind, item, confirmed_by)
) strict, without rowid;

create index confirmation_by on confirmation (confirmed_by);

create trigger confirmation_added after insert on confirmation begin
    update ghap set confirmed_again = confirmed_again + 1 where new.kind = 'experience' and ghap_id = new.item;
    update memory set confirmed_again = confirmed_again + 1 where new.kind = 'memory' and memory_id = new.item;
end;

create trigger confirmation_removed after delete on confirmation begin
    update ghap set confirmed_again = confirmed_again - 1 where old.kind = 'experience' and ghap_id = old.item;
    update memory set confirmed_again = confirmed_again - 1 where old.kind = 'memory' and memory_id = old.item;
end;

create trigger ghap_unconfirmed after delete on ghap begin
    delete from confirmation where kind = 'experience' and item = old.ghap_id;
end;

create trigger memory_unconfirmed after delete on memory begin
    delete from confirmation where kind = 'memory' and item = old.memory_id;
end;

-- For people with `sqlite3`: the views of before with one column more, and what confirmed what.

drop view ghap_journal;

create view ghap_journal as
select
    g.ghap_id,
    g.session_id,
    nullif(g.project, '') as project,
    g.domain,
    g.strategy,
    g.status,
    g.tier,
    g.iteration_count,
    g.goal,
    g.hypothesis,
    g.action,
    g.prediction,
    g.probability,
    g.result,
    g.surprise,
    g.root_cause_category,
    g.root_cause,
    g.what_worked,
    g.takeaway,
    g.outcome_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.updated_at / 1000.0, 'unixepoch') as updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.resolved_at / 1000.0, 'unixepoch') as resolved_at,
    g.confirmed_again
from ghap g;

drop view memories;

create view memories as
select
    m.memory_id,
    nullif(m.project, '') as project,
    m.category,
    m.importance,
    m.tags,
    m.content,
    m.session_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000.0, 'unixepoch') as created_at,
    m.confirmed_again
from memory m;

create view confirmations as
select
    c.kind,
    c.item,
    c.confirmed_by,
    g.session_id,
    c.shown_by,
    strftime('%Y-%m-%dT%H:%M:%fZ', c.at / 1000.0, 'unixepoch') as at
from confirmation c
join ghap g on g.ghap_id = c.confirmed_by;
