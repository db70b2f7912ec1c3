-- Who may read a stream. Decided when the stream is opened; readers ask this column and not the name.
--   team      every caller
--   operator  the operator alone: an answer to a client may hold what its caller may read and others may not
alter table stream add column visibility text not null default 'team' check (visibility in ('team', 'operator'));

update stream set visibility = 'operator' where name >= 'mcp/' and name < 'mcp0';
