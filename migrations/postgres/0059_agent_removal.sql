-- See `migrations/0059_agent_removal.sql`.
create index agent_removal on agent (ended_at, agent_id) where task_id is not null and ended_at is not null;
