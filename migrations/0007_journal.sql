-- The journal: what each session is doing, what it predicted, what came of it.

-- A client's session, by the client's own id. `events` of it stand in the stream `session/<session_id>`.
create table session (
    session_id text primary key,
    -- root of the project that it works in; '' if it did not say
    project text not null default '',
    client text,
    -- how it last began
    source text not null check (source in ('startup', 'resume', 'clear', 'compact', 'fork')),
    -- the caller that made it known: 'operator' or 'session:<key>'
    created_by text not null,
    started_at integer not null,
    last_seen_at integer not null,
    ended_at integer,
    end_reason text
) strict;

create index session_seen on session (last_seen_at);
create index session_project on session (project, last_seen_at);

-- Tool calls of a session. Those of a sub-agent count apart, under its `agent_id`; '' is the session itself.
create table session_counter (
    session_id text not null references session (session_id),
    agent_id text not null default '',
    -- all of them
    total integer not null default 0,
    -- since the last check-in, update of the active record, or reset
    since integer not null default 0,
    primary key (session_id, agent_id)
) strict, without rowid;

create table tool_use (
    session_id text not null references session (session_id),
    agent_id text not null default '',
    tool_name text not null,
    count integer not null default 0,
    first_at integer not null,
    last_at integer not null,
    primary key (session_id, agent_id, tool_name)
) strict, without rowid;

-- Something that was seen to happen and that a prediction can be held against: a test run, a build.
create table outcome (
    outcome_id text primary key,
    session_id text not null references session (session_id),
    agent_id text not null default '',
    project text not null default '',
    -- the client's id of the tool call, so that a repeat is known
    tool_use_id text,
    command text not null,
    verdict text not null check (verdict in ('pass', 'fail', 'unknown')),
    summary text not null,
    at integer not null
) strict;

create index outcome_session on outcome (session_id, at);
create unique index outcome_tool_use on outcome (session_id, tool_use_id) where tool_use_id is not null;

-- Facts about the daemon as a whole that are text. `current_session`: the session that was last started by
-- `start_session`, which is meant by callers that have none of their own.
create table setting (
    name text primary key,
    value text not null
) strict, without rowid;

-- Goal, hypothesis, action, prediction: one record of an attempt.
create table ghap (
    -- order of creation, and the key of the search index
    id integer primary key,
    ghap_id text not null unique,
    session_id text not null references session (session_id),
    project text not null default '',
    domain text not null,
    strategy text not null,
    goal text not null,
    hypothesis text not null,
    action text not null,
    prediction text not null,
    -- how sure its maker is that the prediction comes true, 0 to 1
    probability real check (probability between 0 and 1),
    iteration_count integer not null default 1,
    status text not null check (status in ('active', 'confirmed', 'falsified', 'abandoned')),
    result text,
    surprise text,
    root_cause_category text,
    root_cause text,
    what_worked text,
    takeaway text,
    tier text check (tier in ('gold', 'silver', 'bronze', 'abandoned')),
    -- the outcome that the verdict rests on
    outcome_id text references outcome (outcome_id),
    -- where it came from, if it was imported; a repeat of the import is known by it
    imported_from text unique,
    created_at integer not null,
    updated_at integer not null,
    resolved_at integer
) strict;

-- One active record for a session, kept by the database as well.
create unique index ghap_active on ghap (session_id) where status = 'active';
create index ghap_project on ghap (project, id);
create index ghap_resolved on ghap (resolved_at) where resolved_at is not null;

-- What it said before it was changed.
create table ghap_history (
    ghap_id text not null references ghap (ghap_id),
    iteration integer not null,
    hypothesis text not null,
    action text not null,
    prediction text not null,
    -- when it was changed
    at integer not null,
    primary key (ghap_id, iteration)
) strict, without rowid;

create table ghap_note (
    id integer primary key,
    ghap_id text not null references ghap (ghap_id),
    note text not null,
    at integer not null
) strict;

create index ghap_note_of on ghap_note (ghap_id, id);

-- For people with `sqlite3`. These names and columns are a contract: a later migration keeps them.

create view sessions_now as
select
    s.session_id,
    s.client,
    nullif(s.project, '') as project,
    s.source,
    coalesce((select sum(c.total) from session_counter c where c.session_id = s.session_id), 0) as tool_calls,
    (select g.goal from ghap g where g.session_id = s.session_id and g.status = 'active') as goal,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.started_at / 1000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.last_seen_at / 1000.0, 'unixepoch') as last_seen_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.ended_at / 1000.0, 'unixepoch') as ended_at,
    s.end_reason
from session s;

create view tool_usage as
select
    t.session_id,
    nullif(t.agent_id, '') as agent_id,
    nullif(s.project, '') as project,
    t.tool_name,
    t.count,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.first_at / 1000.0, 'unixepoch') as first_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.last_at / 1000.0, 'unixepoch') as last_at
from tool_use t
join session s on s.session_id = t.session_id;

create view ghap_journal as
select
    g.ghap_id,
    g.session_id,
    nullif(g.project, '') as project,
    g.domain,
    g.strategy,
    g.status,
    g.tier,
    g.iteration_count,
    g.goal,
    g.hypothesis,
    g.action,
    g.prediction,
    g.probability,
    g.result,
    g.surprise,
    g.root_cause_category,
    g.root_cause,
    g.what_worked,
    g.takeaway,
    g.outcome_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.created_at / 1000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.updated_at / 1000.0, 'unixepoch') as updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', g.resolved_at / 1000.0, 'unixepoch') as resolved_at
from ghap g;

-- How well predictions came true: the mean squared error of those that state a probability (Brier; 0 is perfect, 0.25
-- is what always saying one half earns), and the share of those that were confirmed.
create view ghap_calibration as
select
    s.client,
    g.domain,
    count(*) as records,
    avg(g.status = 'confirmed') as hit_rate,
    count(g.probability) as with_probability,
    avg((g.probability - (g.status = 'confirmed')) * (g.probability - (g.status = 'confirmed'))) as brier
from ghap g
join session s on s.session_id = g.session_id
where g.status in ('confirmed', 'falsified')
group by s.client, g.domain;
