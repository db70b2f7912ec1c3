-- What clients of the Model Context Protocol find again after a restart: sessions, what they subscribed to, and the
-- calls that take time.

create table mcp_session (
    session_id text primary key,
    -- the caller that opened it, 'operator' or 'session:<key>': nobody else may use it
    principal text not null,
    -- http: one path, answers on the request's own response; sse: the transport of 2024-11-05
    transport text not null check (transport in ('http', 'sse')),
    revision text not null,
    -- who the client says it is, and what it can do
    client text check (json_valid(client)),
    capabilities text not null check (json_valid(capabilities)),
    log_level text,
    -- fingerprint of the list of tools that the client has seen: another one after a restart is told
    tools integer,
    created_at integer not null,
    last_seen_at integer not null,
    closed_at integer
) strict;

create index mcp_session_idle on mcp_session (last_seen_at) where closed_at is null;

create table mcp_subscription (
    session_id text not null references mcp_session (session_id),
    uri text not null,
    -- the stream that the resource shows
    stream text not null,
    primary key (session_id, uri)
) strict, without rowid;

-- A call that may take time. Its messages are the stream `mcp/<call_id>` (with the transport of 2024-11-05, that of the
-- session, `mcp/<session_id>`), so whoever comes back reads on where it was.
create table mcp_call (
    call_id text primary key,
    -- null where a request stands for itself (2026-07-28)
    session_id text references mcp_session (session_id),
    principal text not null,
    -- for whom the tool acts
    acts_for text,
    revision text not null,
    -- the JSON-RPC id, as JSON
    rpc_id text not null,
    tool text not null,
    -- the `params` of the request, to run it again
    params text not null check (json_valid(params)),
    -- whether the client was given it as a task
    is_task integer not null check (is_task in (0, 1)),
    state text not null check (state in ('working', 'input_required', 'completed', 'failed', 'cancelled')),
    -- of a task: what the client is asked, and what it has answered
    asks text check (json_valid(asks)),
    answers text check (json_valid(answers)),
    started_at integer not null,
    updated_at integer not null,
    ended_at integer
) strict;

create index mcp_call_open on mcp_call (state, call_id) where state in ('working', 'input_required');
create index mcp_call_session on mcp_call (session_id, rpc_id) where session_id is not null;

-- Keys that the daemon made for itself. They last as long as the database.
create table secret (
    name text primary key,
    value blob not null
) strict, without rowid;

create view mcp_sessions as
select
    session_id,
    principal,
    transport,
    revision,
    json_extract(client, '$.name') as client,
    json_extract(client, '$.version') as client_version,
    strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', last_seen_at / 1000.0, 'unixepoch') as last_seen_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', closed_at / 1000.0, 'unixepoch') as closed_at
from mcp_session;

create view mcp_calls as
select
    call_id,
    tool,
    state,
    session_id,
    principal,
    revision,
    is_task,
    strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', ended_at / 1000.0, 'unixepoch') as ended_at,
    (ended_at - started_at) / 1000.0 as seconds
from mcp_call;
