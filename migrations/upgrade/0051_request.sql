-- What is asked of a person: by a hosted agent, or by the client of an attended session, which has no agent.
create table request (
    request_id text primary key,
    agent_id text references agent (agent_id),
    session_key text not null,
    -- whose the agent or the session is
    created_by text not null,
    project text not null,
    kind text not null check (kind in ('permission', 'question')),
    title text not null,
    cwd text,
    options text not null check (json_valid(options)),
    tool text check (tool is null or json_valid(tool)),
    -- what a client of an attended session asks, in its own form: its answer is made from it. With the calls that were open then
    prompt text check (prompt is null or json_valid(prompt)),
    opened_at integer not null,
    -- when it is denied, if it is
    deadline integer,
    -- an answer that the client has not shown to have taken: {option_id?, by}
    answering text check (answering is null or json_valid(answering)),
    closed_at integer,
    option_id text,
    -- a principal, or 'terminal', 'timeout', 'policy', 'interrupt', 'exit', 'lost', 'gone'
    answered_by text
) strict;
insert into request (request_id, agent_id, session_key, created_by, project, kind, title, options, tool, opened_at,
    deadline, closed_at, option_id, answered_by)
select r.request_id, r.agent_id, a.session_key, a.created_by, a.project, r.kind, r.title,
    replace(replace(replace(r.options, '"kind":"reject_once"', '"kind":"deny"'),
        '"kind":"reject_always"', '"kind":"deny"'), '"kind":"answer"', '"kind":"choice"'),
    r.tool, r.opened_at, r.deadline, r.closed_at, r.option_id, r.answered_by
from agent_request r join agent a using (agent_id);
drop table agent_request;
create index request_session on request (session_key, opened_at) where agent_id is null;
create index request_open on request (session_key) where closed_at is null;
create index request_due on request (deadline) where closed_at is null and deadline is not null;
create index request_agent on request (agent_id) where closed_at is null;
create index request_opened on request (opened_at, request_id);
