-- A message that a hook gave is over once its receiver went on with it, unless it asks something: nobody has to say so. Its
-- state stays `injected`, and it waits in no inbox. One that nobody saw after all (leased_until = 0) waits again.
alter table message add column waits integer not null generated always as (
    state in ('accepted', 'queued', 'offered')
    or (state = 'injected' and (type = 'query' or given_by is null or coalesce(leased_until, 1) = 0))
) virtual;

drop index message_inbox;
create index message_inbox on message (to_peer, id) where waits = 1;

-- What one reply of a hook gave.
create index message_given on message (given_by) where given_by is not null;

-- The question that an answer names by the correlation id that the asker chose.
create index message_question on message (to_peer, correlation_id) where type = 'query' and correlation_id is not null;

drop trigger message_use_added;
drop trigger message_use_ended;
drop trigger message_use_removed;
delete from message_use;

insert into message_use (holder, messages, bytes)
select 'to:' || to_peer, count(*), sum(bytes) from message where waits = 1 group by to_peer
union all
select 'by:' || sent_by, count(*), sum(iif(text_id is null, bytes, 0)) from message
where waits = 1 and sent_by is not null group by sent_by;

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

create trigger message_use_ended after update of state, leased_until, given_by on message
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
