-- Browsers that the operator has signed in. Each is a row of `token`; its secret is a cookie, of which the hash is kept.

-- The fingerprint of the operator's token under which a browser was signed in: it is good only as long as that token is.
-- Null for the tokens of sessions and processes.
alter table token add column operator_credential text;

create index token_browser on token (expires_at) where operator_credential is not null;

-- One-time codes that sign a browser in. A used or an old one is kept for a while, to say what is wrong with it.
create table login_code (
    -- SHA-256 of the code
    hash blob primary key check (length(hash) = 32),
    operator_credential text not null,
    expires_at integer not null,
    used_at integer
) strict, without rowid;
