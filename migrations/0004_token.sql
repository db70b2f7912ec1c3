-- Session tokens: who a caller is. The token itself is never stored.

create table token (
    token_id text primary key,
    -- SHA-256 of the token
    hash blob not null unique check (length(hash) = 32),
    -- the subject: the session that whoever holds the token speaks for
    session text not null,
    scopes text not null check (json_valid(scopes)),
    created_at integer not null,
    expires_at integer not null,
    last_used_at integer,
    revoked_at integer
) strict;

create index token_session on token (session);
