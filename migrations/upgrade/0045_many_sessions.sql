-- A client's process may have many sessions, each with a process of ours (`svc stdio`) that bears a token of its own. It is good for
-- as long as its bearer runs: `pid:start`.
alter table token add column bearer text;

-- Nobody is put aside for another session of the same name: the living have the short name, and the others are told from them by
-- their ids and times.
update peer set display_name = substr(display_name, 1, length(display_name) - 7)
where length(display_name) > 7 and substr(display_name, -7) = '~' || substr(peer_id, -6);
