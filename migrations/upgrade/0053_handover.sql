-- Texts that were handed to a client's own queue or inbox, until the client shows that it has them. The row stands before the text
-- is handed over. Its messages name it.
create table handover (
    handover_id text primary key,
    peer_id text not null,
    session_id text not null,
    -- the client's way
    via text not null,
    -- whether it was handed over in a turn, which goes on with it
    joins_turn integer not null check (joins_turn in (0, 1)),
    -- whether the client keeps it for its person
    is_held integer not null default 0 check (is_held in (0, 1)),
    -- where the client's own record of the conversation is, if that is a file
    record text,
    at integer not null
) strict;
create index handover_peer on handover (peer_id);
alter table message add column handover_id text references handover (handover_id);
create index message_handover on message (handover_id) where handover_id is not null;
-- How often a client's own way was tried for it in vain.
alter table message add column failed_handovers integer not null default 0;
-- It begins no turn of an idle session by itself.
alter table message add column no_wake integer not null default 0 check (no_wake in (0, 1));
-- By which way it was offered: 'hook', or that of a handover.
alter table message_state add column via text;
-- Whether the client asks its person before it uses tools, in its own word, as its last hook told.
alter table peer add column permission_mode text;
