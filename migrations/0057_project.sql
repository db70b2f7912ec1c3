-- Which project a folder of a machine is: decided at its first contact.
create table project_folder (
    -- '' until the machine that has the file claims it
    machine_id text not null default '',
    -- root of the repository, else the folder itself
    folder text not null,
    project text not null,
    -- null for a folder of before projects had names: its next contact may give its project one
    decided_at integer,
    used_at integer not null,
    primary key (machine_id, folder)
) strict, without rowid;
create index project_folder_used on project_folder (project, machine_id, used_at);

-- Further names of projects: one that gets a remote keeps its rows.
create table project_alias (
    name text primary key,
    project text not null
) strict, without rowid;
create index project_alias_project on project_alias (project, name);

-- Until now the folder was the project.
insert into project_folder (folder, project, used_at)
select project, project, max(at) from (
    select project, last_seen_at as at from session
    union all select project, last_seen from peer
    union all select project, created_at from token
    union all select project, started_at from agent
    union all select project, updated_at from ghap
    union all select project, created_at from memory
) past where substr(project, 1, 1) = '/' group by project;
