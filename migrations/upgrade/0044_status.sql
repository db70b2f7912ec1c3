-- A peer may wait for a person, and be on a machine that is not reached. `since` is when its status became what it is,
-- `waiting_for` what a person is asked, and `open_calls` the tools that its client has begun and not ended.

drop view peers_now;
drop index peer_list;
drop index peer_stale;

alter table peer drop column status_rank;
alter table peer rename column status to former_status;
alter table peer add column status text not null default 'offline'
    check (status in ('online', 'busy', 'waiting', 'idle', 'unreachable', 'offline'));
update peer set status = former_status;
alter table peer drop column former_status;
-- The order of lists.
alter table peer add column status_rank integer not null generated always as (
    case status
        when 'online' then 0 when 'busy' then 1 when 'waiting' then 2 when 'idle' then 3 when 'unreachable' then 4
        else 5
    end
) virtual;

alter table peer add column since integer not null default 0;
update peer set since = last_seen;
alter table peer add column waiting_for text check (waiting_for is null or json_valid(waiting_for));
alter table peer add column open_calls text not null default '[]' check (json_valid(open_calls));

create index peer_list on peer (status_rank, display_name, peer_id);
create index peer_stale on peer (last_seen) where status <> 'offline';

create view peers_now as
select
    peer_id,
    display_name,
    backend,
    status,
    strftime('%Y-%m-%dT%H:%M:%fZ', since / 1000.0, 'unixepoch') as since,
    json_extract(waiting_for, '$.kind') as waits_for,
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
