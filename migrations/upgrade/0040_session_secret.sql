-- SHA-256 of the secret that stands in a file of the data folder: the client's own hook takes its session up again with it, in another
-- process. Null if the session has none.
alter table session add column secret blob check (secret is null or length(secret) = 32);
create index session_secret on session (ended_at) where secret is not null;
