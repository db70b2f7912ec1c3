-- Whose records, memories and values of a session are: who made the session known, and of one that the operator made
-- known the session itself. Nobody's if the column `created_by` says neither.
alter table session add column reader_key text generated always as (
    case when created_by = 'operator' then session_id
        when substr(created_by, 1, 8) = 'session:' then substr(created_by, 9)
    end
) virtual;
create index session_reader on session (reader_key);
