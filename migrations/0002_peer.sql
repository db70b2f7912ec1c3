-- Who is here, and their inboxes.

create table peer (
    peer_id text primary key,
    display_name text not null,
    backend text not null,
    -- An absent path, session or pane is '': an empty field matches only an empty one, and null equals nothing.
    path text not null default '',
    session_id text not null default '',
    tmux_pane text not null default '',
    circle text not null,
    role text not null check (role in ('agent', 'orchestrator', 'human')),
    status text not null check (status in ('online', 'busy', 'idle', 'offline')),
    -- sort key of lists: online, busy, idle, offline
    status_rank integer not null generated always as
        (case status when 'online' then 0 when 'busy' then 1 when 'idle' then 2 else 3 end) stored,
    pid integer,
    metadata text check (json_valid(metadata)),
    -- the session key of the token that registered it; null for the operator
    owner text,
    registered_at integer not null,
    last_seen integer not null
) strict;

-- The identity rule of registration, kept by the database as well.
create unique index peer_session on peer (backend, session_id) where session_id <> '';
create unique index peer_place on peer (backend, path, tmux_pane) where session_id = '';
create index peer_list on peer (status_rank, display_name, peer_id);
create index peer_stale on peer (last_seen) where status <> 'offline';
create index peer_owner on peer (owner) where owner is not null;

-- No foreign keys to peer: a message outlives its sender and its receiver.
create table message (
    -- order of arrival, which is the order of the inbox
    id integer primary key,
    message_id text not null unique,
    type text not null check (type in ('query', 'response', 'notification', 'broadcast')),
    from_peer text not null,
    to_peer text not null,
    text text not null,
    correlation_id text,
    idempotency_key text,
    state text not null check
        (state in ('accepted', 'queued', 'offered', 'injected', 'acked', 'expired', 'refused', 'undeliverable')),
    -- an offered message comes again after this time unless it was acknowledged
    leased_until integer,
    at integer not null
) strict;

create index message_inbox on message (to_peer, id) where state in ('accepted', 'queued', 'offered', 'injected');
create unique index message_idempotency on message (from_peer, to_peer, idempotency_key)
    where idempotency_key is not null;

-- Each state that a message went through, with its time. None is skipped.
create table message_state (
    message_id text not null references message (message_id),
    state text not null,
    at integer not null,
    reason text,
    primary key (message_id, state)
) strict, without rowid;
