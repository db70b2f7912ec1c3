-- The operator's own peer is made by the daemon and has an id of its own. No registration finds it, or is in its way.

drop index peer_place;
create unique index peer_place on peer (backend, path, tmux_pane, coalesce(owner, ''))
    where session_id = '' and peer_id <> 'operator';

-- When the process of `pid` started, in the system's count and in which run of the system; null if it did not run when it
-- was named.
alter table peer add column process_started text;
