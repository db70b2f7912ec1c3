-- Tasks. The last id and the time of the last change are those of the last event of the task's stream.

create table task (
    task_id text primary key,
    stream_id integer not null unique references stream (id),
    title text,
    agent text,
    prompt text,
    from_peer text,
    metadata text check (json_valid(metadata)),
    status text not null check (status in ('pending', 'active', 'done', 'failed', 'cancelled', 'expired')),
    exit_code integer,
    signal text,
    error text,
    -- the caller that made it: 'operator' or 'session:<key>'
    created_by text not null,
    idempotency_key text,
    -- process that runs it, where the runner said so: when it is gone, the task is over
    runner_pid integer,
    runner_started text,
    cancel_requested_at integer,
    created_at integer not null,
    closed_at integer
) strict;

create unique index task_idempotency on task (created_by, idempotency_key) where idempotency_key is not null;
create index task_created on task (created_at, task_id);
create index task_open on task (status) where status in ('pending', 'active');
