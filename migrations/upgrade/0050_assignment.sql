-- A text that was given to a participant: with or without a task, with or without an answer that is
-- waited for. One table in place of `dispatch` and `conversation_run`; of work that went into an
-- inbox those had one row each.
create table assignment (
    -- the order in which they came
    id integer primary key,
    run_id text not null unique,
    -- where it is done; '' is the only machine
    machine_id text not null default '',
    -- whose project it is of: that of the task, else of who sent it
    project_id text not null default '',
    -- null: it is a message and no task
    task_id text unique references task (task_id),
    -- null: it is in no inbox. A hosted agent has a task's prompt from its host
    message_id text unique references message (message_id),
    mode text not null check (mode in ('followup', 'notify', 'steer')),
    -- `sent`: the host or the inbox has it; `running`: the model has it
    state text not null
        check (state in ('queued', 'starting', 'sent', 'running', 'ok', 'no_reply', 'timeout', 'error')),
    -- 'operator' or the key of the session; for a hosted one, its incarnation
    source_session text not null,
    source_peer text not null default '',
    source_agent text,
    source_tool text,
    -- who has it, '' until that is known
    target_session text not null default '',
    target_peer text not null default '',
    target_agent text,
    -- why it came to nothing: a code, and the same in words
    reason text,
    error text,
    -- the message that holds the reply, or says that there is none
    reply_id text,
    -- a call waits for the reply until then
    waits_until integer,
    -- what the call was told, 'queued' if it went on without the reply; null while it was told
    -- nothing
    answered text check (answered in ('queued', 'ok', 'no_reply', 'timeout', 'error')),
    idempotency_key text,
    created_at integer not null,
    begun_at integer,
    ended_at integer,
    -- of a task: who may take it, as {mode, model?, cwd?, resume?, agent_id?, peer_id?, failover?};
    -- failover: instances to try next
    instance text not null default '',
    backend text not null default '',
    requirements text not null default '{}' check (json_valid(requirements)),
    attempt integer not null default 1,
    deadline integer,
    -- whether the agent was started for it, and its peer goes with it
    is_spawned integer not null default 0 check (is_spawned in (0, 1)),
    removes_peer integer not null default 0 check (removes_peer in (0, 1)),
    -- offset of the input in the agent's stream: from there on it is known to be taken
    taken_at integer,
    has_words integer not null default 0 check (has_words in (0, 1)),
    -- bytes of the entry that the agent is saying that are frames already
    said integer not null default 0,
    -- how its turn ended, before the agent's program has
    turn text check (turn is null or json_valid(turn))
) strict;

insert into assignment (run_id, project_id, task_id, message_id, mode, state, source_session, source_peer, source_agent,
    source_tool, target_session, target_peer, target_agent, reason, error, reply_id, waits_until, answered, idempotency_key,
    created_at, begun_at, ended_at, instance, backend, requirements, attempt, deadline, is_spawned, removes_peer,
    taken_at, has_words, said, turn)
select run_id, project, task_id, message_id, mode, state, source_session, source_peer, source_agent, source_tool,
    target_session, target_peer, target_agent, reason, error, reply_id, waits_until, answered, idempotency_key, created_at,
    begun_at, ended_at, instance, backend, wish, attempt, deadline, is_spawned, removes_peer, taken_at,
    has_words, said, turn
from (
    select
        1 as kind, d.id as old_id,
        coalesce(r.run_id, 'run_' || iif(substr(d.task_id, 1, 5) = 'task_', substr(d.task_id, 6), d.task_id)) as run_id,
        t.project, d.task_id, r.message_id, 'followup' as mode,
        case
            when d.state in ('queued', 'starting') then d.state
            when d.state = 'sent' and (d.taken_at is not null or t.status = 'active') then 'running'
            when d.state = 'sent' then 'sent'
            when t.status = 'done' then 'ok'
            else 'error'
        end as state,
        iif(substr(t.created_by, 1, 8) = 'session:', substr(t.created_by, 9), t.created_by) as source_session,
        coalesce(r.source_peer, '') as source_peer, d.asker_agent as source_agent, d.source_tool,
        coalesce(r.target_session, (select a.session_key from agent a where a.agent_id = d.agent_id), '') as target_session,
        coalesce(r.target_peer, '') as target_peer, d.agent_id as target_agent,
        r.reason, r.error, r.reply_id, r.waits_until, r.answered, null as idempotency_key,
        t.created_at, r.begun_at,
        iif(d.state = 'over', coalesce(t.closed_at, r.ended_at, t.created_at), null) as ended_at,
        d.instance, d.backend,
        json_set(json_remove(d.wish, '$.message_id', '$.waits_until'), '$.mode', d.mode, '$.failover', json(d.failover)) as wish,
        d.attempt, d.deadline, d.is_spawned, d.removes_peer, d.taken_at, d.has_words, d.said, d.turn
    from dispatch d
    join task t on t.task_id = d.task_id
    left join conversation_run r on r.message_id = json_extract(d.wish, '$.message_id')
    union all
    select
        0, r.id, r.run_id, coalesce((select p.project from peer p where p.peer_id = r.source_peer), ''), null, r.message_id,
        r.mode, iif(r.state = 'queued', 'sent', r.state), r.source_session, r.source_peer, r.source_agent, null,
        r.target_session, r.target_peer, r.target_agent, r.reason, r.error, r.reply_id, r.waits_until, r.answered,
        r.idempotency_key, r.created_at, r.begun_at, r.ended_at, '', '', '{}', 1, null, 0, 0, null, 0, 0, null
    from conversation_run r
    where r.message_id not in
        (select json_extract(d.wish, '$.message_id') from dispatch d where json_extract(d.wish, '$.message_id') is not null)
)
order by created_at, kind, old_id;

drop trigger dispatch_over;
drop view runs_now;
drop table dispatch;
drop table conversation_run;

create unique index assignment_key on assignment (source_session, idempotency_key) where idempotency_key is not null;
create index assignment_work on assignment (state, id) where task_id is not null and ended_at is null;
create index assignment_agent on assignment (target_agent) where target_agent is not null and ended_at is null;
create index assignment_source on assignment (source_session) where ended_at is null;
create index assignment_pair on assignment (source_session, target_peer, created_at);

-- Whoever ends the task ends the work.
create trigger assignment_over after update of closed_at on task when new.closed_at is not null begin
    update assignment set state = iif(new.status = 'done', 'ok', 'error'), ended_at = new.closed_at
    where task_id = new.task_id and ended_at is null;
end;

-- Texts in inboxes whose turn gives the reply, the latest first.
create view runs_now as
select
    a.run_id,
    iif(a.state in ('starting', 'sent'), 'queued', a.state) as state,
    a.mode,
    a.source_session,
    a.target_session,
    a.message_id,
    a.reply_id,
    a.reason,
    a.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.begun_at / 1000.0, 'unixepoch') as begun_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.ended_at / 1000.0, 'unixepoch') as ended_at
from assignment a
where a.message_id is not null
order by a.id desc;

-- the hash of a request under an idempotency key
alter table agent rename column wish to request_fingerprint;
