-- See `migrations/0057_project.sql`.
create table project_folder (
    machine_id text collate "C" not null default '',
    folder text collate "C" not null,
    project text collate "C" not null,
    decided_at bigint,
    used_at bigint not null,
    primary key (machine_id, folder)
);
create index project_folder_used on project_folder (project, machine_id, used_at);

create table project_alias (
    name text collate "C" primary key,
    project text collate "C" not null
);
create index project_alias_project on project_alias (project, name);

insert into project_folder (folder, project, used_at)
select project, project, max(at) from (
    select project, last_seen_at as at from session
    union all select project, last_seen from peer
    union all select project, created_at from token
    union all select project, started_at from agent
    union all select project, updated_at from ghap
    union all select project, created_at from memory
) past where substr(project, 1, 1) = '/' group by project;
