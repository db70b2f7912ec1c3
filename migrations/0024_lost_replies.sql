-- Who reported that nobody saw an answer: a principal may have so many of them. Those of before are the operator's.
alter table hook_lost add column created_by text not null default 'operator';

create index hook_lost_created_by on hook_lost (created_by);
