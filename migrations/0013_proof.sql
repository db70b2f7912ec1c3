-- What a hook gave to a session, and what of it nobody saw.

-- The call of a hook that a message was last given by; '' for one without an id. Null if no hook did: then it waits in
-- the inbox, or a reader of the inbox took it, and no event of the session shows anything about it.
alter table message add column given_by text;

-- The call of a hook that it was given by; null for what somebody asked for.
alter table seen add column hook_id text;

create index seen_hook on seen (hook_id) where hook_id is not null;

-- A reminder that went with the answer to this event: whose tool calls were counted from zero again ('' is the session
-- itself), and how many they were.
alter table hook_seen add column reminded_agent text;
alter table hook_seen add column reminded_after integer;

-- Calls of hooks whose answers nobody saw. One may be here before its event arrives. Kept as long as `hook_seen`.
create table hook_lost (
    hook_id text primary key,
    at integer not null
) strict, without rowid;

create index hook_lost_at on hook_lost (at);
