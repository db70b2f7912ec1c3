-- Answers that a call has stored count as sends from one session to another; what a turn said last does not.

-- 1: a call stored this answer.
alter table message add column by_call integer not null default 0 check (by_call in (0, 1));

create index message_by_call on message (from_peer, to_peer, at) where by_call = 1;

-- A session is its peer. Answers are counted by peers, so sends are.
drop index conversation_run_pair;
create index conversation_run_pair on conversation_run (source_session, target_peer, created_at);
