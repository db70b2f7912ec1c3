-- See `migrations/0058_broadcast_and_removal.sql`.
create table broadcast (
    sent_by text collate "C" not null,
    idempotency_key text collate "C" not null,
    from_peer text collate "C" not null,
    request_fingerprint text collate "C" not null,
    answer text collate "C",
    at bigint not null,
    primary key (sent_by, idempotency_key, from_peer)
);
create index broadcast_at on broadcast (at);
create index agent_children on agent (parent_agent) where parent_agent is not null;
create index request_of_agent on request (agent_id) where agent_id is not null;
