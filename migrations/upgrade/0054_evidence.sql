-- What the status of a participant rests on.
alter table peer add column evidence text not null default 'process'
    check (evidence in ('hook', 'registry', 'app-server', 'plugin', 'host', 'process'));
update peer set evidence = case
    when owner like 'agent:%' then 'host'
    when session_id <> '' and backend = 'opencode' then 'plugin'
    when session_id <> '' and backend in ('claude-code', 'codex', 'gemini') then 'hook'
    else 'process'
end;
