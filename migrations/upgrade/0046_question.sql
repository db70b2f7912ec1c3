-- Which turn a question is answered by, and which question is answered no more.

drop view peers_now;
drop trigger message_use_added;
drop trigger message_use_again;
drop trigger message_use_ended;
drop trigger message_use_removed;
drop index message_inbox;
alter table message drop column waits;

-- The receiver's turn began with the question, so its last words answer it.
alter table message add column begins_turn integer not null default 0 check (begins_turn in (0, 1));

-- The receiver has the question and will not answer it. The state stays `injected`, with a reason.
alter table message add column came_to_nothing integer not null default 0 check (came_to_nothing in (0, 1));

alter table message add column waits integer not null generated always as (
    came_to_nothing = 0 and (
        state in ('accepted', 'queued', 'offered')
        or (state = 'injected' and (type = 'query' or given_by is null or coalesce(leased_until, 1) = 0))
    )
) virtual;

create index message_inbox on message (to_peer, id) where waits = 1;
create index message_turn on message (to_peer, id) where begins_turn = 1;

create trigger message_use_added after insert on message when new.waits begin
    insert into message_use (holder, messages, bytes) values ('to:' || new.to_peer, 1, new.bytes)
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
    insert into message_use (holder, messages, bytes)
    select 'by:' || new.sent_by, 1, iif(new.text_id is null, new.bytes, 0)
    where new.sent_by is not null
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
end;

create trigger message_use_again after update of state, leased_until, given_by on message
when new.waits and not old.waits begin
    insert into message_use (holder, messages, bytes) values ('to:' || new.to_peer, 1, new.bytes)
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
    insert into message_use (holder, messages, bytes)
    select 'by:' || new.sent_by, 1, iif(new.text_id is null, new.bytes, 0)
    where new.sent_by is not null
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
end;

create trigger message_use_ended after update of state, leased_until, given_by, came_to_nothing on message
when old.waits and not new.waits begin
    update message_use set messages = messages - 1, bytes = bytes - old.bytes
    where holder = 'to:' || old.to_peer;
    update message_use set messages = messages - 1, bytes = bytes - iif(old.text_id is null, old.bytes, 0)
    where holder = 'by:' || old.sent_by;
    delete from message_use
    where holder in ('to:' || old.to_peer, 'by:' || old.sent_by) and messages <= 0;
end;

create trigger message_use_removed after delete on message when old.waits begin
    update message_use set messages = messages - 1, bytes = bytes - old.bytes
    where holder = 'to:' || old.to_peer;
    update message_use set messages = messages - 1, bytes = bytes - iif(old.text_id is null, old.bytes, 0)
    where holder = 'by:' || old.sent_by;
    delete from message_use
    where holder in ('to:' || old.to_peer, 'by:' || old.sent_by) and messages <= 0;
end;

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
