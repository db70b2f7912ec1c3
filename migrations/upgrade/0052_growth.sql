-- Lists read their page in the order of an index, and what is open without what has ended.
create index task_status on task (status, created_at, task_id);
create index task_agent on task (agent, created_at, task_id) where agent is not null;
create index task_sender on task (from_peer, created_at, task_id) where from_peer is not null;
drop index session_seen;
create index session_seen on session (last_seen_at, session_id);
drop index session_project;
create index session_project on session (project, last_seen_at, session_id);
create index session_open on session (last_seen_at, session_id) where ended_at is null;
create index peer_heard on peer (last_seen, peer_id) where role <> 'human' and (session_id <> '' or owner is not null);
create index ghap_open on ghap (id) where status = 'active';
create index ghap_left on ghap (project, updated_at) where status = 'active';
create index ghap_changed on ghap (updated_at) where status <> 'active';
-- Most events are frames, and few readers look for those of all streams.
create index event_kind on event (kind, position) where kind <> 'frame';

-- A question is answered by a later message of its receiver that names it, or what it answers itself.
alter table message add column is_answered integer not null default 0 check (is_answered in (0, 1));
update message set is_answered = 1
where type = 'query' and exists (
    select 1 from message answer
    where answer.correlation_id in (message.message_id, coalesce(message.correlation_id, message.message_id))
        and answer.from_peer = message.to_peer and answer.type <> 'query' and answer.id > message.id
);
create trigger message_answered after insert on message when new.type <> 'query' and new.correlation_id is not null begin
    update message set is_answered = 1
    where message_id = new.correlation_id and type = 'query' and to_peer = new.from_peer and id < new.id and is_answered = 0;
    update message set is_answered = 1
    where correlation_id = new.correlation_id and type = 'query' and to_peer = new.from_peer and id < new.id
        and is_answered = 0;
end;
create index message_open on message (id) where type = 'query' and state not in ('expired', 'refused', 'undeliverable')
    and came_to_nothing = 0 and is_answered = 0;
create index message_pair on message (from_peer, to_peer, id);
create index message_sender on message (from_peer, id);
create index message_receiver on message (to_peer, id);

-- What each record adds to sums over records. A subject is what is counted: all records; those that have ended; those with a
-- verdict by strategy, by client, by tenth of the stated probability and by week (from Monday, in UTC); causes of wrong ones.
create view ghap_share as
select g.id, g.session_id, g.project, 'record' as subject, '' as item, '' as domain, '' as detail, 0 as confirmed, 0 as stated,
    0.0 as probability, 0.0 as error
from ghap g
union all
select g.id, g.session_id, g.project, 'ended', '', '', '', 0, 0, 0.0, 0.0
from ghap g where g.status <> 'active'
union all
select g.id, g.session_id, g.project, 'strategy', g.strategy, g.domain, '', g.status = 'confirmed', 0, 0.0, 0.0
from ghap g where g.status in ('confirmed', 'falsified')
union all
select g.id, g.session_id, g.project, 'cause', g.root_cause_category, g.domain, g.strategy, 0, 0, 0.0, 0.0
from ghap g where g.status = 'falsified' and g.root_cause_category is not null
union all
select g.id, g.session_id, g.project, 'client', coalesce((select s.client from session s where s.session_id = g.session_id), ''),
    g.domain, '', g.status = 'confirmed', g.probability is not null, coalesce(g.probability, 0.0),
    coalesce((g.probability - (g.status = 'confirmed')) * (g.probability - (g.status = 'confirmed')), 0.0)
from ghap g where g.status in ('confirmed', 'falsified')
union all
select g.id, g.session_id, g.project, 'tenth', cast(min(cast(g.probability * 10 as integer), 9) as text), g.domain, '',
    g.status = 'confirmed', 1, g.probability, 0.0
from ghap g where g.status in ('confirmed', 'falsified') and g.probability is not null
union all
select g.id, g.session_id, g.project, 'week',
    printf('%013d', (g.resolved_at - 345600000) / 604800000 * 604800000 + 345600000), g.domain, '', g.status = 'confirmed', 0, 0.0,
    0.0
from ghap g where g.status in ('confirmed', 'falsified') and g.resolved_at is not null;

-- Sums of these, kept with the records: of all, and of each project.
create table ghap_sum (
    -- '*' for all, else the project
    scope text not null,
    subject text not null,
    item text not null,
    domain text not null,
    detail text not null,
    records integer not null,
    confirmed integer not null,
    -- those that state a probability, its sum and that of the squared errors
    stated integer not null,
    probability real not null,
    error real not null,
    primary key (scope, subject, item, domain, detail)
) strict, without rowid;
insert into ghap_sum
select '*', subject, item, domain, detail, count(*), sum(confirmed), sum(stated), sum(probability), sum(error)
from ghap_share group by subject, item, domain, detail
union all
select project, subject, item, domain, detail, count(*), sum(confirmed), sum(stated), sum(probability), sum(error)
from ghap_share group by project, subject, item, domain, detail;

create trigger ghap_sum_added after insert on ghap begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, 1, p.confirmed, p.stated, p.probability, p.error
    from ghap_share p cross join (select '*' as scope union all select new.project) c
    where p.id = new.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records + 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = probability + excluded.probability, error = error + excluded.error;
end;
create trigger ghap_sum_removed before delete on ghap begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, -1, -p.confirmed, -p.stated, -p.probability, -p.error
    from ghap_share p cross join (select '*' as scope union all select old.project) c
    where p.id = old.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records - 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = iif(stated + excluded.stated = 0, 0.0, probability + excluded.probability),
        error = iif(stated + excluded.stated = 0, 0.0, error + excluded.error);
end;
create trigger ghap_sum_changing before update of session_id, project, domain, strategy, status, probability,
    root_cause_category, resolved_at on ghap
begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, -1, -p.confirmed, -p.stated, -p.probability, -p.error
    from ghap_share p cross join (select '*' as scope union all select old.project) c
    where p.id = old.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records - 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = iif(stated + excluded.stated = 0, 0.0, probability + excluded.probability),
        error = iif(stated + excluded.stated = 0, 0.0, error + excluded.error);
end;
create trigger ghap_sum_changed after update of session_id, project, domain, strategy, status, probability,
    root_cause_category, resolved_at on ghap
begin
    insert into ghap_sum
    select c.scope, p.subject, p.item, p.domain, p.detail, 1, p.confirmed, p.stated, p.probability, p.error
    from ghap_share p cross join (select '*' as scope union all select new.project) c
    where p.id = new.id
    on conflict (scope, subject, item, domain, detail) do update set
        records = records + 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = probability + excluded.probability, error = error + excluded.error;
end;
-- The client of a session may become known after its first records.
create trigger ghap_sum_client_changing before update of client on session when new.client is not old.client begin
    insert into ghap_sum
    select iif(c.is_all, '*', p.project), p.subject, p.item, p.domain, p.detail, -1, -p.confirmed, -p.stated, -p.probability,
        -p.error
    from ghap_share p cross join (select 1 as is_all union all select 0) c
    where p.session_id = old.session_id and p.subject = 'client'
    on conflict (scope, subject, item, domain, detail) do update set
        records = records - 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = iif(stated + excluded.stated = 0, 0.0, probability + excluded.probability),
        error = iif(stated + excluded.stated = 0, 0.0, error + excluded.error);
end;
create trigger ghap_sum_client_changed after update of client on session when new.client is not old.client begin
    insert into ghap_sum
    select iif(c.is_all, '*', p.project), p.subject, p.item, p.domain, p.detail, 1, p.confirmed, p.stated, p.probability, p.error
    from ghap_share p cross join (select 1 as is_all union all select 0) c
    where p.session_id = new.session_id and p.subject = 'client'
    on conflict (scope, subject, item, domain, detail) do update set
        records = records + 1, confirmed = confirmed + excluded.confirmed, stated = stated + excluded.stated,
        probability = probability + excluded.probability, error = error + excluded.error;
end;

-- Who may read a memory: all sessions, those of its project, or the one that stored it. A record is of its project.
alter table memory add column scope text generated always as (
    iif(shared = 1, '*', iif(project <> '', 'project:' || project, 'session:' || session_id))
) virtual;

-- These, and how many memories each has; '' stands for all memories.
create table search_scope (
    id integer primary key,
    name text not null unique,
    memories integer not null
) strict;

-- In how many memories each term stands, and in which of each scope.
create table memory_term (
    id integer primary key,
    term text not null unique,
    memories integer not null
) strict;
create table memory_posting (
    term_id integer not null,
    scope_id integer not null,
    memory_id integer not null,
    primary key (term_id, scope_id, memory_id)
) strict, without rowid;

drop trigger memory_added;
drop trigger memory_removed;
drop trigger memory_changed;
drop table memory_place;
drop table memory_fts;

-- Text of no JSON was put in by hand; the program makes none.
insert into search_scope (name, memories) select '', count(*) from memory;
insert into search_scope (name, memories) select scope, count(*) from memory group by scope;
insert into memory_term (term, memories)
select j.value, count(distinct m.id)
from memory m cross join json_each('["' || replace(m.terms, ' ', '","') || '"]') j
where json_valid('["' || replace(m.terms, ' ', '","') || '"]') and j.value <> ''
group by j.value;
insert into memory_posting (term_id, scope_id, memory_id)
select distinct t.id, c.id, m.id
from memory m
cross join search_scope c on c.name = m.scope
cross join json_each('["' || replace(m.terms, ' ', '","') || '"]') j
cross join memory_term t on t.term = j.value
where json_valid('["' || replace(m.terms, ' ', '","') || '"]')
order by 1, 2, 3;

create trigger memory_added after insert on memory begin
    insert into search_scope (name, memories) values ('', 1), (new.scope, 1)
    on conflict (name) do update set memories = memories + 1;
    insert into memory_term (term, memories)
    select distinct value, 1 from json_each('["' || replace(new.terms, ' ', '","') || '"]') where value <> ''
    on conflict (term) do update set memories = memories + 1;
    insert into memory_posting (term_id, scope_id, memory_id)
    select distinct t.id, c.id, new.id
    from json_each('["' || replace(new.terms, ' ', '","') || '"]') j
    cross join memory_term t on t.term = j.value
    cross join search_scope c on c.name = new.scope;
end;
create trigger memory_removed after delete on memory begin
    delete from memory_posting
    where memory_id = old.id and scope_id = (select id from search_scope where name = old.scope)
        and term_id in (
            select t.id from json_each('["' || replace(old.terms, ' ', '","') || '"]') j
            cross join memory_term t on t.term = j.value
        );
    update memory_term set memories = memories - 1
    where term in (select value from json_each('["' || replace(old.terms, ' ', '","') || '"]'));
    update search_scope set memories = memories - 1 where name in ('', old.scope);
end;
create trigger memory_changing before update of terms, project, shared, session_id on memory begin
    delete from memory_posting
    where memory_id = old.id and scope_id = (select id from search_scope where name = old.scope)
        and term_id in (
            select t.id from json_each('["' || replace(old.terms, ' ', '","') || '"]') j
            cross join memory_term t on t.term = j.value
        );
    update memory_term set memories = memories - 1
    where term in (select value from json_each('["' || replace(old.terms, ' ', '","') || '"]'));
    update search_scope set memories = memories - 1 where name in ('', old.scope);
end;
create trigger memory_changed after update of terms, project, shared, session_id on memory begin
    insert into search_scope (name, memories) values ('', 1), (new.scope, 1)
    on conflict (name) do update set memories = memories + 1;
    insert into memory_term (term, memories)
    select distinct value, 1 from json_each('["' || replace(new.terms, ' ', '","') || '"]') where value <> ''
    on conflict (term) do update set memories = memories + 1;
    insert into memory_posting (term_id, scope_id, memory_id)
    select distinct t.id, c.id, new.id
    from json_each('["' || replace(new.terms, ' ', '","') || '"]') j
    cross join memory_term t on t.term = j.value
    cross join search_scope c on c.name = new.scope;
end;
create index memory_important on memory (project, importance, id);

-- In which records of each project a term stands. A session's search reads these, and passes through no other project's.
create table ghap_posting (
    term_id integer not null,
    scope_id integer not null,
    ghap_id integer not null,
    primary key (term_id, scope_id, ghap_id)
) strict, without rowid;
insert into search_scope (name, memories) select distinct 'project:' || project, 0 from ghap where true on conflict do nothing;
insert into ghap_posting (term_id, scope_id, ghap_id)
select distinct t.id, c.id, g.id
from ghap_text x
cross join ghap g on g.id = x.id
cross join search_scope c on c.name = 'project:' || g.project
cross join json_each('["' || replace(x.aim || ' ' || x.lesson || ' ' || x.rest, ' ', '","') || '"]') j
cross join term t on t.term = j.value
where json_valid('["' || replace(x.aim || ' ' || x.lesson || ' ' || x.rest, ' ', '","') || '"]')
order by 1, 2, 3;
drop trigger ghap_text_added;
create trigger ghap_text_added after insert on ghap_text begin
    insert into ghap_fts (rowid, aim, lesson, rest) values (new.id, new.aim, new.lesson, new.rest);
    insert into term (term, records)
    select distinct value, 1
    from json_each('["' || replace(new.aim || ' ' || new.lesson || ' ' || new.rest, ' ', '","') || '"]')
    where value <> ''
    on conflict (term) do update set records = records + 1;
    insert into search_scope (name, memories) select 'project:' || project, 0 from ghap where id = new.id
    on conflict do nothing;
    insert into ghap_posting (term_id, scope_id, ghap_id)
    select distinct t.id, c.id, new.id
    from json_each('["' || replace(new.aim || ' ' || new.lesson || ' ' || new.rest, ' ', '","') || '"]') j
    cross join term t on t.term = j.value
    cross join search_scope c on c.name = (select 'project:' || project from ghap where id = new.id);
end;
drop trigger ghap_text_removed;
create trigger ghap_text_removed after delete on ghap_text begin
    insert into ghap_fts (ghap_fts, rowid, aim, lesson, rest)
    values ('delete', old.id, old.aim, old.lesson, old.rest);
    update term set records = records - 1
    where term in (
        select value
        from json_each('["' || replace(old.aim || ' ' || old.lesson || ' ' || old.rest, ' ', '","') || '"]')
    );
    delete from ghap_posting
    where ghap_id = old.id
        and scope_id = (select id from search_scope where name = (select 'project:' || project from ghap where id = old.id))
        and term_id in (
            select t.id
            from json_each('["' || replace(old.aim || ' ' || old.lesson || ' ' || old.rest, ' ', '","') || '"]') j
            cross join term t on t.term = j.value
        );
end;
-- Before, because the postings are those of the record's project.
drop trigger ghap_removed;
create trigger ghap_removed before delete on ghap begin
    delete from ghap_text where id = old.id;
end;
-- The program moves no record. Whoever does writes its terms anew.
create trigger ghap_moved before update of project on ghap when new.project <> old.project begin
    delete from ghap_text where id = old.id;
end;
