-- See `migrations/0055_machine.sql`.
create table machine (
    machine_id text collate "C" primary key,
    name text collate "C" not null,
    host text collate "C" not null,
    first_seen bigint not null,
    last_seen bigint not null
);

create table daemon (
    daemon_id text collate "C" primary key,
    machine_id text collate "C" not null references machine (machine_id),
    boot text collate "C" not null,
    pid bigint not null,
    address text collate "C",
    version text collate "C" not null,
    started_at bigint not null,
    lease_until bigint not null,
    lost_at bigint
);

alter table peer add column machine_id text collate "C" not null default '';
alter table token add column machine_id text collate "C" not null default '';
alter table task add column machine_id text collate "C" not null default '';
alter table agent add column machine_id text collate "C" not null default '';
alter table source_process add column machine_id text collate "C" not null default '';

update task set runner_started = runner_started || '@' where runner_started is not null;
alter table agent alter column host_started type text collate "C"
    using case when host_started > 0 then host_started || '@' end;

alter table source_list add column machine_id text collate "C" not null default '', drop constraint source_list_pkey,
    add primary key (machine_id, name, project);
alter table source_state add column machine_id text collate "C" not null default '', drop constraint source_state_pkey,
    add primary key (machine_id, name, project);
alter table source_pin add column machine_id text collate "C" not null default '', drop constraint source_pin_pkey,
    add primary key (machine_id, name, project);

-- The database's clock in seconds, with their fraction. `subsec` is the only form that we use.
create function unixepoch(form text) returns double precision
language sql volatile as $$ select extract(epoch from pg_catalog.clock_timestamp())::double precision $$;
