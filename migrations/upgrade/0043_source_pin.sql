-- The definitions of a child MCP server that a person has approved: those of its first connection after the approval. Those of a
-- project's server are what callers see.
create table source_pin (
    name text not null,
    project text not null,
    -- the approval of the file and the entry that they belong to
    basis text not null,
    tools text not null check (json_valid(tools)),
    resources text not null check (json_valid(resources)),
    templates text not null check (json_valid(templates)),
    prompts text not null check (json_valid(prompts)),
    -- the changes since then that an event has told of
    told text not null check (json_valid(told)),
    pinned_at integer not null,
    primary key (name, project)
) strict, without rowid;
