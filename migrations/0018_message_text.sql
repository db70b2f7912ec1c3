-- The text of a broadcast is stored once, and its copies refer to it.

create table message_text (
    id integer primary key,
    text text not null
) strict;

-- Of a copy of a broadcast, whose own `text` is ''. Null for every other message.
alter table message add column text_id integer references message_text (id);

create index message_text_of on message (text_id) where text_id is not null;

-- It goes with the last of its copies.
create trigger message_text_unused after delete on message when old.text_id is not null begin
    delete from message_text
    where id = old.text_id and not exists (select 1 from message where text_id = old.text_id);
end;

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
        'unixepoch') as state_at
from message m;
