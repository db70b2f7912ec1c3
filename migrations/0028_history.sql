-- For people with `sqlite3`: names beside ids, who asked whom and how long it took, what was tried and whether it worked.
-- The views of before keep their columns and get more of them at the end.

-- Answers to a question.
create index message_answers on message (correlation_id) where correlation_id is not null;

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
    coalesce((select p.display_name from peer p where p.peer_id = m.to_peer), m.to_peer) as to_name
from message m;

drop view tasks_now;

create view tasks_now as
select
    t.task_id,
    t.status,
    t.title,
    t.agent,
    t.from_peer as "from",
    t.exit_code,
    t.signal,
    t.error,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.at / 1000.0, 'unixepoch') as updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.closed_at / 1000.0, 'unixepoch') as closed_at,
    e.seq as last_id,
    s.name as stream,
    -- "from" without quotation marks
    t.from_peer as sender,
    coalesce((select p.display_name from peer p where p.peer_id = t.from_peer), t.from_peer) as sender_name
from task t
join stream s on s.id = t.stream_id
join event e on e.stream_id = t.stream_id
    and e.seq = (select max(seq) from event where stream_id = t.stream_id);

-- Questions, each with the first answer of the peer that was asked. `waited_seconds` goes on until there is one.
create view conversations as
select
    strftime('%Y-%m-%dT%H:%M:%fZ', q.at / 1000.0, 'unixepoch') as asked_at,
    coalesce((select p.display_name from peer p where p.peer_id = q.from_peer), q.from_peer) as asker,
    coalesce((select p.display_name from peer p where p.peer_id = q.to_peer), q.to_peer) as asked,
    coalesce((select t.text from message_text t where t.id = q.text_id), q.text) as question,
    coalesce((select t.text from message_text t where t.id = a.text_id), a.text) as answer,
    strftime('%Y-%m-%dT%H:%M:%fZ', a.at / 1000.0, 'unixepoch') as answered_at,
    round(max(coalesce(a.at / 1000.0, (julianday('now') - 2440587.5) * 86400.0) - q.at / 1000.0, 0), 1) as waited_seconds,
    case
        when a.id is not null then 'answered'
        when q.state in ('expired', 'refused', 'undeliverable') then q.state
        else 'open'
    end as state,
    q.message_id as question_id,
    a.message_id as answer_id,
    q.from_peer as asker_id,
    q.to_peer as asked_id
from message q
left join message a on a.id = (
    select min(r.id) from message r
    where r.correlation_id in (q.message_id, coalesce(q.correlation_id, q.message_id))
        and r.from_peer = q.to_peer and r.type <> 'query' and r.id > q.id
)
where q.type = 'query';

-- What was tried, and whether it worked: the records of the journal, and the runs of tests and builds that no record
-- rests on.
create view outcomes as
select
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(g.resolved_at, g.updated_at) / 1000.0, 'unixepoch') as at,
    'record' as kind,
    case g.status when 'confirmed' then 'yes' when 'falsified' then 'no' when 'abandoned' then 'given up' else 'open' end
        as worked,
    g.goal,
    g.action as tried,
    coalesce(g.result, g.root_cause, g.surprise) as result,
    o.command as proof,
    s.client,
    nullif(g.project, '') as project,
    g.session_id,
    g.ghap_id as id
from ghap g
join session s on s.session_id = g.session_id
left join outcome o on o.outcome_id = g.outcome_id
union all
select
    strftime('%Y-%m-%dT%H:%M:%fZ', o.at / 1000.0, 'unixepoch'),
    'run',
    case o.verdict when 'pass' then 'yes' when 'fail' then 'no' else 'unknown' end,
    null,
    o.command,
    o.summary,
    null,
    s.client,
    nullif(o.project, ''),
    o.session_id,
    o.outcome_id
from outcome o
join session s on s.session_id = o.session_id
where o.outcome_id not in (select g.outcome_id from ghap g where g.outcome_id is not null);
