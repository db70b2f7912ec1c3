-- Who holds what: why a token was taken back, the credential of a call on record, the sessions of one owner.

-- 'revoked' by the operator, 'ended' with its session, 'gone' with its process, 'replaced' by a later one of its process.
-- Null for a token that is good, or was taken back before this column came. A process whose token the operator revoked
-- gets no other.
alter table token add column revoke_reason text
    check (revoke_reason is null or revoke_reason in ('revoked', 'ended', 'gone', 'replaced'));

-- The credential that a call on record came with: a token's id, or a fingerprint of the operator's token. The answer is
-- given only if the credential is still good. Null for calls from before.
alter table mcp_call add column credential text;

create index session_latest on session (created_by, last_seen_at) where ended_at is null;
