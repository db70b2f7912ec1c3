-- Child MCP servers. A server that a project's file names has that project; all others have an empty one.

-- What a server listed when it last worked. The fingerprint is that of its entry: the lists of another entry are not its own.
create table source_list (
    name text not null,
    project text not null,
    fingerprint text not null,
    tools text not null check (json_valid(tools)),
    resources text not null check (json_valid(resources)),
    templates text not null check (json_valid(templates)),
    prompts text not null check (json_valid(prompts)),
    listed_at integer not null,
    primary key (name, project)
) strict, without rowid;

-- What a server is doing.
create table source_state (
    name text not null,
    project text not null,
    state text not null,
    reason text,
    next_action text,
    attempt integer,
    next_at integer,
    since integer not null,
    primary key (name, project)
) strict, without rowid;

-- Processes of servers. A row is there before the first request to the process, and goes when nothing of it is left.
create table source_process (
    -- Stands in the environment of the process and of all that it starts.
    mark text primary key,
    pid integer not null,
    -- When it started, as the system counts, and in which run of the system.
    started text not null,
    name text not null,
    project text not null,
    instance text not null,
    at integer not null
) strict, without rowid;
