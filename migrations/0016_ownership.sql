-- Whose things are. A session reads its own and its project's; what cannot be derived of old rows stays the operator's.

-- Root of the project that a task belongs to; '' if none.
alter table task add column project text not null default '';
-- The session that runs it, as in `created_by`: that of the peer that its maker gave it to. Null if it was given to none.
alter table task add column runner text;

update task set project = coalesce(
    (select s.project from session s where 'session:' || s.session_id = task.created_by),
    (select s.project from peer p join session s on s.session_id = p.session_id where p.peer_id = task.from_peer),
    '');

-- Root of the project that a peer works in; '' if none. Sessions of others see its presence and no more.
alter table peer add column project text not null default '';

update peer set project = coalesce(
    (select nullif(s.project, '') from session s where s.session_id = peer.session_id),
    iif(owner is null, path, ''));

-- A peer that stands for a folder is one for each owner: nobody takes another's by coming first.
drop index peer_place;
create unique index peer_place on peer (backend, path, tmux_pane, coalesce(owner, '')) where session_id = '';

-- Whether the operator gave a memory to every project. Of a memory without a project that is another thing than being
-- of no project.
alter table memory add column shared integer not null default 0 check (shared in (0, 1));

update memory set shared = 1
where project = '' and exists (
    select 1 from session s
    where s.session_id = memory.session_id and s.project <> '' and s.created_by = 'operator'
);

create index session_owner on session (created_by);

-- Who may read a stream, beside the operator. With visibility `team`: every caller. With `operator`:
--   owner and project      the owner (as in `created_by`), sessions of the project, and who reads every project's;
--                          a project of '' is none
--   owner, null project    the owner alone
--   null and null          nobody: answers to a client
alter table stream add column owner text;
alter table stream add column project text;

update stream set visibility = 'operator', project = '' where name <> 'team' and not (name >= 'mcp/' and name < 'mcp0');

update stream set owner = t.created_by, project = t.project from task t where t.stream_id = stream.id;

update stream set
    owner = iif(s.created_by = 'operator', 'session:' || s.session_id, s.created_by),
    project = s.project
from session s where stream.name = 'session/' || s.session_id;

update stream set
    owner = coalesce('session:' || p.owner, 'session:' || nullif(p.session_id, ''), 'operator'),
    project = null
from peer p where stream.name = 'peer/' || p.peer_id;

-- The streams of peers that are gone.
update stream set owner = 'operator', project = null
where name >= 'peer/' and name < 'peer0' and owner is null;

update stream set owner = 'operator' where name = 'daemon';

-- What everybody reads holds presence and no more.
update event set data = json_remove(data, '$.path', '$.session_id', '$.tmux_pane', '$.pid', '$.metadata')
where stream_id = (select id from stream where name = 'team')
    and kind in ('peer.registered', 'peer.updated', 'peer.removed');
