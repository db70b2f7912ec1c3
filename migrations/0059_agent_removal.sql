-- The ended agents of tasks, of which those that are to be removed are few: finds them without a read
-- of all agents that ever ran.
create index agent_removal on agent (ended_at, agent_id) where task_id is not null and ended_at is not null;
