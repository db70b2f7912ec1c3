-- For people with `sqlite3`. These names and columns are a contract: a later migration keeps them.

create view streams as
select
    s.name,
    coalesce((select min(e.seq) from event e where e.stream_id = s.id), 1) - 1 as floor,
    coalesce((select max(e.seq) from event e where e.stream_id = s.id), 0) as head,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.closed_at / 1000.0, 'unixepoch') as closed_at
from stream s;

create view history as
select
    e.position,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.at / 1000.0, 'unixepoch') as at,
    s.name as stream,
    e.seq,
    e.kind,
    e.data
from event e
join stream s on s.id = e.stream_id;

create view peers_now as
select
    peer_id,
    display_name,
    backend,
    status,
    role,
    circle,
    nullif(path, '') as path,
    nullif(session_id, '') as session_id,
    nullif(tmux_pane, '') as tmux_pane,
    pid,
    strftime('%Y-%m-%dT%H:%M:%fZ', registered_at / 1000.0, 'unixepoch') as registered_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', last_seen / 1000.0, 'unixepoch') as last_seen,
    (select count(*) from message m
      where m.to_peer = peer.peer_id
        and m.state in ('accepted', 'queued', 'offered', 'injected')) as waiting
from peer
order by status_rank, display_name;

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
    s.name as stream
from task t
join stream s on s.id = t.stream_id
join event e on e.stream_id = t.stream_id
    and e.seq = (select max(seq) from event where stream_id = t.stream_id);

create view messages_now as
select
    m.message_id,
    m.type,
    m.state,
    m.from_peer,
    m.to_peer,
    m.text,
    m.correlation_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.at / 1000.0, 'unixepoch') as at,
    strftime('%Y-%m-%dT%H:%M:%fZ',
        (select max(st.at) from message_state st where st.message_id = m.message_id) / 1000.0,
        'unixepoch') as state_at
from message m;
