-- `waiting` counts what the inbox shows.

drop view peers_now;

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
        and m.waits = 1) as waiting
from peer
order by status_rank, display_name;
