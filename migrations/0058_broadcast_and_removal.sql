-- A broadcast that was sent with an idempotency key: a repeat gets the first one's answer.
create table broadcast (
    -- the principal
    sent_by text not null,
    idempotency_key text not null,
    from_peer text not null,
    -- another request under the same key is refused
    request_fingerprint text not null,
    -- null until all copies are stored
    answer text,
    at integer not null,
    primary key (sent_by, idempotency_key, from_peer)
) strict, without rowid;
create index broadcast_at on broadcast (at);

-- For the removal of an agent: its children get another parent, and its requests go with it.
create index agent_children on agent (parent_agent) where parent_agent is not null;
create index request_of_agent on request (agent_id) where agent_id is not null;
