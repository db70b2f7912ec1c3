-- What the holder of a session token works in, and the process that the token was given to.

-- root of the project whose things the token reads; '' if it reads its own alone
alter table token add column project text not null default '';
-- The client's process, as the daemon's socket showed it: its number, its start as the system counts it, its working folder.
-- Null for a token that a person minted.
alter table token add column client_pid integer;
alter table token add column client_started text;
alter table token add column cwd text;

create index token_process on token (client_pid, client_started) where client_pid is not null and revoked_at is null;
