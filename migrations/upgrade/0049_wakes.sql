-- Whether the message began a turn of its receiver, or made one go on: what one sender may do only so often in an hour.
alter table message add column wakes integer not null default 0 check (wakes in (0, 1));
create index message_wakes on message (to_peer, at, from_peer) where wakes = 1;
