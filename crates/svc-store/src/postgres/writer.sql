-- What the writer needs beside the tables: the order of commits, and which of its groups of jobs a
-- daemon has committed. Applied at each start, by the daemon whose schema it is.

create table if not exists svc_commit (
    id boolean primary key default true check (id),
    number bigint not null
);

insert into svc_commit (number) values (0) on conflict do nothing;

create table if not exists svc_group (
    daemon_id text primary key,
    number bigint not null
);

-- The last group that was decided against.
alter table svc_group add column if not exists refused bigint not null default 0;

-- The lock of this schema's writers. A transaction holds it until it has ended, so that positions
-- become visible in their order.
create or replace function svc_lock() returns void language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(1937138531, hashtext(current_schema()));
end
$$;

-- Begins a group of a daemon's write jobs. A group has a number, and each number begins once: a
-- statement that arrives late fails. `a_waited` is how long it waited for the lock, in microseconds.
drop function if exists svc_begin(text, bigint);
create function svc_begin(
    a_daemon text, a_group bigint, out a_commit bigint, out a_position bigint, out a_waited bigint
) language plpgsql volatile as $$
declare
    began timestamptz := clock_timestamp();
begin
    perform svc_lock();
    a_waited := extract(epoch from clock_timestamp() - began) * 1000000;
    update svc_group set number = a_group where daemon_id = a_daemon and number = a_group - 1;
    if not found then
        raise exception 'group % of daemon % is decided already', a_group, a_daemon using errcode = 'SV001';
    end if;
    update svc_commit set number = number + 1 returning number into a_commit;
    select coalesce(max(position), 0) into a_position from event;
    -- A daemon knows its own commits, and the server wakes each listener for a notification.
    if exists (select 1 from svc_group where daemon_id <> a_daemon) then
        perform pg_notify('svc_' || current_schema(), a_daemon || ':' || a_commit || ':' || a_position);
    end if;
end
$$;

-- Writes events in the order of the arrays, after all that the log has. The caller holds the lock.
create or replace function svc_insert(
    a_at bigint, a_streams bigint[], a_seqs bigint[], a_kinds text[], a_data text[], a_producers text[]
) returns bigint language plpgsql volatile as $$
declare
    last bigint;
begin
    select coalesce(max(position), 0) into last from event;
    insert into event (position, stream_id, seq, kind, data, at, producer_id)
    select last + item.ordinality, item.stream, item.seq, item.kind, item.data, a_at, item.producer
    from unnest(a_streams, a_seqs, a_kinds, a_data, a_producers) with ordinality
        as item (stream, seq, kind, data, producer);
    return last + coalesce(array_length(a_streams, 1), 0);
end
$$;

-- A group that is appends alone, in one statement. `a_known` is the number of the commit whose state
-- the daemon has in memory: if another has committed since, the heads that it used may be old.
drop function if exists svc_append(
    text, bigint, bigint, bigint, bigint[], bigint[], text[], text[], text[]
);
create function svc_append(
    a_daemon text, a_group bigint, a_known bigint, a_at bigint, a_streams bigint[], a_seqs bigint[],
    a_kinds text[], a_data text[], a_producers text[],
    out a_commit bigint, out a_position bigint, out a_waited bigint
) language plpgsql volatile as $$
begin
    select begun.a_commit, begun.a_waited into a_commit, a_waited from svc_begin(a_daemon, a_group) begun;
    if a_commit <> a_known + 1 then
        raise exception 'another daemon has written' using errcode = 'SV002';
    end if;
    a_position := svc_insert(a_at, a_streams, a_seqs, a_kinds, a_data, a_producers);
end
$$;

-- The last group that a daemon has committed, of which `a_group` is the last that it began: if it is
-- less, that group never will be committed. Waits for a transaction that still runs. Says the same
-- again to a daemon that did not get the answer.
create or replace function svc_decide(a_daemon text, a_group bigint) returns bigint
language plpgsql volatile as $$
declare
    reached bigint;
    decided_against bigint;
begin
    perform svc_lock();
    select number, refused into reached, decided_against from svc_group where daemon_id = a_daemon;
    if not found then
        raise exception 'another daemon has taken the database' using errcode = 'SV003';
    end if;
    if reached < a_group then
        update svc_group set number = a_group, refused = a_group where daemon_id = a_daemon;
    elsif reached = decided_against then
        return reached - 1;
    end if;
    return reached;
end
$$;
