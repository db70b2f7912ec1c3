-- Hooks: which of their events came already, and whose an MCP connection is.

-- Ids that `svc hook` gave to events, so that one that is sent again counts once. Kept for a day.
create table hook_seen (
    hook_id text primary key,
    at integer not null
) strict, without rowid;

create index hook_seen_at on hook_seen (at);

-- The client's own session at the other end, as its hooks have shown: tools that are called over this connection mean it.
alter table mcp_session add column client_session text;

create index mcp_session_client on mcp_session (client_session, last_seen_at)
where client_session is not null and closed_at is null;
