-- Agents that the daemon runs. A row stands before the host is started, and outlives it.

create table agent (
    agent_id text primary key,
    -- `agent/<agent_id>`: its last seq is the last offset that was taken over from the host
    stream_id integer not null unique references stream (id),
    instance text not null,
    backend text not null,
    -- `agent:<instance>:<name>`, in lower case
    session_key text not null,
    project text not null default '',
    cwd text not null,
    task text,
    description text,
    -- who started it: 'operator' or 'session:<key>'
    created_by text not null,
    state text not null check (state in ('starting', 'running', 'idle', 'requires_action', 'limited', 'stopping',
        'done', 'error', 'lost')),
    -- the host's process: its number and its start as the system counts it
    host_pid integer,
    host_started integer,
    -- of the agent's own program; 0 if none runs
    pid integer not null default 0,
    -- the vendor's id of the conversation
    vendor_session text,
    exit_code integer,
    signal integer,
    error text,
    -- the token that it speaks with
    token_id text,
    -- the dispatched task that it was started for, and is ended after
    task_id text,
    -- milliseconds after which a request of it is denied
    request_timeout integer not null,
    idempotency_key text,
    -- fingerprint of the wish that the key stands for
    wish text,
    started_at integer not null,
    ended_at integer
) strict;

-- Two live agents never share a key.
create unique index agent_live on agent (session_key) where ended_at is null;
create unique index agent_idempotency on agent (created_by, idempotency_key) where idempotency_key is not null;
create index agent_key on agent (session_key, started_at);
create index agent_started on agent (started_at, agent_id);
create index agent_instance on agent (instance, started_at);

-- What agents asked for. Answered once: by a person, a program, or the deadline.
create table agent_request (
    request_id text primary key,
    agent_id text not null references agent (agent_id),
    kind text not null check (kind in ('permission', 'question')),
    title text not null,
    options text not null check (json_valid(options)),
    tool text check (tool is null or json_valid(tool)),
    opened_at integer not null,
    deadline integer not null,
    closed_at integer,
    option_id text,
    -- a principal, or 'timeout', 'policy', 'interrupt', 'exit', 'lost'
    answered_by text
) strict;

create index agent_request_open on agent_request (deadline) where closed_at is null;
create index agent_request_agent on agent_request (agent_id) where closed_at is null;
create index agent_request_opened on agent_request (opened_at, request_id);

-- Work that was given to an agent. The task's row tells what it is, this one who does it, and how far that is.
create table dispatch (
    -- the order in which they came
    id integer primary key,
    task_id text not null unique references task (task_id),
    instance text not null,
    backend text not null,
    mode text not null check (mode in ('spawn-only', 'peer-only', 'peer-prefer')),
    -- {model?, cwd, resume?, agent_id?}
    wish text not null check (json_valid(wish)),
    -- instances to try after this one, a list
    failover text not null check (json_valid(failover)),
    attempt integer not null default 1,
    state text not null check (state in ('queued', 'starting', 'sent', 'over')),
    -- the agent that has it
    agent_id text,
    -- whether that was started for it
    is_spawned integer not null default 0 check (is_spawned in (0, 1)),
    -- offset of the input in the agent's stream: from there on it is known to be taken
    taken_at integer,
    has_words integer not null default 0 check (has_words in (0, 1)),
    -- how its turn ended, before the agent's program has
    turn text check (turn is null or json_valid(turn))
) strict;

create index dispatch_open on dispatch (instance, id) where state <> 'over';
create index dispatch_agent on dispatch (agent_id) where agent_id is not null and state <> 'over';

-- Whoever ends the task ends the dispatch.
create trigger dispatch_over after update of closed_at on task when new.closed_at is not null begin
    update dispatch set state = 'over' where task_id = new.task_id and state <> 'over';
end;

-- Why a pending task waits, and what came of one.
alter table task add column reason text;
alter table task add column result text;
