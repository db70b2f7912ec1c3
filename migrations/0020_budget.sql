-- What principals hold is counted from rows; of messages, of which there may be many, the count is kept with each change.

-- Who sent a message ('operator', 'session:<key>'), whatever peer it is from; null for one from before. And the bytes of
-- its text, also if that is shared.
alter table message add column sent_by text;
alter table message add column bytes integer not null default 0;

update message set bytes = coalesce(
    (select length(cast(t.text as blob)) from message_text t where t.id = message.text_id),
    length(cast(text as blob)));

-- Messages that wait, by who sent them (`by:session:<key>`) and by whose inbox they are in (`to:<peer>`).
create table message_use (
    holder text primary key,
    messages integer not null,
    bytes integer not null
) strict, without rowid;

insert into message_use (holder, messages, bytes)
select 'to:' || to_peer, count(*), sum(bytes) from message
where state in ('accepted', 'queued', 'offered', 'injected')
group by to_peer;

create trigger message_use_added after insert on message
when new.state in ('accepted', 'queued', 'offered', 'injected') begin
    insert into message_use (holder, messages, bytes) values ('to:' || new.to_peer, 1, new.bytes)
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
    insert into message_use (holder, messages, bytes)
    select 'by:' || new.sent_by, 1, iif(new.text_id is null, new.bytes, 0)
    where new.sent_by is not null
    on conflict (holder) do update set messages = messages + 1, bytes = bytes + excluded.bytes;
end;

create trigger message_use_ended after update of state on message
when old.state in ('accepted', 'queued', 'offered', 'injected')
    and new.state not in ('accepted', 'queued', 'offered', 'injected') begin
    update message_use set messages = messages - 1, bytes = bytes - old.bytes
    where holder = 'to:' || old.to_peer;
    update message_use set messages = messages - 1, bytes = bytes - iif(old.text_id is null, old.bytes, 0)
    where holder = 'by:' || old.sent_by;
    delete from message_use
    where holder in ('to:' || old.to_peer, 'by:' || old.sent_by) and messages <= 0;
end;

create trigger message_use_removed after delete on message
when old.state in ('accepted', 'queued', 'offered', 'injected') begin
    update message_use set messages = messages - 1, bytes = bytes - old.bytes
    where holder = 'to:' || old.to_peer;
    update message_use set messages = messages - 1, bytes = bytes - iif(old.text_id is null, old.bytes, 0)
    where holder = 'by:' || old.sent_by;
    delete from message_use
    where holder in ('to:' || old.to_peer, 'by:' || old.sent_by) and messages <= 0;
end;

create index mcp_session_principal on mcp_session (principal) where closed_at is null;
create index task_maker on task (created_by) where closed_at is null;
create index memory_session on memory (session_id);
create index ghap_session on ghap (session_id);
