-- What a session without a project stores is its own alone, so another's of the same text is another one.

drop index memory_once;
create unique index memory_once on memory (project, category, digest, shared, iif(project = '' and shared = 0, session_id, ''));

drop view team_values;
create table learned_value_new (
    id integer primary key,
    value_id text not null unique,
    project text not null default '',
    axis text not null,
    cluster_id text not null,
    text text not null,
    terms text not null,
    distance real not null,
    session_id text not null,
    validated_at integer not null
) strict;

insert into learned_value_new (id, value_id, project, axis, cluster_id, text, terms, distance, session_id, validated_at)
select id, value_id, project, axis, cluster_id, text, terms, distance, session_id, validated_at from learned_value;

drop table learned_value;
alter table learned_value_new rename to learned_value;
create unique index learned_value_once on learned_value (cluster_id, text, project, iif(project = '', session_id, ''));

create view team_values as
select
    v.value_id,
    nullif(v.project, '') as project,
    v.axis,
    v.cluster_id,
    v.text,
    v.distance,
    v.session_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', v.validated_at / 1000.0, 'unixepoch') as validated_at
from learned_value v;
