-- Conversations between sessions: where each message comes from, and what becomes of what one session asks another.

-- The call that it came by ('peer_send', 'sessions_send', …), the key of the session that sent it (null: the person), and the
-- send that it belongs to. Null of messages from before.
alter table message add column source_tool text;
alter table message add column source_session text;
alter table message add column run_id text;
-- A reply that answers a reply: the number of the turn that it begins. Null of all other messages.
alter table message add column turn integer;
-- A reply that a caller waits for is given to nobody else before this time.
alter table message add column held_until integer;

create index message_run on message (run_id) where run_id is not null;

-- A send of one session to another, its turn and its reply.
create table conversation_run (
    -- the order in which they came
    id integer primary key,
    run_id text not null unique,
    -- what was sent
    message_id text not null unique references message (message_id),
    mode text not null check (mode in ('followup', 'notify', 'steer')),
    -- 'operator' or the key of the session; for a hosted one, its incarnation
    source_session text not null,
    source_peer text not null,
    source_agent text,
    target_session text not null,
    target_peer text not null,
    target_agent text,
    state text not null check (state in ('queued', 'running', 'ok', 'no_reply', 'timeout', 'error')),
    -- why it came to nothing: a code, and the same in words
    reason text,
    error text,
    -- the message that holds the reply, or says that there is none
    reply_id text,
    -- a call waits for the reply until then
    waits_until integer,
    -- what the call was told, 'queued' if it went on without the reply; null while it was told nothing
    answered text check (answered in ('queued', 'ok', 'no_reply', 'timeout', 'error')),
    idempotency_key text,
    created_at integer not null,
    begun_at integer,
    ended_at integer
) strict;

create unique index conversation_run_key on conversation_run (source_session, idempotency_key)
    where idempotency_key is not null;
create index conversation_run_pair on conversation_run (source_session, target_session, created_at);
create index conversation_run_wait on conversation_run (waits_until)
    where waits_until is not null and ended_at is null;
create index conversation_run_target on conversation_run (target_peer) where ended_at is null;

-- The incarnation that started an agent, or asked for a task, if it was a hosted agent itself.
alter table agent add column parent_agent text;
alter table dispatch add column asker_agent text;
-- The call that asked for it: its end comes back with that name.
alter table dispatch add column source_tool text;
-- Whether the peer of the agent that is started for it goes with its end.
alter table dispatch add column removes_peer integer not null default 0 check (removes_peer in (0, 1));
-- When its task is given up.
alter table dispatch add column deadline integer;

create index agent_parent on agent (created_by) where ended_at is null;
create index conversation_run_source on conversation_run (source_session) where ended_at is null;

drop view messages_now;

create view messages_now as
select
    m.message_id,
    m.type,
    m.state,
    m.from_peer,
    m.to_peer,
    coalesce((select t.text from message_text t where t.id = m.text_id), m.text) as text,
    m.correlation_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.at / 1000.0, 'unixepoch') as at,
    strftime('%Y-%m-%dT%H:%M:%fZ',
        (select max(st.at) from message_state st where st.message_id = m.message_id) / 1000.0,
        'unixepoch') as state_at,
    -- a sender or receiver that is no peer any more has no name but its id
    coalesce((select p.display_name from peer p where p.peer_id = m.from_peer), m.from_peer) as from_name,
    coalesce((select p.display_name from peer p where p.peer_id = m.to_peer), m.to_peer) as to_name,
    m.source_tool,
    m.source_session,
    m.run_id
from message m;

-- Sends between sessions, the latest first.
create view runs_now as
select
    r.run_id,
    r.state,
    r.mode,
    r.source_session,
    r.target_session,
    r.message_id,
    r.reply_id,
    r.reason,
    r.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.begun_at / 1000.0, 'unixepoch') as begun_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.ended_at / 1000.0, 'unixepoch') as ended_at
from conversation_run r
order by r.id desc;
