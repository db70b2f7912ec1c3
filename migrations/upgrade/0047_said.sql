-- How many bytes of the entry that the agent is saying are frames already.

alter table dispatch add column said integer not null default 0;
