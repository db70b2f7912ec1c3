-- Data folders on hosts. What lives on a machine has its id; '' until the machine that has the file claims it.
create table machine (
    machine_id text primary key,
    name text not null,
    -- digest of how the host is known
    host text not null,
    first_seen integer not null,
    last_seen integer not null
) strict, without rowid;

-- Each `svc serve` that has not ended by itself. Times are of the database's clock.
create table daemon (
    daemon_id text primary key,
    machine_id text not null references machine (machine_id),
    -- run of the host's system, and its pid namespace
    boot text not null,
    pid integer not null,
    -- where other daemons reach it
    address text,
    version text not null,
    started_at integer not null,
    lease_until integer not null,
    -- when its end was noted that it did not note itself
    lost_at integer
) strict, without rowid;

-- The machine of the process whose id stands beside it.
alter table peer add column machine_id text not null default '';
alter table token add column machine_id text not null default '';
alter table task add column machine_id text not null default '';
alter table agent add column machine_id text not null default '';
alter table source_process add column machine_id text not null default '';

-- All starts of processes have one form, TICKS@BOOT. Whoever claims these rows adds the boot.
update task set runner_started = runner_started || '@' where runner_started is not null;
create temp table host_start as select agent_id, host_started from agent where host_started > 0;
alter table agent drop column host_started;
alter table agent add column host_started text;
update agent set host_started = (select h.host_started || '@' from host_start h where h.agent_id = agent.agent_id)
where agent_id in (select agent_id from host_start);
drop table host_start;

-- Copies in temporary tables: a table that is renamed makes SQLite read the whole schema.
create temp table source_list_before as select * from source_list;
drop table source_list;
create table source_list (
    machine_id text not null default '',
    name text not null,
    project text not null,
    fingerprint text not null,
    tools text not null check (json_valid(tools)),
    resources text not null check (json_valid(resources)),
    templates text not null check (json_valid(templates)),
    prompts text not null check (json_valid(prompts)),
    listed_at integer not null,
    primary key (machine_id, name, project)
) strict, without rowid;
insert into source_list (name, project, fingerprint, tools, resources, templates, prompts, listed_at)
select name, project, fingerprint, tools, resources, templates, prompts, listed_at from source_list_before;
drop table source_list_before;

create temp table source_state_before as select * from source_state;
drop table source_state;
create table source_state (
    machine_id text not null default '',
    name text not null,
    project text not null,
    state text not null,
    reason text,
    next_action text,
    attempt integer,
    next_at integer,
    since integer not null,
    primary key (machine_id, name, project)
) strict, without rowid;
insert into source_state (name, project, state, reason, next_action, attempt, next_at, since)
select name, project, state, reason, next_action, attempt, next_at, since from source_state_before;
drop table source_state_before;

create temp table source_pin_before as select * from source_pin;
drop table source_pin;
create table source_pin (
    machine_id text not null default '',
    name text not null,
    project text not null,
    -- the approval of the file and the entry that they belong to
    basis text not null,
    tools text not null check (json_valid(tools)),
    resources text not null check (json_valid(resources)),
    templates text not null check (json_valid(templates)),
    prompts text not null check (json_valid(prompts)),
    -- the changes since then that an event has told of
    told text not null check (json_valid(told)),
    pinned_at integer not null,
    primary key (machine_id, name, project)
) strict, without rowid;
insert into source_pin (name, project, basis, tools, resources, templates, prompts, told, pinned_at)
select name, project, basis, tools, resources, templates, prompts, told, pinned_at from source_pin_before;
drop table source_pin_before;
